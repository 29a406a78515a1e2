#include "scheduler/trainer_resume.hpp"

#include <fmt/ranges.h>

#include <algorithm>

#include "core/config.hpp"
#include "core/error.hpp"
#include "core/json.hpp"
#include "scheduler/checkpoint_manifest.hpp"
#include "scheduler/metrics.hpp"
#include "scheduler/run_store.hpp"

namespace strata::scheduler {

namespace {

namespace fs = std::filesystem;

std::string joined(const std::vector<fs::path>& paths) {
  std::string text;
  for (const fs::path& path : paths) text += (text.empty() ? "" : ", ") + path.string();
  return text;
}

std::vector<fs::path> directories_of(const Config& config) {
  std::vector<fs::path> directories;
  for (const auto& directory : config.tiers.nvme) directories.push_back(directory.path);
  return directories;
}

bool same_directories(const std::vector<fs::path>& a, const std::vector<fs::path>& b) {
  std::error_code error;
  return std::equal(a.begin(), a.end(), b.begin(), b.end(), [&](const fs::path& x, const fs::path& y) {
    return fs::weakly_canonical(fs::absolute(x), error) == fs::weakly_canonical(fs::absolute(y), error);
  });
}

class StateFinder {
 public:
  explicit StateFinder(const ResumeRequest& request) : request_(request), directories_(directories_of(request.plan.config)) {}

  StateSource find() {
    StateSource source;
    if (request_.plan.uses_store() && tiers::NvmeStore::has_commit(directories_)) {
      source.store = true;
      source.step = check_store();
      return source;
    }
    std::vector<std::string> broken;
    std::vector<IgnoredCheckpoint> ignored;
    const std::vector<CheckpointInfo> found = list_checkpoints(checkpoints(), &ignored);
    for (const IgnoredCheckpoint& one : ignored) {
      request_.narrate("ignored: " + one.text());
      if (was_a_checkpoint(one)) broken.push_back(one.text());
    }
    for (const CheckpointInfo& info : found) {
      if (info.kind == CheckpointKind::files) {
        request_.accept({info.record, /*in_store=*/false, info.path.string()});
        source.checkpoint = open_if_whole(info, broken);
        source.step = info.record.step;
      } else if (&info == &found.front()) {
        const auto manifest = CheckpointManifest::read(info.path);
        refuse_store(info.record.step, {manifest.store.directories.begin(), manifest.store.directories.end()});
      } else {
        broken.push_back(fmt::format("{}: its state was in a store that has moved on", info.path.string()));
      }
      if (source.checkpoint) return source;
    }
    if (!broken.empty())
      throw Error(ErrorCode::data_corruption, fmt::format("none of the run's checkpoints is whole:\n  - {}", fmt::join(broken, "\n  - ")),
                  checkpoints().string(), "put back whole copies of those files; nothing else has the run's steps");
    refuse_lost_store();
    return {};
  }

 private:
  fs::path checkpoints() const { return request_.run_directory / "checkpoints"; }

  /// Whether it was finished once: not another directory, nor one that never was.
  static bool was_a_checkpoint(const IgnoredCheckpoint& one) {
    return !one.unfinished && one.path.filename().string().starts_with("step-");
  }

  /// A record without a run's id is of this run's store when its directory is gone and a checkpoint here was written in it.
  bool was_moved_here(const TrainerRecord& found) const {
    std::error_code error;
    if (!found.run_id.empty() || fs::exists(found.run_directory, error)) return false;
    const std::vector<CheckpointInfo> here = list_checkpoints(checkpoints(), nullptr);
    return std::any_of(here.begin(), here.end(), [&](const CheckpointInfo& info) { return info.record.run_directory == found.run_directory; });
  }

  /// Another run's state in this run's store is never continued, and never lost by the way.
  void refuse_other_run(const TrainerRecord& found, uint64_t generation, const std::string& where) const {
    if (request_.identity.same_run(found) || was_moved_here(found)) return;
    std::error_code error;
    const fs::path owner(found.run_directory);
    throw Error(ErrorCode::invalid_configuration,
                fmt::format("the store holds the state of another run: \"{}\" ({}{}) at step {}, generation {}", owner.filename().string(),
                            owner.string(), fs::exists(owner, error) ? "" : ", which is not there now", found.step, generation),
                where,
                fmt::format("name another directory in tiers.nvme, or continue that run with --run-dir {}; only to lose its state at "
                            "step {} for good: --resume never --discard {}",
                            owner.string(), found.step, owner.filename().string()));
  }

