// A device that passes everything on and, while profiling, notes how long each kind of kernel ran on its stream.
#pragma once

#include <map>
#include <memory>
#include <mutex>
#include <string>

#include "gpu/attention_kernels.hpp"
#include "gpu/device.hpp"
#include "gpu/matrix_kernels.hpp"
#include "gpu/row_kernels.hpp"

namespace strata::gpu {

struct Spent {
  double seconds = 0;
  int64_t calls = 0;
};

/// Attributes the time between two points of a stream to the kind of kernel enqueued between them.
class Profile {
 public:
  explicit Profile(Device& device) : device_(device) {}
  void start();
  std::map<std::string, Spent> finish();
  /// Runs `enqueue`, which gives one kernel to the stream.
  template <typename Enqueue>
  void note(Stream& stream, const char* kind, Enqueue&& enqueue) {
    mark(stream, "other");
    enqueue();
    mark(stream, kind);
  }

 private:
  void mark(Stream& stream, const char* kind);

  Device& device_;
  bool on_ = false;
  std::mutex mutex_;  // of what the stream's thread writes
  double last_ = 0;
  std::map<std::string, Spent> spent_;
};

class ProfiledDevice final : public Device {
 public:
  explicit ProfiledDevice(Device& inner);
  ~ProfiledDevice() override;

  /// Both with the streams idle.
  void start_profile() { profile_.start(); }
  std::map<std::string, Spent> finish_profile() { return profile_.finish(); }

  const DeviceInfo& info() const override { return inner_.info(); }
  DeviceBuffer allocate(uint64_t bytes) override { return inner_.allocate(bytes); }
  uint64_t allocated_bytes() const override { return inner_.allocated_bytes(); }
  std::unique_ptr<Stream> create_stream(StreamKind kind, std::string name) override {
    return inner_.create_stream(kind, std::move(name));
  }
  std::unique_ptr<Event> create_event() override { return inner_.create_event(); }
  void record(Stream& stream, Event& event) override { inner_.record(stream, event); }
  void wait(Stream& stream, const Event& event) override { inner_.wait(stream, event); }
  void synchronize(const Event& event, std::chrono::milliseconds deadline) override { inner_.synchronize(event, deadline); }
  void synchronize(Stream& stream, std::chrono::milliseconds deadline) override { inner_.synchronize(stream, deadline); }
  DeviceActivity activity() const override { return inner_.activity(); }
  void copy(Stream& stream, void* destination, const void* source, uint64_t bytes, CopyDirection direction) override {
    inner_.copy(stream, destination, source, bytes, direction);
  }
  void fill(Stream& stream, void* destination, uint8_t value, uint64_t bytes) override {
    profile_.note(stream, "fill", [&] { inner_.fill(stream, destination, value, bytes); });
  }
  void call_host(Stream& stream, std::function<void()> function) override { inner_.call_host(stream, std::move(function)); }
  void register_host_memory(void* data, uint64_t bytes) override { inner_.register_host_memory(data, bytes); }
  void unregister_host_memory(void* data) override { inner_.unregister_host_memory(data); }
  RowKernels& rows() override { return *rows_; }
  MatrixKernels& matrices() override { return *matrices_; }
  AttentionKernels& attention() override { return *attention_; }

 private:
  Device& inner_;
  Profile profile_;
  std::unique_ptr<RowKernels> rows_;
  std::unique_ptr<MatrixKernels> matrices_;
  std::unique_ptr<AttentionKernels> attention_;
};

}  // namespace strata::gpu
