// What this machine's memory lets a run take: budgets that are left to Strata come from it, and a run that it cannot hold is refused
// before anything is taken.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "core/topology.hpp"

namespace strata::scheduler {

/// Device memory (of a host device) and the host tier, and what the process takes besides.
struct MemoryNeeds {
  uint64_t device_bytes = 0;
  uint64_t host_bytes = 0;
  uint64_t program_bytes = 0;  // an estimate: code, threads, libraries, the compiled step, I/O
  uint64_t total() const { return device_bytes + host_bytes + program_bytes; }
};

/// The estimate for a compiled step of that many operations.
uint64_t program_memory_bytes(uint64_t operations);

/// What is left to the system and to other programs where a budget is `auto`: an eighth of what is available, at most 4 GiB.
uint64_t memory_reserve_bytes(uint64_t available_bytes);

/// The most that device memory and host tier may take together where budgets are `auto`; 0 when not even the program has room.
uint64_t automatic_memory_bytes(const MemoryInfo& memory, uint64_t program_bytes);

/// Why the machine cannot hold a run with these needs now: a table of needs and of the limits that are too low. Empty when it can.
std::string memory_refusal(const MemoryNeeds& needs, const MemoryInfo& memory);

/// Throws resource_exhausted with that table and what to do, when it cannot.
void require_memory(const MemoryNeeds& needs, const MemoryInfo& memory);

}  // namespace strata::scheduler
