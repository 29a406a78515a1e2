// Weights in a Hugging Face directory, read into and written from the flat buffers of the layout, in pieces of any
// size.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "core/dtype.hpp"
#include "core/layout.hpp"
#include "core/model.hpp"
#include "core/model_files.hpp"
#include "core/safetensors.hpp"

namespace strata {

/// A tensor that is no parameter of the model but belongs to its files (GPT-2's attention masks, RoPE buffers).
struct PassthroughTensor {
  std::string name;  // as it is to be written, with the prefix of the layout's names
  const SafetensorsFile* file;
  const SafetensorsEntry* entry;
};

/// The weights of a model directory: model.safetensors, or the files of model.safetensors.index.json. Thread-safe for
/// reading.
class HfWeights {
 public:
  /// Opens and checks everything: each tensor of the layout is there (with or without the family's prefix
  /// "transformer." or "model."), has its shape and a floating-point dtype (F32, F16, BF16, F64), and nothing
  /// unexpected is beside it. A tied lm_head.weight is accepted if its bytes are those of the embedding. Throws one
  /// Error{invalid_data} that lists all missing, extra, mis-shaped and mistyped tensors; unsupported if there is only a
  /// pytorch_model.bin; io.
  HfWeights(const std::filesystem::path& directory, const ModelDescription& model, ModelLayout layout);

  const std::filesystem::path& directory() const { return directory_; }
  /// The dtype that most of the parameters have in the files (F64 counts as fp32).
  DType source_dtype() const { return source_dtype_; }
  /// Each parameter's dtype in the files, by the layout's names.
  std::map<std::string, DType> dtypes() const;
  const std::vector<PassthroughTensor>& passthrough_tensors() const { return passthrough_; }

  /// Fills out[0, range.count) with that part of the unit's flat buffer, gaps as zeros. Blocks; streams, so memory use
  /// does not depend on the range. Throws invalid_data if a file has become shorter, io.
  void read_as_float(size_t unit, Range range, float* out) const;
  /// As read_as_float, and refuses a NaN, an infinity, and a value that is one once it is rounded to `narrowest`: throws invalid_data
  /// with the tensor, the index of the first such element and its value in the file.
  void read_finite(size_t unit, Range range, DType narrowest, float* out) const;

 private:
  struct Source {
    const SafetensorsFile* file = nullptr;
    const SafetensorsEntry* entry = nullptr;
  };
  struct Checker;

  void open_files();
  [[noreturn]] static void refuse_element(const Source& source, uint64_t index, DType narrowest);

  std::filesystem::path directory_;
  ModelLayout layout_;
  std::vector<std::unique_ptr<SafetensorsFile>> files_;
  std::map<std::string, Source> found_;       // all tensors of the files, by their names there
  std::vector<std::vector<Source>> sources_;  // by unit and tensor
  std::vector<PassthroughTensor> passthrough_;
  DType source_dtype_ = DType::f32;
};

struct HfWriterOptions {
  DType dtype = DType::bf16;
  std::map<std::string, DType> dtype_of = {};  // exceptions, by tensor name
  uint64_t max_shard_bytes = 5'000'000'000;
  /// The model directory (or config.json) whose configuration is copied, with the dtype that most of the written elements have.
  std::filesystem::path source = {};
  /// Whether the directory's other files are, too: what list_model_files() names.
  bool copy_files = true;
  /// Tensors that are copied as they are. What they point to must outlive the writer.
  std::vector<PassthroughTensor> passthrough = {};
};

/// Writes a directory that transformers loads: model.safetensors, or shards of at most max_shard_bytes with an index.
class HfWriter {
 public:
  /// Creates the directory and reserves the space. Throws invalid_configuration if the directory holds model weights
  /// already, resource_exhausted or io.
  HfWriter(const std::filesystem::path& directory, ModelLayout layout, HfWriterOptions options);
  ~HfWriter();

  /// Takes part of a unit's flat buffer; gaps are ignored. Any order, each element once. Thread-safe; blocks. Throws invalid_data for a
  /// finite value that the tensor's dtype cannot hold.
  void write_from_float(size_t unit, Range range, const float* values);
  /// Copies passthrough tensors and files, makes everything durable and visible: the weights first, config.json last.
  void finish();
  /// After finish(): which of the source's files were not copied, and why.
  const std::vector<LeftOutFile>& left_out() const { return left_out_; }

 private:
  struct Target {
    SafetensorsWriter* writer;
    DType dtype;
  };

  void copy_passthrough();
  void write_index();
  void copy_files();
  DType most_of_the_elements() const;

  std::filesystem::path directory_;
  ModelLayout layout_;
  HfWriterOptions options_;
  std::vector<std::unique_ptr<SafetensorsWriter>> shards_;
  std::map<std::string, SafetensorsWriter*> shard_of_;
  std::vector<LeftOutFile> left_out_;
  std::vector<std::vector<Target>> targets_;  // by unit and tensor
};

}  // namespace strata
