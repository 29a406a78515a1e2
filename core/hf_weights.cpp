#include "core/hf_weights.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <optional>
#include <set>
#include <utility>

#include "core/json_fields.hpp"

namespace strata {
namespace {

constexpr uint64_t kPieceElements = 256 << 10;

std::string prefix_of(const ModelDescription& model) {
  return model.family == Family::gpt2 ? "transformer." : "model.";
}

/// Buffers that some versions of transformers saved beside the parameters.
bool is_known_buffer(std::string_view name, Family family) {
  if (name.ends_with("rotary_emb.inv_freq")) return true;
  return family == Family::gpt2 && (name.ends_with(".attn.bias") || name.ends_with(".attn.masked_bias"));
}

template <typename Stored, typename Convert>
void convert(const void* from, uint64_t count, float* to, Convert convert_one) {
  const char* bytes = static_cast<const char*>(from);
  for (uint64_t i = 0; i < count; ++i) {
    Stored value;
    std::memcpy(&value, bytes + i * sizeof(Stored), sizeof(Stored));
    to[i] = convert_one(value);
  }
}

DType dtype_of(std::string_view name) { return name == "BF16" ? DType::bf16 : name == "F16" ? DType::f16 : DType::f32; }

/// The bits of the smallest positive fp32 value that is not finite once it is rounded to a dtype.
constexpr uint32_t first_infinite(DType dtype) {
  return dtype == DType::f32 ? 0x7f800000u : dtype == DType::bf16 ? 0x7f7f8000u : 0x477ff000u;
}

/// The index of the first value whose magnitude reaches `limit`, given as bits; NaN is above every limit.
std::optional<uint64_t> find_from(uint32_t limit, const float* values, uint64_t count) {
  const auto reaches = [limit](float value) {
    return static_cast<int32_t>(std::bit_cast<uint32_t>(value) & 0x7fffffffu) >= static_cast<int32_t>(limit);
  };
  int32_t any = 0;
  for (uint64_t i = 0; i < count; ++i) any |= reaches(values[i]);  // without a branch, so that it is vectorized
  if (any == 0) return std::nullopt;
  return static_cast<uint64_t>(std::find_if(values, values + count, reaches) - values);
}

/// Reads elements [first, first + count) of a tensor as fp32, piece by piece.
void read_elements(const SafetensorsFile& file, const SafetensorsEntry& entry, uint64_t first, uint64_t count,
                   float* out) {
  if (entry.dtype == "F32") return file.read(entry, first * 4, out, count * 4);
  const uint64_t size = safetensors_dtype_bits(entry.dtype) / 8;
  std::vector<char> piece(std::min(count, kPieceElements) * size);
  for (uint64_t done = 0; done < count;) {
    const uint64_t elements = std::min(kPieceElements, count - done);
    file.read(entry, (first + done) * size, piece.data(), elements * size);
    if (entry.dtype == "BF16")
      convert<uint16_t>(piece.data(), elements, out + done, float_from_bf16);
    else if (entry.dtype == "F16")
      convert<uint16_t>(piece.data(), elements, out + done, float_from_f16);
    else
      convert<double>(piece.data(), elements, out + done, [](double value) { return static_cast<float>(value); });
    done += elements;
  }
}

/// Calls visit(tensor index, first element within the tensor, first element within the range, count) for each overlap.
template <typename Visit>
void for_each_overlap(const UnitLayout& unit, Range range, Visit visit) {
  STRATA_CHECK(range.first <= unit.padded_elements && range.count <= unit.padded_elements - range.first,
               "[{}, +{}) of {} with {}", range.first, range.count, unit.name, unit.padded_elements);
  const uint64_t end = range.first + range.count;
  for (size_t i = 0; i < unit.tensors.size(); ++i) {
    const TensorLayout& tensor = unit.tensors[i];
    const uint64_t from = std::max(range.first, tensor.offset), to = std::min(end, tensor.offset + tensor.elements);
    if (from < to) visit(i, from - tensor.offset, from - range.first, to - from);
  }
}

bool same_contents(const SafetensorsFile& file_a, const SafetensorsEntry& a, const SafetensorsFile& file_b,
                   const SafetensorsEntry& b) {
  if (a.dtype != b.dtype || a.shape != b.shape) return false;
  constexpr uint64_t kPiece = 1 << 20;
  std::vector<char> piece_a(kPiece), piece_b(kPiece);
  for (uint64_t done = 0; done < a.bytes(); done += kPiece) {
    const uint64_t bytes = std::min(kPiece, a.bytes() - done);
    file_a.read(a, done, piece_a.data(), bytes);
    file_b.read(b, done, piece_b.data(), bytes);
    if (std::memcmp(piece_a.data(), piece_b.data(), bytes) != 0) return false;
  }
  return true;
}

}  // namespace

/// Matches the files' tensors with the layout's and collects what does not fit.
struct HfWeights::Checker {
  HfWeights& weights;
  const ModelDescription& model;
  const std::string prefix = prefix_of(model);
  Problems problems = {};
  std::set<std::string> used = {};
  std::map<std::string, uint64_t> elements_of_dtype = {};

