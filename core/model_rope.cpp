#include "core/model_rope.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <optional>
#include <string_view>

namespace strata {
namespace {

constexpr int64_t kMaxPositions = int64_t{1} << 31;
constexpr NumberRange kThetaRange{.min = 1, .max = 1e15, .above_min = true};

// What the scalings of transformers read; another one's key is of no effect, an unknown one may be.
constexpr std::array<std::string_view, 17> kRopeKeys = {
    "type",      "rope_type",   "rope_theta",  "factor",          "original_max_position_embeddings", "low_freq_factor",
    "high_freq_factor", "beta_fast", "beta_slow", "attention_factor", "mscale", "mscale_all_dim",
    "truncate",  "short_factor", "long_factor", "partial_rotary_factor", "finetuned"};

class RopeReader {
 public:
  RopeReader(ObjectReader& root, ModelDescription& model, Problems& unsupported)
      : root_(root), model_(model), rope_(model.rope), unsupported_(unsupported) {}

  void read() {
    root_.number("rope_theta", rope_.theta, kThetaRange);
    refuse_partial(root_, "partial_rotary_factor");
    if (const Json* value = root_.find("original_max_position_embeddings"); value != nullptr) {
      outer_original_ = 0;
      root_.integer("original_max_position_embeddings", *outer_original_, 1, kMaxPositions);
    }
    // As transformers: an empty dictionary counts as absent, and of two the older name wins, whole.
    const bool has_scaling = names_parameters("rope_scaling"), has_parameters = names_parameters("rope_parameters");
    if (has_scaling && has_parameters && *root_.find("rope_scaling") != *root_.find("rope_parameters"))
      note("rope_scaling is followed, rope_parameters beside it is not");
    if (!has_scaling && !has_parameters) return;
    key_ = has_scaling ? "rope_scaling" : "rope_parameters";
    dictionary_ = root_.find(key_);
    ObjectReader parameters = root_.section(key_);
    parameters.null_is_absent = true;
    read_parameters(parameters);
  }

 private:
  void note(std::string text) { model_.notes.push_back("RoPE: " + std::move(text)); }
  void refuse(const std::string& pointer, const std::string& text) { unsupported_.add(pointer, text); }

  /// A dictionary with something in it. Anything else but null is a problem.
  bool names_parameters(const char* key) {
    const Json* value = root_.find(key);
    if (value == nullptr) return false;
    if (!value->is_object()) root_.problem(key, fmt::format("must be an object, is {}", shown(*value)));
    return value->is_object() && !value->empty();
  }

  void refuse_partial(ObjectReader& reader, const char* key) {
    double part = 1.0;
    reader.number(key, part, {.min = 0, .max = 1});
    if (part != 1.0)
      refuse(reader.pointer_of(key), fmt::format("rotating a part ({}) of each head is not supported; supported: 1", part));
  }

  void read_parameters(ObjectReader& parameters) {
    if (refuse_nested(parameters)) return;
    const double outer_theta = rope_.theta;
    parameters.number("rope_theta", rope_.theta, kThetaRange);
    if (root_.has("rope_theta") && rope_.theta != outer_theta)
      note(fmt::format("rope_theta {} of {} is followed, not the {} beside it", rope_.theta, key_, outer_theta));
    refuse_partial(parameters, "partial_rotary_factor");
    std::string old_type, type;
    parameters.text("type", old_type);
    parameters.text("rope_type", type);
    if (!type.empty() && !old_type.empty() && type != old_type)
      return refuse(parameters.pointer_of("rope_type"),
                    fmt::format("is \"{}\" and \"type\" is \"{}\", of which versions of transformers follow one or the other; supported: "
                                "one of them",
                                printable(type), printable(old_type)));
    if (type.empty()) type = old_type.empty() ? "default" : old_type;
    if (!read_type(parameters, type)) return;
    if (rope_.scaling != RopeConfig::Scaling::none) read_scaling(parameters, type);
    judge_other_keys(parameters, type);
  }

