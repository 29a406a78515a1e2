// The built `strata` program as a child process that can be killed at any moment.
#pragma once

#include <fcntl.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <functional>
#include <sstream>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "tests/support/files.hpp"

namespace strata {

class ProgramRun {
 public:
  /// `prepare` runs in the child before the program does: limits, environment, current directory.
  ProgramRun(std::vector<std::string> arguments, const std::filesystem::path& out, const std::filesystem::path& err,
             const std::function<void()>& prepare = {})
      : out_(out) {
    arguments.insert(arguments.begin(), STRATA_PROGRAM);
    std::vector<char*> pointers;
    for (std::string& word : arguments) pointers.push_back(word.data());
    pointers.push_back(nullptr);
    child_ = fork();
    if (child_ < 0) throw std::runtime_error("cannot fork");
    if (child_ > 0) return;
    constexpr int kFlags = O_WRONLY | O_CREAT | O_TRUNC | O_APPEND | O_CLOEXEC;  // appending, as both may be one file
    dup2(open(out.c_str(), kFlags, 0600), STDOUT_FILENO);
    dup2(open(err.c_str(), kFlags, 0600), STDERR_FILENO);
    if (prepare) prepare();
    execv(pointers[0], pointers.data());
    _exit(127);
  }
  /// Output and errors in one file.
  ProgramRun(std::vector<std::string> arguments, const std::filesystem::path& log, const std::function<void()>& prepare = {})
      : ProgramRun(std::move(arguments), log, log, prepare) {}
  ~ProgramRun() {
    if (running()) {
      kill();
      wait();
    }
  }
  ProgramRun(const ProgramRun&) = delete;
  ProgramRun& operator=(const ProgramRun&) = delete;

  pid_t pid() const { return child_; }
  void kill(int signal_number = SIGKILL) const { ::kill(child_, signal_number); }
  /// The exit status as a shell counts it: 128 + signal when it was killed.
  int wait() {
    reap(0);
    return status_;
  }
  bool running() {
    reap(WNOHANG);
    return !reaped_;
  }
  std::string text() const { return read_file(out_); }
  /// The word after `key` on a line that starts with it.
  std::string value(const std::string& key) const {
    std::istringstream lines(text());
    for (std::string line; std::getline(lines, line);)
      if (line.starts_with(key + " ")) return line.substr(key.size() + 1);
    return {};
  }

 private:
  void reap(int options) {
    int status = 0;
    if (reaped_ || waitpid(child_, &status, options) != child_) return;
    reaped_ = true;
    status_ = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  }

  std::filesystem::path out_;
  pid_t child_ = -1;
  bool reaped_ = false;
  int status_ = -1;
};

}  // namespace strata
