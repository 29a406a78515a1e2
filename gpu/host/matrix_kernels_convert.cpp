#include "gpu/host/matrix_kernels_convert.hpp"

#include "gpu/host/parallel.hpp"

#define HWY_DISABLED_TARGETS (HWY_AVX3 - 1)  // variants of AVX-512, which would add nothing here
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "gpu/host/matrix_kernels_convert.cpp"
#include <hwy/foreach_target.h>

#include "gpu/host/convert-inl.hpp"

HWY_BEFORE_NAMESPACE();
namespace strata::gpu::HWY_NAMESPACE {

template <DType dtype>
void widen_part(const void* from, float* to, int64_t first, int64_t last) {
  const hn::ScalableTag<float> d;
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(d));
  int64_t i = first;
  for (; i + lanes <= last; i += lanes) hn::StoreU(load_widened<dtype>(d, from, i), d, to + i);
  for (; i < last; ++i) to[i] = load_one<dtype>(from, i);
}

template <DType dtype>
void narrow_part(const float* from, void* to, int64_t first, int64_t last) {
  const hn::ScalableTag<float> d;
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(d));
  int64_t i = first;
  for (; i + lanes <= last; i += lanes) store_narrowed<dtype>(d, hn::LoadU(d, from + i), to, i);
  for (; i < last; ++i) store_one<dtype>(from[i], to, i);
}

void WidenPart(DType dtype, const void* from, float* to, int64_t first, int64_t last) {
  switch (dtype) {
    case DType::f32: return widen_part<DType::f32>(from, to, first, last);
    case DType::bf16: return widen_part<DType::bf16>(from, to, first, last);
    case DType::f16: return widen_part<DType::f16>(from, to, first, last);
  }
}

void NarrowPart(DType dtype, const float* from, void* to, int64_t first, int64_t last) {
  switch (dtype) {
    case DType::f32: return narrow_part<DType::f32>(from, to, first, last);
    case DType::bf16: return narrow_part<DType::bf16>(from, to, first, last);
    case DType::f16: return narrow_part<DType::f16>(from, to, first, last);
  }
}

}  // namespace strata::gpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace strata::gpu {
namespace {

HWY_EXPORT(WidenPart);
HWY_EXPORT(NarrowPart);

constexpr int64_t kGrain = 1 << 12;  // elements; worth a thread of its own

}  // namespace

void widen(DType dtype, const void* from, float* to, int64_t elements) {
  const auto part = HWY_DYNAMIC_DISPATCH(WidenPart);
  parallel_for(elements, kGrain, [&](int64_t first, int64_t last) { part(dtype, from, to, first, last); });
}

void narrow(DType dtype, const float* from, void* to, int64_t elements) {
  const auto part = HWY_DYNAMIC_DISPATCH(NarrowPart);
  parallel_for(elements, kGrain, [&](int64_t first, int64_t last) { part(dtype, from, to, first, last); });
}

}  // namespace strata::gpu
#endif
