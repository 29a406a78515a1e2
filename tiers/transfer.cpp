#include "tiers/transfer.hpp"

#include <algorithm>
#include <cerrno>
#include <future>
#include <list>
#include <mutex>
#include <optional>
#include <thread>

#include "core/thread.hpp"
#include "tiers/checksum.hpp"

namespace strata::tiers {
namespace {

using Clock = std::chrono::steady_clock;

constexpr uint32_t kInterruptionsMax = 60;  // EINTR and EAGAIN in a row, with growing pauses: about two seconds
constexpr uint32_t kStallsMax = 16;         // short results in a row that do not reach the next aligned offset
constexpr uint32_t kReadErrorsMax = 3;      // retries of a read that gave EIO
constexpr std::chrono::seconds kLookEvery{1};   // at the deadlines, while requests are in the engine
constexpr std::chrono::seconds kOversleep{1};   // a wait that lasts so much longer than asked for says that the process did not run
constexpr uint64_t kChunkBytesMax = 0x7ffff000;  // what one system call moves at most

const char* verb(IoOperation operation) {
  return operation == IoOperation::read ? "read" : operation == IoOperation::write ? "write" : "sync";
}

/// A piece of a transfer that is in the engine or about to be: at most queue_depth of them exist.
struct Slot {
  struct Job* job = nullptr;  // null: free, or orphaned
  bool orphaned = false;      // given up at its deadline; the engine still owns the buffer
  std::shared_ptr<const void> kept;  // of an orphan: the callback, which owns the buffer
  bool in_engine = false;
  uint32_t generation = 0;    // part of the tag, so that a late completion is never taken for another's
  uint64_t begin = 0, length = 0, done = 0;  // within the transfer
  uint64_t request_limit = 0;                // halved after EIO, to come close to the bad sector
  uint64_t requested = 0;
  uint32_t interruptions = 0, stalls = 0, read_errors = 0;
  Clock::time_point given, retry_at;
};

struct Job {
  Job(Transfer t, uint64_t chunk_bytes) : transfer(std::move(t)) {
    if (transfer.checksum_bytes > 0) checksum.emplace(transfer.checksum_seed);
    if (transfer.operation == IoOperation::read) arrived.resize((transfer.length_bytes + chunk_bytes - 1) / chunk_bytes);
    done = std::make_shared<const Callback>(std::move(transfer.done));
  }
  using Callback = std::function<void(TransferResult)>;
  Transfer transfer;
  std::shared_ptr<const Callback> done;  // called once, and kept for as long as a request of the job is in the engine
  uint64_t issued = 0;  // bytes handed to slots
  bool sync_issued = false;
  uint32_t slots = 0;
  std::vector<bool> arrived;  // read chunks; the checksum follows their unbroken prefix
  uint64_t hashable = 0, hashed = 0;
  std::optional<Checksum> checksum;
  std::exception_ptr error;

  bool everything_issued() const {
    return transfer.operation == IoOperation::sync ? sync_issued : issued == transfer.length_bytes;
  }
  bool complete() const {
    return slots == 0 && (error || (everything_issued() && hashed == transfer.checksum_bytes));
  }
};

/// Transfers of one direction: those that wait, and the one whose chunks are being begun.
struct Lane {
  std::list<std::unique_ptr<Job>> queue;
  Job* current = nullptr;
  bool empty() const { return !current && queue.empty(); }
};

}  // namespace

class TransferChannel::Worker {
 public:
  Worker(std::vector<TransferFile> files, TransferOptions options, const IoEngineFactory& factory)
      : files_(std::move(files)), options_(std::move(options)), slots_(options_.queue_depth), unsynced_bytes_(files_.size()) {
    STRATA_CHECK(options_.queue_depth > 0 && options_.chunk_bytes > 0 && options_.chunk_bytes <= kChunkBytesMax,
                 "queue depth {}, chunk {}", options_.queue_depth, options_.chunk_bytes);
    for (const auto& file : files_) {
      STRATA_CHECK(file.alignment_bytes > 0 && options_.chunk_bytes % file.alignment_bytes == 0, "chunk {}, alignment {}",
                   options_.chunk_bytes, file.alignment_bytes);
    }
    const auto started = std::make_shared<std::promise<void>>();
    auto ready = started->get_future();
    thread_ = start_thread("NVMe store", [this, &factory, started] { run(factory, *started); });
    try {
      ready.get();
    } catch (...) {
      thread_.join();
      throw;
    }
  }

