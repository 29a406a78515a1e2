// The files that a configuration names for a run to read.
#pragma once

#include <string>

#include "core/config.hpp"

namespace strata::cli {

/// Throws one Error{invalid_configuration} that lists every one that cannot be opened, with its key. `name` is the configuration's. The
/// model may be gone when `run_directory` has a copy of its description.
void require_run_inputs(const Config& config, const std::string& name, const std::filesystem::path& run_directory = {});

}  // namespace strata::cli
