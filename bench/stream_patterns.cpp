#include "bench/stream_patterns.hpp"

#include "cpu_adam/formats.hpp"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "bench/stream_patterns.cpp"
#include <hwy/foreach_target.h>  // must come before highway.h
#include <hwy/cache_control.h>
#include <hwy/highway.h>

HWY_BEFORE_NAMESPACE();
namespace strata::bench::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

constexpr uint64_t kLineBytes = 64;
constexpr uint64_t kBlockElements = 64;
constexpr uint64_t kPrefetchElements = 512;
using Bytes = hn::CappedTag<uint8_t, kLineBytes>;
using Vector = hn::Vec<Bytes>;

template <uint64_t kEach>
HWY_INLINE void prefetch_block(const void* array, uint64_t i) {
  const char* const from = static_cast<const char*>(array) + (i + kPrefetchElements) * kEach;
  for (uint64_t byte = 0; byte < kBlockElements * kEach; byte += kLineBytes) hwy::Prefetch(from + byte);
}

template <uint64_t kEach>
HWY_INLINE Vector read_block(const void* array, uint64_t i) {
  const Bytes d;
  auto sum = hn::Zero(d);
  for (uint64_t byte = 0; byte < kBlockElements * kEach; byte += hn::Lanes(d))
    sum = hn::Or(sum, hn::LoadU(d, static_cast<const uint8_t*>(array) + i * kEach + byte));
  return sum;
}

template <uint64_t kEach>
HWY_INLINE void mix_block(void* array, uint64_t i, Vector with) {
  const Bytes d;
  for (uint64_t byte = 0; byte < kBlockElements * kEach; byte += hn::Lanes(d)) {
    uint8_t* const at = static_cast<uint8_t*>(array) + i * kEach + byte;
    hn::StoreU(hn::Xor(hn::LoadU(d, at), with), d, at);
  }
}

template <uint64_t kEach>
HWY_INLINE void write_block(void* array, uint64_t i, Vector value) {
  const Bytes d;
  for (uint64_t byte = 0; byte < kBlockElements * kEach; byte += hn::Lanes(d))
    hn::StoreU(value, d, static_cast<uint8_t*>(array) + i * kEach + byte);
}

template <class F>
void touch(const AdamTile& given) {
  const AdamTile tile = given;
  constexpr uint64_t kParameter = size_bytes(F::kParameter), kGradient = size_bytes(F::kGradient);
  constexpr uint64_t kMaster = F::kSplit ? 2 : 4;
  // Zero, but not to the compiler: the state keeps its values and no load can be left out.
  static volatile uint8_t zero = 0;
  const Vector mask = hn::Set(Bytes(), zero);
  for (uint64_t i = 0; i + kBlockElements <= tile.elements; i += kBlockElements) {
    prefetch_block<kGradient>(tile.gradient, i);
    prefetch_block<kParameter>(tile.parameter, i);
    if constexpr (F::kMaster != MasterFormat::parameter) prefetch_block<kMaster>(tile.master, i);
    prefetch_block<4>(tile.momentum, i);
    prefetch_block<4>(tile.variance, i);
    const Vector with = hn::And(read_block<kGradient>(tile.gradient, i), mask);
    mix_block<4>(tile.momentum, i, with);
    mix_block<4>(tile.variance, i, with);
    if constexpr (F::kMaster != MasterFormat::parameter) mix_block<kMaster>(tile.master, i, with);
    if constexpr (F::kMaster == MasterFormat::fp32)
      write_block<kParameter>(tile.parameter, i, with);
    else
      mix_block<kParameter>(tile.parameter, i, with);
  }
}

void touch_tile(const AdamTile& tile) {
  cpu_adam::with_formats(tile, [&](auto formats) { touch<decltype(formats)>(tile); });
}

}  // namespace strata::bench::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace strata::bench {
HWY_EXPORT(touch_tile);
void touch_streams(const AdamTile& tile) { HWY_DYNAMIC_DISPATCH(touch_tile)(tile); }
}  // namespace strata::bench
#endif
