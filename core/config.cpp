#include "core/config.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <utility>

#include "core/json_fields.hpp"
#include "core/layout.hpp"

namespace strata {
namespace {

// What a file can reasonably mean. Beyond them is a slip of the finger, and far below 64-bit overflow in later sums.
constexpr int64_t kMaxCount = 1'000'000'000'000;
constexpr int64_t kMaxSequence = 1 << 24;
constexpr uint64_t kMaxBytes = 1ull << 60;
constexpr int64_t kMaxThreads = 4096;
constexpr int64_t kMaxMicroBatches = 4096;  // each is in the compiled step, once for every unit of the model
// A tile of the smallest size still holds one block in every state format (at most 16 bytes an element).
constexpr uint64_t kMinTileBytes = kBlockElements * 16;
constexpr uint64_t kMaxTileBytes = 4ull << 30;

#ifdef STRATA_WITH_CUDA
constexpr bool kCudaBuilt = true;
#else
constexpr bool kCudaBuilt = false;
#endif

template <typename Enum>
using Words = std::vector<std::pair<std::string, Enum>>;

const Words<DataFormat>& data_formats() {
  static const Words<DataFormat> words = {{"auto", DataFormat::automatic}, {"llmc", DataFormat::llmc},
                                          {"bintok", DataFormat::bintok},  {"raw16", DataFormat::raw16},
                                          {"raw32", DataFormat::raw32},    {"text", DataFormat::text}};
  return words;
}
const Words<DType>& dtypes() {
  static const Words<DType> words = {{"bf16", DType::bf16}, {"fp16", DType::f16}, {"fp32", DType::f32}};
  return words;
}
const Words<MasterChoice>& masters() {
  static const Words<MasterChoice> words = {
      {"auto", MasterChoice::automatic}, {"split", MasterChoice::split}, {"fp32", MasterChoice::fp32}};
  return words;
}
const Words<OptimizerState>& optimizer_states() {
  static const Words<OptimizerState> words = {
      {"fp32", OptimizerState::fp32}, {"bf16", OptimizerState::bf16}, {"int8", OptimizerState::int8}};
  return words;
}
const Words<ScheduleKind>& lr_schedules() {
  static const Words<ScheduleKind> words = {
      {"constant", ScheduleKind::constant}, {"linear", ScheduleKind::linear}, {"cosine", ScheduleKind::cosine}};
  return words;
}
const Words<DeviceKind>& device_kinds() {
  static const Words<DeviceKind> words = {
      {"auto", DeviceKind::automatic}, {"cuda", DeviceKind::cuda}, {"host", DeviceKind::host}};
  return words;
}
const Words<std::optional<Tier>>& tiers() {
  static const Words<std::optional<Tier>> words = {
      {"auto", std::nullopt}, {"device", Tier::device}, {"host", Tier::host}, {"nvme", Tier::nvme}};
  return words;
}
const Words<std::optional<ActivationPolicy>>& activation_policies() {
  static const Words<std::optional<ActivationPolicy>> words = {{"auto", std::nullopt},
                                                               {"device", ActivationPolicy::device},
                                                               {"host", ActivationPolicy::host},
                                                               {"nvme", ActivationPolicy::nvme},
                                                               {"recompute", ActivationPolicy::recompute}};
  return words;
}
const Words<AccumulationOrder>& accumulation_orders() {
  static const Words<AccumulationOrder> words = {{"vertical", AccumulationOrder::vertical},
                                                 {"horizontal", AccumulationOrder::horizontal}};
  return words;
}
const Words<UpdateMode>& update_modes() {
  static const Words<UpdateMode> words = {{"auto", UpdateMode::automatic},
                                          {"eager", UpdateMode::eager},
                                          {"lazy", UpdateMode::lazy},
                                          {"after_backward", UpdateMode::after_backward}};
  return words;
}
const Words<ShardingStrategy>& sharding_strategies() {
  static const Words<ShardingStrategy> words = {{"full_shard", ShardingStrategy::full_shard},
                                                {"hybrid_shard", ShardingStrategy::hybrid_shard},
                                                {"shard_grad_op", ShardingStrategy::shard_grad_op},
                                                {"optimizer", ShardingStrategy::optimizer},
                                                {"no_shard", ShardingStrategy::no_shard}};
  return words;
}

template <typename Enum>
std::string word_of(const Words<Enum>& words, const Enum& value) {
  for (const auto& [word, meaning] : words) {
    if (meaning == value) return word;
  }
  STRATA_CHECK(false, "a value without a word");
  return {};
}

void read_paths(ObjectReader& reader, std::string_view key, std::vector<std::filesystem::path>& target) {
  const Json* value = reader.find(key);
  if (value == nullptr) return;
  if (!value->is_array()) {
    reader.problem(key, fmt::format("must be a list of file names, as in [\"FILE\"], is {}", shown(*value)));
    return;
  }
  std::vector<std::filesystem::path> paths;
  for (size_t i = 0; i < value->size(); ++i) {
    const Json& item = (*value)[i];
    if (item.is_string() && !item.get_ref<const std::string&>().empty()) {
      paths.emplace_back(item.get<std::string>());
    } else {
      reader.problems().add(json_pointer(reader.pointer_of(key), std::to_string(i)),
                            fmt::format("must be a file name, is {}", shown(item)));
    }
  }
  target = std::move(paths);
}

void read_path(ObjectReader& reader, std::string_view key, std::filesystem::path& target) {
  std::string text = target.string();
  reader.text(key, text);
  target = text;
}

void read_count(ObjectReader& reader, std::string_view key, int& target, int64_t max) {
  int64_t number = target;
  reader.integer(key, number, 0, max);
  target = static_cast<int>(number);
}

class ConfigParser {
 public:
  ConfigParser(const Json& document, Problems& problems) : root_(&document, "", problems), problems_(problems) {}

