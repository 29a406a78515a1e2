#include <algorithm>
#include <system_error>
#include <vector>

#include "core/content_hash.hpp"
#include "core/error.hpp"
#include "core/file.hpp"
#include "core/hf_weights.hpp"
#include "core/model_files.hpp"
#include "core/model_origin.hpp"
#include "scheduler/checkpoint.hpp"
#include "scheduler/checkpoint_manifest.hpp"
#include "scheduler/run_store.hpp"

namespace strata::scheduler {

namespace {

namespace fs = std::filesystem;

/// Files of the checkpoint with their checksums; those of a copied store have theirs themselves.
std::vector<CheckpointManifest::File> describe_files(const fs::path& checkpoint) {
  std::vector<CheckpointManifest::File> files;
  for (const auto& entry : fs::recursive_directory_iterator(checkpoint))
    if (entry.is_regular_file())
      if (const fs::path relative = entry.path().lexically_relative(checkpoint); *relative.begin() != kStoreFolder)
        files.push_back({relative.string(), entry.file_size(), hash_file(entry.path())});
  std::sort(files.begin(), files.end(), [](const auto& a, const auto& b) { return a.path < b.path; });
  return files;
}

void write_quantity(const fs::path& folder, Quantity quantity, const RunPlan& plan, TrainingState& state,
                    const ProgressCallback& progress) {
  HfWriterOptions options;
  options.dtype = DType::f32;
  options.source = plan.model_directory;
  options.copy_files = quantity == Quantity::master;
  HfWriter writer(folder, plan.shape.layout, options);
  std::vector<float> values(plan.shape.tile_elements);
  uint64_t done = 0;
  const uint64_t total = 3 * plan.shape.layout.elements();
  for (int unit = 0; unit < static_cast<int>(plan.steps.homes.size()); ++unit)
    for (size_t tile = 0; tile < plan.steps.homes[unit].tiles.size(); ++tile) {
      const Range range = plan.steps.homes[unit].tiles[tile];
      state.read(quantity, unit, tile, values.data());
      writer.write_from_float(unit, range, values.data());
      done += range.count;
      if (progress) progress(static_cast<uint64_t>(quantity) * plan.shape.layout.elements() + done, total);
    }
  writer.finish();
}

/// Removes older checkpoints beyond `keep`, references that the store has moved past, and checkpoints of later steps: the run went back
/// past those because they are damaged.
void prune(const fs::path& folder, const fs::path& newest, int64_t step, int64_t keep) {
  int64_t kept = 0;
  for (const CheckpointInfo& info : list_checkpoints(folder, nullptr)) {
    const bool passed = info.kind == CheckpointKind::store && !info.copy;
    if (info.path == newest) kept += !info.pinned;
    else if (passed || (!info.pinned && (info.record.step > step || ++kept > keep))) remove_checkpoint(info.path);
  }
}

/// Puts a copy of the store's committed state into a checkpoint that is being written.
void copy_store(tiers::NvmeStore& store, const fs::path& checkpoint, StoreReference& reference, const ProgressCallback& progress) {
  store.copy_committed(checkpoint / kStoreFolder, progress);
  reference.relative.clear();
  for (size_t i = 0; i < reference.directories.size(); ++i) reference.relative.push_back(fmt::format("{}/{}", kStoreFolder, i));
  reference.directories.clear();
}

/// A checkpoint that is being written; gone with this unless it was renamed.
class Partial {
 public:
  explicit Partial(fs::path path) : path_(std::move(path)) { fs::create_directory(path_); }
  ~Partial() {
    std::error_code ignored;
    fs::remove_all(path_, ignored);
  }
  Partial(const Partial&) = delete;
  Partial& operator=(const Partial&) = delete;
  fs::path operator/(const char* name) const { return path_ / name; }
  const fs::path& path() const { return path_; }

