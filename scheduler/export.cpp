#include <system_error>

#include "core/error.hpp"
#include "core/hf_weights.hpp"
#include "core/model_origin.hpp"
#include "scheduler/checkpoint.hpp"
#include "scheduler/checkpoint_manifest.hpp"

namespace strata::scheduler {

namespace {

namespace fs = std::filesystem;

constexpr uint64_t kPieceElements = 4ull << 20;

/// An output directory that was new or empty, and is again when the export fails.
class Output {
 public:
  explicit Output(const fs::path& path) : path_(path) {
    std::error_code error;
    existed_ = fs::exists(path, error);
    if (existed_ && (!fs::is_directory(path, error) || !fs::is_empty(path, error)))
      throw Error(ErrorCode::invalid_configuration, "the output exists and is not an empty directory", path.string(), "name a new directory");
  }
  ~Output() {
    if (kept_) return;
    std::error_code ignored;
    if (!existed_) fs::remove_all(path_, ignored);
    else
      for (const auto& entry : fs::directory_iterator(path_, ignored)) fs::remove_all(entry.path(), ignored);
  }
  Output(const Output&) = delete;
  Output& operator=(const Output&) = delete;
  void keep() { kept_ = true; }

 private:
  const fs::path path_;
  bool existed_ = false, kept_ = false;
};

/// The likeness of the model that training started from: each tensor's dtype, and what is no parameter.
class Likeness {
 public:
  Likeness(const CheckpointReader& reader, HfWriterOptions& options) : origin_(ModelOrigin::read(reader.info().path / kModelFolder)) {
    if (origin_) {
      options.dtype = origin_->dtype();
      options.dtype_of = origin_->dtypes();
      options.passthrough = origin_->passthrough();
      left_out_ = origin_->left_out();
      return;
    }
    // A checkpoint of an older version keeps nothing of that model: it is asked itself, while it is there.
    const fs::path model = reader.info().record.model_path;
    std::error_code error;
    if (!fs::exists(model / "config.json", error)) return;
    weights_ = std::make_unique<HfWeights>(model, reader.model(), reader.layout());
    options.dtype = weights_->source_dtype();
    options.dtype_of = weights_->dtypes();
    options.passthrough = weights_->passthrough_tensors();
  }

  const std::vector<LeftOutFile>& left_out() const { return left_out_; }

 private:
  std::optional<ModelOrigin> origin_;
  std::unique_ptr<HfWeights> weights_;
  std::vector<LeftOutFile> left_out_;
};

}  // namespace

std::vector<LeftOutFile> export_checkpoint(const fs::path& checkpoint_or_folder, const fs::path& out, std::optional<DType> dtype,
                                           const ProgressCallback& progress, const std::vector<StoreMove>& moves) {
  Output output(out);
  const std::unique_ptr<CheckpointReader> reader = CheckpointReader::open(resolve_checkpoint(checkpoint_or_folder), progress, moves);
  HfWriterOptions options;
  options.dtype = DType::f32;
  options.source = reader->info().path / kModelFolder;
  const Likeness likeness(*reader, options);
  if (dtype) {
    options.dtype = *dtype;
    options.dtype_of.clear();
  }
  HfWriter writer(out, reader->layout(), options);
  std::vector<float> values(kPieceElements);
  uint64_t done = 0;
  for (int unit = 0; unit < static_cast<int>(reader->layout().units.size()); ++unit) {
    const uint64_t elements = reader->layout().units[unit].padded_elements;
    for (const Range& range : tile_ranges({0, elements}, kPieceElements)) {
      reader->read(Quantity::master, unit, range, values.data());
      writer.write_from_float(unit, range, values.data());
      done += range.count;
      if (progress) progress(done, reader->layout().elements());
    }
  }
  writer.finish();
  output.keep();
  std::vector<LeftOutFile> left_out = likeness.left_out();
  left_out.insert(left_out.end(), writer.left_out().begin(), writer.left_out().end());
  return left_out;
}

}  // namespace strata::scheduler