  Config parse() {
    read_model_and_data();
    read_numbers();
    read_schedule_of_lr();
    read_device();
    read_tiers();
    read_placement();
    read_schedule();
    read_rest();
    root_.refuse_unknown(pointers());
    find_contradictions();
    return std::move(config_);
  }

 private:
  /// The pointers of all keys that a configuration can have, for "did you mean".
  static const std::vector<std::string>& pointers() {
    static const std::vector<std::string> all = [] {
      Config full;
      full.tiers.nvme.push_back({"DIR", 1});
      full.placement = {Tier::host, Tier::host, Tier::host, ActivationPolicy::device};
      std::vector<std::string> found;
      const Json flat = Json::parse(full.to_json()).flatten();
      for (const auto& [pointer, value] : flat.items()) found.push_back(pointer);
      return found;
    }();
    return all;
  }

  void close(ObjectReader& reader) { reader.refuse_unknown(pointers()); }

  void read_model_and_data() {
    ObjectReader model = root_.section("model");
    read_path(model, "path", config_.model.path);
    if (!model.has("path")) problems_.add("/model/path", "is required: the directory of a Hugging Face model");
    close(model);

    ObjectReader data = root_.section("data");
    read_paths(data, "train", config_.data.train);
    read_paths(data, "eval", config_.data.eval);
    if (!data.has("train")) {
      problems_.add("/data/train", "is required: a list of token files, as in [\"train.bin\"]");
    } else if (data.find("train")->is_array() && data.find("train")->empty()) {
      problems_.add("/data/train", "must name at least one file");
    }
    data.choice("format", config_.data.format, data_formats());
    data.integer("sequence_length", config_.data.sequence_length, 1, kMaxSequence);
    data.unsigned_integer("seed", config_.data.seed);
    close(data);

    ObjectReader batch = root_.section("batch");
    batch.integer("micro_batch_size", config_.batch.micro_batch_size, 1, 1'000'000);
    batch.integer("gradient_accumulation_steps", config_.batch.gradient_accumulation_steps, 1, kMaxMicroBatches);
    close(batch);
  }

