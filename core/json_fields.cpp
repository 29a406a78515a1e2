#include "core/json_fields.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>

#include "core/config.hpp"

namespace strata {
namespace {

// A file of another model altogether would otherwise fill pages.
constexpr size_t kMaxListed = 100;

/// Edit distance with transpositions of neighbours (optimal string alignment).
size_t edit_distance(std::string_view a, std::string_view b) {
  std::vector<std::vector<size_t>> cost(a.size() + 1, std::vector<size_t>(b.size() + 1));
  for (size_t i = 0; i <= a.size(); ++i) cost[i][0] = i;
  for (size_t j = 0; j <= b.size(); ++j) cost[0][j] = j;
  for (size_t i = 1; i <= a.size(); ++i) {
    for (size_t j = 1; j <= b.size(); ++j) {
      const size_t change = a[i - 1] == b[j - 1] ? 0 : 1;
      cost[i][j] = std::min({cost[i - 1][j] + 1, cost[i][j - 1] + 1, cost[i - 1][j - 1] + change});
      if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1]) {
        cost[i][j] = std::min(cost[i][j], cost[i - 2][j - 2] + 1);
      }
    }
  }
  return cost[a.size()][b.size()];
}

bool is_at_or_below(std::string_view pointer, std::string_view above) {
  return pointer.starts_with(above) && (pointer.size() == above.size() || pointer[above.size()] == '/');
}

std::string range_text(const NumberRange& range) {
  const bool low = std::isfinite(range.min), high = std::isfinite(range.max);
  const std::string above = fmt::format("{} {}", range.above_min ? "greater than" : "at least", range.min);
  const std::string below = fmt::format("{} {}", range.below_max ? "less than" : "at most", range.max);
  if (low && high) return fmt::format("must be a number {} and {}", above, below);
  if (low) return "must be a number " + above;
  if (high) return "must be a number " + below;
  return "must be a finite number";
}

/// The integer in a JSON number that has one (10 and 10.0, not 10.5), if int64 holds it.
std::optional<int64_t> as_integer(const Json& value) {
  if (value.is_number_unsigned()) {
    const uint64_t number = value.get<uint64_t>();
    if (number > static_cast<uint64_t>(INT64_MAX)) return std::nullopt;
    return static_cast<int64_t>(number);
  }
  if (value.is_number_integer()) return value.get<int64_t>();
  return std::nullopt;
}

}  // namespace

bool Problems::full() const { return count_ >= kMaxListed; }

void Problems::add(const std::string& pointer, const std::string& text) {
  Line line{pointer, text, {}};
  for (const auto& [above, option] : options_)
    if (is_at_or_below(pointer, above)) line.option = option;
  add(std::move(line));
}

void Problems::add(Line line) {
  if (!full()) lines_.push_back(std::move(line));
  ++count_;
}

void Problems::add_to_option(const std::string& option, const std::string& text) { add(Line{{}, text, option}); }

bool Problems::concern(const std::string& pointer) const {
  return std::any_of(lines_.begin(), lines_.end(), [&](const Line& line) { return line.pointer == pointer; });
}

void Problems::attribute(const std::string& pointer, const std::string& option) { options_.emplace_back(pointer, option); }

std::vector<std::string> Problems::only_options() const {
  std::vector<std::string> options;
  for (const Line& line : lines_) {
    if (line.option.empty()) return {};
    if (std::find(options.begin(), options.end(), line.option) == options.end()) options.push_back(line.option);
  }
  return options;
}

void Problems::append(const Problems& others) {
  for (const Line& line : others.lines_) add(line);
  count_ += others.count_ - others.lines_.size();
}

void Problems::raise(ErrorCode code, const std::string& name, const std::string& remedy) const {
  std::string text = count_ == 1 ? "1 problem:" : fmt::format("{} problems:", count_);
  for (const Line& line : lines_) {
    text += "\n  - ";
    if (!line.option.empty()) text += printable(line.option, 200) + ": ";
    if (!line.pointer.empty()) text += printable(line.pointer, 200) + ": ";
    if (line.option.empty() && line.pointer.empty()) text += "(whole file): ";
    text += line.text;
  }
  if (count_ > lines_.size()) text += fmt::format("\n  - ... and {} more", count_ - lines_.size());
  throw Error(code, text, name, remedy);
}

std::string nearest_word(std::string_view word, const std::vector<std::string>& known) {
  if (word.size() > 100) return {};
  std::string best;
  size_t best_distance = std::max<size_t>(2, word.size() / 3) + 1;
  for (const std::string& candidate : known) {
    const size_t distance = edit_distance(word, candidate);
    // A distance as long as the word itself would make any word near to any other.
    if (distance < best_distance && distance < std::max(word.size(), candidate.size())) {
      best_distance = distance;
      best = candidate;
    }
  }
  return best;
}

std::string shown(const Json& value) {
  return printable(value.dump(-1, ' ', false, Json::error_handler_t::replace), 60);
}

ObjectReader::ObjectReader(const Json* object, std::string pointer, Problems& problems)
    : object_(object), pointer_(std::move(pointer)), problems_(&problems) {
  if (object_ != nullptr && !object_->is_object()) {
    problems_->add(pointer_, fmt::format("must be an object {{...}}, is {}", shown(*object_)));
    object_ = nullptr;
  }
}