  ~Worker() {
    {
      std::lock_guard lock(mutex_);
      stopping_ = true;
      wake_locked();
    }
    thread_.join();
  }

  void submit(Transfer transfer) {
    STRATA_CHECK(transfer.file < files_.size() && transfer.done, "file {} of {}", transfer.file, files_.size());
    if (transfer.operation == IoOperation::sync) {
      transfer.length_bytes = 0;
      transfer.checksum_bytes = 0;
    } else {
      const uint64_t alignment = files_[transfer.file].alignment_bytes;
      STRATA_CHECK(transfer.length_bytes > 0 && transfer.checksum_bytes <= transfer.length_bytes &&
                       transfer.length_bytes % alignment == 0 && transfer.offset_bytes % alignment == 0 &&
                       reinterpret_cast<uintptr_t>(transfer.buffer) % alignment == 0,
                   "offset {}, length {}, checksummed {}, buffer {}, alignment {}", transfer.offset_bytes,
                   transfer.length_bytes, transfer.checksum_bytes, fmt::ptr(transfer.buffer), alignment);
    }
    auto job = std::make_unique<Job>(std::move(transfer), options_.chunk_bytes);
    std::lock_guard lock(mutex_);
    incoming_.push_back(std::move(job));
    wake_locked();
  }

  bool on_own_thread() const { return std::this_thread::get_id() == thread_.get_id(); }

  TransferCounters counters;
  std::string engine_description;

 private:
  void wake_locked() {
    if (!waiting_) return;
    waiting_ = false;
    engine_->wake();
  }

  void run(const IoEngineFactory& factory, std::promise<void>& started) noexcept {
    try {
      IoEngineConfig config{options_.engine, {}, options_.regions, options_.queue_depth};
      for (const auto& file : files_) config.files.push_back(file.descriptor);
      engine_ = factory(config);
      engine_description = engine_->describe();
      completions_.resize(options_.queue_depth);
      requests_.reserve(options_.queue_depth);
    } catch (...) {
      started.set_exception(std::current_exception());
      return;
    }
    started.set_value();
    while (true) {
      try {
        if (!turn()) break;
      } catch (...) {
        // Memory ran out or an invariant broke. What is in flight still ends by itself; nothing new is begun.
        fail_channel(std::current_exception());
      }
    }
    engine_.reset();
    for (auto& slot : slots_)
      if (slot.orphaned) keep_for_ever(std::move(slot.kept));
  }

  /// One round: begin what can be begun, then hash, then call back, then wait. False when the channel has come to its end.
  bool turn() {
    if (!take_incoming()) return false;
    issue();
    const bool more_to_hash = hash_one_chunk();
    const bool called_back = finish_jobs();
    const auto patience = more_to_hash || called_back ? std::chrono::microseconds(0) : idle_time();
    const auto before = Clock::now();
    const size_t count = engine_->wait(completions_, patience);
    // Overslept: the process was stopped or the machine slept, and the drive had no chance to answer.
    if (const auto now = Clock::now(); now - before > patience + kOversleep) last_completion_ = now;
    {
      std::lock_guard lock(mutex_);
      waiting_ = false;
    }
    for (size_t i = 0; i < count; ++i) handle(completions_[i]);
    expire();
    return true;
  }

  bool take_incoming() {
    bool stopping = false;
    {
      std::lock_guard lock(mutex_);
      stopping = stopping_;
      while (!incoming_.empty()) {
        Job* job = incoming_.front().get();
        if (failed_) job->error = failed_;
        auto& queue = failed_ ? jobs_ : (job->transfer.operation == IoOperation::read ? reads_ : writes_).queue;
        queue.splice(queue.end(), incoming_, incoming_.begin());
      }
    }
    return !stopping || wind_down();
  }

