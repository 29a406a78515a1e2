#include "cpu_adam/kernels.hpp"

#include "cpu_adam/formats.hpp"

// This file is compiled once for every instruction set: foreach_target.h includes it again for each.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "cpu_adam/kernels.cpp"
#include <hwy/foreach_target.h>  // must come before highway.h
#include <hwy/cache_control.h>
#include <hwy/highway.h>

#include "cpu_adam/highway_before_1-inl.hpp"

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

/// a > b, lane by lane, for words below 2^31 (signed comparison is the cheap one).
HWY_INLINE hn::Mask<Words> greater(WordVector a, WordVector b) {
  return hn::RebindMask(Words(), hn::Gt(hn::BitCast(Integers(), a), hn::BitCast(Integers(), b)));
}

// Masters are moved two vectors at a time, `low` and `high`, as two of 32-bit numbers make one of 16-bit ones. In order, low has the first
// elements; woven, each half of low has four elements, and the same half of high the four that follow them. (No struct of two: the
// vectors of some instruction sets have no size.)

HWY_INLINE void load_ordered(const float* from, FloatVector& low, FloatVector& high) {
  low = hn::LoadU(Floats(), from);
  high = hn::LoadU(Floats(), from + hn::Lanes(Floats()));
}
HWY_INLINE void store_ordered(FloatVector low, FloatVector high, float* to) {
  hn::StoreU(low, Floats(), to);
  hn::StoreU(high, Floats(), to + hn::Lanes(Floats()));
}

#if HWY_TARGET == HWY_AVX2
// A register is two halves of 128 bits, and what crosses them, as every conversion between 16 and 32 bits in order does, is slow and runs
// on the pipe that divides. So masters in two 16-bit parts are worked on woven, and rounded as 16-bit numbers.

HWY_INLINE FloatVector load_bf16(const uint16_t* from) {  // each half gets all eight and picks its four
  const __m256i all = _mm256_broadcastsi128_si256(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from)));
  const __m256i places = _mm256_setr_epi8(-1, -1, 0, 1, -1, -1, 2, 3, -1, -1, 4, 5, -1, -1, 6, 7,  //
                                          -1, -1, 8, 9, -1, -1, 10, 11, -1, -1, 12, 13, -1, -1, 14, 15);
  return FloatVector{_mm256_castsi256_ps(_mm256_shuffle_epi8(all, places))};
}

HWY_INLINE FloatVector load_woven(const float* at) {
  return FloatVector{_mm256_insertf128_ps(_mm256_castps128_ps256(_mm_loadu_ps(at)), _mm_loadu_ps(at + 8), 1)};
}
/// Numbers in the order in which load_split has masters: woven.
HWY_INLINE void load_for_split(const float* from, FloatVector& low, FloatVector& high) {
  low = load_woven(from);
  high = load_woven(from + 4);
}

HWY_INLINE void load_split(const uint16_t* upper, const uint16_t* remainder, FloatVector& low, FloatVector& high) {
  const __m256i lower = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(remainder));
  const __m256i rounded = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(upper));
  // A remainder of 0x8000 or more means that the upper half was rounded up by one.
  const __m256i exact = _mm256_add_epi16(rounded, _mm256_srai_epi16(lower, 15));
  low = FloatVector{_mm256_castsi256_ps(_mm256_unpacklo_epi16(lower, exact))};
  high = FloatVector{_mm256_castsi256_ps(_mm256_unpackhi_epi16(lower, exact))};
}

struct SplitHalves {
  __m256i upper, remainder;  // in order where the pair is woven
};
HWY_INLINE SplitHalves split(FloatVector first, FloatVector second) {
  const __m256i places = _mm256_setr_epi8(0, 1, 4, 5, 8, 9, 12, 13, 2, 3, 6, 7, 10, 11, 14, 15,  //
                                          0, 1, 4, 5, 8, 9, 12, 13, 2, 3, 6, 7, 10, 11, 14, 15);
  const __m256i low = _mm256_shuffle_epi8(_mm256_castps_si256(first.raw), places);
  const __m256i high = _mm256_shuffle_epi8(_mm256_castps_si256(second.raw), places);
  const __m256i remainder = _mm256_unpacklo_epi64(low, high), upper = _mm256_unpackhi_epi64(low, high);
  // Rounded up in magnitude, unless it is a NaN; the result of an operation, so a quiet one.
  const __m256i is_nan = _mm256_cmpgt_epi16(_mm256_and_si256(upper, _mm256_set1_epi16(0x7fff)), _mm256_set1_epi16(0x7f80));
  return {_mm256_add_epi16(upper, _mm256_srli_epi16(_mm256_andnot_si256(is_nan, remainder), 15)), remainder};
}

