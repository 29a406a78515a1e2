// Reads the fields of a JSON object with their types and ranges, and collects every problem instead of stopping at the
// first.
#pragma once

#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "core/json.hpp"

namespace strata {

/// What is wrong with a document, each with its JSON pointer. The first hundred are kept, the others counted.
class Problems {
 public:
  void add(const std::string& pointer, const std::string& text);
  bool empty() const { return count_ == 0; }
  /// Whether further problems will only be counted.
  bool full() const;
  /// Whether something is wrong with the value at `pointer`.
  bool concern(const std::string& pointer) const;
  /// What is wrong with an option of the command line itself.
  void add_to_option(const std::string& option, const std::string& text);
  /// What lies at or below `pointer` was given by `option`, not by the file: problems added later name the option.
  void attribute(const std::string& pointer, const std::string& option);
  /// The options that gave what is wrong, if the file is to blame for nothing.
  std::vector<std::string> only_options() const;
  /// Adds those of another list behind these.
  void append(const Problems& others);
  /// Throws one Error that lists all of them; `name` is the file.
  [[noreturn]] void raise(ErrorCode code, const std::string& name, const std::string& remedy = {}) const;

 private:
  struct Line {
    std::string pointer, text, option;
  };
  void add(Line line);

  std::vector<Line> lines_;
  size_t count_ = 0;
  std::vector<std::pair<std::string, std::string>> options_;  // pointer, option
};

/// The nearest of `known` to a mistyped word, or empty if none is near.
std::string nearest_word(std::string_view word, const std::vector<std::string>& known);

struct NumberRange {
  double min = -std::numeric_limits<double>::infinity();
  double max = std::numeric_limits<double>::infinity();
  bool above_min = false;  // min itself is not allowed
  bool below_max = false;  // max itself is not allowed
};

/// The fields of one object. A field that is absent leaves its target as it is; a wrong one adds a problem and leaves
/// it, too.
class ObjectReader {
 public:
  /// `object` is null for an absent section. Anything that is not an object adds a problem and reads as empty.
  ObjectReader(const Json* object, std::string pointer, Problems& problems);

  const std::string& pointer() const { return pointer_; }
  std::string pointer_of(std::string_view key) const { return json_pointer(pointer_, key); }
  Problems& problems() const { return *problems_; }

  /// The value, or null if absent (or JSON null, when `null_is_absent` is set). Marks the key as known.
  const Json* find(std::string_view key);
  ObjectReader section(std::string_view key);
  bool has(std::string_view key) const;
  bool null_is_absent = false;

  void integer(std::string_view key, int64_t& target, int64_t min, int64_t max);
  void unsigned_integer(std::string_view key, uint64_t& target);
  void number(std::string_view key, double& target, const NumberRange& range);
  void boolean(std::string_view key, bool& target);
  void text(std::string_view key, std::string& target);
  /// "8GiB" or a number of bytes.
  void bytes(std::string_view key, uint64_t& target, uint64_t min, uint64_t max);

  /// One of a list of words. `target` is set to the word's value.
  template <typename Enum>
  void choice(std::string_view key, Enum& target, const std::vector<std::pair<std::string, Enum>>& words) {
    const Json* value = find(key);
    if (value == nullptr) return;
    std::vector<std::string> names;
    for (const auto& [word, meaning] : words) {
      if (value->is_string() && value->get_ref<const std::string&>() == word) {
        target = meaning;
        return;
      }
      names.push_back(word);
    }
    report_choice(key, *value, names);
  }

  /// The object's keys that no call above asked for.
  std::vector<std::string> unasked() const;

  void problem(std::string_view key, const std::string& text) { problems_->add(pointer_of(key), text); }
  void report_choice(std::string_view key, const Json& value, const std::vector<std::string>& names);
  /// Adds a problem for each key that no call above asked for. `elsewhere` lists pointers of the whole document, for
  /// the hint.
  void refuse_unknown(const std::vector<std::string>& elsewhere = {});

 private:
  const Json* object_;
  std::string pointer_;
  Problems* problems_;
  std::vector<std::string> known_;
};

/// A value as it is shown in a problem: short JSON.
std::string shown(const Json& value);

}  // namespace strata
