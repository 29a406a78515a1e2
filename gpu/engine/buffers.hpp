// How the engine finds its way in flat buffers: regions planned at creation and tensors by role.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "core/dtype.hpp"
#include "core/error.hpp"
#include "core/layout.hpp"
#include "gpu/device.hpp"

namespace strata::gpu {

/// Offsets handed out one after the other; a copy of a region continues it separately (parts that are never alive together).
class Region {
 public:
  uint64_t take(uint64_t bytes) {
    const uint64_t offset = bytes_;
    bytes_ += (bytes + 255) / 256 * 256;
    return offset;
  }
  uint64_t bytes() const { return bytes_; }
  void cover(const Region& other) { bytes_ = std::max(bytes_, other.bytes_); }

 private:
  uint64_t bytes_ = 0;
};

template <typename T = void>
T* at(void* base, uint64_t offset) {
  return reinterpret_cast<T*>(static_cast<std::byte*>(base) + offset);
}
template <typename T = void>
const T* at(const void* base, uint64_t offset) {
  return reinterpret_cast<const T*>(static_cast<const std::byte*>(base) + offset);
}

/// The tensors of one unit, found in its parameters (compute dtype) and gradients (fp32).
class UnitTensors {
 public:
  UnitTensors(const UnitLayout& unit, DType compute) : unit_(&unit), element_bytes_(size_bytes(compute)) {}

  const UnitLayout& layout() const { return *unit_; }
  bool has(TensorRole role) const { return unit_->find(role) != nullptr; }
  uint64_t elements(TensorRole role) const { return tensor(role).elements; }

  const void* parameter(const void* params, TensorRole role) const { return at(params, tensor(role).offset * element_bytes_); }
  /// Null where the unit has no such tensor.
  const void* optional_parameter(const void* params, TensorRole role) const {
    return has(role) ? parameter(params, role) : nullptr;
  }
  float* gradient(float* gradients, TensorRole role) const { return gradients + tensor(role).offset; }

  /// Zeroes what no tensor covers, so that a buffer written tensor by tensor holds no stale element.
  void zero_gaps(Device& device, Stream& stream, float* gradients) const {
    uint64_t end = 0;
    const auto zero = [&](uint64_t first, uint64_t last) {
      if (last > first) device.fill(stream, gradients + first, 0, (last - first) * sizeof(float));
    };
    for (const TensorLayout& tensor : unit_->tensors) {
      zero(end, tensor.offset);
      end = tensor.offset + tensor.elements;
    }
    zero(end, unit_->padded_elements);
  }

 private:
  const TensorLayout& tensor(TensorRole role) const {
    const TensorLayout* const found = unit_->find(role);
    STRATA_CHECK(found != nullptr, "unit {} has no tensor of role {}", unit_->name, static_cast<int>(role));
    return *found;
  }

  const UnitLayout* unit_;
  uint64_t element_bytes_;
};

}  // namespace strata::gpu
