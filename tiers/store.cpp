// The store at work: slots, checksums, and the commit that flips them. The order at a commit is
//   data written -> fdatasync of every data file -> record written -> fdatasync of the commit file
// so that whatever instant the process or the machine dies at, the newest whole record speaks only of durable data.
#include <fcntl.h>

#include <array>
#include <future>
#include <mutex>

#include "tiers/checksum.hpp"
#include "tiers/nvme_store.hpp"
#include "tiers/store_copy.hpp"
#include "tiers/store_files.hpp"

namespace strata::tiers {
namespace {

constexpr uint64_t kVerifyPieceBytes = 8u << 20;

enum class Kind : uint32_t { state, scratch };

/// One extent's place and what is known of its content. Guarded by the store's mutex.
struct Extent {
  ExtentPlace place;
  const std::string* name = nullptr;
  uint64_t seed = 0;             // part of every checksum: a block that belongs elsewhere does not pass
  ExtentState committed;         // state only
  bool pending = false;          // state: written since the last commit; scratch: written at all
  uint64_t pending_checksum = 0;
  bool writing = false;
  std::array<uint32_t, 2> readers{};  // of each slot: a program may fetch the same parameters twice before the first has arrived
  std::exception_ptr write_error;

  uint32_t write_slot() const { return committed.slot == 0 ? 1 : 0; }
  uint32_t newest_slot() const { return pending ? write_slot() : committed.slot; }
  uint64_t newest_checksum() const { return pending ? pending_checksum : committed.checksum; }
};

class FileStore final : public NvmeStore {
 public:
  FileStore(StoreFiles files, const StoreOptions& options, const StoreHooks& hooks, bool read_only)
      : files_(std::move(files)),
        read_only_(read_only),
        scratch_specs_(options.scratch),
        generation_(files_.record.generation),
        record_(files_.record.payload) {
    const auto fill = [&](Kind kind, const std::vector<ExtentPlace>& places, const std::vector<ExtentSpec>& specs) {
      auto& extents = extents_of(kind);
      extents.resize(places.size());
      for (size_t i = 0; i < places.size(); ++i) {
        extents[i].place = places[i];
        extents[i].name = &specs[i].name;
        extents[i].seed = state_seed(files_.table.id, static_cast<uint64_t>(kind) << 32 | i);
        if (kind == Kind::state) extents[i].committed = files_.record.extents[i];
      }
    };
    fill(Kind::state, files_.layout.state, files_.table.extents);
    fill(Kind::scratch, files_.layout.scratch, scratch_specs_);
    written_.resize(files_.directories.size());

    TransferOptions transfers = hooks.transfers;
    transfers.engine = options.engine;
    if (options.regions) transfers.regions = options.regions();
    for (const auto& directory : files_.directories) {
      const uint32_t alignment = directory.direct_io.on ? directory.direct_io.alignment_bytes : 1;
      std::vector<TransferFile> list{{directory.state.get(), (directory.path / kStateFileName).string(), alignment}};
      if (directory.scratch) list.push_back({directory.scratch.get(), (directory.path / "(scratch)").string(), alignment});
      if (directory.commit) list.push_back({directory.commit.get(), (directory.path / kCommitFileName).string(), alignment});
      channels_.push_back(std::make_unique<TransferChannel>(std::move(list), transfers, hooks.engine_factory));
    }
  }

  void read_state(uint32_t extent, std::byte* buffer, IoCallback done) override { read(Kind::state, extent, buffer, std::move(done)); }
  void write_state(uint32_t extent, const std::byte* buffer, IoCallback done) override {
    write(Kind::state, extent, buffer, std::move(done));
  }
  void read_scratch(uint32_t extent, std::byte* buffer, IoCallback done) override {
    read(Kind::scratch, extent, buffer, std::move(done));
  }
  void write_scratch(uint32_t extent, const std::byte* buffer, IoCallback done) override {
    write(Kind::scratch, extent, buffer, std::move(done));
  }

  void commit(const std::string& record) override {
    STRATA_CHECK(!read_only_ && record.size() <= kRecordBytesMax, "read-only {}, record of {} bytes", read_only_, record.size());
    for (const auto& channel : channels_) STRATA_CHECK(!channel->on_own_thread(), "commit from a callback");
    std::lock_guard committing(commit_mutex_);
    const CommitRecord next = prepare_commit(record);
    try {
      for (const auto& directory : files_.directories) check_unchanged(directory);
      sync_data();
      write_record(next);
    } catch (...) {
      // What the kernel has dropped after a failed sync cannot be known: this store takes no more writes.
      std::lock_guard lock(mutex_);
      poison_ = std::current_exception();
      throw;
    }
    {
      std::lock_guard lock(mutex_);
      for (size_t i = 0; i < state_.size(); ++i) {
        state_[i].committed = next.extents[i];
        state_[i].pending = false;
      }
      std::fill(written_.begin(), written_.end(), false);
      generation_ = next.generation;
      record_ = record;
    }
    drop_cached_pages();
  }

