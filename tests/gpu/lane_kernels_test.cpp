// The kernels on many lanes with real barriers must compute what one lane computes: the logic that a GPU runs, tested without one.
// Element by element they must agree to the bit, except for what the order of a sum may change.
#include <gtest/gtest.h>

#include <cmath>
#include <random>

#include "gpu/kernels/activation-inl.hpp"
#include "gpu/kernels/elementwise-inl.hpp"
#include "gpu/kernels/loss-inl.hpp"
#include "gpu/kernels/norm-inl.hpp"
#include "gpu/kernels/one_lane-inl.hpp"
#include "tests/gpu/many_lanes.hpp"

namespace strata::gpu::kernels {
namespace {

constexpr int kLaneCounts[] = {2, 3, 8, 32};
// Fewer columns than lanes, not a multiple of anything, and whole blocks.
constexpr int64_t kColumnCounts[] = {1, 5, 77, 256};

template <class T>
std::vector<T> numbers(int64_t count, uint64_t seed) {
  std::mt19937_64 random(seed);
  std::normal_distribution<float> distribution(0.2f, 2.0f);
  std::vector<T> values;
  for (int64_t i = 0; i < count; ++i) values.push_back(from_float<T>(distribution(random)));
  return values;
}

template <class T>
void expect_same(const std::vector<T>& got, const std::vector<T>& want, float roundings, const char* what) {
  const float step = sizeof(T) == 4 ? 0x1p-23f : std::is_same_v<T, Bf16> ? 0x1p-7f : 0x1p-10f;
  ASSERT_EQ(got.size(), want.size());
  for (size_t i = 0; i < got.size(); ++i) {
    const float a = to_float(got[i]), b = to_float(want[i]);
    if (std::isnan(a) && std::isnan(b)) continue;
    ASSERT_LE(std::abs(a - b), roundings * step * (0.1f + std::abs(b))) << what << '[' << i << "]: " << a << " and " << b;
  }
}

template <class T>
class LaneKernels : public testing::Test {};
using Formats = testing::Types<float, Bf16, F16>;
TYPED_TEST_SUITE(LaneKernels, Formats);

/// Runs kernel(lanes, outputs) on one lane and on every count of lanes, on fresh outputs made by make().
template <class Make, class Kernel, class Compare>
void compare(const Make& make, const Kernel& kernel, const Compare& same) {
  auto expected = make();
  kernel(OneLane(), expected);
  for (const int lanes : kLaneCounts) {
    SCOPED_TRACE(std::to_string(lanes) + " lanes");
    auto outputs = make();
    run_lanes(lanes, [&](const ManyLanes& context) { kernel(context, outputs); });
    same(outputs, expected);
  }
}

template <class T>
struct NormOutputs {
  std::vector<T> y;
  std::vector<float> statistics, weight_sums, bias_sums;
};

TYPED_TEST(LaneKernels, NormsAgree) {
  using T = TypeParam;
  for (const int64_t columns : kColumnCounts) {
    const auto x = numbers<T>(columns, 1), weight = numbers<T>(columns, 2), bias = numbers<T>(columns, 3), d_y = numbers<T>(columns, 4);
    const auto make = [&] {
      return NormOutputs<T>{numbers<T>(columns, 5), std::vector<float>(2), std::vector<float>(columns), std::vector<float>(columns)};
    };
    const auto same = [&](const NormOutputs<T>& got, const NormOutputs<T>& want) {
      expect_same(got.y, want.y, sizeof(T) == 4 ? 300.0f : 1.5f, "y");
      expect_same(got.statistics, want.statistics, 20, "statistics");
      expect_same(got.weight_sums, want.weight_sums, 0, "weight sums");
      expect_same(got.bias_sums, want.bias_sums, 0, "bias sums");
    };
    compare(make, [&](const auto& lanes, NormOutputs<T>& out) {
      rms_norm_row(lanes, columns, x.data(), weight.data(), 1e-2f, out.y.data(), out.statistics.data());
    }, same);
    compare(make, [&](const auto& lanes, NormOutputs<T>& out) {
      layer_norm_row(lanes, columns, x.data(), weight.data(), bias.data(), 1e-2f, out.y.data(), out.statistics.data());
    }, same);
    const float statistics[2] = {0.25f, 0.6f};
    compare(make, [&](const auto& lanes, NormOutputs<T>& out) {  // two rows into the same sums
      rms_norm_backward_row<false>(lanes, columns, x.data(), weight.data(), 0.5f, d_y.data(), out.y.data(), out.weight_sums.data());
      rms_norm_backward_row<true>(lanes, columns, bias.data(), weight.data(), 0.4f, d_y.data(), out.y.data(), out.weight_sums.data());
    }, same);
    compare(make, [&](const auto& lanes, NormOutputs<T>& out) {
      layer_norm_backward_row<false>(lanes, columns, x.data(), weight.data(), statistics, d_y.data(), out.y.data(),
                                     out.weight_sums.data(), out.bias_sums.data());
      layer_norm_backward_row<true>(lanes, columns, bias.data(), weight.data(), statistics, d_y.data(), out.y.data(),
                                    out.weight_sums.data(), out.bias_sums.data());
    }, same);
  }
}

TYPED_TEST(LaneKernels, CrossEntropyAgreesAlsoInPlace) {
  using T = TypeParam;
  struct Outputs {
    std::vector<T> logits;
    double loss = -1;
  };
  for (const int64_t columns : kColumnCounts) {
    for (const int32_t label : {0, static_cast<int32_t>(columns - 1), -100, -7}) {
      const auto make = [&] { return Outputs{numbers<T>(columns, 6)}; };
      compare(make, [&](const auto& lanes, Outputs& out) {
        cross_entropy_row(lanes, columns, out.logits.data(), label, 2.0f, &out.loss, out.logits.data());
      }, [&](const Outputs& got, const Outputs& want) {
        expect_same(got.logits, want.logits, sizeof(T) == 4 ? 30.0f : 1.5f, "d_logits");
        EXPECT_TRUE(std::abs(got.loss - want.loss) <= 1e-5 || (std::isnan(got.loss) && std::isnan(want.loss)));
      });
    }
  }
}

TYPED_TEST(LaneKernels, ElementwiseKernelsAgreeToTheBit) {
  using T = TypeParam;
  for (const int64_t columns : kColumnCounts) {
    const auto x = numbers<T>(4 * columns, 7), d_y = numbers<T>(4 * columns, 8);
    const auto make = [&] { return numbers<T>(4 * columns, 9); };
    const auto same = [&](const std::vector<T>& got, const std::vector<T>& want) { expect_same(got, want, 0, "element"); };
    constexpr Activation kKind = Activation::gelu_tanh;
    compare(make, [&](const auto& lanes, auto& out) { activate<kKind>(lanes, columns, x.data(), out.data()); }, same);
    compare(make, [&](const auto& lanes, auto& out) {
      activate_backward<kKind>(lanes, columns, x.data(), out.data(), out.data() + columns, out.data());
    }, same);
    compare(make, [&](const auto& lanes, auto& out) {
      activate_gated_row<kKind>(lanes, columns, x.data(), x.data() + columns, out.data());
    }, same);
    compare(make, [&](const auto& lanes, auto& out) {
      activate_gated_backward_row<kKind>(lanes, columns, out.data(), out.data() + columns, d_y.data(), out.data() + 2 * columns,
                                         out.data(), out.data() + columns);
    }, same);
    const auto cosines = numbers<float>(columns, 10), sines = numbers<float>(columns, 11);
    for (const bool inverse : {false, true}) {
      compare(make, [&](const auto& lanes, auto& out) {
        rope_row(lanes, 2, 2 * columns, out.data(), cosines.data(), sines.data(), inverse);
      }, same);
    }
    compare(make, [&](const auto& lanes, auto& out) { add(lanes, columns, x.data(), out.data(), out.data()); }, same);
    compare(make, [&](const auto& lanes, auto& out) { cast(lanes, columns, cosines.data(), out.data()); }, same);
  }
}

TYPED_TEST(LaneKernels, SumsWithAFixedOrderAgreeToTheBit) {
  using T = TypeParam;
  struct Outputs {
    std::vector<double> block_sum;  // a lane each: every lane gets the result
    std::vector<float> table, positions;
    std::vector<float> sums;
  };
  for (const int64_t columns : kColumnCounts) {
    constexpr int64_t kTokens = 9;
    const auto x = numbers<T>(kTokens * columns, 12);
    const auto partials = numbers<float>(3 * columns, 13);
    const std::vector<int32_t> tokens = {2, 0, 2, 2, 1, 0, 2, 1, 2};
    const auto make = [&] {
      return Outputs{std::vector<double>(32), numbers<float>(3 * columns, 14), numbers<float>(2 * columns, 15),
                     numbers<float>(columns, 16)};
    };
    compare(make, [&](const auto& lanes, Outputs& out) {
      out.block_sum[static_cast<size_t>(lanes.lane())] = sum_squares(lanes, kTokens * columns, x.data());
      scatter_add_columns(lanes, kTokens, columns, columns, tokens.data(), x.data(), out.table.data(), out.positions.data(), 2);
      add_partials(lanes, columns, 3, columns, partials.data(), columns != 5, out.sums.data());
    }, [&](const Outputs& got, const Outputs& want) {
      EXPECT_EQ(got.block_sum[0], want.block_sum[0]);
      EXPECT_EQ(got.block_sum[1], want.block_sum[0]);
      EXPECT_EQ(got.table, want.table);
      EXPECT_EQ(got.positions, want.positions);
      EXPECT_EQ(got.sums, want.sums);
    });
  }
}

}  // namespace
}  // namespace strata::gpu::kernels
