#include "cli/console.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <cstdio>
#include <utility>

#include "cli/facts.hpp"

namespace strata::cli {

namespace {
constexpr double kPlainIntervalSeconds = 5;
constexpr double kTerminalIntervalSeconds = 0.1;
constexpr const char* kClearLine = "\r\033[K";

using Clock = std::chrono::steady_clock;
double seconds_since(Clock::time_point start) { return std::chrono::duration<double>(Clock::now() - start).count(); }
}  // namespace

void complain(const std::string& text) {
  static_cast<void>(std::fwrite(text.data(), 1, text.size(), stderr));
  std::fflush(stderr);
}

void narrate(const std::string& line) {
  complain(fmt::format("{}{}\n", isatty(STDERR_FILENO) ? kClearLine : "", shown_lines(line)));
}

ProgressLine::ProgressLine(std::string what)
    : what_(std::move(what)), start_(Clock::now()), last_(start_ - std::chrono::hours(1)),
      terminal_(isatty(STDERR_FILENO) != 0) {}

ProgressLine::~ProgressLine() {
  if (terminal_ && shown_) complain(kClearLine);
}

void ProgressLine::show(const std::string& text, bool always) {
  if (!always && seconds_since(last_) < (terminal_ ? kTerminalIntervalSeconds : kPlainIntervalSeconds)) return;
  last_ = Clock::now();
  shown_ = true;
  complain(fmt::format("{}{}{}{}", terminal_ ? kClearLine : "", shown_text(what_), shown_text(text), terminal_ ? "" : "\n"));
}

void ProgressLine::show(uint64_t done, uint64_t total) {
  const double elapsed = seconds_since(start_);
  const double share = total > 0 ? static_cast<double>(done) / static_cast<double>(total) : 1.0;
  if (!terminal_ && elapsed < kPlainIntervalSeconds) return;
  show(fmt::format(": {:.0f} %, {} left", 100 * share,
                   share > 0 ? format_duration(elapsed / share - elapsed) : std::string("?")));
}

std::string format_duration(double seconds) {
  const auto whole = static_cast<int64_t>(seconds < 0 ? 0 : seconds + 0.5);
  if (whole >= 3600) return fmt::format("{}h {:02}m", whole / 3600, whole / 60 % 60);
  if (whole >= 60) return fmt::format("{}m {:02}s", whole / 60, whole % 60);
  return fmt::format("{}s", whole);
}

}  // namespace strata::cli
