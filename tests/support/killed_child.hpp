// A child process that dies at the entry of its n-th system call: what a crash between any two of them leaves.
#pragma once

#include <signal.h>
#include <sys/ptrace.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <functional>
#include <stdexcept>

namespace strata {

enum class ChildEnd { killed, finished, failed, not_traceable };

/// Runs `action`, which must start no thread, in a forked child, and kills it before its `nth` system call (from 1) has an effect.
/// `failed`: the action threw. `not_traceable`: this machine allows no ptrace.
inline ChildEnd run_until_system_call(uint64_t nth, const std::function<void()>& action) {
  const pid_t child = fork();
  if (child < 0) throw std::runtime_error("cannot fork");
  if (child == 0) {
    if (ptrace(PTRACE_TRACEME, 0, nullptr, nullptr) != 0) _exit(99);
    raise(SIGSTOP);
    try {
      action();
    } catch (...) {
      _exit(98);
    }
    _exit(0);
  }
  int status = 0;
  bool entry = true;
  uint64_t calls = 0;
  for (;;) {
    if (waitpid(child, &status, 0) != child) throw std::runtime_error("cannot wait");
    if (WIFEXITED(status)) return WEXITSTATUS(status) == 0 ? ChildEnd::finished : WEXITSTATUS(status) == 99 ? ChildEnd::not_traceable : ChildEnd::failed;
    if (WIFSIGNALED(status)) return WTERMSIG(status) == SIGKILL ? ChildEnd::killed : ChildEnd::failed;
    const int signal_number = WSTOPSIG(status);
    const bool system_call = signal_number == SIGTRAP;
    // Every call stops twice, at its entry and at its end.
    if (system_call && entry && ++calls == nth) kill(child, SIGKILL);
    if (system_call) entry = !entry;
    ptrace(PTRACE_SYSCALL, child, nullptr, system_call || signal_number == SIGSTOP ? 0 : signal_number);
  }
}

}  // namespace strata
