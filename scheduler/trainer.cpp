#include "scheduler/trainer.hpp"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstring>
#include <optional>
#include <system_error>

#include "core/error.hpp"
#include "core/file.hpp"
#include "core/hf_weights.hpp"
#include "core/tokens.hpp"
#include "scheduler/checkpoint.hpp"
#include "scheduler/runtime.hpp"
#include "scheduler/trainer_files.hpp"
#include "scheduler/trainer_resume.hpp"
#include "tiers/lock.hpp"

namespace strata::scheduler {

namespace {

constexpr int64_t kMaxSkippedInARow = 25;

/// Gradients that are computed and measured but not applied yet, with the record of the run once they are.
struct PendingUpdate {
  AdamStep adam;
  TrainerRecord record;
};

class Trainer {
 public:
  explicit Trainer(const TrainOptions& options) : options_(options), config_(options.config) {}

  TrainSummary run() {
    RunDirectory run_directory(options_.run_directory);
    const tiers::FileDescriptor directory = tiers::open_directory(options_.run_directory);
    const tiers::DirectoryLock lock(directory.get(), options_.run_directory, tiers::DirectoryLock::Kind::run);
    PlannedRun planned = plan_run(config_);
    const RunPlan& plan = planned.plan;
    weights_ = std::make_unique<HfWeights>(config_.model.path, plan.model, plan.shape.layout);
    open_data(plan);
    record_ = new_record();
    StateSource source;
    if (options_.resume)
      source = find_state({plan, options_.run_directory, record_, [this](const std::string& line) { narrate(line); },
                           options_.on_state_progress});
    check_run_files(options_.run_directory, plan, {source.step, options_.resume});
    narrate(plan_table(plan, std::nullopt));
    runtime_ = std::make_unique<Runtime>(std::move(planned), source.store ? StoreMode::continue_ : StoreMode::create);
    for (const std::string& line : runtime_->description()) narrate(line);
    run_directory.keep();
    if (!options_.resume) discard_earlier_run();
    // Lines of steps that are run again go before the plan: from both, a later run tells whether this one had state in its store.
    metrics_ = std::make_unique<MetricsWriter>(options_.run_directory, runtime_->plan(), source.step);
    write_plan(runtime_->plan());
    load_state(std::move(source));
    return train_steps();
  }

 private:
  void narrate(const std::string& line) const {
    if (options_.narrate) options_.narrate(line);
  }
  bool stop_requested() const { return options_.stop && options_.stop->load(); }
  std::filesystem::path checkpoints() const { return options_.run_directory / "checkpoints"; }

  // Set-up --------------------------------------------------------------------------------------------------------

  void open_data(const RunPlan& plan) {
    const auto open = [&](const std::vector<std::filesystem::path>& files) {
      return std::make_unique<TokenDataset>(TokenDatasetOptions{.files = files, .format = config_.data.format,
                                                                .sequence_length = config_.data.sequence_length,
                                                                .seed = config_.data.seed,
                                                                .vocab_size = plan.model.vocab_size});
    };
    train_data_ = open(config_.data.train);
    if (!config_.data.eval.empty()) eval_data_ = open(config_.data.eval);
  }

  TrainerRecord new_record() const {
    TrainerRecord record;
    record.loss_scale = LossScaler::initial(config_.precision.compute);
    record.run_directory = std::filesystem::canonical(options_.run_directory).string();
    record.model_path = std::filesystem::weakly_canonical(config_.model.path).string();
    record.data_identity = data_identity(config_);
    return record;
  }

  /// Starting over was asked for: an earlier run's checkpoints and steps would be taken for this run's.
  void discard_earlier_run() const {
    std::error_code error;
    std::filesystem::remove(options_.run_directory / "metrics.jsonl", error);
    if (!std::filesystem::exists(checkpoints(), error)) return;
    narrate("starting over: the checkpoints of an earlier run in this directory are removed");
    std::filesystem::remove_all(checkpoints(), error);
    if (error)
      throw Error(ErrorCode::io, fmt::format("cannot remove an earlier run's checkpoints: {}", error.message()), checkpoints().string(),
                  "remove them, or choose another --run-dir");
  }

  void write_plan(const RunPlan& plan) const {
    const std::string text = plan_json(plan, std::nullopt) + "\n";
    write_file_atomically(options_.run_directory / "plan.json", text.data(), text.size());
    // Absolute paths, so that the run's files are found from anywhere.
    Config absolute = config_;
    absolute.model.path = std::filesystem::absolute(absolute.model.path);
    for (auto* files : {&absolute.data.train, &absolute.data.eval})
      for (auto& file : *files) file = std::filesystem::absolute(file);
    for (auto& directory : absolute.tiers.nvme) directory.path = std::filesystem::absolute(directory.path);
    const std::string configuration = absolute.to_json() + "\n";
    write_file_atomically(options_.run_directory / "config.json", configuration.data(), configuration.size());
  }

