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

namespace strata::scheduler {

namespace {

namespace fs = std::filesystem;

std::string checkpoint_name(int64_t step) { return fmt::format("step-{:08}", step); }

void remove_tree(const fs::path& path) {
  std::error_code error;
  fs::remove_all(path, error);
  if (error) throw Error(ErrorCode::io, fmt::format("cannot remove: {}", error.message()), path.string());
}

/// Files of the checkpoint with their checksums.
std::vector<CheckpointManifest::File> describe_files(const fs::path& checkpoint) {
  std::vector<CheckpointManifest::File> files;
  for (const auto& entry : fs::recursive_directory_iterator(checkpoint))
    if (entry.is_regular_file())
      files.push_back({fs::relative(entry.path(), checkpoint).string(), entry.file_size(), hash_file(entry.path())});
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
    const bool stale = info.path != newest && (info.kind == CheckpointKind::store || info.record.step > step);
    if (!stale && ++kept <= std::max<int64_t>(keep, 1)) continue;
    remove_tree(info.path);
  }
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
               const TrainerRecord& record, int64_t keep, const ProgressCallback& progress) {
  fs::create_directories(folder);
  // The run's lock is held, so a partial directory is what a run that died left behind.
  for (const auto& entry : fs::directory_iterator(folder))
    if (entry.path().extension() == kPartialSuffix) remove_tree(entry.path());

  const fs::path final_path = folder / checkpoint_name(record.step);
  const Partial partial(folder / (checkpoint_name(record.step) + kPartialSuffix));
  CheckpointManifest manifest;
  manifest.record = record;
  manifest.format = plan.shape.format;
  if (plan.placement.all_state_in_store()) {
    manifest.kind = CheckpointKind::store;
    for (const auto& directory : plan.config.tiers.nvme)
      manifest.store_directories.push_back(fs::canonical(directory.path).string());
    manifest.store_generation = store->generation();
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
  write_file_atomically(partial / kManifestName, text.data(), text.size());
  sync_directory(partial.path());
  if (fs::exists(final_path)) remove_tree(final_path);  // the same step, saved again
  fs::rename(partial.path(), final_path);
  sync_directory(folder);
  prune(folder, final_path, record.step, keep);
  return final_path;
}

Error not_written(ErrorCode code, int64_t step, const std::string& reason, const std::string& where) {
  return Error(code, fmt::format("cannot write the checkpoint of step {}: {}", step, reason), where,
               code == ErrorCode::resource_exhausted
                   ? "free space there; the same command then continues from the state that was saved last"
                   : "check that the disk is there and can be written; the same command then continues from the state that was saved last");
}

}  // namespace

uint64_t checkpoint_bytes(const RunPlan& plan) {
  constexpr uint64_t kBlock = 4096;
  uint64_t texts = 16 * kBlock;  // the manifest, directories, and files that are both old and new while they are renamed
  const ModelFiles listed = list_model_files(plan.model_directory);
  for (const ModelFile& file : listed.files) texts += (file.bytes / kBlock + 1) * kBlock;
  texts += ModelOrigin::bytes(plan.model_directory);
  if (plan.placement.all_state_in_store()) return texts;
  uint64_t tensors = 0;
  for (const UnitLayout& unit : plan.shape.layout.units) tensors += unit.tensors.size();
  constexpr uint64_t kHeaderBytes = 192;  // of a tensor: its name, dtype, shape and offsets
  return std::size(kQuantities) * (plan.shape.layout.elements() * sizeof(float) + tensors * kHeaderBytes) + texts;
}

fs::path write_checkpoint(const fs::path& folder, const RunPlan& plan, TrainingState& state, tiers::NvmeStore* store,
                          const TrainerRecord& record, int64_t keep, const ProgressCallback& progress) {
  try {
    return write(folder, plan, state, store, record, keep, progress);
  } catch (const Error& error) {
    if (error.code() != ErrorCode::io && error.code() != ErrorCode::resource_exhausted) throw;
    throw not_written(error.code(), record.step, error.message(), error.where());
  } catch (const fs::filesystem_error& error) {
    const bool full = error.code() == std::errc::no_space_on_device;
    throw not_written(full ? ErrorCode::resource_exhausted : ErrorCode::io, record.step, error.code().message(), error.path1().string());
  }
}

}  // namespace strata::scheduler
