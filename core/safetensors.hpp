// Safetensors files: a reader that trusts nothing in the file, and a writer that takes the tensors' bytes in any order.
// The format: an 8-byte little-endian header length, the header as JSON, then the tensors' bytes without gaps.
#pragma once

#include <atomic>
#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "core/file.hpp"

namespace strata {

/// Bits of an element of the named dtype ("F32", "BF16", "F8_E4M3", ...); 0 if the format has no such dtype.
uint32_t safetensors_dtype_bits(std::string_view dtype);

struct SafetensorsEntry {
  std::string name;
  std::string dtype;
  std::vector<int64_t> shape;
  uint64_t elements = 0;
  uint64_t begin = 0, end = 0;  // bytes from the start of the data section

  uint64_t bytes() const { return end - begin; }
};

/// An open, validated file. Thread-safe for reading.
class SafetensorsFile {
 public:
  /// Opens and validates: header length against the file size and 100,000,000 bytes before anything is allocated; each
  /// tensor's dtype, shape and offsets; no overlap, no hole, nothing past the end. Throws invalid_data (what is wrong,
  /// which tensor) or io.
  explicit SafetensorsFile(const std::filesystem::path& path);

  const std::filesystem::path& path() const { return file_.path(); }
  /// Ordered by offset.
  const std::vector<SafetensorsEntry>& tensors() const { return tensors_; }
  /// Null if there is no such tensor.
  const SafetensorsEntry* find(std::string_view name) const;
  const std::map<std::string, std::string>& metadata() const { return metadata_; }
  uint64_t data_bytes() const { return file_.size() - data_start_; }

  /// Reads exactly `bytes` of the tensor from `offset_bytes` on; blocks. Throws invalid_data if the file has become
  /// shorter, io.
  void read(const SafetensorsEntry& tensor, uint64_t offset_bytes, void* out, uint64_t bytes) const;
  /// Tells the kernel that these bytes will not be read again soon.
  void drop_cached(const SafetensorsEntry& tensor, uint64_t offset_bytes, uint64_t bytes) const;

 private:
  void parse_header();
  void check_layout();

  ReadOnlyFile file_;
  uint64_t data_start_ = 0;
  std::vector<SafetensorsEntry> tensors_;
  std::unordered_map<std::string, size_t> index_;
  std::map<std::string, std::string> metadata_;
};

struct SafetensorsTensor {
  std::string name, dtype;
  std::vector<int64_t> shape;
};

/// Writes one file. The file appears under its name, durable, when finish() returns; before that nothing of it is
/// visible.
class SafetensorsWriter {
 public:
  /// Lays the tensors out by falling element size, otherwise in the given order, writes the header and reserves the
  /// space. Throws invalid_data for an unknown dtype, duplicate name or size overflow; resource_exhausted or io.
  SafetensorsWriter(const std::filesystem::path& path, const std::vector<SafetensorsTensor>& tensors,
                    const std::map<std::string, std::string>& metadata);

  const std::filesystem::path& path() const { return file_.path(); }
  uint64_t data_bytes() const { return data_bytes_; }

  /// Writes part of a tensor; any order, each byte once. Thread-safe; blocks.
  void write(std::string_view name, uint64_t offset_bytes, const void* data, uint64_t bytes);
  /// Checks that every byte was written, makes the file durable and gives it its name.
  void finish();

 private:
  AtomicFile file_;
  std::unordered_map<std::string, SafetensorsEntry> entries_;
  uint64_t data_start_ = 0, data_bytes_ = 0;
  std::atomic<uint64_t> written_bytes_{0};
};

/// The "weight_map" of a model.safetensors.index.json: tensor name to file name. File names other than plain ones
/// ("../x", "/x", "a/b", "", with NUL) are refused. Throws invalid_data or io.
std::map<std::string, std::string> read_safetensors_index(const std::filesystem::path& file);

}  // namespace strata