HWY_INLINE void store_split(FloatVector low, FloatVector high, uint16_t* upper, uint16_t* remainder) {
  const SplitHalves halves = split(low, high);
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(upper), halves.upper);
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(remainder), halves.remainder);
}

HWY_INLINE void store_bf16(FloatVector low, FloatVector high, uint16_t* to) {  // in order
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(to), _mm256_permute4x64_epi64(split(low, high).upper, 0xd8));
}
#else
HWY_INLINE WordVector load_words(const uint16_t* from) { return hn::PromoteTo(Words(), hn::LoadU(Halves(), from)); }
HWY_INLINE void store_words(WordVector low, WordVector high, uint16_t* to) {
  hn::StoreU(hn::TruncateTo(Halves(), low), Halves(), to);
  hn::StoreU(hn::TruncateTo(Halves(), high), Halves(), to + hn::Lanes(Words()));
}

HWY_INLINE FloatVector load_bf16(const uint16_t* from) { return hn::BitCast(Floats(), hn::ShiftLeft<16>(load_words(from))); }

HWY_INLINE void load_for_split(const float* from, FloatVector& low, FloatVector& high) { load_ordered(from, low, high); }

HWY_INLINE FloatVector join(WordVector upper, WordVector remainder) {
  // The top bit of the remainder, moved up by one, is the unit by which the upper half was rounded up.
  const auto carry = hn::ShiftLeft<1>(hn::And(remainder, hn::Set(Words(), 0x8000u)));
  return hn::BitCast(Floats(), hn::Or(hn::Sub(hn::ShiftLeft<16>(upper), carry), remainder));
}
HWY_INLINE void load_split(const uint16_t* upper, const uint16_t* remainder, FloatVector& low, FloatVector& high) {
  const uint64_t lanes = hn::Lanes(Words());
  low = join(load_words(upper), load_words(remainder));
  high = join(load_words(upper + lanes), load_words(remainder + lanes));
}

/// Of the result of an operation: a NaN among those is quiet already.
HWY_INLINE WordVector bf16_from(FloatVector value) {
  const Words d;
  const auto is_number = hn::RebindMask(d, hn::Eq(value, value));
  return hn::ShiftRight<16>(hn::Add(hn::BitCast(d, value), hn::IfThenElseZero(is_number, hn::Set(d, 0x8000u))));
}
HWY_INLINE void store_bf16(FloatVector low, FloatVector high, uint16_t* to) { store_words(bf16_from(low), bf16_from(high), to); }

HWY_INLINE void store_split(FloatVector low, FloatVector high, uint16_t* upper, uint16_t* remainder) {
  const Words d;
  const auto mask = hn::Set(d, 0xffffu);
  store_bf16(low, high, upper);
  store_words(hn::And(hn::BitCast(d, low), mask), hn::And(hn::BitCast(d, high), mask), remainder);
}
#endif

#if HWY_ARCH_X86 && HWY_TARGET <= HWY_AVX2
// These processors convert in one instruction, by the rules of core/dtype.hpp.
HWY_INLINE void store_f16(FloatVector low, FloatVector high, uint16_t* to) {
  const hn::Rebind<hwy::float16_t, Floats> d;
  hn::StoreU(hn::BitCast(Halves(), hn::DemoteTo(d, low)), Halves(), to);
  hn::StoreU(hn::BitCast(Halves(), hn::DemoteTo(d, high)), Halves(), to + hn::Lanes(Floats()));
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

HWY_INLINE void store_f16(FloatVector low, FloatVector high, uint16_t* to) { store_words(f16_from(low), f16_from(high), to); }

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
    if constexpr (kDType == DType::bf16) return load_bf16(from);
    if constexpr (kDType == DType::f16) return load_f16(from);
  }
}

// The operations of update_element, in its order, in three stages with a number an element between them. Square root and division take
// long; they overlap with other work only as far as a processor's queues reach, so the chains of dependent operations are kept short:
// every stage runs a block behind the one before, and all three side by side.

/// Moments, and the denominators of the step.
template <class F>
HWY_INLINE void update_moments(const AdamTile& tile, uint64_t i, float* denominators) {
  const Floats d;
  const AdamStep& step = tile.step;
  const auto g = hn::Mul(load_floats<F::kGradient>(tile.gradient, i), hn::Set(d, step.gradient_scale));
  const auto m = hn::Add(hn::Mul(hn::LoadU(d, tile.momentum + i), hn::Set(d, step.beta1)),
                         hn::Mul(g, hn::Set(d, step.one_minus_beta1)));
  const auto v = hn::Add(hn::Mul(hn::LoadU(d, tile.variance + i), hn::Set(d, step.beta2)),
                         hn::Mul(hn::Mul(g, g), hn::Set(d, step.one_minus_beta2)));
  hn::StoreU(m, d, tile.momentum + i);
  hn::StoreU(v, d, tile.variance + i);
  const auto root = hn::Mul(hn::Sqrt(v), hn::Set(d, step.inverse_sqrt_correction2));
  hn::Store(hn::Add(root, hn::Set(d, step.epsilon)), d, denominators);
}

