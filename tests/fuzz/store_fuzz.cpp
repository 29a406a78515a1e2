// A store's commit file with any bytes changed and its checksums made right again is either refused with an Error or is a store whose every
// extent lies inside its files. The input is a list of changes: u16 position, u8 value, u8 how many times.
#include <fcntl.h>

#include <cstring>
#include <vector>

#include "core/error.hpp"
#include "tests/fuzz/memory_file.hpp"
#include "tiers/checksum.hpp"
#include "tiers/format.hpp"

namespace {

using namespace strata;
using namespace strata::tiers;

StoreTable small_table() {
  StoreTable table;
  table.fingerprint = "fuzz";
  table.state_file_bytes = {kBlockBytes * 9, kBlockBytes * 5};
  for (uint32_t i = 0; i < 3; ++i) {
    table.extents.push_back({"block 0 tile " + std::to_string(i) + " momentum", 5000});
    table.places.push_back({i % 2, 5000, {kBlockBytes * (1 + i / 2 * 4), kBlockBytes * (3 + i / 2 * 4)}});
  }
  return table;
}

template <class T>
void put(std::vector<std::byte>& bytes, uint64_t at, T value) {
  std::memcpy(bytes.data() + at, &value, sizeof value);
}

/// Makes the checksums of block 0 and of the table those of their content, as a writer of anything would.
void seal(std::vector<std::byte>& file) {
  uint64_t table_bytes = 0;
  std::memcpy(&table_bytes, file.data() + 32, sizeof table_bytes);
  if (table_bytes <= file.size() - kBlockBytes) put(file, 40, checksum_of(file.data() + kBlockBytes, table_bytes));
  put(file, kBlockBytes - 8, checksum_of(file.data(), kBlockBytes - 8));
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const StoreTable table = small_table();
  std::vector<std::byte> file = encode(table);
  const uint64_t head = file.size();
  file.resize(table.commit_file_bytes());
  CommitRecord record{5, "{}", {{0, 1}, {1, 2}, {kNoSlot, 0}}};
  for (uint64_t generation : {5, 4}) {
    record.generation = generation;
    const uint64_t at = table.area_offset(generation);
    encode(record, table.id, std::span(file).subspan(at, table.area_bytes()));
  }
  for (size_t i = 0; i + 4 <= size; i += 4) {
    // Most of the file is empty: positions are in the headers, the table and the beginnings of the records.
    uint64_t at = data[i] | data[i + 1] << 8;
    at = at % 4 == 3 ? table.area_offset(at / 4) + at / 8 % 256 : at % 4 == 2 ? at / 4 % 64 : kBlockBytes + at / 4 % (head - kBlockBytes);
    for (uint64_t count = 0; count < data[i + 3] % 9u && at + count < file.size(); ++count) file[at + count] = static_cast<std::byte>(data[i + 2]);
  }
  seal(file);
  const MemoryFile memory(reinterpret_cast<const uint8_t*>(file.data()), file.size());
  const FileDescriptor descriptor(open(memory.path().c_str(), O_RDONLY | O_CLOEXEC));
  try {
    const StoreTable read = read_table(descriptor.get(), memory.path());
    for (const ExtentPlace& place : read.places) {
      if (place.directory >= read.state_file_bytes.size()) std::abort();
      for (const uint64_t offset : place.offset_bytes)
        if (offset > read.state_file_bytes[place.directory] || place.bytes > read.state_file_bytes[place.directory] - offset) std::abort();
    }
    std::optional<DamagedRecord> damaged;
    const CommitRecord newest = read_newest_record(descriptor.get(), read, memory.path(), &damaged);
    if (newest.extents.size() != read.extents.size()) std::abort();
    for (const ExtentState& extent : newest.extents)
      if (extent.slot > 1 && extent.slot != kNoSlot) std::abort();
    if (damaged && damaged->text().empty()) std::abort();
  } catch (const Error& error) {
    if (error.code() != ErrorCode::data_corruption && error.code() != ErrorCode::invalid_data) std::abort();
  }
  return 0;
}
