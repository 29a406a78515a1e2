// Rates of the host device's row kernels, each on the shapes of a training step (512 tokens), by compute dtype. Beside them the rate of a
// copy between buffers of the same size, which is the floor of a kernel that does no arithmetic.
#include <benchmark/benchmark.h>

#include <cstring>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "core/dtype.hpp"
#include "gpu/host/host_device.hpp"
#include "gpu/row_kernels.hpp"

namespace strata::gpu {
namespace {

constexpr auto kDeadline = std::chrono::minutes(10);
constexpr int64_t kTokens = 512, kHidden = 1024, kMiddle = 4096, kVocabulary = 32000, kHeads = 16, kHeadDim = 64;
constexpr uint64_t kBytes = kTokens * kVocabulary * sizeof(float);  // of the largest buffer

/// A device of one thread a core, its stream, and memory for the largest kernel, filled with small values.
struct Bench {
  Bench() {
    for (DeviceBuffer* buffer : {&x, &y, &z, &floats, &scratch}) {
      *buffer = device->allocate(kBytes);
      std::memset(buffer->data(), 0, kBytes);
    }
  }
  void fill(DType dtype) {
    for (DeviceBuffer* buffer : {&x, &y, &z}) {
      for (uint64_t i = 0; i < kBytes / size_bytes(dtype); ++i) {
        const float value = (static_cast<float>(i % 251) - 125.0f) / 64.0f;
        if (dtype == DType::f32) reinterpret_cast<float*>(buffer->data())[i] = value;
        else reinterpret_cast<uint16_t*>(buffer->data())[i] = half_from_float(dtype, value);
      }
    }
  }
  float* statistics() { return reinterpret_cast<float*>(floats.data()); }
  float* sums() { return reinterpret_cast<float*>(floats.data()) + kTokens * kMiddle; }
  double* losses() { return reinterpret_cast<double*>(scratch.data()); }

