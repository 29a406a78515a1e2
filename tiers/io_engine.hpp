// The seam between the NVMe store and the kernel: an engine takes batches of raw file operations and gives back their raw results.
// Policy (splitting, retries, deadlines, checksums) lives above, in transfer.hpp, so that every engine behaves alike.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "tiers/store.hpp"

namespace strata::tiers {

enum class IoOperation : uint8_t { read, write, sync };  // sync is fdatasync: offset, length and buffer are ignored

/// One operation on the file with index `file` in the engine's list. `buffer` belongs to the engine from submit() until the
/// completion with this tag comes out of wait(), even when cancel() was called: the kernel may still be moving bytes. It may even
/// outlive the engine: a request that is in flight when the engine is destroyed can still touch its buffer, at any time.
struct IoRequest {
  IoOperation operation = IoOperation::read;
  uint32_t file = 0;
  uint64_t offset_bytes = 0;
  uint32_t length_bytes = 0;
  std::byte* buffer = nullptr;
  uint64_t tag = 0;  // the caller's; any value but UINT64_MAX
};

/// `result` is what the system call gave: bytes moved (possibly fewer than asked for), or -errno.
struct IoCompletion {
  uint64_t tag = 0;
  int64_t result = 0;
};

/// What an engine is made with. The files stay open, and the regions mapped, for as long as the engine lives; the caller owns both. What
/// a request needs of a file after that, the engine holds itself.
struct IoEngineConfig {
  IoEngineKind kind = IoEngineKind::automatic;
  std::vector<int> files;                      // descriptors; requests name them by index
  std::vector<std::span<std::byte>> regions;   // memory that most requests will use: registered with the kernel where allowed
  uint32_t queue_depth = 16;                   // the most requests ever in flight, orphans included
};

/// An engine is made, used and destroyed by one thread; only wake() may be called from others. It never throws after it is made:
/// what goes wrong with a request is its completion's result.
class IoEngine {
 public:
  virtual ~IoEngine() = default;

  /// Takes all of `requests`, in any order. The caller keeps at most queue_depth in flight.
  virtual void submit(std::span<const IoRequest> requests) = 0;
  /// Waits until a completion is there, wake() was called or `timeout` has passed, then moves up to completions.size() results out
  /// and returns their number. A timeout of zero only looks.
  virtual size_t wait(std::span<IoCompletion> completions, std::chrono::microseconds timeout) = 0;
  /// Makes the wait() that is running, or else the next one, return. From any thread.
  virtual void wake() = 0;
  /// Asks for an early end of the request with this tag. Its completion still arrives, or never does: only that frees the buffer.
  virtual void cancel(uint64_t tag) = 0;
  /// "io_uring, registered buffers" or "threads (io_uring was refused: ...)", a phrase for the log.
  virtual std::string describe() const = 0;
};

/// Called on the thread that will use the engine. Tests wrap the engine here.
using IoEngineFactory = std::function<std::unique_ptr<IoEngine>(const IoEngineConfig& config)>;

/// io_uring where the build and the running system allow it, else threads; the reason goes into describe(). Throws unsupported when
/// io_uring is asked for by name and refused.
std::unique_ptr<IoEngine> make_io_engine(const IoEngineConfig& config);

/// pread, pwrite and fdatasync on a few threads: works everywhere. `reason` says why it was chosen; may be empty.
std::unique_ptr<IoEngine> make_thread_engine(const IoEngineConfig& config, const std::string& reason);

/// Null with `reason` filled in when the build has no io_uring or the system refuses it.
std::unique_ptr<IoEngine> make_uring_engine(const IoEngineConfig& config, std::string& reason);

}  // namespace strata::tiers
