// The update's numbers are AdamW's: against the formula in double, against PyTorch, and split masters against fp32 masters.
#include <gtest/gtest.h>

#include <fstream>
#include <map>
#include <nlohmann/json.hpp>

#include "cpu_adam/adam.hpp"
#include "tests/cpu_adam/tile_state.hpp"

namespace strata {
namespace {

using test::all_formats;
using test::FormatCase;
using test::TileState;

class AdamValues : public testing::TestWithParam<FormatCase> {};
INSTANTIATE_TEST_SUITE_P(Formats, AdamValues, testing::ValuesIn(all_formats()),
                         [](const auto& info) { return info.param.name(); });

/// AdamW as its paper writes it, in double throughout.
struct ExactAdam {
  double p = 0, m = 0, v = 0;
  void update(const AdamSettings& settings, int64_t step, double lr, double g) {
    p -= lr * settings.weight_decay * p;
    m = settings.beta1 * m + (1 - settings.beta1) * g;
    v = settings.beta2 * v + (1 - settings.beta2) * g * g;
    const double m_hat = m / (1 - std::pow(settings.beta1, step));
    const double v_hat = v / (1 - std::pow(settings.beta2, step));
    p -= lr * m_hat / (std::sqrt(v_hat) + settings.epsilon);
  }
};

TEST_P(AdamValues, TwentyStepsStayNearTheFormulaInDouble) {
  constexpr uint64_t kElements = 1000;
  constexpr int kSteps = 20;
  const AdamSettings settings{.beta1 = 0.9, .beta2 = 0.95, .epsilon = 1e-8, .weight_decay = 0.1};
  const double clip = 0.25;
  TileState state(GetParam(), kElements);
  state.fill(1);
  std::vector<ExactAdam> exact(kElements);
  for (uint64_t i = 0; i < kElements; ++i) exact[i] = {state.master(i), state.momentum(i), state.variance(i)};
  double worst = 0;
  for (int step = 1; step <= kSteps; ++step) {
    const double lr = 1e-2 / step;
    state.fill_gradient(100 + step);
    for (uint64_t i = 0; i < kElements; ++i) exact[i].update(settings, step, lr, clip * state.gradient(i));
    adam_update_serial(state.tile(AdamStep::make(settings, step, lr, clip)));
  }
  for (uint64_t i = 0; i < kElements; ++i) {
    // Near a zero crossing only the size of what was added and taken away says how large an error may be.
    worst = std::max(worst, std::abs(state.master(i) - exact[i].p) / std::max(0.01, std::abs(exact[i].p)));
    EXPECT_NEAR(state.momentum(i), exact[i].m, 1e-6 * std::max(1e-3, std::abs(exact[i].m)));
    EXPECT_NEAR(state.variance(i), exact[i].v, 2e-6 * exact[i].v);
    if (GetParam().parameter != DType::f32) {
      EXPECT_EQ(state.half_parameter(i), half_from_float(GetParam().parameter, state.master(i)));
    }
  }
  EXPECT_LT(worst, 4e-6);
  EXPECT_GT(worst, 0.0);  // fp32 is not double: no difference at all would mean that nothing was compared
}

TEST(AdamValues, SplitMastersAreFp32MastersOverAHundredSteps) {
  for (const DType gradient : {DType::bf16, DType::f32}) {
    constexpr uint64_t kElements = 2000;
    TileState split({MasterFormat::split, DType::bf16, gradient}, kElements);
    TileState whole({MasterFormat::fp32, DType::bf16, gradient}, kElements);
    split.fill(5);
    whole.fill(5);
    const AdamSettings settings{.weight_decay = 0.01};
    for (int step = 1; step <= 100; ++step) {
      split.fill_gradient(1000 + step);
      whole.fill_gradient(1000 + step);
      const AdamStep numbers = AdamStep::make(settings, step, 1e-3, 1.0);
      adam_update_serial(split.tile(numbers));
      adam_update_serial(whole.tile(numbers));
    }
    for (uint64_t i = 0; i < kElements; ++i) {
      ASSERT_EQ(std::bit_cast<uint32_t>(split.master(i)), std::bit_cast<uint32_t>(whole.master(i))) << i;
      ASSERT_EQ(split.half_parameter(i), whole.half_parameter(i)) << i;
    }
  }
}

TEST(AdamValues, EveryStepEqualsPyTorchsAdamW) {
  std::ifstream in(STRATA_SOURCE_DIR "/tests/reference/adamw.json");
  ASSERT_TRUE(in) << "tests/reference/adamw.json is missing";
  const auto reference = nlohmann::json::parse(in);
  int steps_compared = 0;
  for (const auto& one : reference.at("cases")) {
    SCOPED_TRACE(one.at("name").get<std::string>());
    const AdamSettings settings{one["betas"][0], one["betas"][1], one["eps"], one["weight_decay"]};
    const auto initial = one.at("initial").get<std::vector<float>>();
    std::vector<Range> undecayed;
    if (one.contains("undecayed")) undecayed.push_back({one["undecayed"][0], one["undecayed"][1]});
    TileState state({MasterFormat::parameter, DType::f32, DType::f32}, initial.size());
    for (uint64_t i = 0; i < initial.size(); ++i) state.set_master(i, initial[i]);
    // Relative to the largest value that an element's state has had: a sum of opposite terms cancels what they agreed in.
    std::map<std::string, std::vector<double>> largest;
    for (const float value : initial) largest["parameter"].push_back(std::abs(value));
    int64_t step = 0;
    for (const auto& after : one.at("steps")) {
      SCOPED_TRACE(++step);
      for (uint64_t i = 0; i < initial.size(); ++i) state.set_gradient(i, after["gradient"][i]);
      AdamTile tile = state.tile(AdamStep::make(settings, step, after["lr"], 1.0));
      tile.undecayed = undecayed;
      adam_update_serial(tile);
      for (uint64_t i = 0; i < initial.size(); ++i) {
        const auto near = [&](float actual, const char* name) {
          const double expected = after[name][i];
          auto& scale = largest[name];
          scale.resize(initial.size());
          scale[i] = std::max(scale[i], std::abs(expected));
          EXPECT_NEAR(actual, expected, 1e-6 * scale[i]) << name << " of element " << i;
        };
        near(state.master(i), "parameter");
        near(state.momentum(i), "exp_avg");
        near(state.variance(i), "exp_avg_sq");
      }
      ++steps_compared;
    }
  }
  EXPECT_EQ(steps_compared, 48);
}

TEST(AdamStep, BiasCorrectionsAreExactAtTheFirstStepAndVanishAtTheBillionth) {
  const AdamSettings settings{.beta1 = 0.9, .beta2 = 0.999};
  const AdamStep first = AdamStep::make(settings, 1, 1e-3, 1.0);
  EXPECT_FLOAT_EQ(first.step_size, 1e-2f);
  EXPECT_FLOAT_EQ(first.inverse_sqrt_correction2, 31.6227766f);
  const AdamStep late = AdamStep::make(settings, 1'000'000'000, 1e-3, 0.5);
  EXPECT_EQ(late.step_size, 1e-3f);
  EXPECT_EQ(late.inverse_sqrt_correction2, 1.0f);
  EXPECT_EQ(late.gradient_scale, 0.5f);
  EXPECT_EQ(late.one_minus_beta2, static_cast<float>(1.0 - 0.999));  // not 1 - float(0.999)
}

}  // namespace
}  // namespace strata
