#include "core/printable.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <limits>

namespace strata {
namespace {

constexpr size_t kWhole = std::numeric_limits<size_t>::max();

struct Character {
  char32_t code = 0;
  size_t bytes = 1;
  bool valid = false;
};

/// The character that `text`, which is not empty, begins with; one byte when it begins with no UTF-8 (Unicode 15, table 3-7).
Character first_character(std::string_view text) {
  const auto byte = [&](size_t i) { return static_cast<unsigned char>(text[i]); };
  const unsigned char lead = byte(0);
  if (lead < 0x80) return {lead, 1, true};
  const size_t bytes = lead >= 0xf0 ? 4 : lead >= 0xe0 ? 3 : 2;
  if (lead < 0xc2 || lead > 0xf4 || text.size() < bytes) return {};
  char32_t code = lead & (0xff >> (bytes + 1));
  for (size_t i = 1; i < bytes; ++i) {
    if ((byte(i) & 0xc0) != 0x80) return {};
    code = code << 6 | (byte(i) & 0x3f);
  }
  const bool overlong = (bytes == 3 && code < 0x800) || (bytes == 4 && code < 0x10000);
  if (overlong || (code >= 0xd800 && code < 0xe000) || code > 0x10ffff) return {};
  return {code, bytes, true};
}

struct CodeRange {
  char32_t first, last;
};
// Unicode's Cc, Zl, Zp, and what of Cf cannot be seen, without the joiners U+200C and U+200D.
constexpr CodeRange kHidden[] = {{0x0, 0x1f},       {0x7f, 0x9f},       {0xad, 0xad},       {0x61c, 0x61c},     {0x180e, 0x180e},
                                 {0x200b, 0x200b},  {0x200e, 0x200f},   {0x2028, 0x202e},   {0x2060, 0x206f},   {0xfeff, 0xfeff},
                                 {0xfff9, 0xfffb},  {0x13430, 0x1343f}, {0x1bca0, 0x1bca3}, {0x1d173, 0x1d17a}, {0xe0000, 0xe007f}};

bool is_hidden(char32_t code) {
  return std::any_of(std::begin(kHidden), std::end(kHidden),
                     [code](const CodeRange& range) { return code >= range.first && code <= range.last; });
}

std::string bytes_escaped(std::string_view bytes) {
  std::string out;
  for (const char c : bytes) out += fmt::format("\\x{:02x}", static_cast<unsigned char>(c));
  return out;
}

std::string json_escaped(const Character& character) {
  if (!character.valid) return "\\ufffd";
  if (character.code < 0x10000) return fmt::format("\\u{:04x}", static_cast<uint32_t>(character.code));
  const auto rest = static_cast<uint32_t>(character.code - 0x10000);
  return fmt::format("\\u{:04x}\\u{:04x}", 0xd800 + (rest >> 10), 0xdc00 + (rest & 0x3ff));
}

enum class Keep { nothing, lines };

template <class Escape>
std::string escaped(std::string_view text, size_t limit, Keep keep, Escape escape) {
  std::string out;
  while (!text.empty()) {
    if (out.size() >= limit) return out + "...";
    const Character character = first_character(text);
    const std::string_view bytes = text.substr(0, character.bytes);
    const bool kept = keep == Keep::lines && character.code == '\n';
    if (character.valid && (kept || !is_hidden(character.code)))
      out += bytes;
    else
      out += escape(character, bytes);
    text.remove_prefix(character.bytes);
  }
  return out;
}

constexpr auto kAsBytes = [](const Character&, std::string_view bytes) { return bytes_escaped(bytes); };

}  // namespace

std::string printable(std::string_view text, size_t limit) { return escaped(text, limit, Keep::nothing, kAsBytes); }
std::string shown_text(std::string_view text) { return escaped(text, kWhole, Keep::nothing, kAsBytes); }
std::string shown_lines(std::string_view text) { return escaped(text, kWhole, Keep::lines, kAsBytes); }
std::string shown_json(std::string_view json) {
  return escaped(json, kWhole, Keep::lines, [](const Character& character, std::string_view) { return json_escaped(character); });
}

}  // namespace strata
