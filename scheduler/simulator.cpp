#include "scheduler/simulator.hpp"

#include <algorithm>

#include "core/error.hpp"
#include "core/json_fields.hpp"

namespace strata::scheduler {

double MachineRates::rate(Resource resource) const {
  switch (resource) {
    case Resource::compute: return compute_flops;
    case Resource::h2d: return h2d_bytes;
    case Resource::d2h: return d2h_bytes;
    case Resource::cpu: return update_bytes;
    case Resource::nvme_read: return nvme_read_bytes;
    case Resource::nvme_write: return nvme_write_bytes;
  }
  return 1;
}

MachineRates read_machine_rates(const std::filesystem::path& file) {
  const Json json = parse_json_file(file, ErrorCode::invalid_configuration);
  MachineRates rates;
  Problems problems;
  ObjectReader reader(&json, "", problems);
  const NumberRange positive{.min = 0, .above_min = true};
  reader.number("compute_flops", rates.compute_flops, positive);
  reader.number("h2d_bytes", rates.h2d_bytes, positive);
  reader.number("d2h_bytes", rates.d2h_bytes, positive);
  reader.number("update_bytes", rates.update_bytes, positive);
  reader.number("nvme_read_bytes", rates.nvme_read_bytes, positive);
  reader.number("nvme_write_bytes", rates.nvme_write_bytes, positive);
  reader.number("operation_seconds", rates.operation_seconds, {.min = 0});
  reader.refuse_unknown();
  if (!problems.empty()) problems.raise(ErrorCode::invalid_configuration, file.string());
  return rates;
}

SimulatedRun simulate(const Program& program, const MachineRates& rates) {
  SimulatedRun run;
  std::vector<double> end(program.ops.size());
  std::array<double, kResourceCount> free_at{};
  for (size_t index = 0; index < program.ops.size(); ++index) {
    const Op& op = program.ops[index];
    const int resource = static_cast<int>(op.resource);
    double begin = free_at[resource];
    for (uint32_t wait : op.waits) begin = std::max(begin, end[wait]);
    // Work on the device that moves no parameters over a link (casts, norms) is small beside the products; it counts as overhead.
    const double work = op.flops > 0 ? op.flops : static_cast<double>(op.bytes);
    const double rate = op.kind == OpKind::adam_device ? rates.update_bytes : rates.rate(op.resource);
    const double seconds = rates.operation_seconds + work / rate;
    end[index] = free_at[resource] = begin + seconds;
    run.busy_seconds[resource] += seconds;
    run.seconds = std::max(run.seconds, end[index]);
  }
  const auto longest = std::max_element(run.busy_seconds.begin(), run.busy_seconds.end());
  run.limit = static_cast<Resource>(longest - run.busy_seconds.begin());
  return run;
}

}  // namespace strata::scheduler