  /// The channel closes: nothing new begins, what is in flight gets its grace. False when all is over.
  bool wind_down() {
    const auto now = Clock::now();
    if (!stop_at_) {
      stop_at_ = now + options_.shutdown_grace;
      cancel_at_ = now + options_.shutdown_grace / 2;
    }
    const auto cancelled = std::make_exception_ptr(
        Error(ErrorCode::cancelled, "the store was closed before the transfer ended", files_.empty() ? "" : files_[0].path));
    fail_what_is_not_begun(cancelled);
    if (now >= cancel_at_ && !cancel_sent_) {
      cancel_sent_ = true;
      for (size_t i = 0; i < slots_.size(); ++i) {
        if (slots_[i].in_engine) engine_->cancel(tag_of(i));
      }
    }
    const bool in_flight = std::any_of(slots_.begin(), slots_.end(), [](const Slot& slot) { return slot.job || slot.orphaned; });
    if (now < *stop_at_ && in_flight) return true;
    for (auto& slot : slots_) {
      if (slot.job) orphan(slot, cancelled);
    }
    finish_jobs();
    std::lock_guard lock(mutex_);
    return !jobs_.empty() || !incoming_.empty();
  }

  Clock::duration until(Clock::time_point when, Clock::time_point now) const {
    return std::max<Clock::duration>(when - now, std::chrono::microseconds(1));
  }

  std::chrono::milliseconds patience_with(const Slot& slot) const {
    const Transfer& transfer = slot.job->transfer;
    if (transfer.operation != IoOperation::sync) return options_.request_deadline;
    return options_.sync_deadline + std::chrono::seconds(unsynced_bytes_[transfer.file] >> 20);
  }
  Clock::time_point deadline_of(const Slot& slot) const { return std::max(slot.given, last_completion_) + patience_with(slot); }

  /// How long the thread may sleep; also says that it is about to.
  std::chrono::microseconds idle_time() {
    const auto now = Clock::now();
    Clock::duration time = std::chrono::hours(1);
    for (const auto& slot : slots_) {
      if (!slot.job) continue;
      time = std::min(time, slot.in_engine ? std::min<Clock::duration>(until(deadline_of(slot), now), kLookEvery) : until(slot.retry_at, now));
    }
    if (stop_at_) time = std::min(time, until(now < cancel_at_ ? cancel_at_ : *stop_at_, now));
    std::lock_guard lock(mutex_);
    if (!incoming_.empty() || (stopping_ && !stop_at_)) return std::chrono::microseconds(0);
    waiting_ = true;
    return std::chrono::ceil<std::chrono::microseconds>(time);
  }

  uint64_t tag_of(size_t slot) const { return (static_cast<uint64_t>(slots_[slot].generation) << 32) | slot; }

  // ---- giving work to the engine

  void issue() {
    requests_.clear();
    const auto now = Clock::now();
    for (size_t i = 0; i < slots_.size(); ++i) {
      Slot& slot = slots_[i];
      if (slot.orphaned || slot.in_engine) continue;
      if (slot.job && slot.retry_at > now) continue;
      if (!slot.job && !begin_chunk(slot)) continue;
      push_request(i, now);
    }
    if (requests_.empty()) return;
    counters.requests += requests_.size();
    engine_->submit(requests_);
  }

  /// Takes the next chunk of the next transfer, reads and writes in turn. False when there is none.
  bool begin_chunk(Slot& slot) {
    Lane& lane = writes_.empty() || (!reads_.empty() && read_next_) ? reads_ : writes_;
    if (lane.empty()) return false;
    read_next_ = !read_next_;
    if (!lane.current) {
      lane.current = lane.queue.front().get();
      jobs_.splice(jobs_.end(), lane.queue, lane.queue.begin());
    }
    Job& job = *lane.current;
    const uint32_t generation = slot.generation + 1;
    slot = Slot{};
    slot.generation = generation;
    slot.job = &job;
    slot.begin = job.issued;
    slot.length = std::min<uint64_t>(options_.chunk_bytes, job.transfer.length_bytes - job.issued);
    slot.request_limit = options_.chunk_bytes;
    job.issued += slot.length;
    job.sync_issued = true;
    ++job.slots;
    if (job.everything_issued()) lane.current = nullptr;
    return true;
  }

