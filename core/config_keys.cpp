#include "core/config_keys.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <type_traits>
#include <utility>

#include "core/layout.hpp"

namespace strata {
namespace {

// What a file can reasonably mean. Beyond them is a slip of the finger, and far below 64-bit overflow in later sums.
constexpr int64_t kMaxCount = 1'000'000'000'000;
constexpr int64_t kMaxSequence = 1 << 24;
constexpr uint64_t kMaxBytes = 1ull << 60;
constexpr int64_t kMaxThreads = 4096;
constexpr int64_t kMaxMicroBatches = 4096;  // each is in the compiled step, once for every unit of the model
constexpr uint64_t kMaxPrefetch = 1024;
// A tile of the smallest size still holds one block in every state format (at most 16 bytes an element).
constexpr uint64_t kMinTileBytes = kBlockElements * 16;
constexpr uint64_t kMaxTileBytes = 4ull << 30;

template <typename Enum>
using Words = std::vector<std::pair<std::string, Enum>>;

const Words<DType> kDtypes = {{"bf16", DType::bf16}, {"fp16", DType::f16}, {"fp32", DType::f32}};
const Words<std::optional<Tier>> kTiers = {
    {"auto", std::nullopt}, {"device", Tier::device}, {"host", Tier::host}, {"nvme", Tier::nvme}};

template <typename Enum>
std::string word_of(const Words<Enum>& words, const Enum& value) {
  for (const auto& [word, meaning] : words) {
    if (meaning == value) return word;
  }
  STRATA_CHECK(false, "a value without a word");
  return {};
}

std::string quoted_list(const std::vector<std::string>& words, const char* last) {
  std::string text;
  for (size_t i = 0; i < words.size(); ++i)
    text += fmt::format("{}\"{}\"", i == 0 ? "" : i + 1 == words.size() ? last : ", ", words[i]);
  return text;
}

/// A size as the shortest text that reads back to exactly the same number.
OrderedJson exact_bytes(uint64_t bytes) {
  for (const auto& [name, shift] : {std::pair{"GiB", 30}, {"MiB", 20}, {"KiB", 10}}) {
    if (bytes != 0 && bytes % (1ull << shift) == 0) return fmt::format("{}{}", bytes >> shift, name);
  }
  return bytes;
}

/// The member of a Config that a row is about: `item` is the place in the list for the keys of a list's items.
#define STRATA_FIELD(member) [](auto& config, [[maybe_unused]] size_t item) -> auto& { return config.member; }

// A function for each kind of key. ---------------------------------------------------------------------------------

template <typename Field>
ConfigKey integer(std::string pointer, Field field, int64_t min, int64_t max, std::string effect) {
  ConfigKey row{.pointer = std::move(pointer), .allowed = fmt::format("integer from {} to {}", min, max), .effect = std::move(effect)};
  row.read = [field, min, max](ObjectReader& reader, std::string_view key, Config& config, size_t item) {
    auto& target = field(config, item);
    int64_t number = target;
    reader.integer(key, number, min, max);
    target = static_cast<std::remove_reference_t<decltype(target)>>(number);
  };
  row.write = [field](const Config& config, size_t item) { return OrderedJson(field(config, item)); };
  return row;
}

template <typename Field>
ConfigKey seed(std::string pointer, Field field, std::string effect) {
  ConfigKey row{.pointer = std::move(pointer), .allowed = fmt::format("integer from 0 to {}", UINT64_MAX), .effect = std::move(effect)};
  row.read = [field](ObjectReader& reader, std::string_view key, Config& config, size_t item) {
    reader.unsigned_integer(key, field(config, item));
  };
  row.write = [field](const Config& config, size_t item) { return OrderedJson(field(config, item)); };
  return row;
}

template <typename Field>
ConfigKey number(std::string pointer, Field field, NumberRange range, std::string effect) {
  ConfigKey row{.pointer = std::move(pointer),
                .allowed = fmt::format("number {} {} and at most {:g}", range.above_min ? "greater than" : "at least", range.min, range.max),
                .effect = std::move(effect)};
  row.read = [field, range](ObjectReader& reader, std::string_view key, Config& config, size_t item) {
    reader.number(key, field(config, item), range);
  };
  row.write = [field](const Config& config, size_t item) { return OrderedJson(field(config, item)); };
  return row;
}

template <typename Field>
ConfigKey boolean(std::string pointer, Field field, std::string effect) {
  ConfigKey row{.pointer = std::move(pointer), .allowed = "true or false", .effect = std::move(effect)};
  row.read = [field](ObjectReader& reader, std::string_view key, Config& config, size_t item) {
    reader.boolean(key, field(config, item));
  };
  row.write = [field](const Config& config, size_t item) { return OrderedJson(field(config, item)); };
  return row;
}

template <typename Field>
ConfigKey size(std::string pointer, Field field, uint64_t min, uint64_t max, std::string effect) {
  ConfigKey row{.pointer = std::move(pointer),
                .allowed = fmt::format("size from {} to {}", format_bytes(min), format_bytes(max)),
                .effect = std::move(effect)};
  row.read = [field, min, max](ObjectReader& reader, std::string_view key, Config& config, size_t item) {
    reader.bytes(key, field(config, item), min, max);
  };
  row.write = [field](const Config& config, size_t item) { return exact_bytes(field(config, item)); };
  return row;
}

/// The same, or "auto" for an absent one.
template <typename Field>
ConfigKey automatic_size(std::string pointer, Field field, uint64_t min, uint64_t max, std::string effect) {
  ConfigKey row{.pointer = std::move(pointer),
                .allowed = fmt::format("\"auto\" or size from {} to {}", format_bytes(min), format_bytes(max)),
                .effect = std::move(effect)};
  row.read = [field, min, max](ObjectReader& reader, std::string_view key, Config& config, size_t item) {
    const Json* value = reader.find(key);
    if (value == nullptr) return;
    auto& target = field(config, item);
    target.reset();
    if (*value == "auto") return;
    uint64_t bytes = 0;
    reader.bytes(key, bytes, min, max);
    target = bytes;
  };
  row.write = [field](const Config& config, size_t item) {
    const auto& value = field(config, item);
    return value ? exact_bytes(*value) : OrderedJson("auto");
  };
  return row;
}

/// One of a list of words; `not_built` are those that this version knows and does not have.
template <typename Field, typename Enum>
ConfigKey choice(std::string pointer, Field field, const Words<Enum>& words, std::string effect, std::vector<std::string> not_built = {}) {
  std::vector<std::string> built;
  for (const auto& [word, value] : words)
    if (std::find(not_built.begin(), not_built.end(), word) == not_built.end()) built.push_back(word);
  ConfigKey row{.pointer = std::move(pointer), .allowed = quoted_list(built, " or "), .effect = std::move(effect)};
  row.read = [field, words, built, not_built](ObjectReader& reader, std::string_view key, Config& config, size_t item) {
    Enum& target = field(config, item);
    reader.choice(key, target, words);
    if (const std::string word = word_of(words, target); std::find(not_built.begin(), not_built.end(), word) != not_built.end())
      reader.problem(key, fmt::format("\"{}\" is unsupported: it is not built in this version; supported: {}", word,
                                      quoted_list(built, " and ")));
  };
  row.write = [field, words](const Config& config, size_t item) { return OrderedJson(word_of(words, field(config, item))); };
  return row;
}

template <typename Field>
ConfigKey path(std::string pointer, Field field, std::string allowed, std::string effect) {
  ConfigKey row{.pointer = std::move(pointer), .allowed = std::move(allowed), .effect = std::move(effect)};
  row.read = [field](ObjectReader& reader, std::string_view key, Config& config, size_t item) {
    std::string text = field(config, item).string();
    reader.text(key, text);
    field(config, item) = text;
  };
  row.write = [field](const Config& config, size_t item) { return OrderedJson(field(config, item).string()); };
  return row;
}

template <typename Field>
ConfigKey paths(std::string pointer, Field field, std::string effect) {
  ConfigKey row{.pointer = std::move(pointer), .allowed = "list of file names", .effect = std::move(effect)};
  row.read = [field](ObjectReader& reader, std::string_view key, Config& config, size_t item) {
    const Json* value = reader.find(key);
    if (value == nullptr) return;
    if (!value->is_array()) return reader.problem(key, fmt::format("must be a list of file names, as in [\"FILE\"], is {}", shown(*value)));
    std::vector<std::filesystem::path> list;
    for (size_t i = 0; i < value->size(); ++i) {
      const Json& file = (*value)[i];
      if (file.is_string() && !file.get_ref<const std::string&>().empty())
        list.emplace_back(file.get<std::string>());
      else
        reader.problems().add(json_pointer(reader.pointer_of(key), std::to_string(i)), fmt::format("must be a file name, is {}", shown(file)));
    }
    field(config, item) = std::move(list);
  };
  row.write = [field](const Config& config, size_t item) {
    OrderedJson list = OrderedJson::array();
    for (const auto& file : field(config, item)) list.push_back(file.string());
    return list;
  };
  return row;
}

ConfigKey required(ConfigKey row, std::string problem, std::string example) {
  row.required = std::move(problem);
  row.example = std::move(example);
  return row;
}

// Keys of a kind of their own. --------------------------------------------------------------------------------------

ConfigKey training_files() {
  ConfigKey row = required(paths("/data/train", STRATA_FIELD(data.train), "The token files to train on, read as one data set."),
                           "is required: a list of token files, as in [\"train.bin\"]", "[\"path/to/tokens.bin\"]");
  row.allowed = "list of at least one file name";
  row.read = [read = row.read](ObjectReader& reader, std::string_view key, Config& config, size_t item) {
    read(reader, key, config, item);
    if (const Json* value = reader.find(key); value != nullptr && value->is_array() && value->empty())
      reader.problem(key, "must name at least one file");
  };
  return row;
}

ConfigKey optimizer_type() {
  ConfigKey row{.pointer = "/optimizer/type", .allowed = "\"adamw\"", .effect = "The optimizer: AdamW with PyTorch's semantics."};
  row.read = [](ObjectReader& reader, std::string_view key, Config&, size_t) {
    std::string type;
    reader.choice(key, type, Words<std::string>{{"adamw", "adamw"}});
  };
  row.write = [](const Config&, size_t) { return OrderedJson("adamw"); };
  return row;
}

ConfigKey betas() {
  ConfigKey row{.pointer = "/optimizer/betas",
                .allowed = "two numbers at least 0 and less than 1",
                .effect = "Decay rates of the first and the second moment."};
  row.read = [](ObjectReader& reader, std::string_view key, Config& config, size_t) {
    const Json* value = reader.find(key);
    if (value == nullptr) return;
    const auto in_range = [](const Json& beta) { return beta.is_number() && beta.get<double>() >= 0 && beta.get<double>() < 1; };
    if (!value->is_array() || value->size() != 2 || !in_range((*value)[0]) || !in_range((*value)[1]))
      return reader.problem(
          key, fmt::format("must be two numbers at least 0 and less than 1, as in [0.9, 0.999], is {}", shown(*value)));
    config.optimizer.beta1 = (*value)[0].get<double>();
    config.optimizer.beta2 = (*value)[1].get<double>();
  };
  row.write = [](const Config& config, size_t) { return OrderedJson::array({config.optimizer.beta1, config.optimizer.beta2}); };
  return row;
}

ConfigKey drives() {
  ConfigKey row{.pointer = "/tiers/nvme",
                .allowed = "list, as in [{\"path\": \"DIR\", \"capacity\": \"100GiB\"}]",
                .effect = "Directories on local drives for state on NVMe; several drives are used side by side.",
                .container = ConfigKey::Container::list};
  row.read = [](ObjectReader& reader, std::string_view key, Config& config, size_t) {
    const Json* value = reader.find(key);
    if (value == nullptr) return;
    if (value->is_array())
      config.tiers.nvme.resize(value->size());
    else
      reader.problem(key, fmt::format("must be a list, as in [{{\"path\": \"DIR\", \"capacity\": \"100GiB\"}}], is {}", shown(*value)));
  };
  row.write = [](const Config& config, size_t) { return OrderedJson(OrderedJson::array_t(config.tiers.nvme.size())); };
  return row;
}

ConfigKey placement() {
  ConfigKey row{.pointer = "/placement",
                .allowed = "\"auto\" or an object of the keys below",
                .effect = "Where each kind of state lives; \"auto\" takes the fastest mix that fits the budgets. No choice changes a bit.",
                .container = ConfigKey::Container::object};
  row.read = [](ObjectReader& reader, std::string_view key, Config&, size_t) {
    const Json* value = reader.find(key);
    if (value != nullptr && !value->is_object() && *value != "auto")
      reader.problem(key, fmt::format("must be \"auto\" or an object {{...}}, is {}", shown(*value)));
  };
  row.write = [](const Config& config, size_t) {
    const auto& chosen = config.placement;
    const bool all_auto = !chosen.parameters && !chosen.gradients && !chosen.optimizer && !chosen.activations;
    return all_auto ? OrderedJson("auto") : OrderedJson(nullptr);
  };
  return row;
}

ConfigKey keep_best() {
  ConfigKey row = boolean("/evaluation/keep_best", STRATA_FIELD(evaluation.keep_best),
                          "Keeps the checkpoint of the lowest evaluation loss beside those that checkpoint.keep keeps.");
  row.allowed = "false";
  row.read = [read = row.read](ObjectReader& reader, std::string_view key, Config& config, size_t item) {
    read(reader, key, config, item);
    if (config.evaluation.keep_best) reader.problem(key, "true is unsupported: it is not built in this version; supported: false");
  };
  return row;
}

ConfigKey prefetch() {
  ConfigKey row{.pointer = "/schedule/prefetch",
                .allowed = fmt::format("\"auto\" or integer from 0 to {}", kMaxPrefetch),
                .effect = "Units of the model fetched ahead of the one that computes; more needs more memory."};
  row.read = [](ObjectReader& reader, std::string_view key, Config& config, size_t) {
    const Json* value = reader.find(key);
    if (value == nullptr || *value == "auto") return;
    if (value->is_number_unsigned() && value->get<uint64_t>() <= kMaxPrefetch)
      config.schedule.prefetch = value->get<int64_t>();
    else
      reader.problem(key, fmt::format("must be \"auto\" or an integer from 0 to {}, is {}", kMaxPrefetch, shown(*value)));
  };
  row.write = [](const Config& config, size_t) {
    return config.schedule.prefetch ? OrderedJson(*config.schedule.prefetch) : OrderedJson("auto");
  };
  return row;
}

// The table. --------------------------------------------------------------------------------------------------------

std::vector<ConfigKey> make_keys() {
  return {
      required(path("/model/path", STRATA_FIELD(model.path), "directory name",
                    "The Hugging Face model directory to start from: config.json and safetensors."),
               "is required: the directory of a Hugging Face model", "\"path/to/model\""),

      training_files(),
      paths("/data/eval", STRATA_FIELD(data.eval), "The token files to evaluate on; with none, nothing is evaluated."),
      choice("/data/format", STRATA_FIELD(data.format),
             Words<DataFormat>{{"auto", DataFormat::automatic}, {"llmc", DataFormat::llmc}, {"bintok", DataFormat::bintok},
                               {"raw16", DataFormat::raw16}, {"raw32", DataFormat::raw32}, {"text", DataFormat::text}},
             "Format of the token files; \"auto\" goes by their first bytes or their extension, and raw files must be named as such."),
      integer("/data/sequence_length", STRATA_FIELD(data.sequence_length), 1, kMaxSequence,
              "Tokens of a sample; files are cut into windows of so many tokens."),
      seed("/data/seed", STRATA_FIELD(data.seed), "Seed of the order in which an epoch visits the samples."),

      integer("/batch/micro_batch_size", STRATA_FIELD(batch.micro_batch_size), 1, 1'000'000,
              "Samples that go through the model at once; activations grow with it."),
      integer("/batch/gradient_accumulation_steps", STRATA_FIELD(batch.gradient_accumulation_steps), 1, kMaxMicroBatches,
              "Micro-batches of a step; a step trains on micro_batch_size times this many samples."),

      choice("/precision/compute", STRATA_FIELD(precision.compute), kDtypes,
             "Format of weights and activations in the forward and backward pass; \"fp16\" uses a dynamic loss scale."),
      choice("/precision/master", STRATA_FIELD(precision.master),
             Words<MasterChoice>{{"auto", MasterChoice::automatic}, {"split", MasterChoice::split}, {"fp32", MasterChoice::fp32}},
             "How the fp32 master weights are stored: \"split\" keeps the bf16 parameter and 16 more bits, without loss; \"auto\" is "
             "\"split\" for bf16 compute, else \"fp32\"."),
      choice("/precision/reduce", STRATA_FIELD(precision.reduce), kDtypes, "Format in which gradients are added up.", {"bf16", "fp16"}),

      optimizer_type(),
      number("/optimizer/lr", STRATA_FIELD(optimizer.lr), {.min = 0, .max = 1e6}, "Learning rate, before the schedule."),
      betas(),
      number("/optimizer/eps", STRATA_FIELD(optimizer.epsilon), {.min = 0, .max = 1, .above_min = true},
             "Added to the root of the second moment."),
      number("/optimizer/weight_decay", STRATA_FIELD(optimizer.weight_decay), {.min = 0, .max = 1e6},
             "Decoupled weight decay: each step takes lr times this off a parameter first."),
      choice("/optimizer/decay", STRATA_FIELD(optimizer.decay),
             Words<DecayTargets>{{"all", DecayTargets::all}, {"matrices", DecayTargets::matrices}},
             "Which tensors decay: \"all\", as one PyTorch parameter group does, or \"matrices\", those of two or more dimensions, which "
             "leaves out norm gains and biases and keeps linear weights and embeddings."),
      choice("/optimizer/state", STRATA_FIELD(optimizer.state),
             Words<OptimizerState>{{"fp32", OptimizerState::fp32}, {"bf16", OptimizerState::bf16}, {"int8", OptimizerState::int8}},
             "Format of the moments.", {"bf16", "int8"}),

      choice("/lr_schedule/type", STRATA_FIELD(lr_schedule.type),
             Words<ScheduleKind>{
                 {"constant", ScheduleKind::constant}, {"linear", ScheduleKind::linear}, {"cosine", ScheduleKind::cosine}},
             "The learning rate after warm-up: constant, or falling to min_lr at the last step."),
      integer("/lr_schedule/warmup_steps", STRATA_FIELD(lr_schedule.warmup_steps), 0, kMaxCount,
              "Steps in which the learning rate rises to lr."),
      choice("/lr_schedule/warmup", STRATA_FIELD(lr_schedule.warmup),
             Words<WarmupRule>{{"strata", WarmupRule::strata}, {"huggingface", WarmupRule::huggingface}},
             "The rate at step s, counted from 0, of w warm-up steps: lr (s + 1) / w (\"strata\": the first step already trains) or "
             "lr s / w (\"huggingface\": as get_*_schedule_with_warmup, the first step has rate 0)."),
      number("/lr_schedule/min_lr", STRATA_FIELD(lr_schedule.min_lr), {.min = 0, .max = 1e6},
             "Where \"linear\" and \"cosine\" end; at most lr."),

      number("/gradient_clipping", STRATA_FIELD(gradient_clipping), {.min = 0, .max = 1e12},
             "Largest global norm of the gradients, as clip_grad_norm_; 0 does not clip."),
      integer("/steps", STRATA_FIELD(steps), 1, kMaxCount, "Optimizer steps of the whole run, those before a resume included."),

      choice("/device/kind", STRATA_FIELD(device.kind),
             Words<DeviceKind>{{"auto", DeviceKind::automatic}, {"cuda", DeviceKind::cuda}, {"host", DeviceKind::host}},
             "What computes: \"host\" is this machine's processors with a GPU's semantics; \"cuda\" needs a build that has it."),
      automatic_size("/device/memory", STRATA_FIELD(device.memory_bytes), 1, kMaxBytes,
                     "Budget of the device's memory, everything included. \"auto\" takes what this machine can give, under every limit and "
                     "less a reserve; the plan says how much. The host device and the host tier share it."),
      integer("/device/threads", STRATA_FIELD(device.threads), 0, kMaxThreads,
              "Compute threads of the host device; 0 takes those that the process may use. The only thread count that is part of the "
              "numbers."),

      automatic_size("/tiers/host/memory", STRATA_FIELD(tiers.host_memory_bytes), 1, kMaxBytes,
                     "Budget of the host tier's memory; \"auto\" as for `device.memory`."),
      drives(),
      required(path("/tiers/nvme/*/path", STRATA_FIELD(tiers.nvme[item].path), "directory name", "A directory on the drive."),
               "is required: a directory on the drive", "\"DIR\""),
      size("/tiers/nvme/*/capacity", STRATA_FIELD(tiers.nvme[item].capacity_bytes), 1 << 20, kMaxBytes,
           "Most bytes that the store takes in that directory."),
      choice("/tiers/io_engine", STRATA_FIELD(tiers.io_engine),
             Words<std::string>{{"auto", "auto"}, {"io_uring", "io_uring"}, {"threads", "threads"}},
             "How the store does its I/O; \"auto\" takes io_uring where the kernel has it."),

      placement(),
      choice("/placement/parameters", STRATA_FIELD(placement.parameters), kTiers, "Where the parameters that compute reads live."),
      choice("/placement/gradients", STRATA_FIELD(placement.gradients), kTiers, "Where gradients wait for the update."),
      choice("/placement/optimizer", STRATA_FIELD(placement.optimizer), kTiers, "Where master weights and moments live."),
      choice("/placement/activations", STRATA_FIELD(placement.activations),
             Words<std::optional<ActivationPolicy>>{{"auto", std::nullopt},
                                                    {"device", ActivationPolicy::device},
                                                    {"host", ActivationPolicy::host},
                                                    {"nvme", ActivationPolicy::nvme},
                                                    {"recompute", ActivationPolicy::recompute}},
             "Whether what a block keeps for its backward pass stays on the device or is computed again.", {"host", "nvme"}),

      choice("/schedule/accumulation", STRATA_FIELD(schedule.accumulation),
             Words<AccumulationOrder>{{"vertical", AccumulationOrder::vertical}, {"horizontal", AccumulationOrder::horizontal}},
             "\"vertical\" takes all micro-batches through a unit before the next, so weights cross each link once a step; "
             "\"horizontal\" takes one micro-batch after another through the model and keeps fewer activations."),
      choice("/schedule/update", STRATA_FIELD(schedule.update),
             Words<UpdateMode>{{"auto", UpdateMode::automatic}, {"eager", UpdateMode::eager}, {"lazy", UpdateMode::lazy},
                               {"after_backward", UpdateMode::after_backward}},
             "When a step's update runs: \"lazy\" in the next forward pass, hidden behind it, or \"after_backward\" at the step's end. "
             "The bits are the same.", {"eager"}),
      prefetch(),
      automatic_size("/schedule/tile", STRATA_FIELD(schedule.tile_bytes), kMinTileBytes, kMaxTileBytes,
                     "Training state that one I/O operation and one update take at a time; \"auto\" is 16 MiB, and more for models of over "
                     "64 GiB of state. A store is read with the tile that it was written with."),
      integer("/schedule/update_threads", STRATA_FIELD(schedule.update_threads), 0, kMaxThreads,
              "Threads of the optimizer's update; 0 takes those that the process may use."),

      choice("/sharding/strategy", STRATA_FIELD(sharding),
             Words<ShardingStrategy>{{"full_shard", ShardingStrategy::full_shard},
                                     {"hybrid_shard", ShardingStrategy::hybrid_shard},
                                     {"shard_grad_op", ShardingStrategy::shard_grad_op},
                                     {"optimizer", ShardingStrategy::optimizer},
                                     {"no_shard", ShardingStrategy::no_shard}},
             "How state is divided among ranks; without effect with one."),

      integer("/checkpoint/every", STRATA_FIELD(checkpoint.every), 0, kMaxCount,
              "Steps between checkpoints; 0 writes one at the end only."),
      integer("/checkpoint/keep", STRATA_FIELD(checkpoint.keep), 0, 1'000'000,
              "Checkpoints that are kept; older ones are removed. With all state in a store the store is one of them and each further one a copy "
              "of it; 0 keeps the store alone then, else 2."),

      integer("/evaluation/every", STRATA_FIELD(evaluation.every), 0, kMaxCount,
              "Steps between evaluations, the last step always included; 0 evaluates at every checkpoint and at the end."),
      integer("/evaluation/samples", STRATA_FIELD(evaluation.samples), 0, kMaxCount,
              "Evaluates only the first so many samples of the evaluation files; 0 evaluates all."),
      keep_best(),

      integer("/debug/random_delay_us", STRATA_FIELD(debug.random_delay_us), 0, 1'000'000,
              "For tests: delays every operation of every stream by up to so many microseconds."),
      boolean("/debug/poison", STRATA_FIELD(debug.poison), "For tests: fills freed buffers with NaN."),
      seed("/debug/seed", STRATA_FIELD(debug.seed), "For tests: seed of the delays."),
  };
}

}  // namespace

const std::vector<ConfigKey>& config_keys() {
  static const std::vector<ConfigKey> keys = make_keys();
  return keys;
}

}  // namespace strata
