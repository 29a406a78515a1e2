#include "core/error.hpp"

#include <cstring>
#include <utility>

namespace strata {

std::string_view to_string(ErrorCode code) {
  switch (code) {
    case ErrorCode::invalid_configuration: return "invalid configuration";
    case ErrorCode::unsupported: return "unsupported";
    case ErrorCode::invalid_data: return "invalid data";
    case ErrorCode::data_corruption: return "data corruption";
    case ErrorCode::io: return "input/output error";
    case ErrorCode::resource_exhausted: return "resource exhausted";
    case ErrorCode::busy: return "busy";
    case ErrorCode::timeout: return "timeout";
    case ErrorCode::cancelled: return "cancelled";
    case ErrorCode::internal: return "internal error";
  }
  return "unknown error";
}

Error::Error(ErrorCode code, std::string message, std::string where, std::string remedy)
    : code_(code), message_(std::move(message)), where_(std::move(where)), remedy_(std::move(remedy)) {
  text_ = message_;
  if (!where_.empty()) text_ += "\n  where: " + where_;
  if (!remedy_.empty()) text_ += "\n  try: " + remedy_;
}

std::string system_reason(int error_number) {
  char buffer[256] = {};
  // The GNU variant may return a static string instead of filling the buffer.
  return strerror_r(error_number, buffer, sizeof buffer);
}

void throw_check_failure(const char* condition, const char* file, int line, const std::string& values) {
  throw Error(ErrorCode::internal, fmt::format("check failed: {} ({})", condition, values),
              fmt::format("{}:{}", file, line), "this is a defect in Strata; please report it with this message");
}

}  // namespace strata