  void push_request(size_t index, Clock::time_point now) {
    Slot& slot = slots_[index];
    const Transfer& transfer = slot.job->transfer;
    slot.requested = std::min(slot.length - slot.done, slot.request_limit);
    slot.in_engine = true;
    slot.given = now;
    const uint64_t begin = slot.begin + slot.done;
    requests_.push_back({transfer.operation, transfer.file, transfer.offset_bytes + begin, static_cast<uint32_t>(slot.requested),
                         transfer.operation == IoOperation::sync ? nullptr : transfer.buffer + begin, tag_of(index)});
    // What is being written does not change any more, so it can be hashed while it is under way.
    if (transfer.operation == IoOperation::write) raise_hashable(*slot.job, slot.job->issued);
  }

  // ---- taking results

  void handle(const IoCompletion& completion) {
    const size_t index = completion.tag & 0xffffffffu;
    STRATA_CHECK(index < slots_.size() && completion.tag == tag_of(index) && slots_[index].in_engine,
                 "a completion with tag {:#x} that nothing waits for", completion.tag);
    Slot& slot = slots_[index];
    slot.in_engine = false;
    if (completion.result != -EINTR && completion.result != -EAGAIN) last_completion_ = Clock::now();
    if (slot.orphaned) {
      slot.orphaned = false;
      slot.kept.reset();
      return;
    }
    if (slot.job->error) return release(slot);
    completion.result < 0 ? handle_failure(slot, static_cast<int>(-completion.result))
                          : handle_progress(slot, static_cast<uint64_t>(completion.result));
  }

  void handle_progress(Slot& slot, uint64_t moved) {
    Job& job = *slot.job;
    const Transfer& transfer = job.transfer;
    if (transfer.operation == IoOperation::sync) {
      unsynced_bytes_[transfer.file] = 0;
      return release(slot);
    }
    if (transfer.operation == IoOperation::write) unsynced_bytes_[transfer.file] += moved;
    STRATA_CHECK(moved <= slot.requested, "{} bytes moved of {} asked for", moved, slot.requested);
    (transfer.operation == IoOperation::read ? counters.bytes_read : counters.bytes_written) += moved;
    slot.interruptions = slot.read_errors = 0;
    if (moved == 0) return fail_slot(slot, transfer.operation == IoOperation::read ? truncated(slot) : stalled(slot));
    // Direct I/O goes on only at an aligned offset: a partial sector is moved again.
    const uint64_t kept = moved - moved % files_[transfer.file].alignment_bytes;
    slot.stalls = kept > 0 ? 0 : slot.stalls + 1;
    if (slot.stalls > kStallsMax) {
      return fail_slot(slot, transfer.operation == IoOperation::read ? truncated(slot) : stalled(slot));
    }
    slot.done += kept;
    if (kept < slot.requested) ++counters.continued;
    if (kept == slot.requested) slot.request_limit = options_.chunk_bytes;
    if (slot.done < slot.length) {
      slot.retry_at = Clock::time_point{};
      return;
    }
    if (transfer.operation == IoOperation::read) {
      const size_t chunk = slot.begin / options_.chunk_bytes;
      job.arrived[chunk] = true;
      uint64_t prefix = job.hashable;
      for (size_t next = prefix / options_.chunk_bytes; next < job.arrived.size() && job.arrived[next]; ++next) {
        prefix = std::min<uint64_t>((next + 1) * uint64_t{options_.chunk_bytes}, transfer.length_bytes);
      }
      raise_hashable(job, prefix);
    }
    release(slot);
  }

  void handle_failure(Slot& slot, int error_number) {
    const bool read = slot.job->transfer.operation == IoOperation::read;
    if ((error_number == EINTR || error_number == EAGAIN) && slot.interruptions < kInterruptionsMax) {
      ++slot.interruptions;
      ++counters.retried;
      slot.retry_at = Clock::now() + std::chrono::milliseconds(error_number == EINTR ? 0 : slot.interruptions);
      return;
    }
    if (error_number == EIO && read && slot.read_errors < kReadErrorsMax) {
      ++slot.read_errors;
      ++counters.retried;
      const uint64_t alignment = files_[slot.job->transfer.file].alignment_bytes;
      slot.request_limit = std::max(alignment, slot.requested / 2 / alignment * alignment);
      slot.retry_at = Clock::time_point{};
      return;
    }
    fail_slot(slot, refused(slot, error_number));
  }

