// Runs the built `strata` as a process of its own and gives back what it said.
#pragma once

#include <fcntl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <functional>
#include <iterator>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "tests/core/scratch_directory.hpp"

namespace strata::cli::testing {

struct Outcome {
  int status = -1;  // as the shell counts: 128 + signal when it was killed
  std::string out, err;
  nlohmann::json json() const { return nlohmann::json::parse(out); }
};

inline std::string read_file(const std::filesystem::path& file) {
  std::ifstream in(file, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

inline void write_file(const std::filesystem::path& file, const std::string& content) {
  std::ofstream(file, std::ios::binary) << content;
}

/// `prepare` runs in the child before the program does: limits, environment, current directory.
inline Outcome strata(const std::vector<std::string>& arguments, const std::function<void()>& prepare = {}) {
  const ScratchDirectory scratch;
  const std::string out = scratch / "out", err = scratch / "err";
  std::vector<std::string> words = {STRATA_PROGRAM};
  words.insert(words.end(), arguments.begin(), arguments.end());
  std::vector<char*> pointers;
  for (std::string& word : words) pointers.push_back(word.data());
  pointers.push_back(nullptr);
  const pid_t child = fork();
  if (child == 0) {
    dup2(open(out.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0600), STDOUT_FILENO);
    dup2(open(err.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0600), STDERR_FILENO);
    if (prepare) prepare();
    execv(pointers[0], pointers.data());
    _exit(127);
  }
  int status = 0;
  if (child < 0 || waitpid(child, &status, 0) != child) return {};
  return {WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status), read_file(out), read_file(err)};
}

/// A directory of tests/reference/vectors: a small model as transformers wrote it.
inline std::filesystem::path reference_model(const std::string& name) {
  return std::filesystem::path(STRATA_SOURCE_DIR) / "tests/reference/vectors" / name;
}

/// A copy of it without what only the references need.
inline std::filesystem::path copy_of_model(const std::string& name, const std::filesystem::path& to) {
  std::filesystem::create_directories(to);
  for (const char* file : {"config.json", "model.safetensors"})
    std::filesystem::copy_file(reference_model(name) / file, to / file);
  return to;
}

inline void flip_bit(const std::filesystem::path& file, uint64_t offset) {
  std::fstream stream(file, std::ios::in | std::ios::out | std::ios::binary);
  stream.seekg(static_cast<std::streamoff>(offset));
  const char byte = static_cast<char>(stream.get() ^ 4);
  stream.seekp(static_cast<std::streamoff>(offset));
  stream.put(byte);
}

}  // namespace strata::cli::testing
