#include "tests/parity/reference_data.hpp"

#include <fstream>
#include <limits>

#include "core/error.hpp"
#include "core/hf_weights.hpp"
#include "core/safetensors.hpp"

namespace strata::parity {
namespace {

std::vector<int32_t> int32s(const SafetensorsFile& file, const std::string& name) {
  const SafetensorsEntry* entry = file.find(name);
  STRATA_CHECK(entry != nullptr && entry->dtype == "I32", "no I32 tensor {}", name);
  std::vector<int32_t> values(entry->elements);
  file.read(*entry, 0, values.data(), entry->bytes());
  return values;
}

std::vector<double> doubles(const SafetensorsFile& file, const SafetensorsEntry& entry) {
  std::vector<double> values(entry.elements);
  file.read(entry, 0, values.data(), entry.bytes());
  return values;
}

/// The training batches: [batches, rows, length] cut along the first dimension.
std::vector<Batch> batches(const SafetensorsFile& file) {
  std::vector<Batch> result;
  if (file.find("train.tokens") == nullptr) return result;
  const auto shape = file.find("train.tokens")->shape;
  const auto tokens = int32s(file, "train.tokens"), labels = int32s(file, "train.labels");
  const auto size = static_cast<std::ptrdiff_t>(shape.at(1) * shape.at(2));
  for (std::ptrdiff_t first = 0; first < static_cast<std::ptrdiff_t>(tokens.size()); first += size) {
    result.push_back({shape[1],
                      shape[2],
                      {tokens.begin() + first, tokens.begin() + first + size},
                      {labels.begin() + first, labels.begin() + first + size}});
  }
  return result;
}

}  // namespace

Reference::Reference(const std::string& name)
    : directory(std::filesystem::path(STRATA_SOURCE_DIR) / "tests/reference/vectors" / name),
      model(read_model_description(directory)),
      layout(make_layout(model)) {
  const HfWeights weights(directory, model, layout);
  for (size_t unit = 0; unit < layout.units.size(); ++unit) {
    const uint64_t elements = layout.units[unit].padded_elements;
    parameters.emplace_back(elements, std::numeric_limits<float>::quiet_NaN());
    weights.read_as_float(unit, {0, elements}, parameters.back().data());
  }
  std::ifstream(directory / "vectors.json") >> numbers;
  const SafetensorsFile vectors(directory / "vectors.safetensors");
  const auto shape = vectors.find("tokens")->shape;
  batch = {shape.at(0), shape.at(1), int32s(vectors, "tokens"), int32s(vectors, "labels")};
  train_batches = batches(vectors);
  for (const auto& entry : vectors.tensors()) {
    if (entry.dtype == "F64") tensors.emplace(entry.name, doubles(vectors, entry));
  }
}

}  // namespace strata::parity
