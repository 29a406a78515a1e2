// Vector conversions between fp32 and the compute dtypes for the host kernels, compiled once for every instruction set.
#if defined(STRATA_GPU_HOST_CONVERT_INL) == defined(HWY_TARGET_TOGGLE)
#ifdef STRATA_GPU_HOST_CONVERT_INL
#undef STRATA_GPU_HOST_CONVERT_INL
#else
#define STRATA_GPU_HOST_CONVERT_INL
#endif

#include <hwy/highway.h>

#include "core/dtype.hpp"

HWY_BEFORE_NAMESPACE();
namespace strata::gpu::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

/// Lanes(d) elements of `from`, widened.
template <DType dtype, class D>
HWY_INLINE hn::Vec<D> load_widened(D d, const void* from, size_t index) {
  if constexpr (dtype == DType::f32) {
    return hn::LoadU(d, static_cast<const float*>(from) + index);
  } else if constexpr (dtype == DType::bf16) {
    const hn::Rebind<uint16_t, D> d16;
    const hn::RebindToUnsigned<D> d32;
    const auto bits = hn::PromoteTo(d32, hn::LoadU(d16, static_cast<const uint16_t*>(from) + index));
    return hn::BitCast(d, hn::ShiftLeft<16>(bits));
  } else {
    const hn::Rebind<hwy::float16_t, D> d16;
    return hn::PromoteTo(d, hn::LoadU(d16, static_cast<const hwy::float16_t*>(from) + index));
  }
}

/// Lanes(d) elements, rounded as core/dtype.hpp rounds (a NaN's payload may differ).
template <DType dtype, class D>
HWY_INLINE void store_narrowed(D d, hn::Vec<D> value, void* to, size_t index) {
  if constexpr (dtype == DType::f32) {
    hn::StoreU(value, d, static_cast<float*>(to) + index);
  } else if constexpr (dtype == DType::bf16) {
    const hn::Rebind<uint16_t, D> d16;
    const hn::RebindToUnsigned<D> d32;
    const auto bits = hn::BitCast(d32, value);
    const auto rounded = hn::ShiftRight<16>(hn::Add(bits, hn::Set(d32, 0x8000u)));
    const auto nan = hn::Or(hn::ShiftRight<16>(bits), hn::Set(d32, 0x40u));
    const auto is_nan = hn::Gt(hn::And(bits, hn::Set(d32, 0x7fffffffu)), hn::Set(d32, 0x7f800000u));
    const hn::RebindToSigned<D> s32;
    // Both are below 65536, so the saturating demotion is exact.
    hn::StoreU(hn::DemoteTo(d16, hn::BitCast(s32, hn::IfThenElse(is_nan, nan, rounded))), d16, static_cast<uint16_t*>(to) + index);
  } else {
    const hn::Rebind<hwy::float16_t, D> d16;
    hn::StoreU(hn::DemoteTo(d16, value), d16, static_cast<hwy::float16_t*>(to) + index);
  }
}

/// One element of either form.
template <DType dtype>
HWY_INLINE float load_one(const void* from, size_t index) {
  if constexpr (dtype == DType::f32) return static_cast<const float*>(from)[index];
  else return float_from_half(dtype, static_cast<const uint16_t*>(from)[index]);
}
template <DType dtype>
HWY_INLINE void store_one(float value, void* to, size_t index) {
  if constexpr (dtype == DType::f32) static_cast<float*>(to)[index] = value;
  else static_cast<uint16_t*>(to)[index] = half_from_float(dtype, value);
}

}  // namespace strata::gpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
#endif
