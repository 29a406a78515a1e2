// The Device interface: CUDA's semantics (in-order streams, events, asynchronous copies, separate memory with a hard
// budget) that the CUDA device and the CPU-thread host device both implement.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "core/error.hpp"

namespace strata::gpu {

class RowKernels;
class MatrixKernels;
class AttentionKernels;

enum class CopyDirection { host_to_device, device_to_host, device_to_device };

/// Work given to one stream runs in order; two streams run at the same time unless events order them.
class Stream {
 public:
  virtual ~Stream() = default;
};

/// A point in a stream. An event that was never recorded counts as complete. Recording it again moves it.
class Event {
 public:
  virtual ~Event() = default;
  /// Whether the work before the latest record has completed. Throws the stream's first error, if it has one.
  virtual bool ready() const = 0;
  /// When that work completed, in seconds on a monotonic clock common to the device's events. Precondition: ready().
  virtual double completed_at_seconds() const = 0;
};

/// Memory of the device; returned to it on destruction. Movable, not copyable. Only streams may touch what it points to
/// (the host device happens to allow more; nothing may rely on it).
class DeviceBuffer {
 public:
  DeviceBuffer() = default;
  DeviceBuffer(std::byte* data, uint64_t bytes, std::function<void(std::byte*)> release)
      : data_(data), bytes_(bytes), release_(std::move(release)) {}
  DeviceBuffer(DeviceBuffer&& other) noexcept { *this = std::move(other); }
  DeviceBuffer& operator=(DeviceBuffer&& other) noexcept {
    std::swap(data_, other.data_);
    std::swap(bytes_, other.bytes_);
    std::swap(release_, other.release_);
    return *this;
  }
  ~DeviceBuffer() {
    if (data_) release_(data_);
  }
  std::byte* data() const { return data_; }
  uint64_t bytes() const { return bytes_; }

 private:
  std::byte* data_ = nullptr;
  uint64_t bytes_ = 0;
  std::function<void(std::byte*)> release_;
};

struct DeviceInfo {
  std::string kind;  // "host", "cuda"
  std::string name;  // of the processor
  uint64_t memory_bytes = 0;  // the budget
  int compute_threads = 0;    // host device: threads of the compute stream
};

/// A device's signs of life, for those who wait for it: only while they stay the same is a wait hopeless.
struct DeviceActivity {
  uint64_t operations_finished = 0;  // by all its streams so far
  /// A thread of the device's is performing an operation at this moment: slow perhaps, but not stuck. A GPU cannot tell and says false.
  bool working = false;
};

/// One device. Calls that take a Stream only enqueue and return; they may be made from any thread, one thread per stream at a
/// time. Errors met while a stream works are kept and thrown by the next synchronize or Event::ready that covers them.
class Device {
 public:
  virtual ~Device() = default;
  virtual const DeviceInfo& info() const = 0;

  /// Memory aligned to 2 MiB. Throws resource_exhausted, naming the budget and what is taken, when it would not fit.
  virtual DeviceBuffer allocate(uint64_t bytes) = 0;
  virtual uint64_t allocated_bytes() const = 0;

  /// `compute` streams run kernels with all compute threads (there should be one); others only copy.
  enum class StreamKind { compute, copy };
  virtual std::unique_ptr<Stream> create_stream(StreamKind kind, std::string name) = 0;
  virtual std::unique_ptr<Event> create_event() = 0;

  virtual void record(Stream& stream, Event& event) = 0;
  /// Later work of `stream` starts after the work that `event`'s latest record covers, as of this call.
  virtual void wait(Stream& stream, const Event& event) = 0;
  /// Blocks until the event is complete. Throws timeout, naming the event's stream, when the whole device has shown no activity for
  /// `deadline`; the work may then still come, so nothing that it touches may be freed.
  virtual void synchronize(const Event& event, std::chrono::milliseconds deadline) = 0;
  virtual void synchronize(Stream& stream, std::chrono::milliseconds deadline) = 0;
  virtual DeviceActivity activity() const = 0;

  /// Asynchronous copies and fills. Both buffers belong to the stream until its work has passed this point.
  virtual void copy(Stream& stream, void* destination, const void* source, uint64_t bytes, CopyDirection direction) = 0;
  virtual void fill(Stream& stream, void* destination, uint8_t value, uint64_t bytes) = 0;
  /// Runs `function` on a thread of the device's when the stream gets there. It must be short and must not call the device.
  virtual void call_host(Stream& stream, std::function<void()> function) = 0;

  /// Makes host memory fit for asynchronous copies (cudaHostRegister); a no-op on the host device.
  virtual void register_host_memory(void* data, uint64_t bytes) = 0;
  virtual void unregister_host_memory(void* data) = 0;

  virtual RowKernels& rows() = 0;
  virtual MatrixKernels& matrices() = 0;
  virtual AttentionKernels& attention() = 0;
};

}  // namespace strata::gpu