  Source take(const std::string& name) {
    const auto found = weights.found_.find(name);
    if (found == weights.found_.end()) return {};
    used.insert(name);
    return found->second;
  }

  Source take_parameter(const TensorLayout& tensor) {
    Source source = take(tensor.name);
    if (source.file == nullptr && tensor.name.starts_with(prefix)) source = take(tensor.name.substr(prefix.size()));
    // A tied pair is saved once, under either name.
    if (source.file == nullptr && tensor.role == TensorRole::token_embedding && model.tied_head)
      source = take("lm_head.weight");
    return source;
  }

  void check_parameters() {
    for (const UnitLayout& unit : weights.layout_.units) {
      std::vector<Source>& sources = weights.sources_.emplace_back();
      for (const TensorLayout& tensor : unit.tensors) sources.push_back(check_parameter(tensor));
    }
    const auto most = std::max_element(elements_of_dtype.begin(), elements_of_dtype.end(),
                                       [](const auto& a, const auto& b) { return a.second < b.second; });
    if (most != elements_of_dtype.end()) {
      weights.source_dtype_ = dtype_of(most->first);
    }
  }

  Source check_parameter(const TensorLayout& tensor) {
    const Source source = take_parameter(tensor);
    if (source.file == nullptr) {
      problems.add(tensor.name, "is missing");
      return source;
    }
    const SafetensorsEntry& entry = *source.entry;
    if (entry.shape != tensor.shape) {
      problems.add(entry.name, fmt::format("has shape [{}], the configuration says [{}]", fmt::join(entry.shape, ", "),
                                           fmt::join(tensor.shape, ", ")));
    }
    if (entry.dtype != "F32" && entry.dtype != "BF16" && entry.dtype != "F16" && entry.dtype != "F64") {
      problems.add(entry.name, fmt::format("has dtype {}; supported are F32, BF16, F16, F64", entry.dtype));
    }
    elements_of_dtype[entry.dtype] += entry.elements;
    return source;
  }

  void check_others() {
    for (const auto& [name, source] : weights.found_) {
      if (used.contains(name)) continue;
      if (is_known_buffer(name, model.family)) {
        weights.passthrough_.push_back({name.starts_with(prefix) ? name : prefix + name, source.file, source.entry});
      } else if (name == "lm_head.weight" && model.tied_head) {
        check_tied_head(source);
      } else {
        problems.add(name, "is not a tensor of this model");
      }
    }
  }

