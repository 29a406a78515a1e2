// Ctrl-C for a command that writes: it ends at the next piece, removes what is unfinished, and dies of the signal, as a shell expects.
#pragma once

namespace strata::cli {

/// What a command throws to end by a signal; main() does that.
struct Interrupted {
  int signal_number;
};

/// While one lives, the first SIGINT, SIGTERM or SIGHUP is only noted; a second one ends the process at once. One at a time.
class InterruptGuard {
 public:
  InterruptGuard();
  ~InterruptGuard();
  InterruptGuard(const InterruptGuard&) = delete;
  InterruptGuard& operator=(const InterruptGuard&) = delete;

  /// Throws Interrupted if a signal was noted. To be called every fraction of a second.
  void check() const;
};

}  // namespace strata::cli
