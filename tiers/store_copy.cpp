#include "tiers/store_copy.hpp"

#include <fcntl.h>
#include <linux/fs.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <cerrno>

#include "tiers/checksum.hpp"
#include "tiers/lock.hpp"

namespace strata::tiers {

namespace {

constexpr uint64_t kPieceBytes = 8u << 20;

/// The table of the copy: the same store, extents and order, each extent in one place.
StoreTable packed(const StoreTable& table) {
  StoreTable copy = table;
  copy.state_file_bytes.assign(table.state_file_bytes.size(), kBlockBytes);  // the header
  for (ExtentPlace& place : copy.places) {
    uint64_t& end = copy.state_file_bytes[place.directory];
    place.offset_bytes[0] = place.offset_bytes[1] = end;
    end += place.padded_bytes();
  }
  return copy;
}

struct OpenFile {
  FileDescriptor file;
  std::filesystem::path path;
};

class Copier {
 public:
  Copier(const StoreTable& table, const CommitRecord& record, const std::function<void(uint64_t, uint64_t)>& progress)
      : table_(table), copy_(packed(table)), record_(record), progress_(progress), buffer_(kPieceBytes) {
    for (const ExtentPlace& place : table.places) total_ += place.padded_bytes();
  }

  void copy_directory(uint32_t index, const std::filesystem::path& from, const std::filesystem::path& to) {
    const FileDescriptor from_handle = open_directory(from), to_handle = open_or_make_directory(to);
    const OpenFile source{open_file(from_handle.get(), kStateFileName, Access::read_only, from), from / kStateFileName};
    if (!source.file) throw Error(ErrorCode::data_corruption, "a file of the store is missing", source.path.string(), "bring it back");
    const OpenFile target{make_file(to_handle.get(), kStateFileName, to), to / kStateFileName};
    AlignedBuffer header(kBlockBytes);
    encode(StateFileHeader{copy_.id, index, static_cast<uint32_t>(copy_.state_file_bytes.size()), copy_.state_file_bytes[index]}, header.data());
    write_exactly(target.file.get(), header.data(), kBlockBytes, 0, target.path);
    bool share = true;
    for (size_t i = 0; i < table_.places.size(); ++i) {
      if (table_.places[i].directory != index || record_.extents[i].slot == kNoSlot) continue;
      if (share && !shared(i, source, target)) {
        share = false;
        preallocate(target.file.get(), copy_.state_file_bytes[index], target.path);
      }
      if (!share) move(i, source, target);
      done_ += table_.places[i].padded_bytes();
      if (progress_) progress_(done_, total_);
    }
    // An extent without content ends the file where the table says, too.
    if (ftruncate(target.file.get(), static_cast<off_t>(copy_.state_file_bytes[index])) != 0)
      throw system_error(errno, "set the length of the file", target.path);
    sync_file(target.file.get(), target.path);
    for (const OpenFile* file : {&source, &target}) posix_fadvise(file->file.get(), 0, 0, POSIX_FADV_DONTNEED);
    make_file(to_handle.get(), kLockFileName, to);  // which readers lock
    if (index == 0) write_commit_file(to_handle.get(), to);
    sync_file(to_handle.get(), to);
  }

 private:
  /// False where the two files cannot share bytes.
  bool shared(size_t extent, const OpenFile& source, const OpenFile& target) const {
    const ExtentPlace& place = table_.places[extent];
    file_clone_range range{};
    range.src_fd = source.file.get();
    range.src_offset = place.offset_bytes[record_.extents[extent].slot];
    range.src_length = place.padded_bytes();
    range.dest_offset = copy_.places[extent].offset_bytes[0];
    if (ioctl(target.file.get(), FICLONERANGE, &range) == 0) return true;
    if (errno == ENOSPC || errno == EDQUOT || errno == EIO) throw system_error(errno, "share the store's bytes", target.path);
    return false;  // another file system, or one that cannot
  }

  void move(size_t extent, const OpenFile& source, const OpenFile& target) {
    const ExtentPlace& place = table_.places[extent];
    const uint64_t from = place.offset_bytes[record_.extents[extent].slot], to = copy_.places[extent].offset_bytes[0];
    Checksum checksum(state_seed(table_.id, extent));
    for (uint64_t at = 0; at < place.padded_bytes(); at += kPieceBytes) {
      const uint64_t bytes = std::min(kPieceBytes, place.padded_bytes() - at);
      read_exactly(source.file.get(), buffer_.data(), bytes, from + at, source.path);
      if (at < place.bytes) checksum.add(buffer_.data(), std::min(bytes, place.bytes - at));
      write_exactly(target.file.get(), buffer_.data(), bytes, to + at, target.path);
    }
    if (checksum.value() != record_.extents[extent].checksum)
      throw Error(ErrorCode::data_corruption,
                  fmt::format("the checksum of \"{}\" is {:016x}, {:016x} was written", table_.extents[extent].name, checksum.value(),
                              record_.extents[extent].checksum),
                  fmt::format("{}, offset {}", source.path.string(), from), "the drive or its path changed the data: check it");
  }

  void write_commit_file(int directory, const std::filesystem::path& path) const {
    const FileDescriptor file = make_file(directory, kCommitFileName, path);
    const auto name = path / kCommitFileName;
    if (ftruncate(file.get(), static_cast<off_t>(copy_.commit_file_bytes())) != 0) throw system_error(errno, "set the length of the file", name);
    const std::vector<std::byte> head = encode(copy_);
    write_exactly(file.get(), head.data(), head.size(), 0, name);
    std::vector<std::byte> area(copy_.area_bytes());
    const uint64_t written = encode(record_, copy_.id, area);
    write_exactly(file.get(), area.data(), written, copy_.area_offset(record_.generation), name);
    sync_file(file.get(), name);
  }

  const StoreTable& table_;
  const StoreTable copy_;
  const CommitRecord& record_;
  const std::function<void(uint64_t, uint64_t)>& progress_;
  AlignedBuffer buffer_;
  uint64_t done_ = 0, total_ = 0;
};

}  // namespace

void copy_committed(const StoreTable& table, const CommitRecord& record, const std::vector<std::filesystem::path>& directories,
                    const std::filesystem::path& destination, const std::function<void(uint64_t, uint64_t)>& progress) {
  STRATA_CHECK(directories.size() == table.state_file_bytes.size() && record.extents.size() == table.extents.size(), "{} directories, {} extents",
               directories.size(), record.extents.size());
  const FileDescriptor handle = open_or_make_directory(destination);
  Copier copier(table, record, progress);
  for (size_t i = 0; i < directories.size(); ++i) copier.copy_directory(static_cast<uint32_t>(i), directories[i], destination / std::to_string(i));
  sync_file(handle.get(), destination);
}

bool is_copy(const StoreTable& table) {
  return !table.places.empty() && table.places.front().offset_bytes[0] == table.places.front().offset_bytes[1];
}

uint64_t store_copy_bytes(const StoreOptions& options) {
  uint64_t bytes = commit_file_bytes(options.fingerprint, options.directories.size(), options.state);
  bytes += 4 * kBlockBytes * options.directories.size();  // headers, lock files and the directories themselves
  for (const ExtentSpec& extent : options.state) bytes += round_up(extent.bytes, kBlockBytes);
  return bytes;
}

}  // namespace strata::tiers
