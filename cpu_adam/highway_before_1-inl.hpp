// What Highway lacks before version 1.0. Compiled once for every instruction set.
#if defined(STRATA_CPU_ADAM_HIGHWAY_BEFORE_1_INL) == defined(HWY_TARGET_TOGGLE)
#ifdef STRATA_CPU_ADAM_HIGHWAY_BEFORE_1_INL
#undef STRATA_CPU_ADAM_HIGHWAY_BEFORE_1_INL
#else
#define STRATA_CPU_ADAM_HIGHWAY_BEFORE_1_INL
#endif

#include <hwy/highway.h>

#if HWY_MAJOR < 1
HWY_BEFORE_NAMESPACE();
namespace hwy::HWY_NAMESPACE {

/// The lower halves of words.
template <class Halves, class Words>
HWY_INLINE Vec<Halves> TruncateTo(Halves halves, Words words) {
  const Rebind<uint32_t, Halves> unsigned_words;
  const Rebind<int32_t, Halves> signed_words;
  return DemoteTo(halves, BitCast(signed_words, And(words, Set(unsigned_words, 0xffffu))));
}

}  // namespace hwy::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
#endif
#endif
