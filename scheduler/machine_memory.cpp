#include "scheduler/machine_memory.hpp"

#include <algorithm>

#include "core/config.hpp"
#include "core/error.hpp"

namespace strata::scheduler {

namespace {

// A run of a tiny model with two threads has 33 MiB resident beside its slabs; the stacks and buffers of more threads add to that.
constexpr uint64_t kProcessBytes = 128ull << 20;
constexpr uint64_t kOperationBytes = 256;  // an Op with its waits, in each of the programs it is in, and the executor's part of it
constexpr uint64_t kReserveBytesMax = 4ull << 30;

}  // namespace

uint64_t program_memory_bytes(uint64_t operations) { return kProcessBytes + operations * kOperationBytes; }

uint64_t memory_reserve_bytes(uint64_t available_bytes) { return std::min(available_bytes / 8, kReserveBytesMax); }

uint64_t automatic_memory_bytes(const MemoryInfo& memory, uint64_t program_bytes) {
  const uint64_t available = memory.available_bytes, reserved = memory_reserve_bytes(available) + program_bytes;
  return available - std::min(available, reserved);
}

std::string memory_refusal(const MemoryNeeds& needs, const MemoryInfo& memory) {
  if (needs.total() <= memory.available_bytes) return {};
  std::string text = fmt::format("the run needs {} of memory, and this machine can give {} now; nothing was started\n",
                                 format_bytes(needs.total()), format_bytes(memory.available_bytes));
  const auto row = [&](const std::string& what, uint64_t bytes) { text += fmt::format("  {:44} {:>12}\n", what, format_bytes(bytes)); };
  row("device memory, on this machine's processors", needs.device_bytes);
  row("host tier", needs.host_bytes);
  row("the program itself, estimated", needs.program_bytes);
  text += fmt::format("  {:44} {:>12} {:>12} {:>12} {:>12}\n", "limit", "size", "in use", "free", "missing");
  for (const MemoryWall& wall : memory.walls)
    text += fmt::format("  {:44} {:>12} {:>12} {:>12} {:>12}\n", wall.name, format_bytes(wall.limit_bytes), format_bytes(wall.used_bytes),
                        format_bytes(wall.free_bytes),
                        needs.total() <= wall.free_bytes ? "-" : format_bytes(needs.total() - wall.free_bytes));
  text.pop_back();
  return text;
}

void require_memory(const MemoryNeeds& needs, const MemoryInfo& memory) {
  const std::string text = memory_refusal(needs, memory);
  if (text.empty()) return;
  std::string raise;
  for (const MemoryWall& wall : memory.walls)
    if (needs.total() > wall.free_bytes && wall.name != "physical memory") raise += (raise.empty() ? "" : ", ") + wall.name;
  throw Error(ErrorCode::resource_exhausted, text, {},
              "leave device.memory and tiers.host.memory to auto or lower them, place state on nvme, or free memory" +
                  (raise.empty() ? "" : "; or raise " + raise));
}

}  // namespace strata::scheduler
