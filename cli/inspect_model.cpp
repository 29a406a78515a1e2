// What `strata inspect` tells of models and weights.
#include <algorithm>
#include <map>
#include <optional>
#include <set>
#include <system_error>
#include <unordered_set>

#include "cli/console.hpp"
#include "cli/inspectors.hpp"
#include "core/error.hpp"
#include "core/hf_weights.hpp"
#include "core/json.hpp"
#include "core/model.hpp"
#include "core/safetensors.hpp"
#include "scheduler/state_format.hpp"

namespace strata::cli {

namespace {

namespace fs = std::filesystem;

const char* name_of(RopeConfig::Scaling scaling) {
  switch (scaling) {
    case RopeConfig::Scaling::none: return "none";
    case RopeConfig::Scaling::linear: return "linear";
    case RopeConfig::Scaling::dynamic: return "dynamic";
    case RopeConfig::Scaling::llama3: return "llama3";
    case RopeConfig::Scaling::yarn: return "yarn";
    case RopeConfig::Scaling::longrope: return "longrope";
  }
  return "?";
}

/// Units in order; neighbours that are alike share a row.
Facts unit_rows(const ModelLayout& layout) {
  Facts rows = Facts::array();
  for (size_t first = 0; first < layout.units.size();) {
    const UnitLayout& unit = layout.units[first];
    size_t end = first + 1;
    while (end < layout.units.size() && layout.units[end].kind == unit.kind && layout.units[end].elements == unit.elements) ++end;
    rows.push_back({{"unit", end - first == 1 ? unit.name : fmt::format("{} to {}", unit.name, layout.units[end - 1].layer)},
                    {"count", end - first},
                    {"tensors_each", unit.tensors.size()},
                    {"parameters_each", unit.elements}});
    first = end;
  }
  return rows;
}

Facts model_facts(const ModelDescription& model, const ModelLayout& layout) {
  Facts facts = {{"architecture", model.architecture},
                 {"parameters", layout.elements()},
                 {"layers", model.layers},
                 {"hidden_size", model.hidden_size},
                 {"intermediate_size", model.intermediate_size},
                 {"heads", model.heads},
                 {"kv_heads", model.kv_heads},
                 {"head_dim", model.head_dim},
                 {"vocab_size", model.vocab_size},
                 {"max_positions", model.max_positions},
                 {"tied_head", model.tied_head}};
  if (model.family == Family::llama) {
    facts["rope_theta"] = model.rope.theta;
    facts["rope_scaling"] = name_of(model.rope.scaling);
  }
  if (std::any_of(model.sliding_window.begin(), model.sliding_window.end(), [](int64_t window) { return window != 0; }))
    facts["sliding_window"] = *std::max_element(model.sliding_window.begin(), model.sliding_window.end());
  for (DType compute : {DType::bf16, DType::f32}) {
    Config::Precision precision;
    precision.compute = compute;
    facts[fmt::format("training_state_in_{}_bytes", to_string(compute))] =
        layout.elements() * scheduler::make_state_format(precision).training_bytes();
  }
  facts["units"] = unit_rows(layout);
  return facts;
}

struct DTypeCount {
  uint64_t tensors = 0, elements = 0, bytes = 0;
};
using DTypeCounts = std::map<std::string, DTypeCount>;

void count_dtypes(const SafetensorsFile& file, DTypeCounts& counts) {
  for (const SafetensorsEntry& tensor : file.tensors()) {
    DTypeCount& count = counts[tensor.dtype];
    ++count.tensors;
    count.elements += tensor.elements;
    count.bytes += tensor.bytes();
  }
}

Facts dtype_rows(const DTypeCounts& counts) {
  Facts rows = Facts::array();
  for (const auto& [dtype, count] : counts)
    rows.push_back({{"dtype", dtype}, {"tensors", count.tensors}, {"elements", count.elements}, {"bytes", count.bytes}});
  return rows;
}

constexpr uint64_t kMissingListed = 1000;

/// Adds "weight_files" (a row for each file that is there, and for the first that are not) and "dtypes". A file that is not whole has its
/// problem in its row.
void add_weight_files(const fs::path& directory, const std::set<std::string>& names, Facts& facts) {
  Facts rows = Facts::array();
  DTypeCounts counts;
  uint64_t bytes = 0, missing = 0;
  // An index may name a file for every tensor; what is there is asked for once. Where that is refused, each file says so.
  std::error_code error;
  std::unordered_set<std::string> there;
  for (fs::directory_iterator at(directory.empty() ? "." : directory, error), end; !error && at != end; at.increment(error))
    there.insert(at->path().filename().string());
  for (const std::string& name : names) {
    if (!error && !there.contains(name)) {
      if (++missing <= kMissingListed)
        rows.push_back({{"file", name}, {"tensors", nullptr}, {"bytes", nullptr}, {"state", "is not there"}});
      continue;
    }
    try {
      const SafetensorsFile file(directory / name);
      count_dtypes(file, counts);
      bytes += file.data_bytes();
      rows.push_back({{"file", name}, {"tensors", file.tensors().size()}, {"bytes", file.data_bytes()}, {"state", "readable"}});
    } catch (const Error& problem) {
      rows.push_back({{"file", name}, {"tensors", nullptr}, {"bytes", nullptr}, {"state", problem.message()}});
    }
  }
  facts["weights_bytes"] = bytes;
  facts["files"] = names.size();
  if (missing > 0) facts["missing_files"] = missing;
  facts["weight_files"] = rows;
  facts["dtypes"] = dtype_rows(counts);
}

std::set<std::string> names_in(const std::map<std::string, std::string>& file_of_tensor) {
  std::set<std::string> names;
  for (const auto& [tensor, file] : file_of_tensor) names.insert(file);
  return names;
}

Facts tokenizer_files(const fs::path& directory) {
  Facts names = Facts::array();
  for (const char* name :
       {"tokenizer.json", "tokenizer_config.json", "tokenizer.model", "vocab.json", "merges.txt", "generation_config.json"})
    if (is_named(directory / name)) names.push_back(name);
  return names;
}

}  // namespace

std::set<fs::path> weight_files(const fs::path& directory) {
  if (is_named(directory / "model.safetensors")) return {directory / "model.safetensors"};
  if (is_named(directory / "model.safetensors.index.json")) {
    std::set<fs::path> files;
    for (const std::string& name : names_in(read_safetensors_index(directory / "model.safetensors.index.json")))
      files.insert(directory / name);
    return files;
  }
  std::set<fs::path> files;
  for (const auto& entry : fs::directory_iterator(directory))
    if (entry.path().extension() == ".safetensors") files.insert(entry.path());
  return files;
}

Facts inspect_model_directory(const fs::path& directory) {
  Facts facts;
  std::optional<ModelDescription> model;
  if (is_named(directory / "config.json")) {
    model = read_model_description(directory);
    facts = model_facts(*model, make_layout(*model));
  } else {
    facts["problem"] = "there is no config.json, so what the weights are of is not known";
  }
  const std::set<fs::path> files = weight_files(directory);
  std::set<std::string> names;
  for (const fs::path& file : files) names.insert(file.filename().string());
  add_weight_files(directory, names, facts);
  facts["tokenizer_files"] = tokenizer_files(directory);
  if (!model) return facts;
  try {
    const HfWeights weights(directory, *model, make_layout(*model));
    facts["other_tensors"] = weights.passthrough_tensors().size();
  } catch (const Error& error) {
    facts["problem"] = files.empty() ? "there are no weights" : error.message();
  }
  return facts;
}

Facts inspect_model_config(const fs::path& file) {
  const ModelDescription model = read_model_description(file);
  return model_facts(model, make_layout(model));
}

Facts inspect_safetensors(const fs::path& path) {
  const SafetensorsFile file(path);
  DTypeCounts counts;
  count_dtypes(file, counts);
  Facts facts = {{"tensors", file.tensors().size()}, {"data_bytes", file.data_bytes()}};
  if (!file.metadata().empty()) facts["metadata"] = file.metadata();
  facts["dtypes"] = dtype_rows(counts);
  Facts rows = Facts::array();
  for (const SafetensorsEntry& tensor : file.tensors())
    rows.push_back({{"name", tensor.name}, {"dtype", tensor.dtype}, {"shape", tensor.shape}, {"bytes", tensor.bytes()}});
  facts["contents"] = rows;
  return facts;
}

Facts inspect_safetensors_index(const fs::path& file) {
  const std::map<std::string, std::string> file_of_tensor = read_safetensors_index(file);
  Facts facts = {{"tensors", file_of_tensor.size()}};
  add_weight_files(file.parent_path(), names_in(file_of_tensor), facts);
  return facts;
}

}  // namespace strata::cli
