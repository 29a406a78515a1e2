// Every implementation of the update gives the bits of the scalar reference: every format, instruction set, size, split and
// thread count, for ordinary and for special values.
#include <gtest/gtest.h>
#include <hwy/highway.h>
#include <stdlib.h>

#include <algorithm>
#include <cfenv>
#include <functional>
#include <optional>

#include "core/error.hpp"
#include "core/topology.hpp"
#include "cpu_adam/adam.hpp"
#include "tests/cpu_adam/tile_state.hpp"

#if defined(__x86_64__)
#include <xmmintrin.h>
#endif

namespace strata {
namespace {

using test::all_formats;
using test::FormatCase;
using test::TileState;

constexpr uint64_t kSeed = 20260114;

AdamStep ordinary_step() {
  return AdamStep::make({.beta1 = 0.9, .beta2 = 0.95, .epsilon = 1e-8, .weight_decay = 0.1}, 3, 1e-3, 0.7);
}

/// Runs the rest of the scope with one instruction set.
class WithTarget {
 public:
  explicit WithTarget(int64_t target) {
    hwy::SetSupportedTargetsForTest(target);
    hwy::GetChosenTarget().Update(hwy::SupportedTargets());
  }
  ~WithTarget() {
    hwy::SetSupportedTargetsForTest(0);
    hwy::GetChosenTarget().Update(hwy::SupportedTargets());
  }
};

std::vector<int64_t> targets() {
  std::vector<int64_t> list;
  for (int64_t left = hwy::SupportedTargets() & HWY_TARGETS; left != 0; left &= left - 1) list.push_back(left & -left);
  return list;
}

void for_every_target(const std::function<void()>& body) {
  for (const int64_t target : targets()) {
    const WithTarget with(target);
    SCOPED_TRACE(AdamUpdater::instruction_set());
    EXPECT_EQ(AdamUpdater::instruction_set(), hwy::TargetName(target));
    body();
  }
}

class AdamBits : public testing::TestWithParam<FormatCase> {};
INSTANTIATE_TEST_SUITE_P(Formats, AdamBits, testing::ValuesIn(all_formats()),
                         [](const auto& info) { return info.param.name(); });

TEST_P(AdamBits, EverySizeOnEveryInstructionSetEqualsTheScalarReference) {
  for (const uint64_t elements : {0, 1, 3, 7, 15, 16, 17, 63, 64, 65, 127, 128, 191, 192, 193, 256, 320, 4096, 100001}) {
    TileState initial(GetParam(), elements);
    initial.fill(kSeed + elements);
    TileState expected = initial;
    adam_update_scalar(expected.tile(ordinary_step()));
    if (elements > 0) {
      EXPECT_FALSE(same_bits(initial, expected)) << "the reference changed nothing";
    }
    for_every_target([&] {
      TileState actual = initial;
      adam_update_serial(actual.tile(ordinary_step()));
      EXPECT_TRUE(same_bits(expected, actual));
    });
  }
}

TEST_P(AdamBits, PiecesAtAnyOffsetEqualTheWhole) {
  constexpr uint64_t kElements = 5000;
  TileState initial(GetParam(), kElements);
  initial.fill(kSeed);
  TileState expected = initial;
  adam_update_scalar(expected.tile(ordinary_step()));
  for_every_target([&] {
    std::mt19937_64 generator(kSeed);
    TileState actual = initial;
    for (uint64_t first = 0; first < kElements;) {
      const uint64_t count = std::min<uint64_t>(generator() % 300, kElements - first);
      adam_update_serial(actual.tile(ordinary_step(), first, count));
      first += count;
    }
    EXPECT_TRUE(same_bits(expected, actual));
  });
}

TEST_P(AdamBits, AnyNumberOfThreadsGivesTheSameBits) {
  for (const int threads : {1, 2, 3}) {
    AdamUpdater updater(threads);
    EXPECT_EQ(updater.threads(), threads);
    for (const uint64_t elements : {0, 1, 65, 4096, 100001, 300000}) {
      TileState expected(GetParam(), elements);
      expected.fill(kSeed + elements);
      TileState actual = expected;
      for (int step = 1; step <= 3; ++step) {
        expected.fill_gradient(kSeed + step);
        actual.fill_gradient(kSeed + step);
        adam_update_scalar(expected.tile(ordinary_step()));
        updater.update(actual.tile(ordinary_step()));
      }
      EXPECT_TRUE(same_bits(expected, actual)) << threads << " threads";
    }
  }
}

/// Numbers at which something changes: zeros, subnormals, the ends of each format's range, ties of rounding, infinities, NaN.
const std::vector<float>& special_values() {
  using Limits = std::numeric_limits<float>;
  static const std::vector<float> values = [] {
    std::vector<float> list = {0.0f,     Limits::denorm_min(), 1e-40f,     Limits::min(), 1e-30f,   1e-20f,    5.9604645e-8f,
                               2.98e-8f, 6.1035156e-5f,        6.1e-5f,    1e-4f,         0.5f,     1.0f,      1.00390625f,
                               1.0005f,  3.14159f,             65504.0f,   65519.0f,      65520.0f, 1e10f,     1e20f,
                               1e30f,    Limits::max(),        3.3961e38f, Limits::infinity()};
    for (size_t i = 0, count = list.size(); i < count; ++i) list.push_back(-list[i]);
    list.push_back(Limits::quiet_NaN());
    return list;
  }();
  return values;
}

TEST_P(AdamBits, SpecialValuesInEveryArrayGiveTheBitsOfTheReference) {
  const auto& values = special_values();
  const uint64_t n = values.size();
  // Each special gradient against each special value of the others, which are combined in three fixed ways.
  TileState initial(GetParam(), n * n * 3);
  uint64_t i = 0;
  for (uint64_t g = 0; g < n; ++g)
    for (uint64_t other = 0; other < n; ++other)
      for (uint64_t way = 0; way < 3; ++way, ++i) {
        initial.set_gradient(i, values[g]);
        initial.set_master(i, values[way == 1 ? other : (other * 7 + g) % n]);
        initial.set_momentum(i, values[way == 2 ? (other * 5 + 3) % n : (other + g) % n]);
        initial.set_variance(i, way == 1 ? values[(other * 3 + g) % n] : std::abs(values[other]));
      }
  const AdamSettings settings{.beta1 = 0.9, .beta2 = 0.999, .epsilon = 1e-8, .weight_decay = 0.1};
  const AdamStep steps[] = {
      AdamStep::make(settings, 1, 1e-3, 1.0),
      AdamStep::make(settings, 1'000'000'000, 1e-3, 1.0 / 65536),
      AdamStep::make(settings, 2, 1e30, 1.0),
      AdamStep::make(settings, 2, 1e-40, 1e-30),
      AdamStep::make(settings, 5, 0.0, 1.0),
      AdamStep::make({.beta1 = 0.0, .beta2 = 0.0, .epsilon = 0.0, .weight_decay = 0.0}, 1, 1e-3, 1.0),
  };
  for (const AdamStep& step : steps) {
    TileState expected = initial;
    adam_update_scalar(expected.tile(step));
    for_every_target([&] {
      TileState actual = initial;
      adam_update_serial(actual.tile(step));
      EXPECT_TRUE(same_bits(expected, actual));
    });
  }
}

/// A step that leaves the master as it is and makes the momentum the gradient: the conversions alone.
AdamStep conversion_step() {
  AdamStep step;
  step.beta1 = 0.0f;
  step.one_minus_beta1 = 1.0f;
  return step;
}

TEST(AdamConversions, EveryHalfGradientIsReadExactly) {
  for (const DType dtype : {DType::bf16, DType::f16}) {
    TileState initial({MasterFormat::fp32, DType::bf16, dtype}, 1 << 16);
    for (uint64_t i = 0; i < initial.elements(); ++i) initial.set_gradient_bits(i, static_cast<uint16_t>(i));
    for_every_target([&] {
      TileState state = initial;
      adam_update_serial(state.tile(conversion_step()));
      for (uint64_t i = 0; i < state.elements(); ++i) {
        // m = 0 * 0 + g * 1: adding the positive zero makes -0 into +0.
        const float expected = 0.0f + float_from_half(dtype, static_cast<uint16_t>(i));
        if (std::isnan(expected)) {
          ASSERT_TRUE(std::isnan(state.momentum(i))) << i;
        } else {
          ASSERT_EQ(std::bit_cast<uint32_t>(state.momentum(i)), std::bit_cast<uint32_t>(expected)) << to_string(dtype) << i;
        }
      }
    });
  }
}

TEST(AdamConversions, MastersAroundEveryHalfAreRoundedExactly) {
  // Every upper half, with the remainders at which either format's rounding changes.
  const std::vector<uint32_t> remainders = {0x0000, 0x0001, 0x0fff, 0x1000, 0x1001, 0x1fff, 0x2fff, 0x3000,
                                            0x3001, 0x7fff, 0x8000, 0x8001, 0xefff, 0xf000, 0xf001, 0xffff};
  for (const FormatCase format : {FormatCase{MasterFormat::split, DType::bf16, DType::f32},
                                  FormatCase{MasterFormat::fp32, DType::bf16, DType::f32},
                                  FormatCase{MasterFormat::fp32, DType::f16, DType::f32}}) {
    TileState initial(format, 65536 * remainders.size());
    const auto value_of = [&](uint64_t i) {
      return std::bit_cast<float>(static_cast<uint32_t>(i / remainders.size()) << 16 | remainders[i % remainders.size()]);
    };
    for (uint64_t i = 0; i < initial.elements(); ++i) {
      initial.set_master(i, value_of(i));
      initial.set_variance(i, 1.0f);
    }
    for_every_target([&] {
      TileState state = initial;
      adam_update_serial(state.tile(conversion_step()));
      for (uint64_t i = 0; i < state.elements(); ++i) {
        const float value = value_of(i);
        if (std::isnan(value)) {
          ASSERT_TRUE(std::isnan(state.master(i))) << i;
          ASSERT_TRUE(std::isnan(float_from_half(format.parameter, state.half_parameter(i)))) << i;
        } else {
          ASSERT_EQ(std::bit_cast<uint32_t>(state.master(i)), std::bit_cast<uint32_t>(value)) << format.name();
          ASSERT_EQ(state.half_parameter(i), half_from_float(format.parameter, value)) << format.name() << " " << value;
        }
      }
    });
  }
}

TEST(AdamBits, TheCallersFloatingPointModesDoNotMatterAndSurvive) {
  const FormatCase format{MasterFormat::parameter, DType::f32, DType::f32};
  TileState initial(format, 1000);
  initial.fill(kSeed);
  for (uint64_t i = 0; i < initial.elements(); i += 3) initial.set_variance(i, 1e-40f);  // subnormal
  for (uint64_t i = 0; i < initial.elements(); i += 2) initial.set_gradient(i, 1e-25f);
  TileState expected = initial;
  adam_update_scalar(expected.tile(ordinary_step()));
  TileState serial = initial, threaded = initial, scalar = initial;
  AdamUpdater updater(2);
  ASSERT_EQ(std::fesetround(FE_UPWARD), 0);
#if defined(__x86_64__)
  const unsigned previous = _mm_getcsr();
  _mm_setcsr(previous | 0x8040);  // flush to zero, subnormals are zero
#endif
  adam_update_serial(serial.tile(ordinary_step()));
  adam_update_scalar(scalar.tile(ordinary_step()));
  updater.update(threaded.tile(ordinary_step()));
#if defined(__x86_64__)
  EXPECT_EQ(_mm_getcsr() & 0x8040, 0x8040u);
  _mm_setcsr(previous);
#endif
  EXPECT_EQ(std::fegetround(), FE_UPWARD);
  std::fesetround(FE_TONEAREST);
  EXPECT_TRUE(same_bits(expected, serial));
  EXPECT_TRUE(same_bits(expected, scalar));
  EXPECT_TRUE(same_bits(expected, threaded));
}

TEST(AdamBits, MoreThanOneInstructionSetIsTested) {
#if defined(__x86_64__)
  EXPECT_GE(targets().size(), 2u);  // even the oldest has SSE2 and what the baseline compiles to
#endif
  EXPECT_FALSE(AdamUpdater::instruction_set().empty());
}

TEST(AdamUpdater, ThreadsComeFromTheAffinityMaskNotFromOmpNumThreads) {
  ASSERT_EQ(setenv("OMP_NUM_THREADS", "1", 1), 0);
  EXPECT_EQ(AdamUpdater().threads(), usable_processor_count());
  ASSERT_EQ(setenv("OMP_NUM_THREADS", "9", 1), 0);
  EXPECT_EQ(AdamUpdater().threads(), usable_processor_count());
  unsetenv("OMP_NUM_THREADS");
}

TEST(AdamUpdater, TilesThatMakeNoSenseAreRefused) {
  AdamUpdater updater(1);
  const AdamStep step = ordinary_step();
  TileState state({MasterFormat::split, DType::bf16, DType::bf16}, 64);
  const auto refused = [&](const std::function<void(AdamTile&)>& spoil) {
    AdamTile tile = state.tile(step);
    spoil(tile);
    EXPECT_THROW(adam_update_scalar(tile), Error);
    EXPECT_THROW(adam_update_serial(tile), Error);
    EXPECT_THROW(updater.update(tile), Error);
  };
  refused([](AdamTile& tile) { tile.parameter_dtype = DType::f32; });
  refused([](AdamTile& tile) { tile.parameter_dtype = DType::f16; });
  refused([](AdamTile& tile) { tile.master = nullptr; });
  refused([](AdamTile& tile) { tile.master_format = MasterFormat::parameter; });
  refused([](AdamTile& tile) { tile.gradient = nullptr; });
  refused([](AdamTile& tile) { tile.momentum = nullptr; });
}

TEST(AdamStep, StepsBelowOneAndBetasOutsideTheirRangeAreRefused) {
  EXPECT_THROW(AdamStep::make({}, 0, 1e-3, 1.0), Error);
  EXPECT_THROW(AdamStep::make({.beta1 = 1.0}, 1, 1e-3, 1.0), Error);
  EXPECT_THROW(AdamStep::make({.beta2 = -0.1}, 1, 1e-3, 1.0), Error);
}

TEST_P(AdamBits, RangesWithoutDecayAreUpdatedAsWithAWeightDecayOfZeroWhateverTheSplit) {
  constexpr uint64_t kElements = 5000;
  // Aligned and not, next to each other, single, empty, at the end, and beyond it.
  const std::vector<Range> undecayed = {{100, 64}, {164, 1}, {640, 0}, {1001, 999}, {4096, 7}, {4990, 64}};
  const AdamStep step = ordinary_step();
  AdamStep without = step;
  without.decay = 1.0f;
  TileState decayed(GetParam(), kElements), still(GetParam(), kElements), expected(GetParam(), kElements);
  for (TileState* state : {&decayed, &still, &expected}) state->fill(kSeed);
  adam_update_scalar(decayed.tile(step));
  adam_update_scalar(still.tile(without));
  const auto in_a_range = [&](uint64_t i) {
    return std::any_of(undecayed.begin(), undecayed.end(), [i](const Range& one) { return i >= one.first && i < one.first + one.count; });
  };
  for (uint64_t done = 0; done < kElements; ++done)
    adam_update_scalar(expected.tile(in_a_range(done) ? without : step, done, 1));
  ASSERT_FALSE(same_bits(expected, decayed));
  ASSERT_FALSE(same_bits(expected, still));
  for (const uint64_t split : {kElements, uint64_t{4096}, uint64_t{1000}, uint64_t{37}})
    for (const int threads : {0, 1, 3}) {
      TileState state(GetParam(), kElements);
      state.fill(kSeed);
      std::optional<AdamUpdater> updater;
      if (threads > 0) updater.emplace(threads);
      for (uint64_t first = 0; first < kElements; first += split) {
        AdamTile tile = state.tile(step, first, std::min(split, kElements - first));
        tile.undecayed = undecayed;
        tile.first_element = first;
        if (updater) updater->update(tile);
        else adam_update_serial(tile);
      }
      EXPECT_TRUE(same_bits(expected, state)) << split << " elements a tile, " << threads << " threads";
    }
  AdamTile whole = still.tile(step);
  still.fill(kSeed);
  whole.undecayed = undecayed;
  adam_update_scalar(whole);
  EXPECT_TRUE(same_bits(expected, still));
}

}  // namespace
}  // namespace strata
