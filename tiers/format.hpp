// The bytes of the store's files: the header that ties a state file to its store, the table of extents, and the commit record.
// All integers are little-endian.
//
//   strata.state   (every directory)  block 0: magic, version, which directory of how many, store id, file size, checksum; then slots
//   strata.commit  (first directory)  block 0: magic, version, store id, sizes, checksum; the table; two record areas
//
// Generation g lies in area g % 2, so that writing one never touches the record before it.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "tiers/layout.hpp"

namespace strata::tiers {

inline constexpr const char* kStateFileName = "strata.state";
inline constexpr const char* kCommitFileName = "strata.commit";
inline constexpr uint32_t kFormatVersion = 1;
inline constexpr uint64_t kRecordBytesMax = 64 << 10;
inline constexpr uint32_t kNoSlot = 0xffffffffu;  // the extent has never been committed

StoreId random_store_id();

struct StateFileHeader {
  StoreId id{};
  uint32_t directory = 0, directories = 0;
  uint64_t file_bytes = 0;
};
/// `block` is kBlockBytes long.
void encode(const StateFileHeader& header, std::byte* block);
/// Throws data_corruption or invalid_data (another version, no header at all); `name` is for messages.
StateFileHeader decode_state_header(const std::byte* block, const std::string& name);

/// What does not change over the life of a store.
struct StoreTable {
  StoreId id{};
  std::string fingerprint;
  std::vector<uint64_t> state_file_bytes;  // per directory
  std::vector<ExtentSpec> extents;
  std::vector<ExtentPlace> places;

  uint64_t area_bytes() const;
  uint64_t area_offset(uint64_t generation) const;  // in the commit file
  uint64_t commit_file_bytes() const;
};
/// The commit file without its record areas.
std::vector<std::byte> encode(const StoreTable& table);
/// Reads block 0 and the table from the file. Throws data_corruption or invalid_data.
StoreTable read_table(int commit_file, const std::filesystem::path& path);

uint64_t commit_file_bytes(const std::string& fingerprint, size_t directories, const std::vector<ExtentSpec>& extents);

struct ExtentState {
  uint32_t slot = kNoSlot;
  uint64_t checksum = 0;
};
struct CommitRecord {
  uint64_t generation = 0;
  std::string payload;
  std::vector<ExtentState> extents;
};
/// Fills `area` (as long as table.area_bytes()) and returns how much of it is to be written: a multiple of kBlockBytes.
uint64_t encode(const CommitRecord& record, const StoreId& id, std::span<std::byte> area);
/// Absent when the area does not hold a whole record of this store.
std::optional<CommitRecord> decode_record(std::span<const std::byte> area, const StoreTable& table);

/// What a record area holds that has no whole record of its own. Absent when nothing was ever written there.
struct DamagedRecord {
  std::optional<uint64_t> generation;  // as the record's own first bytes say, where they can be right
  uint64_t newest = 0;                 // the generation of the newest whole record
  /// Whether a commit may have been lost with it: not when it is the one before the newest.
  bool may_be_newer() const { return generation.value_or(newest + 1) > newest; }
  std::string text() const;
};
/// Judges the area that does not hold the newest record; `area` is the one of generation newest + 1. A crash while a record is written
/// leaves a damaged one, too: its commit never happened.
std::optional<DamagedRecord> damage_of(std::span<const std::byte> area, const StoreTable& table, uint64_t newest);

/// The newest whole record; what is damaged is told in `damaged` unless that is null. Throws data_corruption when there is no whole one (a new
/// store has one, of generation 0).
CommitRecord read_newest_record(int commit_file, const StoreTable& table, const std::filesystem::path& path,
                                std::optional<DamagedRecord>* damaged = nullptr);

/// The header of a directory's state file; absent when there is none. Takes no lock. Throws data_corruption, invalid_data or io.
std::optional<StateFileHeader> read_state_header(const std::filesystem::path& directory);
/// Whether anything but zeros was ever written behind the header of a state file.
bool holds_state(int state_file, const std::filesystem::path& path);
/// The positions of a store's directories in the order that it was made with, by their state files' headers, in whatever order they are
/// listed. As listed where they are not the directories of one store.
std::vector<size_t> store_order(const std::vector<std::filesystem::path>& directories);

/// What an extent of the state mixes into its checksum, so that a block of another place or store does not pass.
uint64_t state_seed(const StoreId& id, size_t extent);

}  // namespace strata::tiers
