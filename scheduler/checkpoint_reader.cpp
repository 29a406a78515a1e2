#include <algorithm>
#include <cstring>
#include <map>

#include "core/content_hash.hpp"
#include "core/error.hpp"
#include "core/file.hpp"
#include "core/hf_weights.hpp"
#include "scheduler/checkpoint.hpp"
#include "scheduler/checkpoint_manifest.hpp"
#include "scheduler/store_transfers.hpp"

namespace strata::scheduler {

namespace {

namespace fs = std::filesystem;

constexpr const char* kTakeAnother = "put back a whole copy, or use an older checkpoint";

void check_sizes(const fs::path& checkpoint, const CheckpointManifest& manifest) {
  for (const auto& file : manifest.files) {
    std::error_code error;
    const uint64_t bytes = fs::file_size(checkpoint / file.path, error);
    if (error || bytes != file.bytes)
      throw Error(ErrorCode::data_corruption,
                  error ? std::string("a file of the checkpoint is missing")
                        : fmt::format("a file of the checkpoint has {} bytes, {} were written", bytes, file.bytes),
                  (checkpoint / file.path).string(), kTakeAnother);
  }
}

void check_checksums(const fs::path& checkpoint, const CheckpointManifest& manifest, const ProgressCallback& progress) {
  uint64_t done = 0, total = 0;
  for (const auto& file : manifest.files) total += file.bytes;
  const auto count = [&](uint64_t bytes) {
    if (progress) progress(done += bytes, total);
  };
  for (const auto& file : manifest.files)
    if (const std::string found = hash_file(checkpoint / file.path, count); found != file.xxh3)
      throw Error(ErrorCode::data_corruption,
                  fmt::format("a file of the checkpoint is damaged: its checksum is {}, {} was written", found, file.xxh3),
                  (checkpoint / file.path).string(), kTakeAnother);
}

/// What both kinds hold: a manifest, files of the right sizes and checksums, the model's description.
class ReaderWithManifest : public CheckpointReader {
 protected:
  ReaderWithManifest(const fs::path& checkpoint, CheckpointManifest manifest, const ProgressCallback& progress)
      : manifest_(std::move(manifest)) {
    check_sizes(checkpoint, manifest_);
    check_checksums(checkpoint, manifest_, progress);
    info_ = {checkpoint, manifest_.kind, manifest_.record};
    model_ = read_model_description(checkpoint / kModelFolder);
    layout_ = make_layout(model_);
  }

  const CheckpointManifest manifest_;
};

class FilesReader final : public ReaderWithManifest {
 public:
  FilesReader(const fs::path& checkpoint, CheckpointManifest manifest, const ProgressCallback& progress)
      : ReaderWithManifest(checkpoint, std::move(manifest), progress) {
    for (Quantity quantity : kQuantities)
      weights_.push_back(std::make_unique<HfWeights>(checkpoint / folder_of(quantity), model_, layout_));
  }

  void read(Quantity quantity, int unit, Range range, float* out) override {
    weights_[static_cast<size_t>(quantity)]->read_as_float(unit, range, out);
  }

 private:
  std::vector<std::unique_ptr<HfWeights>> weights_;
};

/// Reads tiles of a store's committed state, one at a time.
class StoreReader final : public ReaderWithManifest {
 public:
  StoreReader(const fs::path& checkpoint, CheckpointManifest manifest, const ProgressCallback& progress)
      : ReaderWithManifest(checkpoint, std::move(manifest), progress) {
    const std::vector<fs::path> directories(manifest_.store_directories.begin(), manifest_.store_directories.end());
    const tiers::StoreSummary summary = tiers::NvmeStore::inspect(directories.front());
    if (summary.generation != manifest_.store_generation)
      throw Error(ErrorCode::invalid_data,
                  fmt::format("the store has moved on: the checkpoint is generation {}, the store is at {}",
                              manifest_.store_generation, summary.generation),
                  directories.front().string(), "resume the run and let it end, which leaves a new checkpoint");
    for (uint32_t extent = 0; extent < summary.state.size(); ++extent) extents_[summary.state[extent].name] = extent;
    store_ = tiers::NvmeStore::open_read_only(directories);
  }

  void read(Quantity quantity, int unit, Range range, float* out) override {
    const auto tiles = tile_ranges({0, layout_.units[unit].padded_elements}, manifest_.tile_elements);
    for (size_t tile = range.first / manifest_.tile_elements; tile < tiles.size(); ++tile) {
      const uint64_t begin = std::max(range.first, tiles[tile].first);
      const uint64_t end = std::min(range.first + range.count, tiles[tile].first + tiles[tile].count);
      if (begin >= end) break;
      load(quantity, unit, tile, tiles[tile].count);
      std::copy_n(cached_.begin() + static_cast<int64_t>(begin - tiles[tile].first), end - begin,
                  out + (begin - range.first));
    }
  }

