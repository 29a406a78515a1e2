#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "core/hf_weights.hpp"
#include "core/json.hpp"

namespace strata {
namespace {

constexpr uint64_t kPieceElements = 256 << 10;
constexpr uint64_t kCopyBytes = 1 << 20;

std::string dtype_name(DType dtype) { return dtype == DType::f32 ? "F32" : dtype == DType::bf16 ? "BF16" : "F16"; }
std::string torch_name(DType dtype) {
  return dtype == DType::f32 ? "float32" : dtype == DType::bf16 ? "bfloat16" : "float16";
}

uint64_t bytes_of(const SafetensorsTensor& tensor) {
  uint64_t elements = 1;
  for (const int64_t size : tensor.shape) elements *= static_cast<uint64_t>(size);
  return elements * safetensors_dtype_bits(tensor.dtype) / 8;
}

void refuse_used_directory(const std::filesystem::path& directory) {
  for (const auto& item : std::filesystem::directory_iterator(directory)) {
    const std::string name = item.path().filename().string();
    // A left-over file or index would be loaded instead of, or beside, what is written now.
    if (name.ends_with(".safetensors") || name == "model.safetensors.index.json") {
      throw Error(ErrorCode::invalid_configuration, "the directory holds model weights already", item.path().string(),
                  "choose another directory or remove the old files first");
    }
  }
}

/// A value that overflows would be written as an infinity: the whole model would be lost with one weight.
void refuse_overflow(const TensorLayout& tensor, uint64_t first, const float* from, const uint16_t* converted, uint64_t count, DType dtype) {
  for (uint64_t k = 0; k < count; ++k) {
    if (!std::isfinite(from[k]) || std::isfinite(float_from_half(dtype, converted[k]))) continue;
    throw Error(ErrorCode::invalid_data, fmt::format("element {} is {}, which {} cannot hold", first + k, from[k], to_string(dtype)),
                tensor.name, "write the model in fp32 or bf16 (strata export --dtype)");
  }
}

}  // namespace

HfWriter::~HfWriter() = default;

HfWriter::HfWriter(const std::filesystem::path& directory, ModelLayout layout, HfWriterOptions options)
    : directory_(directory), layout_(std::move(layout)), options_(std::move(options)) {
  STRATA_CHECK(!options_.source.empty(), "no source of the configuration for {}", directory_.string());
  std::error_code failure;
  std::filesystem::create_directories(directory_, failure);
  if (failure) throw Error(ErrorCode::io, "cannot create the directory: " + failure.message(), directory_.string());
  refuse_used_directory(directory_);

  // Shards are filled in the layout's order; a tensor larger than the limit has one of its own.
  std::vector<std::vector<SafetensorsTensor>> shards(1);
  uint64_t shard_bytes = 0;
  const auto assign = [&](SafetensorsTensor tensor) {
    const uint64_t bytes = bytes_of(tensor);
    if (!shards.back().empty() &&
        (bytes > options_.max_shard_bytes || shard_bytes > options_.max_shard_bytes - bytes)) {
      shards.emplace_back();
      shard_bytes = 0;
    }
    shards.back().push_back(std::move(tensor));
    shard_bytes += bytes;
  };
  for (const UnitLayout& unit : layout_.units) {
    auto& targets = targets_.emplace_back();
    for (const TensorLayout& tensor : unit.tensors) {
      const auto exception = options_.dtype_of.find(tensor.name);
      targets.push_back({nullptr, exception == options_.dtype_of.end() ? options_.dtype : exception->second});
      assign({tensor.name, dtype_name(targets.back().dtype), tensor.shape});
    }
  }
  for (const PassthroughTensor& tensor : options_.passthrough) assign({tensor.name, tensor.entry->dtype, tensor.entry->shape});
  for (size_t i = 0; i < shards.size(); ++i) {
    const std::string name = shards.size() == 1 ? "model.safetensors"
                                                : fmt::format("model-{:05}-of-{:05}.safetensors", i + 1, shards.size());
    shards_.push_back(std::make_unique<SafetensorsWriter>(directory_ / name, shards[i],
                                                          std::map<std::string, std::string>{{"format", "pt"}}));
    for (const SafetensorsTensor& tensor : shards[i]) shard_of_[tensor.name] = shards_.back().get();
  }
  for (size_t unit = 0; unit < targets_.size(); ++unit) {
    for (size_t i = 0; i < targets_[unit].size(); ++i)
      targets_[unit][i].writer = shard_of_.at(layout_.units[unit].tensors[i].name);
  }
}

void HfWriter::write_from_float(size_t unit, Range range, const float* values) {
  STRATA_CHECK(unit < layout_.units.size(), "unit {} of {}", unit, layout_.units.size());
  const UnitLayout& layout = layout_.units[unit];
  STRATA_CHECK(range.first <= layout.padded_elements && range.count <= layout.padded_elements - range.first,
               "[{}, +{}) of {} with {}", range.first, range.count, layout.name, layout.padded_elements);
  std::vector<uint16_t> piece;
  for (size_t i = 0; i < layout.tensors.size(); ++i) {
    const TensorLayout& tensor = layout.tensors[i];
    const Target& target = targets_[unit][i];
    const uint64_t end = std::min(range.first + range.count, tensor.offset + tensor.elements);
    for (uint64_t at = std::max(range.first, tensor.offset); at < end;) {
      const float* from = values + (at - range.first);
      const uint64_t size = size_bytes(target.dtype), offset_bytes = (at - tensor.offset) * size;
      if (target.dtype == DType::f32) {
        target.writer->write(tensor.name, offset_bytes, from, (end - at) * size);
        break;
      }
      const uint64_t count = std::min(kPieceElements, end - at);
      piece.resize(count);
      for (uint64_t k = 0; k < count; ++k) piece[k] = half_from_float(target.dtype, from[k]);
      refuse_overflow(tensor, at - tensor.offset, from, piece.data(), count, target.dtype);
      target.writer->write(tensor.name, offset_bytes, piece.data(), count * size);
      at += count;
    }
  }
}

void HfWriter::copy_passthrough() {
  std::vector<char> piece(kCopyBytes);
  for (const PassthroughTensor& tensor : options_.passthrough) {
    for (uint64_t done = 0; done < tensor.entry->bytes();) {
      const uint64_t bytes = std::min(kCopyBytes, tensor.entry->bytes() - done);
      tensor.file->read(*tensor.entry, done, piece.data(), bytes);
      shard_of_.at(tensor.name)->write(tensor.name, done, piece.data(), bytes);
      done += bytes;
    }
  }
}

void HfWriter::write_index() {
  if (shards_.size() == 1) return;
  Json index = {{"metadata", {{"total_size", 0}}}, {"weight_map", Json::object()}};
  uint64_t total = 0;
  for (const auto& shard : shards_) total += shard->data_bytes();
  index["metadata"]["total_size"] = total;
  for (const auto& [name, writer] : shard_of_) index["weight_map"][name] = writer->path().filename().string();
  const std::string text = index.dump(2) + "\n";
  write_file_atomically(directory_ / "model.safetensors.index.json", text.data(), text.size());
}

void HfWriter::copy_files() {
  const bool directory = std::filesystem::is_directory(options_.source);
  if (directory && options_.copy_files) left_out_ = copy_model_files(options_.source, directory_);
  Json config =
      parse_json_file(directory ? options_.source / "config.json" : options_.source, ErrorCode::invalid_configuration);
  if (!config.is_object())
    throw Error(ErrorCode::invalid_configuration, "config.json is not an object", options_.source.string());
  const std::string dtype = torch_name(most_of_the_elements());
  config["torch_dtype"] = dtype;
  if (config.contains("dtype")) config["dtype"] = dtype;  // the key's newer name
  const std::string text = config.dump(2) + "\n";
  write_file_atomically(directory_ / "config.json", text.data(), text.size());
}

DType HfWriter::most_of_the_elements() const {
  std::map<DType, uint64_t> elements;
  for (size_t unit = 0; unit < targets_.size(); ++unit)
    for (size_t i = 0; i < targets_[unit].size(); ++i) elements[targets_[unit][i].dtype] += layout_.units[unit].tensors[i].elements;
  return std::max_element(elements.begin(), elements.end(), [](const auto& a, const auto& b) { return a.second < b.second; })->first;
}

void HfWriter::finish() {
  copy_passthrough();
  for (const auto& shard : shards_) shard->finish();
  write_index();
  copy_files();
}

}  // namespace strata
