// The NVMe store: the tier's files, with two slots for every piece of training state and a commit record that flips them all at
// once. What is committed survives a crash at any instant; what is not committed never happened.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "core/error.hpp"

namespace strata::tiers {

/// Drawn when a store is made, and in the header of each of its files: what tells one store from another wherever it lies.
using StoreId = std::array<std::byte, 16>;
std::string to_hex(const StoreId& id);
std::optional<StoreId> store_id_from_hex(const std::string& text);

/// One contiguous piece of state that is read and written whole (a section of a tile).
struct ExtentSpec {
  std::string name;    // for messages: "block 3 tile 0 momentum"
  uint64_t bytes = 0;  // exact; the store pads it on disk
};

enum class IoEngineKind { automatic, io_uring, threads };

struct StoreDirectory {
  std::filesystem::path path;
  uint64_t capacity_bytes = 0;  // what the store may take there in all; 0 = what the disk has free
  double weight = 1.0;          // its share of the traffic, e.g. its measured rate
};

struct StoreOptions {
  std::vector<StoreDirectory> directories;  // several are striped by whole extents
  IoEngineKind engine = IoEngineKind::automatic;
  std::string fingerprint;                  // of model, formats and layout: a store made for another is refused
  std::vector<ExtentSpec> state;            // two slots each, durable by commit()
  std::vector<ExtentSpec> scratch;          // one slot each, gone when the store closes (anonymous file)
  /// Gives the memory that most transfers will use; it is registered with io_uring where that is allowed, and outlives the store. Called
  /// once, when the directories are locked and have the space: a run that they refuse has then taken no memory. May be null.
  std::function<std::vector<std::span<std::byte>>()> regions;
};

/// Called once, on a thread of the store's; null when the transfer is whole and its checksum right. Must be short and not throw; it
/// may start transfers. After an error of code timeout or cancelled the drive may still be moving bytes, even when the store is closed: so
/// the callback should own the buffer. The store destroys the callback when the drive is through with the buffer, and never if that
/// never comes. Other errors: data_corruption (checksum, truncated file), io, resource_exhausted (no space), cancelled.
using IoCallback = std::function<void(std::exception_ptr error)>;

/// What a store's files say without opening them for a run.
struct StoreSummary {
  StoreId id{};
  std::string fingerprint;
  uint64_t generation = 0;
  std::string record;  // the payload of the newest valid commit
  std::string damaged_record;  // what is wrong with the other commit record; empty when nothing is
  bool commit_lost = false;    // whether a commit may have been lost with it
  std::vector<ExtentSpec> state;
  uint64_t bytes_on_disk = 0;
};

/// Transfers are asynchronous and may complete in any order. Buffers are 4096-byte aligned, have room up to the next multiple of
/// 4096, and belong to the store until the callback. Any number of reads of an extent may be in flight, or one write: a transfer of
/// what a write touches is issued after the callback of the write. Breaking that, or reading what was never written, throws internal
/// at the call. After a failed write, reads of that extent and commit() throw its error until discard(). After a failed commit the
/// store takes no more writes: close it, and open() gives the last commit. Thread-safe.
class NvmeStore {
 public:
  /// Makes the files (0600, in directories made 0700), preallocated, and takes the directory locks. Throws busy (another run's
  /// process id), resource_exhausted (needed and free bytes), io. An existing store with the same paths is replaced.
  static std::unique_ptr<NvmeStore> create(const StoreOptions& options);
  /// Opens a store that has a commit; its directories may be listed in any order. Throws invalid_data when the fingerprint or the extents differ (the text says how),
  /// data_corruption when no commit record is whole.
  static std::unique_ptr<NvmeStore> open(const StoreOptions& options);
  /// Opens for reading alone, with the extents as the files have them (inspect() lists them): read_state, verify, generation, record
  /// and the descriptions; the rest throws internal. Throws busy while a run holds it, and otherwise as open().
  static std::unique_ptr<NvmeStore> open_read_only(const std::vector<std::filesystem::path>& directories);
  /// Whether these directories, in any order, hold a store with at least one commit; takes no lock. Throws data_corruption when there was a
  /// store and it is damaged or has lost its commit file, invalid_data when the directories are of several stores: none of them may be
  /// overwritten without a decision of the user's.
  static bool has_commit(const std::vector<std::filesystem::path>& directories);
  /// The first directory of a store, or all of them in any order; works while a run holds it.
  static StoreSummary inspect(const std::filesystem::path& directory);
  static StoreSummary inspect(const std::vector<std::filesystem::path>& directories);
  virtual ~NvmeStore() = default;

  /// The newest content: what this generation wrote, else what is committed. The checksum is verified before the callback.
  virtual void read_state(uint32_t extent, std::byte* buffer, IoCallback done) = 0;
  /// Goes to the slot that is not committed.
  virtual void write_state(uint32_t extent, const std::byte* buffer, IoCallback done) = 0;
  virtual void read_scratch(uint32_t extent, std::byte* buffer, IoCallback done) = 0;
  virtual void write_scratch(uint32_t extent, const std::byte* buffer, IoCallback done) = 0;

  /// Makes every write since the last commit durable and current, with `record` (at most 64 KiB, the trainer's own state).
  /// Extents not written keep their committed slot. Blocks. Precondition: no write in flight.
  virtual void commit(const std::string& record) = 0;
  /// Forgets every write since the last commit: reads give the committed content again.
  virtual void discard() = 0;

  virtual StoreId id() const = 0;
  virtual std::vector<std::filesystem::path> directories() const = 0;  // in the order that the store was made with
  virtual uint64_t generation() const = 0;           // commits so far, over all runs
  virtual std::string record() const = 0;            // of the newest commit; empty before the first
  /// Reads every committed extent and verifies it, and both commit records; returns a line for each that is broken.
  virtual std::vector<std::string> verify(const std::function<void(uint64_t done, uint64_t total)>& progress) = 0;
  /// Makes a store of its own of what is committed, in `destination`/0, 1, ... for each directory: it can be read, not trained on. Blocks; no
  /// commit comes in between. Bytes are shared where the file system can, else read, checked and written. Durable when it returns; a
  /// failure leaves a part of it. Throws data_corruption, io, resource_exhausted.
  virtual void copy_committed(const std::filesystem::path& destination, const std::function<void(uint64_t done, uint64_t total)>& progress) = 0;

  virtual uint64_t bytes_read() const = 0;
  virtual uint64_t bytes_written() const = 0;
  virtual uint64_t bytes_on_disk() const = 0;
  /// "io_uring, O_DIRECT" or why not, a sentence for the log.
  virtual std::string engine_description() const = 0;
};

/// What create() would need, for plans and refusals.
uint64_t store_bytes_needed(const StoreOptions& options);
/// What copy_committed() would need where no bytes can be shared.
uint64_t store_copy_bytes(const StoreOptions& options);

/// What a new store of these options takes in each directory, dealt exactly as create() deals it. An extent that no directory has room for is
/// counted where it would be least over, so that the directories tell what is missing.
struct StoreNeeds {
  struct Directory {
    std::filesystem::path path;
    uint64_t needed_bytes = 0;
    uint64_t capacity_bytes = 0;  // 0 = not limited
    uint64_t missing_bytes() const { return capacity_bytes == 0 || needed_bytes <= capacity_bytes ? 0 : needed_bytes - capacity_bytes; }
  };
  std::vector<Directory> directories;
  uint64_t bytes = 0;          // in all
  uint64_t missing_bytes = 0;  // over all directories; 0 exactly where create() has room within the capacities
};
StoreNeeds store_needs(const StoreOptions& options);

}  // namespace strata::tiers
