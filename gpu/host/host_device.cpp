#include "gpu/host/host_device.hpp"

#include <algorithm>
#include <cstring>
#include <vector>

#include "core/stall_timer.hpp"
#include "core/topology.hpp"
#include "gpu/attention_kernels.hpp"
#include "gpu/host/host_memory.hpp"
#include "gpu/host/host_stream.hpp"
#include "gpu/matrix_kernels.hpp"
#include "gpu/row_kernels.hpp"

namespace strata::gpu {
namespace {

HostStream& host_stream(Stream& stream) {
  auto* const found = dynamic_cast<HostStream*>(&stream);
  STRATA_CHECK(found != nullptr, "the stream belongs to another kind of device");
  return *found;
}

template <typename AnyEvent>
auto& host_event(AnyEvent& event) {
  using Wanted = std::conditional_t<std::is_const_v<AnyEvent>, const HostEvent, HostEvent>;
  auto* const found = dynamic_cast<Wanted*>(&event);
  STRATA_CHECK(found != nullptr, "the event belongs to another kind of device");
  return *found;
}

void wait_for(const Completion& completion, std::chrono::milliseconds deadline, const HostActivity& activity) {
  const auto tick = std::clamp(deadline / 4, std::chrono::milliseconds(1), std::chrono::milliseconds(200));
  StallTimer timer(tick);
  while (!completion.wait_until(std::chrono::steady_clock::now() + tick)) {
    if (timer.look(activity.finished, activity.working > 0) < deadline) continue;
    throw Error(ErrorCode::timeout,
                fmt::format("stream '{}' does not end its work, and the device has done nothing for {} ms", completion.stream_name(),
                            deadline.count()),
                "host device", "this is a stream that waits for what never comes; please report it with this message");
  }
  if (const auto error = completion.error()) std::rethrow_exception(error);
}

}  // namespace

struct HostDevice::Kernels {
  std::unique_ptr<RowKernels> rows;
  std::unique_ptr<MatrixKernels> matrices;
  std::unique_ptr<AttentionKernels> attention;
};

std::unique_ptr<HostDevice> HostDevice::create(const HostDeviceOptions& options) {
  if (options.memory_bytes == 0 || options.compute_threads < 0 || options.random_delay_us_max < 0) {
    throw Error(ErrorCode::invalid_configuration,
                fmt::format("a host device cannot have memory of {} bytes, {} threads and a delay of {} us", options.memory_bytes,
                            options.compute_threads, options.random_delay_us_max),
                "host device", "give device.memory a positive size, and the rest numbers from 0");
  }
  return std::unique_ptr<HostDevice>(new HostDevice(options));
}

HostDevice::HostDevice(const HostDeviceOptions& options)
    : options_(options),
      memory_(std::make_shared<HostMemory>(options.memory_bytes, options.poison)),
      activity_(std::make_shared<HostActivity>()),
      kernels_(std::make_unique<Kernels>()) {
  info_.kind = "host";
  info_.name = processor_info().name;
  info_.memory_bytes = options.memory_bytes;
  info_.compute_threads =
      options.compute_threads > 0 ? options.compute_threads : usable_processor_count();
}

HostDevice::~HostDevice() = default;

DeviceBuffer HostDevice::allocate(uint64_t bytes) { return memory_->allocate(bytes); }
uint64_t HostDevice::allocated_bytes() const { return memory_->allocated_bytes(); }

std::unique_ptr<Stream> HostDevice::create_stream(StreamKind kind, std::string name) {
  HostStreamOptions options;
  options.name = std::move(name);
  options.activity = activity_;
  options.random_delay_us_max = options_.random_delay_us_max;
  if (kind == StreamKind::compute) {
    options.threads = info_.compute_threads;
    if (options_.pin_threads) options.pin_to_cpus = usable_processors();
  }
  {
    const std::lock_guard lock(mutex_);
    options.seed = options_.seed * 0x9e3779b97f4a7c15ull + streams_created_++;
  }
  return std::make_unique<HostStream>(std::move(options));
}

std::unique_ptr<Event> HostDevice::create_event() { return std::make_unique<HostEvent>(); }

void HostDevice::record(Stream& stream, Event& event) { host_event(event).set(host_stream(stream).enqueue_record()); }

void HostDevice::wait(Stream& stream, const Event& event) {
  if (auto completion = host_event(event).latest()) host_stream(stream).enqueue_wait(std::move(completion));
}

void HostDevice::synchronize(const Event& event, std::chrono::milliseconds deadline) {
  if (const auto completion = host_event(event).latest()) wait_for(*completion, deadline, *activity_);
}

void HostDevice::synchronize(Stream& stream, std::chrono::milliseconds deadline) {
  wait_for(*host_stream(stream).enqueue_record(), deadline, *activity_);
}

DeviceActivity HostDevice::activity() const { return {activity_->finished, activity_->working > 0}; }

void HostDevice::copy(Stream& stream, void* destination, const void* source, uint64_t bytes, CopyDirection direction) {
  if (bytes == 0) return;
  using Place = HostMemory::Place;
  const Place from = direction == CopyDirection::host_to_device ? Place::outside : Place::inside;
  const Place to = direction == CopyDirection::device_to_host ? Place::outside : Place::inside;
  STRATA_CHECK(memory_->place(source, bytes) == from, "copy of {} bytes: the source {} is not {} memory, or only in part", bytes,
               source, from == Place::inside ? "device" : "host");
  STRATA_CHECK(memory_->place(destination, bytes) == to, "copy of {} bytes: the destination {} is not {} memory, or only in part",
               bytes, destination, to == Place::inside ? "device" : "host");
  host_stream(stream).enqueue([=] { std::memmove(destination, source, bytes); });
}

void HostDevice::fill(Stream& stream, void* destination, uint8_t value, uint64_t bytes) {
  if (bytes == 0) return;
  STRATA_CHECK(memory_->place(destination, bytes) == HostMemory::Place::inside,
               "fill of {} bytes: {} is not device memory, or only in part", bytes, destination);
  host_stream(stream).enqueue([=] { std::memset(destination, value, bytes); });
}

void HostDevice::call_host(Stream& stream, std::function<void()> function) { host_stream(stream).enqueue(std::move(function)); }

RowKernels& HostDevice::rows() {
  const std::lock_guard lock(mutex_);
  if (kernels_->rows == nullptr) kernels_->rows = make_host_row_kernels(info_);
  return *kernels_->rows;
}

MatrixKernels& HostDevice::matrices() {
  const std::lock_guard lock(mutex_);
  if (kernels_->matrices == nullptr) kernels_->matrices = make_host_matrix_kernels(info_);
  return *kernels_->matrices;
}

AttentionKernels& HostDevice::attention() {
  const std::lock_guard lock(mutex_);
  if (kernels_->attention == nullptr) kernels_->attention = make_host_attention_kernels(info_);
  return *kernels_->attention;
}

void host_enqueue(Stream& stream, std::function<void()> work) { host_stream(stream).enqueue(std::move(work)); }

}  // namespace strata::gpu
