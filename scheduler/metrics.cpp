#include "scheduler/metrics.hpp"

#include <algorithm>
#include <cerrno>
#include <cmath>

#include "core/file.hpp"
#include "core/json.hpp"

namespace strata::scheduler {

namespace {

constexpr const char* kFileName = "metrics.jsonl";

/// JSON has no infinities: null stands for what is not a number.
OrderedJson finite_or_null(double value) { return std::isfinite(value) ? OrderedJson(value) : OrderedJson(nullptr); }

/// Calls visit(step, line) for every whole line.
template <typename Visit>
void for_each_step(const std::filesystem::path& run_directory, Visit visit) {
  std::ifstream in(run_directory / kFileName);
  for (std::string line; std::getline(in, line);) {
    if (line.find('\0') != std::string::npos) continue;  // which the parser would take for the line's end
    const Json json = Json::parse(line, nullptr, /*allow_exceptions=*/false);
    if (json.is_object() && json.contains("step") && json["step"].is_number_integer()) visit(json["step"].get<int64_t>(), line);
  }
}

using Spans = std::vector<std::pair<double, double>>;

Spans merged(Spans spans) {
  std::sort(spans.begin(), spans.end());
  Spans result;
  for (const auto& span : spans) {
    if (!result.empty() && span.first <= result.back().second)
      result.back().second = std::max(result.back().second, span.second);
    else
      result.push_back(span);
  }
  return result;
}

double length(const Spans& spans) {
  double total = 0;
  for (const auto& [begin, end] : spans) total += end - begin;
  return total;
}

double common_length(const Spans& a, const Spans& b) {
  double total = 0;
  for (size_t i = 0, j = 0; i < a.size() && j < b.size();) {
    total += std::max(0.0, std::min(a[i].second, b[j].second) - std::max(a[i].first, b[j].first));
    if (a[i].second < b[j].second) ++i;
    else ++j;
  }
  return total;
}

}  // namespace

Resource StepReport::limit() const {
  return static_cast<Resource>(std::max_element(busy_seconds.begin(), busy_seconds.end()) - busy_seconds.begin());
}

int64_t last_step_in_metrics(const std::filesystem::path& run_directory) {
  int64_t last = 0;
  for_each_step(run_directory, [&](int64_t step, const std::string&) { last = std::max(last, step); });
  return last;
}

MetricsWriter::MetricsWriter(const std::filesystem::path& run_directory, const RunPlan& plan, int64_t resumed_step)
    : path_(run_directory / kFileName), tiers_(plan.tiers) {
  std::string text;
  for_each_step(run_directory, [&](int64_t step, const std::string& line) {
    if (step <= resumed_step) text += line + "\n";
  });
  write_file_atomically(path_, text.data(), text.size());
  out_.open(path_, std::ios::app);
  if (!out_) throw Error(ErrorCode::io, "cannot write the metrics: " + system_reason(errno), path_.string(), remedy_for(errno));
}

void MetricsWriter::write(const StepReport& report) {
  OrderedJson json;
  json["step"] = report.step;
  json["loss"] = finite_or_null(report.loss);
  json["grad_norm"] = finite_or_null(report.grad_norm);
  json["lr"] = report.lr;
  json["tokens"] = report.tokens;
  json["seconds"] = report.seconds;
  json["tokens_per_second"] = report.tokens_per_second;
  json["skipped"] = report.skipped;
  json["loss_scale"] = report.loss_scale;
  if (report.eval_loss) json["eval_loss"] = finite_or_null(*report.eval_loss);
  for (int i = 0; i < kResourceCount; ++i) {
    const auto name = std::string(to_string(static_cast<Resource>(i)));
    json["busy_seconds"][name] = report.busy_seconds[i];
    json["bytes"][name] = report.bytes[i];
  }
  json["overlap"] = report.overlap ? OrderedJson(*report.overlap) : OrderedJson(nullptr);
  json["limit"] = to_string(report.limit());
  for (const TierUse& tier : tiers_) json["bytes_used"][tier.tier] = tier.needed_bytes;
  errno = 0;
  out_ << json.dump() << std::endl;
  if (!out_)
    throw Error(errno == ENOSPC ? ErrorCode::resource_exhausted : ErrorCode::io,
                fmt::format("cannot write the metrics of step {}: {}", report.step, system_reason(errno)), path_.string(),
                "free space there or check the disk; the same command then continues from the state that was saved last");
}

std::optional<double> overlap_share(const Program& program, const ProgramRun& run) {
  Spans compute, transfers;
  for (const OpInterval& interval : run.intervals) {
    const Resource resource = program.ops[interval.op].resource;
    if (resource == Resource::compute) compute.emplace_back(interval.begin_seconds, interval.end_seconds);
    else if (program.ops[interval.op].bytes > 0) transfers.emplace_back(interval.begin_seconds, interval.end_seconds);
  }
  const Spans moving = merged(std::move(transfers));
  const double total = length(moving);
  if (total <= 0) return std::nullopt;
  return common_length(merged(std::move(compute)), moving) / total;
}

void write_trace(const std::filesystem::path& file, const RunPlan& plan,
                 const std::vector<std::pair<const Program*, ProgramRun>>& runs) {
  OrderedJson events = OrderedJson::array();
  for (int i = 0; i < kResourceCount; ++i)
    events.push_back({{"name", "thread_name"},
                      {"ph", "M"},
                      {"pid", 1},
                      {"tid", i},
                      {"args", {{"name", to_string(static_cast<Resource>(i))}}}});
  double origin = 0;
  for (const auto& [program, run] : runs) {
    for (const OpInterval& interval : run.intervals) {
      const Op& op = program->ops[interval.op];
      std::string name(to_string(op.kind));
      if (op.unit >= 0) name += " " + plan.shape.layout.units[op.unit].name;
      OrderedJson arguments = {{"program", program->name}};
      if (op.tile >= 0) arguments["tile"] = op.tile;
      if (op.micro_batch >= 0) arguments["micro_batch"] = op.micro_batch;
      if (op.bytes > 0) arguments["bytes"] = op.bytes;
      if (op.flops > 0) arguments["flops"] = op.flops;
      events.push_back({{"name", name},
                        {"ph", "X"},
                        {"pid", 1},
                        {"tid", static_cast<int>(op.resource)},
                        {"ts", (origin + interval.begin_seconds) * 1e6},
                        {"dur", (interval.end_seconds - interval.begin_seconds) * 1e6},
                        {"args", arguments}});
    }
    origin += run.seconds;
  }
  const std::string text = OrderedJson{{"traceEvents", events}, {"displayTimeUnit", "ms"}}.dump();
  write_file_atomically(file, text.data(), text.size());
}

}  // namespace strata::scheduler
