#include <algorithm>
#include <set>
#include <system_error>
#include <vector>

#include "core/error.hpp"
#include "core/file.hpp"
#include "core/hf_weights.hpp"
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

/// The configuration, tokenizer and generation files of a model directory: everything but weights.
void copy_model_files(const fs::path& source, const fs::path& destination) {
  fs::create_directories(destination);
  for (const auto& entry : fs::directory_iterator(source)) {
    const std::string extension = entry.path().extension().string();
    static const std::set<std::string> kTexts = {".json", ".txt", ".model", ".jinja", ".md"};
    if (!entry.is_regular_file() || !kTexts.contains(extension)) continue;
    if (entry.path().filename() == "model.safetensors.index.json" ||
        entry.path().filename() == "pytorch_model.bin.index.json")
      continue;
    const ReadOnlyFile file(entry.path());
    std::string content(file.size(), '\0');
    file.read(0, content.data(), content.size());
    write_file_atomically(destination / entry.path().filename(), content.data(), content.size());
  }
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
  options.source = plan.config.model.path;
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

}  // namespace

fs::path write_checkpoint(const fs::path& folder, const RunPlan& plan, TrainingState& state, tiers::NvmeStore* store,
                          const TrainerRecord& record, int64_t keep, const ProgressCallback& progress) {
  fs::create_directories(folder);
  // The run's lock is held, so a partial directory is what a run that died left behind.
  for (const auto& entry : fs::directory_iterator(folder))
    if (entry.path().extension() == kPartialSuffix) remove_tree(entry.path());

  const fs::path final_path = folder / checkpoint_name(record.step);
  const fs::path partial = folder / (checkpoint_name(record.step) + kPartialSuffix);
  CheckpointManifest manifest;
  manifest.record = record;
  manifest.format = plan.shape.format;
  fs::create_directory(partial);
  if (plan.placement.all_state_in_store()) {
    manifest.kind = CheckpointKind::store;
    for (const auto& directory : plan.config.tiers.nvme)
      manifest.store_directories.push_back(fs::canonical(directory.path).string());
    manifest.store_generation = store->generation();
    manifest.tile_elements = plan.shape.tile_elements;
    copy_model_files(plan.config.model.path, partial / kModelFolder);
  } else {
    for (Quantity quantity : kQuantities)
      write_quantity(partial / folder_of(quantity), quantity, plan, state, progress);
  }
  manifest.files = describe_files(partial);
  const std::string text = manifest.to_json();
  write_file_atomically(partial / kManifestName, text.data(), text.size());
  sync_directory(partial);
  if (fs::exists(final_path)) remove_tree(final_path);  // the same step, saved again
  fs::rename(partial, final_path);
  sync_directory(folder);
  prune(folder, final_path, record.step, keep);
  return final_path;
}

}  // namespace strata::scheduler
