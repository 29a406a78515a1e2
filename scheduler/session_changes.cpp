#include "scheduler/session_changes.hpp"

#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <map>

#include "core/error.hpp"
#include "core/json.hpp"

namespace strata::scheduler {

namespace {

struct KeyRule {
  std::string_view prefix;  // a key, or a section with its dot
  KeyEffect effect;
};

/// The longest prefix counts.
constexpr std::array kRules = {
    KeyRule{"model.path", KeyEffect::data},
    KeyRule{"data.", KeyEffect::data},
    KeyRule{"data.eval", KeyEffect::evaluation},
    KeyRule{"evaluation.", KeyEffect::evaluation},
    KeyRule{"batch.", KeyEffect::batch},
    KeyRule{"precision.", KeyEffect::format},
    KeyRule{"precision.reduce", KeyEffect::rounding},
    KeyRule{"optimizer.", KeyEffect::now},
    KeyRule{"optimizer.type", KeyEffect::format},
    KeyRule{"optimizer.state", KeyEffect::format},
    KeyRule{"lr_schedule.", KeyEffect::schedule},
    KeyRule{"gradient_clipping", KeyEffect::now},
    KeyRule{"steps", KeyEffect::length},
    KeyRule{"device.", KeyEffect::none},
    KeyRule{"device.kind", KeyEffect::rounding},
    KeyRule{"device.threads", KeyEffect::rounding},
    KeyRule{"tiers.", KeyEffect::none},
    KeyRule{"placement", KeyEffect::none},
    KeyRule{"schedule.", KeyEffect::none},
    KeyRule{"sharding.", KeyEffect::none},
    KeyRule{"checkpoint.", KeyEffect::none},
    KeyRule{"debug.", KeyEffect::none},
};

const KeyRule* rule_of(const std::string& key) {
  const KeyRule* best = nullptr;
  for (const KeyRule& rule : kRules) {
    const bool section = rule.prefix.ends_with('.') || rule.prefix == "placement";
    if (section ? !key.starts_with(rule.prefix) : key != rule.prefix && !key.starts_with(std::string(rule.prefix) + ".")) continue;
    if (!best || rule.prefix.size() > best->prefix.size()) best = &rule;
  }
  return best;
}

/// Every value by its dotted key; lists are one value.
void flatten(const Json& json, const std::string& key, std::map<std::string, std::string>& out) {
  if (!json.is_object() || key == "placement") {  // a placement is a word or an object
    out[key] = json.is_string() ? json.get_ref<const std::string&>() : json.dump();
    return;
  }
  for (const auto& [name, value] : json.items()) flatten(value, key.empty() ? name : key + "." + name, out);
}

std::map<std::string, std::string> values_of(const std::string& text, const char* name) {
  std::map<std::string, std::string> values;
  if (!text.empty()) flatten(parse_json(text, name, ErrorCode::data_corruption, {.bytes = 256ull << 20, .values = 16'000'000}), "", values);
  return values;
}

struct Difference {
  std::string key, before, after;
  std::string text() const { return fmt::format("{} {} -> {}", key, printable(before, 200), printable(after, 200)); }
};

/// What both know and have otherwise: a key that only one of them has belongs to another version of the program.
std::vector<Difference> differences(const std::string& before_text, const std::string& after_text, const char* name) {
  const auto before = values_of(before_text, name), after = values_of(after_text, name);
  std::vector<Difference> found;
  for (const auto& [key, value] : after)
    if (const auto old = before.find(key); old != before.end() && old->second != value) found.push_back({key, old->second, value});
  return found;
}

/// The first difference of two lists of files, in words; absent when their content and order are the same.
std::optional<std::string> data_difference(const std::vector<DataFile>& before, const std::vector<DataFile>& after) {
  for (size_t i = 0; i < std::min(before.size(), after.size()); ++i) {
    if (before[i].same_content(after[i])) continue;
    const std::string place = fmt::format("file {} of {}, {}, ", i + 1, after.size(), printable(after[i].path, 200));
    if (before[i].format != after[i].format) return place + fmt::format("is read as {} instead of {}", after[i].format, before[i].format);
    if (before[i].bytes != after[i].bytes) return place + fmt::format("has {} bytes instead of {}", after[i].bytes, before[i].bytes);
    return place + fmt::format("has other content (of the same {} bytes)", after[i].bytes);
  }
  if (before.size() != after.size()) return fmt::format("{} files instead of {}", after.size(), before.size());
  return std::nullopt;
}

bool covers(const std::string& name, const std::string& key) { return key == name || key.starts_with(name + "."); }

class Comparison {
 public:
  Comparison(const std::optional<SessionRecord>& last, const SessionRecord& now, const Config& config, const ContinuedState& state,
             const std::vector<std::string>& allow)
      : last_(last), now_(now), config_(config), state_(state), allow_(allow) {
    for (const std::string& name : allow)
      if (const auto& known = allowable_changes(); std::find(known.begin(), known.end(), name) == known.end())
        throw Error(ErrorCode::invalid_configuration, fmt::format("--allow knows no change \"{}\"", printable(name)), {},
                    fmt::format("name one of {}", fmt::join(known, ", ")));
  }

