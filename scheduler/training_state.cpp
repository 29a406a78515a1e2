#include "scheduler/training_state.hpp"

#include <array>
#include <cstring>
#include <memory>

#include "core/content_hash.hpp"
#include "core/error.hpp"

namespace strata::scheduler {

void sections_from_master(const StateFormat& format, uint64_t elements, const float* master, std::byte* parameter,
                          std::byte* master_section) {
  if (format.master == MasterFormat::parameter) {
    std::memcpy(parameter, master, elements * sizeof(float));
    return;
  }
  auto* half = reinterpret_cast<uint16_t*>(parameter);
  if (format.master == MasterFormat::split) {
    auto* remainder = reinterpret_cast<uint16_t*>(master_section);
    for (uint64_t i = 0; i < elements; ++i) {
      const SplitMaster split = split_master(master[i]);
      half[i] = split.upper;
      remainder[i] = split.remainder;
    }
    return;
  }
  for (uint64_t i = 0; i < elements; ++i) half[i] = half_from_float(format.compute, master[i]);
  std::memcpy(master_section, master, elements * sizeof(float));
}

void master_from_sections(const StateFormat& format, uint64_t elements, const std::byte* parameter,
                          const std::byte* master_section, float* master) {
  if (format.master == MasterFormat::split) {
    const auto* half = reinterpret_cast<const uint16_t*>(parameter);
    const auto* remainder = reinterpret_cast<const uint16_t*>(master_section);
    for (uint64_t i = 0; i < elements; ++i) master[i] = join_master({half[i], remainder[i]});
    return;
  }
  std::memcpy(master, format.master == MasterFormat::parameter ? parameter : master_section, elements * sizeof(float));
}

TrainingState::TrainingState(const RunShape& shape, const StepPlan& plan, Executor& executor, tiers::NvmeStore* store)
    : shape_(shape), plan_(plan), executor_(executor), store_(store) {}

void TrainingState::write_home(int unit, size_t tile, Section section, const std::byte* data) {
  const UnitHomes& homes = plan_.homes[unit];
  const Region& home = homes.sections[static_cast<int>(section)];
  if (home.empty()) return;
  const LocationId id = home.part(static_cast<uint32_t>(tile));
  const uint64_t bytes = homes.tiles[tile].count * shape_.format.bytes(section);
  if (plan_.memory[id].memory == Memory::host)
    std::memcpy(executor_.address(id), data, bytes);
  else
    executor_.copy_blocking(executor_.address(id), data, bytes, gpu::CopyDirection::host_to_device);
}

void TrainingState::write_section(int unit, size_t tile, Section section, const SharedBytes& data, StoreTransfers& transfers) {
  write_home(unit, tile, section, data.get());
  const LocationId extent = plan_.homes[unit].state_extents[static_cast<int>(section)][tile];
  if (extent == kNoLocation) return;
  const Location& location = plan_.memory[extent];
  const auto index = static_cast<uint32_t>(location.position);
  if (location.memory == Memory::store_state) store_->write_state(index, data.get(), transfers.add(data));
  else store_->write_scratch(index, data.get(), transfers.add(data));
}

void TrainingState::read_section(int unit, size_t tile, Section section, const SharedBytes& out) {
  const UnitHomes& homes = plan_.homes[unit];
  const Region& home = homes.sections[static_cast<int>(section)];
  const uint64_t bytes = homes.tiles[tile].count * shape_.format.bytes(section);
  if (!home.empty()) {
    const LocationId id = home.part(static_cast<uint32_t>(tile));
    if (plan_.memory[id].memory == Memory::host)
      std::memcpy(out.get(), executor_.address(id), bytes);
    else
      executor_.copy_blocking(out.get(), executor_.address(id), bytes, gpu::CopyDirection::device_to_host);
    return;
  }
  const LocationId extent = homes.state_extents[static_cast<int>(section)][tile];
  STRATA_CHECK(extent != kNoLocation, "unit {} tile {} has no {}", unit, tile, to_string(section));
  read_extent(extent, out);
}

void TrainingState::read_extent(LocationId extent, const SharedBytes& out) {
  const Location& location = plan_.memory[extent];
  const auto index = static_cast<uint32_t>(location.position);
  StoreTransfers transfers;
  if (location.memory == Memory::store_state) store_->read_state(index, out.get(), transfers.add(out));
  else store_->read_scratch(index, out.get(), transfers.add(out));
  transfers.finish();
}

void TrainingState::fill(const StateSources& sources, const ProgressCallback& progress) {
  const StateFormat& format = shape_.format;
  // Two sets of buffers: one is being written to the store while the next tile is made.
  struct Buffers {
    SharedBytes sections[4];
    StoreTransfers transfers;
  };
  std::array<Buffers, 2> buffers;
  for (Buffers& set : buffers)
    for (Section section : kSections)
      set.sections[static_cast<int>(section)] = shared_bytes(shape_.tile_elements * format.bytes(section));
  const AlignedBytes master = aligned_bytes(shape_.tile_elements * sizeof(float));
  uint64_t done = 0, total = 0, count = 0;
  for (const UnitLayout& unit : shape_.layout.units) total += unit.padded_elements;
  for (int unit = 0; unit < static_cast<int>(plan_.homes.size()); ++unit) {
    const UnitHomes& homes = plan_.homes[unit];
    for (size_t tile = 0; tile < homes.tiles.size(); ++tile) {
      Buffers& set = buffers[count++ % 2];
      set.transfers.finish();
      const Range range = homes.tiles[tile];
      auto* values = reinterpret_cast<float*>(master.get());
      sources.master(unit, range, values);
      sections_from_master(format, range.count, values, set.sections[0].get(), set.sections[1].get());
      const FloatSource* moments[2] = {&sources.momentum, &sources.variance};
      for (int i = 0; i < 2; ++i) {
        auto* out = reinterpret_cast<float*>(set.sections[2 + i].get());
        if (*moments[i]) (*moments[i])(unit, range, out);
        else std::memset(out, 0, range.count * sizeof(float));
      }
      for (Section section : kSections)
        if (format.bytes(section) > 0)
          write_section(unit, tile, section, set.sections[static_cast<int>(section)], set.transfers);
      done += range.count;
      if (progress) progress(done, total);
    }
  }
  for (Buffers& set : buffers) set.transfers.finish();
}

void TrainingState::restore_from_store() {
  const StateFormat& format = shape_.format;
  const SharedBytes parameter = shared_bytes(shape_.tile_elements * format.bytes(Section::parameter));
  const SharedBytes master = shared_bytes(shape_.tile_elements * sizeof(float));
  for (int unit = 0; unit < static_cast<int>(plan_.homes.size()); ++unit) {
    const UnitHomes& homes = plan_.homes[unit];
    if (homes.sections[static_cast<int>(Section::parameter)].empty()) continue;
    for (size_t tile = 0; tile < homes.tiles.size(); ++tile) {
      const LocationId carried = homes.state_extents[static_cast<int>(Section::parameter)][tile];
      if (carried != kNoLocation) {
        read_extent(carried, parameter);
      } else {
        read_section(unit, tile, Section::master, master);
        const auto* values = reinterpret_cast<const float*>(master.get());
        auto* half = reinterpret_cast<uint16_t*>(parameter.get());
        for (uint64_t i = 0; i < homes.tiles[tile].count; ++i) half[i] = half_from_float(format.compute, values[i]);
      }
      write_home(unit, tile, Section::parameter, parameter.get());
    }
  }
}

void TrainingState::read(Quantity quantity, int unit, size_t tile, float* out) {
  const StateFormat& format = shape_.format;
  const uint64_t elements = plan_.homes[unit].tiles[tile].count;
  const Section section = quantity == Quantity::momentum ? Section::momentum : Section::variance;
  if (quantity != Quantity::master) {
    const SharedBytes bytes = shared_bytes(elements * sizeof(float));
    read_section(unit, tile, section, bytes);
    std::memcpy(out, bytes.get(), elements * sizeof(float));
    return;
  }
  const SharedBytes parameter = shared_bytes(elements * format.bytes(Section::parameter));
  const SharedBytes master = shared_bytes(elements * format.bytes(Section::master));
  read_section(unit, tile, Section::parameter, parameter);
  if (format.bytes(Section::master) > 0) read_section(unit, tile, Section::master, master);
  master_from_sections(format, elements, parameter.get(), master.get(), out);
}

std::string TrainingState::hash() {
  ContentHash content;
  const SharedBytes buffer = shared_bytes(shape_.tile_elements * sizeof(float));
  for (int unit = 0; unit < static_cast<int>(plan_.homes.size()); ++unit)
    for (Section section : kSections) {
      if (shape_.format.bytes(section) == 0) continue;
      for (size_t tile = 0; tile < plan_.homes[unit].tiles.size(); ++tile) {
        read_section(unit, tile, section, buffer);
        content.add(buffer.get(), plan_.homes[unit].tiles[tile].count * shape_.format.bytes(section));
      }
    }
  return content.hex();
}

}  // namespace strata::scheduler