bool ObjectReader::has(std::string_view key) const {
  if (object_ == nullptr) return false;
  const auto found = object_->find(key);
  return found != object_->end() && !(null_is_absent && found->is_null());
}

const Json* ObjectReader::find(std::string_view key) {
  if (std::find(known_.begin(), known_.end(), key) == known_.end()) known_.emplace_back(key);
  return has(key) ? &*object_->find(key) : nullptr;
}

ObjectReader ObjectReader::section(std::string_view key) {
  ObjectReader reader(find(key), pointer_of(key), *problems_);
  reader.null_is_absent = null_is_absent;
  return reader;
}

void ObjectReader::integer(std::string_view key, int64_t& target, int64_t min, int64_t max) {
  const Json* value = find(key);
  if (value == nullptr) return;
  const std::optional<int64_t> number = as_integer(*value);
  if (number && *number >= min && *number <= max) {
    target = *number;
    return;
  }
  problem(key, fmt::format("must be an integer from {} to {}, is {}", min, max, shown(*value)));
}

void ObjectReader::unsigned_integer(std::string_view key, uint64_t& target) {
  const Json* value = find(key);
  if (value == nullptr) return;
  if (value->is_number_unsigned()) {
    target = value->get<uint64_t>();
    return;
  }
  problem(key, fmt::format("must be an integer from 0 to {}, is {}", UINT64_MAX, shown(*value)));
}

void ObjectReader::number(std::string_view key, double& target, const NumberRange& range) {
  const Json* value = find(key);
  if (value == nullptr) return;
  if (value->is_number()) {
    const double number = value->get<double>();
    const bool low = range.above_min ? number > range.min : number >= range.min;
    const bool high = range.below_max ? number < range.max : number <= range.max;
    if (std::isfinite(number) && low && high) {
      target = number;
      return;
    }
  }
  problem(key, fmt::format("{}, is {}", range_text(range), shown(*value)));
}

void ObjectReader::boolean(std::string_view key, bool& target) {
  const Json* value = find(key);
  if (value == nullptr) return;
  if (value->is_boolean())
    target = value->get<bool>();
  else
    problem(key, fmt::format("must be true or false, is {}", shown(*value)));
}

void ObjectReader::text(std::string_view key, std::string& target) {
  const Json* value = find(key);
  if (value == nullptr) return;
  if (value->is_string() && !value->get_ref<const std::string&>().empty() &&
      value->get_ref<const std::string&>().find('\0') == std::string::npos) {
    target = value->get<std::string>();
  } else {
    problem(key, fmt::format("must be a non-empty string, is {}", shown(*value)));
  }
}

void ObjectReader::bytes(std::string_view key, uint64_t& target, uint64_t min, uint64_t max) {
  const Json* value = find(key);
  if (value == nullptr) return;
  uint64_t number = 0;
  if (value->is_number_unsigned()) {
    number = value->get<uint64_t>();
  } else if (value->is_string()) {
    try {
      number = parse_bytes(value->get<std::string>());
    } catch (const Error& error) {
      problem(key, fmt::format("{}; {}", printable(error.message(), 160), error.remedy()));
      return;
    }
  } else {
    problem(key, fmt::format("must be a size such as \"8GiB\" or a number of bytes, is {}", shown(*value)));
    return;
  }
  if (number >= min && number <= max)
    target = number;
  else
    problem(key, fmt::format("must be from {} to {}, is {}", format_bytes(min), format_bytes(max), shown(*value)));
}

void ObjectReader::report_choice(std::string_view key, const Json& value, const std::vector<std::string>& names) {
  const std::string near = value.is_string() ? nearest_word(value.get_ref<const std::string&>(), names) : "";
  problem(key, fmt::format("must be one of \"{}\", is {}{}", fmt::join(names, "\", \""), shown(value),
                           near.empty() ? "" : fmt::format("; did you mean \"{}\"?", near)));
}

std::vector<std::string> ObjectReader::unasked() const {
  std::vector<std::string> keys;
  if (object_ == nullptr) return keys;
  for (const auto& [key, value] : object_->items())
    if (std::find(known_.begin(), known_.end(), key) == known_.end()) keys.push_back(key);
  return keys;
}

void ObjectReader::refuse_unknown(const std::vector<std::string>& elsewhere) {
  if (object_ == nullptr) return;
  for (const auto& [key, value] : object_->items()) {
    if (std::find(known_.begin(), known_.end(), key) != known_.end()) continue;
    if (problems_->full()) {
      problem(key, "unknown key");
      continue;
    }
    std::string hint;
    if (const std::string near = nearest_word(key, known_); !near.empty()) {
      hint = fmt::format("; did you mean \"{}\"?", near);
    } else {
      std::vector<std::string> places;
      for (const std::string& other : elsewhere) {
        if (other.ends_with("/" + key)) places.push_back(other);
      }
      if (!places.empty()) hint = fmt::format("; did you mean {}?", fmt::join(places, " or "));
    }
    if (hint.empty()) hint = fmt::format("; known here: {}", fmt::join(known_, ", "));
    problem(key, "unknown key" + hint);
  }
}

}  // namespace strata
