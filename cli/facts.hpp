// What a command found out, printed for people or, with --json, for programs: one structure, so that both say the same.
#pragma once

#include <nlohmann/json.hpp>
#include <string>

#include "core/printable.hpp"

namespace strata::cli {

/// Names and values in the order they are printed. Sizes have names that are "bytes" or end in "_bytes".
using Facts = nlohmann::ordered_json;

/// The facts as text: a line each, objects indented under their name, a list of objects as a table with a column per name.
std::string facts_text(const Facts& facts);

/// On stdout: text, or JSON with "schema_version" first.
void print_facts(const Facts& facts, bool json);

}  // namespace strata::cli