  std::vector<std::string> lines() {
    compare_model();
    compare_data();
    compare_configuration();
    compare_machine();
    if (refused_.empty()) return std::move(lines_);
    std::string remedy = "undo the changes, or begin a new run with another --run-dir";
    if (!allow_names_.empty()) remedy += fmt::format("; to go on with them:{}", allow_names_);
    throw Error(ErrorCode::invalid_configuration,
                fmt::format("the run cannot go on from step {} with what has changed since its last session:\n  - {}", state_.record.step,
                            fmt::join(refused_, "\n  - ")),
                state_.where, remedy);
  }

 private:
  void change(const std::string& what, const std::string& effect) { lines_.push_back(fmt::format("{} ({})", what, effect)); }
  void refuse(const std::string& what, const std::string& why) { refused_.push_back(fmt::format("{} ({})", what, why)); }
  /// Refused unless its key is allowed by name; then it is a change with that effect.
  void refuse_unless_allowed(const std::string& key, const std::string& what, const std::string& effect) {
    if (std::any_of(allow_.begin(), allow_.end(), [&](const std::string& name) { return covers(name, key); })) return change(what, effect);
    refuse(what, effect);
    allow_names_ += " --allow " + key;
  }

  void compare_model() {
    if (last_ && !last_->model.empty())
      for (const Difference& one : differences(last_->model, now_.model, "model"))
        refuse("model: " + one.text(), "it would be another model; to change a trained one, export its newest checkpoint and begin a new "
                                       "run with that");
    if (last_ && !last_->weights.empty() && !now_.weights.empty() && last_->weights != now_.weights)
      change("model.path: its weights are not those that the run started from", "they are not used: the run has its own");
  }

  void compare_data() {
    const std::string& saved = state_.record.data_identity;
    const std::string place = fmt::format("the numbers go on with sample {} of the new order: some may come twice, some not at all",
                                          state_.record.samples);
    if (saved == data_identity(config_, now_.train) || saved == named_data_identity(config_)) return;
    bool explained = false;
    if (last_ && !last_->train.empty())
      if (const auto difference = data_difference(last_->train, now_.train)) {
        refuse_unless_allowed("data.train", "data.train: " + *difference, place);
        explained = true;
      }
    if (last_) {
      const auto before = values_of(last_->config, "configuration"), after = values_of(now_.config, "configuration");
      for (const char* key : {"data.sequence_length", "data.seed"})
        if (before.contains(key) && before.at(key) != after.at(key)) {
          refuse_unless_allowed(key, Difference{key, before.at(key), after.at(key)}.text(), place);
          explained = true;
        }
    }
    if (!explained)
      refuse_unless_allowed("data", fmt::format("data order: {} -> {}", printable(saved, 300), data_identity(config_, now_.train)), place);
  }

