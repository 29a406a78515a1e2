// The host device: the Device interface on CPU threads, one thread a stream, with CUDA's semantics and a hard memory budget. Its
// chaos mode (random delays, poisoned memory) makes missing synchronization show as wrong numbers.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>

#include "gpu/device.hpp"

namespace strata::gpu {

struct HostDeviceOptions {
  uint64_t memory_bytes = 0;        // the budget; allocations count with the bytes asked for
  int compute_threads = 0;          // of the compute stream; 0 = one per processor of the affinity mask
  int64_t random_delay_us_max = 0;  // a random delay of up to this precedes each operation of each stream
  bool poison = false;              // fill memory with 0xFF (NaN in fp32, bf16 and fp16) when it is taken and when it is returned
  uint64_t seed = 1;                // of the delays
  bool pin_threads = false;         // bind each thread of the compute stream to its own processor of the affinity mask
};

/// Everything created by the device may outlive it. Copies check that the device's side lies inside a live allocation.
/// An error inside a stream's work is kept for good: the stream skips its later work, so does every stream that waits for one of its
/// events, and each synchronize or Event::ready that covers the failed work throws it. A stream's destructor waits until its
/// work is done. An operation that runs may take as long as it takes: synchronize gives up only when no stream of the device has run or
/// finished anything for the deadline, which a missing event alone can bring about.
/// Event times are those of std::chrono::steady_clock.
class HostDevice final : public Device {
 public:
  /// Throws invalid_configuration for a zero budget or negative numbers.
  static std::unique_ptr<HostDevice> create(const HostDeviceOptions& options);
  ~HostDevice() override;

  const DeviceInfo& info() const override { return info_; }
  DeviceBuffer allocate(uint64_t bytes) override;
  uint64_t allocated_bytes() const override;
  std::unique_ptr<Stream> create_stream(StreamKind kind, std::string name) override;
  std::unique_ptr<Event> create_event() override;
  void record(Stream& stream, Event& event) override;
  void wait(Stream& stream, const Event& event) override;
  void synchronize(const Event& event, std::chrono::milliseconds deadline) override;
  void synchronize(Stream& stream, std::chrono::milliseconds deadline) override;
  DeviceActivity activity() const override;
  void copy(Stream& stream, void* destination, const void* source, uint64_t bytes, CopyDirection direction) override;
  void fill(Stream& stream, void* destination, uint8_t value, uint64_t bytes) override;
  void call_host(Stream& stream, std::function<void()> function) override;
  void register_host_memory(void*, uint64_t) override {}
  void unregister_host_memory(void*) override {}
  RowKernels& rows() override;
  MatrixKernels& matrices() override;
  AttentionKernels& attention() override;

 private:
  struct Kernels;
  explicit HostDevice(const HostDeviceOptions& options);

  HostDeviceOptions options_;
  DeviceInfo info_;
  std::shared_ptr<class HostMemory> memory_;
  std::shared_ptr<struct HostActivity> activity_;
  std::mutex mutex_;  // of what follows
  uint64_t streams_created_ = 0;
  std::unique_ptr<Kernels> kernels_;
};

/// Gives `work` to a stream of a host device: how the host kernels run. It runs on the stream's thread, where an OpenMP parallel region has
/// as many threads as the stream may use (one on a copy stream). What it throws becomes the stream's error.
void host_enqueue(Stream& stream, std::function<void()> work);

std::unique_ptr<RowKernels> make_host_row_kernels(const DeviceInfo& info);
std::unique_ptr<MatrixKernels> make_host_matrix_kernels(const DeviceInfo& info);
std::unique_ptr<AttentionKernels> make_host_attention_kernels(const DeviceInfo& info);

}  // namespace strata::gpu
