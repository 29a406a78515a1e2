// What `strata doctor` finds out: one check a line, with the reason and the fix where something is not as good as it could be.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

namespace strata::cli {

enum class Health {
  ok,
  note,     // works, with less speed or another way
  missing,  // a run that needs it would be refused
};

struct Check {
  std::string name;
  Health health = Health::ok;
  std::string finding;
  std::string remedy = {};  // empty where nothing can or need be done
};

/// Processor, memory, I/O interfaces and GPUs of this machine. Takes 64 MiB of memory for a moment.
std::vector<Check> check_machine();

/// Whether a directory suits the NVMe tier: writes and reads 1 MiB there in a file without a name, which leaves nothing behind.
std::vector<Check> check_directory(const std::filesystem::path& directory);

}  // namespace strata::cli
