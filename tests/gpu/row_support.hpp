// What the tests of the row kernels share: arrays in any format, a host device that takes them in and gives results back, and
// comparison with numbers computed in double.
#pragma once

#include <gtest/gtest.h>
#include <hwy/targets.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <functional>
#include <memory>
#include <random>
#include <vector>

#include "core/dtype.hpp"
#include "gpu/host/host_device.hpp"
#include "gpu/row_kernels.hpp"

namespace strata::gpu {

/// While it lives, the row kernels use one of the instruction sets that they are compiled for.
class InstructionSet {
 public:
  explicit InstructionSet(int64_t set) : trace_(__FILE__, __LINE__, set == 0 ? "baseline" : hwy::TargetName(set)) {
    hwy::GetChosenTarget().Update(set);
  }
  ~InstructionSet() { hwy::GetChosenTarget().Update(hwy::SupportedTargets()); }
  InstructionSet(const InstructionSet&) = delete;
  InstructionSet& operator=(const InstructionSet&) = delete;

 private:
  testing::ScopedTrace trace_;
};

/// Those that this processor has; 0 is what every processor of its architecture has.
inline std::vector<int64_t> instruction_sets() {
  std::vector<int64_t> sets = {0};
  for (const int64_t set : {HWY_AVX2, HWY_AVX3}) {
    if ((hwy::SupportedTargets() & set) != 0) sets.push_back(set);
  }
  return sets;
}

inline constexpr DType kAllDTypes[] = {DType::f32, DType::bf16, DType::f16};

/// Half the distance of two neighbours around 1: what storing in the format may change, relatively.
inline double rounding(DType dtype) { return dtype == DType::f32 ? 0x1p-24 : dtype == DType::bf16 ? 0x1p-8 : 0x1p-11; }

/// Numbers in one format, in host memory.
class Array {
 public:
  Array() = default;
  Array(DType dtype, int64_t count) : dtype_(dtype), bytes_(static_cast<size_t>(count) * size_bytes(dtype)) {}
  static Array normal(DType dtype, int64_t count, uint64_t seed, double scale = 1.0, double mean = 0.0) {
    Array array(dtype, count);
    std::mt19937_64 random(seed);
    std::normal_distribution<double> distribution(mean, scale);
    for (int64_t i = 0; i < count; ++i) array.set(i, distribution(random));
    return array;
  }
  static Array of(DType dtype, const std::vector<double>& values) {
    Array array(dtype, static_cast<int64_t>(values.size()));
    for (size_t i = 0; i < values.size(); ++i) array.set(static_cast<int64_t>(i), values[i]);
    return array;
  }

  DType dtype() const { return dtype_; }
  int64_t size() const { return static_cast<int64_t>(bytes_.size() / size_bytes(dtype_)); }
  std::vector<std::byte>& bytes() { return bytes_; }
  const std::vector<std::byte>& bytes() const { return bytes_; }
  bool operator==(const Array&) const = default;

  double operator[](int64_t i) const {
    if (dtype_ == DType::f32) return load<float>(i);
    return float_from_half(dtype_, load<uint16_t>(i));
  }
  void set(int64_t i, double value) {
    if (dtype_ == DType::f32) store(i, static_cast<float>(value));
    else store(i, half_from_float(dtype_, static_cast<float>(value)));
  }

 private:
  template <class T>
  T load(int64_t i) const {
    T value;
    std::memcpy(&value, bytes_.data() + static_cast<size_t>(i) * sizeof(T), sizeof(T));
    return value;
  }
  template <class T>
  void store(int64_t i, T value) {
    std::memcpy(bytes_.data() + static_cast<size_t>(i) * sizeof(T), &value, sizeof(T));
  }

  DType dtype_ = DType::f32;
  std::vector<std::byte> bytes_;
};

/// A host device with poisoned memory, one compute stream, and buffers that live as long as it does.
class Machine {
 public:
  explicit Machine(int threads)
      : device_(HostDevice::create({.memory_bytes = 1ull << 30, .compute_threads = threads, .poison = true})),
        stream_(device_->create_stream(Device::StreamKind::compute, "compute")) {}

  /// Everything that was put or taken is given up.
  void clear() {
    device_->synchronize(*stream_, kDeadline);
    slabs_.resize(std::min<size_t>(slabs_.size(), 1));
    slab_taken_ = 0;
  }

