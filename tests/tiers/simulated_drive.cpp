#include "tests/tiers/simulated_drive.hpp"

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <condition_variable>
#include <cstdlib>
#include <cstring>

#include "tiers/file.hpp"

namespace strata::tiers::testing {
namespace {

constexpr uint64_t kSectorBytes = 512;

class SimulatedEngine final : public IoEngine {
 public:
  SimulatedEngine(SimulatedDrive& drive, std::vector<int> files) : drive_(drive), files_(std::move(files)) {}

  void submit(std::span<const IoRequest> requests) override {
    for (const auto& request : requests) done_.push_back({request.tag, drive_.perform(request, files_[request.file])});
  }
  size_t wait(std::span<IoCompletion> completions, std::chrono::microseconds timeout) override {
    const size_t count = std::min(completions.size(), done_.size());
    std::copy_n(done_.begin(), count, completions.begin());
    done_.erase(done_.begin(), done_.begin() + static_cast<ptrdiff_t>(count));
    std::unique_lock lock(mutex_);
    if (count == 0) woken_.wait_for(lock, timeout, [&] { return wake_; });
    wake_ = false;
    return count;
  }
  void wake() override {
    std::lock_guard lock(mutex_);
    wake_ = true;
    woken_.notify_all();
  }
  void cancel(uint64_t) override {}
  std::string describe() const override { return "a simulated drive"; }

 private:
  SimulatedDrive& drive_;
  std::vector<int> files_;
  std::vector<IoCompletion> done_;
  std::mutex mutex_;
  std::condition_variable woken_;
  bool wake_ = false;
};

/// Through an aligned copy, because the descriptor may be open for direct I/O.
void store(int file, uint64_t offset, const std::vector<std::byte>& data) {
  AlignedBuffer buffer(data.size());
  std::memcpy(buffer.data(), data.data(), data.size());
  write_exactly(file, buffer.data(), data.size(), offset, "simulated drive");
}

}  // namespace

IoEngineFactory SimulatedDrive::factory() {
  return [this](const IoEngineConfig& config) -> std::unique_ptr<IoEngine> {
    return std::make_unique<SimulatedEngine>(*this, config.files);
  };
}

int64_t SimulatedDrive::perform(const IoRequest& request, int file) {
  std::lock_guard lock(mutex_);
  ++requests_;
  if (!cut_ && left_-- == 0) {
    cut_ = true;
    lose_unsynced_writes();
  }
  if (cut_) return -ENODEV;
  const auto offset = static_cast<off_t>(request.offset_bytes);
  if (request.operation == IoOperation::sync) {
    std::erase_if(unsynced_, [&](const Write& write) { return write.file == file; });
    return 0;
  }
  if (request.operation == IoOperation::read) {
    const ssize_t result = pread(file, request.buffer, request.length_bytes, offset);
    return result < 0 ? -errno : result;
  }
  AlignedBuffer before(request.length_bytes);
  if (pread(file, before.data(), request.length_bytes, offset) != static_cast<ssize_t>(request.length_bytes)) return -EIO;
  const ssize_t result = pwrite(file, request.buffer, request.length_bytes, offset);
  if (result < 0) return -errno;
  unsynced_.push_back({file, request.offset_bytes, {before.data(), before.data() + result}, {request.buffer, request.buffer + result}});
  return result;
}

void SimulatedDrive::lose_unsynced_writes() {
  for (auto write = unsynced_.rbegin(); write != unsynced_.rend(); ++write) store(write->file, write->offset, write->before);
  for (const auto& write : unsynced_) {
    const uint64_t sectors = (write.after.size() + kSectorBytes - 1) / kSectorBytes;
    const auto draw = [&](uint64_t below) { return std::uniform_int_distribution<uint64_t>(0, below - 1)(generator_); };
    std::vector<bool> survives(sectors, false);
    switch (draw(4)) {
      case 0:
        break;
      case 1:
        survives.assign(sectors, true);
        break;
      case 2:
        std::fill_n(survives.begin(), draw(sectors + 1), true);
        break;
      case 3:
        for (uint64_t i = 0; i < sectors; ++i) survives[i] = draw(2) == 0;
        break;
    }
    std::vector<std::byte> left = write.before;
    for (uint64_t i = 0; i < sectors; ++i) {
      if (!survives[i]) continue;
      const uint64_t begin = i * kSectorBytes, end = std::min<uint64_t>(begin + kSectorBytes, left.size());
      std::copy(write.after.begin() + static_cast<ptrdiff_t>(begin), write.after.begin() + static_cast<ptrdiff_t>(end),
                left.begin() + static_cast<ptrdiff_t>(begin));
    }
    store(write.file, write.offset, left);
  }
  unsynced_.clear();
}

}  // namespace strata::tiers::testing