 private:
  const fs::path path_;
};

fs::path write(const fs::path& folder, const RunPlan& plan, TrainingState& state, tiers::NvmeStore* store,
               const TrainerRecord& record, const SaveOptions& save, const ProgressCallback& progress) {
  fs::create_directories(folder);
  settle_checkpoints(folder, {});

  const fs::path final_path = folder / checkpoint_name(record.step);
  const Partial partial(folder / (checkpoint_name(record.step) + kPartialSuffix));
  CheckpointManifest manifest;
  manifest.record = record;
  manifest.format = plan.shape.format;
  if (plan.placement.all_state_in_store()) {
    manifest.kind = CheckpointKind::store;
    manifest.store = reference_to(*store, final_path);
    manifest.copy = save.pinned || (save.moves_on && save.keep > 1);
    if (manifest.copy) copy_store(*store, partial.path(), manifest.store, progress);
    manifest.tile_elements = plan.shape.tile_elements;
    fs::create_directory(partial / kModelFolder);
    copy_model_files(plan.model_directory, partial / kModelFolder);
    copy_whole_file(plan.model_directory / "config.json", partial / kModelFolder / "config.json");
  } else {
    for (Quantity quantity : kQuantities)
      write_quantity(partial / folder_of(quantity), quantity, plan, state, progress);
  }
  ModelOrigin::copy(plan.model_directory, partial / kModelFolder);
  manifest.files = describe_files(partial.path());
  const std::string text = manifest.to_json();
  if (save.pinned || is_pinned(final_path)) pin_checkpoint(partial.path());
  write_file_atomically(partial / kManifestName, text.data(), text.size());
  publish_checkpoint(partial.path(), final_path);
  if (manifest.kind == CheckpointKind::store) write_run_store(folder.parent_path(), *store, record.step);
  // When the store moves on, it is one of those that are kept.
  prune(folder, final_path, record.step, manifest.kind == CheckpointKind::store && save.moves_on ? save.keep - 1 : save.keep);
  return final_path;
}

Error not_written(ErrorCode code, int64_t step, const std::string& reason, const std::string& where) {
  return Error(code, fmt::format("cannot write the checkpoint of step {}: {}", step, reason), where,
               code == ErrorCode::resource_exhausted
                   ? "free space there; the same command then continues from the state that was saved last"
                   : "check that the disk is there and can be written; the same command then continues from the state that was saved last");
}

}  // namespace

int64_t checkpoints_kept(const RunPlan& plan) {
  if (plan.config.checkpoint.keep > 0) return plan.config.checkpoint.keep;
  return plan.placement.all_state_in_store() ? 1 : 2;
}

uint64_t checkpoint_bytes(const RunPlan& plan, bool copy) {
  constexpr uint64_t kBlock = 4096;
  uint64_t texts = 16 * kBlock;  // the manifest, directories, and files that are both old and new while they are renamed
  const ModelFiles listed = list_model_files(plan.model_directory);
  for (const ModelFile& file : listed.files) texts += (file.bytes / kBlock + 1) * kBlock;
  texts += ModelOrigin::bytes(plan.model_directory);
  if (plan.placement.all_state_in_store()) return texts + (copy ? tiers::store_copy_bytes(plan.store_options()) : 0);
  uint64_t tensors = 0;
  for (const UnitLayout& unit : plan.shape.layout.units) tensors += unit.tensors.size();
  constexpr uint64_t kHeaderBytes = 192;  // of a tensor: its name, dtype, shape and offsets
  return std::size(kQuantities) * (plan.shape.layout.elements() * sizeof(float) + tensors * kHeaderBytes) + texts;
}

fs::path write_checkpoint(const fs::path& folder, const RunPlan& plan, TrainingState& state, tiers::NvmeStore* store,
                          const TrainerRecord& record, const SaveOptions& options, const ProgressCallback& progress) {
  try {
    return write(folder, plan, state, store, record, options, progress);
  } catch (const Error& error) {
    if (error.code() != ErrorCode::io && error.code() != ErrorCode::resource_exhausted) throw;
    throw not_written(error.code(), record.step, error.message(), error.where());
  } catch (const fs::filesystem_error& error) {
    const bool full = error.code() == std::errc::no_space_on_device;
    throw not_written(full ? ErrorCode::resource_exhausted : ErrorCode::io, record.step, error.code().message(), error.path1().string());
  }
}

}  // namespace strata::scheduler
