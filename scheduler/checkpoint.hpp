// Checkpoints: a directory each, made whole or not at all, that a later run resumes from and `export` reads.
#pragma once

#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "core/layout.hpp"
#include "core/model.hpp"
#include "core/model_files.hpp"
#include "scheduler/run_plan.hpp"
#include "scheduler/store_reference.hpp"
#include "scheduler/trainer_record.hpp"
#include "scheduler/training_state.hpp"
#include "tiers/store.hpp"

namespace strata::scheduler {

/// Two kinds: `files` holds fp32 master weights and moments as three Hugging Face directories (master/, momentum/, variance/) with
/// their checksums; `store` names a store and the generation of it that is this checkpoint, or holds a copy of it. See docs/formats.md.
enum class CheckpointKind { files, store };

/// One checkpoint of a checkpoints/ folder.
struct CheckpointInfo {
  std::filesystem::path path;
  CheckpointKind kind = CheckpointKind::files;
  TrainerRecord record;
  bool pinned = false;  // exempt from checkpoint.keep; see checkpoint_directory.hpp
  bool copy = false;    // kind `store`: it holds its own copy of the store, and does not need the run's
};

/// A directory of a checkpoints/ folder that is no whole checkpoint.
struct IgnoredCheckpoint {
  std::filesystem::path path;
  std::string reason;
  bool unfinished = false;  // it was being written or removed when its process was killed

  std::string text() const { return path.string() + ": " + reason; }
};

/// The checkpoints of a folder, newest first: also one that is whole and lacks only its name, because its process was killed before it
/// could give it. Directories that are not whole are left out and, unless it is null, named in `ignored`.
std::vector<CheckpointInfo> list_checkpoints(const std::filesystem::path& folder, std::vector<IgnoredCheckpoint>* ignored);
/// Reads one checkpoint's manifest. Throws invalid_data or data_corruption.
CheckpointInfo read_checkpoint_info(const std::filesystem::path& checkpoint);

/// checkpoint.keep, or what it is when it was left to Strata (0): two checkpoints of files; of a run whose whole state is in the store, the
/// store alone, which holds the newest step at no cost, as each further one is a copy of all state.
int64_t checkpoints_kept(const RunPlan& plan);

/// The disk space that one checkpoint of a run takes, within a few kilobytes and not less; with all state in a store, of a copy of it or of a
/// reference to it.
uint64_t checkpoint_bytes(const RunPlan& plan, bool copy);

struct SaveOptions {
  int64_t keep = 1;     // checkpoints of this folder, pinned ones not counted
  bool pinned = false;  // the new one is exempt from `keep`; see checkpoint_directory.hpp
  bool moves_on = false;  // more steps follow: of a store, a copy is made where `keep` asks for more than the store itself
};

/// Writes FOLDER/step-NNNNNNNN, durable when it returns, then removes older ones beyond `keep`. One of the same step is replaced. With
/// all state in a store whose newest commit is `record`, it is a reference to that commit, or, where it is pinned or the store moves on and
/// `keep` is over 1, a copy of what is committed; the store itself counts as one of `keep`. Earlier references, which the store has moved past,
/// are removed. What the run knows of its store is written beside FOLDER (run_store.hpp). Throws io or resource_exhausted, and what reading the state does; the folder's earlier checkpoints stay, and nothing
/// of this one.
std::filesystem::path write_checkpoint(const std::filesystem::path& folder, const RunPlan& plan, TrainingState& state,
                                       tiers::NvmeStore* store, const TrainerRecord& record, const SaveOptions& options,
                                       const ProgressCallback& progress);

/// Reads a checkpoint's tensors, of either kind.
class CheckpointReader {
 public:
  /// Opens and checks: reads every file of the checkpoint once for its checksum (`progress` counts bytes), and of a store that its newest
  /// commit is the checkpoint; the store checks what is read from it. Throws invalid_data, data_corruption, busy, io.
  /// `moves`: where its store is now, if it was moved; it is searched for besides (store_reference.hpp).
  static std::unique_ptr<CheckpointReader> open(const std::filesystem::path& checkpoint, const ProgressCallback& progress = {},
                                                const std::vector<StoreMove>& moves = {});
  virtual ~CheckpointReader() = default;

  const CheckpointInfo& info() const { return info_; }
  const ModelDescription& model() const { return model_; }
  const ModelLayout& layout() const { return layout_; }
  virtual void read(Quantity quantity, int unit, Range range, float* out) = 0;

 protected:
  CheckpointInfo info_;
  ModelDescription model_;
  ModelLayout layout_;
};

/// The checkpoint that a path names: itself, or the newest of a checkpoints/ folder. Throws invalid_data when there is none.
std::filesystem::path resolve_checkpoint(const std::filesystem::path& checkpoint_or_folder);

/// Writes an HF directory from a checkpoint whose checksums are right: names as HF has them; every parameter in `dtype`, or without it
/// each in the dtype that it had in the model that training started from. Tensors that are no parameters and the model's other files go
/// along as they were. Nothing is needed but the checkpoint and, for kind `store`, its store; a checkpoint of an older version has no
/// dtypes: they are then those of the model at its path, fp32 where that is gone. Returns the model's files that are left out.
/// Throws what CheckpointReader::open does, invalid_data for a weight that the dtype cannot hold, and when `out` exists and is not an
/// empty directory; `out` is then as it was.
std::vector<LeftOutFile> export_checkpoint(const std::filesystem::path& checkpoint_or_folder, const std::filesystem::path& out,
                                           std::optional<DType> dtype = {}, const ProgressCallback& progress = {},
                                           const std::vector<StoreMove>& moves = {});

}  // namespace strata::scheduler
