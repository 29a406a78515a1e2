// What starting a run over would lose: saved state goes only when its run is named.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "core/config.hpp"

namespace strata::scheduler {

struct LossRequest {
  const Config& config;
  const std::filesystem::path& run_directory;
  bool uses_store = false;           // the configuration's store would be made anew
  bool starts_over = false;          // the run directory's checkpoints would go
  std::vector<std::string> discard;  // names of what may go
};

/// One thing that would be lost.
struct Loss {
  std::string text;                // "the run \"a\" (/runs/a): steps up to 16; checkpoints step-00000008, step-00000016"
  std::vector<std::string> names;  // --discard takes any of them: the run's directory name, path or id, the store's path
};

/// Saved state in the run directory and in the store's directories that a new start of this run would remove or replace.
std::vector<Loss> find_losses(const LossRequest& request);

/// Throws invalid_configuration that lists every loss which `request.discard` does not name. Returns a sentence for each that goes.
std::vector<std::string> refuse_unnamed_losses(const LossRequest& request);

}  // namespace strata::scheduler
