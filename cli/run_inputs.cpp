#include "cli/run_inputs.hpp"

#include <system_error>

#include "core/file.hpp"
#include "core/json_fields.hpp"
#include "scheduler/model_copy.hpp"

namespace strata::cli {

namespace {

namespace fs = std::filesystem;

void check_files(const std::vector<fs::path>& files, const std::string& pointer, Problems& problems) {
  for (size_t i = 0; i < files.size(); ++i) {
    try {
      const ReadOnlyFile file(files[i]);
    } catch (const Error& error) {
      problems.add(fmt::format("{}/{}", pointer, i), fmt::format("\"{}\": {}", printable(files[i].string(), 200), error.message()));
    }
  }
}

}  // namespace

void require_run_inputs(const Config& config, const std::string& name, const fs::path& run_directory) {
  Problems problems;
  std::error_code error;
  const bool kept = !run_directory.empty() && fs::exists(run_directory / scheduler::kModelCopyFolder, error);
  if (!kept && !fs::exists(config.model.path, error))
    problems.add("/model/path", fmt::format("\"{}\": {}", printable(config.model.path.string(), 200),
                                            error ? error.message() : reason_of_absence(config.model.path)));
  check_files(config.data.train, "/data/train", problems);
  check_files(config.data.eval, "/data/eval", problems);
  if (!problems.empty())
    problems.raise(ErrorCode::invalid_configuration, name, "check the paths; a relative one starts at the current directory");
}

}  // namespace strata::cli
