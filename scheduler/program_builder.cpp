#include "scheduler/program_builder.hpp"

#include <algorithm>
#include <utility>

#include "core/error.hpp"

namespace strata::scheduler {

namespace {
constexpr uint64_t kDeviceAlign = 256;
constexpr uint64_t kHostAlign = 4096;  // what O_DIRECT asks of buffers

uint64_t round_up(uint64_t value, uint64_t multiple) { return (value + multiple - 1) / multiple * multiple; }
}  // namespace

LocationId Region::part(uint32_t index) const {
  STRATA_CHECK(index < count, "part {} of {}", index, count);
  return first + index;
}

Region Region::head(uint32_t parts) const {
  STRATA_CHECK(parts <= count, "{} parts of {}", parts, count);
  return {first, parts};
}

void MemoryMap::account(Memory memory, const std::string& purpose, uint64_t bytes) {
  for (Entry& entry : entries_) {
    if (entry.memory == memory && entry.purpose == purpose) {
      entry.bytes += bytes;
      return;
    }
  }
  entries_.push_back({memory, purpose, bytes});
}

uint64_t MemoryMap::bytes(Memory memory, const std::string& purpose) const {
  for (const Entry& entry : entries_)
    if (entry.memory == memory && entry.purpose == purpose) return entry.bytes;
  return 0;
}

LocationId MemoryMap::add(Memory memory, const std::string& purpose, uint64_t bytes) {
  const bool on_device = memory == Memory::device;
  STRATA_CHECK(on_device || memory == Memory::host, "slabs only");
  uint64_t& end = on_device ? device_bytes_ : host_bytes_;
  const uint64_t padded = round_up(bytes, on_device ? kDeviceAlign : kHostAlign);
  locations_.push_back({memory, end, bytes});
  end += padded;
  account(memory, purpose, padded);
  return static_cast<LocationId>(locations_.size() - 1);
}

Region MemoryMap::add_parts(Memory memory, const std::string& purpose, uint64_t elements, uint64_t tile_elements,
                            uint64_t bytes_per_element) {
  if (elements == 0) return {};
  Region region{static_cast<LocationId>(locations_.size()), 0};
  for (uint64_t first = 0; first < elements; first += tile_elements) {
    // Tiles are multiples of 4096 elements, so parts follow each other without a gap.
    add(memory, purpose, std::min(tile_elements, elements - first) * bytes_per_element);
    ++region.count;
  }
  return region;
}

LocationId MemoryMap::add_extent(Memory memory, const std::string& purpose, std::string name, uint64_t bytes) {
  auto& extents = memory == Memory::store_state ? state_extents_ : scratch_extents_;
  locations_.push_back({memory, extents.size(), bytes});
  extents.push_back({std::move(name), bytes});
  account(memory, purpose, memory == Memory::store_state ? 2 * bytes : bytes);  // two slots
  return static_cast<LocationId>(locations_.size() - 1);
}

ProgramBuilder::ProgramBuilder(std::string name, const MemoryMap& memory) : memory_(memory) {
  history_.resize(memory.size());
  program_.name = std::move(name);
}

uint32_t ProgramBuilder::append(Op op, std::initializer_list<Region> reads, std::initializer_list<Region> writes) {
  return append(std::move(op), std::vector<Region>(reads), std::vector<Region>(writes));
}

uint32_t ProgramBuilder::append(Op op, const std::vector<Region>& reads, const std::vector<Region>& writes) {
  const auto index = static_cast<uint32_t>(program_.ops.size());
  std::vector<uint32_t> waits;
  for (const Region& region : reads)
    for (uint32_t i = 0; i < region.count; ++i) {
      History& history = history_[region.first + i];
      if (history.writer >= 0) waits.push_back(static_cast<uint32_t>(history.writer));
    }
  for (const Region& region : writes)
    for (uint32_t i = 0; i < region.count; ++i) {
      History& history = history_[region.first + i];
      if (history.writer >= 0) waits.push_back(static_cast<uint32_t>(history.writer));
      waits.insert(waits.end(), history.readers.begin(), history.readers.end());
    }
  for (const Region& region : reads)
    for (uint32_t i = 0; i < region.count; ++i) history_[region.first + i].readers.push_back(index);
  for (const Region& region : writes)
    for (uint32_t i = 0; i < region.count; ++i) {
      history_[region.first + i].writer = index;
      history_[region.first + i].readers.clear();
    }

  // A resource that completes in order needs only its latest operation named, and none of its own.
  std::array<int64_t, kResourceCount> latest;
  latest.fill(-1);
  for (uint32_t wait : waits) {
    const Resource resource = program_.ops[wait].resource;
    if (!completes_in_order(resource)) {
      op.waits.push_back(wait);
    } else if (resource != op.resource) {
      latest[static_cast<int>(resource)] = std::max<int64_t>(latest[static_cast<int>(resource)], wait);
    }
  }
  for (int64_t wait : latest)
    if (wait >= 0) op.waits.push_back(static_cast<uint32_t>(wait));
  std::sort(op.waits.begin(), op.waits.end());
  op.waits.erase(std::unique(op.waits.begin(), op.waits.end()), op.waits.end());
  if (!is_device_stream(op.resource))
    for (uint32_t wait : op.waits) program_.ops[wait].signals_host = true;
  program_.ops.push_back(std::move(op));
  return index;
}

Program ProgramBuilder::take() { return std::move(program_); }

}  // namespace strata::scheduler
