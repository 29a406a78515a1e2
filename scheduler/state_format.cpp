#include "scheduler/state_format.hpp"

#include <fmt/format.h>

namespace strata::scheduler {

std::string_view to_string(Section section) {
  switch (section) {
    case Section::parameter: return "parameter";
    case Section::master: return "master";
    case Section::momentum: return "momentum";
    case Section::variance: return "variance";
  }
  return "?";
}

std::string extent_name(std::string_view unit, size_t tile, std::string_view content) {
  return fmt::format("{} tile {} {}", unit, tile, content);
}

uint64_t StateFormat::bytes(Section section) const {
  switch (section) {
    case Section::parameter: return size_bytes(compute);
    case Section::master: return master == MasterFormat::parameter ? 0 : master == MasterFormat::split ? 2 : 4;
    case Section::momentum:
    case Section::variance: return 4;
  }
  return 0;
}

uint64_t StateFormat::state_bytes() const {
  uint64_t total = 0;
  for (Section section : kSections) total += bytes(section);
  return total;
}

StateFormat make_state_format(const Config::Precision& precision) {
  StateFormat format;
  format.compute = precision.compute;
  format.gradient = precision.compute;
  if (precision.compute == DType::f32) {
    format.master = MasterFormat::parameter;
  } else if (precision.compute == DType::bf16 && precision.master != MasterChoice::fp32) {
    format.master = MasterFormat::split;
  } else {
    format.master = MasterFormat::fp32;
  }
  return format;
}

}  // namespace strata::scheduler
