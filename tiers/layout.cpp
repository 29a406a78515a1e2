#include "tiers/layout.hpp"

#include <numeric>

#include "core/config.hpp"
#include "tiers/format.hpp"

namespace strata::tiers {
namespace {

void check_options(const StoreOptions& options) {
  if (options.directories.empty()) {
    throw Error(ErrorCode::invalid_configuration, "the store has no directory", "tiers.nvme", "name at least one");
  }
  for (const auto& directory : options.directories) {
    if (!(directory.weight > 0)) {
      throw Error(ErrorCode::invalid_configuration, fmt::format("a share of {} of the traffic is not positive", directory.weight),
                  directory.path.string());
    }
  }
  for (const auto* list : {&options.state, &options.scratch}) {
    for (const auto& extent : *list) {
      if (extent.bytes == 0 || extent.bytes > kExtentBytesMax) {
        throw Error(ErrorCode::invalid_configuration, fmt::format("an extent of {} bytes cannot be stored", extent.bytes),
                    extent.name);
      }
    }
  }
}

uint64_t available(const StoreDirectory& directory) {
  return directory.capacity_bytes == 0 ? ~uint64_t{0} : directory.capacity_bytes;
}

class Dealer {
 public:
  /// `overfill` lets extents without room go where they exceed a directory least, instead of refusing.
  Dealer(const StoreOptions& options, StoreLayout& layout, bool overfill = false)
      : overfill_(overfill),
        options_(options),
        layout_(layout),
        next_state_(options.directories.size(), kBlockBytes),
        next_scratch_(options.directories.size(), 0) {}

  ExtentPlace deal(const ExtentSpec& extent, uint32_t slots, std::vector<uint64_t>& file_bytes) {
    const uint64_t bytes = slots * round_up(extent.bytes, kBlockBytes);
    std::optional<size_t> best;
    for (size_t i = 0; i < options_.directories.size(); ++i) {
      const uint64_t taken = layout_.directory_bytes(i);
      if (taken > available(options_.directories[i]) || bytes > available(options_.directories[i]) - taken) continue;
      if (!best || load(i) < load(*best)) best = i;
    }
    if (!best && overfill_) best = least_over(bytes);
    if (!best) refuse();
    const auto directory = static_cast<uint32_t>(*best);
    uint64_t& next = slots == 2 ? next_state_[directory] : next_scratch_[directory];
    ExtentPlace place{directory, extent.bytes, {next, next}};
    next += bytes / slots;
    file_bytes[directory] += bytes;
    return place;
  }

  [[noreturn]] void refuse() const {
    uint64_t needed = layout_.commit_file_bytes + kBlockBytes * options_.directories.size();
    for (const auto& extent : options_.state) needed += 2 * round_up(extent.bytes, kBlockBytes);
    for (const auto& extent : options_.scratch) needed += round_up(extent.bytes, kBlockBytes);
    std::string table;
    uint64_t total = 0;
    for (const auto& directory : options_.directories) {
      table += fmt::format("{}{}: {}", table.empty() ? "" : "; ", directory.path.string(), format_bytes(directory.capacity_bytes));
      total += directory.capacity_bytes;
    }
    throw Error(ErrorCode::resource_exhausted,
                fmt::format("the NVMe tier needs {} ({} bytes) and its directories may take {} ({} bytes) together{}",
                            format_bytes(needed), needed, format_bytes(total), total,
                            needed <= total ? ", but a section of a tile is never split between them" : ""),
                table, "raise tiers.nvme capacity, add a directory, or keep more of the state in memory");
  }

 private:
  size_t least_over(uint64_t bytes) const {
    const auto excess = [&](size_t directory) {
      const uint64_t taken = layout_.directory_bytes(directory) + bytes, may = available(options_.directories[directory]);
      return taken > may ? taken - may : 0;
    };
    size_t best = 0;
    for (size_t i = 1; i < options_.directories.size(); ++i)
      if (excess(i) < excess(best)) best = i;
    return best;
  }

  double load(size_t directory) const {
    return static_cast<double>(layout_.state_file_bytes[directory] + layout_.scratch_file_bytes[directory]) /
           options_.directories[directory].weight;
  }

  const bool overfill_;
  const StoreOptions& options_;
  StoreLayout& layout_;
  std::vector<uint64_t> next_state_, next_scratch_;  // per directory: where the next extent begins
};

}  // namespace

uint64_t StoreLayout::bytes() const {
  uint64_t total = commit_file_bytes;
  total = std::accumulate(state_file_bytes.begin(), state_file_bytes.end(), total);
  return std::accumulate(scratch_file_bytes.begin(), scratch_file_bytes.end(), total);
}

namespace {

StoreLayout deal_all(const StoreOptions& options, std::vector<ExtentPlace> state, std::vector<uint64_t> state_file_bytes, bool overfill) {
  check_options(options);
  StoreLayout layout;
  layout.state = std::move(state);
  layout.state_file_bytes = std::move(state_file_bytes);
  layout.scratch_file_bytes.resize(options.directories.size());
  layout.commit_file_bytes = commit_file_bytes(options.fingerprint, options.directories.size(), options.state);
  Dealer dealer(options, layout, overfill);
  for (size_t i = 0; !overfill && i < options.directories.size(); ++i) {
    if (layout.directory_bytes(i) > available(options.directories[i])) dealer.refuse();
  }
  const bool place_state = layout.state.empty();
  for (const auto& extent : options.state) {
    if (place_state) layout.state.push_back(dealer.deal(extent, 2, layout.state_file_bytes));
  }
  if (place_state) {
    for (auto& place : layout.state) place.offset_bytes[1] += (layout.state_file_bytes[place.directory] - kBlockBytes) / 2;
  }
  for (const auto& extent : options.scratch) layout.scratch.push_back(dealer.deal(extent, 1, layout.scratch_file_bytes));
  return layout;
}

/// The first block of every state file is its header.
std::vector<uint64_t> empty_state_files(const StoreOptions& options) {
  return std::vector<uint64_t>(options.directories.size(), kBlockBytes);
}

}  // namespace

StoreLayout lay_out(const StoreOptions& options, std::vector<ExtentPlace> state, std::vector<uint64_t> state_file_bytes) {
  return deal_all(options, std::move(state), std::move(state_file_bytes), /*overfill=*/false);
}

StoreLayout lay_out(const StoreOptions& options) { return lay_out(options, {}, empty_state_files(options)); }

StoreNeeds store_needs(const StoreOptions& options) {
  const StoreLayout layout = deal_all(options, {}, empty_state_files(options), /*overfill=*/true);
  StoreNeeds needs;
  for (size_t i = 0; i < options.directories.size(); ++i) {
    needs.directories.push_back({options.directories[i].path, layout.directory_bytes(i), options.directories[i].capacity_bytes});
    needs.missing_bytes += needs.directories.back().missing_bytes();
  }
  needs.bytes = layout.bytes();
  return needs;
}

uint64_t store_bytes_needed(const StoreOptions& options) {
  StoreOptions unlimited = options;
  for (auto& directory : unlimited.directories) directory.capacity_bytes = 0;
  if (unlimited.directories.empty()) unlimited.directories.emplace_back();
  return lay_out(unlimited).bytes();
}

}  // namespace strata::tiers
