// The loss of a model over an evaluation set: every token once, whatever the batch.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>

#include "core/tokens.hpp"
#include "scheduler/runtime.hpp"

namespace strata::scheduler {

struct Evaluation {
  double loss = 0;       // mean over the tokens that count; NaN without any
  uint64_t tokens = 0;   // that counted
  uint64_t samples = 0;  // that were read
  uint64_t of_samples = 0;  // of the whole set
  double seconds = 0;

  bool limited() const { return samples < of_samples; }
};

struct EvaluationOptions {
  uint64_t samples = 0;  // the first so many of the set; 0: all
  const std::atomic<bool>* stop = nullptr;  // set: end after the batch under way
  std::function<void(uint64_t done, uint64_t total)> progress;  // in samples
};

/// `data` was opened with `short_windows`, so that each token of a file but its first is predicted once. Evaluates with
/// the parameters as they are; updates that wait must have been applied. Samples are read in file order, each once, and
/// the last batch is filled up with samples that do not count. Losses are summed in double in sample order: neither seed nor
/// accumulation changes a bit of the result, the micro-batch size only what the shapes of its matrix products round differently. Changes
/// no state. Absent when `stop` ended it. Throws what the executor and the data set do.
std::optional<Evaluation> evaluate(Runtime& runtime, const TokenDataset& data, const EvaluationOptions& options);

}  // namespace strata::scheduler
