#include "core/config.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <utility>

#include "core/config_keys.hpp"

namespace strata {
namespace {

#ifdef STRATA_WITH_CUDA
constexpr bool kCudaBuilt = true;
#else
constexpr bool kCudaBuilt = false;
#endif

class ConfigParser {
 public:
  ConfigParser(const Json& document, Problems& problems) : root_(&document, "", problems), problems_(problems) {}

  Config parse() {
    read_object(root_, "", 0);
    find_contradictions();
    return std::move(config_);
  }

 private:
  /// `prefix` is the object's pointer in the table, `item` its place in a list.
  void read_object(ObjectReader& reader, const std::string& prefix, size_t item) {
    for_each_member(
        prefix,
        [&](const ConfigKey& row, std::string_view name) {
          row.read(reader, name, config_, item);
          if (!row.required.empty() && !reader.has(name)) reader.problem(name, row.required);
          const Json* value = reader.find(name);
          if (value == nullptr) return;
          if (row.container == ConfigKey::Container::object && value->is_object()) {
            ObjectReader child(value, reader.pointer_of(name), problems_);
            read_object(child, row.pointer, item);
          }
          for (size_t i = 0; row.container == ConfigKey::Container::list && value->is_array() && i < value->size(); ++i) {
            ObjectReader child(&(*value)[i], json_pointer(reader.pointer_of(name), std::to_string(i)), problems_);
            read_object(child, row.pointer + "/*", i);
          }
        },
        [&](std::string_view name) {
          ObjectReader child = reader.section(name);
          read_object(child, json_pointer(prefix, name), item);
        });
    reader.refuse_unknown(pointers());
  }

  /// The pointers of all keys that a configuration can have, for "did you mean".
  static const std::vector<std::string>& pointers() {
    static const std::vector<std::string> all = [] {
      std::vector<std::string> found;
      for (const ConfigKey& row : config_keys()) {
        std::string pointer = row.pointer;
        if (const size_t star = pointer.find('*'); star != std::string::npos) pointer[star] = '0';
        if (row.container == ConfigKey::Container::none) found.push_back(pointer);
      }
      return found;
    }();
    return all;
  }

  /// Values that are right one by one and wrong together.
  void find_contradictions() {
    if (config_.device.kind == DeviceKind::cuda && !kCudaBuilt)
      problems_.add("/device/kind", "\"cuda\": this build has no CUDA device; use \"host\" or \"auto\"");
    if (config_.precision.compute != DType::bf16 && config_.precision.master == MasterChoice::split) {
      problems_.add("/precision/master",
                    fmt::format("\"split\" keeps the bf16 parameter as the upper half of the master weight, but "
                                "/precision/compute is \"{}\"; use \"fp32\" or compute in \"bf16\"",
                                to_string(config_.precision.compute)));
    }
    if (config_.lr_schedule.min_lr > config_.optimizer.lr && !problems_.concern("/optimizer/lr") &&
        !problems_.concern("/lr_schedule/min_lr")) {
      problems_.add("/lr_schedule/min_lr", fmt::format("is {}, greater than /optimizer/lr, which is {}",
                                                       config_.lr_schedule.min_lr, config_.optimizer.lr));
    }
    if (config_.data.eval.empty() && !problems_.concern("/data/eval")) {
      const std::string needs = "needs evaluation files in /data/eval, and there are none";
      if (config_.evaluation.every > 0) problems_.add("/evaluation/every", needs);
      if (config_.evaluation.samples > 0) problems_.add("/evaluation/samples", needs);
    }
    const auto& placement = config_.placement;
    if (config_.tiers.nvme.empty()) {
      const std::string needs = "\"nvme\" needs a directory in /tiers/nvme, and there is none";
      if (placement.parameters == Tier::nvme) problems_.add("/placement/parameters", needs);
      if (placement.gradients == Tier::nvme) problems_.add("/placement/gradients", needs);
      if (placement.optimizer == Tier::nvme) problems_.add("/placement/optimizer", needs);
    }
    for (size_t i = 0; i < config_.tiers.nvme.size(); ++i) {
      for (size_t j = 0; j < i; ++j) {
        const auto& path = config_.tiers.nvme[i].path;
        if (!path.empty() && path.lexically_normal() == config_.tiers.nvme[j].path.lexically_normal()) {
          problems_.add(fmt::format("/tiers/nvme/{}/path", i),
                        fmt::format("is the same directory as /tiers/nvme/{}/path", j));
        }
      }
    }
  }

