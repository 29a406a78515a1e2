// The tiny models and reference numbers under tests/reference/vectors, read by Strata's own readers.
#pragma once

#include <cstdint>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include "core/layout.hpp"
#include "core/model.hpp"
#include "tests/parity/engine_harness.hpp"

namespace strata::parity {

struct Batch {
  int64_t rows = 0, length = 0;
  std::vector<int32_t> tokens, labels;  // [rows, length]
};

struct Reference {
  /// Reads tests/reference/vectors/NAME: the model, its weights in layout order, and the numbers.
  explicit Reference(const std::string& name);

  /// A float64 tensor of vectors.safetensors. Throws std::out_of_range when there is none of that name.
  std::span<const double> tensor(const std::string& name) const { return tensors.at(name); }

  std::filesystem::path directory;
  nlohmann::json numbers;  // vectors.json
  ModelDescription model;
  ModelLayout layout;
  UnitBuffers parameters;  // gaps are zero
  Batch batch;
  std::vector<Batch> train_batches;
  std::unordered_map<std::string, std::vector<double>> tensors;
};

}  // namespace strata::parity
