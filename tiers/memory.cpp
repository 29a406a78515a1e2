#include "tiers/memory.hpp"

#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cinttypes>
#include <cstdio>
#include <fstream>
#include <thread>

#include "core/config.hpp"
#include "core/topology.hpp"
#include "tiers/file.hpp"

namespace strata::tiers {
namespace {

constexpr uint64_t kPopulateBytes = 32ull << 20;  // what a thread touches at a time
constexpr int kPopulateThreadsMax = 16;

uint64_t page_bytes() {
  static const auto bytes = static_cast<uint64_t>(sysconf(_SC_PAGESIZE));
  return bytes;
}

/// AnonHugePages of the mappings inside the range, from the kernel's own account.
uint64_t huge_page_bytes_of(const std::byte* data, uint64_t bytes) {
  const auto begin = reinterpret_cast<uintptr_t>(data);
  std::ifstream maps("/proc/self/smaps");
  std::string line;
  bool inside = false;
  uint64_t total = 0;
  while (std::getline(maps, line)) {
    uintptr_t from = 0, to = 0;
    uint64_t kibibytes = 0;
    if (std::sscanf(line.c_str(), "%" SCNxPTR "-%" SCNxPTR " ", &from, &to) == 2) {
      inside = from < begin + bytes && to > begin;
    } else if (inside && std::sscanf(line.c_str(), "AnonHugePages: %" SCNu64 " kB", &kibibytes) == 1) {
      total += kibibytes * 1024;
    }
  }
  return std::min(total, bytes);
}

/// Makes the pages of a range present and writable. Returns 0 or an errno value.
int touch(std::byte* data, uint64_t bytes) {
#ifdef MADV_POPULATE_WRITE
  while (madvise(data, bytes, MADV_POPULATE_WRITE) != 0) {
    if (errno == EINTR || errno == EAGAIN) continue;
    if (errno != EINVAL) return errno;
    break;  // before Linux 5.14
  }
#endif
  for (uint64_t offset = 0; offset < bytes; offset += page_bytes()) {
    *reinterpret_cast<volatile std::byte*>(data + offset) = std::byte{0};
  }
  return 0;
}

std::string lock_limit() {
  struct rlimit limit {};
  getrlimit(RLIMIT_MEMLOCK, &limit);
  return limit.rlim_cur == RLIM_INFINITY ? "unlimited" : format_bytes(limit.rlim_cur);
}

}  // namespace

MemorySlab::MemorySlab(uint64_t bytes, gpu::Device* device, const SlabOptions& options) : bytes_(bytes), device_(device) {
  if (bytes == 0) return;
  mapped_bytes_ = round_up(bytes, page_bytes());
  // Room to find an aligned start in; what stands over on both sides is given back at once.
  const uint64_t reserved = mapped_bytes_ + kAlignBytes;
  void* mapping = mmap(nullptr, reserved, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (mapping == MAP_FAILED) {
    throw Error(ErrorCode::resource_exhausted, fmt::format("cannot map {} of memory: {}", format_bytes(bytes), system_reason(errno)),
                "host tier", "lower tiers.host.memory, or raise the address space limit (ulimit -v)");
  }
  auto* first = static_cast<std::byte*>(mapping);
  data_ = reinterpret_cast<std::byte*>(round_up(reinterpret_cast<uintptr_t>(mapping), kAlignBytes));
  if (data_ > first) munmap(first, static_cast<size_t>(data_ - first));
  if (const auto tail = static_cast<size_t>(first + reserved - (data_ + mapped_bytes_)); tail > 0) munmap(data_ + mapped_bytes_, tail);
  try {
#ifdef PR_SET_VMA
    // For the reader of /proc/PID/smaps; it also keeps the kernel from joining this mapping with a neighbour.
    prctl(PR_SET_VMA, PR_SET_VMA_ANON_NAME, data_, mapped_bytes_, "strata host tier");
#endif
    madvise(data_, mapped_bytes_, MADV_DONTDUMP);
    if (options.huge_pages != Wish::off && madvise(data_, mapped_bytes_, MADV_HUGEPAGE) != 0) {
      refusals_.push_back(fmt::format("no huge pages: {}", system_reason(errno)));
    }
    populate(options.threads);
    huge_page_bytes_ = huge_page_bytes_of(data_, mapped_bytes_);
    const bool all_huge = huge_page_bytes_ >= bytes_ / kAlignBytes * kAlignBytes;
    if (options.huge_pages == Wish::require && !all_huge) {
      throw Error(ErrorCode::resource_exhausted,
                  fmt::format("{} of {} lie on huge pages", format_bytes(huge_page_bytes_), format_bytes(bytes_)), "host tier",
                  "set /sys/kernel/mm/transparent_hugepage/enabled to madvise or always, and free memory");
    }
    lock_pages(options.lock);
    register_with_device(options);
  } catch (...) {
    release();
    throw;
  }
}

MemorySlab::~MemorySlab() { release(); }

void MemorySlab::populate(int threads) {
  const uint64_t pieces = (mapped_bytes_ + kPopulateBytes - 1) / kPopulateBytes;
  const int wanted = std::min(threads > 0 ? threads : usable_processor_count(), kPopulateThreadsMax);
  std::atomic<uint64_t> next{0};
  std::atomic<int> failure{0};
  const auto work = [&] {
    for (uint64_t piece = next++; piece < pieces && failure == 0; piece = next++) {
      const uint64_t begin = piece * kPopulateBytes;
      if (const int result = touch(data_ + begin, std::min(kPopulateBytes, mapped_bytes_ - begin)); result != 0) failure = result;
    }
  };
  {
    std::vector<std::jthread> helpers;
    try {
      for (uint64_t i = 1; i < std::min<uint64_t>(static_cast<uint64_t>(wanted), pieces); ++i) helpers.emplace_back(work);
    } catch (const std::system_error&) {
      // Fewer threads touch the same pages.
    }
    work();
  }
  if (failure != 0) {
    throw Error(ErrorCode::resource_exhausted,
                fmt::format("cannot get {} of memory: {}", format_bytes(bytes_), system_reason(failure)), "host tier",
                "lower tiers.host.memory, or raise the container's memory limit");
  }
}

void MemorySlab::lock_pages(Wish wish) {
  if (wish == Wish::off) return;
  if (mlock(data_, mapped_bytes_) == 0) {
    locked_ = true;
    return;
  }
  const std::string reason = fmt::format("{} (limit on locked memory: {})", system_reason(errno), lock_limit());
  if (wish == Wish::require) {
    throw Error(ErrorCode::resource_exhausted, fmt::format("cannot lock {} in memory: {}", format_bytes(bytes_), reason), "host tier",
                "raise it: ulimit -l unlimited, memlock in /etc/security/limits.conf, or docker run --ulimit memlock=-1");
  }
  refusals_.push_back(fmt::format("not locked: {}; ulimit -l unlimited or docker run --ulimit memlock=-1 allows it", reason));
}

void MemorySlab::register_with_device(const SlabOptions& options) {
  if (!device_ || options.registration == Wish::off) return;
  try {
    for (uint64_t begin = 0; begin < mapped_bytes_; begin += options.registration_piece_bytes) {
      const uint64_t piece = std::min(options.registration_piece_bytes, mapped_bytes_ - begin);
      device_->register_host_memory(data_ + begin, piece);
      pieces_.push_back(data_ + begin);
    }
    registered_ = true;
  } catch (const std::exception& error) {
    if (options.registration == Wish::require) throw;
    // Half of it registered would make copies differ by address: better none.
    for (auto* piece : pieces_) device_->unregister_host_memory(piece);
    pieces_.clear();
    std::string reason = error.what();
    std::replace(reason.begin(), reason.end(), '\n', ' ');
    refusals_.push_back("not registered with the device, copies will be slower: " + reason);
  }
}

void MemorySlab::release() noexcept {
  for (auto* piece : pieces_) {
    try {
      device_->unregister_host_memory(piece);
    } catch (...) {
      // The device is beyond repair; the memory goes all the same.
    }
  }
  pieces_.clear();
  if (data_) munmap(data_, mapped_bytes_);
  data_ = nullptr;
}

std::string MemorySlab::description() const {
  std::string text = format_bytes(bytes_);
  text += huge_page_bytes_ == 0 ? ", on small pages"
                                : fmt::format(", {} of it on huge pages", format_bytes(std::min(huge_page_bytes_, bytes_)));
  if (locked_) text += ", locked";
  if (registered_) text += fmt::format(", registered with the device in {} piece{}", pieces_.size(), pieces_.size() == 1 ? "" : "s");
  for (const auto& refusal : refusals_) text += "; " + refusal;
  return text;
}

}  // namespace strata::tiers
