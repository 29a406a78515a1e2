// From the formats and activations that a kernel is given at run time to the templates that it is made of.
#if defined(STRATA_GPU_HOST_VISIT_INL) == defined(HWY_TARGET_TOGGLE)
#ifdef STRATA_GPU_HOST_VISIT_INL
#undef STRATA_GPU_HOST_VISIT_INL
#else
#define STRATA_GPU_HOST_VISIT_INL
#endif

#include <type_traits>

#include "core/dtype.hpp"
#include "core/model.hpp"
#include "gpu/kernels/numbers-inl.hpp"

STRATA_KERNELS_BEFORE
namespace STRATA_KERNELS_NAMESPACE {

/// Calls function(T()) with T = float, Bf16 or F16.
template <class Function>
void visit_dtype(DType dtype, const Function& function) {
  switch (dtype) {
    case DType::f32: return function(float());
    case DType::bf16: return function(Bf16());
    case DType::f16: return function(F16());
  }
}

template <Activation kKind>
using ActivationConstant = std::integral_constant<Activation, kKind>;

/// Calls function(std::integral_constant of the kind).
template <class Function>
void visit_activation(Activation kind, const Function& function) {
  switch (kind) {
    case Activation::gelu_tanh: return function(ActivationConstant<Activation::gelu_tanh>());
    case Activation::gelu_erf: return function(ActivationConstant<Activation::gelu_erf>());
    case Activation::silu: return function(ActivationConstant<Activation::silu>());
    case Activation::relu: return function(ActivationConstant<Activation::relu>());
  }
}

/// `pointer` as an array of T, from element `offset` on.
template <class T>
const T* at(const void* pointer, int64_t offset) {
  return static_cast<const T*>(pointer) + offset;
}
template <class T>
T* at(void* pointer, int64_t offset) {
  return static_cast<T*>(pointer) + offset;
}

}  // namespace STRATA_KERNELS_NAMESPACE
STRATA_KERNELS_AFTER
#endif
