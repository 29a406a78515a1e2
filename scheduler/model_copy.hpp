// RUN/model: the run's own copy of what it needs of its input model beside the weights, so that neither resuming nor exporting ever
// asks for the input model again.
#pragma once

#include <filesystem>
#include <functional>
#include <optional>
#include <string>

#include "core/hf_weights.hpp"
#include "core/model.hpp"

namespace strata::scheduler {

inline constexpr const char* kModelCopyFolder = "model";

/// A line for the log.
using Narrate = std::function<void(const std::string&)>;

/// Makes RUN/model in place of an older one, whole and durable or not at all: config.json and the model's other files as they are, and
/// of `weights`, unless null, the dtypes and the tensors that are no parameters. Says what is left out. Throws io, resource_exhausted.
void make_model_copy(const std::filesystem::path& run_directory, const std::filesystem::path& model, const HfWeights* weights,
                     const Narrate& narrate);

/// RUN/model, its checksums verified; absent where there is none. Throws data_corruption when a file is missing or changed.
std::optional<std::filesystem::path> find_model_copy(const std::filesystem::path& run_directory);

/// Where a run's model is described: `model` while it is there, else the run's copy, said through `narrate`. Throws as find_model_copy.
std::filesystem::path describing_directory(const std::filesystem::path& model, const std::optional<std::filesystem::path>& copy,
                                           const Narrate& narrate);

}  // namespace strata::scheduler
