// The measurements of a run: metrics.jsonl (a JSON object a step and an evaluation) and trace.json (Chrome and Perfetto read it).
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "scheduler/executor.hpp"
#include "scheduler/run_plan.hpp"
#include "scheduler/trainer_record.hpp"
#include "tiers/file.hpp"

namespace strata::scheduler {

struct StepReport {
  int64_t step = 0;  // from 1
  int64_t steps = 0;  // of the whole run
  double loss = 0;
  double grad_norm = 0;
  double lr = 0;
  double loss_scale = 1;
  uint64_t tokens = 0;  // that counted towards the loss
  double seconds = 0;
  double tokens_per_second = 0;
  bool skipped = false;
  std::array<double, kResourceCount> busy_seconds{};
  std::array<uint64_t, kResourceCount> bytes{};
  /// Share of the step in which copies or I/O ran while the compute stream was busy too, over all their time; absent without any.
  std::optional<double> overlap;
  double seconds_left = 0;

  Resource limit() const;
};

/// The last step that DIR/metrics.jsonl tells of; 0 without any.
int64_t last_step_in_metrics(const std::filesystem::path& run_directory);

/// An evaluation after a step.
struct EvaluationReport {
  int64_t step = 0;
  double loss = 0;
  uint64_t tokens = 0;      // that counted
  uint64_t samples = 0;     // that were read
  uint64_t of_samples = 0;  // of the evaluation files; more than `samples` where evaluation.samples limits it
  double seconds = 0;
};

/// Appends to DIR/metrics.jsonl, each line in the file when its call returns: a step's before anything that follows the step, so that
/// whatever ends the process loses no line.
class MetricsWriter {
 public:
  /// Opens the file and changes nothing in it. Throws invalid_data when the name is taken by anything but a file of its own, io.
  MetricsWriter(const std::filesystem::path& run_directory, const RunPlan& plan);

  /// To be called once, when the state of `resumed` is loaded. The first write then drops lines of later steps, which were run again, and
  /// a line that was cut off, and adds that of the state's own step where the process ended between the step's commit and its line.
  /// The file is replaced whole, or not at all; a resume that fails before its first step has changed nothing.
  void begin_after(const TrainerRecord& resumed) { resumed_ = resumed; }
  /// Throws io, resource_exhausted.
  void write(const StepReport& report);
  void write(const EvaluationReport& report);
  /// Makes what was written durable.
  void sync();

 private:
  void continue_from(const TrainerRecord& resumed);
  void append(const std::string& line, int64_t step);

  const std::filesystem::path run_directory_, path_;
  tiers::FileDescriptor file_;
  std::vector<TierUse> tiers_;
  std::optional<TrainerRecord> resumed_;  // until the first write
};

/// The time during which copies or I/O and the compute stream were busy together, over the time copies or I/O were.
std::optional<double> overlap_share(const Program& program, const ProgramRun& run);

/// The operations of one step as Chrome trace events, a track per resource.
void write_trace(const std::filesystem::path& file, const RunPlan& plan,
                 const std::vector<std::pair<const Program*, ProgramRun>>& runs);

}  // namespace strata::scheduler