  void load_state(StateSource source) {
    tiers::NvmeStore* store = runtime_->store();
    if (source.store) {
      record_ = TrainerRecord::from_json(store->record(), "store");
      runtime_->state().restore_from_store();
      narrate(fmt::format("resumed from the store at step {}", record_.step));
    } else {
      StateSources sources;
      if (CheckpointReader* reader = source.checkpoint.get()) {
        for (Quantity quantity : kQuantities) {
          const auto read = [reader, quantity](int unit, Range range, float* out) {
            reader->read(quantity, unit, range, out);
          };
          (quantity == Quantity::master ? sources.master
           : quantity == Quantity::momentum ? sources.momentum
                                            : sources.variance) = read;
        }
        record_ = reader->info().record;
      } else {
        sources.master = [this](int unit, Range range, float* out) {
          weights_->read_finite(static_cast<size_t>(unit), range, config_.precision.compute, out);
        };
      }
      runtime_->state().fill(sources, options_.on_state_progress);
      if (store && runtime_->plan().placement.all_state_in_store()) store->commit(record_.to_json());
      narrate(source.checkpoint ? fmt::format("resumed from {} at step {}", source.checkpoint->info().path.string(), record_.step)
                                : "started from the model's weights");
    }
    first_step_ = record_.step;
    current_ = record_;
    weights_.reset();
  }

  // Steps ---------------------------------------------------------------------------------------------------------

  const RunPlan& plan() const { return runtime_->plan(); }

  TrainSummary train_steps() {
    TrainSummary summary;
    summary.resumed_from = first_step_;
    while (current_.step < config_.steps && !stop_requested()) {
      StepReport report = train_step();
      if (current_.step == first_step_ + 1) summary.first_loss = report.loss;
      summary.last_loss = report.loss;
      const bool last = current_.step == config_.steps;
      const bool due = config_.checkpoint.every > 0 && current_.step % config_.checkpoint.every == 0;
      if ((due || last) && eval_data_) report.eval_loss = evaluate();
      metrics_->write(report);
      if (options_.on_step) options_.on_step(report);
      if (due && !last && !stop_requested()) save();
      if (current_.skipped_in_a_row >= kMaxSkippedInARow) {
        save();
        throw Error(ErrorCode::invalid_data,
                    fmt::format("{} steps in a row had a gradient that is not finite; training stopped", kMaxSkippedInARow),
                    fmt::format("step {}", current_.step), "lower optimizer.lr, check the data, or use bf16 compute");
      }
    }
    summary.interrupted = current_.step < config_.steps;
    summary.steps_done = current_.step;
    summary.checkpoint = save();
    if (options_.hash_state) summary.state_hash = runtime_->state().hash();
    if (!last_runs_.empty()) write_trace(options_.run_directory / "trace.json", plan(), last_runs_);
    return summary;
  }

  std::filesystem::path save() {
    flush();
    return write_checkpoint(checkpoints(), plan(), runtime_->state(), runtime_->store(), current_, config_.checkpoint.keep,
                            options_.on_state_progress);
  }

  /// Applies gradients that wait for the next forward pass.
  void flush() {
    if (!pending_) return;
    run_program(plan().steps.update);
    pending_.reset();
  }

  /// Runs a program that applies the pending update, if it applies one.
  ProgramRun run_program(const Program& program, float gradient_scale = 1.0f) {
    StepValues values;
    values.gradient_scale = gradient_scale;
    if (pending_) {
      values.adam = pending_->adam;
      values.commit_record = pending_->record.to_json();
    }
    return runtime_->executor().run(program, values);
  }

  /// Fills the host's token buffers with the next samples. Returns the tokens that count.
  uint64_t load_samples(TokenDataset& data, uint64_t first_sample) {
    uint64_t counting = 0;
    const int64_t length = config_.data.sequence_length;
    for (int64_t batch = 0; batch < config_.batch.gradient_accumulation_steps; ++batch) {
      const auto part = static_cast<uint32_t>(batch);
      auto* tokens = reinterpret_cast<int32_t*>(runtime_->executor().address(plan().steps.host_tokens.part(part)));
      auto* labels = reinterpret_cast<int32_t*>(runtime_->executor().address(plan().steps.host_labels.part(part)));
      for (int64_t row = 0; row < config_.batch.micro_batch_size; ++row, ++first_sample) {
        data.sample(first_sample, tokens + row * length, labels + row * length);
        for (int64_t i = 0; i < length; ++i) counting += labels[row * length + i] >= 0;
      }
    }
    return counting;
  }

  uint64_t samples_per_step() const {
    return static_cast<uint64_t>(config_.batch.micro_batch_size * config_.batch.gradient_accumulation_steps);
  }

