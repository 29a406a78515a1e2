// The measurements of a run: metrics.jsonl (one JSON object a step) and trace.json (Chrome and Perfetto read it).
#pragma once

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <optional>
#include <string>
#include <vector>

#include "scheduler/executor.hpp"
#include "scheduler/run_plan.hpp"

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
  std::optional<double> eval_loss;
  std::array<double, kResourceCount> busy_seconds{};
  std::array<uint64_t, kResourceCount> bytes{};
  /// Share of the step in which copies or I/O ran while the compute stream was busy too, over all their time; absent without any.
  std::optional<double> overlap;
  double seconds_left = 0;

  Resource limit() const;
};

/// The last step that DIR/metrics.jsonl tells of; 0 without any.
int64_t last_step_in_metrics(const std::filesystem::path& run_directory);

/// Appends to DIR/metrics.jsonl, each line flushed when its step is done.
class MetricsWriter {
 public:
  /// Keeps the lines of steps up to `resumed_step` and drops later ones, which are run again. Throws io.
  MetricsWriter(const std::filesystem::path& run_directory, const RunPlan& plan, int64_t resumed_step);
  void write(const StepReport& report);

 private:
  std::filesystem::path path_;
  std::ofstream out_;
  std::vector<TierUse> tiers_;
};

/// The time during which copies or I/O and the compute stream were busy together, over the time copies or I/O were.
std::optional<double> overlap_share(const Program& program, const ProgramRun& run);

/// The operations of one step as Chrome trace events, a track per resource.
void write_trace(const std::filesystem::path& file, const RunPlan& plan,
                 const std::vector<std::pair<const Program*, ProgramRun>>& runs);

}  // namespace strata::scheduler
