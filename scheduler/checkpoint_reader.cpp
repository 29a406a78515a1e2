#include <algorithm>
#include <cstring>
#include <map>
#include <tuple>

#include "core/content_hash.hpp"
#include "core/error.hpp"
#include "core/file.hpp"
#include "core/hf_weights.hpp"
#include "scheduler/checkpoint.hpp"
#include "scheduler/checkpoint_manifest.hpp"
#include "scheduler/store_transfers.hpp"
#include "tiers/format.hpp"

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

/// That all files of a copied store are there and as long as they should be.
void check_copy(const fs::path& checkpoint, const CheckpointManifest& manifest) {
  const std::vector<fs::path> directories = manifest.locate_store(checkpoint).directories;
  if (tiers::NvmeStore::inspect(directories.front()).generation != manifest.store.generation)
    throw Error(ErrorCode::data_corruption, "the checkpoint's copy of the store is of another generation", directories.front().string(), kTakeAnother);
  for (const fs::path& directory : directories) {
    std::error_code error;
    const auto header = tiers::read_state_header(directory);
    if (!header || fs::file_size(directory / tiers::kStateFileName, error) != header->file_bytes || error)
      throw Error(ErrorCode::data_corruption, "the checkpoint's copy of the store is not whole", (directory / tiers::kStateFileName).string(),
                  kTakeAnother);
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

/// What is read must be what the manifest has a checksum of.
void require_listed(const CheckpointManifest& manifest, const fs::path& checkpoint, const fs::path& file) {
  const std::string name = file.lexically_relative(checkpoint).string();
  const auto same = [&](const CheckpointManifest::File& listed) { return listed.path == name; };
  if (std::none_of(manifest.files.begin(), manifest.files.end(), same))
    throw Error(ErrorCode::data_corruption, "the checkpoint's manifest does not list this file", file.string(), kTakeAnother);
}

/// What both kinds hold: a manifest, files of the right sizes and checksums, the model's description.
class ReaderWithManifest : public CheckpointReader {
 protected:
  ReaderWithManifest(const fs::path& checkpoint, CheckpointManifest manifest, const ProgressCallback& progress)
      : manifest_(std::move(manifest)) {
    check_sizes(checkpoint, manifest_);
    check_checksums(checkpoint, manifest_, progress);
    info_ = {checkpoint, manifest_.kind, manifest_.record, is_pinned(checkpoint), manifest_.copy};
    require_listed(manifest_, checkpoint, checkpoint / kModelFolder / "config.json");
    model_ = read_model_description(checkpoint / kModelFolder);
    layout_ = make_layout(model_);
  }

  const CheckpointManifest manifest_;
};

class FilesReader final : public ReaderWithManifest {
 public:
  FilesReader(const fs::path& checkpoint, CheckpointManifest manifest, const ProgressCallback& progress)
      : ReaderWithManifest(checkpoint, std::move(manifest), progress) {
    for (Quantity quantity : kQuantities) {
      std::error_code error;
      for (const auto& entry : fs::directory_iterator(checkpoint / folder_of(quantity), error))
        if (entry.path().extension() == ".safetensors" || entry.path().filename() == "model.safetensors.index.json")
          require_listed(manifest_, checkpoint, entry.path());
      weights_.push_back(std::make_unique<HfWeights>(checkpoint / folder_of(quantity), model_, layout_));
    }
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
  StoreReader(const fs::path& checkpoint, CheckpointManifest manifest, const ProgressCallback& progress, const std::vector<StoreMove>& moves)
      : ReaderWithManifest(checkpoint, std::move(manifest), progress) {
    const std::vector<fs::path> directories = manifest_.locate_store(checkpoint, moves).directories;
    const tiers::StoreSummary summary = tiers::NvmeStore::inspect(directories.front());
    if (summary.generation > manifest_.store.generation)
      throw Error(ErrorCode::invalid_data,
                  fmt::format("the store has moved on: the checkpoint is generation {}, the store is at {}",
                              manifest_.store.generation, summary.generation),
                  directories.front().string(), "resume the run and let it end, which leaves a new checkpoint");
    if (summary.generation < manifest_.store.generation)
      throw Error(ErrorCode::data_corruption,
                  fmt::format("the store is behind the checkpoint: that is generation {}, the store is at {}{}", manifest_.store.generation,
                              summary.generation, summary.damaged_record.empty() ? ": its files are older copies" : "; " + summary.damaged_record),
                  directories.front().string(), "put back the newest copy of the store's files");
    if (manifest_.store.id && *manifest_.store.id != summary.id) disagree("the store has another id");
    check_record(summary);
    find_extents(summary.state);
    store_ = tiers::NvmeStore::open_read_only(directories);
  }

  void read(Quantity quantity, int unit, Range range, float* out) override {
    STRATA_CHECK(range.first + range.count <= layout_.units[unit].padded_elements, "{} and {} elements", range.first, range.count);
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
  [[noreturn]] void disagree(const std::string& how) const {
    throw Error(ErrorCode::data_corruption, "the checkpoint and its store do not agree: " + how, (info_.path / kManifestName).string(),
                kTakeAnother);
  }

  /// One commit, so one record.
  void check_record(const tiers::StoreSummary& summary) const {
    const TrainerRecord there = TrainerRecord::from_json(summary.record, "the store's commit record");
    const TrainerRecord& here = manifest_.record;
    if (there.step != here.step || there.updates != here.updates || there.samples != here.samples)
      disagree(fmt::format("it is of step {} ({} updates, {} samples), the store's record of the same generation of step {} ({}, {})",
                           here.step, here.updates, here.samples, there.step, there.updates, there.samples));
  }

  /// The store must hold every section of every tile that the manifest speaks of, in its size, and no others: so nothing that is read
  /// passes the end of a buffer whose size comes from the manifest.
  void find_extents(const std::vector<tiers::ExtentSpec>& state) {
    std::map<std::string, uint32_t> by_name;
    for (uint32_t extent = 0; extent < state.size(); ++extent) by_name[state[extent].name] = extent;
    size_t used = 0;
    for (const UnitLayout& unit : layout_.units) {
      size_t tile = 0;
      for (uint64_t first = 0; first < unit.padded_elements; first += manifest_.tile_elements, ++tile) {
        const uint64_t elements = std::min(manifest_.tile_elements, unit.padded_elements - first);
        for (Section section : kSections) {
          const uint64_t bytes = elements * manifest_.format.bytes(section);
          if (bytes == 0) continue;
          const std::string name = extent_name(unit.name, tile, to_string(section));
          const auto found = by_name.find(name);
          // Beside an fp32 master the parameter is in the store only where the forward pass reads it from there.
          if (found == by_name.end() && section == Section::parameter && manifest_.format.master == MasterFormat::fp32) continue;
          if (found == by_name.end()) disagree(fmt::format("the store has no \"{}\"", name));
          if (state[found->second].bytes != bytes)
            disagree(fmt::format("\"{}\" has {} bytes in the store, {} by the manifest", name, state[found->second].bytes, bytes));
          extents_[{unit.name, tile, section}] = found->second;
          ++used;
        }
      }
    }
    if (used != state.size()) disagree(fmt::format("the store has {} extents, the manifest speaks of {}", state.size(), used));
  }

  SharedBytes section(int unit, size_t tile, Section which, uint64_t elements) {
    SharedBytes bytes = shared_bytes(elements * manifest_.format.bytes(which));
    if (manifest_.format.bytes(which) == 0) return bytes;
    StoreTransfers transfers;
    store_->read_state(extents_.at({layout_.units[unit].name, tile, which}), bytes.get(), transfers.add(bytes));
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

  std::map<std::tuple<std::string, size_t, Section>, uint32_t> extents_;
  std::unique_ptr<tiers::NvmeStore> store_;
  std::vector<float> cached_;
  std::tuple<Quantity, int, size_t> cached_key_{Quantity::master, -1, 0};
};

}  // namespace

std::unique_ptr<CheckpointReader> CheckpointReader::open(const fs::path& checkpoint, const ProgressCallback& progress,
                                                         const std::vector<StoreMove>& moves) {
  CheckpointManifest manifest = CheckpointManifest::read(checkpoint);
  if (manifest.kind == CheckpointKind::files) return std::make_unique<FilesReader>(checkpoint, std::move(manifest), progress);
  return std::make_unique<StoreReader>(checkpoint, std::move(manifest), progress, moves);
}

CheckpointInfo read_checkpoint_info(const fs::path& checkpoint) {
  const CheckpointManifest manifest = CheckpointManifest::read(checkpoint);
  check_sizes(checkpoint, manifest);
  if (manifest.copy) check_copy(checkpoint, manifest);
  return {checkpoint, manifest.kind, manifest.record, is_pinned(checkpoint), manifest.copy};
}

std::vector<CheckpointInfo> list_checkpoints(const fs::path& folder, std::vector<IgnoredCheckpoint>* ignored) {
  std::vector<CheckpointInfo> found, unnamed;
  const auto ignore = [&](const fs::path& path, const std::string& reason, bool unfinished) {
    if (ignored) ignored->push_back({path, reason, unfinished});
  };
  std::error_code error;
  if (!is_named(folder) || fs::is_regular_file(folder, error)) return found;
  for (const auto& entry : fs::directory_iterator(folder)) {
    if (!entry.is_directory(error)) continue;
    const bool partial = entry.path().extension() == kPartialSuffix;
    try {
      if (entry.path().extension() == kRemovedSuffix)
        ignore(entry.path(), "its process ended while removing it; the next session of its run removes the rest", true);
      else
        (partial ? unnamed : found).push_back(read_checkpoint_info(entry.path()));
    } catch (const Error& problem) {
      ignore(entry.path(), partial ? "never finished: its run ended while writing it" : problem.message(), partial);
    }
  }
  for (CheckpointInfo& info : unnamed) {
    const auto same = [&](const CheckpointInfo& other) { return other.record.step == info.record.step; };
    if (std::any_of(found.begin(), found.end(), same))
      ignore(info.path, "replaced by another checkpoint of the same step when its process ended", true);
    else
      found.push_back(std::move(info));
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