 private:
  SharedBytes section(int unit, size_t tile, Section which, uint64_t elements) {
    SharedBytes bytes = shared_bytes(elements * manifest_.format.bytes(which));
    if (manifest_.format.bytes(which) == 0) return bytes;
    const std::string name = extent_name(layout_.units[unit].name, tile, to_string(which));
    const auto found = extents_.find(name);
    if (found == extents_.end())
      throw Error(ErrorCode::data_corruption, fmt::format("the store has no \"{}\"", name), info_.path.string());
    StoreTransfers transfers;
    store_->read_state(found->second, bytes.get(), transfers.add(bytes));
    transfers.finish();
    return bytes;
  }

  void load(Quantity quantity, int unit, size_t tile, uint64_t elements) {
    const auto key = std::tuple{quantity, unit, tile};
    if (cached_key_ == key) return;
    cached_.resize(elements);
    if (quantity == Quantity::master) {
      const bool carried = manifest_.format.master != MasterFormat::fp32;
      const SharedBytes parameter = carried ? section(unit, tile, Section::parameter, elements) : SharedBytes{};
      const SharedBytes master = section(unit, tile, Section::master, elements);
      master_from_sections(manifest_.format, elements, parameter.get(), master.get(), cached_.data());
    } else {
      const SharedBytes moment =
          section(unit, tile, quantity == Quantity::momentum ? Section::momentum : Section::variance, elements);
      std::memcpy(cached_.data(), moment.get(), elements * sizeof(float));
    }
    cached_key_ = key;
  }

  std::map<std::string, uint32_t> extents_;
  std::unique_ptr<tiers::NvmeStore> store_;
  std::vector<float> cached_;
  std::tuple<Quantity, int, size_t> cached_key_{Quantity::master, -1, 0};
};

}  // namespace

std::unique_ptr<CheckpointReader> CheckpointReader::open(const fs::path& checkpoint, const ProgressCallback& progress) {
  CheckpointManifest manifest = CheckpointManifest::read(checkpoint);
  if (manifest.kind == CheckpointKind::files) return std::make_unique<FilesReader>(checkpoint, std::move(manifest), progress);
  return std::make_unique<StoreReader>(checkpoint, std::move(manifest), progress);
}

CheckpointInfo read_checkpoint_info(const fs::path& checkpoint) {
  const CheckpointManifest manifest = CheckpointManifest::read(checkpoint);
  check_sizes(checkpoint, manifest);
  return {checkpoint, manifest.kind, manifest.record};
}

std::vector<CheckpointInfo> list_checkpoints(const fs::path& folder, std::vector<IgnoredCheckpoint>* ignored) {
  std::vector<CheckpointInfo> found;
  std::error_code error;
  if (!is_named(folder) || fs::is_regular_file(folder, error)) return found;
  for (const auto& entry : fs::directory_iterator(folder)) {
    if (!entry.is_directory()) continue;
    const bool unfinished = entry.path().extension() == kPartialSuffix;
    try {
      if (unfinished)
        throw Error(ErrorCode::invalid_data, "never finished: its run ended while writing it");
      found.push_back(read_checkpoint_info(entry.path()));
    } catch (const Error& problem) {
      if (ignored) ignored->push_back({entry.path(), problem.message(), unfinished});
    }
  }
  std::sort(found.begin(), found.end(),
            [](const CheckpointInfo& a, const CheckpointInfo& b) { return a.record.step > b.record.step; });
  return found;
}

fs::path resolve_checkpoint(const fs::path& checkpoint_or_folder) {
  if (fs::is_regular_file(checkpoint_or_folder / kManifestName)) return checkpoint_or_folder;
  std::vector<IgnoredCheckpoint> ignored;
  for (const fs::path& folder : {checkpoint_or_folder, checkpoint_or_folder / "checkpoints"}) {
    const std::vector<CheckpointInfo> found = list_checkpoints(folder, &ignored);
    if (!found.empty()) return found.front().path;
  }
  std::string message = "no checkpoint there";
  for (const IgnoredCheckpoint& one : ignored) message += "\n  not whole: " + one.text();
  throw Error(ErrorCode::invalid_data, message, checkpoint_or_folder.string(),
              "name a checkpoint, or the checkpoints/ folder of a run");
}

}  // namespace strata::scheduler
