// Runs the built `strata` as a process of its own and gives back what it said.
#pragma once

#include <filesystem>
#include <functional>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "tests/support/files.hpp"
#include "tests/support/program_run.hpp"
#include "tests/support/scratch_directory.hpp"

namespace strata::cli::testing {

struct Outcome {
  int status = -1;  // as the shell counts: 128 + signal when it was killed
  std::string out, err;
  nlohmann::json json() const { return nlohmann::json::parse(out); }
};

/// `prepare` runs in the child before the program does: limits, environment, current directory.
inline Outcome strata(const std::vector<std::string>& arguments, const std::function<void()>& prepare = {}) {
  const ScratchDirectory scratch;
  ProgramRun run(arguments, scratch / "out", scratch / "err", prepare);
  const int status = run.wait();
  return {status, read_file(scratch / "out"), read_file(scratch / "err")};
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

}  // namespace strata::cli::testing
