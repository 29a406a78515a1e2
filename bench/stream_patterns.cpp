#include "bench/stream_patterns.hpp"

#include <type_traits>

#include "cpu_adam/formats.hpp"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "bench/stream_patterns.cpp"
#include <hwy/foreach_target.h>  // must come before highway.h
#include <hwy/cache_control.h>
#include <hwy/highway.h>

#include "cpu_adam/highway_before_1-inl.hpp"

HWY_BEFORE_NAMESPACE();
namespace strata::bench::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

constexpr uint64_t kLineBytes = 64;
constexpr uint64_t kBlockElements = 64;
constexpr uint64_t kPrefetchElements = 512;
// Vectors of as many elements as the update takes at once, of 32 or of 16 bits.
using Words = hn::CappedTag<uint32_t, 16>;
using Halves = hn::Rebind<uint16_t, Words>;
template <uint64_t kEach>
using Tag = std::conditional_t<kEach == 4, Words, Halves>;
template <uint64_t kEach>
using Vector = hn::Vec<Tag<kEach>>;

template <uint64_t kEach>
HWY_INLINE void prefetch_block(const void* array, uint64_t i) {
  const char* const from = static_cast<const char*>(array) + (i + kPrefetchElements) * kEach;
  for (uint64_t byte = 0; byte < kBlockElements * kEach; byte += kLineBytes) hwy::Prefetch(from + byte);
}

template <uint64_t kEach>
HWY_INLINE Vector<kEach> read(const void* array, uint64_t i) {
  return hn::LoadU(Tag<kEach>(), static_cast<const hn::TFromD<Tag<kEach>>*>(array) + i);
}

template <uint64_t kEach>
HWY_INLINE void write(Vector<kEach> value, void* array, uint64_t i) {
  hn::StoreU(value, Tag<kEach>(), static_cast<hn::TFromD<Tag<kEach>>*>(array) + i);
}

template <uint64_t kEach>
HWY_INLINE void mix(void* array, uint64_t i, Vector<kEach> with) {
  write<kEach>(hn::Xor(read<kEach>(array, i), with), array, i);
}

template <uint64_t kTo, uint64_t kFrom>
HWY_INLINE Vector<kTo> convert(Vector<kFrom> from) {
  if constexpr (kTo == kFrom) return from;
  if constexpr (kTo < kFrom) return hn::TruncateTo(Halves(), from);
  if constexpr (kTo > kFrom) return hn::PromoteTo(Words(), from);
}

template <class F>
void touch(const AdamTile& given) {
  const AdamTile tile = given;
  constexpr uint64_t kParameter = size_bytes(F::kParameter), kGradient = size_bytes(F::kGradient);
  constexpr uint64_t kMaster = F::kSplit ? 2 : 4;
  // Zero, but not to the compiler: the state keeps its values and no load can be left out.
  static volatile uint16_t zero = 0;
  const Vector<kGradient> mask = hn::Set(Tag<kGradient>(), zero);
  const uint64_t lanes = hn::Lanes(Words());
  for (uint64_t block = 0; block + kBlockElements <= tile.elements; block += kBlockElements) {
    prefetch_block<kGradient>(tile.gradient, block);
    prefetch_block<kParameter>(tile.parameter, block);
    if constexpr (F::kMaster != MasterFormat::parameter) prefetch_block<kMaster>(tile.master, block);
    prefetch_block<4>(tile.momentum, block);
    prefetch_block<4>(tile.variance, block);
    for (uint64_t i = block; i < block + kBlockElements; i += lanes) {
      const auto with = hn::And(read<kGradient>(tile.gradient, i), mask);
      mix<4>(tile.momentum, i, convert<4, kGradient>(with));
      mix<4>(tile.variance, i, convert<4, kGradient>(with));
      if constexpr (F::kMaster != MasterFormat::parameter) mix<kMaster>(tile.master, i, convert<kMaster, kGradient>(with));
      if constexpr (F::kMaster == MasterFormat::fp32)
        write<kParameter>(convert<kParameter, kGradient>(with), tile.parameter, i);
      else
        mix<kParameter>(tile.parameter, i, convert<kParameter, kGradient>(with));
    }
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
