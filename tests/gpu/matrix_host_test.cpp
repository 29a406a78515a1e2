// The host device's linear layers against products in double, for every dtype, weight order and epilogue.
#include "gpu/matrix_kernels.hpp"

#include "gpu/host/matrix_kernels_pack.hpp"
#include "tests/gpu/engine_test_support.hpp"

namespace strata::gpu {
namespace {

struct Case {
  DType dtype;
  DType output_dtype;
  WeightOrder order;
  bool bias, residual;
  int64_t tokens, tail_tokens, inputs, outputs;
};

std::string name_of(const testing::TestParamInfo<Case>& info) {
  const Case& c = info.param;
  return fmt::format("{}_{}_{}{}{}_{}x{}x{}", to_string(c.dtype), to_string(c.output_dtype),
                     c.order == WeightOrder::output_major ? "out_in" : "in_out", c.bias ? "_bias" : "", c.residual ? "_residual" : "",
                     c.tokens, c.inputs, c.outputs);
}

class HostLinear : public KernelTest, public testing::WithParamInterface<Case> {
 protected:
  void run(const Case& c, int64_t tokens, Linear& linear);

  std::mt19937_64 random_{20240607};
  std::unique_ptr<MatrixKernels> kernels_ = make_host_matrix_kernels(device_->info());
};

std::vector<Case> all_cases() {
  std::vector<Case> cases;
  const int64_t sizes[][4] = {{5, 0, 7, 3}, {48, 16, 64, 96}, {33, 0, 130, 257}, {1, 0, 16, 8}};
  for (const DType dtype : {DType::f32, DType::bf16, DType::f16}) {
    for (const auto order : {WeightOrder::output_major, WeightOrder::input_major}) {
      for (const auto& size : sizes) {
        for (const bool epilogue : {false, true}) {
          cases.push_back({dtype, dtype, order, epilogue, epilogue, size[0], size[1], size[2], size[3]});
        }
      }
    }
    cases.push_back({dtype, dtype, WeightOrder::output_major, false, true, 48, 0, 64, 96});
    cases.push_back({dtype, dtype, WeightOrder::output_major, true, false, 48, 0, 64, 96});
    if (dtype != DType::f32) cases.push_back({dtype, DType::f32, WeightOrder::output_major, false, false, 48, 16, 64, 1001});
  }
  return cases;
}

/// One rounding of a result; sums are in fp32.
double tolerance(DType dtype) { return dtype == DType::f32 ? 2e-6 : dtype == DType::bf16 ? 4.5e-3 : 6e-4; }

void HostLinear::run(const Case& c, int64_t tokens, Linear& linear) {
  const bool output_major = c.order == WeightOrder::output_major;
  const auto weight_at = [&](int64_t in, int64_t out) {
    return static_cast<size_t>(output_major ? out * c.inputs + in : in * c.outputs + out);
  };
  const Values x = random_values(random_, tokens * c.inputs, c.dtype), w = random_values(random_, c.inputs * c.outputs, c.dtype, 0.1);
  const Values bias = random_values(random_, c.outputs, c.dtype), residual = random_values(random_, tokens * c.outputs, c.dtype);
  const Values d_y = random_values(random_, tokens * c.outputs, c.dtype), before = random_values(random_, c.inputs * c.outputs, DType::f32);
  Values y(residual.size()), d_x(x.size()), d_w(w.size()), d_w_added = before;
  for (int64_t t = 0; t < tokens; ++t) {
    for (int64_t out = 0; out < c.outputs; ++out) {
      double sum = (c.bias ? bias[out] : 0.0) + (c.residual ? residual[t * c.outputs + out] : 0.0);
      for (int64_t in = 0; in < c.inputs; ++in) {
        sum += x[t * c.inputs + in] * w[weight_at(in, out)];
        d_x[t * c.inputs + in] += d_y[t * c.outputs + out] * w[weight_at(in, out)];
        d_w[weight_at(in, out)] += d_y[t * c.outputs + out] * x[t * c.inputs + in];
      }
      y[t * c.outputs + out] = sum;
    }
  }
  for (size_t i = 0; i < d_w.size(); ++i) d_w_added[i] += d_w[i];

  const auto x_device = upload(c.dtype, x), w_device = upload(c.dtype, w), bias_device = upload(c.dtype, bias),
             residual_device = upload(c.dtype, residual), d_y_device = upload(c.dtype, d_y);
  const auto gradient = device_->allocate(d_w.size() * 4), added = upload(DType::f32, before);
  const auto y_device = device_->allocate(y.size() * size_bytes(c.output_dtype)), d_x_device = device_->allocate(d_x.size() * size_bytes(c.dtype));
  const auto workspace = device_->allocate(std::max<uint64_t>(1, linear.workspace_bytes()));
  const auto forward_prepared = device_->allocate(std::max<uint64_t>(1, linear.forward_prepared_bytes()));
  const auto backward_prepared = device_->allocate(std::max<uint64_t>(1, linear.backward_prepared_bytes()));
  linear.prepare_forward(*stream_, w_device.data(), forward_prepared.data());
  linear.prepare_backward(*stream_, w_device.data(), backward_prepared.data());
  linear.forward(*stream_, tokens, x_device.data(), w_device.data(), forward_prepared.data(), c.bias ? bias_device.data() : nullptr,
                 c.residual ? residual_device.data() : nullptr, y_device.data(), workspace.data());
  linear.backward_input(*stream_, tokens, d_y_device.data(), w_device.data(), forward_prepared.data(), backward_prepared.data(),
                        d_x_device.data(), workspace.data());
  linear.backward_weight(*stream_, tokens, x_device.data(), d_y_device.data(), reinterpret_cast<float*>(gradient.data()), false,
                         workspace.data());
  linear.backward_weight(*stream_, tokens, x_device.data(), d_y_device.data(), reinterpret_cast<float*>(added.data()), true,
                         workspace.data());
  EXPECT_LT(relative_error(download(c.output_dtype, y_device.data(), y.size()), y), tolerance(c.output_dtype));
  EXPECT_LT(relative_error(download(c.dtype, d_x_device.data(), d_x.size()), d_x), tolerance(c.dtype));
  EXPECT_LT(relative_error(download(DType::f32, gradient.data(), d_w.size()), d_w), tolerance(DType::f32));
  EXPECT_LT(relative_error(download(DType::f32, added.data(), d_w.size()), d_w_added), tolerance(DType::f32));
}

TEST_P(HostLinear, AgreesWithDouble) {
  const Case& c = GetParam();
  LinearSpec spec;
  spec.dtype = c.dtype;
  spec.output_dtype = c.output_dtype;
  spec.tokens = c.tokens;
  spec.tail_tokens = c.tail_tokens;
  spec.inputs = c.inputs;
  spec.outputs = c.outputs;
  spec.order = c.order;
  spec.bias = c.bias;
  spec.residual = c.residual;
  const auto linear = kernels_->create_linear(spec);
  run(c, c.tokens, *linear);
  if (c.tail_tokens > 0) run(c, c.tail_tokens, *linear);
}

INSTANTIATE_TEST_SUITE_P(Shapes, HostLinear, testing::ValuesIn(all_cases()), name_of);

TEST(MatrixPacking, PutsEveryElementInItsPanelAndZerosAround) {
  for (const DType dtype : {DType::f32, DType::bf16}) {
    for (const auto& [depth, columns] : {std::pair{1, 1}, {16, 64}, {130, 257}, {7, 70}, {64, 48}, {33, 12}}) {
      for (const PlainOrder order : {PlainOrder::rows, PlainOrder::transposed}) {
        SCOPED_TRACE(fmt::format("{} {} x {}, order {}", to_string(dtype), depth, columns, static_cast<int>(order)));
        PanelLayout layout;
        layout.dtype = dtype;
        layout.depth = depth;
        layout.padded_depth = (depth + 31) / 32 * 32;
        layout.columns = columns;
        layout.panel_columns = 64;
        const int64_t pairs = dtype == DType::f32 ? 1 : 2;
        const auto fill = [&](auto element) {
          using Element = decltype(element);
          std::vector<Element> plain(static_cast<size_t>(depth * columns));
          for (size_t i = 0; i < plain.size(); ++i) plain[i] = static_cast<Element>(i + 1);
          std::vector<Element> want(static_cast<size_t>(layout.panels() * 64 * layout.padded_depth), 0), got(want.size(), 77);
          for (int64_t k = 0; k < depth; ++k) {
            for (int64_t c = 0; c < columns; ++c) {
              const int64_t in_panel = (k / pairs * 64 + c % 64) * pairs + k % pairs;
              want[static_cast<size_t>(c / 64 * 64 * layout.padded_depth + in_panel)] =
                  plain[static_cast<size_t>(order == PlainOrder::rows ? k * columns + c : c * depth + k)];
            }
          }
          pack_panels(layout, order, plain.data(), got.data());
          EXPECT_EQ(got, want);
        };
        if (dtype == DType::f32) fill(uint32_t{});
        else fill(uint16_t{});
      }
    }
  }
}

TEST(MatrixPacking, TransposesHalves) {
  for (const auto& [rows, columns] : {std::pair{2, 1}, {64, 64}, {10, 7}, {130, 257}, {66, 128}}) {
    SCOPED_TRACE(fmt::format("{} x {}", rows, columns));
    std::vector<uint16_t> plain(static_cast<size_t>(rows * columns)), got(plain.size() + 1, 77), want(plain.size() + 1, 77);
    for (int i = 0; i < rows; ++i) {
      for (int j = 0; j < columns; ++j) {
        plain[static_cast<size_t>(i * columns + j)] = want[static_cast<size_t>(j * rows + i)] = static_cast<uint16_t>(i * columns + j);
      }
    }
    transpose_halves(rows, columns, plain.data(), got.data());
    EXPECT_EQ(got, want);
  }
}

class HostLinearChecks : public KernelTest {};

TEST_F(HostLinearChecks, RefusesARowCountThatWasNotPlanned) {
  const auto kernels = make_host_matrix_kernels(device_->info());
  LinearSpec spec;
  spec.tokens = 4;
  spec.inputs = spec.outputs = 8;
  const auto linear = kernels->create_linear(spec);
  const auto memory = device_->allocate(1 << 16);
  EXPECT_THROW(linear->forward(*stream_, 3, memory.data(), memory.data(), memory.data(), nullptr, nullptr, memory.data(), memory.data()),
               Error);
}

TEST_F(HostLinearChecks, KeepsBitsWhenCalledAgainElsewhere) {
  std::mt19937_64 random(7);
  const auto kernels = make_host_matrix_kernels(device_->info());
  for (const DType dtype : {DType::f32, DType::bf16, DType::f16}) {
    LinearSpec spec;
    spec.dtype = spec.output_dtype = dtype;
    spec.tokens = 96;
    spec.inputs = 192;
    spec.outputs = 160;
    const auto linear = kernels->create_linear(spec);
    const auto x = upload(dtype, random_values(random, 96 * 192, dtype)), w = upload(dtype, random_values(random, 192 * 160, dtype));
    const auto prepared = device_->allocate(std::max<uint64_t>(1, linear->forward_prepared_bytes()));
    linear->prepare_forward(*stream_, w.data(), prepared.data());
    std::vector<std::byte> first;
    for (int repeat = 0; repeat < 3; ++repeat) {
      const auto shift = device_->allocate(4096 + 4096 * static_cast<uint64_t>(repeat));
      const auto workspace = device_->allocate(linear->workspace_bytes() + 1), y = device_->allocate(96 * 160 * size_bytes(dtype));
      linear->forward(*stream_, 96, x.data(), w.data(), prepared.data(), nullptr, nullptr, y.data(), workspace.data());
      const auto bytes = download_bytes(y.data(), y.bytes());
      if (repeat == 0) first = bytes;
      EXPECT_EQ(bytes, first) << to_string(dtype);
    }
  }
}

}  // namespace
}  // namespace strata::gpu