  void discard() override {
    std::lock_guard lock(mutex_);
    for (auto& extent : state_) {
      STRATA_CHECK(!extent.writing, "discard while '{}' is being written", *extent.name);
      extent.pending = false;
      extent.write_error = nullptr;
    }
  }

  StoreId id() const override { return files_.table.id; }
  std::vector<std::filesystem::path> directories() const override {
    std::vector<std::filesystem::path> paths;
    for (const auto& directory : files_.directories) paths.push_back(directory.path);
    return paths;
  }
  uint64_t generation() const override {
    std::lock_guard lock(mutex_);
    return generation_;
  }
  std::string record() const override {
    std::lock_guard lock(mutex_);
    return record_;
  }

  std::vector<std::string> verify(const std::function<void(uint64_t, uint64_t)>& progress) override;

  void copy_committed(const std::filesystem::path& destination, const std::function<void(uint64_t, uint64_t)>& progress) override {
    std::lock_guard committing(commit_mutex_);
    CommitRecord record;
    {
      std::lock_guard lock(mutex_);
      if (poison_) std::rethrow_exception(poison_);
      record = {generation_, record_, {}};
      for (const auto& extent : state_) record.extents.push_back(extent.committed);
    }
    strata::tiers::copy_committed(files_.table, record, directories(), destination, progress);
  }

  uint64_t bytes_read() const override { return count(&TransferCounters::bytes_read); }
  uint64_t bytes_written() const override { return count(&TransferCounters::bytes_written); }
  uint64_t bytes_on_disk() const override { return files_.layout.bytes(); }

  std::string engine_description() const override {
    std::string text;
    for (size_t i = 0; i < channels_.size(); ++i) {
      const auto& directory = files_.directories[i];
      std::string one = channels_[i]->engine_description();
      one += directory.direct_io.on ? ", O_DIRECT" : ", buffered (" + directory.direct_io.reason + ")";
      if (!directory.reserved) one += ", space not reserved (the file system cannot)";
      if (text.find(one) != std::string::npos) continue;
      text += (text.empty() ? "" : "; ") + directory.path.string() + ": " + one;
    }
    return channels_.size() == 1 ? text.substr(text.find(": ") + 2) : text;
  }

 private:
  std::vector<Extent>& extents_of(Kind kind) { return kind == Kind::state ? state_ : scratch_; }

  Extent& at(Kind kind, uint32_t extent) {
    auto& extents = extents_of(kind);
    STRATA_CHECK(extent < extents.size(), "extent {} of {}", extent, extents.size());
    return extents[extent];
  }

  /// Scratch follows state in a directory's list of files, the commit file comes last.
  static constexpr uint32_t file_of(Kind kind) { return static_cast<uint32_t>(kind); }
  uint32_t commit_file() const { return files_.directories[0].scratch ? 2 : 1; }

  Transfer transfer_of(IoOperation operation, Kind kind, const Extent& extent, uint32_t slot, std::byte* buffer) const {
    Transfer transfer;
    transfer.operation = operation;
    transfer.file = file_of(kind);
    transfer.offset_bytes = extent.place.offset_bytes[slot];
    transfer.length_bytes = extent.place.padded_bytes();
    transfer.buffer = buffer;
    transfer.checksum_bytes = extent.place.bytes;
    transfer.checksum_seed = extent.seed;
    transfer.label = *extent.name;
    return transfer;
  }

  void read(Kind kind, uint32_t index, std::byte* buffer, IoCallback done) {
    Transfer transfer;
    uint32_t directory = 0, slot = 0;
    {
      std::lock_guard lock(mutex_);
      Extent& extent = at(kind, index);
      if (extent.write_error) std::rethrow_exception(extent.write_error);
      const bool written = extent.pending || (kind == Kind::state && extent.committed.slot != kNoSlot);
      STRATA_CHECK(written && !extent.writing, "'{}': written {}, being written {}", *extent.name, written, extent.writing);
      slot = kind == Kind::state ? extent.newest_slot() : 0;
      const uint64_t expected = extent.newest_checksum();
      transfer = transfer_of(IoOperation::read, kind, extent, slot, buffer);
      directory = extent.place.directory;
      transfer.done = [this, &extent, kind, slot, expected, done = std::move(done)](TransferResult result) {
        {
          std::lock_guard guard(mutex_);
          --extent.readers[slot];
        }
        if (!result.error && result.checksum != expected) result.error = mismatch(kind, extent, slot, result.checksum, expected);
        done(result.error);  // lives on in this closure while the drive may still write to the buffer
      };
      ++extent.readers[slot];
    }
    submit(directory, std::move(transfer), [&] { --at(kind, index).readers[slot]; });
  }

