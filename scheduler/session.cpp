#include "scheduler/session.hpp"

#include <system_error>

#include "core/error.hpp"
#include "core/file.hpp"
#include "core/hf_weights.hpp"
#include "scheduler/checkpoint.hpp"
#include "scheduler/run_marker.hpp"
#include "scheduler/trainer_resume.hpp"

namespace strata::scheduler {

namespace {

namespace fs = std::filesystem;

class SessionStart {
 public:
  explicit SessionStart(const TrainOptions& options) : options_(options), config_(options.config) {}

  Session start() {
    session_.directory = std::make_unique<RunDirectory>(options_.run_directory);
    const tiers::FileDescriptor directory = tiers::open_directory(options_.run_directory);
    session_.lock.emplace(directory.get(), options_.run_directory, tiers::DirectoryLock::Kind::run);
    marker_ = RunMarker::read(options_.run_directory);
    const bool marked = marker_.has_value();
    if (!marked) marker_ = RunMarker::make();
    PlannedRun planned = plan_run(config_);
    const RunPlan& plan = planned.plan;
    weights_ = std::make_unique<HfWeights>(config_.model.path, plan.model, plan.shape.layout);
    open_data(plan);
    session_.record = new_record();
    StateSource source;
    if (options_.resume)
      source = find_state({plan, options_.run_directory, session_.record, [this](const std::string& line) { narrate(line); },
                           heeding_stop(options_.on_state_progress)});
    check_run_files(options_.run_directory, plan, {source.step, options_.resume});
    narrate(plan_table(plan, std::nullopt));
    if (!marked) marker_->write(options_.run_directory);
    session_.runtime = std::make_unique<Runtime>(std::move(planned), source.store ? StoreMode::continue_ : StoreMode::create);
    for (const std::string& line : session_.runtime->description()) narrate(line);
    session_.directory->keep();
    if (!options_.resume) discard_earlier_run();
    // Lines of steps that are run again go before the plan: from both, a later run tells whether this one had state in its store.
    session_.metrics = std::make_unique<MetricsWriter>(options_.run_directory, session_.runtime->plan(), source.step);
    write_plan(session_.runtime->plan());
    load_state(std::move(source));
    return std::move(session_);
  }

 private:
  void narrate(const std::string& line) const {
    if (options_.narrate) options_.narrate(line);
  }
  /// The listener of something long that comes before the first step: a stop ends it.
  ProgressCallback heeding_stop(const ProgressCallback& progress) const {
    return [this, &progress](uint64_t done, uint64_t total) {
      if (options_.stop && options_.stop->load())
        throw Error(ErrorCode::cancelled, "stopped before the first step; nothing was trained", {}, "the same command starts again");
      if (progress) progress(done, total);
    };
  }
  fs::path checkpoints() const { return options_.run_directory / "checkpoints"; }

  void open_data(const RunPlan& plan) {
    const auto open = [&](const std::vector<fs::path>& files) {
      return std::make_unique<TokenDataset>(TokenDatasetOptions{.files = files, .format = config_.data.format,
                                                                .sequence_length = config_.data.sequence_length,
                                                                .seed = config_.data.seed,
                                                                .vocab_size = plan.model.vocab_size,
                                                                .model_directory = config_.model.path,
                                                                .on_progress = heeding_stop(options_.on_data_progress)});
    };
    session_.train_data = open(config_.data.train);
    if (!config_.data.eval.empty()) session_.eval_data = open(config_.data.eval);
  }

  TrainerRecord new_record() const {
    TrainerRecord record;
    record.loss_scale = LossScaler::initial(config_.precision.compute);
    record.run_id = marker_->run_id;
    record.run_directory = fs::canonical(options_.run_directory).string();
    record.model_path = fs::weakly_canonical(config_.model.path).string();
    record.data_identity = data_identity(config_);
    return record;
  }

  /// Starting over was asked for: an earlier run's checkpoints and steps would be taken for this run's.
  void discard_earlier_run() const {
    std::error_code error;
    fs::remove(options_.run_directory / "metrics.jsonl", error);
    if (!fs::exists(checkpoints(), error)) return;
    narrate("starting over: the checkpoints of an earlier run in this directory are removed");
    fs::remove_all(checkpoints(), error);
    if (error)
      throw Error(ErrorCode::io, fmt::format("cannot remove an earlier run's checkpoints: {}", error.message()), checkpoints().string(),
                  "remove them, or choose another --run-dir");
  }

  void write_plan(const RunPlan& plan) const {
    const std::string text = plan_json(plan, std::nullopt) + "\n";
    write_file_atomically(options_.run_directory / "plan.json", text.data(), text.size());
    // Absolute paths, so that the run's files are found from anywhere.
    Config absolute = config_;
    absolute.model.path = fs::absolute(absolute.model.path);
    for (auto* files : {&absolute.data.train, &absolute.data.eval})
      for (auto& file : *files) file = fs::absolute(file);
    for (auto& directory : absolute.tiers.nvme) directory.path = fs::absolute(directory.path);
    const std::string configuration = absolute.to_json() + "\n";
    write_file_atomically(options_.run_directory / "config.json", configuration.data(), configuration.size());
  }

  void load_state(StateSource source) {
    TrainerRecord& record = session_.record;
    Runtime& runtime = *session_.runtime;
    tiers::NvmeStore* store = runtime.store();
    if (source.store) {
      record = record.with_state_of(TrainerRecord::from_json(store->record(), "store"));
      runtime.state().restore_from_store();
      narrate(fmt::format("resumed from the store at step {}", record.step));
      return;
    }
    StateSources sources;
    if (CheckpointReader* reader = source.checkpoint.get()) {
      for (Quantity quantity : kQuantities) {
        const auto read = [reader, quantity](int unit, Range range, float* out) { reader->read(quantity, unit, range, out); };
        (quantity == Quantity::master ? sources.master : quantity == Quantity::momentum ? sources.momentum : sources.variance) = read;
      }
      record = record.with_state_of(reader->info().record);
    } else {
      sources.master = [this](int unit, Range range, float* out) {
        weights_->read_finite(static_cast<size_t>(unit), range, config_.precision.compute, out);
      };
    }
    runtime.state().fill(sources, heeding_stop(options_.on_state_progress));
    if (store && runtime.plan().placement.all_state_in_store()) store->commit(record.to_json());
    narrate(source.checkpoint ? fmt::format("resumed from {} at step {}", source.checkpoint->info().path.string(), record.step)
                              : "started from the model's weights");
  }

  const TrainOptions& options_;
  const Config& config_;
  std::optional<RunMarker> marker_;
  std::unique_ptr<HfWeights> weights_;
  Session session_;
};

}  // namespace

Session start_session(const TrainOptions& options) { return SessionStart(options).start(); }

}  // namespace strata::scheduler
