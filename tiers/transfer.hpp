// Whole transfers out of raw I/O: cut into chunks, continued when short, retried when interrupted, checksummed on the way, and
// given up at a deadline. Above it nobody sees a system call's result; below it nobody decides anything.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "tiers/io_engine.hpp"

namespace strata::tiers {

struct TransferFile {
  int descriptor = -1;           // owned by the caller, open for as long as the channel lives
  std::string path;              // for messages
  uint32_t alignment_bytes = 1;  // of offsets, lengths and addresses: what direct I/O asks for, 1 when buffered
};

struct TransferOptions {
  IoEngineKind engine = IoEngineKind::automatic;
  std::vector<std::span<std::byte>> regions;  // see IoEngineConfig
  uint32_t chunk_bytes = 1u << 20;            // one request; a multiple of every file's alignment
  uint32_t queue_depth = 16;                  // requests in flight
  // Both count from the last completion of any request: a drive that is slow is no drive that hangs. Time in which this process was
  // stopped does not count.
  std::chrono::milliseconds request_deadline{120'000};
  std::chrono::milliseconds sync_deadline{600'000};  // and a second for each MiB that was written since the last sync of the file
  std::chrono::milliseconds shutdown_grace{5'000};  // how long the destructor waits for requests that are in flight
};

struct TransferResult {
  std::exception_ptr error;  // null when every byte moved
  uint64_t checksum = 0;     // XXH3-64 of the first checksum_bytes, when the transfer asked for it
};

/// The buffer belongs to the channel until `done` is called, once, on the channel's thread; `done` must be short and not throw. It may
/// submit. After an error of code timeout or cancelled the device may still be moving bytes, even when the channel has gone. So `done`
/// should own the buffer: the channel destroys it when the device is through with the last request, and never if that never comes.
struct Transfer {
  IoOperation operation = IoOperation::read;
  uint32_t file = 0;
  uint64_t offset_bytes = 0;
  uint64_t length_bytes = 0;  // a multiple of the file's alignment
  std::byte* buffer = nullptr;
  uint64_t checksum_bytes = 0;  // 0: no checksum
  uint64_t checksum_seed = 0;
  std::string_view label;  // what is moved, for messages; outlives the transfer
  std::function<void(TransferResult)> done;
};

struct TransferCounters {
  std::atomic<uint64_t> bytes_read{0}, bytes_written{0};
  std::atomic<uint64_t> requests{0};   // given to the engine
  std::atomic<uint64_t> continued{0};  // short transfers resumed
  std::atomic<uint64_t> retried{0};    // after EINTR, EAGAIN, EIO
};

/// One thread, one engine, a fixed list of files: what a directory of the store has. Transfers run side by side and complete in any
/// order; reads and writes take turns chunk by chunk. Errors of a transfer (each names file, offset, length and the system's reason):
/// data_corruption (a read past the end), io (the system refused), resource_exhausted (no space), timeout (a request passed its
/// deadline: the channel is then failed for good and every later transfer gets the same error), cancelled (the channel was
/// destroyed).
class TransferChannel {
 public:
  /// Blocks until the engine stands. Throws what the factory throws.
  TransferChannel(std::vector<TransferFile> files, TransferOptions options, const IoEngineFactory& factory = make_io_engine);
  /// Ends what is queued with `cancelled`, waits at most shutdown_grace for what is in flight.
  ~TransferChannel();
  TransferChannel(const TransferChannel&) = delete;
  TransferChannel& operator=(const TransferChannel&) = delete;

  /// Asynchronous, thread-safe. A sync covers the writes whose callbacks have run.
  void submit(Transfer transfer);

  /// The same, blocking: returns the checksum or throws the error. `owner` is what the buffer is part of (see Transfer). Throws internal
  /// when called from a callback.
  uint64_t run(Transfer transfer, std::shared_ptr<const void> owner = nullptr);

  /// Whether the caller is the channel's thread, that is, inside a callback: there nothing may wait for a transfer.
  bool on_own_thread() const;
  const TransferCounters& counters() const;
  std::string engine_description() const;

 private:
  class Worker;
  std::unique_ptr<Worker> worker_;
};

/// Keeps what a device may still touch until the process ends. The one thing that outlives everything, on purpose: it is used only for
/// requests that had not ended when their channel closed.
void keep_for_ever(std::shared_ptr<const void> kept);

}  // namespace strata::tiers
