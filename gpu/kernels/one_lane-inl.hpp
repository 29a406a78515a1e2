// The lane context of the host device: one lane does a whole row, in loops that the compiler vectorizes.
#if defined(STRATA_GPU_KERNELS_ONE_LANE_INL) == defined(HWY_TARGET_TOGGLE)
#ifdef STRATA_GPU_KERNELS_ONE_LANE_INL
#undef STRATA_GPU_KERNELS_ONE_LANE_INL
#else
#define STRATA_GPU_KERNELS_ONE_LANE_INL
#endif

#include "gpu/kernels/lanes.hpp"
#include "gpu/kernels/numbers-inl.hpp"

STRATA_KERNELS_BEFORE
namespace STRATA_KERNELS_NAMESPACE {

/// See gpu/kernels/lanes.hpp for what a lane context is. Sums go to 16 accumulators, element i to number i % 16, which are added as a
/// tree at the end: enough for the widest vectors, and the same order with every instruction set.
class OneLane {
 public:
  int lane() const { return 0; }
  int lanes() const { return 1; }

  template <class Function>
  void for_each(int64_t count, Function function) const {
    // An output may be an input: the same index, never another one.
#pragma GCC ivdep
    for (int64_t i = 0; i < count; ++i) function(i);
  }

  template <class Function>
  float sum(int64_t count, Function function) const {
    return accumulate<float>(count, function);
  }
  template <class Function>
  double ordered_sum(int64_t count, Function function) const {
    return accumulate<double>(count, function);
  }

  // Two passes over a row that the first one brought into the cache: the compiler makes poor code of one pass with both.
  template <class First, class Second>
  SumPair sum_pair(int64_t count, First first, Second second) const {
    return {sum(count, first), sum(count, second)};
  }

  template <class Function>
  float max(int64_t count, Function function) const {
    // On integers in the order of the numbers, whose maximum the compiler may take in any order, so vectorizes.
    const auto flip = [](uint32_t bits) { return static_cast<int32_t>(bits ^ ((0u - (bits >> 31)) & 0x7fffffffu)); };
    int32_t largest = flip(bits_of(-__builtin_inff()));
    for (int64_t i = 0; i < count; ++i) {
      const int32_t key = flip(bits_of(function(i)));
      largest = key > largest ? key : largest;
    }
    return float_of(static_cast<uint32_t>(flip(static_cast<uint32_t>(largest))));
  }

 private:
  static constexpr int kAccumulators = kOrderedSumAccumulators;

  template <class Number>
  static Number tree(Number* sums) {
    for (int width = kAccumulators / 2; width > 0; width /= 2) {
      for (int k = 0; k < width; ++k) sums[k] += sums[k + width];
    }
    return sums[0];
  }

  template <class Number, class Function>
  static Number accumulate(int64_t count, Function function) {
    Number sums[kAccumulators] = {};
    int64_t i = 0;
    for (; i + kAccumulators <= count; i += kAccumulators) {
      for (int k = 0; k < kAccumulators; ++k) sums[k] += function(i + k);
    }
    for (int k = 0; i + k < count; ++k) sums[k] += function(i + k);
    return tree(sums);
  }
};

}  // namespace STRATA_KERNELS_NAMESPACE
STRATA_KERNELS_AFTER
#endif
