#include "cpu_adam/kernels.hpp"

#include "cpu_adam/formats.hpp"

// This file is compiled once for every instruction set: foreach_target.h includes it again for each.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "cpu_adam/kernels.cpp"
#include <hwy/foreach_target.h>  // must come before highway.h
#include <hwy/cache_control.h>
#include <hwy/highway.h>

HWY_BEFORE_NAMESPACE();
namespace strata::cpu_adam::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

// At most 16 lanes, so that a block of 64 elements is a whole number of vectors everywhere.
using Floats = hn::CappedTag<float, 16>;
using Words = hn::RebindToUnsigned<Floats>;
using Integers = hn::RebindToSigned<Floats>;
using Halves = hn::Rebind<uint16_t, Floats>;
using FloatVector = hn::Vec<Floats>;
using WordVector = hn::Vec<Words>;

constexpr uint64_t kBlockElements = 64;
// How far ahead of the loads memory is asked for: 2 KiB of a fp32 array. Hardware prefetchers alone leave a tenth of the
// bandwidth of seven streams unused.
constexpr uint64_t kPrefetchElements = 512;

HWY_INLINE WordVector load_words(const uint16_t* from) { return hn::PromoteTo(Words(), hn::LoadU(Halves(), from)); }
HWY_INLINE void store_words(WordVector words, uint16_t* to) { hn::StoreU(hn::TruncateTo(Halves(), words), Halves(), to); }

/// a > b, lane by lane, for words below 2^31 (signed comparison is the cheap one).
HWY_INLINE hn::Mask<Words> greater(WordVector a, WordVector b) {
  return hn::RebindMask(Words(), hn::Gt(hn::BitCast(Integers(), a), hn::BitCast(Integers(), b)));
}

HWY_INLINE WordVector bf16_from(FloatVector value) {
  const Words d;
  const auto bits = hn::BitCast(d, value);
  const auto is_nan = greater(hn::And(bits, hn::Set(d, 0x7fffffffu)), hn::Set(d, 0x7f800000u));
  const auto quiet = hn::Or(hn::ShiftRight<16>(bits), hn::Set(d, 0x40u));
  return hn::IfThenElse(is_nan, quiet, hn::ShiftRight<16>(hn::Add(bits, hn::Set(d, 0x8000u))));
}

#if HWY_TARGET == HWY_AVX2 || HWY_TARGET == HWY_AVX3
// These processors convert in one instruction, by the rules of core/dtype.hpp.
HWY_INLINE WordVector f16_from(FloatVector value) {
  return hn::PromoteTo(Words(), hn::BitCast(Halves(), hn::DemoteTo(hn::Rebind<hwy::float16_t, Floats>(), value)));
}
HWY_INLINE FloatVector load_f16(const uint16_t* from) {
  return hn::PromoteTo(Floats(), hn::BitCast(hn::Rebind<hwy::float16_t, Floats>(), hn::LoadU(Halves(), from)));
}
#else
HWY_INLINE WordVector f16_from(FloatVector value) {
  const Words d;
  const auto bits = hn::BitCast(d, value);
  const auto magnitude = hn::And(bits, hn::Set(d, 0x7fffffffu));
  const auto sign = hn::And(hn::ShiftRight<16>(bits), hn::Set(d, 0x8000u));
  const auto kept = hn::ShiftRight<13>(magnitude);
  const auto nan = hn::Or(hn::Set(d, 0x7e00u), hn::And(kept, hn::Set(d, 0x1ffu)));
  const auto shifted = hn::Add(hn::BitCast(Floats(), magnitude), hn::Set(Floats(), 0.5f));
  const auto subnormal = hn::Sub(hn::BitCast(d, shifted), hn::Set(d, 0x3f000000u));
  const auto rounded = hn::Add(hn::Add(magnitude, hn::Set(d, 0xfffu)), hn::And(kept, hn::Set(d, 1u)));
  auto result = hn::ShiftRight<13>(hn::Sub(rounded, hn::Set(d, 0x38000000u)));
  result = hn::IfThenElse(greater(hn::Set(d, 0x38800000u), magnitude), subnormal, result);
  result = hn::IfThenElse(greater(magnitude, hn::Set(d, 0x477fefffu)), hn::Set(d, 0x7c00u), result);
  result = hn::IfThenElse(greater(magnitude, hn::Set(d, 0x7f800000u)), nan, result);
  return hn::Or(sign, result);
}

HWY_INLINE FloatVector float_from_f16_words(WordVector half) {
  const Words d;
  const auto magnitude = hn::And(half, hn::Set(d, 0x7fffu));
  const auto sign = hn::ShiftLeft<16>(hn::And(half, hn::Set(d, 0x8000u)));
  const auto shifted = hn::ShiftLeft<13>(magnitude);
  const auto whole = hn::ConvertTo(Floats(), hn::BitCast(Integers(), magnitude));
  const auto subnormal = hn::BitCast(d, hn::Mul(whole, hn::Set(Floats(), 0x1p-24f)));
  auto result = hn::Add(shifted, hn::Set(d, 0x38000000u));
  result = hn::IfThenElse(greater(hn::Set(d, 0x0400u), magnitude), subnormal, result);
  result = hn::IfThenElse(greater(magnitude, hn::Set(d, 0x7bffu)), hn::Or(shifted, hn::Set(d, 0x7f800000u)), result);
  return hn::BitCast(Floats(), hn::Or(sign, result));
}
HWY_INLINE FloatVector load_f16(const uint16_t* from) { return float_from_f16_words(load_words(from)); }
#endif

