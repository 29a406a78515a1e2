// A run's plan as a table for people and as JSON for programs.
#include <nlohmann/json.hpp>

#include "scheduler/run_plan.hpp"

namespace strata::scheduler {

namespace {

using Json = nlohmann::ordered_json;

uint64_t link_bytes(const RunPlan& plan, Resource resource) {
  uint64_t total = 0;
  for (const Program* program : plan.step_programs()) total += program->bytes(resource);
  return total;
}

std::string activations_text(const RunPlan& plan) {
  for (const UnitPlacement& unit : plan.placement.units)
    if (unit.recompute) return "recompute";
  return "device";
}

std::string count_text(uint64_t count) {
  if (count >= 1'000'000) return fmt::format("{:.1f} M", static_cast<double>(count) / 1e6);
  return fmt::format("{}", count);
}

/// Steps as samples, tokens and epochs; in double, as no configuration bounds their product.
struct TrainingLength {
  explicit TrainingLength(const RunPlan& plan)
      : samples_per_step(plan.config.batch.micro_batch_size * plan.config.batch.gradient_accumulation_steps),
        samples(static_cast<double>(plan.config.steps) * static_cast<double>(samples_per_step)),
        tokens(samples * static_cast<double>(plan.config.data.sequence_length)),
        epochs(plan.epoch_samples > 0 ? samples / static_cast<double>(plan.epoch_samples) : 0) {}
  int64_t samples_per_step;
  double samples, tokens, epochs;
};

std::string length_text(const RunPlan& plan) {
  const TrainingLength length(plan);
  std::string text = fmt::format("training    {} steps x {} samples x {} tokens = {:.0f} samples, {:.3g} M tokens", plan.config.steps,
                                 length.samples_per_step, plan.config.data.sequence_length, length.samples, length.tokens / 1e6);
  if (plan.epoch_samples > 0) text += fmt::format(", {:.3g} epochs of {} samples", length.epochs, plan.epoch_samples);
  return text + "\n";
}

/// A whole number as long as JSON readers hold it.
Json count_json(double count) { return count < 9e15 ? Json(static_cast<uint64_t>(count)) : Json(count); }

struct Prediction {
  double seconds = 0;
  Resource limit = Resource::compute;
};

Prediction predict(const RunPlan& plan, const MachineRates& rates) {
  Prediction prediction;
  std::array<double, kResourceCount> busy{};
  for (const Program* program : plan.step_programs()) {
    const SimulatedRun run = simulate(*program, rates);
    prediction.seconds += run.seconds;
    for (int i = 0; i < kResourceCount; ++i) busy[i] += run.busy_seconds[i];
  }
  prediction.limit = static_cast<Resource>(std::max_element(busy.begin(), busy.end()) - busy.begin());
  return prediction;
}

constexpr Resource kLinks[] = {Resource::h2d, Resource::d2h, Resource::nvme_read, Resource::nvme_write, Resource::cpu};

}  // namespace

std::string plan_table(const RunPlan& plan, const std::optional<MachineRates>& rates) {
  const StateFormat& format = plan.shape.format;
  std::string text = fmt::format(
      "model       {} with {} parameters in {} units\n"
      "state       {} ({} bytes a parameter: {} state, {} gradient; compute {}, master {})\n"
      "placement   parameters {}, gradients {}, optimizer {}, activations {}\n"
      "schedule    {} accumulation of {} x {} tokens, update {}, prefetch {}, tiles of {} parameters\n",
      plan.model.architecture, count_text(plan.parameters()), plan.shape.layout.units.size(),
      format_bytes(plan.training_state_bytes()), format.training_bytes(), format.state_bytes(), format.gradient_bytes(),
      to_string(format.compute),
      format.master == MasterFormat::parameter ? "the parameter itself"
      : format.master == MasterFormat::split   ? "split"
                                               : "fp32",
      to_string(plan.placement.units[0].parameters), to_string(plan.placement.units[0].gradients),
      to_string(plan.placement.units[0].optimizer), activations_text(plan),
      plan.placement.accumulation == AccumulationOrder::vertical ? "vertical" : "horizontal", plan.shape.micro_batches,
      plan.shape.tokens_per_micro_batch, plan.placement.lazy_update ? "lazy" : "after_backward",
      plan.placement.prefetch, plan.shape.tile_elements);
  text += length_text(plan) + "\n";
  text += fmt::format("{:32} {:>16} {:>16}\n", "memory", "planned", "budget");
  for (const TierUse& use : plan.tiers) {
    text += fmt::format("{:32} {:>16} {:>16}\n", use.tier, format_bytes(use.needed_bytes), format_bytes(use.budget_bytes));
    for (const TierUse::Part& part : use.parts) text += fmt::format("  {:30} {:>16}\n", part.purpose, format_bytes(part.bytes));
    for (const auto& directory : use.directories)
      if (use.directories.size() > 1)
        text += fmt::format("  {:30} {:>16} {:>16}\n", "in " + directory.path.string(), format_bytes(directory.needed_bytes),
                            format_bytes(directory.capacity_bytes));
  }
  text += fmt::format("\n{:32} {:>16}\n", "bytes per step", "GB (10^9)");
  for (Resource link : kLinks)
    text += fmt::format("{:32} {:>16.6f}\n", link == Resource::cpu ? "cpu update (read and written)" : to_string(link),
                        static_cast<double>(link_bytes(plan, link)) / 1e9);
  double flops = 0;
  for (const Program* program : plan.step_programs()) flops += program->flops();
  text += fmt::format("{:32} {:>16.6f}\n", "compute, TFLOP", flops / 1e12);
  if (rates) {
    const Prediction prediction = predict(plan, *rates);
    text += fmt::format("\npredicted step time {:.3f} s, bound by {}\n", prediction.seconds, to_string(prediction.limit));
  }
  for (const std::string& note : plan.notes) text += "note: " + note + "\n";
  return text;
}

std::string plan_json(const RunPlan& plan, const std::optional<MachineRates>& rates) {
  Json json;
  json["schema_version"] = 1;
  json["model"] = {{"architecture", plan.model.architecture}, {"parameters", plan.parameters()},
                   {"units", plan.shape.layout.units.size()}};
  json["training_state_bytes"] = plan.training_state_bytes();
  json["bytes_per_parameter"] = plan.shape.format.training_bytes();
  json["placement"] = {{"parameters", to_string(plan.placement.units[0].parameters)},
                       {"gradients", to_string(plan.placement.units[0].gradients)},
                       {"optimizer", to_string(plan.placement.units[0].optimizer)},
                       {"activations", activations_text(plan)}};
  json["schedule"] = {
      {"accumulation", plan.placement.accumulation == AccumulationOrder::vertical ? "vertical" : "horizontal"},
      {"update", plan.placement.lazy_update ? "lazy" : "after_backward"},
      {"prefetch", plan.placement.prefetch},
      {"tile_elements", plan.shape.tile_elements}};
  const TrainingLength length(plan);
  json["training"] = {{"steps", plan.config.steps},
                      {"samples_per_step", length.samples_per_step},
                      {"tokens_per_sample", plan.config.data.sequence_length},
                      {"samples", count_json(length.samples)},
                      {"tokens", count_json(length.tokens)},
                      {"epoch_samples", plan.epoch_samples > 0 ? Json(plan.epoch_samples) : Json(nullptr)},
                      {"epochs", plan.epoch_samples > 0 ? Json(length.epochs) : Json(nullptr)}};
  for (const TierUse& use : plan.tiers) {
    Json parts = Json::object();
    for (const TierUse::Part& part : use.parts) parts[part.purpose] = part.bytes;
    json["tiers"][use.tier] = {{"planned_bytes", use.needed_bytes}, {"budget_bytes", use.budget_bytes}, {"parts", parts}};
    for (const auto& directory : use.directories)
      json["tiers"][use.tier]["directories"].push_back({{"path", directory.path.string()},
                                                        {"planned_bytes", directory.needed_bytes},
                                                        {"capacity_bytes", directory.capacity_bytes}});
  }
  json["memory"] = {{"needed_bytes", plan.memory_needs.total()},
                    {"available_bytes", plan.memory.available_bytes},
                    {"program_bytes", plan.memory_needs.program_bytes}};
  double flops = 0;
  for (const Program* program : plan.step_programs()) flops += program->flops();
  for (Resource link : kLinks) json["bytes_per_step"][to_string(link)] = link_bytes(plan, link);
  json["flops_per_step"] = flops;
  if (rates) {
    const Prediction prediction = predict(plan, *rates);
    json["predicted"] = {{"step_seconds", prediction.seconds}, {"limit", to_string(prediction.limit)}};
  } else {
    json["predicted"] = nullptr;
  }
  json["notes"] = plan.notes;
  return json.dump(2);
}

}  // namespace strata::scheduler
