#include "tiers/format.hpp"

#include <sys/random.h>

#include <algorithm>
#include <bit>
#include <cerrno>
#include <cstring>

#include "tiers/checksum.hpp"

namespace strata::tiers {
namespace {

static_assert(std::endian::native == std::endian::little, "the store's integers are copied as they lie in memory");

using Magic = std::array<char, 8>;
constexpr Magic kStateMagic{'S', 'T', 'R', 'A', 'T', 'A', 'S', 'T'};
constexpr Magic kCommitMagic{'S', 'T', 'R', 'A', 'T', 'A', 'C', 'M'};
constexpr Magic kRecordMagic{'S', 'T', 'R', 'A', 'T', 'A', 'R', 'C'};
constexpr uint64_t kBlockChecksumOffset = kBlockBytes - sizeof(uint64_t);
constexpr uint64_t kTableBytesMax = uint64_t{1} << 32;

struct RecordHeader {
  Magic magic;
  uint32_t version;
  uint32_t reserved;
  StoreId id;
  uint64_t generation;
  uint64_t payload_bytes;
  uint64_t extents;
  uint64_t checksum;  // of the header before it and of all that follows
};
static_assert(sizeof(RecordHeader) == 64);

struct RecordEntry {
  uint64_t checksum;
  uint32_t slot;
  uint32_t reserved;
};
static_assert(sizeof(RecordEntry) == 16);

/// Appends values to a growing buffer.
class Writer {
 public:
  template <class T>
  void put(const T& value) {
    put_bytes(&value, sizeof value);
  }
  void put_text(const std::string& text) {
    put<uint64_t>(text.size());
    put_bytes(text.data(), text.size());
  }
  void put_bytes(const void* data, size_t bytes) {
    const auto* first = static_cast<const std::byte*>(data);
    bytes_.insert(bytes_.end(), first, first + bytes);
  }
  std::vector<std::byte> bytes_;
};

/// Takes values from a buffer and never reads past its end.
class Reader {
 public:
  Reader(std::span<const std::byte> bytes, std::string name) : bytes_(bytes), name_(std::move(name)) {}
  template <class T>
  T take() {
    T value;
    std::memcpy(&value, take_bytes(sizeof value), sizeof value);
    return value;
  }
  std::string take_text() {
    const uint64_t size = take<uint64_t>();
    const auto* data = take_bytes(size);
    return {reinterpret_cast<const char*>(data), size};
  }
  uint64_t left() const { return bytes_.size(); }
  [[noreturn]] void fail(const std::string& what) const {
    throw Error(ErrorCode::data_corruption, what, name_, "restore the file, or go back to a checkpoint that verifies (strata train --from)");
  }