  /// transformers has no model of these architectures with parameters of their own for each type of layer.
  bool refuse_nested(const ObjectReader& parameters) {
    std::vector<std::string> nested;
    for (const auto& [name, value] : dictionary_->items())
      if (value.is_object()) nested.push_back(printable(name));
    if (nested.empty()) return false;
    refuse(parameters.pointer(), fmt::format("RoPE parameters by type of layer ({}) are not supported; supported: one set for all layers",
                                             fmt::join(nested, ", ")));
    return true;
  }

  bool read_type(const ObjectReader& parameters, const std::string& type) {
    using Scaling = RopeConfig::Scaling;
    constexpr std::array<std::pair<const char*, Scaling>, 6> kTypes = {{{"default", Scaling::none},
                                                                        {"linear", Scaling::linear},
                                                                        {"dynamic", Scaling::dynamic},
                                                                        {"llama3", Scaling::llama3},
                                                                        {"yarn", Scaling::yarn},
                                                                        {"longrope", Scaling::longrope}}};
    for (const auto& [name, scaling] : kTypes)
      if (type == name) {
        rope_.scaling = scaling;
        return true;
      }
    refuse(parameters.pointer_of("rope_type"),
           fmt::format("RoPE scaling \"{}\" is not supported; supported: default, linear, dynamic, llama3, yarn, longrope", printable(type)));
    return false;
  }

  void read_scaling(ObjectReader& parameters, const std::string& type) {
    rope_.original_max_positions = model_.max_positions;
    if (type == "llama3" || type == "yarn" || type == "longrope") read_original(parameters);
    const bool by_ratio = (type == "yarn" && parameters.has("original_max_position_embeddings")) || type == "longrope" ||
                          (type == "yarn" && outer_original_);
    if (parameters.has("factor")) {
      parameters.number("factor", rope_.factor, {.min = 1, .max = 1e6});
    } else if (by_ratio && rope_.original_max_positions > 0) {
      rope_.factor = static_cast<double>(model_.max_positions) / static_cast<double>(rope_.original_max_positions);
    } else {
      parameters.problem("factor", fmt::format("is required for RoPE scaling \"{}\"", type));
    }
    if (type == "llama3") read_llama3(parameters);
    if (type == "yarn") read_yarn(parameters);
    if (type == "longrope") read_longrope(parameters);
  }

  /// The length that the model was made for: the key beside the dictionary overrides the one in it, as transformers 5 has it.
  void read_original(ObjectReader& parameters) {
    parameters.integer("original_max_position_embeddings", rope_.original_max_positions, 1, kMaxPositions);
    if (!outer_original_ || *outer_original_ == 0) return;
    if (parameters.has("original_max_position_embeddings") && rope_.original_max_positions != *outer_original_)
      note(fmt::format("original_max_position_embeddings {} is followed, not the {} of {}", *outer_original_, rope_.original_max_positions,
                       key_));
    rope_.original_max_positions = *outer_original_;
    outer_original_used_ = true;
  }

  void read_llama3(ObjectReader& parameters) {
    for (const char* required : {"low_freq_factor", "high_freq_factor"})
      if (!parameters.has(required)) parameters.problem(required, "is required for RoPE scaling \"llama3\"");
    parameters.number("low_freq_factor", rope_.low_frequency_factor, {.min = 0, .max = 1e6, .above_min = true});
    parameters.number("high_freq_factor", rope_.high_frequency_factor, {.min = 0, .max = 1e6, .above_min = true});
    if (rope_.high_frequency_factor <= rope_.low_frequency_factor)
      parameters.problem("high_freq_factor",
                         fmt::format("must be greater than low_freq_factor, which is {}", rope_.low_frequency_factor));
  }

  void read_attention_factor(ObjectReader& parameters) {
    double factor = 0;
    parameters.number("attention_factor", factor, {.min = 0, .max = 1e6, .above_min = true});
    if (factor > 0) rope_.attention_factor = factor;
  }