  double loss_sum() const {
    const auto* losses = reinterpret_cast<const double*>(runtime_->executor().address(plan().steps.host_losses));
    double sum = 0;
    for (int64_t i = 0; i < config_.batch.gradient_accumulation_steps; ++i) sum += losses[i];
    return sum;
  }

  double gradient_norm() const {
    const LocationId id = plan().steps.host_block_sums;
    const auto* sums = reinterpret_cast<const double*>(runtime_->executor().address(id));
    double sum = 0;
    for (uint64_t i = 0; i < plan().steps.memory[id].bytes / sizeof(double); ++i) sum += sums[i];
    return std::sqrt(sum) / current_.loss_scale;
  }

  StepReport train_step() {
    const auto begin = std::chrono::steady_clock::now();
    StepReport report;
    report.step = current_.step + 1;
    report.steps = config_.steps;
    report.lr = learning_rate(config_, current_.step);
    report.loss_scale = current_.loss_scale;
    report.tokens = load_samples(*train_data_, current_.samples);
    const float scale = static_cast<float>(current_.loss_scale / static_cast<double>(std::max<uint64_t>(report.tokens, 1)));
    last_runs_.clear();
    const Program& program = pending_ ? plan().steps.update_forward_backward : plan().steps.forward_backward;
    last_runs_.emplace_back(&program, run_program(program, scale));
    pending_.reset();
    report.loss = loss_sum() / static_cast<double>(std::max<uint64_t>(report.tokens, 1));
    report.grad_norm = gradient_norm();
    report.skipped = !std::isfinite(report.grad_norm) || report.tokens == 0;
    finish_step(report);
    report.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
    report.tokens_per_second = static_cast<double>(report.tokens) / report.seconds;
    for (const auto& [ran, run] : last_runs_)
      for (int i = 0; i < kResourceCount; ++i) {
        report.busy_seconds[i] += run.busy_seconds[i];
        report.bytes[i] += run.bytes[i];
      }
    report.overlap = overlap_share(*last_runs_[0].first, last_runs_[0].second);
    average_seconds_ = average_seconds_ == 0 ? report.seconds : 0.9 * average_seconds_ + 0.1 * report.seconds;
    report.seconds_left = average_seconds_ * static_cast<double>(config_.steps - current_.step);
    return report;
  }

  /// Moves the record past the step, and applies its gradients or leaves them pending.
  void finish_step(const StepReport& report) {
    const double loss_scale = current_.loss_scale;
    ++current_.step;
    current_.samples += samples_per_step();
    current_.skipped_in_a_row = report.skipped ? current_.skipped_in_a_row + 1 : 0;
    LossScaler::after_step(config_.precision.compute, !report.skipped, current_);
    if (report.skipped) return;
    ++current_.updates;
    const AdamSettings settings{.beta1 = config_.optimizer.beta1, .beta2 = config_.optimizer.beta2,
                                .epsilon = config_.optimizer.epsilon, .weight_decay = config_.optimizer.weight_decay};
    // As torch.nn.utils.clip_grad_norm_.
    const double clip = config_.gradient_clipping > 0
                            ? std::min(1.0, config_.gradient_clipping / (report.grad_norm + 1e-6))
                            : 1.0;
    pending_ = PendingUpdate{AdamStep::make(settings, current_.updates, report.lr, clip / loss_scale), current_};
    if (plan().placement.lazy_update) return;
    last_runs_.emplace_back(&plan().steps.update, run_program(plan().steps.update));
    pending_.reset();
  }

  /// The mean loss over the evaluation files, at most 64 steps' worth of samples.
  double evaluate() {
    flush();
    const uint64_t rounds = std::clamp<uint64_t>(eval_data_->samples() / samples_per_step(), 1, 64);
    double sum = 0;
    uint64_t counting = 0;
    for (uint64_t round = 0; round < rounds; ++round) {
      counting += load_samples(*eval_data_, round * samples_per_step());
      run_program(plan().steps.evaluate);
      sum += loss_sum();
    }
    return sum / static_cast<double>(std::max<uint64_t>(counting, 1));
  }

  const TrainOptions& options_;
  const Config& config_;
  std::unique_ptr<HfWeights> weights_;
  std::unique_ptr<TokenDataset> train_data_, eval_data_;
  std::unique_ptr<Runtime> runtime_;
  std::unique_ptr<MetricsWriter> metrics_;
  TrainerRecord record_;   // of this run's identity, then of the state that was loaded
  TrainerRecord current_;  // after the last step, pending gradients included
  int64_t first_step_ = 0;
  std::optional<PendingUpdate> pending_;
  std::vector<std::pair<const Program*, ProgramRun>> last_runs_;
  double average_seconds_ = 0;
};

}  // namespace

TrainSummary train(const TrainOptions& options) { return Trainer(options).run(); }

}  // namespace strata::scheduler
