// Softmax cross-entropy of one row of logits, over a lane context (gpu/kernels/lanes.hpp).
#if defined(STRATA_GPU_KERNELS_LOSS_INL) == defined(HWY_TARGET_TOGGLE)
#ifdef STRATA_GPU_KERNELS_LOSS_INL
#undef STRATA_GPU_KERNELS_LOSS_INL
#else
#define STRATA_GPU_KERNELS_LOSS_INL
#endif

#include <cmath>
#include <type_traits>

#include "gpu/kernels/lanes.hpp"
#include "gpu/kernels/numbers-inl.hpp"

STRATA_KERNELS_BEFORE
namespace STRATA_KERNELS_NAMESPACE {

/// *loss = log(sum of e^logits) - logits[label]. d_logits, unless null: scale * (softmax - onehot); it may be `logits`, and fp32 logits
/// are overwritten: they have room for the exponentials, which are then computed once.
/// A label outside [0, columns) that is not kIgnoredLabel gives NaN: nothing outside the row is read.
template <class T, class G, class Lanes>
STRATA_KERNEL void cross_entropy_row(const Lanes& lanes, int64_t columns, T* logits, int32_t label, float scale, double* loss,
                                     G* d_logits) {
  if (label == kIgnoredLabel) {
    if (lanes.lane() == 0) *loss = 0.0;
    if (d_logits != nullptr) lanes.for_each(columns, [=](int64_t i) { d_logits[i] = from_float<G>(0.0f); });
    return;
  }
  const bool valid = label >= 0 && label < columns;
  // Read before the reductions, so before any lane writes.
  const float at_label = valid ? to_float(logits[label]) : __builtin_nanf("");
  const float largest = lanes.max(columns, [=](int64_t i) { return to_float(logits[i]); });
  const auto term = [=](int64_t i) { return exp(to_float(logits[i]) - largest); };
  const bool keep = std::is_same_v<T, float> && d_logits != nullptr;
  if (keep) lanes.for_each(columns, [=](int64_t i) { logits[i] = from_float<T>(term(i)); });
  const float sum = keep ? lanes.sum(columns, [=](int64_t i) { return to_float(logits[i]); }) : lanes.sum(columns, term);
  if (lanes.lane() == 0) {
    *loss = std::log(static_cast<double>(sum)) - (static_cast<double>(at_label) - static_cast<double>(largest));
  }
  if (d_logits == nullptr) return;
  const float factor = valid ? scale / sum : __builtin_nanf("");
  if (keep) lanes.for_each(columns, [=](int64_t i) { d_logits[i] = from_float<G>(factor * to_float(logits[i])); });
  else lanes.for_each(columns, [=](int64_t i) { d_logits[i] = from_float<G>(factor * term(i)); });
  if (valid && label % lanes.lanes() == lanes.lane()) {
    d_logits[label] = from_float<G>(factor * exp(at_label - largest) - scale);
  }
}

}  // namespace STRATA_KERNELS_NAMESPACE
STRATA_KERNELS_AFTER
#endif
