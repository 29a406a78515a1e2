#include <fmt/format.h>

#include <array>
#include <cctype>
#include <string_view>

#include "core/config.hpp"
#include "core/error.hpp"

namespace strata {
namespace {

struct Unit {
  std::string_view name;
  uint64_t bytes;
};

constexpr std::array<Unit, 11> kUnits = {{{"", 1},
                                          {"b", 1},
                                          {"kb", 1000},
                                          {"mb", 1000'000},
                                          {"gb", 1000'000'000},
                                          {"tb", 1000'000'000'000},
                                          {"kib", 1ull << 10},
                                          {"mib", 1ull << 20},
                                          {"gib", 1ull << 30},
                                          {"tib", 1ull << 40},
                                          {"pib", 1ull << 50}}};

[[noreturn]] void refuse(const std::string& text, const std::string& reason) {
  throw Error(ErrorCode::invalid_configuration, fmt::format("\"{}\" is not a size: {}", text, reason), {},
              "write a number and B, kB, MB, GB, TB, KiB, MiB, GiB or TiB, as in \"8GiB\"");
}

}  // namespace

uint64_t parse_bytes(const std::string& text) {
  size_t at = 0;
  const auto digit = [&] { return at < text.size() && std::isdigit(static_cast<unsigned char>(text[at])); };
  if (!digit()) refuse(text, "it does not begin with a digit");
  unsigned __int128 digits = 0;
  unsigned __int128 divisor = 1;
  const auto take_digits = [&](bool fraction) {
    for (; digit(); ++at) {
      if (digits > (static_cast<unsigned __int128>(1) << 64) || divisor > 1'000'000'000'000)
        refuse(text, "too many digits");
      digits = digits * 10 + static_cast<unsigned>(text[at] - '0');
      if (fraction) divisor *= 10;
    }
  };
  take_digits(false);
  if (at < text.size() && text[at] == '.') {
    ++at;
    if (!digit()) refuse(text, "there is no digit after the point");
    take_digits(true);
  }
  while (at < text.size() && text[at] == ' ') ++at;
  std::string unit;
  for (; at < text.size(); ++at) unit += static_cast<char>(std::tolower(static_cast<unsigned char>(text[at])));
  for (const Unit& known : kUnits) {
    if (known.name != unit) continue;
    const unsigned __int128 bytes = digits * known.bytes / divisor;
    if (bytes > UINT64_MAX) refuse(text, "more than 64 bits can count");
    return static_cast<uint64_t>(bytes);
  }
  refuse(text, fmt::format("the unit \"{}\" is unknown", unit));
}

std::string format_bytes(uint64_t bytes) {
  constexpr std::array<std::string_view, 6> kNames = {"B", "KiB", "MiB", "GiB", "TiB", "PiB"};
  size_t unit = 0;
  while (unit + 1 < kNames.size() && (bytes >> (10 * (unit + 1))) != 0) ++unit;
  const uint64_t size = 1ull << (10 * unit);
  if (bytes % size == 0) return fmt::format("{} {}", bytes / size, kNames[unit]);
  return fmt::format("{:.2f} {}", static_cast<double>(bytes) / static_cast<double>(size), kNames[unit]);
}

}  // namespace strata
