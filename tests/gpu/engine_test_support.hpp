// Numbers for tests of kernels: seeded values, arrays in device memory in any compute dtype, and relative errors.
#pragma once

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <random>
#include <vector>

#include "core/dtype.hpp"
#include "gpu/host/host_device.hpp"

namespace strata::gpu {

using Values = std::vector<double>;

inline double rounded(DType dtype, double value) {
  const auto single = static_cast<float>(value);
  return dtype == DType::f32 ? single : float_from_half(dtype, half_from_float(dtype, single));
}

/// Normal values of that standard deviation, as the dtype holds them.
inline Values random_values(std::mt19937_64& random, int64_t count, DType dtype, double deviation = 1.0) {
  std::normal_distribution<double> normal(0.0, deviation);
  Values values(static_cast<size_t>(count));
  for (double& value : values) value = rounded(dtype, normal(random));
  return values;
}

/// The largest error relative to the largest magnitude: what a dtype's rounding bounds, where single elements cancel.
inline double relative_error(const Values& got, const Values& want) {
  EXPECT_EQ(got.size(), want.size());
  double scale = 1e-30, error = 0;
  for (const double value : want) scale = std::max(scale, std::abs(value));
  for (size_t i = 0; i < want.size(); ++i) {
    if (!std::isfinite(got[i])) return std::numeric_limits<double>::infinity();
    error = std::max(error, std::abs(got[i] - want[i]));
  }
  return error / scale;
}

/// The same by the root of the sums of squares.
inline double relative_norm_error(const Values& got, const Values& want) {
  EXPECT_EQ(got.size(), want.size());
  double scale = 1e-60, error = 0;
  for (size_t i = 0; i < want.size(); ++i) {
    scale += want[i] * want[i];
    error += (got[i] - want[i]) * (got[i] - want[i]);
  }
  return std::isfinite(error) ? std::sqrt(error / scale) : std::numeric_limits<double>::infinity();
}

/// A device with one compute stream; freed and fresh memory is NaN.
class KernelTest : public testing::Test {
 protected:
  static constexpr std::chrono::milliseconds kLong{60000};

  explicit KernelTest(int threads = 2)
      : device_(HostDevice::create({.memory_bytes = 512ull << 20, .compute_threads = threads, .poison = true})),
        stream_(device_->create_stream(Device::StreamKind::compute, "test")) {}

  DeviceBuffer upload_bytes(const void* data, uint64_t bytes) {
    DeviceBuffer buffer = device_->allocate(bytes);
    device_->copy(*stream_, buffer.data(), data, bytes, CopyDirection::host_to_device);
    device_->synchronize(*stream_, kLong);
    return buffer;
  }
  DeviceBuffer upload(DType dtype, const Values& values) {
    std::vector<std::byte> bytes(values.size() * size_bytes(dtype));
    for (size_t i = 0; i < values.size(); ++i) {
      const auto single = static_cast<float>(values[i]);
      const uint16_t half = dtype == DType::f32 ? 0 : half_from_float(dtype, single);
      std::memcpy(bytes.data() + i * size_bytes(dtype), dtype == DType::f32 ? static_cast<const void*>(&single) : &half,
                  size_bytes(dtype));
    }
    return upload_bytes(bytes.data(), bytes.size());
  }
  std::vector<std::byte> download_bytes(const void* data, uint64_t bytes) {
    std::vector<std::byte> result(bytes);
    device_->copy(*stream_, result.data(), data, bytes, CopyDirection::device_to_host);
    device_->synchronize(*stream_, kLong);
    return result;
  }
  Values download(DType dtype, const void* data, int64_t count) {
    const auto bytes = download_bytes(data, static_cast<uint64_t>(count) * size_bytes(dtype));
    Values values(static_cast<size_t>(count));
    for (size_t i = 0; i < values.size(); ++i) {
      float single;
      uint16_t half;
      std::memcpy(&single, bytes.data() + (dtype == DType::f32 ? i * 4 : 0), sizeof single);
      std::memcpy(&half, bytes.data() + i * size_bytes(dtype), sizeof half);
      values[i] = dtype == DType::f32 ? single : float_from_half(dtype, half);
    }
    return values;
  }

  std::unique_ptr<HostDevice> device_;
  std::unique_ptr<Stream> stream_;
};

}  // namespace strata::gpu
