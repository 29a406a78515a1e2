// The run configuration: its keys, defaults and limits, and the parser that lists every problem at once.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "core/dtype.hpp"

namespace strata {

enum class DataFormat { automatic, llmc, bintok, raw16, raw32, text };
enum class Tier { device, host, nvme };
enum class ActivationPolicy { device, host, nvme, recompute };
enum class ScheduleKind { constant, linear, cosine };
enum class AccumulationOrder { vertical, horizontal };
enum class UpdateMode { automatic, eager, lazy, after_backward };
enum class ShardingStrategy { full_shard, hybrid_shard, shard_grad_op, optimizer, no_shard };
enum class DeviceKind { automatic, cuda, host };
enum class MasterChoice { automatic, split, fp32 };  // automatic: split for bf16, fp32 otherwise
enum class OptimizerState { fp32, bf16, int8 };
enum class DecayTargets { all, matrices };            // matrices: tensors of two or more dimensions
enum class WarmupRule { strata, huggingface };        // (s + 1) / w or s / w of the rate at step s, from 0, of w

struct Config {
  struct Model {
    std::filesystem::path path;
  } model;
  struct Data {
    std::vector<std::filesystem::path> train, eval;
    DataFormat format = DataFormat::automatic;
    int64_t sequence_length = 1024;
    uint64_t seed = 42;
  } data;
  struct Batch {
    int64_t micro_batch_size = 1;
    int64_t gradient_accumulation_steps = 1;
  } batch;
  struct Precision {
    DType compute = DType::bf16;
    MasterChoice master = MasterChoice::automatic;
    DType reduce = DType::f32;
  } precision;
  struct Optimizer {
    double lr = 3e-5;
    double beta1 = 0.9, beta2 = 0.999;
    double epsilon = 1e-8;
    double weight_decay = 0.0;
    DecayTargets decay = DecayTargets::all;
    OptimizerState state = OptimizerState::fp32;
  } optimizer;
  struct LrSchedule {
    ScheduleKind type = ScheduleKind::constant;
    int64_t warmup_steps = 0;
    WarmupRule warmup = WarmupRule::strata;
    double min_lr = 0.0;
  } lr_schedule;
  double gradient_clipping = 1.0;  // 0 = off
  int64_t steps = 100;
  struct Device {
    DeviceKind kind = DeviceKind::automatic;
    std::optional<uint64_t> memory_bytes;  // absent = what the machine can give
    int threads = 0;  // of the host device's compute stream; 0 = from the affinity mask
  } device;
  struct Nvme {
    std::filesystem::path path;
    uint64_t capacity_bytes = 100ull << 30;
  };
  struct Tiers {
    std::optional<uint64_t> host_memory_bytes;  // absent = what the machine can give
    std::vector<Nvme> nvme;
    std::string io_engine = "auto";  // "auto", "io_uring", "threads"
  } tiers;
  struct Placement {  // absent = chosen by Strata
    std::optional<Tier> parameters, gradients, optimizer;
    std::optional<ActivationPolicy> activations;
  } placement;
  struct Schedule {
    AccumulationOrder accumulation = AccumulationOrder::vertical;
    UpdateMode update = UpdateMode::automatic;
    std::optional<int64_t> prefetch;  // units fetched ahead of the one that computes; absent = chosen
    std::optional<uint64_t> tile_bytes;  // of training state, all sections of a tile together; absent = by the model's size
    int update_threads = 0;           // 0 = from the affinity mask
  } schedule;
  ShardingStrategy sharding = ShardingStrategy::full_shard;
  struct Checkpoint {
    int64_t every = 0;  // steps; 0 = only at the end
    int64_t keep = 0;  // 0 = two checkpoints of files; with all state in a store, the store alone
  } checkpoint;
  struct Evaluation {
    int64_t every = 0;       // steps; 0 = at checkpoints and the end
    int64_t samples = 0;     // the first of the evaluation files; 0 = all
    bool keep_best = false;  // the checkpoint of the lowest evaluation loss outlives checkpoint.keep
  } evaluation;
  /// For tests of the runtime itself: neither may change a number.
  struct Debug {
    int64_t random_delay_us = 0;  // up to this before each operation of each stream
    bool poison = false;          // fill freed buffers with NaN
    uint64_t seed = 1;
  } debug;

  /// The whole configuration with every default filled in, as JSON text in the file's own form.
  std::string to_json() const;
};

/// Reads a file, in which comments are allowed (// to the end of the line, /* */), and applies `overrides` ("dotted.key=value", value as JSON or else as a string). Relative paths in the file are
/// relative to the current directory. Throws one Error{invalid_configuration} that lists every problem with its JSON pointer, the nearest known key
/// for an unknown one, and the allowed values or range.
Config read_config(const std::filesystem::path& file, const std::vector<std::string>& overrides = {});
/// The same from text; `name` stands for the file in messages.
Config parse_config(const std::string& text, const std::string& name, const std::vector<std::string>& overrides = {});

/// Every key with its values, default and effect, as the Markdown page docs/configuration.md.
std::string configuration_page();
/// A configuration with a comment to every key and the defaults as values: works once its two paths name a model and its tokens.
std::string example_configuration();

/// "8GiB", "16 MiB", "1.5GB", "4096": bytes. Throws invalid_configuration.
uint64_t parse_bytes(const std::string& text);
/// 8589934592 -> "8 GiB"; with two decimals where it is not whole.
std::string format_bytes(uint64_t bytes);

}  // namespace strata
