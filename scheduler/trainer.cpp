#include "scheduler/trainer.hpp"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <optional>

#include "core/error.hpp"
#include "core/file.hpp"
#include "scheduler/checkpoint.hpp"
#include "scheduler/evaluation.hpp"
#include "scheduler/run_store.hpp"
#include "scheduler/session.hpp"

namespace strata::scheduler {

namespace {

constexpr int64_t kMaxSkippedInARow = 25;

/// Gradients that are computed and measured but not applied yet, with the record of the run once they are.
struct PendingUpdate {
  AdamStep adam;
  TrainerRecord record;
};

/// The step loop over a session that is ready for its first step.
class Trainer {
 public:
  Trainer(const TrainOptions& options, Session session)
      : options_(options), config_(options.config), session_(std::move(session)), current_(session_.record) {}

  TrainSummary run() { return train_steps(); }

 private:
  bool stop_requested() const { return options_.stop && options_.stop->load(); }
  std::filesystem::path checkpoints() const { return options_.run_directory / "checkpoints"; }
  Runtime& runtime() const { return *session_.runtime; }
  const RunPlan& plan() const { return runtime().plan(); }
  int64_t first_step() const { return session_.record.step; }

  // Steps ---------------------------------------------------------------------------------------------------------

  TrainSummary train_steps() {
    TrainSummary summary;
    summary.resumed_from = first_step();
    if (current_.step < config_.steps && leaves_newest_checkpoint()) save(/*moves_on=*/true);
    while (current_.step < config_.steps && !stop_requested()) {
      StepReport report = train_step();
      if (current_.step == first_step() + 1) summary.first_loss = report.loss;
      summary.last_loss = report.loss;
      const bool last = current_.step == config_.steps;
      const bool due = config_.checkpoint.every > 0 && current_.step % config_.checkpoint.every == 0;
      // Before anything that follows the step: an end in the middle of an evaluation loses no line.
      session_.metrics->write(report);
      if (plan().placement.all_state_in_store()) session_.metrics->sync();
      if (options_.on_step) options_.on_step(report);
      if (session_.eval_data && (last || (config_.evaluation.every > 0 ? current_.step % config_.evaluation.every == 0 : due)))
        report_evaluation();
      if (due && !last && !stop_requested()) save(/*moves_on=*/true);
      if (current_.skipped_in_a_row >= kMaxSkippedInARow) {
        save(/*moves_on=*/false);
        throw Error(ErrorCode::invalid_data,
                    fmt::format("{} steps in a row had a gradient that is not finite; training stopped", kMaxSkippedInARow),
                    fmt::format("step {}", current_.step), "lower optimizer.lr, check the data, or use bf16 compute");
      }
    }
    summary.interrupted = current_.step < config_.steps;
    summary.steps_done = current_.step;
    if (current_.step == first_step()) explain_no_step();
    summary.checkpoint = save_at_end();
    if (options_.hash_state) summary.state_hash = runtime().state().hash();
    if (!last_runs_.empty()) write_trace(options_.run_directory / "trace.json", plan(), last_runs_);
    return summary;
  }

  /// A call that did no step says why.
  void explain_no_step() const {
    if (!options_.narrate || stop_requested() || current_.step < config_.steps) return;
    options_.narrate(current_.step == config_.steps
                         ? fmt::format("nothing to do: the run has done its {} steps; raise `steps` to go on", current_.step)
                         : fmt::format("nothing to do: the run is at step {} and `steps` is {}; raise `steps` to go on", current_.step,
                                       config_.steps));
  }

  /// The checkpoint of the last step; where this call did nothing, the one that is there.
  std::filesystem::path save_at_end() {
    if (current_.step == first_step() && current_.step > 0)
      for (const CheckpointInfo& info : list_checkpoints(checkpoints(), nullptr))
        if (info.record.step == current_.step && info.record.run_id == current_.run_id && is_current(info)) return info.path;
    return save(/*moves_on=*/false);
  }

  /// A reference to a store is the run's state only while the state lies there.
  bool is_current(const CheckpointInfo& info) const {
    return (info.kind == CheckpointKind::store) == plan().placement.all_state_in_store();
  }

  std::filesystem::path save(bool moves_on) {
    flush();
    commit_skipped_steps();
    session_.metrics->sync();
    return write_checkpoint(checkpoints(), plan(), runtime().state(), runtime().store(), current_,
                            {.keep = checkpoints_kept(plan()), .moves_on = moves_on},
                            options_.on_state_progress);
  }

