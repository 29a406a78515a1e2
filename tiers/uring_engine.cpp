// The io_uring engine: registered files always, registered buffers where allowed, one thread per ring. What the kernel can do is
// found by asking it, never from its version.
#include "tiers/io_engine.hpp"

#ifdef STRATA_HAVE_IO_URING

#include <liburing.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/utsname.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <deque>

#include "tiers/file.hpp"

namespace strata::tiers {
namespace {

constexpr uint64_t kWakeTag = UINT64_MAX;
constexpr uint64_t kCancelTag = UINT64_MAX - 1;
constexpr uint64_t kRegionPieceBytes = 1ull << 30;  // the most that one registered buffer may hold
constexpr size_t kRegionPiecesMax = 1024;           // UIO_MAXIOV
constexpr uint32_t kQueueDepthMax = 4096;

struct SetupTry {
  unsigned flags;
  const char* name;
};
// Newest first; each older kernel answers EINVAL to what it does not know.
constexpr SetupTry kSetups[] = {
    {IORING_SETUP_SINGLE_ISSUER | IORING_SETUP_DEFER_TASKRUN | IORING_SETUP_SUBMIT_ALL, "deferred task work"},
    {IORING_SETUP_COOP_TASKRUN | IORING_SETUP_SUBMIT_ALL, "cooperative task work"},
    {0, "plain"},
};

std::string refusal(int error_number) {
  std::string text = system_reason(error_number);
  if (error_number == EPERM || error_number == EACCES) text += " (a container profile or the sysctl kernel.io_uring_disabled forbids it)";
  if (error_number == ENOSYS) text += " (the kernel or a container profile has no io_uring)";
  if (error_number == ENOMEM) text += " (the limit on locked memory, ulimit -l, is too low)";
  return text;
}

class UringEngine final : public IoEngine {
 public:
  /// Null, with the reason, when any of what the engine needs is refused.
  static std::unique_ptr<UringEngine> make(const IoEngineConfig& config, std::string& reason) {
    auto engine = std::unique_ptr<UringEngine>(new UringEngine);
    if (config.queue_depth == 0 || config.queue_depth > kQueueDepthMax) {
      reason = fmt::format("a queue depth of {} is out of range", config.queue_depth);
      return nullptr;
    }
    if (!engine->set_up(config.queue_depth, reason) || !engine->check_operations(reason) ||
        !engine->register_files(config.files, reason)) {
      return nullptr;
    }
    engine->register_regions(config.regions);
    return engine;
  }

  ~UringEngine() override {
    if (ring_made_) io_uring_queue_exit(&ring_);
  }

  void submit(std::span<const IoRequest> requests) override {
    for (const auto& request : requests) {
      io_uring_sqe* sqe = next_sqe();
      if (!sqe) {
        // Cannot happen while the caller keeps to its queue depth, unless the kernel takes nothing for a long time.
        refused_.push_back({request.tag, -EAGAIN});
        continue;
      }
      prepare(sqe, request);
    }
    flush();
  }

  size_t wait(std::span<IoCompletion> completions, std::chrono::microseconds timeout) override {
    if (!wake_armed_) arm_wake();
    if (!refused_.empty() || io_uring_cq_ready(&ring_) > 0) timeout = std::chrono::microseconds(0);
    enter(timeout);
    size_t count = 0;
    while (count < completions.size() && !refused_.empty()) {
      completions[count++] = refused_.front();
      refused_.pop_front();
    }
    io_uring_cqe* cqe = nullptr;
    while (count < completions.size() && io_uring_peek_cqe(&ring_, &cqe) == 0) {
      if (cqe->user_data == kWakeTag) take_wake();
      else if (cqe->user_data != kCancelTag) completions[count++] = {cqe->user_data, cqe->res};
      io_uring_cqe_seen(&ring_, cqe);
    }
    return count;
  }

  void wake() override {
    const uint64_t one = 1;
    // A full counter already wakes; nothing else can go wrong with an eventfd.
    [[maybe_unused]] const ssize_t ignored = write(wake_.get(), &one, sizeof one);
  }

