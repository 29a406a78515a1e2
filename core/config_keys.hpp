// The table of configuration keys: one row a key, from which parsing, writing, hints, docs/configuration.md and the commented example are
// made. Included by source files only.
#pragma once

#include <algorithm>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "core/config.hpp"
#include "core/json_fields.hpp"

namespace strata {

struct ConfigKey {
  std::string pointer;   // "/data/seed"; "/tiers/nvme/*/path" is a key of every item of the list /tiers/nvme
  std::string allowed;   // the values it takes, for the page
  std::string effect;    // what it does, in a sentence or two
  std::string required = {};  // what is said when it is missing; empty: it has a default
  std::string example = {};   // its value in the commented example, as JSON; empty: the default
  /// An object, or a list of objects, whose keys have rows of their own.
  enum class Container { none, object, list } container = Container::none;
  /// Sets the key's place in the configuration, or adds a problem and leaves it. A container's only looks at the value's kind.
  std::function<void(ObjectReader& reader, std::string_view key, Config& config, size_t item)> read = {};
  /// The value in a configuration. A container's: a list of as many nulls as it has items, what stands for the whole object, or null
  /// where its keys are written one by one.
  std::function<OrderedJson(const Config& config, size_t item)> write = {};
};

/// All keys in the order of the page. A new key is a member of Config and a row here.
const std::vector<ConfigKey>& config_keys();

/// The part of a pointer below `prefix`; empty if it is not below.
inline std::string_view part_below(std::string_view pointer, std::string_view prefix) {
  if (pointer.size() <= prefix.size() + 1 || !pointer.starts_with(prefix) || pointer[prefix.size()] != '/') return {};
  return pointer.substr(prefix.size() + 1);
}

/// Calls on_key(row, name) or on_section(name) once for every member of the object at `prefix` ("" or "/tiers/nvme/*"), in the table's
/// order. What lies below a row's own pointer is left to that call.
template <typename OnKey, typename OnSection>
void for_each_member(std::string_view prefix, OnKey on_key, OnSection on_section) {
  std::vector<std::string_view> seen;
  for (const ConfigKey& row : config_keys()) {
    const std::string_view rest = part_below(row.pointer, prefix);
    const std::string_view name = rest.substr(0, rest.find('/'));
    if (rest.empty() || std::find(seen.begin(), seen.end(), name) != seen.end()) continue;
    seen.push_back(name);
    if (name.size() == rest.size())
      on_key(row, name);
    else
      on_section(name);
  }
}

}  // namespace strata