  void release(Slot& slot) {
    --slot.job->slots;
    slot.job = nullptr;
  }

  void fail_slot(Slot& slot, std::exception_ptr error) {
    Job& job = *slot.job;
    release(slot);
    fail(job, std::move(error));
  }

  void fail(Job& job, std::exception_ptr error) {
    if (!job.error) job.error = std::move(error);
    for (Lane* lane : {&reads_, &writes_}) {
      if (lane->current == &job) lane->current = nullptr;
    }
    for (auto& slot : slots_) {  // chunks that wait for another try
      if (slot.job == &job && !slot.in_engine && slot.done < slot.length) release(slot);
    }
  }

  void fail_channel(std::exception_ptr error) {
    if (!failed_) failed_ = std::move(error);
    fail_what_is_not_begun(failed_);
  }

  /// Transfers that wait, and the rest of those that are half begun.
  void fail_what_is_not_begun(const std::exception_ptr& error) {
    for (Lane* lane : {&reads_, &writes_}) {
      for (auto& job : lane->queue) job->error = error;
      jobs_.splice(jobs_.end(), lane->queue);
      if (lane->current) fail(*lane->current, error);
    }
  }

  void orphan(Slot& slot, const std::exception_ptr& error) {
    slot.orphaned = slot.in_engine;
    Job& job = *slot.job;
    if (slot.orphaned) slot.kept = job.done;
    release(slot);
    fail(job, error);
  }

  void expire() {
    const auto now = Clock::now();
    for (size_t i = 0; i < slots_.size(); ++i) {
      Slot& slot = slots_[i];
      if (!slot.job || !slot.in_engine || deadline_of(slot) > now) continue;
      engine_->cancel(tag_of(i));
      const auto error = overdue(slot);
      orphan(slot, error);
      fail_channel(error);
    }
  }

  // ---- checksums and callbacks

  void raise_hashable(Job& job, uint64_t bytes) { job.hashable = std::max(job.hashable, bytes); }

  static uint64_t unhashed(const Job& job) {
    return job.error ? 0 : std::min(job.hashable, job.transfer.checksum_bytes) - job.hashed;
  }

  /// One chunk at a time, so that the engine is never left without requests for long. True when more is waiting.
  bool hash_one_chunk() {
    bool hashed = false;
    for (auto& job : jobs_) {
      const uint64_t waiting = unhashed(*job);
      if (waiting == 0) continue;
      if (hashed) return true;
      const uint64_t bytes = std::min<uint64_t>(waiting, options_.chunk_bytes);
      job->checksum->add(job->transfer.buffer + job->hashed, bytes);
      job->hashed += bytes;
      hashed = true;
      if (waiting > bytes) return true;
    }
    return false;
  }

  bool finish_jobs() {
    bool any = false;
    for (auto it = jobs_.begin(); it != jobs_.end();) {
      if (!(*it)->complete()) {
        ++it;
        continue;
      }
      const std::unique_ptr<Job> job = std::move(*it);
      it = jobs_.erase(it);
      any = true;
      const uint64_t checksum = job->checksum && !job->error ? job->checksum->value() : 0;
      try {
        (*job->done)({job->error, checksum});
      } catch (...) {
        fail_channel(std::current_exception());
      }
    }
    return any;
  }

  // ---- what went wrong

  std::string where(const Slot& slot) const {
    const Transfer& transfer = slot.job->transfer;
    std::string text = files_[transfer.file].path;
    if (transfer.operation != IoOperation::sync) {
      text += fmt::format(", offset {}, length {}", transfer.offset_bytes + slot.begin + slot.done, slot.requested);
    }
    if (!transfer.label.empty()) text += fmt::format(" ({})", transfer.label);
    return text;
  }

