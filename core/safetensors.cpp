#include "core/safetensors.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <utility>

#include "core/json.hpp"

namespace strata {
namespace {

static_assert(std::endian::native == std::endian::little,
              "safetensors files are little-endian and are read as they are");

constexpr uint64_t kLengthBytes = 8;
constexpr uint64_t kMaxHeaderBytes = 100'000'000;  // the limit of the reference implementation
constexpr uint64_t kMaxHeaderValues = 4'000'000;   // some 300,000 tensors
constexpr size_t kMaxNameBytes = 4096;
constexpr const char* kRemedy = "the file is damaged or hostile; get it again from its source";

struct DTypeBits {
  std::string_view name;
  uint32_t bits;
};
constexpr std::array<DTypeBits, 20> kDTypes = {
    {{"F64", 64},    {"F32", 32},    {"F16", 16}, {"BF16", 16}, {"I64", 64},    {"I32", 32},   {"I16", 16},
     {"I8", 8},      {"U64", 64},    {"U32", 32}, {"U16", 16},  {"U8", 8},      {"BOOL", 8},   {"F8_E4M3", 8},
     {"F8_E5M2", 8}, {"F8_E8M0", 8}, {"C64", 64}, {"F4", 4},    {"F6_E2M3", 6}, {"F6_E3M2", 6}}};

[[noreturn]] void refuse(const std::string& what, const std::filesystem::path& path, const std::string& tensor = {}) {
  throw Error(ErrorCode::invalid_data, "not a valid safetensors file: " + what,
              tensor.empty() ? path.string() : fmt::format("{}, tensor \"{}\"", path.string(), printable(tensor, 200)),
              kRemedy);
}

/// The product of the sizes, or false if 64 bits (or the byte count that follows from it) cannot hold it.
bool count_elements(const std::vector<int64_t>& shape, uint64_t& elements) {
  elements = 1;
  for (const int64_t size : shape) {
    if (size < 0 || __builtin_mul_overflow(elements, static_cast<uint64_t>(size), &elements)) return false;
  }
  return true;
}

bool count_bytes(uint64_t elements, uint32_t bits, uint64_t& bytes) {
  uint64_t total_bits = 0;
  if (__builtin_mul_overflow(elements, static_cast<uint64_t>(bits), &total_bits) || total_bits % 8 != 0) return false;
  bytes = total_bits / 8;
  return true;
}

/// One tensor's entry of the header, its fields checked one by one.
SafetensorsEntry read_entry(const std::string& name, const Json& value, const std::filesystem::path& path) {
  SafetensorsEntry entry;
  entry.name = name;
  if (!value.is_object()) refuse("its entry is not an object", path, name);
  for (const char* key : {"dtype", "shape", "data_offsets"}) {
    if (!value.contains(key)) refuse(fmt::format("its entry has no \"{}\"", key), path, name);
  }
  const Json& dtype = value["dtype"];
  if (!dtype.is_string()) refuse("its dtype is not a string", path, name);
  entry.dtype = dtype.get<std::string>();
  const uint32_t bits = safetensors_dtype_bits(entry.dtype);
  if (bits == 0) refuse(fmt::format("its dtype \"{}\" is unknown", printable(entry.dtype)), path, name);

  const Json& shape = value["shape"];
  if (!shape.is_array()) refuse("its shape is not a list", path, name);
  for (const Json& size : shape) {
    if (!size.is_number_unsigned() || size.get<uint64_t>() > static_cast<uint64_t>(INT64_MAX)) {
      refuse("its shape holds something other than sizes", path, name);
    }
    entry.shape.push_back(size.get<int64_t>());
  }
  uint64_t bytes = 0;
  if (!count_elements(entry.shape, entry.elements) || !count_bytes(entry.elements, bits, bytes)) {
    refuse("the product of its shape is no whole number of bytes that 64 bits can count", path, name);
  }

  const Json& offsets = value["data_offsets"];
  if (!offsets.is_array() || offsets.size() != 2 || !offsets[0].is_number_unsigned() ||
      !offsets[1].is_number_unsigned()) {
    refuse("its data_offsets are not two offsets", path, name);
  }
  entry.begin = offsets[0].get<uint64_t>();
  entry.end = offsets[1].get<uint64_t>();
  if (entry.begin > entry.end)
    refuse(fmt::format("its data_offsets are reversed: {} to {}", entry.begin, entry.end), path, name);
  if (entry.bytes() != bytes) {
    refuse(fmt::format("its shape and dtype take {} bytes, its data_offsets {}", bytes, entry.bytes()), path, name);
  }
  return entry;
}

}  // namespace

uint32_t safetensors_dtype_bits(std::string_view dtype) {
  for (const DTypeBits& known : kDTypes) {
    if (known.name == dtype) return known.bits;
  }
  return 0;
}

SafetensorsFile::SafetensorsFile(const std::filesystem::path& path) : file_(path) {
  parse_header();
  check_layout();
}

void SafetensorsFile::parse_header() {
  if (file_.size() < kLengthBytes) refuse(fmt::format("it has {} bytes, too few for a header", file_.size()), path());
  uint64_t length = 0;
  file_.read(0, &length, kLengthBytes);
  if (length > kMaxHeaderBytes)
    refuse(fmt::format("its header would have {} bytes; at most {} are allowed", length, kMaxHeaderBytes), path());
  if (length > file_.size() - kLengthBytes) {
    refuse(fmt::format("its header would have {} bytes, but the file has only {}", length, file_.size()), path());
  }
  data_start_ = kLengthBytes + length;

  std::string text(length, '\0');
  file_.read(kLengthBytes, text.data(), length);
  if (text.empty() || text.front() != '{') refuse("its header does not begin with '{'", path());
  const JsonLimits limits{.bytes = kMaxHeaderBytes, .values = kMaxHeaderValues, .depth = 8};
  const Json header = parse_json(text, path().string() + " (header)", ErrorCode::invalid_data, limits);

  for (const auto& [name, value] : header.items()) {
    if (name == "__metadata__") {
      if (!value.is_object()) refuse("__metadata__ is not an object", path());
      for (const auto& [key, note] : value.items()) {
        if (!note.is_string()) refuse("__metadata__ holds something other than strings", path());
        metadata_.emplace(key, note.get<std::string>());
      }
      continue;
    }
    if (name.size() > kMaxNameBytes)
      refuse(fmt::format("a name of {} bytes; at most {} are allowed", name.size(), kMaxNameBytes), path());
    if (name.find('\0') != std::string::npos) refuse("a NUL character in a name", path(), name);
    tensors_.push_back(read_entry(name, value, path()));
  }
}

void SafetensorsFile::check_layout() {
  // Empty tensors first among those that begin at the same offset, so that they fill no hole and make none.
  std::sort(tensors_.begin(), tensors_.end(), [](const SafetensorsEntry& a, const SafetensorsEntry& b) {
    return std::pair(a.begin, a.end) < std::pair(b.begin, b.end);
  });
  uint64_t end = 0;
  for (const SafetensorsEntry& tensor : tensors_) {
    if (tensor.end > data_bytes()) {
      refuse(fmt::format("it ends at byte {} of a data section of {} bytes", tensor.end, data_bytes()), path(),
             tensor.name);
    }
    if (tensor.begin < end)
      refuse(fmt::format("it begins at byte {}, inside the tensor before it", tensor.begin), path(), tensor.name);
    if (tensor.begin > end)
      refuse(fmt::format("there is a hole before it, from byte {} to {}", end, tensor.begin), path(), tensor.name);
    end = tensor.end;
  }
  if (end != data_bytes())
    refuse(fmt::format("its tensors end at byte {} of a data section of {} bytes", end, data_bytes()), path());
  index_.reserve(tensors_.size());
  for (size_t i = 0; i < tensors_.size(); ++i) index_.emplace(tensors_[i].name, i);
}

const SafetensorsEntry* SafetensorsFile::find(std::string_view name) const {
  const auto found = index_.find(std::string(name));
  return found == index_.end() ? nullptr : &tensors_[found->second];
}

void SafetensorsFile::read(const SafetensorsEntry& tensor, uint64_t offset_bytes, void* out, uint64_t bytes) const {
  STRATA_CHECK(offset_bytes <= tensor.bytes() && bytes <= tensor.bytes() - offset_bytes, "{} bytes at {} of {} with {}",
               bytes, offset_bytes, tensor.name, tensor.bytes());
  file_.read(data_start_ + tensor.begin + offset_bytes, out, bytes);
}

void SafetensorsFile::drop_cached(const SafetensorsEntry& tensor, uint64_t offset_bytes, uint64_t bytes) const {
  file_.drop_cached(data_start_ + tensor.begin + offset_bytes, bytes);
}

SafetensorsWriter::SafetensorsWriter(const std::filesystem::path& path, const std::vector<SafetensorsTensor>& tensors,
                                     const std::map<std::string, std::string>& metadata)
    : file_(path) {
  std::vector<const SafetensorsTensor*> order;
  for (const SafetensorsTensor& tensor : tensors) order.push_back(&tensor);
  // Large elements first keep every tensor aligned to its element size, as the reference implementation does.
  std::stable_sort(order.begin(), order.end(), [](const SafetensorsTensor* a, const SafetensorsTensor* b) {
    return safetensors_dtype_bits(a->dtype) > safetensors_dtype_bits(b->dtype);
  });

  nlohmann::ordered_json header = nlohmann::ordered_json::object();
  if (!metadata.empty()) header["__metadata__"] = metadata;
  auto& members = header.get_ref<nlohmann::ordered_json::object_t&>();
  for (const SafetensorsTensor* tensor : order) {
    SafetensorsEntry entry{tensor->name, tensor->dtype, tensor->shape, 0, data_bytes_, 0};
    uint64_t bytes = 0;
    const uint32_t bits = safetensors_dtype_bits(tensor->dtype);
    if (bits == 0 || tensor->name == "__metadata__" || !count_elements(tensor->shape, entry.elements) ||
        !count_bytes(entry.elements, bits, bytes) || __builtin_add_overflow(data_bytes_, bytes, &data_bytes_)) {
      throw Error(ErrorCode::invalid_data,
                  "the tensor cannot be written as safetensors: its name, dtype or size is not allowed",
                  fmt::format("{}, tensor \"{}\"", path.string(), printable(tensor->name)));
    }
    entry.end = data_bytes_;
    if (!entries_.emplace(tensor->name, entry).second) {
      throw Error(ErrorCode::invalid_data, "two tensors have one name",
                  fmt::format("{}, tensor \"{}\"", path.string(), printable(tensor->name)));
    }
    // The member list is appended to directly: looking for an equal key first would cost time quadratic in the tensors.
    members.std::vector<std::pair<const std::string, nlohmann::ordered_json>>::emplace_back(
        tensor->name,
        nlohmann::ordered_json{
            {"dtype", tensor->dtype}, {"shape", tensor->shape}, {"data_offsets", {entry.begin, entry.end}}});
  }
  std::string text = header.dump();
  text.resize((text.size() + 7) / 8 * 8, ' ');
  const uint64_t length = text.size();
  data_start_ = kLengthBytes + length;
  file_.preallocate(data_start_ + data_bytes_);
  file_.write(0, &length, kLengthBytes);
  file_.write(kLengthBytes, text.data(), length);
}

void SafetensorsWriter::write(std::string_view name, uint64_t offset_bytes, const void* data, uint64_t bytes) {
  const auto found = entries_.find(std::string(name));
  STRATA_CHECK(found != entries_.end(), "no tensor \"{}\" in {}", name, path().string());
  const SafetensorsEntry& entry = found->second;
  STRATA_CHECK(offset_bytes <= entry.bytes() && bytes <= entry.bytes() - offset_bytes, "{} bytes at {} of {} with {}",
               bytes, offset_bytes, entry.name, entry.bytes());
  file_.write(data_start_ + entry.begin + offset_bytes, data, bytes);
  written_bytes_ += bytes;
}

void SafetensorsWriter::finish() {
  STRATA_CHECK(written_bytes_ == data_bytes_, "{} of {} bytes of {} were written", written_bytes_.load(), data_bytes_,
               path().string());
  file_.finish();
}

std::map<std::string, std::string> read_safetensors_index(const std::filesystem::path& file) {
  const JsonLimits limits{.bytes = kMaxHeaderBytes, .values = kMaxHeaderValues, .depth = 16};
  const Json index = parse_json_file(file, ErrorCode::invalid_data, limits);
  const auto refuse_index = [&](const std::string& what) {
    throw Error(ErrorCode::invalid_data, "not a valid safetensors index: " + what, file.string(), kRemedy);
  };
  if (!index.is_object() || !index.contains("weight_map") || !index["weight_map"].is_object())
    refuse_index("it has no \"weight_map\" object");
  std::map<std::string, std::string> map;
  for (const auto& [name, value] : index["weight_map"].items()) {
    if (!value.is_string()) refuse_index(fmt::format("the file of \"{}\" is not a string", printable(name)));
    const std::string& target = value.get_ref<const std::string&>();
    const bool plain = !target.empty() && target != "." && target != ".." && target.find('/') == std::string::npos &&
                       target.find('\\') == std::string::npos && target.find('\0') == std::string::npos;
    if (!plain) {
      refuse_index(fmt::format("the file of \"{}\" is \"{}\"; only plain file names in the same directory are followed",
                               printable(name), printable(target)));
    }
    map.emplace(name, target);
  }
  return map;
}

}  // namespace strata