  void cancel(uint64_t tag) override {
    io_uring_sqe* sqe = next_sqe();
    if (!sqe) return;
    io_uring_prep_cancel64(sqe, tag, 0);
    io_uring_sqe_set_data64(sqe, kCancelTag);
    flush();
  }

  std::string describe() const override {
    return fmt::format("io_uring ({}, kernel {}, features {:#x}), registered files{}", setup_, release_, features_, buffers_);
  }

 private:
  UringEngine() = default;

  bool set_up(uint32_t queue_depth, std::string& reason) {
    utsname system{};
    if (uname(&system) == 0) release_ = system.release;
    // Room for every request, the wake-up poll and cancellations; the completion queue is twice as long.
    const unsigned entries = queue_depth + 8;
    int result = 0;
    for (const auto& setup : kSetups) {
      io_uring_params params{};
      params.flags = setup.flags | IORING_SETUP_CLAMP;
      result = io_uring_queue_init_params(entries, &ring_, &params);
      if (result == 0) {
        ring_made_ = true;
        setup_ = setup.name;
        features_ = params.features;
        break;
      }
      if (result != -EINVAL) break;
    }
    if (!ring_made_) {
      reason = refusal(-result);
      return false;
    }
    const unsigned needed = IORING_FEAT_NODROP | IORING_FEAT_EXT_ARG;
    if ((features_ & needed) != needed) {
      reason = fmt::format("the kernel ({}) cannot wait with a timeout or may drop completions; 5.11 can", release_);
      return false;
    }
    // A child that inherits the ring must not share its memory.
    io_uring_ring_dontfork(&ring_);
    wake_ = FileDescriptor(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
    if (!wake_) {
      reason = "no eventfd: " + system_reason(errno);
      return false;
    }
    return true;
  }

  bool check_operations(std::string& reason) {
    io_uring_probe* probe = io_uring_get_probe_ring(&ring_);
    if (!probe) {
      reason = "the kernel does not say which operations it has";
      return false;
    }
    const char* missing = nullptr;
    constexpr std::pair<int, const char*> kNeeded[] = {{IORING_OP_READ, "read"},
                                                       {IORING_OP_WRITE, "write"},
                                                       {IORING_OP_READ_FIXED, "read into registered buffers"},
                                                       {IORING_OP_WRITE_FIXED, "write from registered buffers"},
                                                       {IORING_OP_FSYNC, "fsync"},
                                                       {IORING_OP_ASYNC_CANCEL, "cancel"}};
    for (const auto& [operation, name] : kNeeded) {
      if (!io_uring_opcode_supported(probe, operation)) missing = name;
    }
    io_uring_free_probe(probe);
    if (missing) reason = fmt::format("the kernel has no operation to {}", missing);
    return missing == nullptr;
  }

  bool register_files(const std::vector<int>& files, std::string& reason) {
    if (files.empty()) return true;
    const int result = io_uring_register_files(&ring_, files.data(), static_cast<unsigned>(files.size()));
    if (result != 0) reason = "the files cannot be registered: " + refusal(-result);
    return result == 0;
  }

  /// Without it requests name plain memory, which the kernel then pins for each.
  void register_regions(const std::vector<std::span<std::byte>>& regions) {
    for (const auto& region : regions) {
      for (uint64_t begin = 0; begin < region.size(); begin += kRegionPieceBytes) {
        pieces_.push_back({region.data() + begin, std::min<uint64_t>(kRegionPieceBytes, region.size() - begin)});
      }
    }
    if (pieces_.empty()) return;
    int result = -E2BIG;
    if (pieces_.size() <= kRegionPiecesMax) result = io_uring_register_buffers(&ring_, pieces_.data(), static_cast<unsigned>(pieces_.size()));
    if (result == 0) {
      buffers_ = fmt::format(", {} registered buffer{}", pieces_.size(), pieces_.size() == 1 ? "" : "s");
    } else {
      pieces_.clear();
      buffers_ = ", buffers not registered: " + refusal(-result);
    }
  }

  /// The registered piece that holds all of the request, or -1.
  int piece_of(const IoRequest& request) const {
    for (size_t i = 0; i < pieces_.size(); ++i) {
      const auto* first = static_cast<const std::byte*>(pieces_[i].iov_base);
      if (request.buffer >= first && request.buffer + request.length_bytes <= first + pieces_[i].iov_len) return static_cast<int>(i);
    }
    return -1;
  }

  io_uring_sqe* next_sqe() {
    io_uring_sqe* sqe = io_uring_get_sqe(&ring_);
    for (int attempt = 0; !sqe && attempt < 8; ++attempt) {
      flush();
      sqe = io_uring_get_sqe(&ring_);
    }
    return sqe;
  }

  void prepare(io_uring_sqe* sqe, const IoRequest& request) {
    const int file = static_cast<int>(request.file);
    const int piece = request.operation == IoOperation::sync ? -1 : piece_of(request);
    switch (request.operation) {
      case IoOperation::read:
        if (piece >= 0) io_uring_prep_read_fixed(sqe, file, request.buffer, request.length_bytes, request.offset_bytes, piece);
        else io_uring_prep_read(sqe, file, request.buffer, request.length_bytes, request.offset_bytes);
        break;
      case IoOperation::write:
        if (piece >= 0) io_uring_prep_write_fixed(sqe, file, request.buffer, request.length_bytes, request.offset_bytes, piece);
        else io_uring_prep_write(sqe, file, request.buffer, request.length_bytes, request.offset_bytes);
        break;
      case IoOperation::sync:
        io_uring_prep_fsync(sqe, file, IORING_FSYNC_DATASYNC);
        break;
    }
    io_uring_sqe_set_flags(sqe, IOSQE_FIXED_FILE);
    io_uring_sqe_set_data64(sqe, request.tag);
  }

  void take_wake() {
    uint64_t count = 0;
    [[maybe_unused]] const ssize_t ignored = read(wake_.get(), &count, sizeof count);
    wake_armed_ = false;
  }

  void arm_wake() {
    io_uring_sqe* sqe = next_sqe();
    if (!sqe) return;
    io_uring_prep_poll_add(sqe, wake_.get(), POLLIN);
    io_uring_sqe_set_data64(sqe, kWakeTag);
    wake_armed_ = true;
  }

  /// What the kernel does not take now (EAGAIN, EBUSY, EINTR, or part of it) stays in the queue and goes with the next call.
  void flush() {
    for (int attempt = 0; io_uring_sq_ready(&ring_) > 0 && attempt < 8; ++attempt) {
      if (io_uring_submit(&ring_) < 0) return;
    }
  }

  void enter(std::chrono::microseconds timeout) {
    __kernel_timespec time{};
    time.tv_sec = timeout.count() / 1'000'000;
    time.tv_nsec = timeout.count() % 1'000'000 * 1000;
    io_uring_cqe* cqe = nullptr;
    if (timeout.count() == 0) {
      // Deferred task work only runs inside the kernel: looking means going there.
      flush();
      io_uring_get_events(&ring_);
    } else {
      io_uring_submit_and_wait_timeout(&ring_, &cqe, 1, &time, nullptr);
    }
  }

  io_uring ring_{};
  bool ring_made_ = false;
  FileDescriptor wake_;
  bool wake_armed_ = false;
  std::vector<iovec> pieces_;
  std::deque<IoCompletion> refused_;
  std::string setup_, release_, buffers_;
  unsigned features_ = 0;
};

}  // namespace

std::unique_ptr<IoEngine> make_uring_engine(const IoEngineConfig& config, std::string& reason) {
  return UringEngine::make(config, reason);
}

}  // namespace strata::tiers

#else

namespace strata::tiers {

std::unique_ptr<IoEngine> make_uring_engine(const IoEngineConfig&, std::string& reason) {
  reason = "this build has no io_uring";
  return nullptr;
}

}  // namespace strata::tiers

#endif
