#include "cli/interrupt.hpp"

#include <csignal>
#include <initializer_list>

namespace strata::cli {

namespace {

volatile std::sig_atomic_t noted_signal = 0;

extern "C" void note_signal(int signal_number) {
  noted_signal = signal_number;
  std::signal(signal_number, SIG_DFL);
}

}  // namespace

InterruptGuard::InterruptGuard() {
  noted_signal = 0;
  // A signal that is ignored, as nohup asks for, stays so.
  for (const int signal_number : {SIGINT, SIGTERM, SIGHUP})
    if (std::signal(signal_number, note_signal) == SIG_IGN) std::signal(signal_number, SIG_IGN);
}

InterruptGuard::~InterruptGuard() {
  for (const int signal_number : {SIGINT, SIGTERM, SIGHUP})
    if (std::signal(signal_number, SIG_DFL) == SIG_IGN) std::signal(signal_number, SIG_IGN);
}

void InterruptGuard::check() const {
  if (noted_signal != 0) throw Interrupted{noted_signal};
}

}  // namespace strata::cli