  void write(Kind kind, uint32_t index, const std::byte* buffer, IoCallback done) {
    STRATA_CHECK(!read_only_, "write to a store that is open for reading");
    Transfer transfer;
    uint32_t directory = 0;
    {
      std::lock_guard lock(mutex_);
      if (poison_) std::rethrow_exception(poison_);
      Extent& extent = at(kind, index);
      const uint32_t slot = kind == Kind::state ? extent.write_slot() : 0;
      STRATA_CHECK(!extent.writing && extent.readers[slot] == 0, "'{}': being written {}, slot {} being read {} times", *extent.name,
                   extent.writing, slot, extent.readers[slot]);
      // The engine takes one pointer type for both directions; a write never changes what it points to.
      transfer = transfer_of(IoOperation::write, kind, extent, slot, const_cast<std::byte*>(buffer));
      directory = extent.place.directory;
      transfer.done = [this, &extent, done = std::move(done)](const TransferResult& result) {
        {
          std::lock_guard guard(mutex_);
          extent.writing = false;
          extent.pending = !result.error;
          extent.pending_checksum = result.checksum;
          extent.write_error = result.error;
        }
        done(result.error);
      };
      extent.writing = true;
      if (kind == Kind::state) written_[directory] = true;
    }
    submit(directory, std::move(transfer), [&] { at(kind, index).writing = false; });
  }

  template <class Undo>
  void submit(uint32_t directory, Transfer transfer, Undo undo) {
    try {
      channels_[directory]->submit(std::move(transfer));
    } catch (...) {
      std::lock_guard lock(mutex_);
      undo();
      throw;
    }
  }

  std::string where(Kind kind, const Extent& extent, uint32_t slot) const {
    const auto& path = files_.directories[extent.place.directory].path;
    return fmt::format("{}, offset {}, length {} ({})", (path / (kind == Kind::state ? kStateFileName : "(scratch)")).string(),
                       extent.place.offset_bytes[slot], extent.place.bytes, *extent.name);
  }

  std::exception_ptr mismatch(Kind kind, const Extent& extent, uint32_t slot, uint64_t actual, uint64_t expected) const {
    return std::make_exception_ptr(
        Error(ErrorCode::data_corruption, fmt::format("the checksum of what was read is {:016x}, {:016x} was written", actual, expected),
              where(kind, extent, slot), "the drive or its path changed the data: check it, and start again from a checkpoint that verifies"));
  }

  CommitRecord prepare_commit(const std::string& record) {
    std::lock_guard lock(mutex_);
    if (poison_) std::rethrow_exception(poison_);
    CommitRecord next{generation_ + 1, record, {}};
    next.extents.reserve(state_.size());
    for (const auto& extent : state_) {
      STRATA_CHECK(!extent.writing, "commit while '{}' is being written", *extent.name);
      if (extent.write_error) std::rethrow_exception(extent.write_error);
      next.extents.push_back(extent.pending ? ExtentState{extent.write_slot(), extent.pending_checksum} : extent.committed);
    }
    return next;
  }

  void sync_data() {
    std::vector<std::future<void>> waits;
    for (size_t i = 0; i < channels_.size(); ++i) {
      {
        std::lock_guard lock(mutex_);
        if (!written_[i]) continue;
      }
      auto finished = std::make_shared<std::promise<void>>();
      waits.push_back(finished->get_future());
      Transfer transfer;
      transfer.operation = IoOperation::sync;
      transfer.file = file_of(Kind::state);
      transfer.done = [finished](const TransferResult& result) {
        result.error ? finished->set_exception(result.error) : finished->set_value();
      };
      channels_[i]->submit(std::move(transfer));
    }
    for (auto& wait : waits) wait.wait();
    for (auto& wait : waits) wait.get();
  }

  void write_record(const CommitRecord& next) {
    if (!area_) area_ = std::make_shared<AlignedBuffer>(files_.table.area_bytes());
    Transfer transfer;
    transfer.operation = IoOperation::write;
    transfer.file = commit_file();
    transfer.offset_bytes = files_.table.area_offset(next.generation);
    transfer.length_bytes = encode(next, files_.table.id, {area_->data(), area_->bytes()});
    transfer.buffer = area_->data();
    transfer.label = kRecordLabel;
    channels_[0]->run(std::move(transfer), area_);
    transfer = {};
    transfer.operation = IoOperation::sync;
    transfer.file = commit_file();
    transfer.label = kRecordLabel;
    channels_[0]->run(std::move(transfer));
  }

