// RMSNorm, LayerNorm and sums over rows, against double arithmetic.
#include "tests/gpu/row_support.hpp"

namespace strata::gpu {
namespace {

struct Shape {
  int64_t rows, columns, padding;  // x's stride is columns + padding
};
// Odd sizes, one column, one row, several blocks of 32 rows with a short last one, and enough for several threads.
constexpr Shape kShapes[] = {{1, 1, 0}, {3, 7, 2}, {33, 64, 0}, {70, 129, 5}, {5, 1000, 24}, {401, 500, 3}};

/// One row's forward and backward in double.
struct RowReference {
  std::vector<double> y, d_x, d_weight;  // d_bias is d_y
  double mean = 0, rstd = 0;
};

RowReference reference(bool centered, const std::vector<double>& x, const std::vector<double>& weight, const std::vector<double>& bias,
                       const std::vector<double>& d_y, double epsilon) {
  const auto n = static_cast<double>(x.size());
  RowReference r;
  if (centered) {
    for (const double v : x) r.mean += v / n;
  }
  double variance = 0;
  for (const double v : x) variance += (v - r.mean) * (v - r.mean) / n;
  r.rstd = 1 / std::sqrt(variance + epsilon);
  double d_mean = 0, slope = 0;
  for (size_t i = 0; i < x.size(); ++i) {
    const double normalized = (x[i] - r.mean) * r.rstd;
    r.y.push_back(normalized * weight[i] + bias[i]);
    r.d_weight.push_back(d_y[i] * normalized);
    d_mean += centered ? d_y[i] * weight[i] / n : 0;
    slope += d_y[i] * weight[i] * normalized / n;
  }
  for (size_t i = 0; i < x.size(); ++i) {
    r.d_x.push_back(r.rstd * (d_y[i] * weight[i] - d_mean - (x[i] - r.mean) * r.rstd * slope));
  }
  return r;
}

struct Results {
  Array y, d_x, d_x_added, statistics, d_weight, d_bias, d_weight_added;
  bool operator==(const Results&) const = default;
};

void check_norm(bool centered, DType dtype, Shape shape) {
  SCOPED_TRACE(std::string(centered ? "LayerNorm " : "RMSNorm ") + std::string(to_string(dtype)) + " of " +
               std::to_string(shape.rows) + " x " + std::to_string(shape.columns));
  const int64_t stride = shape.columns + shape.padding, y_stride = shape.columns + 1, count = shape.rows * stride;
  const Rows rows{shape.rows, shape.columns, stride};
  constexpr float kEpsilon = 1e-5f;
  const Array x = Array::normal(dtype, count, 1, 2.0, centered ? 0.5 : 0.0), weight = Array::normal(dtype, shape.columns, 2, 0.3, 1.0);
  const Array bias = Array::normal(dtype, shape.columns, 3), d_y = Array::normal(dtype, shape.rows * y_stride, 4);
  const Array d_x_before = Array::normal(dtype, count, 5);
  const Array sums_before = Array::normal(DType::f32, shape.columns, 6);

  const Results got = on_every_machine([&](Machine& m) {
    const void *dev_x = m.put(x), *dev_weight = m.put(weight), *dev_bias = m.put(bias), *dev_d_y = m.put(d_y);
    void *y = m.room(d_y.bytes().size()), *d_x = m.room(x.bytes().size()), *d_x_added = m.put(d_x_before);
    auto* statistics = m.room<float>(static_cast<uint64_t>(shape.rows) * 2 * 4);
    auto *d_weight = m.room<float>(sums_before.bytes().size()), *d_bias = m.room<float>(sums_before.bytes().size());
    auto *d_weight_added = static_cast<float*>(m.put(sums_before)), *d_bias_added = static_cast<float*>(m.put(sums_before));
    void* scratch = m.room(m.rows().reduction_scratch_bytes(shape.rows, shape.columns));
    const auto backward = [&](void* to, bool add, float* weight_sums, float* bias_sums, bool accumulate) {
      if (centered) {
        m.rows().layer_norm_backward(m.stream(), dtype, rows, dev_x, dev_weight, statistics, dev_d_y, y_stride, to, stride, add,
                                     weight_sums, bias_sums, accumulate, scratch);
      } else {
        m.rows().rms_norm_backward(m.stream(), dtype, rows, dev_x, dev_weight, statistics, dev_d_y, y_stride, to, stride, add,
                                   weight_sums, accumulate, scratch);
      }
    };
    if (centered) m.rows().layer_norm(m.stream(), dtype, rows, dev_x, dev_weight, dev_bias, kEpsilon, y, y_stride, statistics);
    else m.rows().rms_norm(m.stream(), dtype, rows, dev_x, dev_weight, kEpsilon, y, y_stride, statistics);
    backward(d_x, false, d_weight, d_bias, false);
    backward(d_x_added, true, d_weight_added, d_bias_added, true);
    Results results;
    results.y = m.get(y, dtype, d_y.size());
    results.d_x = m.get(d_x, dtype, count);
    results.d_x_added = m.get(d_x_added, dtype, count);
    results.statistics = m.get(statistics, DType::f32, shape.rows * (centered ? 2 : 1));
    results.d_weight = m.get(d_weight, DType::f32, shape.columns);
    results.d_weight_added = m.get(d_weight_added, DType::f32, shape.columns);
    if (centered) results.d_bias = m.get(d_bias, DType::f32, shape.columns);
    // Beyond the columns the memory must be as it was, full of NaN.
    for (Array* padded : {&results.y, &results.d_x}) {
      const int64_t width = padded == &results.y ? y_stride : stride;
      for (int64_t i = 0; i < padded->size(); ++i) {
        if (i % width >= shape.columns) {
          EXPECT_TRUE(std::isnan((*padded)[i])) << "padding was written";
        }
      }
    }
    return results;
  });

  std::vector<double> d_weight(static_cast<size_t>(shape.columns)), d_bias(d_weight), d_weight_added(d_weight);
  const auto row_of = [&](const Array& from, int64_t row, int64_t width) {
    std::vector<double> values;
    for (int64_t i = 0; i < shape.columns; ++i) values.push_back(from[row * width + i]);
    return values;
  };
  const auto array_row = [&](const Array& from, int64_t row, int64_t width) { return Array::of(from.dtype(), row_of(from, row, width)); };
  std::vector<double> bias_used = row_of(bias, 0, 0);
  if (!centered) std::fill(bias_used.begin(), bias_used.end(), 0.0);
  for (int64_t row = 0; row < shape.rows; ++row) {
    const auto want = reference(centered, row_of(x, row, stride), row_of(weight, 0, 0), bias_used, row_of(d_y, row, y_stride), kEpsilon);
    expect_close(array_row(got.y, row, y_stride), want.y, centered ? 1.1 : 2.3, 60, "y");
    // A row of one column has no variance: its gradient is a difference of equal numbers, times a large rstd.
    const double scale = 60 * std::max(1.0, want.rstd);
    expect_close(array_row(got.d_x, row, stride), want.d_x, 1.1, scale, "d_x");
    auto added = want.d_x;
    for (int64_t i = 0; i < shape.columns; ++i) {
      const auto k = static_cast<size_t>(i);
      added[k] += d_x_before[row * stride + i];
      d_weight[k] += want.d_weight[k];
      d_bias[k] += d_y[row * y_stride + i];
    }
    expect_close(array_row(got.d_x_added, row, stride), added, 1.1, scale, "d_x added");
    EXPECT_NEAR(got.statistics[centered ? 2 * row + 1 : row], want.rstd, 1e-5 * want.rstd);
    if (centered) {
      EXPECT_NEAR(got.statistics[2 * row], want.mean, 1e-6);
    }
  }
  // RMSNorm's forward rounds the normalized x, and its weight gradient is that of the rounded one.
  const double rows_scale = 100 + static_cast<double>(shape.rows);
  const double scale = centered ? rows_scale : rows_scale * (1 + rounding(dtype) / 0x1p-24);
  for (size_t i = 0; i < d_weight.size(); ++i) d_weight_added[i] = d_weight[i] + sums_before[static_cast<int64_t>(i)];
  expect_close(got.d_weight, d_weight, 2, scale, "d_weight");
  expect_close(got.d_weight_added, d_weight_added, 2, scale, "d_weight added");
  if (centered) expect_close(got.d_bias, d_bias, 2, rows_scale, "d_bias");
}

TEST(RowNorms, RmsNormAndItsGradientsMatchDouble) {
  for (const DType dtype : kAllDTypes) {
    for (const Shape& shape : kShapes) check_norm(false, dtype, shape);
  }
}

TEST(RowNorms, LayerNormAndItsGradientsMatchDouble) {
  for (const DType dtype : kAllDTypes) {
    for (const Shape& shape : kShapes) check_norm(true, dtype, shape);
  }
}

TEST(RowNorms, RmsNormRoundsBeforeTheWeightAsHuggingFaceDoes) {
  // x * rstd = 1.00390625 lies between the bf16 numbers 1 and 1.0078125; which one it becomes shows in the product with 3.
  const Array x = Array::of(DType::bf16, {1.0, 1.0}), weight = Array::of(DType::bf16, {3.0, 3.0});
  with_every_instruction_set([&](Machine& m) {
    const float epsilon = 1.0f / (1.00390625f * 1.00390625f) - 1.0f;
    void* y = m.room(4);
    auto* rstd = m.room<float>(4);
    m.rows().rms_norm(m.stream(), DType::bf16, {1, 2, 2}, m.put(x), m.put(weight), epsilon, y, 2, rstd);
    const double stored = float_from_bf16(bf16_from_float(1.0f * m.get(rstd, 1)[0]));
    EXPECT_EQ(m.get(y, DType::bf16, 2), Array::of(DType::bf16, {3 * stored, 3 * stored}));
    EXPECT_NE(float_from_bf16(bf16_from_float(3 * m.get(rstd, 1)[0])), 3 * stored) << "the case does not tell the two apart";
  });
}

TEST(RowNorms, NormsRunInPlace) {
  for (const DType dtype : kAllDTypes) {
    constexpr int64_t kRows = 9, kColumns = 37;
    const Rows rows{kRows, kColumns, kColumns};
    const Array x = Array::normal(dtype, kRows * kColumns, 1), weight = Array::normal(dtype, kColumns, 2);
    const Array d_y = Array::normal(dtype, kRows * kColumns, 3);
    with_every_instruction_set([&](Machine& m) {
      const void *dev_weight = m.put(weight), *dev_x = m.put(x);
      void *y = m.room(x.bytes().size()), *in_place = m.put(x), *d_x = m.room(x.bytes().size()), *d_in_place = m.put(d_y);
      auto *statistics = m.room<float>(kRows * 8), *sums = m.room<float>(kColumns * 4), *more = m.room<float>(kColumns * 4);
      void* scratch = m.room(m.rows().reduction_scratch_bytes(kRows, kColumns));
      m.rows().layer_norm(m.stream(), dtype, rows, dev_x, dev_weight, dev_weight, 1e-5f, y, kColumns, statistics);
      m.rows().layer_norm(m.stream(), dtype, rows, in_place, dev_weight, dev_weight, 1e-5f, in_place, kColumns, statistics);
      m.rows().layer_norm_backward(m.stream(), dtype, rows, dev_x, dev_weight, statistics, m.put(d_y), kColumns, d_x, kColumns, false,
                                   sums, more, false, scratch);
      m.rows().layer_norm_backward(m.stream(), dtype, rows, dev_x, dev_weight, statistics, d_in_place, kColumns, d_in_place, kColumns,
                                   false, sums, more, false, scratch);
      EXPECT_EQ(m.get(in_place, dtype, x.size()), m.get(y, dtype, x.size()));
      EXPECT_EQ(m.get(d_in_place, dtype, x.size()), m.get(d_x, dtype, x.size()));
    });
  }
}

TEST(RowNorms, ColumnSumsMatchDouble) {
  for (const DType dtype : kAllDTypes) {
    for (const Shape& shape : {Shape{1, 1, 0}, Shape{33, 5, 3}, Shape{390, 1500, 0}}) {
      const int64_t stride = shape.columns + shape.padding;
      const Array x = Array::normal(dtype, shape.rows * stride, 7), before = Array::normal(DType::f32, shape.columns, 8);
      const auto got = on_every_machine([&](Machine& m) {
        auto *sums = m.room<float>(before.bytes().size()), *added = static_cast<float*>(m.put(before));
        void* scratch = m.room(m.rows().reduction_scratch_bytes(shape.rows, shape.columns));
        const void* dev_x = m.put(x);
        m.rows().column_sum(m.stream(), dtype, {shape.rows, shape.columns, stride}, dev_x, sums, false, scratch);
        m.rows().column_sum(m.stream(), dtype, {shape.rows, shape.columns, stride}, dev_x, added, true, scratch);
        return std::pair(m.get(sums, DType::f32, shape.columns), m.get(added, DType::f32, shape.columns));
      });
      std::vector<double> sums(static_cast<size_t>(shape.columns)), added(sums);
      for (int64_t i = 0; i < shape.columns; ++i) {
        for (int64_t row = 0; row < shape.rows; ++row) sums[static_cast<size_t>(i)] += x[row * stride + i];
        added[static_cast<size_t>(i)] = sums[static_cast<size_t>(i)] + before[i];
      }
      expect_close(got.first, sums, 4, 400, "sums");
      expect_close(got.second, added, 4, 400, "added");
    }
  }
}

}  // namespace
}  // namespace strata::gpu
