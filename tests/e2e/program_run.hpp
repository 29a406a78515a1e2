// The built `strata` program as a child process that can be killed at any moment.
#pragma once

#include <fcntl.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <filesystem>
#include <fstream>
#include <functional>
#include <iterator>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include "tests/scheduler/training_fixture.hpp"

namespace strata::e2e {

using scheduler::TemporaryDirectory;

class ProgramRun {
 public:
  /// `prepare` runs in the child before the program does.
  ProgramRun(std::vector<std::string> arguments, const std::filesystem::path& output,
             const std::function<void()>& prepare = {})
      : output_(output) {
    arguments.insert(arguments.begin(), STRATA_PROGRAM);
    std::vector<char*> pointers;
    for (std::string& word : arguments) pointers.push_back(word.data());
    pointers.push_back(nullptr);
    child_ = fork();
    if (child_ != 0) return;
    const int file = open(output.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0600);
    dup2(file, STDOUT_FILENO);
    dup2(file, STDERR_FILENO);
    if (prepare) prepare();
    execv(pointers[0], pointers.data());
    _exit(127);
  }
  ~ProgramRun() {
    if (!reaped_) {
      kill();
      wait();
    }
  }
  ProgramRun(const ProgramRun&) = delete;
  ProgramRun& operator=(const ProgramRun&) = delete;

  pid_t pid() const { return child_; }
  void kill(int signal_number = SIGKILL) const { ::kill(child_, signal_number); }
  /// The exit status as a shell counts it: 128 + signal when it was killed. `peak_kib` is the largest resident set.
  int wait() {
    int status = 0;
    rusage usage{};
    wait4(child_, &status, 0, &usage);
    reaped_ = true;
    peak_kib_ = usage.ru_maxrss;
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  }
  bool running() {
    int status = 0;
    if (reaped_) return false;
    if (waitpid(child_, &status, WNOHANG) == 0) return true;
    reaped_ = true;
    return false;
  }
  long peak_kib() const { return peak_kib_; }
  std::string text() const {
    std::ifstream in(output_);
    return {std::istreambuf_iterator<char>(in), {}};
  }
  /// The word after `key` on a line that starts with it.
  std::string value(const std::string& key) const {
    std::istringstream lines(text());
    for (std::string line; std::getline(lines, line);)
      if (line.starts_with(key + " ")) return line.substr(key.size() + 1);
    return {};
  }

 private:
  std::filesystem::path output_;
  pid_t child_ = -1;
  bool reaped_ = false;
  long peak_kib_ = 0;
};

/// A tiny model, its text and its configuration file in a directory.
class RunFiles {
 public:
  explicit RunFiles(const char* model = scheduler::kTinyTiedLlama, int64_t steps = 60) {
    scheduler::write_random_model(directory_.path(), model);
    scheduler::write_text(directory_.path() / "text.txt", 60000);
    config = scheduler::tiny_config(directory_.path(), steps);
    config.precision.compute = DType::bf16;
    config.placement = {Tier::host, Tier::host, Tier::nvme, ActivationPolicy::recompute};
  }
  std::filesystem::path operator/(const std::string& name) const { return directory_.path() / name; }

  /// Arguments of a training run in RUN (also the name of its store's directory).
  std::vector<std::string> train(const std::string& run) {
    config.tiers.nvme = {{directory_.path() / (run + "-nvme"), 1ull << 30}};
    const std::filesystem::path file = directory_.path() / (run + ".json");
    std::ofstream(file) << config.to_json();
    return {"train", file.string(), "--run-dir", (directory_.path() / run).string(), "--state-hash"};
  }

  Config config;

 private:
  TemporaryDirectory directory_;
};

}  // namespace strata::e2e
