// RMSNorm and LayerNorm, forward and backward, over a lane context (gpu/kernels/lanes.hpp).
#if defined(STRATA_GPU_KERNELS_NORM_INL) == defined(HWY_TARGET_TOGGLE)
#ifdef STRATA_GPU_KERNELS_NORM_INL
#undef STRATA_GPU_KERNELS_NORM_INL
#else
#define STRATA_GPU_KERNELS_NORM_INL
#endif

#include <cmath>

#include "gpu/kernels/lanes.hpp"
#include "gpu/kernels/numbers-inl.hpp"

STRATA_KERNELS_BEFORE
namespace STRATA_KERNELS_NAMESPACE {

/// y = x * rstd * weight. As HF's Llama, x * rstd is rounded to T first.
template <class T, class Lanes>
STRATA_KERNEL void rms_norm_row(const Lanes& lanes, int64_t columns, const T* x, const T* weight, float epsilon, T* y,
                                float* rstd_out) {
  const float square_sum = lanes.sum(columns, [=](int64_t i) {
    const float value = to_float(x[i]);
    return value * value;
  });
  const float rstd = 1.0f / std::sqrt(square_sum / static_cast<float>(columns) + epsilon);
  if (lanes.lane() == 0) *rstd_out = rstd;
  lanes.for_each(columns, [=](int64_t i) {
    y[i] = from_float<T>(rounded<T>(to_float(x[i]) * rstd) * to_float(weight[i]));
  });
}

/// d_x = (kAddToDx: +=) the gradient of the input; weight_sums += d_y * xhat.
template <bool kAddToDx, class T, class Lanes>
STRATA_KERNEL void rms_norm_backward_row(const Lanes& lanes, int64_t columns, const T* x, const T* weight, float rstd, const T* d_y,
                                         T* d_x, float* weight_sums) {
  const float dot = lanes.sum(columns, [=](int64_t i) { return to_float(d_y[i]) * to_float(weight[i]) * to_float(x[i]); });
  const float slope = dot * rstd * rstd / static_cast<float>(columns);
  lanes.for_each(columns, [=](int64_t i) {
    const float value = to_float(x[i]), d_output = to_float(d_y[i]);
    const float before = kAddToDx ? to_float(d_x[i]) : 0.0f;
    weight_sums[i] += d_output * rounded<T>(value * rstd);
    d_x[i] = from_float<T>(before + rstd * (d_output * to_float(weight[i]) - value * slope));
  });
}

/// statistics = {mean, rstd}. The variance is taken about the mean, in a second pass.
template <class T, class Lanes>
STRATA_KERNEL void layer_norm_row(const Lanes& lanes, int64_t columns, const T* x, const T* weight, const T* bias, float epsilon,
                                  T* y, float* statistics) {
  const float mean = lanes.sum(columns, [=](int64_t i) { return to_float(x[i]); }) / static_cast<float>(columns);
  const float square_sum = lanes.sum(columns, [=](int64_t i) {
    const float centered = to_float(x[i]) - mean;
    return centered * centered;
  });
  const float rstd = 1.0f / std::sqrt(square_sum / static_cast<float>(columns) + epsilon);
  if (lanes.lane() == 0) {
    statistics[0] = mean;
    statistics[1] = rstd;
  }
  lanes.for_each(columns, [=](int64_t i) {
    y[i] = from_float<T>((to_float(x[i]) - mean) * rstd * to_float(weight[i]) + to_float(bias[i]));
  });
}

/// As rms_norm_backward_row; bias_sums += d_y.
template <bool kAddToDx, class T, class Lanes>
STRATA_KERNEL void layer_norm_backward_row(const Lanes& lanes, int64_t columns, const T* x, const T* weight,
                                           const float* statistics, const T* d_y, T* d_x, float* weight_sums,
                                           float* bias_sums) {
  const float mean = statistics[0], rstd = statistics[1];
  const auto d_normalized = [=](int64_t i) { return to_float(d_y[i]) * to_float(weight[i]); };
  const SumPair sums = lanes.sum_pair(
      columns, d_normalized, [=](int64_t i) { return d_normalized(i) * ((to_float(x[i]) - mean) * rstd); });
  const float d_mean = sums.first / static_cast<float>(columns);
  const float slope = sums.second / static_cast<float>(columns);
  lanes.for_each(columns, [=](int64_t i) {
    const float normalized = (to_float(x[i]) - mean) * rstd, d_output = to_float(d_y[i]);
    const float before = kAddToDx ? to_float(d_x[i]) : 0.0f;
    weight_sums[i] += d_output * normalized;
    bias_sums[i] += d_output;
    d_x[i] = from_float<T>(before + rstd * (d_output * to_float(weight[i]) - d_mean - normalized * slope));
  });
}

}  // namespace STRATA_KERNELS_NAMESPACE
STRATA_KERNELS_AFTER
#endif