  void read_numbers() {
    ObjectReader precision = root_.section("precision");
    precision.choice("compute", config_.precision.compute, dtypes());
    precision.choice("master", config_.precision.master, masters());
    precision.choice("reduce", config_.precision.reduce, dtypes());
    if (config_.precision.reduce != DType::f32) {
      not_built("/precision/reduce", to_string(config_.precision.reduce), "\"fp32\"");
    }
    close(precision);

    ObjectReader optimizer = root_.section("optimizer");
    std::string type = "adamw";
    optimizer.choice("type", type, Words<std::string>{{"adamw", "adamw"}});
    optimizer.number("lr", config_.optimizer.lr, {.min = 0, .max = 1e6});
    read_betas(optimizer);
    optimizer.number("eps", config_.optimizer.epsilon, {.min = 0, .max = 1, .above_min = true});
    optimizer.number("weight_decay", config_.optimizer.weight_decay, {.min = 0, .max = 1e6});
    optimizer.choice("state", config_.optimizer.state, optimizer_states());
    if (config_.optimizer.state != OptimizerState::fp32) {
      not_built("/optimizer/state", word_of(optimizer_states(), config_.optimizer.state), "\"fp32\"");
    }
    close(optimizer);
  }

  void read_betas(ObjectReader& optimizer) {
    const Json* value = optimizer.find("betas");
    if (value == nullptr) return;
    const auto in_range = [](const Json& beta) {
      return beta.is_number() && beta.get<double>() >= 0 && beta.get<double>() < 1;
    };
    if (value->is_array() && value->size() == 2 && in_range((*value)[0]) && in_range((*value)[1])) {
      config_.optimizer.beta1 = (*value)[0].get<double>();
      config_.optimizer.beta2 = (*value)[1].get<double>();
    } else {
      optimizer.problem(
          "betas",
          fmt::format("must be two numbers at least 0 and less than 1, as in [0.9, 0.999], is {}", shown(*value)));
    }
  }

  void read_schedule_of_lr() {
    ObjectReader schedule = root_.section("lr_schedule");
    schedule.choice("type", config_.lr_schedule.type, lr_schedules());
    schedule.integer("warmup_steps", config_.lr_schedule.warmup_steps, 0, kMaxCount);
    schedule.number("min_lr", config_.lr_schedule.min_lr, {.min = 0, .max = 1e6});
    close(schedule);
    root_.number("gradient_clipping", config_.gradient_clipping, {.min = 0, .max = 1e12});
    root_.integer("steps", config_.steps, 1, kMaxCount);
  }

  void read_device() {
    ObjectReader device = root_.section("device");
    device.choice("kind", config_.device.kind, device_kinds());
    if (config_.device.kind == DeviceKind::cuda && !kCudaBuilt) {
      problems_.add("/device/kind", "\"cuda\": this build has no CUDA device; use \"host\" or \"auto\"");
    }
    device.bytes("memory", config_.device.memory_bytes, 1, kMaxBytes);
    read_count(device, "threads", config_.device.threads, kMaxThreads);
    close(device);
  }

  void read_tiers() {
    ObjectReader section = root_.section("tiers");
    ObjectReader host = section.section("host");
    host.bytes("memory", config_.tiers.host_memory_bytes, 1, kMaxBytes);
    close(host);
    section.choice("io_engine", config_.tiers.io_engine,
                   Words<std::string>{{"auto", "auto"}, {"io_uring", "io_uring"}, {"threads", "threads"}});
    if (const Json* drives = section.find("nvme"); drives != nullptr && !drives->is_array()) {
      section.problem("nvme",
                      fmt::format("must be a list, as in [{{\"path\": \"DIR\", \"capacity\": \"100GiB\"}}], is {}",
                                  shown(*drives)));
    } else if (drives != nullptr) {
      for (size_t i = 0; i < drives->size(); ++i) {
        ObjectReader drive(&(*drives)[i], json_pointer("/tiers/nvme", std::to_string(i)), problems_);
        Config::Nvme& nvme = config_.tiers.nvme.emplace_back();
        read_path(drive, "path", nvme.path);
        if (!drive.has("path")) problems_.add(drive.pointer_of("path"), "is required: a directory on the drive");
        drive.bytes("capacity", nvme.capacity_bytes, 1 << 20, kMaxBytes);
        close(drive);
      }
    }
    close(section);
  }

