// Text from files and names, made safe for a terminal and for the eye of its reader. The one rule for everything that is shown.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace strata {

/// `text` on one line: letters of every script as they are; as \xNN, byte by byte, what could steer a terminal or make text look like
/// another: control characters, line separators, direction marks and other invisible format characters, and bytes that are not UTF-8.
/// (The joiners that some scripts need inside a word stay.) After `limit` bytes the rest is "...".
std::string printable(std::string_view text, size_t limit = 80);
/// The same, whole.
std::string shown_text(std::string_view text);
/// The same, whole, for a text of several lines, which stay lines.
std::string shown_lines(std::string_view text);
/// JSON text with those characters as \uNNNN, which means the same to every reader of JSON. Line ends stay.
std::string shown_json(std::string_view json);

}  // namespace strata