  void read_yarn(ObjectReader& parameters) {
    parameters.number("beta_fast", rope_.beta_fast, {.min = 0, .max = 1e6});
    parameters.number("beta_slow", rope_.beta_slow, {.min = 0, .max = 1e6});
    // As in transformers, where 0 counts as absent.
    if (rope_.beta_fast == 0) rope_.beta_fast = 32;
    if (rope_.beta_slow == 0) rope_.beta_slow = 1;
    parameters.boolean("truncate", rope_.truncate);
    if (dictionary_->contains("truncate") && dictionary_->at("truncate").is_null()) rope_.truncate = false;  // so transformers takes it
    read_attention_factor(parameters);
    double mscale = 0, mscale_all = 0;
    parameters.number("mscale", mscale, {.min = 0, .max = 1e6});
    parameters.number("mscale_all_dim", mscale_all, {.min = 0, .max = 1e6});
    const auto magnitude = [&](double scale) { return rope_.factor <= 1 ? 1.0 : 0.1 * scale * std::log(rope_.factor) + 1.0; };
    if (!rope_.attention_factor && mscale > 0 && mscale_all > 0) rope_.attention_factor = magnitude(mscale) / magnitude(mscale_all);
  }

  void read_longrope(ObjectReader& parameters) {
    read_attention_factor(parameters);
    if (rope_.original_max_positions < 2 && rope_.factor > 1 && !rope_.attention_factor)
      parameters.problem("original_max_position_embeddings", "must be at least 2 for RoPE scaling \"longrope\"");
    read_divisors(parameters, "short_factor", rope_.short_factor);
    read_divisors(parameters, "long_factor", rope_.long_factor);
  }

  /// One for each frequency.
  void read_divisors(ObjectReader& parameters, const char* key, std::vector<double>& divisors) {
    const Json* value = parameters.find(key);
    if (value == nullptr) return parameters.problem(key, "is required for RoPE scaling \"longrope\"");
    const auto is_divisor = [](const Json& one) { return one.is_number() && one.get<double>() > 0 && std::isfinite(one.get<double>()); };
    if (!value->is_array() || value->size() != static_cast<size_t>(model_.head_dim / 2) ||
        !std::all_of(value->begin(), value->end(), is_divisor))
      return parameters.problem(key, fmt::format("must be a list of head_dim / 2 ({}) positive numbers", model_.head_dim / 2));
    for (const Json& one : *value) divisors.push_back(one.get<double>());
  }

  void judge_other_keys(ObjectReader& parameters, const std::string& type) {
    std::vector<std::string> unused;
    for (const std::string& key : parameters.unasked()) {
      if (!is_set(dictionary_->at(key)) || key == "finetuned") continue;
      if (std::find(kRopeKeys.begin(), kRopeKeys.end(), key) != kRopeKeys.end())
        unused.push_back(key);
      else
        refuse(parameters.pointer_of(key), fmt::format("is a RoPE parameter that is not known (it is {}); supported: without it",
                                                       shown(dictionary_->at(key))));
    }
    if (outer_original_ && !outer_original_used_) unused.push_back("original_max_position_embeddings");
    if (!unused.empty()) note(fmt::format("of no effect on \"{}\": {}", type, fmt::join(unused, ", ")));
  }

  ObjectReader& root_;
  ModelDescription& model_;
  RopeConfig& rope_;
  Problems& unsupported_;
  const char* key_ = "";
  const Json* dictionary_ = nullptr;
  std::optional<int64_t> outer_original_;
  bool outer_original_used_ = false;
};

}  // namespace

bool is_set(const Json& value) {
  if (value.is_null() || (value.is_boolean() && !value.get<bool>())) return false;
  if (value.is_number()) return value.get<double>() != 0.0;
  if (value.is_string()) return !value.get_ref<const std::string&>().empty();
  return !value.is_structured() || !value.empty();
}

void read_rope(ObjectReader& root, ModelDescription& model, Problems& unsupported) { RopeReader(root, model, unsupported).read(); }

}  // namespace strata
