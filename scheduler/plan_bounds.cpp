#include "scheduler/plan_bounds.hpp"

#include <algorithm>

#include "core/error.hpp"
#include "scheduler/compiler.hpp"

namespace strata::scheduler {

namespace {

constexpr uint64_t kDefaultTileBytes = 16ull << 20;
constexpr uint64_t kLargestTileBytes = 4ull << 30;  // of schedule.tile
constexpr uint64_t kAutomaticTiles = 4096;
constexpr uint64_t kMaxTiles = 32768;
// Each unit's pass of a micro-batch is several operations of a compiled step; this many take seconds and some hundred MB.
constexpr int64_t kMaxUnitPasses = 4096 * 128;
// A sum of a few terms below this stays below 2^64.
constexpr long double kMaxBytes = 0x1p60L;

uint64_t tile_count(const ModelLayout& layout, const StateFormat& format, uint64_t tile_bytes) {
  const uint64_t elements = tile_elements(tile_bytes, format);
  uint64_t tiles = 0;
  for (const UnitLayout& unit : layout.units) tiles += (unit.padded_elements + elements - 1) / elements;
  return tiles;
}

void check_micro_batches(const Config& config, const ModelLayout& layout) {
  const auto most = kMaxUnitPasses / static_cast<int64_t>(layout.units.size());
  if (config.batch.gradient_accumulation_steps > most)
    throw Error(ErrorCode::invalid_configuration,
                fmt::format("{} micro-batches a step are too many for {} layers: at most {} can be planned",
                            config.batch.gradient_accumulation_steps, layout.units.size() - 2, most),
                "/batch/gradient_accumulation_steps", "raise batch.micro_batch_size instead");
}

/// Of the widest buffers that a micro-batch has in a layer, counted generously; exact sizes follow once they are known to be finite.
void check_activations(const Config& config, const ModelDescription& model) {
  const long double tokens =
      static_cast<long double>(config.batch.micro_batch_size) * static_cast<long double>(config.data.sequence_length);
  const long double width = 8.0L * (static_cast<long double>(model.hidden_size) + static_cast<long double>(model.intermediate_size) +
                                    static_cast<long double>(model.query_size()) + static_cast<long double>(model.kv_size())) +
                            static_cast<long double>(model.vocab_size);
  const long double bytes = tokens * width * 4 * static_cast<long double>(model.layers + 2) *
                            static_cast<long double>(config.batch.gradient_accumulation_steps);
  if (bytes < kMaxBytes) return;
  throw Error(ErrorCode::invalid_configuration,
              fmt::format("activations of {} x {} x {} tokens in {} layers of width {} take over 10^18 bytes",
                          config.batch.gradient_accumulation_steps, config.batch.micro_batch_size, config.data.sequence_length,
                          model.layers, model.hidden_size),
              "/batch/micro_batch_size", "lower batch.micro_batch_size, batch.gradient_accumulation_steps or data.sequence_length");
}

void check_state(const ModelLayout& layout, const StateFormat& format) {
  long double bytes = 0;
  for (const UnitLayout& unit : layout.units)
    bytes += static_cast<long double>(unit.padded_elements) * static_cast<long double>(format.training_bytes());
  if (bytes >= kMaxBytes)
    throw Error(ErrorCode::invalid_configuration, "the model's training state takes over 10^18 bytes", "/model/path",
                "check the sizes in the model's config.json");
}

void check_tiles(const Config& config, const ModelLayout& layout, const StateFormat& format) {
  const uint64_t tile = config.schedule.tile_bytes.value_or(automatic_tile_bytes(layout, format));
  const uint64_t tiles = tile_count(layout, format, tile);
  if (tiles <= kMaxTiles) return;
  const std::string what = fmt::format("the model's training state is {} tiles of {}: at most {} can be planned", tiles,
                                       format_bytes(tile), kMaxTiles);
  uint64_t fitting = tile;
  while (fitting < kLargestTileBytes && tile_count(layout, format, fitting) > kMaxTiles) fitting *= 2;
  fitting = std::min(fitting, kLargestTileBytes);
  if (tile_count(layout, format, fitting) > kMaxTiles)
    throw Error(ErrorCode::invalid_configuration, what, "/model/path", "this version trains no larger model: tiles end at 4 GiB");
  throw Error(ErrorCode::invalid_configuration, what, "/schedule/tile",
              fmt::format("raise schedule.tile to {}, or leave it to auto", format_bytes(fitting)));
}

}  // namespace

uint64_t automatic_tile_bytes(const ModelLayout& layout, const StateFormat& format) {
  uint64_t bytes = kDefaultTileBytes;
  while (bytes < kLargestTileBytes && tile_count(layout, format, bytes) > kAutomaticTiles) bytes *= 2;
  return bytes;
}

uint64_t estimated_operations(const Config& config, const ModelLayout& layout, const StateFormat& format, uint64_t tile_bytes) {
  const uint64_t passes = layout.units.size() * static_cast<uint64_t>(config.batch.gradient_accumulation_steps);
  // Two programs of forward and backward, one of forward, two with the update of every tile's sections.
  return 10 * passes + 40 * tile_count(layout, format, tile_bytes);
}

void check_plan_bounds(const Config& config, const ModelDescription& model, const ModelLayout& layout) {
  const StateFormat format = make_state_format(config.precision);
  check_micro_batches(config, layout);
  check_state(layout, format);
  check_activations(config, model);
  check_tiles(config, layout, format);
}

}  // namespace strata::scheduler