  /// Buffered files would otherwise fill the page cache with pages that are never read from there.
  void drop_cached_pages() const {
    for (const auto& directory : files_.directories) {
      if (!directory.direct_io.on) posix_fadvise(directory.state.get(), 0, 0, POSIX_FADV_DONTNEED);
    }
  }

  uint64_t count(std::atomic<uint64_t> TransferCounters::*member) const {
    uint64_t total = 0;
    for (const auto& channel : channels_) total += (channel->counters().*member).load();
    return total;
  }

  std::future<void> start_verify_read(const Extent& extent, uint32_t slot, uint64_t begin, uint64_t bytes,
                                      const std::shared_ptr<AlignedBuffer>& buffer);
  using VerifyBuffers = std::array<std::shared_ptr<AlignedBuffer>, 2>;  // shared with the transfers that fill them
  std::string verify_extent(const Extent& extent, const VerifyBuffers& buffers, const std::function<void(uint64_t)>& advance);
  void verify_headers(std::vector<std::string>& broken);

  static constexpr std::string_view kRecordLabel = "commit record";

  StoreFiles files_;
  const bool read_only_;
  const std::vector<ExtentSpec> scratch_specs_;
  std::mutex commit_mutex_;  // one commit or verification at a time; taken before mutex_
  std::shared_ptr<AlignedBuffer> area_;  // shared with the transfer that writes it

  mutable std::mutex mutex_;
  std::vector<Extent> state_, scratch_;
  std::vector<bool> written_;  // per directory: state since the last commit
  uint64_t generation_;
  std::string record_;
  std::exception_ptr poison_;

