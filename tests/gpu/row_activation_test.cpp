// The activation functions and their gradients, against double arithmetic.
#include "tests/gpu/row_support.hpp"

namespace strata::gpu {
namespace {

constexpr Activation kKinds[] = {Activation::gelu_tanh, Activation::gelu_erf, Activation::silu, Activation::relu};

double value_of(Activation kind, double x) {
  switch (kind) {
    case Activation::gelu_tanh: return 0.5 * x * (1 + std::tanh(std::sqrt(2 / M_PI) * (x + 0.044715 * x * x * x)));
    case Activation::gelu_erf: return 0.5 * x * std::erfc(-x / std::sqrt(2.0));
    case Activation::silu: return x / (1 + std::exp(-x));
    case Activation::relu: return std::max(x, 0.0);
  }
  return 0;
}

double derivative_of(Activation kind, double x) {
  switch (kind) {
    case Activation::gelu_tanh: {
      const double k = std::sqrt(2 / M_PI), t = std::tanh(k * (x + 0.044715 * x * x * x));
      return 0.5 * (1 + t) + 0.5 * x * (1 - t * t) * k * (1 + 3 * 0.044715 * x * x);
    }
    case Activation::gelu_erf: return 0.5 * std::erfc(-x / std::sqrt(2.0)) + x * std::exp(-x * x / 2) / std::sqrt(2 * M_PI);
    case Activation::silu: {
      const double s = 1 / (1 + std::exp(-x));
      return s * (1 + x * (1 - s));
    }
    case Activation::relu: return x > 0 ? 1 : 0;
  }
  return 0;
}

/// Everyday numbers, a fine grid through the bend, and far tails.
Array inputs(DType dtype) {
  std::vector<double> x;
  for (double v = -14; v <= 14; v += 0.0005) x.push_back(v);
  for (const double v : {0.0, -0.0, 1e-30, -1e-30, 1e-6, 25.0, -25.0, 80.0, -80.0, 110.0, -110.0, 6e4, -6e4}) x.push_back(v);
  if (dtype != DType::f16) x.insert(x.end(), {1e9, -1e9, 1e20, -1e20, 3e38, -3e38});
  return Array::of(dtype, x);
}

TEST(RowActivations, ValuesAndGradientsMatchDouble) {
  for (const DType dtype : kAllDTypes) {
    const Array x = inputs(dtype), d_y = Array::normal(dtype, x.size(), 3);
    for (const Activation kind : kKinds) {
      SCOPED_TRACE(static_cast<int>(kind));
      const auto got = on_every_machine([&](Machine& m) {
        const void* dev_x = m.put(x);
        void *y = m.room(x.bytes().size()), *d_x = m.room(x.bytes().size());
        void* y_again = m.room(x.bytes().size());
        m.rows().activation(m.stream(), dtype, kind, x.size(), dev_x, y);
        m.rows().activation_backward(m.stream(), dtype, kind, x.size(), dev_x, m.put(d_y), y_again, d_x);
        EXPECT_EQ(m.get(y_again, dtype, x.size()), m.get(y, dtype, x.size()));
        return std::pair(m.get(y, dtype, x.size()), m.get(d_x, dtype, x.size()));
      });
      std::vector<double> y, d_x;
      for (int64_t i = 0; i < x.size(); ++i) {
        y.push_back(value_of(kind, x[i]));
        d_x.push_back(d_y[i] * derivative_of(kind, x[i]));
      }
      expect_close(got.first, y, dtype == DType::f32 ? 60 : 1.1, 2, "y");
      expect_close(got.second, d_x, dtype == DType::f32 ? 10 : 1.1, 40, "d_x");
    }
  }
}

TEST(RowActivations, TheLowerTailOfGeluKeepsItsDigits) {
  // 1 + tanh(u) and 1 + erf(u) in fp32 are off by 1e-4 and more here.
  const Array x = Array::of(DType::f32, {-3.0, -4.0, -4.5, -5.0});
  with_every_instruction_set([&](Machine& m) {
    void* y = m.room(x.bytes().size());
    for (const Activation kind : {Activation::gelu_tanh, Activation::gelu_erf}) {
      m.rows().activation(m.stream(), DType::f32, kind, x.size(), m.put(x), y);
      const Array got = m.get(y, DType::f32, x.size());
      for (int64_t i = 0; i < x.size(); ++i) {
        EXPECT_NEAR(got[i] / value_of(kind, x[i]), 1.0, 5e-6) << static_cast<int>(kind) << " of " << x[i];
      }
    }
  });
}

TEST(RowActivations, NanStaysNan) {
  const Array x = Array::of(DType::f32, {NAN, NAN, NAN, 1.0});
  with_every_instruction_set([&](Machine& m) {
    void* y = m.room(x.bytes().size());
    for (const Activation kind : kKinds) {
      m.rows().activation(m.stream(), DType::f32, kind, x.size(), m.put(x), y);
      EXPECT_TRUE(std::isnan(m.get(y, DType::f32, x.size())[1])) << static_cast<int>(kind);
      EXPECT_FALSE(std::isnan(m.get(y, DType::f32, x.size())[3])) << static_cast<int>(kind);
    }
  });
}

TEST(RowActivations, GatedValuesAndGradientsMatchDoubleAlsoInPlace) {
  for (const DType dtype : kAllDTypes) {
    for (const Activation kind : kKinds) {
      for (const auto& [rows, columns] : {std::pair<int64_t, int64_t>{1, 1}, {5, 33}, {100, 700}}) {
        const Array gate_up = Array::normal(dtype, rows * columns * 2, 5, 2.0), d_y = Array::normal(dtype, rows * columns, 6);
        const auto got = on_every_machine([&](Machine& m) {
          const void *dev_gate_up = m.put(gate_up), *dev_d_y = m.put(d_y);
          void *y = m.room(d_y.bytes().size()), *d_gate_up = m.room(gate_up.bytes().size()), *in_place = m.put(gate_up), *y_again = m.room(d_y.bytes().size());
          m.rows().gated_activation(m.stream(), dtype, kind, rows, columns, dev_gate_up, y);
          m.rows().gated_activation_backward(m.stream(), dtype, kind, rows, columns, dev_gate_up, dev_d_y, y_again, d_gate_up);
          EXPECT_EQ(m.get(y_again, dtype, d_y.size()), m.get(y, dtype, d_y.size()));
          m.rows().gated_activation_backward(m.stream(), dtype, kind, rows, columns, in_place, dev_d_y, y_again, in_place);
          EXPECT_EQ(m.get(y_again, dtype, d_y.size()), m.get(y, dtype, d_y.size()));
          EXPECT_EQ(m.get(in_place, dtype, gate_up.size()), m.get(d_gate_up, dtype, gate_up.size()));
          return std::pair(m.get(y, dtype, d_y.size()), m.get(d_gate_up, dtype, gate_up.size()));
        });
        std::vector<double> y, d_gate_up(static_cast<size_t>(gate_up.size()));
        for (int64_t i = 0; i < rows * columns; ++i) {
          const int64_t at = i / columns * 2 * columns + i % columns;
          const double gate = gate_up[at], up = gate_up[at + columns];
          y.push_back(value_of(kind, gate) * up);
          d_gate_up[static_cast<size_t>(at)] = d_y[i] * up * derivative_of(kind, gate);
          d_gate_up[static_cast<size_t>(at + columns)] = d_y[i] * value_of(kind, gate);
        }
        expect_close(got.first, y, dtype == DType::f32 ? 20 : 1.1, 10, "y");
        expect_close(got.second, d_gate_up, dtype == DType::f32 ? 20 : 1.1, 50, "d_gate_up");
      }
    }
  }
}

TEST(RowActivations, GradientsRunInPlace) {
  for (const DType dtype : kAllDTypes) {
    const Array x = Array::normal(dtype, 1000, 1), d_y = Array::normal(dtype, 1000, 2);
    with_every_instruction_set([&](Machine& m) {
      void *d_x = m.room(x.bytes().size()), *in_place = m.put(d_y), *y = m.room(x.bytes().size());
      m.rows().activation_backward(m.stream(), dtype, Activation::gelu_tanh, 1000, m.put(x), m.put(d_y), y, d_x);
      m.rows().activation_backward(m.stream(), dtype, Activation::gelu_tanh, 1000, m.put(x), in_place, y, in_place);
      EXPECT_EQ(m.get(in_place, dtype, 1000), m.get(d_x, dtype, 1000));
    });
  }
}

}  // namespace
}  // namespace strata::gpu