  void read_placement() {
    const Json* value = root_.find("placement");
    if (value == nullptr || (value->is_string() && *value == "auto")) return;
    if (!value->is_object()) {
      root_.problem("placement", fmt::format("must be \"auto\" or an object {{...}}, is {}", shown(*value)));
      return;
    }
    ObjectReader placement(value, "/placement", problems_);
    placement.choice("parameters", config_.placement.parameters, tiers());
    placement.choice("gradients", config_.placement.gradients, tiers());
    placement.choice("optimizer", config_.placement.optimizer, tiers());
    auto& activations = config_.placement.activations;
    placement.choice("activations", activations, activation_policies());
    if (activations == ActivationPolicy::host || activations == ActivationPolicy::nvme)
      not_built("/placement/activations", word_of(activation_policies(), activations), "\"device\" and \"recompute\"");
    close(placement);
  }

  void read_schedule() {
    ObjectReader schedule = root_.section("schedule");
    schedule.choice("accumulation", config_.schedule.accumulation, accumulation_orders());
    schedule.choice("update", config_.schedule.update, update_modes());
    if (config_.schedule.update == UpdateMode::eager) {
      not_built("/schedule/update", "eager", "\"auto\", \"lazy\" and \"after_backward\"");
    }
    if (const Json* prefetch = schedule.find("prefetch");
        prefetch != nullptr && !(prefetch->is_string() && *prefetch == "auto")) {
      if (prefetch->is_number_unsigned() && prefetch->get<uint64_t>() <= 1024) {
        config_.schedule.prefetch = prefetch->get<int64_t>();
      } else {
        schedule.problem("prefetch",
                         fmt::format("must be \"auto\" or an integer from 0 to 1024, is {}", shown(*prefetch)));
      }
    }
    schedule.bytes("tile", config_.schedule.tile_bytes, kMinTileBytes, kMaxTileBytes);
    read_count(schedule, "update_threads", config_.schedule.update_threads, kMaxThreads);
    close(schedule);
  }

  void read_rest() {
    ObjectReader sharding = root_.section("sharding");
    sharding.choice("strategy", config_.sharding, sharding_strategies());
    close(sharding);

    ObjectReader checkpoint = root_.section("checkpoint");
    checkpoint.integer("every", config_.checkpoint.every, 0, kMaxCount);
    checkpoint.integer("keep", config_.checkpoint.keep, 1, 1'000'000);
    close(checkpoint);

    ObjectReader debug = root_.section("debug");
    debug.integer("random_delay_us", config_.debug.random_delay_us, 0, 1'000'000);
    debug.boolean("poison", config_.debug.poison);
    debug.unsigned_integer("seed", config_.debug.seed);
    close(debug);
  }

  void not_built(const std::string& pointer, std::string_view value, const std::string& supported) {
    problems_.add(pointer, fmt::format("\"{}\" is unsupported: it is not built in this version; supported: {}", value,
                                       supported));
  }