  RowKernels& rows() { return device_->rows(); }
  Stream& stream() { return *stream_; }

  void* put(const Array& array) { return put_bytes(array.bytes().data(), array.bytes().size()); }
  template <class T>
  T* put(const std::vector<T>& values) {
    return static_cast<T*>(put_bytes(values.data(), values.size() * sizeof(T)));
  }
  /// Memory full of NaN.
  template <class T = void>
  T* room(uint64_t bytes) {
    const uint64_t taken = (bytes + 255) / 256 * 256;
    if (slabs_.empty() || slabs_.back().bytes() - slab_taken_ < taken) {
      slabs_.push_back(device_->allocate(std::max<uint64_t>(taken, 4u << 20)));
      slab_taken_ = 0;
    }
    std::byte* const data = slabs_.back().data() + slab_taken_;
    slab_taken_ += taken;
    device_->fill(*stream_, data, 0xff, taken);  // the slab may have been used before
    return reinterpret_cast<T*>(data);
  }

  Array get(const void* from, DType dtype, int64_t count) {
    Array array(dtype, count);
    get_bytes(array.bytes().data(), from, array.bytes().size());
    return array;
  }
  template <class T>
  std::vector<T> get(const T* from, int64_t count) {
    std::vector<T> values(static_cast<size_t>(count));
    get_bytes(values.data(), from, values.size() * sizeof(T));
    return values;
  }

 private:
  void* put_bytes(const void* data, uint64_t bytes) {
    void* const to = room(bytes);
    device_->copy(*stream_, to, data, bytes, CopyDirection::host_to_device);
    device_->synchronize(*stream_, kDeadline);
    return to;
  }
  void get_bytes(void* to, const void* from, uint64_t bytes) {
    device_->copy(*stream_, to, from, bytes, CopyDirection::device_to_host);
    device_->synchronize(*stream_, kDeadline);
  }

  static constexpr std::chrono::milliseconds kDeadline{60000};
  std::unique_ptr<HostDevice> device_;
  std::vector<DeviceBuffer> slabs_;
  uint64_t slab_taken_ = 0;
  std::unique_ptr<Stream> stream_;  // destroyed first: it drains, and its work uses the slabs
};

/// Runs `body` on machines of 1, 2 and 5 threads with every instruction set, and returns its results, which must have the same bits
/// everywhere.
template <class Body>
auto on_every_machine(const Body& body) {
  static Machine machines[] = {Machine(1), Machine(2), Machine(5)};  // kept, because starting a team of threads takes longer than a test
  const auto run = [&](int64_t set, Machine& machine) {
    const InstructionSet scope(set);
    machine.clear();
    return body(machine);
  };
  const auto expected = run(0, machines[0]);
  for (const int64_t set : instruction_sets()) {
    for (Machine& machine : machines) {
      EXPECT_EQ(run(set, machine), expected) << "the bits depend on the thread count or the instruction set " << set;
    }
  }
  return expected;
}

/// Calls body(machine) with every instruction set.
template <class Body>
void with_every_instruction_set(const Body& body) {
  for (const int64_t set : instruction_sets()) {
    const InstructionSet scope(set);
    Machine machine(2);
    body(machine);
  }
}

/// Within `roundings` storage errors of the wanted number, or of `scale` fp32 errors where sums cancel.
inline void expect_close(const Array& got, const std::vector<double>& wanted, double roundings, double scale, const char* what) {
  ASSERT_EQ(got.size(), static_cast<int64_t>(wanted.size())) << what;
  int failures = 0;
  for (int64_t i = 0; i < got.size() && failures < 5; ++i) {
    const double want = wanted[static_cast<size_t>(i)];
    const double tolerance = roundings * rounding(got.dtype()) * std::abs(want) + scale * 0x1p-24 +
                             (got.dtype() == DType::f16 ? 0x1p-25 : 0.0);
    if (!(std::abs(got[i] - want) <= tolerance)) {
      ++failures;
      ADD_FAILURE() << what << '[' << i << "] in " << to_string(got.dtype()) << ": " << got[i] << ", wanted " << want << " within "
                    << tolerance;
    }
  }
}

inline Array floats(const std::vector<float>& values) {
  return Array::of(DType::f32, std::vector<double>(values.begin(), values.end()));
}

}  // namespace strata::gpu
