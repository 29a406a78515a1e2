#include "scheduler/session.hpp"

#include <system_error>

#include "core/error.hpp"
#include "core/file.hpp"
#include "core/hf_weights.hpp"
#include "scheduler/checkpoint.hpp"
#include "scheduler/checkpoint_directory.hpp"
#include "scheduler/checkpoint_manifest.hpp"
#include "scheduler/model_copy.hpp"
#include "scheduler/run_losses.hpp"
#include "scheduler/run_marker.hpp"
#include "scheduler/run_store.hpp"
#include "scheduler/session_changes.hpp"
#include "scheduler/session_record.hpp"
#include "scheduler/trainer_files.hpp"
#include "scheduler/trainer_resume.hpp"

namespace strata::scheduler {

namespace {

namespace fs = std::filesystem;

class SessionStart {
 public:
  explicit SessionStart(const TrainOptions& options) : options_(options), config_(options.config) {}

  Session start() {
    if (options_.resume && !options_.discard.empty())
      throw Error(ErrorCode::invalid_configuration, "--discard names what starting over loses, and this start resumes", {},
                  "leave it out, or add --resume never to lose that state for good");
    session_.directory = std::make_unique<RunDirectory>(options_.run_directory, config_);
    for (const std::string& note : session_.directory->notes()) narrate(note);
    const tiers::FileDescriptor directory = tiers::open_directory(options_.run_directory);
    session_.lock.emplace(directory.get(), options_.run_directory, tiers::DirectoryLock::Kind::run);
    check_run_names(options_.run_directory);
    last_ = SessionRecord::read(options_.run_directory);
    const bool marked = find_marker();
    const auto say = [this](const std::string& line) { narrate(line); };
    const auto model_copy = options_.resume ? find_model_copy(options_.run_directory) : std::nullopt;
    PlanRunOptions planning{.system_root = options_.system_root,
                            .model_directory = describing_directory(config_.model.path, model_copy, say)};
    if (options_.resume) planning.constraints = constraints_of_run(options_.run_directory, config_);
    PlannedRun planned = plan_run(config_, planning);
    RunPlan& plan = planned.plan;
    require_memory(plan.memory_needs, plan.memory);
    open_data(plan);
    plan.epoch_samples = session_.train_data->samples();
    describe_session(planned);
    session_.record = new_record();
    settle_checkpoints(checkpoints(), [this](const std::string& line) { narrate(line); });
    StateSource source = find_source(plan);
    if (!options_.from.empty()) begin_from(source);
    if (!source.found() || !model_copy) open_weights(plan, source);
    check_run_files(options_.run_directory, plan, {source.step, options_.resume});
    narrate(plan_table(plan, std::nullopt));
    if (!marked) marker_.write(options_.run_directory);
    planned.plan.model_directory = options_.run_directory / kModelCopyFolder;
    session_.runtime = std::make_unique<Runtime>(std::move(planned), source.store ? StoreMode::continue_ : StoreMode::create,
                                                 options_.narrate);
    for (const std::string& line : session_.runtime->description()) narrate(line);
    session_.directory->keep();
    if (!options_.resume) discard_earlier_run();
    if (!source.found() || !model_copy) make_model_copy(options_.run_directory, config_.model.path, weights_.get(), say);
    session_.metrics = std::make_unique<MetricsWriter>(options_.run_directory, session_.runtime->plan());
    load_state(source);
    session_.metrics->begin_after(session_.record);
    write_description();
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

  /// The run's marker; where it is missing, the id that the run's other files have, else a new one. Returns whether it is there.
  bool find_marker() {
    if (const std::optional<RunMarker> marker = RunMarker::read(options_.run_directory)) {
      marker_ = *marker;
      return true;
    }
    if (last_) marker_.run_id = last_->run_id;
    if (marker_.run_id.empty())
      for (const CheckpointInfo& info : list_checkpoints(checkpoints(), nullptr))
        if (marker_.run_id.empty()) marker_.run_id = info.record.run_id;
    if (marker_.run_id.empty()) marker_ = RunMarker::make();
    return false;
  }

  /// The weights, where they are needed: to start from, and, for a run of a version that kept no copy of its model, their dtypes.
  void open_weights(const RunPlan& plan, const StateSource& source) {
    try {
      weights_ = std::make_unique<HfWeights>(config_.model.path, plan.model, plan.shape.layout);
    } catch (const Error& error) {
      if (!source.found()) throw;
      narrate(fmt::format("the weights that the run started from cannot be read ({}): an export will be in fp32", error.message()));
    }
  }

  void open_data(const RunPlan& plan) {
    const auto open = [&](const std::vector<fs::path>& files, bool every_token) {
      return std::make_unique<TokenDataset>(TokenDatasetOptions{.files = files, .format = config_.data.format,
                                                                .sequence_length = config_.data.sequence_length,
                                                                .seed = config_.data.seed,
                                                                .vocab_size = plan.model.vocab_size,
                                                                .short_windows = every_token,
                                                                .model_directory = plan.model_directory,
                                                                .on_progress = heeding_stop(options_.on_data_progress)});
    };
    session_.train_data = open(config_.data.train, /*every_token=*/false);
    if (!config_.data.eval.empty()) session_.eval_data = open(config_.data.eval, /*every_token=*/true);
  }

  void describe_session(const PlannedRun& planned) {
    now_.config = with_absolute_paths(config_).to_json();
    now_.model = model_facts(planned.plan.model);
    now_.weights = weights_identity(config_.model.path);
    now_.train = describe_data(*session_.train_data);
    if (session_.eval_data) now_.eval = describe_data(*session_.eval_data);
    const gpu::DeviceInfo& device = planned.device->info();
    now_.machine = {{"program version", STRATA_VERSION},
                    {"device", fmt::format("{} ({})", device.kind, device.name)},
                    {"compute threads", std::to_string(device.compute_threads)},
                    {"instruction set", AdamUpdater::instruction_set()}};
  }

  TrainerRecord new_record() const {
    TrainerRecord record;
    record.loss_scale = LossScaler::initial(config_.precision.compute);
    record.run_id = marker_.run_id;
    record.run_directory = fs::canonical(options_.run_directory).string();
    record.model_path = fs::weakly_canonical(config_.model.path).string();
    record.data_identity = data_identity(config_, now_.train);
    return record;
  }

  /// What the run continues from; starting over, nothing, once everything that it would lose was named.
  StateSource find_source(const RunPlan& plan) {
    StateSource source;
    if (options_.resume)
      source = find_state({.plan = plan, .run_directory = options_.run_directory, .identity = session_.record,
                           .accept = [this](const ContinuedState& state) { accept(state); },
                           .narrate = [this](const std::string& line) { narrate(line); }, .progress = heeding_stop(options_.on_state_progress)});
    if (source.store) return source;
    const std::vector<std::string> going =
        refuse_unnamed_losses({.config = config_, .run_directory = options_.run_directory, .uses_store = plan.uses_store(),
                               .starts_over = !options_.resume, .discard = options_.discard});
    for (const std::string& loss : going) narrate("discarded, as named: " + loss);
    if (going.empty() || options_.resume) return source;
    // Nothing that is left of the earlier run elsewhere is taken for this one's.
    marker_ = RunMarker::make();
    session_.record.run_id = marker_.run_id;
    return source;
  }

  /// Of a run of a version that kept no facts of the model, its newest checkpoint has them.
  void take_model_from_checkpoint() {
    if (!last_ || !last_->model.empty()) return;
    for (const CheckpointInfo& info : list_checkpoints(checkpoints(), nullptr)) {
      last_->model = model_facts(read_model_description(info.path / kModelFolder));
      return;
    }
  }

  /// Says what has changed since the last session, or refuses to continue with it.
  void accept(const ContinuedState& state) {
    take_model_from_checkpoint();
    const std::vector<std::string> lines = changes_since(last_, now_, config_, state, options_.allow);
    if (changes_told_) return;  // for a newer checkpoint, which is damaged
    changes_told_ = true;
    for (const std::string& line : lines) narrate("changed since the last session: " + line);
  }

  /// A new run that begins where another one's checkpoint ends.
  void begin_from(StateSource& source) const {
    if (source.store || source.checkpoint)
      throw Error(ErrorCode::invalid_configuration,
                  fmt::format("this run has state of its own, at step {}: --from begins a new run", source.step), options_.run_directory.string(),
                  "name a new --run-dir (and directory in tiers.nvme); or leave --from out, to continue this run");
    source.checkpoint = CheckpointReader::open(resolve_checkpoint(options_.from), options_.on_state_progress, options_.store_moves);
    const CheckpointReader& reader = *source.checkpoint;
    if (model_facts(reader.model()) != now_.model)
      throw Error(ErrorCode::invalid_configuration, "the checkpoint is of another model than the configuration's",
                  reader.info().path.string(), fmt::format("name its model in model.path: {}", reader.info().record.model_path));
    const TrainerRecord& record = reader.info().record;
    const bool same_order = record.data_identity == session_.record.data_identity || record.data_identity == named_data_identity(config_);
    if (!same_order && !options_.reseed)
      throw Error(ErrorCode::invalid_configuration,
                  fmt::format("the checkpoint's run read its data in another order: {} (this run: {})", record.data_identity, session_.record.data_identity),
                  reader.info().path.string(), "give the data, seed and sequence length of that run; or --reseed, to go on with others from here");
    source.step = record.step;
    narrate(fmt::format("a new run from {}: step {}, {} samples consumed{}", reader.info().path.string(), record.step, record.samples,
                        options_.reseed ? "; the data order is this configuration's from here" : ""));
  }

  /// Starting over was asked for: an earlier run's checkpoints and steps would be taken for this run's.
  void discard_earlier_run() const {
    std::error_code error;
    fs::remove(options_.run_directory / kRunStoreName, error);
    if (fs::exists(checkpoints(), error)) {
      fs::remove_all(checkpoints(), error);
      if (error)
        throw Error(ErrorCode::io, fmt::format("cannot remove an earlier run's checkpoints: {}", error.message()), checkpoints().string(),
                    "remove them, or choose another --run-dir");
    }
    marker_.write(options_.run_directory);
  }

  /// The plan and the configuration of this session, for people and for the next one.
  void write_description() {
    const std::string plan = plan_json(session_.runtime->plan(), std::nullopt) + "\n";
    write_file_atomically(options_.run_directory / "plan.json", plan.data(), plan.size());
    // With the sizes that were left to Strata as it chose them; the session's own record has what was asked for.
    const std::string configuration = with_absolute_paths(session_.runtime->plan().config).to_json() + "\n";
    write_file_atomically(options_.run_directory / "config.json", configuration.data(), configuration.size());
    now_.run_id = marker_.run_id;
    now_.step = session_.record.step;
    if (now_.step > 0) now_.weights = last_ ? last_->weights : "";  // what the run started from, not what lies there now
    now_.write(options_.run_directory);
  }

  void load_state(const StateSource& source) {
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
    if (store && runtime.plan().placement.all_state_in_store()) {
      store->commit(record.to_json());
      write_run_store(options_.run_directory, *store, record.step);
    }
    narrate(source.checkpoint ? fmt::format("resumed from {} at step {}", source.checkpoint->info().path.string(), record.step)
                              : "started from the model's weights");
  }

  const TrainOptions& options_;
  const Config& config_;
  RunMarker marker_;
  std::optional<SessionRecord> last_;
  SessionRecord now_;
  bool changes_told_ = false;
  std::unique_ptr<HfWeights> weights_;
  Session session_;
};

}  // namespace

Session start_session(const TrainOptions& options) { return SessionStart(options).start(); }

}  // namespace strata::scheduler
