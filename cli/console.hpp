// What the commands print: results on stdout, narration and progress on stderr.
#pragma once

#include <chrono>
#include <functional>
#include <string>

namespace strata::cli {

/// Writes to stderr; a failure to write is ignored, as a full disk under the log must not end a run.
void complain(const std::string& text);

/// A line of narration on stderr; a progress line under way is cleared first. Control characters are escaped.
void narrate(const std::string& line);

/// One updating line on a terminal, a plain line every few seconds elsewhere.
class ProgressLine {
 public:
  explicit ProgressLine(std::string what);
  ~ProgressLine();
  ProgressLine(const ProgressLine&) = delete;
  ProgressLine& operator=(const ProgressLine&) = delete;

  /// Shows `text`; `always` prints it on a plain output too, whatever the time.
  void show(const std::string& text, bool always = false);
  /// Done of total, with the rate and the time left.
  void show(uint64_t done, uint64_t total);

 private:
  std::string what_;
  std::chrono::steady_clock::time_point start_, last_;
  bool terminal_;
  bool shown_ = false;
};

/// "1h 02m", "3m 05s", "12s".
std::string format_duration(double seconds);

}  // namespace strata::cli