  /// Values that are right one by one and wrong together.
  void find_contradictions() {
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

/// A size as the shortest text that reads back to exactly the same number.
Json exact_bytes(uint64_t bytes) {
  for (const auto& [name, shift] : {std::pair{"GiB", 30}, {"MiB", 20}, {"KiB", 10}}) {
    if (bytes != 0 && bytes % (1ull << shift) == 0) return fmt::format("{}{}", bytes >> shift, name);
  }
  return bytes;
}

Json path_list(const std::vector<std::filesystem::path>& paths) {
  Json list = Json::array();
  for (const auto& path : paths) list.push_back(path.string());
  return list;
}

Json placement_json(const Config::Placement& placement) {
  if (!placement.parameters && !placement.gradients && !placement.optimizer && !placement.activations) return "auto";
  return {{"parameters", word_of(tiers(), placement.parameters)},
          {"gradients", word_of(tiers(), placement.gradients)},
          {"optimizer", word_of(tiers(), placement.optimizer)},
          {"activations", word_of(activation_policies(), placement.activations)}};
}

}  // namespace

std::string Config::to_json() const {
  Json drives = Json::array();
  for (const Nvme& drive : tiers.nvme) {
    drives.push_back({{"path", drive.path.string()}, {"capacity", exact_bytes(drive.capacity_bytes)}});
  }
  nlohmann::ordered_json out;
  out["model"] = Json{{"path", model.path.string()}};
  out["data"] = Json{{"train", path_list(data.train)},
                     {"eval", path_list(data.eval)},
                     {"format", word_of(data_formats(), data.format)},
                     {"sequence_length", data.sequence_length},
                     {"seed", data.seed}};
  out["batch"] = Json{{"micro_batch_size", batch.micro_batch_size},
                      {"gradient_accumulation_steps", batch.gradient_accumulation_steps}};
  out["precision"] = Json{{"compute", word_of(dtypes(), precision.compute)},
                          {"master", word_of(masters(), precision.master)},
                          {"reduce", word_of(dtypes(), precision.reduce)}};
  out["optimizer"] = Json{{"type", "adamw"},
                          {"lr", optimizer.lr},
                          {"betas", Json::array({optimizer.beta1, optimizer.beta2})},
                          {"eps", optimizer.epsilon},
                          {"weight_decay", optimizer.weight_decay},
                          {"state", word_of(optimizer_states(), optimizer.state)}};
  out["lr_schedule"] = Json{{"type", word_of(lr_schedules(), lr_schedule.type)},
                            {"warmup_steps", lr_schedule.warmup_steps},
                            {"min_lr", lr_schedule.min_lr}};
  out["gradient_clipping"] = gradient_clipping;
  out["steps"] = steps;
  out["device"] = Json{{"kind", word_of(device_kinds(), device.kind)},
                       {"memory", exact_bytes(device.memory_bytes)},
                       {"threads", device.threads}};
  out["tiers"] = Json{
      {"host", {{"memory", exact_bytes(tiers.host_memory_bytes)}}}, {"nvme", drives}, {"io_engine", tiers.io_engine}};
  out["placement"] = placement_json(placement);
  out["schedule"] = Json{{"accumulation", word_of(accumulation_orders(), schedule.accumulation)},
                         {"update", word_of(update_modes(), schedule.update)},
                         {"prefetch", schedule.prefetch ? Json(*schedule.prefetch) : Json("auto")},
                         {"tile", exact_bytes(schedule.tile_bytes)},
                         {"update_threads", schedule.update_threads}};
  out["sharding"] = Json{{"strategy", word_of(sharding_strategies(), sharding)}};
  out["checkpoint"] = Json{{"every", checkpoint.every}, {"keep", checkpoint.keep}};
  out["debug"] = Json{{"random_delay_us", debug.random_delay_us}, {"poison", debug.poison}, {"seed", debug.seed}};
  return out.dump(2, ' ', false, nlohmann::ordered_json::error_handler_t::replace) + "\n";
}

Config read_config(const std::filesystem::path& file, const std::vector<std::string>& overrides) {
  std::vector<std::string> duplicates;
  Json document = parse_json_file(file, ErrorCode::invalid_configuration, {}, &duplicates);
  return parse_document(std::move(document), duplicates, file.string(), overrides);
}

Config parse_config(const std::string& text, const std::string& name, const std::vector<std::string>& overrides) {
  std::vector<std::string> duplicates;
  Json document = parse_json(text, name, ErrorCode::invalid_configuration, {}, &duplicates);
  return parse_document(std::move(document), duplicates, name, overrides);
}

}  // namespace strata
