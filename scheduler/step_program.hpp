// The step program: the explicit list of operations of a training step, with the resource each occupies, the bytes or FLOPs it
// costs, the memory it touches and the operations it waits for. The executor runs it; the simulator times it.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "gpu/engine.hpp"

namespace strata::scheduler {

/// What an operation occupies. Operations of one resource start in program order.
enum class Resource : uint8_t { compute, h2d, d2h, cpu, nvme_read, nvme_write };
inline constexpr int kResourceCount = 6;
std::string_view to_string(Resource resource);
/// Whether operations of the resource also complete in order (streams and the update thread do; I/O does not).
constexpr bool completes_in_order(Resource resource) {
  return resource != Resource::nvme_read && resource != Resource::nvme_write;
}
constexpr bool is_device_stream(Resource resource) { return resource <= Resource::d2h; }

enum class Memory : uint8_t { device, host, store_state, store_scratch };

/// A piece of some tier that operations read or write whole.
struct Location {
  Memory memory = Memory::device;
  uint64_t position = 0;  // byte offset in the tier's slab, or the extent's index in the store
  uint64_t bytes = 0;
};
using LocationId = uint32_t;
inline constexpr LocationId kNoLocation = ~0u;

enum class OpKind : uint8_t {
  copy_h2d,            // source, destination
  copy_d2h,            // source, destination
  read_state,          // extent, host destination
  write_state,         // extent, host source
  read_scratch,        // extent, host destination
  write_scratch,       // extent, host source
  commit,              // makes every write_state so far durable and current
  prepare,             // params, embedding params, prepared
  embedding_forward,   // params, tokens, hidden out
  block_forward,       // params, prepared, hidden in, hidden out, saved, workspace
  block_recompute,     // the same with no hidden out
  block_backward,      // params, prepared, hidden in, saved, d_hidden, gradients, workspace
  head_loss,           // params, embedding params, prepared, hidden, labels, workspace, loss
  head_loss_backward,  // the same, d_hidden, gradients, embedding gradients
  embedding_backward,  // tokens, d_hidden, gradients, workspace
  cast_gradients,      // fp32 accumulator, gradient in its own format
  sum_squares,         // gradient, block sums
  adam_cpu,            // parameter, master, momentum, variance, gradient
  adam_device,         // the same
  poison_device,       // location: filled with NaN after its last use (debugging)
  poison_host,
};
std::string_view to_string(OpKind kind);

struct Op {
  OpKind kind;
  Resource resource;
  int32_t unit = -1;
  int32_t tile = -1;
  int32_t micro_batch = -1;
  gpu::Pass pass = gpu::Pass::forward;
  gpu::Accumulate accumulate = gpu::Accumulate::first;
  bool signals_host = false;  // something outside the device waits for it
  uint64_t bytes = 0;         // moved over the resource's link, or read and written by the update
  uint64_t elements = 0;      // of the unit or tile, where the operation is element-wise
  uint64_t first_block = 0;   // sum_squares: where the unit's block sums start
  double flops = 0;
  std::array<LocationId, 10> arguments{kNoLocation, kNoLocation, kNoLocation, kNoLocation, kNoLocation,
                                       kNoLocation, kNoLocation, kNoLocation, kNoLocation, kNoLocation};
  std::vector<uint32_t> waits{};  // earlier operations, besides those that the resource's own order implies
};

struct Program {
  std::string name;
  std::vector<Op> ops;

  uint64_t bytes(Resource resource) const;
  double flops() const;
};

}  // namespace strata::scheduler