  std::unique_ptr<HostDevice> device = HostDevice::create({.memory_bytes = 4ull << 30, .pin_threads = true});
  std::unique_ptr<Stream> stream = device->create_stream(Device::StreamKind::compute, "compute");
  DeviceBuffer x, y, z, floats, scratch;
  RowKernels& rows = device->rows();
};

Bench& shared_bench() {
  static Bench bench;
  return bench;
}

/// A kernel, and the elements of the compute dtype that it reads and writes.
struct Kernel {
  std::string name;
  int64_t elements;
  std::function<void(Bench&, DType)> run;
};

std::vector<Kernel> kernels() {
  constexpr Rows kRows{kTokens, kHidden, kHidden}, kWide{kTokens, kMiddle, kMiddle};
  constexpr int64_t kWidth = kTokens * kHidden, kUp = kTokens * kMiddle;
  return {
      {"rms_norm", 2 * kWidth,
       [=](Bench& b, DType t) { b.rows.rms_norm(*b.stream, t, kRows, b.x.data(), b.y.data(), 1e-5f, b.z.data(), kHidden, b.statistics()); }},
      {"rms_norm_backward", 3 * kWidth,
       [=](Bench& b, DType t) {
         b.rows.rms_norm_backward(*b.stream, t, kRows, b.x.data(), b.y.data(), b.statistics(), b.y.data(), kHidden, b.z.data(), kHidden,
                                  false, b.sums(), false, b.scratch.data());
       }},
      {"layer_norm", 2 * kWidth,
       [=](Bench& b, DType t) {
         b.rows.layer_norm(*b.stream, t, kRows, b.x.data(), b.y.data(), b.y.data(), 1e-5f, b.z.data(), kHidden, b.statistics());
       }},
      {"layer_norm_backward", 3 * kWidth,
       [=](Bench& b, DType t) {
         b.rows.layer_norm_backward(*b.stream, t, kRows, b.x.data(), b.y.data(), b.statistics(), b.y.data(), kHidden, b.z.data(), kHidden,
                                    false, b.sums(), b.sums() + kHidden, false, b.scratch.data());
       }},
      {"rope", 2 * kWidth,
       [=](Bench& b, DType t) {
         b.rows.rope(*b.stream, t, kRows, b.x.data(), kHeads, kHeadDim, b.statistics(), b.statistics(), 256, false);
       }},
      {"gelu_tanh", 2 * kUp,
       [=](Bench& b, DType t) { b.rows.activation(*b.stream, t, Activation::gelu_tanh, kUp, b.x.data(), b.z.data()); }},
      {"gelu_tanh_backward", 4 * kUp,
       [=](Bench& b, DType t) {
         b.rows.activation_backward(*b.stream, t, Activation::gelu_tanh, kUp, b.x.data(), b.y.data(), b.z.data(), b.y.data());
       }},
      {"silu_gated", 3 * kUp,
       [=](Bench& b, DType t) { b.rows.gated_activation(*b.stream, t, Activation::silu, kTokens, kMiddle, b.x.data(), b.z.data()); }},
      {"silu_gated_backward", 6 * kUp,
       [=](Bench& b, DType t) {
         b.rows.gated_activation_backward(*b.stream, t, Activation::silu, kTokens, kMiddle, b.x.data(), b.y.data(), b.floats.data(), b.z.data());
       }},
      {"column_sum", kUp,
       [=](Bench& b, DType t) { b.rows.column_sum(*b.stream, t, kWide, b.x.data(), b.sums(), false, b.scratch.data()); }},
      {"add", 3 * kUp, [=](Bench& b, DType t) { b.rows.add(*b.stream, t, kUp, b.x.data(), b.y.data(), b.z.data()); }},
      {"sum_squares", kUp, [=](Bench& b, DType t) { b.rows.sum_squares(*b.stream, t, kUp, b.x.data(), b.losses()); }},
      {"copy", 2 * kUp,
       [=](Bench& b, DType t) {
         b.device->copy(*b.stream, b.z.data(), b.x.data(), static_cast<uint64_t>(kUp) * size_bytes(t), CopyDirection::device_to_device);
       }},
      // fp32 logits in, a gradient in the compute dtype out.
      {"cross_entropy", 2 * kTokens * kVocabulary,
       [=](Bench& b, DType t) {
         static const std::vector<int32_t> labels(kTokens, 7);
         void* const gradient = t == DType::f32 ? b.floats.data() : b.z.data();
         b.rows.cross_entropy(*b.stream, DType::f32, kTokens, kVocabulary, b.floats.data(), labels.data(), 1.0f, b.losses(), t, gradient);
       }},
  };
}

void measure(benchmark::State& state, const Kernel& kernel, DType dtype) {
  Bench& bench = shared_bench();
  bench.fill(dtype);
  for (auto _ : state) {
    kernel.run(bench, dtype);
    bench.device->synchronize(*bench.stream, kDeadline);
  }
  state.counters["elements/s"] =
      benchmark::Counter(static_cast<double>(kernel.elements), benchmark::Counter::kIsIterationInvariantRate);
}

}  // namespace
}  // namespace strata::gpu

int main(int argc, char** argv) {
  using namespace strata;
  benchmark::Initialize(&argc, argv);
  if (benchmark::ReportUnrecognizedArguments(argc, argv)) return 2;
  for (const gpu::Kernel& kernel : gpu::kernels()) {
    for (const DType dtype : {DType::f32, DType::bf16, DType::f16}) {
      benchmark::RegisterBenchmark((kernel.name + "/" + std::string(to_string(dtype))).c_str(),
                                   [=](benchmark::State& state) { gpu::measure(state, kernel, dtype); })
          ->Unit(benchmark::kMicrosecond)
          ->UseRealTime();
    }
  }
  benchmark::RunSpecifiedBenchmarks();
  benchmark::Shutdown();
}
