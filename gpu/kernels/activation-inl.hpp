// The activation functions of the MLP and their derivatives, plain and gated, over a lane context (gpu/kernels/lanes.hpp).
#if defined(STRATA_GPU_KERNELS_ACTIVATION_INL) == defined(HWY_TARGET_TOGGLE)
#ifdef STRATA_GPU_KERNELS_ACTIVATION_INL
#undef STRATA_GPU_KERNELS_ACTIVATION_INL
#else
#define STRATA_GPU_KERNELS_ACTIVATION_INL
#endif

#include "core/model.hpp"
#include "gpu/kernels/lanes.hpp"
#include "gpu/kernels/numbers-inl.hpp"

STRATA_KERNELS_BEFORE
namespace STRATA_KERNELS_NAMESPACE {

struct ActivationValue {
  float value;
  float derivative;
};

/// x (1 + tanh(u)) / 2 with u = sqrt(2/pi) (x + 0.044715 x^3), HF's gelu_new, as x sigmoid(2u): that keeps the digits of the lower tail.
STRATA_KERNEL_INLINE ActivationValue gelu_tanh(float x) {
  constexpr float kTwiceRoot = 1.59576912f, kCubic = 0.044715f;  // 2 sqrt(2/pi)
  // Beyond 16 the sigmoid is 0 or 1 and the cube may only not overflow.
  const float bounded = clamp(x, -16.0f, 16.0f);
  const float square = bounded * bounded;
  const Sigmoid s = sigmoid(kTwiceRoot * bounded * (1.0f + kCubic * square));
  const float slope = kTwiceRoot * (1.0f + 3.0f * kCubic * square);
  return {x * s.value, s.value + bounded * s.value * s.complement * slope};
}

STRATA_KERNEL_INLINE ActivationValue gelu_erf(float x) {
  const Normal n = normal(x);
  return {x * n.distribution, n.distribution + x * n.density};
}

STRATA_KERNEL_INLINE ActivationValue silu(float x) {
  const Sigmoid s = sigmoid(x);
  return {x * s.value, s.value * (1.0f + x * s.complement)};
}

STRATA_KERNEL_INLINE ActivationValue relu(float x) { return {choose(x < 0.0f, 0.0f, x), choose(x > 0.0f, 1.0f, 0.0f)}; }

/// The compiler drops the half that a kernel does not use.
template <Activation kKind>
STRATA_KERNEL_INLINE ActivationValue activation(float x) {
  if constexpr (kKind == Activation::gelu_tanh) return gelu_tanh(x);
  if constexpr (kKind == Activation::gelu_erf) return gelu_erf(x);
  if constexpr (kKind == Activation::silu) return silu(x);
  if constexpr (kKind == Activation::relu) return relu(x);
}

template <Activation kKind, class T, class Lanes>
STRATA_KERNEL void activate(const Lanes& lanes, int64_t count, const T* x, T* y) {
  lanes.for_each(count, [=](int64_t i) { y[i] = from_float<T>(activation<kKind>(to_float(x[i])).value); });
}

/// Gives y again, too: the two share their exponential. d_x may be d_y.
template <Activation kKind, class T, class Lanes>
STRATA_KERNEL void activate_backward(const Lanes& lanes, int64_t count, const T* x, const T* d_y, T* y, T* d_x) {
  lanes.for_each(count, [=](int64_t i) {
    const ActivationValue activated = activation<kKind>(to_float(x[i]));
    const float d_output = to_float(d_y[i]);
    y[i] = from_float<T>(activated.value);
    d_x[i] = from_float<T>(d_output * activated.derivative);
  });
}

/// A row of y = activation(gate) * up.
template <Activation kKind, class T, class Lanes>
STRATA_KERNEL void activate_gated_row(const Lanes& lanes, int64_t columns, const T* gate, const T* up, T* y) {
  lanes.for_each(columns, [=](int64_t i) { y[i] = from_float<T>(activation<kKind>(to_float(gate[i])).value * to_float(up[i])); });
}

/// Gives y again, too. d_gate and d_up may be gate and up.
template <Activation kKind, class T, class Lanes>
STRATA_KERNEL void activate_gated_backward_row(const Lanes& lanes, int64_t columns, const T* gate, const T* up, const T* d_y,
                                               T* y, T* d_gate, T* d_up) {
  lanes.for_each(columns, [=](int64_t i) {
    const ActivationValue activated = activation<kKind>(to_float(gate[i]));
    const float d_output = to_float(d_y[i]), up_value = to_float(up[i]);
    const float d_gate_value = d_output * up_value * activated.derivative;
    y[i] = from_float<T>(activated.value * up_value);
    d_up[i] = from_float<T>(d_output * activated.value);
    d_gate[i] = from_float<T>(d_gate_value);
  });
}

}  // namespace STRATA_KERNELS_NAMESPACE
STRATA_KERNELS_AFTER
#endif