  void check_tied_head(const Source& head) {
    const Source& embedding = weights.sources_.front().front();
    if (embedding.file == nullptr || same_contents(*head.file, *head.entry, *embedding.file, *embedding.entry)) return;
    problems.add("lm_head.weight",
                 "differs from the embedding, but the configuration says that they are tied (tie_word_embeddings)");
  }
};

HfWeights::HfWeights(const std::filesystem::path& directory, const ModelDescription& model, ModelLayout layout)
    : directory_(directory), layout_(std::move(layout)) {
  open_files();
  Checker checker{*this, model};
  checker.check_parameters();
  checker.check_others();
  if (!checker.problems.empty()) {
    checker.problems.raise(ErrorCode::invalid_data, directory_.string(),
                           "check that config.json and the weights are of the same model");
  }
}

std::map<std::string, DType> HfWeights::dtypes() const {
  std::map<std::string, DType> dtypes;
  for (size_t unit = 0; unit < layout_.units.size(); ++unit)
    for (size_t i = 0; i < layout_.units[unit].tensors.size(); ++i)
      dtypes[layout_.units[unit].tensors[i].name] = dtype_of(sources_[unit][i].entry->dtype);
  return dtypes;
}

void HfWeights::open_files() {
  const std::filesystem::path single = directory_ / "model.safetensors",
                              index = directory_ / "model.safetensors.index.json";
  if (is_named(single)) {
    files_.push_back(std::make_unique<SafetensorsFile>(single));
    for (const SafetensorsEntry& entry : files_.back()->tensors()) found_[entry.name] = {files_.back().get(), &entry};
    return;
  }
  if (is_named(index)) {
    std::map<std::string, SafetensorsFile*> opened;
    Problems problems;
    for (const auto& [name, file_name] : read_safetensors_index(index)) {
      SafetensorsFile*& file = opened[file_name];
      if (file == nullptr) file = files_.emplace_back(std::make_unique<SafetensorsFile>(directory_ / file_name)).get();
      const SafetensorsEntry* entry = file->find(name);
      if (entry == nullptr)
        problems.add(name, fmt::format("is not in {}, where the index says it is", printable(file_name)));
      else
        found_[name] = {file, entry};
    }
    if (!problems.empty()) problems.raise(ErrorCode::invalid_data, index.string());
    return;
  }
  const bool pickled = is_named(directory_ / "pytorch_model.bin") || is_named(directory_ / "pytorch_model.bin.index.json");
  if (pickled) {
    throw Error(ErrorCode::unsupported,
                "the weights are a pytorch_model.bin, a pickle; only safetensors files are read", directory_.string(),
                "convert it in Python: AutoModelForCausalLM.from_pretrained(DIR).save_pretrained(NEW_DIR, "
                "safe_serialization=True)");
  }
  throw Error(ErrorCode::invalid_data, "there is neither a model.safetensors nor a model.safetensors.index.json",
              directory_.string(), "give the directory of a Hugging Face model, or make one with strata init");
}

void HfWeights::refuse_element(const Source& source, uint64_t index, DType narrowest) {
  double value = 0;
  if (source.entry->dtype == "F64") {
    source.file->read(*source.entry, index * sizeof(double), &value, sizeof(double));
  } else {
    float narrow = 0;
    read_elements(*source.file, *source.entry, index, 1, &narrow);
    value = narrow;
  }
  throw Error(ErrorCode::invalid_data,
              std::isfinite(value) ? fmt::format("element {} is {}, which {} cannot hold", index, value, to_string(narrowest))
                                   : fmt::format("element {} is {}, not a finite number", index, value),
              fmt::format("{} in {}", source.entry->name, source.file->path().string()),
              std::isfinite(value) && narrowest == DType::f16 ? "train with precision.compute bf16 or fp32, or repair the weights"
                                                              : "repair the weights or take another copy of the model");
}

void HfWeights::read_finite(size_t unit, Range range, DType narrowest, float* out) const {
  STRATA_CHECK(unit < layout_.units.size(), "unit {} of {}", unit, layout_.units.size());
  // In pieces that are still in the cache when they are looked at.
  for (const uint64_t end = range.first + range.count; range.first < end; range.first += kPieceElements, out += kPieceElements) {
    const Range piece{range.first, std::min(kPieceElements, end - range.first)};
    read_as_float(unit, piece, out);
    const std::optional<uint64_t> found = find_from(first_infinite(narrowest), out, piece.count);
    if (!found) continue;
    for_each_overlap(layout_.units[unit], {piece.first + *found, 1}, [&](size_t i, uint64_t in_tensor, uint64_t, uint64_t) {
      refuse_element(sources_[unit][i], in_tensor, narrowest);
    });
  }
}

void HfWeights::read_as_float(size_t unit, Range range, float* out) const {
  STRATA_CHECK(unit < layout_.units.size(), "unit {} of {}", unit, layout_.units.size());
  uint64_t filled = 0;
  for_each_overlap(layout_.units[unit], range, [&](size_t i, uint64_t in_tensor, uint64_t in_range, uint64_t count) {
    std::fill(out + filled, out + in_range, 0.0f);
    const Source& source = sources_[unit][i];
    read_elements(*source.file, *source.entry, in_tensor, count, out + in_range);
    filled = in_range + count;
  });
  std::fill(out + filled, out + range.count, 0.0f);
}

}  // namespace strata
