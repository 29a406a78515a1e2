// The training state of a run, wherever its sections live: filled at the start, read back for checkpoints and comparisons.
#pragma once

#include <functional>
#include <string>

#include "core/layout.hpp"
#include "scheduler/compiler.hpp"
#include "scheduler/executor.hpp"
#include "scheduler/store_transfers.hpp"
#include "tiers/store.hpp"

namespace strata::scheduler {

/// One of the three fp32 numbers that training keeps of a parameter.
enum class Quantity { master, momentum, variance };
inline constexpr Quantity kQuantities[] = {Quantity::master, Quantity::momentum, Quantity::variance};

/// Fills `out` with a range of a unit's flat buffer as fp32; gaps are 0.
using FloatSource = std::function<void(int unit, Range range, float* out)>;

struct StateSources {
  FloatSource master;
  FloatSource momentum, variance;  // empty: zeros
};

/// `done` of `total` elements; called now and then.
using ProgressCallback = std::function<void(uint64_t done, uint64_t total)>;

/// Splits or rounds a master weight into the sections that a format keeps of it, and joins them again. Buffers hold `elements`.
void sections_from_master(const StateFormat& format, uint64_t elements, const float* master, std::byte* parameter,
                          std::byte* master_section);
void master_from_sections(const StateFormat& format, uint64_t elements, const std::byte* parameter,
                          const std::byte* master_section, float* master);

/// Calls block, and must not run while the executor does.
class TrainingState {
 public:
  /// The store may be null where the plan uses none. All must outlive this.
  TrainingState(const RunShape& shape, const StepPlan& plan, Executor& executor, tiers::NvmeStore* store);

  /// Writes every section of every tile to its homes. Does not commit.
  void fill(const StateSources& sources, const ProgressCallback& progress);
  /// Brings what lives in host and device memory out of the store, after a resume: parameters that an optimizer tile carries.
  void restore_from_store();
  /// One tile's quantity, as fp32.
  void read(Quantity quantity, int unit, size_t tile, float* out);
  /// XXH3-128 over every section of every unit in order, as hex digits: equal exactly when all parameters and moments are, whatever
  /// the placement, tile size or threads.
  std::string hash();

 private:
  void read_extent(LocationId extent, const SharedBytes& out);
  void read_section(int unit, size_t tile, Section section, const SharedBytes& out);
  void write_section(int unit, size_t tile, Section section, const SharedBytes& data, StoreTransfers& transfers);
  void write_home(int unit, size_t tile, Section section, const std::byte* data);

  const RunShape& shape_;
  const StepPlan& plan_;
  Executor& executor_;
  tiers::NvmeStore* store_;
};

}  // namespace strata::scheduler
