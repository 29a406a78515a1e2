// The one family of errors that Strata throws, and the always-on invariant check.
#pragma once

#include <fmt/format.h>

#include <exception>
#include <string>
#include <string_view>

namespace strata {

enum class ErrorCode {
  invalid_configuration,  // the command line, a configuration file or a model description: exit status 2
  unsupported,            // a feature that exists in the field but not in this build
  invalid_data,           // a model, token or checkpoint file that does not hold what it should
  data_corruption,        // a checksum, length or generation that does not match what was written
  io,                     // the system refused a file operation
  resource_exhausted,     // memory or disk space does not suffice
  busy,                   // another run holds the resource
  timeout,                // a wait passed its deadline
  cancelled,              // the work was given up because something else failed first
  internal,               // a broken invariant: a defect in Strata
};

std::string_view to_string(ErrorCode code);

/// What went wrong, on what, and what to do about it.
/// `what()` is the whole text: "<message>\n  where: <where>\n  try: <remedy>", with absent parts left out.
class Error : public std::exception {
 public:
  /// `where` names the object (path and offset, tensor, configuration pointer, rank); `remedy` says what to try.
  Error(ErrorCode code, std::string message, std::string where = {}, std::string remedy = {});

  ErrorCode code() const noexcept { return code_; }
  const std::string& message() const noexcept { return message_; }
  const std::string& where() const noexcept { return where_; }
  const std::string& remedy() const noexcept { return remedy_; }
  const char* what() const noexcept override { return text_.c_str(); }

 private:
  ErrorCode code_;
  std::string message_, where_, remedy_, text_;
};

/// The text of an errno value ("No space left on device"), thread-safe.
std::string system_reason(int error_number);

[[noreturn]] void throw_check_failure(const char* condition, const char* file, int line, const std::string& values);

}  // namespace strata

/// An invariant that holds in every build. The message should print the values that broke it:
/// STRATA_CHECK(offset % 4096 == 0, "offset {}", offset). Throws Error{internal}.
#define STRATA_CHECK(condition, ...)                                                             \
  do {                                                                                           \
    if (!(condition)) [[unlikely]]                                                               \
      ::strata::throw_check_failure(#condition, __FILE__, __LINE__, ::fmt::format(__VA_ARGS__)); \
  } while (false)
