// metrics.jsonl: no line is lost, whatever ends the process.
#include "scheduler/metrics.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include "core/json.hpp"
#include "tests/scheduler/training_fixture.hpp"
#include "tests/support/files.hpp"
#include "tests/support/scratch_directory.hpp"

namespace strata::scheduler {
namespace {

namespace fs = std::filesystem;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

class Metrics : public testing::Test {
 protected:
  fs::path file() const { return directory_ / "metrics.jsonl"; }
  /// "3" for the line of a step, "3e" for that of an evaluation, "3r" for a recovered one.
  static std::vector<std::string> lines_of(const fs::path& file) {
    std::vector<std::string> lines;
    std::ifstream in(file);
    for (std::string text; std::getline(in, text);) {
      const Json json = Json::parse(text);
      const char* kind = json.contains("eval_loss") ? "e" : json.contains("recovered") ? "r" : "";
      lines.push_back(std::to_string(json.at("step").get<int>()) + kind);
    }
    return lines;
  }
  std::vector<std::string> lines() const { return lines_of(file()); }

  void write_steps(MetricsWriter& writer, int first, int last) const {
    for (int step = first; step <= last; ++step) {
      StepReport report;
      report.step = step;
      writer.write(report);
    }
  }
  static TrainerRecord at(int64_t step) {
    TrainerRecord record;
    record.step = step;
    return record;
  }

  ScratchDirectory directory_;
  RunPlan plan_;
};

TEST_F(Metrics, AreNotTouchedBeforeThereIsALineToAdd) {
  write_file(file(), "{\"step\": 1, \"loss\": 1}\n{\"step\": 2, \"loss\": 1}\n{\"ste");
  const std::string before = read_file(file());
  MetricsWriter writer(directory_.path(), plan_);
  EXPECT_EQ(read_file(file()), before);
  writer.begin_after(at(1));
  EXPECT_EQ(read_file(file()), before);
  write_steps(writer, 2, 2);
  EXPECT_THAT(lines(), ElementsAre("1", "2"));
}

TEST_F(Metrics, LinesOfStepsThatAreRunAgainAreReplaced) {
  MetricsWriter first(directory_.path(), plan_);
  first.begin_after(at(0));
  write_steps(first, 1, 4);
  first.write(EvaluationReport{.step = 4, .loss = 2.5, .tokens = 10, .seconds = 0.1});
  write_steps(first, 5, 6);
  MetricsWriter second(directory_.path(), plan_);
  second.begin_after(at(4));
  write_steps(second, 5, 5);
  EXPECT_THAT(lines(), ElementsAre("1", "2", "3", "4", "4e", "5"));
  EXPECT_EQ(last_step_in_metrics(directory_.path()), 5);
}

TEST_F(Metrics, ALineThatWasCutOffIsDroppedAndTheNextBeginsALineOfItsOwn) {
  MetricsWriter first(directory_.path(), plan_);
  first.begin_after(at(0));
  write_steps(first, 1, 3);
  const std::string whole = read_file(file());
  for (size_t cut = 1; cut < 40; cut += 7) {
    write_file(file(), whole.substr(0, whole.size() - cut));
    MetricsWriter second(directory_.path(), plan_);
    second.begin_after(at(3));
    write_steps(second, 4, 4);
    EXPECT_THAT(lines(), ElementsAre("1", "2", "4")) << cut << " bytes short";
  }
}

TEST_F(Metrics, ALineThatIsMissingBehindItsStateIsMadeFromTheState) {
  MetricsWriter writer(directory_.path(), plan_);
  writer.begin_after(at(0));
  write_steps(writer, 1, 2);
  TrainerRecord record = at(3);
  record.last_step = LastStep{.loss = 4.25, .grad_norm = 0.5, .lr = 1e-3, .loss_scale = 1, .tokens = 128};
  const TrainerRecord loaded = TrainerRecord::from_json(record.to_json(), "test");
  MetricsWriter second(directory_.path(), plan_);
  second.begin_after(loaded);
  write_steps(second, 4, 4);
  EXPECT_THAT(lines(), ElementsAre("1", "2", "3r", "4"));
  EXPECT_THAT(read_file(file()), HasSubstr("\"loss\":4.25,\"grad_norm\":0.5,\"lr\":0.001,\"tokens\":128"));
  MetricsWriter third(directory_.path(), plan_);
  third.begin_after(loaded);
  write_steps(third, 4, 4);
  EXPECT_THAT(lines(), ElementsAre("1", "2", "3r", "4")) << "once";
}

TEST_F(Metrics, ArePrivateAndNeverGoThroughALink) {
  const fs::path victim = directory_ / "victim";
  write_file(victim, "precious");
  fs::create_symlink(victim, file());
  EXPECT_THROW(MetricsWriter(directory_.path(), plan_), Error);
  EXPECT_THROW(last_step_in_metrics(directory_.path()), Error);
  fs::remove(file());
  fs::create_hard_link(victim, file());
  EXPECT_THROW(MetricsWriter(directory_.path(), plan_), Error);
  fs::remove(file());
  ASSERT_EQ(mkfifo(file().c_str(), 0600), 0);
  EXPECT_THROW(MetricsWriter(directory_.path(), plan_), Error);
  EXPECT_THROW(last_step_in_metrics(directory_.path()), Error);
  fs::remove(file());
  EXPECT_EQ(read_file(victim), "precious");
  write_file(file(), "");
  fs::permissions(file(), fs::perms::owner_read | fs::perms::owner_write | fs::perms::others_read);
  MetricsWriter writer(directory_.path(), plan_);
  EXPECT_EQ(fs::status(file()).permissions(), fs::perms::owner_read | fs::perms::owner_write);
}

class MetricsOfARun : public Metrics {
 protected:
  MetricsOfARun() {
    write_random_model(disk_.path(), kTinyTiedLlama);
    write_text(disk_ / "text.txt", 60000);
    config_ = tiny_config(disk_.path(), 4);
    config_.data.eval = {disk_ / "text.txt"};
    config_.data.sequence_length = 128;
    config_.checkpoint = {.every = 2, .keep = 2};
  }
  void train_with(const std::function<void(TrainOptions&)>& change) {
    TrainOptions options;
    options.config = config_;
    options.run_directory = disk_ / "run";
    change(options);
    train(options);
  }
  std::vector<std::string> lines() const { return lines_of(disk_ / "run/metrics.jsonl"); }