  /// Returns the step that the store is at.
  int64_t check_store() const {
    const std::string where = directories_.front().string();
    const tiers::StoreSummary store = tiers::NvmeStore::inspect(directories_);
    const TrainerRecord found = TrainerRecord::from_json(store.record, where);
    refuse_other_run(found, store.generation, where);
    request_.accept({found, /*in_store=*/true, where});
    if (!store.damaged_record.empty())
      request_.narrate(fmt::format("{}: continuing from generation {}, step {}{}", store.damaged_record, store.generation, found.step,
                                   store.commit_lost ? " (a crash leaves such a record when it comes while it is written)" : ""));
    if (const std::string older = older_than_known(request_.run_directory, store.id, store.generation); !older.empty())
      request_.narrate(fmt::format("{}; continuing from generation {}, step {}", older, store.generation, found.step));
    if (!request_.plan.placement.all_state_in_store()) refuse_store(found.step, directories_);
    return found.step;
  }

  std::unique_ptr<CheckpointReader> open_if_whole(const CheckpointInfo& info, std::vector<std::string>& broken) const {
    try {
      std::unique_ptr<CheckpointReader> reader = CheckpointReader::open(info.path, request_.progress);
      if (!broken.empty())
        request_.narrate(fmt::format("continuing from an older checkpoint, the newest that is whole: {}", info.path.string()));
      return reader;
    } catch (const Error& error) {
      if (error.code() == ErrorCode::cancelled) throw;
      broken.push_back(fmt::format("{}: {}", error.where(), error.message()));
      request_.narrate("ignored: " + broken.back());
      return nullptr;
    }
  }

  /// The run's state is in a store that is not the one to continue: says why.
  [[noreturn]] void refuse_store(int64_t step, const std::vector<fs::path>& directories) const {
    if (!tiers::NvmeStore::has_commit(directories))
      throw Error(ErrorCode::invalid_data, fmt::format("the run's state at step {} is in an NVMe store that is not there", step),
                  joined(directories), "mount its drive or bring the directories back, and if they were moved, name their place: --store OLD=NEW; the run's "
                  "newest steps are nowhere else");
    if (!same_directories(directories, directories_))
      throw Error(ErrorCode::invalid_configuration,
                  fmt::format("the run's state at step {} is in an NVMe store that this configuration does not name", step),
                  joined(directories), "name its directories in tiers.nvme");
    throw Error(ErrorCode::invalid_configuration,
                fmt::format("the store holds this run's state at step {}, but this configuration places the optimizer elsewhere", step),
                joined(directories), "keep placement.optimizer on nvme");
  }

  /// There is no state, yet the run's files may tell of steps: whose state was committed to a store with each one, or which never
  /// outlived their process.
  void refuse_lost_store() const {
    const int64_t step = last_step_in_metrics(request_.run_directory);
    if (step == 0) return;
    const fs::path plan = request_.run_directory / "plan.json", configuration = request_.run_directory / "config.json";
    std::error_code error;
    if (fs::exists(plan, error) && fs::exists(configuration, error)) {
      const Json json = parse_json_file(plan, ErrorCode::data_corruption);
      if (json.value("/placement/optimizer"_json_pointer, "") == to_string(Tier::nvme))
        refuse_store(step, directories_of(read_config(configuration)));
    }
    request_.narrate(fmt::format("an earlier run here ended after step {} before it saved anything: starting over", step));
  }

  const ResumeRequest& request_;
  const std::vector<fs::path> directories_;
};

}  // namespace

PlanConstraints constraints_of_run(const fs::path& run_directory, const Config& config) {
  const fs::path file = run_directory / "plan.json";
  std::error_code error;
  if (config.tiers.nvme.empty() || !fs::is_regular_file(file, error)) return {};
  try {
    const Json plan = parse_json_file(file, ErrorCode::data_corruption);
    if (plan.value("/placement/optimizer"_json_pointer, "") != to_string(Tier::nvme)) return {};
    if (!tiers::NvmeStore::has_commit(directories_of(config))) return {};
    const auto elements = plan.value("/schedule/tile_elements"_json_pointer, uint64_t{0});
    const bool whole = elements % kBlockElements == 0 && elements <= (uint64_t{1} << 32);
    return {.state_in_store = true, .tile_elements = whole ? elements : 0};
  } catch (const std::exception&) {
    return {};  // a plan that is no plan binds nothing
  }
}

StateSource find_state(const ResumeRequest& request) { return StateFinder(request).find(); }

}  // namespace strata::scheduler
