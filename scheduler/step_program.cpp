#include "scheduler/step_program.hpp"

namespace strata::scheduler {

std::string_view to_string(Resource resource) {
  switch (resource) {
    case Resource::compute: return "compute";
    case Resource::h2d: return "h2d";
    case Resource::d2h: return "d2h";
    case Resource::cpu: return "cpu";
    case Resource::nvme_read: return "nvme_read";
    case Resource::nvme_write: return "nvme_write";
  }
  return "?";
}

std::string_view to_string(OpKind kind) {
  switch (kind) {
    case OpKind::copy_h2d: return "copy host to device";
    case OpKind::copy_d2h: return "copy device to host";
    case OpKind::read_state: return "read state";
    case OpKind::write_state: return "write state";
    case OpKind::read_scratch: return "read scratch";
    case OpKind::write_scratch: return "write scratch";
    case OpKind::commit: return "commit";
    case OpKind::prepare: return "prepare weights";
    case OpKind::embedding_forward: return "embedding forward";
    case OpKind::block_forward: return "block forward";
    case OpKind::block_recompute: return "block recompute";
    case OpKind::block_backward: return "block backward";
    case OpKind::head_loss: return "head loss";
    case OpKind::head_loss_backward: return "head loss and backward";
    case OpKind::embedding_backward: return "embedding backward";
    case OpKind::cast_gradients: return "cast gradients";
    case OpKind::sum_squares: return "sum squares";
    case OpKind::adam_cpu: return "adam";
    case OpKind::adam_device: return "adam on device";
    case OpKind::poison_device: return "poison device";
    case OpKind::poison_host: return "poison host";
  }
  return "?";
}

uint64_t Program::bytes(Resource resource) const {
  uint64_t total = 0;
  for (const Op& op : ops)
    if (op.resource == resource) total += op.bytes;
  return total;
}

double Program::flops() const {
  double total = 0;
  for (const Op& op : ops) total += op.flops;
  return total;
}

}  // namespace strata::scheduler