  /// A skipped step changes no state and so commits nothing: without this the store would be of the step before the skipped ones, and
  /// a checkpoint that names it of the step after them.
  void commit_skipped_steps() {
    tiers::NvmeStore* store = runtime().store();
    if (store == nullptr || !plan().placement.all_state_in_store()) return;
    if (const std::string record = current_.to_json(); store->record() != record) store->commit(record);
  }

  /// Whether the newest checkpoint is the store as it is now, which the next step moves on from, and is to be kept.
  bool leaves_newest_checkpoint() const {
    if (!plan().placement.all_state_in_store() || checkpoints_kept(plan()) == 1) return false;
    const std::vector<CheckpointInfo> found = list_checkpoints(checkpoints(), nullptr);
    return !found.empty() && found.front().kind == CheckpointKind::store && !found.front().copy && found.front().record.step == current_.step;
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
    return runtime().executor().run(program, values);
  }

  /// Fills the host's token buffers with the next samples. Returns the tokens that count.
  uint64_t load_samples(TokenDataset& data, uint64_t first_sample) {
    uint64_t counting = 0;
    const int64_t length = config_.data.sequence_length;
    for (int64_t batch = 0; batch < config_.batch.gradient_accumulation_steps; ++batch) {
      const auto part = static_cast<uint32_t>(batch);
      auto* tokens = reinterpret_cast<int32_t*>(runtime().executor().address(plan().steps.host_tokens.part(part)));
      auto* labels = reinterpret_cast<int32_t*>(runtime().executor().address(plan().steps.host_labels.part(part)));
      for (int64_t row = 0; row < config_.batch.micro_batch_size; ++row, ++first_sample) {
        try {
          data.sample(first_sample, tokens + row * length, labels + row * length);
        } catch (const Error&) {
          save(/*moves_on=*/false);  // the data are at fault, not what was trained so far
          throw;
        }
        for (int64_t i = 0; i < length; ++i) counting += labels[row * length + i] >= 0;
      }
    }
    return counting;
  }

  uint64_t samples_per_step() const {
    return static_cast<uint64_t>(config_.batch.micro_batch_size * config_.batch.gradient_accumulation_steps);
  }

  double loss_sum() const {
    const auto* losses = reinterpret_cast<const double*>(runtime().executor().address(plan().steps.host_losses));
    double sum = 0;
    for (int64_t i = 0; i < config_.batch.gradient_accumulation_steps; ++i) sum += losses[i];
    return sum;
  }

  double gradient_norm() const {
    const LocationId id = plan().steps.host_block_sums;
    const auto* sums = reinterpret_cast<const double*>(runtime().executor().address(id));
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
    report.tokens = load_samples(*session_.train_data, current_.samples);
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
    current_.last_step.reset();
    current_.skipped_in_a_row = report.skipped ? current_.skipped_in_a_row + 1 : 0;
    LossScaler::after_step(config_.precision.compute, !report.skipped, current_);
    if (report.skipped) return;
    ++current_.updates;
    current_.last_step = LastStep{.loss = report.loss, .grad_norm = report.grad_norm, .lr = report.lr, .loss_scale = report.loss_scale,
                                  .tokens = report.tokens};
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

  /// Evaluates the state after the step, as a line of the metrics. A stop that was asked for ends it without one.
  void report_evaluation() {
    flush();
    const auto result = evaluate(runtime(), *session_.eval_data,
                                 {.samples = static_cast<uint64_t>(config_.evaluation.samples), .stop = options_.stop,
                                  .progress = options_.on_evaluation_progress});
    if (!result) return;
    const EvaluationReport report{.step = current_.step, .loss = result->loss, .tokens = result->tokens, .samples = result->samples,
                                  .of_samples = result->of_samples, .seconds = result->seconds};
    session_.metrics->write(report);
    if (options_.on_evaluation) options_.on_evaluation(report);
  }

  const TrainOptions& options_;
  const Config& config_;
  Session session_;
  TrainerRecord current_;  // after the last step, pending gradients included
  std::optional<PendingUpdate> pending_;
  std::vector<std::pair<const Program*, ProgramRun>> last_runs_;
  double average_seconds_ = 0;
};

}  // namespace

TrainSummary train(const TrainOptions& given) {
  const PrivateFiles private_files;
  TrainOptions options = given;
  const auto narrate = [&](const std::string& line) {
    if (options.narrate) options.narrate(line);
  };
  if (options.resume) follow_store(options.config, options.run_directory, options.store_moves, narrate);
  return Trainer(options, start_session(options)).run();
}

}  // namespace strata::scheduler
