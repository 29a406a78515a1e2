// What the training state of one parameter consists of, in bytes, for a choice of precisions.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>

#include "core/config.hpp"
#include "core/dtype.hpp"
#include "cpu_adam/adam.hpp"

namespace strata::scheduler {

/// The parts of a tile's durable state. A section is contiguous in memory and on disk.
enum class Section : uint8_t { parameter, master, momentum, variance };
inline constexpr std::array<Section, 4> kSections = {Section::parameter, Section::master, Section::momentum,
                                                     Section::variance};
std::string_view to_string(Section section);

/// The name of a tile's section, or of other `content` of a tile, in the store: "block 3 tile 0 momentum". A checkpoint's extents are
/// found by it.
std::string extent_name(std::string_view unit, size_t tile, std::string_view content);

struct StateFormat {
  DType compute = DType::f32;
  MasterFormat master = MasterFormat::parameter;
  DType gradient = DType::f32;  // in which a unit's finished gradient crosses links and is consumed by Adam

  /// Bytes per element of a section; 0 where the format has none (the master of an fp32 parameter).
  uint64_t bytes(Section section) const;
  uint64_t gradient_bytes() const { return size_bytes(gradient); }
  /// All sections together: what a checkpointed parameter costs.
  uint64_t state_bytes() const;
  /// Sections and gradient: what training a parameter costs.
  uint64_t training_bytes() const { return state_bytes() + gradient_bytes(); }
  /// Whether the update reads the parameter section (the rest of the formats only write it).
  bool update_reads_parameter() const { return master != MasterFormat::fp32; }
};

/// fp32 compute keeps the parameter as its own master; bf16 splits the master unless asked for fp32; fp16 has an fp32 master.
StateFormat make_state_format(const Config::Precision& precision);

}  // namespace strata::scheduler