/// Denominators become the amounts by which the masters move.
HWY_INLINE void divide(const AdamTile& tile, uint64_t i, float* between) {
  const Floats d;
  const auto quotient = hn::Div(hn::LoadU(d, tile.momentum + i), hn::Load(d, between));
  hn::Store(hn::Mul(hn::Set(d, tile.step.step_size), quotient), d, between);
}

/// Two vectors of masters.
template <class F>
HWY_INLINE void move_masters(const AdamTile& tile, uint64_t i, const float* amounts) {
  const auto decay = hn::Set(Floats(), tile.step.decay);
  [[maybe_unused]] auto* const halves = static_cast<uint16_t*>(tile.parameter) + i;
  FloatVector low, high, low_amount, high_amount;
  if constexpr (F::kSplit) {
    auto* const remainders = static_cast<uint16_t*>(tile.master) + i;
    load_split(halves, remainders, low, high);
    load_for_split(amounts, low_amount, high_amount);
    store_split(hn::Sub(hn::Mul(low, decay), low_amount), hn::Sub(hn::Mul(high, decay), high_amount), halves, remainders);
  } else {
    auto* const floats = static_cast<float*>(F::kMaster == MasterFormat::fp32 ? tile.master : tile.parameter) + i;
    load_ordered(floats, low, high);
    load_ordered(amounts, low_amount, high_amount);
    low = hn::Sub(hn::Mul(low, decay), low_amount);
    high = hn::Sub(hn::Mul(high, decay), high_amount);
    store_ordered(low, high, floats);
    if constexpr (F::kParameter == DType::bf16) store_bf16(low, high, halves);
    if constexpr (F::kParameter == DType::f16) store_f16(low, high, halves);
  }
}

template <uint64_t kBytesEach>
HWY_INLINE void prefetch_block(const void* array, uint64_t i) {
  // An address past the end is harmless: a prefetch never faults.
  const char* const from = static_cast<const char*>(array) + (i + kPrefetchElements) * kBytesEach;
  for (uint64_t byte = 0; byte < kBlockElements * kBytesEach; byte += 64) hwy::Prefetch(from + byte);
}

/// The stages of blocks i, i - kBlockElements and i - 2 * kBlockElements, as many of them as there are.
template <class F, bool kFirst, bool kSecond, bool kThird>
HWY_INLINE void run_stages(const AdamTile& tile, uint64_t i, float* buffers) {
  const uint64_t lanes = hn::Lanes(Floats());
  const auto buffer = [&](uint64_t element) HWY_ATTR { return buffers + element % (4 * kBlockElements); };
  for (uint64_t j = i; j < i + kBlockElements; j += 2 * lanes) {
    if constexpr (kFirst) update_moments<F>(tile, j, buffer(j));
    if constexpr (kSecond) divide(tile, j - kBlockElements, buffer(j - kBlockElements));
    if constexpr (kFirst) update_moments<F>(tile, j + lanes, buffer(j + lanes));
    if constexpr (kSecond) divide(tile, j + lanes - kBlockElements, buffer(j + lanes - kBlockElements));
    if constexpr (kThird) move_masters<F>(tile, j - 2 * kBlockElements, buffer(j - 2 * kBlockElements));
  }
}

template <class F>
void update_formats(const AdamTile& given) {
  const AdamTile tile = given;  // a copy that no store can alias, so that its fields stay in registers
  const uint64_t end = tile.elements / kBlockElements * kBlockElements;
  HWY_ALIGN float buffers[4 * kBlockElements];
  for (uint64_t i = 0; end > 0 && i < end + 2 * kBlockElements; i += kBlockElements) {
    if (i >= 2 * kBlockElements && i < end) {
      prefetch_block<size_bytes(F::kGradient)>(tile.gradient, i);
      prefetch_block<size_bytes(F::kParameter)>(tile.parameter, i);
      if constexpr (F::kMaster != MasterFormat::parameter) prefetch_block<F::kSplit ? 2 : 4>(tile.master, i);
      prefetch_block<4>(tile.momentum, i);
      prefetch_block<4>(tile.variance, i);
      run_stages<F, true, true, true>(tile, i, buffers);
      continue;
    }
    if (i < end) run_stages<F, true, false, false>(tile, i, buffers);
    if (i >= kBlockElements && i < end + kBlockElements) run_stages<F, false, true, false>(tile, i, buffers);
    if (i >= 2 * kBlockElements) run_stages<F, false, false, true>(tile, i, buffers);
  }
  for (uint64_t i = end; i < tile.elements; ++i) update_element<F>(tile, i);
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
