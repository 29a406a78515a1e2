// What a trainer must remember, besides the tensors, to continue as if it had never stopped.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "core/config.hpp"

namespace strata::scheduler {

/// What metrics.jsonl says of a step, kept with the step's state: the process can end between the two.
struct LastStep {
  double loss = 0, grad_norm = 0, lr = 0, loss_scale = 1;
  uint64_t tokens = 0;
};

struct TrainerRecord {
  int64_t step = 0;       // steps done, skipped ones included
  int64_t updates = 0;    // of the optimizer; the bias corrections count these
  uint64_t samples = 0;   // consumed
  double loss_scale = 1.0;
  int64_t good_steps = 0;  // since the loss scale changed
  int64_t skipped_in_a_row = 0;
  std::optional<LastStep> last_step;  // absent before the first, after a skipped one and in records of version 1

  // Whose state it is. Another run's store or another data order is refused, not continued.
  std::string run_id;         // of the run's marker (scheduler/run_marker.hpp); empty in records of version 1
  std::string run_directory;  // where the run was when it wrote this
  std::string model_path;
  std::string data_identity;

  /// This run's identity with the progress of a record that it continues.
  TrainerRecord with_state_of(const TrainerRecord& loaded) const;

  /// Whether `saved` was written by this record's run: by the run's id, or in records of version 1 by its directory.
  bool same_run(const TrainerRecord& saved) const;

  /// At most a few kilobytes: it is written with every commit of a store.
  std::string to_json() const;
  /// Reads version 1, which has no run id, too. `name` stands for the source in messages. Throws data_corruption.
  static TrainerRecord from_json(const std::string& text, const std::string& name);
};

/// Dynamic loss scaling for fp16: halves on a non-finite gradient, doubles after 2000 finite steps.
class LossScaler {
 public:
  static double initial(DType compute) { return compute == DType::f16 ? 65536.0 : 1.0; }
  /// Changes record.loss_scale after a step. Precision other than fp16 keeps 1.
  static void after_step(DType compute, bool finite, TrainerRecord& record);
};

/// The learning rate of step `step` (from 0).
double learning_rate(const Config& config, int64_t step);

}  // namespace strata::scheduler
