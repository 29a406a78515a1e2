// Builds a step program from operations given in plain serial order: what each may overlap with follows from the memory that
// it reads and writes, so a program is right by construction whatever the ring sizes.
#pragma once

#include <initializer_list>
#include <string>
#include <vector>

#include "scheduler/step_program.hpp"

namespace strata::scheduler {

/// Consecutive locations that together are one buffer (a unit's flat buffer in tile-sized parts).
struct Region {
  LocationId first = kNoLocation;
  uint32_t count = 0;
  bool empty() const { return count == 0; }
  LocationId part(uint32_t index) const;
  /// The first `parts` of it.
  Region head(uint32_t parts) const;
};

/// Exact slabs of the device and host tiers and the extents of the store: everything that a plan takes, by what it is for.
class MemoryMap {
 public:
  struct Entry {
    Memory memory;
    std::string purpose;  // "parameters", "gradients", "optimizer", "activations", "staging", ...
    uint64_t bytes = 0;
  };

  /// One location of `bytes` (aligned: 256 on the device, 4096 in host memory).
  LocationId add(Memory memory, const std::string& purpose, uint64_t bytes);
  /// A flat buffer of `elements`, contiguous, in parts of tile_elements.
  Region add_parts(Memory memory, const std::string& purpose, uint64_t elements, uint64_t tile_elements,
                   uint64_t bytes_per_element);
  /// An extent of the store. `name` is for messages.
  LocationId add_extent(Memory memory, const std::string& purpose, std::string name, uint64_t bytes);

  const Location& operator[](LocationId id) const { return locations_[id]; }
  size_t size() const { return locations_.size(); }
  uint64_t slab_bytes(Memory memory) const { return memory == Memory::device ? device_bytes_ : host_bytes_; }
  struct Extent {
    std::string name;
    uint64_t bytes;
  };
  const std::vector<Extent>& extents(Memory memory) const {
    return memory == Memory::store_state ? state_extents_ : scratch_extents_;
  }
  /// Bytes by memory and purpose, in order of first use.
  const std::vector<Entry>& entries() const { return entries_; }
  uint64_t bytes(Memory memory, const std::string& purpose) const;

 private:
  void account(Memory memory, const std::string& purpose, uint64_t bytes);
  std::vector<Location> locations_;
  std::vector<Entry> entries_;
  std::vector<Extent> state_extents_, scratch_extents_;
  uint64_t device_bytes_ = 0, host_bytes_ = 0;
};

/// Appends operations and derives their waits: a reader waits for the last writer, a writer for the last writer and all readers
/// since. Waits that a resource's own order implies are left out.
class ProgramBuilder {
 public:
  ProgramBuilder(std::string name, const MemoryMap& memory);

  /// Appends `op`, which reads and writes these regions. Returns its index.
  uint32_t append(Op op, std::initializer_list<Region> reads, std::initializer_list<Region> writes);
  uint32_t append(Op op, const std::vector<Region>& reads, const std::vector<Region>& writes);

  Program take();

 private:
  struct History {
    int64_t writer = -1;
    std::vector<uint32_t> readers;
  };
  const MemoryMap& memory_;
  std::vector<History> history_;
  Program program_;
};

}  // namespace strata::scheduler