  std::vector<std::unique_ptr<TransferChannel>> channels_;  // one per directory; they end first
};

std::future<void> FileStore::start_verify_read(const Extent& extent, uint32_t slot, uint64_t begin, uint64_t bytes,
                                               const std::shared_ptr<AlignedBuffer>& buffer) {
  auto finished = std::make_shared<std::promise<void>>();
  auto result = finished->get_future();
  Transfer transfer = transfer_of(IoOperation::read, Kind::state, extent, slot, buffer->data());
  transfer.offset_bytes += begin;
  transfer.length_bytes = bytes;
  transfer.checksum_bytes = 0;
  transfer.done = [finished, buffer](const TransferResult& outcome) {
    outcome.error ? finished->set_exception(outcome.error) : finished->set_value();
  };
  channels_[extent.place.directory]->submit(std::move(transfer));
  return result;
}

/// Reads one piece while it hashes the one before. Returns what is wrong, or nothing.
std::string FileStore::verify_extent(const Extent& extent, const VerifyBuffers& buffers, const std::function<void(uint64_t)>& advance) {
  const uint64_t padded = extent.place.padded_bytes();
  const uint32_t slot = extent.committed.slot;
  const auto piece_bytes = [&](uint64_t begin) { return std::min(kVerifyPieceBytes, padded - begin); };
  Checksum checksum(extent.seed);
  std::future<void> next = start_verify_read(extent, slot, 0, piece_bytes(0), buffers[0]);
  std::exception_ptr error;
  for (uint64_t begin = 0, index = 0; begin < padded; begin += kVerifyPieceBytes, ++index) {
    std::future<void> present = std::move(next);
    const uint64_t following = begin + kVerifyPieceBytes;
    if (!error && following < padded) {
      next = start_verify_read(extent, slot, following, piece_bytes(following), buffers[(index + 1) % 2]);
    }
    if (!present.valid()) break;
    try {
      present.get();
      checksum.add(buffers[index % 2]->data(), std::min(piece_bytes(begin), extent.place.bytes - begin));
    } catch (...) {
      if (!error) error = std::current_exception();
    }
    advance(std::min(piece_bytes(begin), extent.place.bytes - begin));
  }
  if (!error && checksum.value() != extent.committed.checksum) {
    error = mismatch(Kind::state, extent, slot, checksum.value(), extent.committed.checksum);
  }
  if (!error) return {};
  try {
    std::rethrow_exception(error);
  } catch (const Error& failure) {
    return fmt::format("{}: {} ({})", *extent.name, failure.message(), failure.where());
  } catch (const std::exception& failure) {
    return fmt::format("{}: {}", *extent.name, failure.what());
  }
}

/// The parts of the files that are not extents: they were whole at opening, and must be still.
void FileStore::verify_headers(std::vector<std::string>& broken) {
  const auto read_whole = [&](uint32_t directory, uint32_t file, uint64_t offset, uint64_t bytes) {
    const auto buffer = std::make_shared<AlignedBuffer>(bytes);
    Transfer transfer;
    transfer.operation = IoOperation::read;
    transfer.file = file;
    transfer.offset_bytes = offset;
    transfer.length_bytes = buffer->bytes();
    transfer.buffer = buffer->data();
    channels_[directory]->run(std::move(transfer), buffer);
    return buffer;
  };
  const auto attempt = [&](const std::string& what, const std::function<void()>& check) {
    try {
      check();
    } catch (const Error& failure) {
      broken.push_back(fmt::format("{}: {} ({})", what, failure.message(), failure.where()));
    }
  };
  for (uint32_t i = 0; i < files_.directories.size(); ++i) {
    const std::string path = (files_.directories[i].path / kStateFileName).string();
    attempt("header of the state file", [&] {
      const auto block = read_whole(i, file_of(Kind::state), 0, kBlockBytes);
      const StateFileHeader header = decode_state_header(block->data(), path);
      if (header.id != files_.table.id || header.directory != i || header.file_bytes != files_.table.state_file_bytes[i]) {
        throw Error(ErrorCode::data_corruption, "the header is not the one that was written", path);
      }
    });
  }
  const std::string path = (files_.directories[0].path / kCommitFileName).string();
  attempt("table of extents", [&] {
    const std::vector<std::byte> expected = encode(files_.table);
    const auto actual = read_whole(0, commit_file(), 0, expected.size());
    if (std::memcmp(expected.data(), actual->data(), expected.size()) != 0) {
      throw Error(ErrorCode::data_corruption, "the table is not the one that was written", path);
    }
  });
  attempt("other commit record", [&] {
    const auto area = read_whole(0, commit_file(), files_.table.area_offset(generation_ + 1), files_.table.area_bytes());
    if (const auto damaged = damage_of({area->data(), area->bytes()}, files_.table, generation_))
      throw Error(ErrorCode::data_corruption, damaged->text(), path);
  });
  attempt("commit record", [&] {
    const auto area = read_whole(0, commit_file(), files_.table.area_offset(generation_), files_.table.area_bytes());
    const auto record = decode_record({area->data(), area->bytes()}, files_.table);
    if (!record || record->generation != generation_) {
      throw Error(ErrorCode::data_corruption, fmt::format("the record of generation {} is not whole", generation_), path);
    }
  });
}

std::vector<std::string> FileStore::verify(const std::function<void(uint64_t, uint64_t)>& progress) {
  std::lock_guard committing(commit_mutex_);  // no commit: so nothing writes to the slots that are read here
  std::vector<std::string> broken;
  verify_headers(broken);
  uint64_t total = 0, done = 0;
  std::vector<Extent> committed;
  {
    std::lock_guard lock(mutex_);
    for (const auto& extent : state_) {
      if (extent.committed.slot == kNoSlot) continue;
      committed.push_back(extent);
      total += extent.place.bytes;
    }
  }
  const VerifyBuffers buffers{std::make_shared<AlignedBuffer>(kVerifyPieceBytes), std::make_shared<AlignedBuffer>(kVerifyPieceBytes)};
  if (progress) progress(0, total);
  for (const auto& extent : committed) {
    const auto advance = [&](uint64_t bytes) {
      done += bytes;
      if (progress) progress(done, total);
    };
    if (auto line = verify_extent(extent, buffers, advance); !line.empty()) broken.push_back(std::move(line));
  }
  return broken;
}

}  // namespace

std::unique_ptr<NvmeStore> create_store(const StoreOptions& options, const StoreHooks& hooks) {
  return std::make_unique<FileStore>(make_store_files(options), options, hooks, false);
}

std::unique_ptr<NvmeStore> open_store(const StoreOptions& options, const StoreHooks& hooks) {
  return std::make_unique<FileStore>(open_store_files(options), options, hooks, false);
}

std::unique_ptr<NvmeStore> NvmeStore::create(const StoreOptions& options) { return create_store(options, {}); }

std::unique_ptr<NvmeStore> NvmeStore::open(const StoreOptions& options) { return open_store(options, {}); }

std::unique_ptr<NvmeStore> NvmeStore::open_read_only(const std::vector<std::filesystem::path>& directories) {
  return std::make_unique<FileStore>(open_store_files_read_only(directories), StoreOptions{}, StoreHooks{}, true);
}

}  // namespace strata::tiers
