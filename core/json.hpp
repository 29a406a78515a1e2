// Parses JSON text that may be hostile: bounded in size, depth and count, duplicate keys found, errors with line and
// column. Included by source files only, so that nlohmann-json stays out of everybody else's headers.
#pragma once

#include <cstdint>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "core/error.hpp"
#include "core/printable.hpp"

namespace strata {

using Json = nlohmann::json;
using OrderedJson = nlohmann::ordered_json;  // keeps keys in the order of the text; a lookup takes the time of all of them

struct JsonLimits {
  uint64_t bytes = 16ull << 20;
  uint64_t values = 1'000'000;  // keys count as values
  int depth = 64;
  bool comments = false;  // accept // and /* */, which JSON does not have
};

/// Parses one UTF-8 JSON text. `name` stands for the text in messages; `code` is the code of the errors thrown.
/// A duplicate key is an error that names its JSON pointer; if `duplicates` is given, the pointers are appended to it
/// instead and the first value stands. Throws on a syntax error (line and column), invalid UTF-8, a NUL byte or a passed limit,
/// before memory is used for it. `Tree` is Json or OrderedJson.
template <class Tree = Json>
Tree parse_json(std::string_view text, const std::string& name, ErrorCode code, const JsonLimits& limits = {},
                std::vector<std::string>* duplicates = nullptr);

/// Reads and parses a whole file. Its size is checked against the limit before it is read. Throws io if it cannot be
/// read.
template <class Tree = Json>
Tree parse_json_file(const std::filesystem::path& file, ErrorCode code, const JsonLimits& limits = {},
                     std::vector<std::string>* duplicates = nullptr);

/// "/parent/key" with '~' and '/' in the key escaped as RFC 6901 says.
std::string json_pointer(const std::string& parent, std::string_view key);

}  // namespace strata