  ScratchDirectory disk_{disk_of_the_build()};
  Config config_;
};

TEST_F(MetricsOfARun, TheLineOfAStepIsThereBeforeItsEvaluationBegins) {
  // The process ends between the step's line and the end of the evaluation that follows it.
  EXPECT_THROW(train_with([](TrainOptions& options) {
                 options.on_step = [](const StepReport& report) {
                   if (report.step == 2) throw std::runtime_error("killed");
                 };
               }),
               std::runtime_error);
  EXPECT_THAT(lines(), ElementsAre("1", "2"));
  fs::remove_all(disk_ / "run");
  std::vector<std::string> at_evaluation;
  train_with([&](TrainOptions& options) {
    options.on_evaluation = [&](const EvaluationReport& report) {
      EXPECT_GT(report.tokens, 0u);
      EXPECT_GT(report.loss, 0.0);
      at_evaluation = lines();
    };
  });
  EXPECT_THAT(at_evaluation, ElementsAre("1", "2", "2e", "3", "4", "4e"));
}

TEST_F(MetricsOfARun, AResumeThatFailsHasCutNothing) {
  config_.placement = {Tier::nvme, Tier::nvme, Tier::nvme, ActivationPolicy::recompute};
  train_with([](TrainOptions&) {});
  const fs::path file = disk_ / "run/metrics.jsonl", state = disk_ / "nvme/strata.state";
  write_file(file, read_file(file) + "{\"step\": 99, \"loss\": 1}\n{\"torn");
  const std::string before = read_file(file);
  const std::string bytes = read_file(state);
  write_file(state, bytes.substr(0, 4096) + std::string(bytes.size() - 4096, 'x'));  // every extent is damaged, the header is whole
  config_.steps = 6;
  EXPECT_THROW(train_with([](TrainOptions&) {}), Error);
  EXPECT_EQ(read_file(file), before);
  write_file(state, bytes);
  train_with([](TrainOptions&) {});
  EXPECT_THAT(lines(), ElementsAre("1", "2", "2e", "3", "4", "4e", "5", "6", "6e"));
}

}  // namespace
}  // namespace strata::scheduler
