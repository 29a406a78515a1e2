#include "scheduler/run_marker.hpp"

#include <sys/random.h>

#include <algorithm>
#include <array>
#include <cerrno>

#include "core/file.hpp"
#include "core/json.hpp"

namespace strata::scheduler {

namespace {

namespace fs = std::filesystem;

constexpr const char* kFormatName = "strata-run";
constexpr size_t kIdDigits = 32;

[[noreturn]] void refuse(const std::string& what, const fs::path& path) {
  throw Error(ErrorCode::data_corruption, what, path.string(), "choose another --run-dir, or put back a whole copy of the file");
}

}  // namespace

RunMarker RunMarker::make() {
  std::array<uint8_t, kIdDigits / 2> bytes{};
  if (getrandom(bytes.data(), bytes.size(), 0) != static_cast<ssize_t>(bytes.size()))
    throw Error(ErrorCode::io, fmt::format("cannot draw a random name for the run: {}", system_reason(errno)), "getrandom");
  RunMarker marker;
  for (const uint8_t byte : bytes) marker.run_id += fmt::format("{:02x}", byte);
  return marker;
}

std::optional<RunMarker> RunMarker::read(const fs::path& run_directory) {
  const fs::path path = run_directory / kMarkerName;
  std::error_code error;
  if (!fs::exists(fs::symlink_status(path, error))) return std::nullopt;
  const Json json = parse_json_file(path, ErrorCode::data_corruption);
  try {
    if (!json.is_object() || !json.contains("format") || json.at("format") != kFormatName)
      refuse("the file has the name of a run's marker and is none", path);
    if (json.at("version").get<int>() != 1) refuse("the run was made by another version of Strata", path);
    RunMarker marker;
    json.at("run_id").get_to(marker.run_id);
    const auto is_digit = [](char c) { return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'f'); };
    if (marker.run_id.size() != kIdDigits || !std::all_of(marker.run_id.begin(), marker.run_id.end(), is_digit))
      refuse("the run's id is not 32 hexadecimal digits", path);
    return marker;
  } catch (const Json::exception& problem) {
    refuse(fmt::format("the run's marker is not whole: {}", problem.what()), path);
  }
}

void RunMarker::write(const fs::path& run_directory) const {
  const OrderedJson json = {{"format", kFormatName}, {"version", 1}, {"run_id", run_id}};
  const std::string text = json.dump(2) + "\n";
  write_file_atomically(run_directory / kMarkerName, text.data(), text.size());
}

}  // namespace strata::scheduler