  void compare_configuration() {
    if (!last_) return;
    for (const Difference& one : differences(last_->config, now_.config, "configuration")) {
      const KeyRule* rule = rule_of(one.key);
      switch (rule ? rule->effect : KeyEffect::now) {
        case KeyEffect::none: change(one.text(), "no number changes"); break;
        case KeyEffect::now: change(one.text(), "takes effect now: the loss curve continues with it"); break;
        case KeyEffect::schedule: change(one.text(), "takes effect now: the learning rates to come follow it"); break;
        case KeyEffect::length:
          change(one.text(), config_.lr_schedule.type == ScheduleKind::constant ? "no number of a step changes"
                                                                                : "the learning rates to come follow the new length");
          break;
        case KeyEffect::batch: compare_batch(one); break;
        case KeyEffect::rounding: change(one.text(), "sums may round otherwise: the last digits can differ"); break;
        case KeyEffect::evaluation:
          if (one.key != "data.eval" || last_->eval.empty() || data_difference(last_->eval, now_.eval))
            change(one.text(), "evaluation alone; losses before and after are not of one measure");
          break;
        case KeyEffect::format:
          if (state_.in_store)
            refuse(one.text(), "the store has the state in that format; export it and begin a new run with it");
          else
            refuse_unless_allowed(one.key, one.text(), "the state is rounded to the new format and the loss curve continues with it");
          break;
        case KeyEffect::data: break;
      }
    }
  }

  void compare_batch(const Difference& one) {
    const auto before = values_of(last_->config, "configuration"), after = values_of(now_.config, "configuration");
    const auto samples = [](const std::map<std::string, std::string>& values) {
      const auto number = [&](const char* key) { return values.contains(key) ? std::atoll(values.at(key).c_str()) : 1; };
      return number("batch.micro_batch_size") * number("batch.gradient_accumulation_steps");
    };
    if (samples(before) == samples(after))
      change(one.text(), fmt::format("{} samples a step as before; sums may round otherwise", samples(after)));
    else
      change(one.text(), fmt::format("the loss curve continues with {} samples a step instead of {}", samples(after), samples(before)));
  }

  void compare_machine() {
    if (!last_) return;
    for (const auto& [name, before] : last_->machine)
      for (const auto& [same, after] : now_.machine)
        if (name == same && before != after)
          change(fmt::format("{} {} -> {}", name, printable(before, 200), printable(after, 200)),
                 "sums may round otherwise: the last digits can differ");
    if (last_->eval.empty() || now_.eval.empty()) return;
    // A change of its paths was told above.
    if (const auto difference = data_difference(last_->eval, now_.eval))
      if (std::none_of(lines_.begin(), lines_.end(), [](const std::string& line) { return line.starts_with("data.eval "); }))
        change("data.eval: " + *difference, "evaluation alone; losses before and after are not of one measure");
  }

  const std::optional<SessionRecord>& last_;
  const SessionRecord& now_;
  const Config& config_;
  const ContinuedState& state_;
  const std::vector<std::string>& allow_;
  std::vector<std::string> lines_, refused_;
  std::string allow_names_;
};

}  // namespace

std::vector<std::string> changes_since(const std::optional<SessionRecord>& last, const SessionRecord& now, const Config& config,
                                       const ContinuedState& state, const std::vector<std::string>& allow) {
  return Comparison(last, now, config, state, allow).lines();
}

const std::vector<std::string>& allowable_changes() {
  static const std::vector<std::string> kNames = {"data",      "data.train",        "data.sequence_length", "data.seed",
                                                  "precision", "precision.compute", "precision.master",     "optimizer.state"};
  return kNames;
}

KeyEffect effect_of(const std::string& key) {
  const KeyRule* rule = rule_of(key);
  STRATA_CHECK(rule != nullptr, "no rule for {}", key);
  return rule->effect;
}

}  // namespace strata::scheduler