  std::exception_ptr refused(const Slot& slot, int error_number) const {
    const IoOperation operation = slot.job->transfer.operation;
    if (error_number == ECANCELED) {
      return std::make_exception_ptr(Error(ErrorCode::cancelled, "the store was closed before the transfer ended", where(slot)));
    }
    const bool no_space = error_number == ENOSPC || error_number == EDQUOT || error_number == EFBIG;
    const char* remedy = no_space            ? "free space on that file system, or raise the quota or the file size limit"
                         : error_number == EIO ? "check the drive (dmesg, smartctl): it reports an error"
                                               : "check that the file system is still mounted, writable and healthy";
    return std::make_exception_ptr(Error(no_space ? ErrorCode::resource_exhausted : ErrorCode::io,
                                         fmt::format("cannot {} the file: {}", verb(operation), system_reason(error_number)),
                                         where(slot), remedy));
  }

  std::exception_ptr truncated(const Slot& slot) const {
    return std::make_exception_ptr(Error(ErrorCode::data_corruption, "the file ends before the data does: it was truncated",
                                         where(slot), "restore the file, or start again from a checkpoint that verifies"));
  }

  std::exception_ptr stalled(const Slot& slot) const {
    return std::make_exception_ptr(Error(ErrorCode::io, "the system accepts no more bytes and gives no reason", where(slot),
                                         "check free space, quota and the health of the file system"));
  }

  std::exception_ptr overdue(const Slot& slot) const {
    return std::make_exception_ptr(
        Error(ErrorCode::timeout,
              fmt::format("the drive did not {} within {} ms, nor anything else", verb(slot.job->transfer.operation),
                          patience_with(slot).count()),
              where(slot),
              "the drive or its network path hangs: check dmesg; the last committed step is intact"));
  }

  const std::vector<TransferFile> files_;
  const TransferOptions options_;

  std::mutex mutex_;  // guards the next three, and engine_ against wake() after its end
  std::list<std::unique_ptr<Job>> incoming_;
  bool stopping_ = false;
  bool waiting_ = false;

  // The rest belongs to the channel's thread.
  std::unique_ptr<IoEngine> engine_;
  std::vector<Slot> slots_;
  std::vector<uint64_t> unsynced_bytes_;  // of each file
  Clock::time_point last_completion_ = Clock::now();
  Lane reads_, writes_;
  std::list<std::unique_ptr<Job>> jobs_;  // begun, and not called back yet
  bool read_next_ = true;
  std::exception_ptr failed_;
  std::optional<Clock::time_point> stop_at_;
  Clock::time_point cancel_at_;
  bool cancel_sent_ = false;
  std::vector<IoRequest> requests_;
  std::vector<IoCompletion> completions_;

  std::thread thread_;
};

TransferChannel::TransferChannel(std::vector<TransferFile> files, TransferOptions options, const IoEngineFactory& factory)
    : worker_(std::make_unique<Worker>(std::move(files), std::move(options), factory)) {}

TransferChannel::~TransferChannel() = default;

void TransferChannel::submit(Transfer transfer) { worker_->submit(std::move(transfer)); }

uint64_t TransferChannel::run(Transfer transfer, std::shared_ptr<const void> owner) {
  STRATA_CHECK(!on_own_thread(), "a callback waits for '{}'", transfer.label);
  // Shared with the callback: set_value may still be running when get() returns and this frame ends.
  const auto finished = std::make_shared<std::promise<TransferResult>>();
  auto result = finished->get_future();
  transfer.done = [finished, owner = std::move(owner)](TransferResult outcome) { finished->set_value(std::move(outcome)); };
  submit(std::move(transfer));
  TransferResult outcome = result.get();
  if (outcome.error) std::rethrow_exception(outcome.error);
  return outcome.checksum;
}

bool TransferChannel::on_own_thread() const { return worker_->on_own_thread(); }

const TransferCounters& TransferChannel::counters() const { return worker_->counters; }

std::string TransferChannel::engine_description() const { return worker_->engine_description; }

void keep_for_ever(std::shared_ptr<const void> kept) {
  if (!kept) return;
  // Reachable, so that a leak detector is not told a lie, and never destroyed.
  static std::mutex mutex;
  static auto* const all = new std::vector<std::shared_ptr<const void>>;
  const std::lock_guard lock(mutex);
  all->push_back(std::move(kept));
}

}  // namespace strata::tiers
