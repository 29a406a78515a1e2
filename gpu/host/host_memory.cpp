#include "gpu/host/host_memory.hpp"

#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

namespace strata::gpu {
namespace {

constexpr uint64_t kHugePageBytes = 2ull << 20;
constexpr uint64_t kQuarantineBytesMax = 1ull << 30;
constexpr int kPoison = 0xff;

[[noreturn]] void throw_no_memory(uint64_t bytes, int error_number) {
  throw Error(ErrorCode::resource_exhausted, fmt::format("cannot map {} bytes: {}", bytes, system_reason(error_number)), "host device",
              "lower device.memory, or free memory on this machine");
}

/// Takes the pages now: after start-up no page fault may slow a step, nor memory run out.
int prefault(std::byte* data, uint64_t bytes) {
#ifdef MADV_POPULATE_WRITE
  if (madvise(data, bytes, MADV_POPULATE_WRITE) == 0) return 0;
  if (errno != EINVAL) return errno;
#endif
  const auto page_bytes = static_cast<uint64_t>(sysconf(_SC_PAGESIZE));
  for (uint64_t offset = 0; offset < bytes; offset += page_bytes) const_cast<volatile std::byte&>(data[offset]) = std::byte{0};
  return 0;
}

std::byte* map_huge(uint64_t bytes) {
  const uint64_t reserved_bytes = bytes + kHugePageBytes;
  void* reserved = mmap(nullptr, reserved_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (reserved == MAP_FAILED) throw_no_memory(bytes, errno);
  auto* const begin = static_cast<std::byte*>(reserved);
  const uint64_t head_bytes = (kHugePageBytes - reinterpret_cast<uintptr_t>(begin) % kHugePageBytes) % kHugePageBytes;
  std::byte* const data = begin + head_bytes;
  if (head_bytes > 0) munmap(begin, head_bytes);
  if (head_bytes < kHugePageBytes) munmap(data + bytes, kHugePageBytes - head_bytes);
  madvise(data, bytes, MADV_HUGEPAGE);  // a wish: without huge pages everything works, slower
  if (const int error_number = prefault(data, bytes)) {
    munmap(data, bytes);
    throw_no_memory(bytes, error_number);
  }
  return data;
}

}  // namespace

HostMemory::~HostMemory() {
  for (const Mapping& mapping : quarantine_) munmap(mapping.data, mapping.mapped_bytes);
}

DeviceBuffer HostMemory::allocate(uint64_t bytes) {
  if (bytes == 0) return {};
  const auto refuse_over_budget = [&] {
    if (bytes <= budget_bytes_ - allocated_bytes_) return;
    throw Error(ErrorCode::resource_exhausted,
                fmt::format("{} bytes of device memory do not fit: the budget is {} bytes, of which {} are taken", bytes, budget_bytes_,
                            allocated_bytes_),
                "host device", "raise device.memory, or place more state on the host or nvme tier");
  };
  {
    const std::lock_guard lock(mutex_);
    refuse_over_budget();
    allocated_bytes_ += bytes;
  }
  const uint64_t mapped_bytes = (bytes + kHugePageBytes - 1) / kHugePageBytes * kHugePageBytes;
  std::byte* data = nullptr;
  try {
    data = map_huge(mapped_bytes);
    if (poison_) std::memset(data, kPoison, mapped_bytes);
    const std::lock_guard lock(mutex_);
    live_.emplace(data, Mapping{data, bytes, mapped_bytes});
  } catch (...) {
    if (data != nullptr) munmap(data, mapped_bytes);
    const std::lock_guard lock(mutex_);
    allocated_bytes_ -= bytes;
    throw;
  }
  return DeviceBuffer(data, bytes, [self = shared_from_this()](std::byte* returned) { self->release(returned); });
}

uint64_t HostMemory::allocated_bytes() const {
  const std::lock_guard lock(mutex_);
  return allocated_bytes_;
}

HostMemory::Place HostMemory::place(const void* data, uint64_t bytes) const {
  const auto* const begin = static_cast<const std::byte*>(data);
  const std::lock_guard lock(mutex_);
  auto after = live_.upper_bound(begin);
  const bool next_reached = after != live_.end() && begin + bytes > after->first;
  if (after == live_.begin()) return next_reached ? Place::across : Place::outside;
  const Mapping& before = std::prev(after)->second;
  const std::byte* const end = before.data + before.bytes;
  if (begin >= end) return next_reached ? Place::across : Place::outside;
  return begin + bytes <= end ? Place::inside : Place::across;
}

void HostMemory::release(std::byte* data) noexcept {
  Mapping mapping;
  {
    const std::lock_guard lock(mutex_);
    const auto found = live_.find(data);
    if (found == live_.end()) return;
    mapping = found->second;
    live_.erase(found);
    allocated_bytes_ -= mapping.bytes;
  }
  if (!poison_) {
    munmap(mapping.data, mapping.mapped_bytes);
    return;
  }
  std::memset(mapping.data, kPoison, mapping.mapped_bytes);
  try {
    quarantine(mapping);
  } catch (const std::bad_alloc&) {
    munmap(mapping.data, mapping.mapped_bytes);
  }
}

void HostMemory::quarantine(Mapping mapping) {
  const std::lock_guard lock(mutex_);
  quarantine_.push_back(mapping);
  quarantine_bytes_ += mapping.mapped_bytes;
  while (quarantine_bytes_ > kQuarantineBytesMax) {
    const Mapping oldest = quarantine_.front();
    quarantine_.pop_front();
    quarantine_bytes_ -= oldest.mapped_bytes;
    munmap(oldest.data, oldest.mapped_bytes);
  }
}

}  // namespace strata::gpu
