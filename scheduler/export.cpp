#include <system_error>

#include "core/error.hpp"
#include "core/hf_weights.hpp"
#include "scheduler/checkpoint.hpp"
#include "scheduler/checkpoint_manifest.hpp"

namespace strata::scheduler {

namespace {
constexpr uint64_t kPieceElements = 4ull << 20;
}

void export_checkpoint(const std::filesystem::path& checkpoint_or_folder, const std::filesystem::path& out,
                       const ProgressCallback& progress) {
  std::error_code error;
  if (std::filesystem::exists(out, error) && !std::filesystem::is_empty(out, error))
    throw Error(ErrorCode::invalid_configuration, "the output exists and is not an empty directory", out.string(),
                "name a new directory");
  const std::unique_ptr<CheckpointReader> reader = CheckpointReader::open(resolve_checkpoint(checkpoint_or_folder), progress);
  HfWriterOptions options;
  options.dtype = DType::f32;
  options.source = reader->info().path / kModelFolder;
  // The model that training started from says which dtype each tensor has, and holds what is no parameter.
  const std::filesystem::path origin = reader->info().record.model_path;
  std::unique_ptr<HfWeights> weights;
  if (std::filesystem::exists(origin / "config.json", error)) {
    weights = std::make_unique<HfWeights>(origin, reader->model(), reader->layout());
    options.dtype = weights->source_dtype();
    options.passthrough = weights.get();
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
}

}  // namespace strata::scheduler
