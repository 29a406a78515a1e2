// The host device's attention against one written out in double, forward and backward.
#include "gpu/attention_kernels.hpp"
#include "tests/gpu/engine_test_support.hpp"

namespace strata::gpu {
namespace {

struct Reference {
  Values output, log_sum_exp, d_qkv;
};

/// Softmax attention and its gradient, one query at a time.
Reference attend(const AttentionShape& s, const Values& qkv, const Values& d_output) {
  const int64_t columns = (s.heads + 2 * s.kv_heads) * s.head_dim, out_columns = s.heads * s.head_dim;
  Reference r;
  r.output.assign(d_output.size(), 0.0);
  r.d_qkv.assign(qkv.size(), 0.0);
  for (int64_t b = 0; b < s.sequences; ++b) {
    for (int64_t head = 0; head < s.heads; ++head) {
      const int64_t kv = head / (s.heads / s.kv_heads);
      const auto q_at = [&](int64_t t) { return (b * s.sequence_length + t) * columns + head * s.head_dim; };
      const auto k_at = [&](int64_t t) { return (b * s.sequence_length + t) * columns + (s.heads + kv) * s.head_dim; };
      const auto v_at = [&](int64_t t) { return k_at(t) + s.kv_heads * s.head_dim; };
      for (int64_t t = 0; t < s.sequence_length; ++t) {
        const int64_t oldest = s.window == 0 ? 0 : std::max<int64_t>(0, t - s.window + 1);
        const int64_t o_at = (b * s.sequence_length + t) * out_columns + head * s.head_dim;
        Values p(static_cast<size_t>(t + 1), 0.0);
        double maximum = -1e300, sum = 0;
        for (int64_t j = oldest; j <= t; ++j) {
          for (int64_t i = 0; i < s.head_dim; ++i) p[j] += s.scale * qkv[q_at(t) + i] * qkv[k_at(j) + i];
          maximum = std::max(maximum, p[j]);
        }
        for (int64_t j = oldest; j <= t; ++j) sum += p[j] = std::exp(p[j] - maximum);
        r.log_sum_exp.push_back(maximum + std::log(sum));
        double delta = 0;
        Values d_p(p.size(), 0.0);
        for (int64_t j = oldest; j <= t; ++j) {
          p[j] /= sum;
          for (int64_t i = 0; i < s.head_dim; ++i) {
            r.output[o_at + i] += p[j] * qkv[v_at(j) + i];
            r.d_qkv[v_at(j) + i] += p[j] * d_output[o_at + i];
            d_p[j] += d_output[o_at + i] * qkv[v_at(j) + i];
          }
          delta += p[j] * d_p[j];
        }
        for (int64_t j = oldest; j <= t; ++j) {
          for (int64_t i = 0; i < s.head_dim; ++i) {
            r.d_qkv[q_at(t) + i] += s.scale * p[j] * (d_p[j] - delta) * qkv[k_at(j) + i];
            r.d_qkv[k_at(j) + i] += s.scale * p[j] * (d_p[j] - delta) * qkv[q_at(t) + i];
          }
        }
      }
    }
  }
  return r;
}

struct Results {
  std::vector<std::byte> output, log_sum_exp, d_qkv;
  bool operator==(const Results&) const = default;
};

class HostAttention : public KernelTest {
 protected:
  Results run(const AttentionShape& shape, const Values& qkv, const Values& d_output, int threads = 2) {
    DeviceInfo info = device_->info();
    info.compute_threads = threads;
    const auto kernels = make_host_attention_kernels(info);
    const uint64_t element = size_bytes(shape.dtype);
    const auto qkv_device = upload(shape.dtype, qkv), d_output_device = upload(shape.dtype, d_output);
    const auto output = device_->allocate(d_output.size() * element), d_qkv = device_->allocate(qkv.size() * element);
    const auto log_sums = device_->allocate(static_cast<uint64_t>(shape.sequences * shape.sequence_length * shape.heads) * 4);
    const auto workspace = device_->allocate(kernels->workspace_bytes(shape));
    float* const lse = reinterpret_cast<float*>(log_sums.data());
    kernels->forward(*stream_, shape, qkv_device.data(), output.data(), lse, workspace.data());
    kernels->backward(*stream_, shape, qkv_device.data(), output.data(), lse, d_output_device.data(), d_qkv.data(), workspace.data());
    return {download_bytes(output.data(), output.bytes()), download_bytes(lse, log_sums.bytes()),
            download_bytes(d_qkv.data(), d_qkv.bytes())};
  }
  static Values decoded(DType dtype, const std::vector<std::byte>& bytes) {
    Values values(bytes.size() / size_bytes(dtype));
    for (size_t i = 0; i < values.size(); ++i) {
      if (dtype == DType::f32) {
        float value;
        std::memcpy(&value, &bytes[i * 4], 4);
        values[i] = value;
      } else {
        uint16_t value;
        std::memcpy(&value, &bytes[i * 2], 2);
        values[i] = float_from_half(dtype, value);
      }
    }
    return values;
  }
  std::mt19937_64 random_{99};
};

std::vector<AttentionShape> shapes(DType dtype) {
  return {
      {.dtype = dtype, .sequences = 1, .sequence_length = 1, .heads = 1, .kv_heads = 1, .head_dim = 4, .window = 0, .scale = 0.5f},
      {.dtype = dtype, .sequences = 2, .sequence_length = 17, .heads = 4, .kv_heads = 2, .head_dim = 8, .window = 0, .scale = 0.35f},
      {.dtype = dtype, .sequences = 1, .sequence_length = 64, .heads = 2, .kv_heads = 2, .head_dim = 64, .window = 0, .scale = 0.125f},
      {.dtype = dtype, .sequences = 2, .sequence_length = 150, .heads = 6, .kv_heads = 2, .head_dim = 80, .window = 0, .scale = 0.11f},
      {.dtype = dtype, .sequences = 1, .sequence_length = 200, .heads = 2, .kv_heads = 1, .head_dim = 20, .window = 5, .scale = 0.3f},
      {.dtype = dtype, .sequences = 1, .sequence_length = 193, .heads = 3, .kv_heads = 1, .head_dim = 32, .window = 70, .scale = 0.2f},
      {.dtype = dtype, .sequences = 1, .sequence_length = 130, .heads = 1, .kv_heads = 1, .head_dim = 128, .window = 1, .scale = 0.09f},
  };
}

TEST_F(HostAttention, AgreesWithDouble) {
  for (const DType dtype : {DType::f32, DType::bf16, DType::f16}) {
    const double tolerance = dtype == DType::f32 ? 3e-6 : dtype == DType::bf16 ? 8e-3 : 1e-3;
    for (const AttentionShape& shape : shapes(dtype)) {
      SCOPED_TRACE(fmt::format("{} length {} heads {}/{} of {} window {}", to_string(dtype), shape.sequence_length, shape.heads,
                               shape.kv_heads, shape.head_dim, shape.window));
      const int64_t rows = shape.sequences * shape.sequence_length;
      const Values qkv = random_values(random_, rows * (shape.heads + 2 * shape.kv_heads) * shape.head_dim, dtype);
      const Values d_output = random_values(random_, rows * shape.heads * shape.head_dim, dtype);
      const Results got = run(shape, qkv, d_output);
      const Reference want = attend(shape, qkv, d_output);
      EXPECT_LT(relative_error(decoded(dtype, got.output), want.output), tolerance);
      EXPECT_LT(relative_error(decoded(DType::f32, got.log_sum_exp), want.log_sum_exp), 1e-6);
      EXPECT_LT(relative_error(decoded(dtype, got.d_qkv), want.d_qkv), tolerance);
    }
  }
}

TEST_F(HostAttention, LargeScoresDoNotOverflow) {
  const AttentionShape shape{.dtype = DType::f32, .sequences = 1, .sequence_length = 100, .heads = 1, .kv_heads = 1, .head_dim = 16,
                             .window = 0, .scale = 1.0f};
  const Values qkv = random_values(random_, 100 * 48, DType::f32, 30.0), d_output = random_values(random_, 100 * 16, DType::f32);
  const Results got = run(shape, qkv, d_output);
  const Reference want = attend(shape, qkv, d_output);
  EXPECT_LT(relative_error(decoded(DType::f32, got.output), want.output), 1e-3);
  EXPECT_LT(relative_error(decoded(DType::f32, got.log_sum_exp), want.log_sum_exp), 1e-5);
}

TEST_F(HostAttention, KeepsBitsForEveryThreadCount) {
  for (const DType dtype : {DType::f32, DType::bf16}) {
    const AttentionShape shape{.dtype = dtype, .sequences = 3, .sequence_length = 140, .heads = 4, .kv_heads = 2, .head_dim = 32,
                               .window = 0, .scale = 0.2f};
    const Values qkv = random_values(random_, 3 * 140 * 8 * 32, dtype), d_output = random_values(random_, 3 * 140 * 4 * 32, dtype);
    const Results one = run(shape, qkv, d_output, 1);
    EXPECT_EQ(run(shape, qkv, d_output, 2), one);
    EXPECT_EQ(run(shape, qkv, d_output, 2), one);
  }
}

TEST_F(HostAttention, ANanInAnyInputReachesTheResult) {
  const AttentionShape shape{.dtype = DType::f32, .sequences = 1, .sequence_length = 70, .heads = 1, .kv_heads = 1, .head_dim = 16,
                             .window = 0, .scale = 0.25f};
  const Values clean = random_values(random_, 70 * 48, DType::f32), d_output = random_values(random_, 70 * 16, DType::f32);
  for (const size_t part : {0u, 16u, 32u}) {
    Values qkv = clean;
    qkv[3 * 48 + part + 1] = std::nan("");
    const Values output = decoded(DType::f32, run(shape, qkv, d_output).output);
    EXPECT_TRUE(std::any_of(output.begin(), output.end(), [](double value) { return std::isnan(value); })) << part;
  }
}

}  // namespace
}  // namespace strata::gpu