 private:
  const std::byte* take_bytes(uint64_t count) {
    if (count > bytes_.size()) fail("the table of extents is shorter than it says");
    const std::byte* data = bytes_.data();
    bytes_ = bytes_.subspan(count);
    return data;
  }
  std::span<const std::byte> bytes_;
  std::string name_;
};

void seal_block(std::byte* block) {
  const uint64_t checksum = checksum_of(block, kBlockChecksumOffset);
  std::memcpy(block + kBlockChecksumOffset, &checksum, sizeof checksum);
}

/// A block whose magic and version are right and whose checksum holds.
Reader open_block(const std::byte* block, const Magic& magic, const std::string& name, const char* what) {
  uint64_t expected = 0;
  std::memcpy(&expected, block + kBlockChecksumOffset, sizeof expected);
  const uint64_t actual = checksum_of(block, kBlockChecksumOffset);
  Reader reader({block, kBlockBytes}, name);
  if (expected != actual) reader.fail(fmt::format("the header's checksum is {:016x}, {:016x} was written", actual, expected));
  if (reader.take<Magic>() != magic) {
    throw Error(ErrorCode::invalid_data, fmt::format("this is not {} of Strata's store", what), name);
  }
  if (const auto version = reader.take<uint32_t>(); version != kFormatVersion) {
    throw Error(ErrorCode::invalid_data, fmt::format("the store has format version {}, this program reads {}", version, kFormatVersion),
                name, "use the program that made it");
  }
  return reader;
}

uint64_t table_bytes(const std::string& fingerprint, size_t directories, const std::vector<ExtentSpec>& extents) {
  uint64_t bytes = 8 + fingerprint.size() + 8 + 8 * directories + 8;
  for (const auto& extent : extents) bytes += 4 + 8 + 8 + 8 + 8 + extent.name.size();
  return bytes;
}

uint64_t record_area_bytes(size_t extents) {
  return round_up(sizeof(RecordHeader) + kRecordBytesMax + extents * sizeof(RecordEntry), kBlockBytes);
}

uint64_t areas_offset(uint64_t table) { return kBlockBytes + round_up(table, kBlockBytes); }

}  // namespace

StoreId random_store_id() {
  StoreId id;
  if (getrandom(id.data(), id.size(), 0) != static_cast<ssize_t>(id.size())) {
    throw system_error(errno, "draw a random identity for the store", "getrandom");
  }
  return id;
}

std::string to_hex(const StoreId& id) {
  std::string text;
  for (const std::byte byte : id) text += fmt::format("{:02x}", static_cast<unsigned>(byte));
  return text;
}

std::optional<StoreId> store_id_from_hex(const std::string& text) {
  StoreId id;
  if (text.size() != 2 * id.size()) return std::nullopt;
  for (size_t i = 0; i < text.size(); ++i) {
    constexpr std::string_view kDigits = "0123456789abcdef";
    const size_t digit = kDigits.find(text[i]);
    if (digit == std::string_view::npos) return std::nullopt;
    id[i / 2] = static_cast<std::byte>(i % 2 == 0 ? digit << 4 : std::to_integer<size_t>(id[i / 2]) | digit);
  }
  return id;
}

void encode(const StateFileHeader& header, std::byte* block) {
  Writer writer;
  writer.put(kStateMagic);
  writer.put(kFormatVersion);
  writer.put(header.directory);
  writer.put(header.directories);
  writer.put(uint32_t{0});
  writer.put(header.id);
  writer.put(header.file_bytes);
  std::memset(block, 0, kBlockBytes);
  std::memcpy(block, writer.bytes_.data(), writer.bytes_.size());
  seal_block(block);
}

StateFileHeader decode_state_header(const std::byte* block, const std::string& name) {
  Reader reader = open_block(block, kStateMagic, name, "a state file");
  StateFileHeader header;
  header.directory = reader.take<uint32_t>();
  header.directories = reader.take<uint32_t>();
  reader.take<uint32_t>();
  header.id = reader.take<StoreId>();
  header.file_bytes = reader.take<uint64_t>();
  return header;
}

uint64_t StoreTable::area_bytes() const { return record_area_bytes(extents.size()); }

uint64_t StoreTable::area_offset(uint64_t generation) const {
  return areas_offset(table_bytes(fingerprint, state_file_bytes.size(), extents)) + generation % 2 * area_bytes();
}

uint64_t StoreTable::commit_file_bytes() const {
  return tiers::commit_file_bytes(fingerprint, state_file_bytes.size(), extents);
}

uint64_t commit_file_bytes(const std::string& fingerprint, size_t directories, const std::vector<ExtentSpec>& extents) {
  return areas_offset(table_bytes(fingerprint, directories, extents)) + 2 * record_area_bytes(extents.size());
}

std::vector<std::byte> encode(const StoreTable& table) {
  Writer body;
  body.put_text(table.fingerprint);
  body.put<uint64_t>(table.state_file_bytes.size());
  for (const uint64_t bytes : table.state_file_bytes) body.put(bytes);
  body.put<uint64_t>(table.extents.size());
  for (size_t i = 0; i < table.extents.size(); ++i) {
    body.put(table.places[i].directory);
    body.put(table.places[i].offset_bytes[0]);
    body.put(table.places[i].offset_bytes[1]);
    body.put(table.extents[i].bytes);
    body.put_text(table.extents[i].name);
  }
  STRATA_CHECK(body.bytes_.size() == table_bytes(table.fingerprint, table.state_file_bytes.size(), table.extents), "{} bytes",
               body.bytes_.size());
  Writer head;
  head.put(kCommitMagic);
  head.put(kFormatVersion);
  head.put(uint32_t{0});
  head.put(table.id);
  head.put<uint64_t>(body.bytes_.size());
  head.put(checksum_of(body.bytes_.data(), body.bytes_.size()));

  std::vector<std::byte> bytes(areas_offset(body.bytes_.size()));
  std::memcpy(bytes.data(), head.bytes_.data(), head.bytes_.size());
  seal_block(bytes.data());
  std::memcpy(bytes.data() + kBlockBytes, body.bytes_.data(), body.bytes_.size());
  return bytes;
}

StoreTable read_table(int commit_file, const std::filesystem::path& path) {
  const std::string name = path.string();
  const uint64_t file_bytes = identity_of(commit_file, path).bytes;
  std::vector<std::byte> block(kBlockBytes);
  read_exactly(commit_file, block.data(), block.size(), 0, path);
  Reader head = open_block(block.data(), kCommitMagic, name, "a commit file");
  head.take<uint32_t>();
  StoreTable table;
  table.id = head.take<StoreId>();
  const uint64_t bytes = head.take<uint64_t>();
  const uint64_t expected = head.take<uint64_t>();
  if (bytes > kTableBytesMax || areas_offset(bytes) > file_bytes) head.fail("the file ends inside the table of extents");

  std::vector<std::byte> body(bytes);
  read_exactly(commit_file, body.data(), bytes, kBlockBytes, path);
  Reader reader(body, name);
  if (const uint64_t actual = checksum_of(body.data(), bytes); actual != expected) {
    reader.fail(fmt::format("the checksum of the table of extents is {:016x}, {:016x} was written", actual, expected));
  }
  table.fingerprint = reader.take_text();
  const uint64_t directories = reader.take<uint64_t>();
  if (directories == 0 || directories > reader.left() / 8) reader.fail("the number of directories is impossible");
  for (uint64_t i = 0; i < directories; ++i) table.state_file_bytes.push_back(reader.take<uint64_t>());
  const uint64_t extents = reader.take<uint64_t>();
  if (extents > reader.left() / 36) reader.fail("the number of extents is impossible");
  for (uint64_t i = 0; i < extents; ++i) {
    ExtentPlace place;
    place.directory = reader.take<uint32_t>();
    place.offset_bytes[0] = reader.take<uint64_t>();
    place.offset_bytes[1] = reader.take<uint64_t>();
    place.bytes = reader.take<uint64_t>();
    std::string extent = reader.take_text();
    const bool possible = place.directory < directories && place.bytes > 0 && place.bytes <= kExtentBytesMax;
    const auto inside = [&](uint64_t offset) {
      const uint64_t end = table.state_file_bytes[place.directory];
      return offset % kBlockBytes == 0 && offset <= end && place.padded_bytes() <= end - offset;
    };
    if (!possible || !inside(place.offset_bytes[0]) || !inside(place.offset_bytes[1])) {
      reader.fail(fmt::format("extent {} lies outside its file", i));
    }
    table.extents.push_back({std::move(extent), place.bytes});
    table.places.push_back(place);
  }
  if (reader.left() != 0) reader.fail("the table of extents is longer than it says");
  if (table.commit_file_bytes() != file_bytes) {
    reader.fail(fmt::format("the file has {} bytes, {} were expected", file_bytes, table.commit_file_bytes()));
  }
  return table;
}

uint64_t encode(const CommitRecord& record, const StoreId& id, std::span<std::byte> area) {
  const uint64_t bytes = sizeof(RecordHeader) + record.payload.size() + record.extents.size() * sizeof(RecordEntry);
  STRATA_CHECK(record.payload.size() <= kRecordBytesMax && bytes <= area.size(), "record of {} bytes, area of {}",
               record.payload.size(), area.size());
  RecordHeader header{kRecordMagic, kFormatVersion, 0, id, record.generation, record.payload.size(), record.extents.size(), 0};
  std::byte* next = area.data() + sizeof header;
  for (const auto& extent : record.extents) {
    const RecordEntry entry{extent.checksum, extent.slot, 0};
    std::memcpy(next, &entry, sizeof entry);
    next += sizeof entry;
  }
  std::memcpy(next, record.payload.data(), record.payload.size());
  const uint64_t written = round_up(bytes, kBlockBytes);
  std::memset(area.data() + bytes, 0, written - bytes);
  Checksum checksum;
  checksum.add(&header, offsetof(RecordHeader, checksum));
  checksum.add(area.data() + sizeof header, bytes - sizeof header);
  header.checksum = checksum.value();
  std::memcpy(area.data(), &header, sizeof header);
  return written;
}

std::optional<CommitRecord> decode_record(std::span<const std::byte> area, const StoreTable& table) {
  RecordHeader header;
  if (area.size() < sizeof header) return {};
  std::memcpy(&header, area.data(), sizeof header);
  if (header.magic != kRecordMagic || header.version != kFormatVersion || header.id != table.id) return {};
  if (header.payload_bytes > kRecordBytesMax || header.extents != table.extents.size()) return {};
  const uint64_t bytes = sizeof header + header.payload_bytes + header.extents * sizeof(RecordEntry);
  if (bytes > area.size()) return {};
  Checksum checksum;
  checksum.add(&header, offsetof(RecordHeader, checksum));
  checksum.add(area.data() + sizeof header, bytes - sizeof header);
  if (checksum.value() != header.checksum) return {};

  CommitRecord record;
  record.generation = header.generation;
  const std::byte* next = area.data() + sizeof header;
  for (uint64_t i = 0; i < header.extents; ++i) {
    RecordEntry entry;
    std::memcpy(&entry, next, sizeof entry);
    next += sizeof entry;
    if (entry.slot > 1 && entry.slot != kNoSlot) return {};
    record.extents.push_back({entry.slot, entry.checksum});
  }
  record.payload.assign(reinterpret_cast<const char*>(next), header.payload_bytes);
  return record;
}

std::string DamagedRecord::text() const {
  if (!generation)
    return fmt::format("a commit record is damaged, that of generation {} or the older one of {}; the newest whole one is of generation {}",
                       newest + 1, newest == 0 ? 0 : newest - 1, newest);
  if (!may_be_newer()) return fmt::format("the older commit record, of generation {}, is damaged; the newest, of {}, is whole", *generation, newest);
  return fmt::format("the commit record of generation {} is damaged; the newest whole one is of generation {}", *generation, newest);
}

std::optional<DamagedRecord> damage_of(std::span<const std::byte> area, const StoreTable& table, uint64_t newest) {
  if (std::all_of(area.begin(), area.end(), [](std::byte byte) { return byte == std::byte{0}; })) return std::nullopt;
  if (const auto record = decode_record(area, table); record && record->generation % 2 != newest % 2) return std::nullopt;
  DamagedRecord damaged{.generation = std::nullopt, .newest = newest};
  RecordHeader header;
  std::memcpy(&header, area.data(), sizeof header);
  const bool believable = header.magic == kRecordMagic && header.id == table.id && (header.generation == newest + 1 || header.generation + 1 == newest);
  if (believable) damaged.generation = header.generation;
  return damaged;
}

uint64_t state_seed(const StoreId& id, size_t extent) {
  uint64_t salt = 0;
  std::memcpy(&salt, id.data(), sizeof salt);
  return salt ^ extent;
}

CommitRecord read_newest_record(int commit_file, const StoreTable& table, const std::filesystem::path& path,
                                std::optional<DamagedRecord>* damaged) {
  std::optional<CommitRecord> newest;
  std::vector<std::byte> area(table.area_bytes());
  for (uint64_t index = 0; index < 2; ++index) {
    read_exactly(commit_file, area.data(), area.size(), table.area_offset(index), path);
    auto record = decode_record(area, table);
    // A whole record in the wrong area is a misdirected write: what it replaced cannot be known.
    if (!record || record->generation % 2 != index) continue;
    if (!newest || record->generation > newest->generation) newest = std::move(record);
  }
  if (!newest) {
    throw Error(ErrorCode::data_corruption, "neither of the two commit records is whole", path.string(),
                "restore the file; else the store cannot be read, and a checkpoint of files or a copy is what is left (strata train --from)");
  }
  if (damaged) {
    read_exactly(commit_file, area.data(), area.size(), table.area_offset(newest->generation + 1), path);
    *damaged = damage_of(area, table, newest->generation);
  }
  return std::move(*newest);
}

}  // namespace strata::tiers
