// Softmax cross-entropy and its gradient, against double arithmetic.
#include "tests/gpu/row_support.hpp"

namespace strata::gpu {
namespace {

struct Loss {
  std::vector<double> losses;
  Array d_logits;
  bool operator==(const Loss&) const = default;
};

/// For comparisons in which NaN equals itself.
std::vector<uint64_t> bits(const std::vector<double>& values) {
  std::vector<uint64_t> result;
  for (const double value : values) result.push_back(std::bit_cast<uint64_t>(value));
  return result;
}

Loss run(Machine& m, const Array& logits, const std::vector<int32_t>& labels, float scale, DType gradient_dtype) {
  const auto rows = static_cast<int64_t>(labels.size()), columns = logits.size() / rows;
  const int32_t* dev_labels = m.put(labels);
  auto *losses = m.room<double>(labels.size() * 8), *losses_alone = m.room<double>(labels.size() * 8);
  void* d_logits = m.room(static_cast<uint64_t>(logits.size()) * size_bytes(gradient_dtype));
  m.rows().cross_entropy(m.stream(), logits.dtype(), rows, columns, m.put(logits), dev_labels, scale, losses, gradient_dtype, d_logits);
  m.rows().cross_entropy(m.stream(), logits.dtype(), rows, columns, m.put(logits), dev_labels, scale, losses_alone, gradient_dtype,
                         nullptr);
  EXPECT_EQ(bits(m.get(losses, rows)), bits(m.get(losses_alone, rows))) << "the loss depends on whether its gradient is wanted";
  if (gradient_dtype == logits.dtype()) {
    void* in_place = m.put(logits);
    m.rows().cross_entropy(m.stream(), logits.dtype(), rows, columns, in_place, dev_labels, scale, losses, gradient_dtype, in_place);
    EXPECT_EQ(m.get(in_place, gradient_dtype, logits.size()), m.get(d_logits, gradient_dtype, logits.size()));
  }
  return {m.get(losses, rows), m.get(d_logits, gradient_dtype, logits.size())};
}

void check(const Array& logits, const std::vector<int32_t>& labels, float scale, DType gradient_dtype) {
  const auto rows = static_cast<int64_t>(labels.size()), columns = logits.size() / rows;
  SCOPED_TRACE(std::to_string(columns) + " columns, " + std::string(to_string(logits.dtype())) + " to " +
               std::string(to_string(gradient_dtype)));
  const Loss got = on_every_machine([&](Machine& m) { return run(m, logits, labels, scale, gradient_dtype); });
  std::vector<double> d_logits(static_cast<size_t>(logits.size()));
  for (int64_t row = 0; row < rows; ++row) {
    const int32_t label = labels[static_cast<size_t>(row)];
    if (label == -100) {
      EXPECT_EQ(got.losses[static_cast<size_t>(row)], 0.0);
      continue;
    }
    double largest = -INFINITY, sum = 0;
    for (int64_t i = 0; i < columns; ++i) largest = std::max(largest, logits[row * columns + i]);
    for (int64_t i = 0; i < columns; ++i) sum += std::exp(logits[row * columns + i] - largest);
    const double want = std::log(sum) + largest - logits[row * columns + label];
    EXPECT_NEAR(got.losses[static_cast<size_t>(row)], want, 1e-6 + 1e-6 * std::abs(want)) << "row " << row;
    for (int64_t i = 0; i < columns; ++i) {
      const double softmax = std::exp(logits[row * columns + i] - largest) / sum;
      d_logits[static_cast<size_t>(row * columns + i)] = scale * (softmax - (i == label ? 1 : 0));
    }
  }
  // The difference x - max is exact to fp32 only: softmax carries up to |x - max| roundings.
  expect_close(got.d_logits, d_logits, gradient_dtype == DType::f32 ? 60 : 1.5, 8 * scale, "d_logits");
}

TEST(RowLoss, LossesAndGradientsMatchDouble) {
  for (const DType dtype : kAllDTypes) {
    for (const DType gradient_dtype : kAllDTypes) {
      for (const int64_t columns : {2, 17, 50, 9001}) {
        std::vector<int32_t> labels;
        for (int i = 0; i < 11; ++i) labels.push_back(i % 4 == 2 ? -100 : static_cast<int32_t>((i * 7919) % columns));
        labels.back() = static_cast<int32_t>(columns - 1);
        check(Array::normal(dtype, 11 * columns, 9, 4.0), labels, 0.25f, gradient_dtype);
      }
    }
  }
}

TEST(RowLoss, OneColumnHasNoLossAndNoGradient) {
  with_every_instruction_set([&](Machine& m) {
    const Loss got = run(m, Array::of(DType::f32, {3.0, -1e30, 0.0}), {0, 0, -100}, 1.0f, DType::f32);
    EXPECT_EQ(got.losses, (std::vector<double>{0.0, 0.0, 0.0}));
    EXPECT_EQ(got.d_logits, Array::of(DType::f32, {0.0, 0.0, 0.0}));
  });
}

TEST(RowLoss, HugeLogitsDoNotOverflow) {
  Array logits(DType::f32, 2 * 20);
  for (int64_t i = 0; i < logits.size(); ++i) logits.set(i, i < 20 ? 1e38 - 1e36 * static_cast<double>(i) : -3e38);
  with_every_instruction_set([&](Machine& m) {
    const Loss got = run(m, logits, {0, 5}, 1.0f, DType::f32);
    EXPECT_EQ(got.losses[0], 0.0);
    EXPECT_NEAR(got.losses[1], std::log(20.0), 1e-6);
    EXPECT_NEAR(got.d_logits[25], 1 / 20.0 - 1, 1e-6);
    for (int64_t i = 0; i < 20; ++i) EXPECT_EQ(got.d_logits[i], 0.0) << i;
  });
}

TEST(RowLoss, NanOrInfinityInARowShowsInItsLossAlone) {
  for (const double bad : {static_cast<double>(NAN), static_cast<double>(INFINITY)}) {
    for (const int64_t place : {0, 1, 35}) {
      Array logits = Array::normal(DType::f32, 3 * 36, 1);
      logits.set(36 + place, bad);
      with_every_instruction_set([&](Machine& m) {
        const Loss got = run(m, logits, {1, 1, 1}, 1.0f, DType::bf16);
        EXPECT_TRUE(std::isfinite(got.losses[0]) && std::isfinite(got.losses[2]));
        EXPECT_FALSE(std::isfinite(got.losses[1])) << bad << " at " << place;
      });
    }
  }
}

TEST(RowLoss, ALabelOutsideTheVocabularyGivesNan) {
  with_every_instruction_set([&](Machine& m) {
    const Loss got = run(m, Array::normal(DType::f32, 4 * 10, 1), {3, 10, -1, -101}, 1.0f, DType::f32);
    EXPECT_TRUE(std::isfinite(got.losses[0]));
    for (size_t i = 1; i < 4; ++i) EXPECT_TRUE(std::isnan(got.losses[i])) << i;
  });
}

TEST(RowLoss, SumInOrderAddsOneAfterAnother) {
  // In any other order the small numbers survive.
  const std::vector<double> values = {1e16, 1.0, -1e16, 1.0, 0.5};
  with_every_instruction_set([&](Machine& m) {
    double* const sum = m.put(std::vector<double>{100.0});
    const double* const dev_values = m.put(values);
    m.rows().sum_in_order(m.stream(), 5, dev_values, sum, false);
    EXPECT_EQ(m.get(sum, 1)[0], 1.5);
    m.rows().sum_in_order(m.stream(), 2, dev_values + 3, sum, true);
    EXPECT_EQ(m.get(sum, 1)[0], 3.0);
    m.rows().sum_in_order(m.stream(), 0, dev_values, sum, true);
    EXPECT_EQ(m.get(sum, 1)[0], 3.0);
  });
}

}  // namespace
}  // namespace strata::gpu
