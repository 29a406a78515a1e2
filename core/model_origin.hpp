// What must be remembered of the weights that training starts from, so that a trained model can be written in their likeness when they
// are gone: the dtype of each tensor, and the tensors that are no parameters. Two files in a directory that holds the model's others.
#pragma once

#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "core/dtype.hpp"
#include "core/hf_weights.hpp"
#include "core/model_files.hpp"

namespace strata {

inline constexpr const char* kOriginName = "strata-origin.json";
inline constexpr const char* kOriginTensorsName = "strata-origin.safetensors";
/// In a run's copy of a model: lists its files.
inline constexpr const char* kCopyListName = "strata-copy.json";
/// Whether a file of this name is of Strata's own, not of the model.
bool is_origin_file(std::string_view name);

class ModelOrigin {
 public:
  /// Writes DIRECTORY/strata-origin.json, and strata-origin.safetensors where there are tensors that are no parameters; durable.
  /// `left_out` is remembered for an export to say. Throws io, resource_exhausted, and what reading the weights does.
  static void write(const std::filesystem::path& directory, const HfWeights& weights, const std::vector<LeftOutFile>& left_out);
  /// Absent where the directory has none. Throws data_corruption when it is not whole.
  static std::optional<ModelOrigin> read(const std::filesystem::path& directory);
  /// Copies the two files that there are. Throws io or resource_exhausted.
  static void copy(const std::filesystem::path& from, const std::filesystem::path& to);
  /// The bytes of the two files.
  static uint64_t bytes(const std::filesystem::path& directory);

  /// What most of the parameters have.
  DType dtype() const { return dtype_; }
  /// The parameters that have another, by the layout's names. F64 counts as fp32, the precision of training.
  const std::map<std::string, DType>& dtypes() const { return dtypes_; }
  /// Valid as long as this is.
  const std::vector<PassthroughTensor>& passthrough() const { return passthrough_; }
  const std::vector<LeftOutFile>& left_out() const { return left_out_; }

 private:
  DType dtype_ = DType::f32;
  std::map<std::string, DType> dtypes_;
  std::vector<LeftOutFile> left_out_;
  std::unique_ptr<SafetensorsFile> file_;
  std::vector<PassthroughTensor> passthrough_;
};

}  // namespace strata
