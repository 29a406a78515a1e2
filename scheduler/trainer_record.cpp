#include "scheduler/trainer_record.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numbers>

#include "core/json.hpp"

namespace strata::scheduler {

namespace {
constexpr int64_t kStepsMax = int64_t{1} << 53;

int64_t whole_number(const Json& record, const char* key, int64_t max, const std::string& name) {
  const Json& value = record.at(key);
  if (!value.is_number_unsigned() || value.get<uint64_t>() > static_cast<uint64_t>(max))
    throw Error(ErrorCode::data_corruption,
                fmt::format("the trainer record's \"{}\" is {}, not a whole number from 0 to {}", key, printable(value.dump()), max), name);
  return value.get<int64_t>();
}
}  // namespace

TrainerRecord TrainerRecord::with_state_of(const TrainerRecord& loaded) const {
  TrainerRecord record = loaded;
  record.run_id = run_id;
  record.run_directory = run_directory;
  record.model_path = model_path;
  record.data_identity = data_identity;
  return record;
}

bool TrainerRecord::same_run(const TrainerRecord& saved) const {
  return saved.run_id.empty() ? saved.run_directory == run_directory : saved.run_id == run_id;
}

std::string TrainerRecord::to_json() const {
  nlohmann::ordered_json json = {{"version", 2},
                                       {"step", step},
                                       {"updates", updates},
                                       {"samples", samples},
                                       {"loss_scale", loss_scale},
                                       {"good_steps", good_steps},
                                       {"skipped_in_a_row", skipped_in_a_row},
                                       {"run_id", run_id},
                                       {"run_directory", run_directory},
                                       {"model_path", model_path},
                                       {"data_identity", data_identity}};
  const auto finite = [](double value) { return std::isfinite(value) ? OrderedJson(value) : OrderedJson(nullptr); };
  if (last_step)
    json["last_step"] = {{"loss", finite(last_step->loss)},
                         {"grad_norm", finite(last_step->grad_norm)},
                         {"lr", last_step->lr},
                         {"loss_scale", last_step->loss_scale},
                         {"tokens", last_step->tokens}};
  return json.dump(-1, ' ', false, OrderedJson::error_handler_t::replace);
}

TrainerRecord TrainerRecord::from_json(const std::string& text, const std::string& name) {
  const Json json = parse_json(text, name, ErrorCode::data_corruption);
  try {
    const int version = json.at("version").get<int>();
    if (version != 1 && version != 2)
      throw Error(ErrorCode::data_corruption, "trainer record of an unknown version", name);
    TrainerRecord record;
    record.step = whole_number(json, "step", kStepsMax, name);
    record.updates = whole_number(json, "updates", record.step, name);
    record.samples = static_cast<uint64_t>(whole_number(json, "samples", std::numeric_limits<int64_t>::max(), name));
    json.at("loss_scale").get_to(record.loss_scale);
    if (!(record.loss_scale > 0) || record.loss_scale > std::numeric_limits<float>::max())
      throw Error(ErrorCode::data_corruption, fmt::format("the trainer record's \"loss_scale\" is {}", record.loss_scale), name);
    record.good_steps = whole_number(json, "good_steps", kStepsMax, name);
    record.skipped_in_a_row = whole_number(json, "skipped_in_a_row", record.step, name);
    if (const auto last = json.find("last_step"); last != json.end()) {
      const auto number = [&](const char* key) { return last->at(key).is_null() ? std::nan("") : last->at(key).get<double>(); };
      record.last_step = {number("loss"), number("grad_norm"), number("lr"), number("loss_scale"), last->at("tokens").get<uint64_t>()};
    }
    if (version >= 2) json.at("run_id").get_to(record.run_id);
    json.at("run_directory").get_to(record.run_directory);
    json.at("model_path").get_to(record.model_path);
    json.at("data_identity").get_to(record.data_identity);
    return record;
  } catch (const Json::exception& error) {
    throw Error(ErrorCode::data_corruption, fmt::format("the trainer record is not whole: {}", error.what()), name);
  }
}

void LossScaler::after_step(DType compute, bool finite, TrainerRecord& record) {
  if (compute != DType::f16) return;
  constexpr int64_t kGrowthInterval = 2000;
  if (!finite) {
    record.loss_scale *= 0.5;
    record.good_steps = 0;
  } else if (++record.good_steps == kGrowthInterval) {
    record.loss_scale *= 2.0;
    record.good_steps = 0;
  }
}

double learning_rate(const Config& config, int64_t step) {
  const double peak = config.optimizer.lr, floor = config.lr_schedule.min_lr;
  const auto warmup = static_cast<double>(config.lr_schedule.warmup_steps);
  const auto at = static_cast<double>(step);
  if (at < warmup) return peak * (config.lr_schedule.warmup == WarmupRule::huggingface ? at : at + 1) / warmup;
  const double rest = static_cast<double>(config.steps) - warmup;
  const double progress = rest > 0 ? std::min(1.0, (at - warmup) / rest) : 1.0;
  switch (config.lr_schedule.type) {
    case ScheduleKind::constant: return peak;
    case ScheduleKind::linear: return floor + (peak - floor) * (1.0 - progress);
    case ScheduleKind::cosine: return floor + (peak - floor) * 0.5 * (1.0 + std::cos(std::numbers::pi * progress));
  }
  return peak;
}

}  // namespace strata::scheduler
