#include "scheduler/metrics.hpp"

#include <algorithm>
#include <cmath>
#include <utility>

#include "core/file.hpp"
#include "core/json.hpp"

namespace strata::scheduler {

namespace {

constexpr const char* kFileName = "metrics.jsonl";

/// JSON has no infinities: null stands for what is not a number.
OrderedJson finite_or_null(double value) { return std::isfinite(value) ? OrderedJson(value) : OrderedJson(nullptr); }

tiers::FileDescriptor open_metrics(const std::filesystem::path& run_directory, tiers::Access access) {
  const tiers::FileDescriptor directory = tiers::open_directory(run_directory);
  return access == tiers::Access::read_only ? tiers::open_file(directory.get(), kFileName, access, run_directory)
                                            : tiers::open_or_make_file(directory.get(), kFileName, run_directory);
}

/// Calls visit(step, line) for every whole line, read in pieces. Returns whether the file holds nothing else.
template <typename Visit>
bool for_each_line(int file, const std::filesystem::path& path, Visit visit) {
  const uint64_t bytes = tiers::identity_of(file, path).bytes;
  bool clean = true;
  std::string piece, rest;
  for (uint64_t offset = 0; offset < bytes; offset += piece.size()) {
    piece.resize(std::min<uint64_t>(bytes - offset, 1 << 20));
    tiers::read_exactly(file, piece.data(), piece.size(), offset, path);
    rest += piece;
    size_t begin = 0;
    for (size_t end; (end = rest.find('\n', begin)) != std::string::npos; begin = end + 1) {
      const std::string line = rest.substr(begin, end - begin);
      // A NUL the parser would take for the line's end.
      const bool text = line.find('\0') == std::string::npos;
      const Json json = text ? Json::parse(line, nullptr, /*allow_exceptions=*/false) : Json();
      if (json.is_object() && json.contains("step") && json["step"].is_number_integer()) visit(json, line);
      else clean = false;
    }
    rest.erase(0, begin);
  }
  return clean && rest.empty();
}

bool is_of_a_step(const Json& line) { return line.contains("loss"); }

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
  const tiers::FileDescriptor file = open_metrics(run_directory, tiers::Access::read_only);
  int64_t last = 0;
  if (file)
    for_each_line(file.get(), run_directory / kFileName,
                  [&](const Json& json, const std::string&) { last = std::max(last, json["step"].get<int64_t>()); });
  return last;
}

MetricsWriter::MetricsWriter(const std::filesystem::path& run_directory, const RunPlan& plan)
    : run_directory_(run_directory), path_(run_directory / kFileName), file_(open_metrics(run_directory, tiers::Access::read_write)),
      tiers_(plan.tiers) {}

void MetricsWriter::continue_from(const TrainerRecord& resumed) {
  int64_t last_step = 0;
  bool later = false;
  const bool clean = for_each_line(file_.get(), path_, [&](const Json& json, const std::string&) {
    const int64_t step = json["step"].get<int64_t>();
    if (step > resumed.step) later = true;
    else if (is_of_a_step(json)) last_step = std::max(last_step, step);
  });
  if (later || !clean) {  // else the run continues where its metrics end
    AtomicFile kept(path_);
    uint64_t bytes = 0;
    for_each_line(file_.get(), path_, [&](const Json& json, const std::string& line) {
      if (json["step"].get<int64_t>() > resumed.step) return;
      const std::string text = line + "\n";
      kept.write(bytes, text.data(), text.size());
      bytes += text.size();
    });
    kept.finish();
    file_ = open_metrics(run_directory_, tiers::Access::read_write);
  }
  if (!resumed.last_step || last_step != resumed.step - 1) return;
  const LastStep& step = *resumed.last_step;
  OrderedJson json = {{"step", resumed.step}, {"loss", finite_or_null(step.loss)}, {"grad_norm", finite_or_null(step.grad_norm)},
                      {"lr", step.lr}, {"tokens", step.tokens}, {"seconds", nullptr}, {"tokens_per_second", nullptr},
                      {"skipped", false}, {"loss_scale", step.loss_scale}, {"recovered", true}};
  append(json.dump(), resumed.step);
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
  for (int i = 0; i < kResourceCount; ++i) {
    const auto name = std::string(to_string(static_cast<Resource>(i)));
    json["busy_seconds"][name] = report.busy_seconds[i];
    json["bytes"][name] = report.bytes[i];
  }
  json["overlap"] = report.overlap ? OrderedJson(*report.overlap) : OrderedJson(nullptr);
  json["limit"] = to_string(report.limit());
  for (const TierUse& tier : tiers_) json["bytes_used"][tier.tier] = tier.needed_bytes;
  append(json.dump(), report.step);
}

void MetricsWriter::write(const EvaluationReport& report) {
  const OrderedJson json = {{"step", report.step}, {"eval_loss", finite_or_null(report.loss)}, {"eval_tokens", report.tokens},
                            {"eval_samples", report.samples}, {"eval_of_samples", report.of_samples}, {"eval_seconds", report.seconds}};
  append(json.dump(), report.step);
}

void MetricsWriter::append(const std::string& line, int64_t step) {
  const std::string text = line + "\n";
  try {
    if (const auto resumed = std::exchange(resumed_, std::nullopt)) continue_from(*resumed);
    tiers::write_exactly(file_.get(), text.data(), text.size(), tiers::identity_of(file_.get(), path_).bytes, path_);
  } catch (const Error& error) {
    throw Error(error.code(), fmt::format("cannot write the metrics of step {}: {}", step, error.message()), path_.string(),
                "free space there or check the disk; the same command then continues from the state that was saved last");
  }
}

void MetricsWriter::sync() { tiers::sync_file(file_.get(), path_); }

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