  ObjectReader root_;
  Problems& problems_;
  Config config_;
};

/// Sets the value that a dotted path names, making the sections on the way.
void apply_override(Json& document, const std::string& text, Problems& problems) {
  const std::string option = "--set " + text;
  const size_t equals = text.find('=');
  if (equals == std::string::npos || equals == 0)
    return problems.add_to_option(option, "must be KEY=VALUE with a dotted key, as in optimizer.lr=1e-4");
  const std::string path = text.substr(0, equals), value_text = text.substr(equals + 1);
  Json value;
  try {
    value = parse_json(value_text, "--set", ErrorCode::invalid_configuration);
  } catch (const Error&) {
    value = value_text;
  }
  Json* at = &document;
  std::string pointer, made;  // made: the first on the way that was not there
  for (size_t begin = 0; begin <= path.size();) {
    const size_t end = std::min(path.find('.', begin), path.size());
    const std::string key = path.substr(begin, end - begin);
    begin = end + 1;
    if (at->is_null() || (pointer == "/placement" && at->is_string())) *at = Json::object();
    if (at->is_array()) {
      const bool index = !key.empty() && key.size() < 7 && key.find_first_not_of("0123456789") == std::string::npos;
      if (!index || std::stoul(key) > at->size())
        return problems.add_to_option(
            option, fmt::format("{} is a list of {} items, which \"{}\" does not index", pointer, at->size(), printable(key)));
      pointer = json_pointer(pointer, key);
      if (std::stoul(key) == at->size()) {
        at->push_back(nullptr);
        if (made.empty()) made = pointer;
      }
      at = &(*at)[std::stoul(key)];
    } else if (at->is_object() && !key.empty()) {
      pointer = json_pointer(pointer, key);
      if (made.empty() && !at->contains(key)) made = pointer;
      at = &(*at)[key];
    } else {
      return problems.add_to_option(option, fmt::format("\"{}\" cannot be set in {}", printable(key),
                                                        pointer.empty() ? "the file" : printable(pointer)));
    }
  }
  *at = std::move(value);
  problems.attribute(made.empty() ? pointer : made, option);
}

Config parse_document(Json document, const std::vector<std::string>& duplicates, const std::string& name,
                      const std::vector<std::string>& overrides) {
  Problems problems;
  for (const std::string& pointer : duplicates) problems.add(pointer, "duplicate key");
  if (document.is_object()) {
    for (const std::string& text : overrides) apply_override(document, text, problems);
  }
  Config config = ConfigParser(document, problems).parse();
  if (problems.empty()) return config;
  if (const auto options = problems.only_options(); !options.empty())
    problems.raise(ErrorCode::invalid_configuration, printable(fmt::format("{}", fmt::join(options, " ")), 400),
                   "correct the option; nothing was started");
  problems.raise(ErrorCode::invalid_configuration, name,
                 overrides.empty() ? "correct the file; nothing was started"
                                   : "correct the file or the --set options; nothing was started");
}

OrderedJson written_object(const Config& config, const std::string& prefix, size_t item) {
  OrderedJson out = OrderedJson::object();
  for_each_member(
      prefix,
      [&](const ConfigKey& row, std::string_view name) {
        OrderedJson value = row.write(config, item);
        if (row.container == ConfigKey::Container::object && value.is_null()) value = written_object(config, row.pointer, item);
        for (size_t i = 0; row.container == ConfigKey::Container::list && i < value.size(); ++i)
          value[i] = written_object(config, row.pointer + "/*", i);
        out[std::string(name)] = std::move(value);
      },
      [&](std::string_view name) { out[std::string(name)] = written_object(config, json_pointer(prefix, name), item); });
  return out;
}

constexpr JsonLimits kWithComments{.comments = true};

}  // namespace

std::string Config::to_json() const {
  return written_object(*this, "", 0).dump(2, ' ', false, OrderedJson::error_handler_t::replace) + "\n";
}

Config read_config(const std::filesystem::path& file, const std::vector<std::string>& overrides) {
  std::vector<std::string> duplicates;
  Json document = parse_json_file(file, ErrorCode::invalid_configuration, kWithComments, &duplicates);
  return parse_document(std::move(document), duplicates, file.string(), overrides);
}

Config parse_config(const std::string& text, const std::string& name, const std::vector<std::string>& overrides) {
  std::vector<std::string> duplicates;
  Json document = parse_json(text, name, ErrorCode::invalid_configuration, kWithComments, &duplicates);
  return parse_document(std::move(document), duplicates, name, overrides);
}

}  // namespace strata