template <DType kDType>
HWY_INLINE FloatVector load_floats(const void* array, uint64_t i) {
  if constexpr (kDType == DType::f32) {
    return hn::LoadU(Floats(), static_cast<const float*>(array) + i);
  } else {
    const auto* const from = static_cast<const uint16_t*>(array) + i;
    if constexpr (kDType == DType::bf16) return hn::BitCast(Floats(), hn::ShiftLeft<16>(load_words(from)));
    if constexpr (kDType == DType::f16) return load_f16(from);
  }
}

template <class F>
HWY_INLINE FloatVector load_master(const AdamTile& tile, uint64_t i) {
  if constexpr (F::kSplit) {
    const auto upper = hn::ShiftLeft<16>(load_words(static_cast<const uint16_t*>(tile.parameter) + i));
    const auto remainder = load_words(static_cast<const uint16_t*>(tile.master) + i);
    // The top bit of the remainder, moved up by one, is the unit by which the upper half was rounded up.
    const auto carry = hn::ShiftLeft<1>(hn::And(remainder, hn::Set(Words(), 0x8000u)));
    return hn::BitCast(Floats(), hn::Or(hn::Sub(upper, carry), remainder));
  } else {
    return load_floats<DType::f32>(F::kMaster == MasterFormat::fp32 ? tile.master : tile.parameter, i);
  }
}

template <class F>
HWY_INLINE void store_master(FloatVector p, const AdamTile& tile, uint64_t i) {
  if constexpr (F::kMaster == MasterFormat::parameter) {
    hn::StoreU(p, Floats(), static_cast<float*>(tile.parameter) + i);
  } else {
    store_words(F::kParameter == DType::bf16 ? bf16_from(p) : f16_from(p), static_cast<uint16_t*>(tile.parameter) + i);
    if constexpr (F::kSplit)
      store_words(hn::And(hn::BitCast(Words(), p), hn::Set(Words(), 0xffffu)), static_cast<uint16_t*>(tile.master) + i);
    else
      hn::StoreU(p, Floats(), static_cast<float*>(tile.master) + i);
  }
}

/// The operations of update_element, in its order, on a vector of elements from i.
template <class F>
HWY_INLINE void update_vector(const AdamTile& tile, uint64_t i) {
  const Floats d;
  const AdamStep& step = tile.step;
  const auto g = hn::Mul(load_floats<F::kGradient>(tile.gradient, i), hn::Set(d, step.gradient_scale));
  const auto p = hn::Mul(load_master<F>(tile, i), hn::Set(d, step.decay));
  const auto m = hn::Add(hn::Mul(hn::LoadU(d, tile.momentum + i), hn::Set(d, step.beta1)),
                         hn::Mul(g, hn::Set(d, step.one_minus_beta1)));
  const auto v = hn::Add(hn::Mul(hn::LoadU(d, tile.variance + i), hn::Set(d, step.beta2)),
                         hn::Mul(hn::Mul(g, g), hn::Set(d, step.one_minus_beta2)));
  const auto denominator = hn::Add(hn::Mul(hn::Sqrt(v), hn::Set(d, step.inverse_sqrt_correction2)),
                                   hn::Set(d, step.epsilon));
  hn::StoreU(m, d, tile.momentum + i);
  hn::StoreU(v, d, tile.variance + i);
  store_master<F>(hn::Sub(p, hn::Mul(hn::Set(d, step.step_size), hn::Div(m, denominator))), tile, i);
}

template <uint64_t kBytesEach>
HWY_INLINE void prefetch_block(const void* array, uint64_t i) {
  // An address past the end is harmless: a prefetch never faults.
  const char* const from = static_cast<const char*>(array) + (i + kPrefetchElements) * kBytesEach;
  for (uint64_t byte = 0; byte < kBlockElements * kBytesEach; byte += 64) hwy::Prefetch(from + byte);
}

template <class F>
void update_formats(const AdamTile& given) {
  const AdamTile tile = given;  // a copy that no store can alias, so that its fields stay in registers
  const uint64_t lanes = hn::Lanes(Floats());
  uint64_t i = 0;
  for (; i + kBlockElements <= tile.elements; i += kBlockElements) {
    prefetch_block<size_bytes(F::kGradient)>(tile.gradient, i);
    prefetch_block<size_bytes(F::kParameter)>(tile.parameter, i);
    if constexpr (F::kMaster != MasterFormat::parameter) prefetch_block<F::kSplit ? 2 : 4>(tile.master, i);
    prefetch_block<4>(tile.momentum, i);
    prefetch_block<4>(tile.variance, i);
    for (uint64_t j = 0; j < kBlockElements; j += lanes) update_vector<F>(tile, i + j);
  }
  for (; i + lanes <= tile.elements; i += lanes) update_vector<F>(tile, i);
  for (; i < tile.elements; ++i) update_element<F>(tile, i);
}

void update_tile(const AdamTile& tile) {
  with_formats(tile, [&](auto formats) { update_formats<decltype(formats)>(tile); });
}

const char* target_name() { return hwy::TargetName(HWY_TARGET); }

}  // namespace strata::cpu_adam::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace strata::cpu_adam {

HWY_EXPORT(update_tile);
HWY_EXPORT(target_name);

void update_vectorized(const AdamTile& tile) { HWY_DYNAMIC_DISPATCH(update_tile)(tile); }
const char* vector_instruction_set() { return HWY_DYNAMIC_DISPATCH(target_name)(); }

}  // namespace strata::cpu_adam
#endif
