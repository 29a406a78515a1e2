#include "scheduler/trainer_record.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numbers>

#include "core/error.hpp"

namespace strata::scheduler {
namespace {

TEST(TrainerRecord, SurvivesItsJson) {
  TrainerRecord record;
  record.step = 12;
  record.updates = 11;
  record.samples = (uint64_t{1} << 40) + 3;
  record.loss_scale = 0x1p-20;
  record.good_steps = 7;
  record.run_id = "0123456789abcdef0123456789abcdef";
  record.run_directory = "/a \"quoted\" place";
  record.model_path = "model";
  record.data_identity = "seed 1";
  const TrainerRecord back = TrainerRecord::from_json(record.to_json(), "test");
  EXPECT_EQ(back.to_json(), record.to_json());
  EXPECT_EQ(back.samples, record.samples);
  EXPECT_EQ(back.loss_scale, record.loss_scale);
}

TEST(TrainerRecord, ReadsRecordsOfVersionOneWhichHaveNoRunId) {
  const TrainerRecord record = TrainerRecord::from_json(
      R"({"version":1,"step":4,"updates":3,"samples":16,"loss_scale":1.0,"good_steps":0,"skipped_in_a_row":0,)"
      R"("run_directory":"/runs/a","model_path":"/models/m","data_identity":"seed 42 sequence 32 text.txt:60000"})", "test");
  EXPECT_EQ(record.step, 4);
  EXPECT_EQ(record.run_id, "");
  EXPECT_EQ(record.run_directory, "/runs/a");
  EXPECT_EQ(record.data_identity, "seed 42 sequence 32 text.txt:60000");
}

TEST(TrainerRecord, TakesTheProgressOfAnotherAndKeepsItsOwnIdentity) {
  TrainerRecord ours, loaded;
  ours.run_id = "ours";
  ours.run_directory = "/moved/here";
  loaded.run_id = "theirs";
  loaded.run_directory = "/was/there";
  loaded.step = 9;
  loaded.samples = 36;
  const TrainerRecord both = ours.with_state_of(loaded);
  EXPECT_EQ(both.step, 9);
  EXPECT_EQ(both.samples, 36u);
  EXPECT_EQ(both.run_id, "ours");
  EXPECT_EQ(both.run_directory, "/moved/here");
}

TEST(TrainerRecord, NamesWhatIsNotWhole) {
  EXPECT_THROW(TrainerRecord::from_json("{\"version\": 1}", "test"), Error);
  EXPECT_THROW(TrainerRecord::from_json("{\"version\": 3}", "test"), Error);
  EXPECT_THROW(TrainerRecord::from_json("{", "test"), Error);
}

TEST(LearningRate, WarmsUpThenFollowsItsSchedule) {
  Config config;
  config.optimizer.lr = 1.0;
  config.steps = 110;
  config.lr_schedule = {.type = ScheduleKind::cosine, .warmup_steps = 10, .min_lr = 0.1};
  EXPECT_DOUBLE_EQ(learning_rate(config, 0), 0.1);
  EXPECT_DOUBLE_EQ(learning_rate(config, 9), 1.0);
  EXPECT_DOUBLE_EQ(learning_rate(config, 10), 1.0);
  EXPECT_NEAR(learning_rate(config, 60), 0.55, 1e-12);
  EXPECT_NEAR(learning_rate(config, 110), 0.1, 1e-12);
  config.lr_schedule.type = ScheduleKind::linear;
  EXPECT_NEAR(learning_rate(config, 60), 0.55, 1e-12);
  config.lr_schedule.type = ScheduleKind::constant;
  EXPECT_DOUBLE_EQ(learning_rate(config, 60), 1.0);
}

/// The lambdas of get_{constant,linear,cosine}_schedule_with_warmup (transformers/optimization.py), of a step from 0.
double huggingface_factor(ScheduleKind kind, double step, double warmup, double steps) {
  if (step < warmup) return step / std::max(1.0, warmup);
  const double progress = (step - warmup) / std::max(1.0, steps - warmup);
  switch (kind) {
    case ScheduleKind::constant: return 1.0;
    case ScheduleKind::linear: return std::max(0.0, (steps - step) / std::max(1.0, steps - warmup));
    case ScheduleKind::cosine: return std::max(0.0, 0.5 * (1.0 + std::cos(std::numbers::pi * 0.5 * 2.0 * progress)));
  }
  return -1;
}

TEST(LearningRate, IsHuggingFacesWhenAskedForAndOneStepAheadInWarmUpOtherwise) {
  for (ScheduleKind kind : {ScheduleKind::constant, ScheduleKind::linear, ScheduleKind::cosine})
    for (int64_t warmup : {0, 1, 7, 30}) {
      Config config;
      config.optimizer.lr = 3e-4;
      config.steps = 30;
      config.lr_schedule = {.type = kind, .warmup_steps = warmup, .warmup = WarmupRule::huggingface, .min_lr = 0};
      Config own = config;
      own.lr_schedule.warmup = WarmupRule::strata;
      for (int64_t step = 0; step < config.steps; ++step) {
        const double expected =
            3e-4 * huggingface_factor(kind, static_cast<double>(step), static_cast<double>(warmup), static_cast<double>(config.steps));
        EXPECT_NEAR(learning_rate(config, step), expected, 1e-18) << step << " of " << warmup;
        const double warm = 3e-4 * static_cast<double>(step + 1) / static_cast<double>(std::max<int64_t>(warmup, 1));
        EXPECT_NEAR(learning_rate(own, step), step < warmup ? warm : expected, 1e-18) << step << " of " << warmup;
      }
    }
}

TEST(LossScaler, HalvesAtOnceAndDoublesAfterTwoThousandFiniteSteps) {
  TrainerRecord record;
  record.loss_scale = LossScaler::initial(DType::f16);
  LossScaler::after_step(DType::f16, false, record);
  EXPECT_EQ(record.loss_scale, 32768.0);
  for (int i = 0; i < 1999; ++i) LossScaler::after_step(DType::f16, true, record);
  EXPECT_EQ(record.loss_scale, 32768.0);
  LossScaler::after_step(DType::f16, true, record);
  EXPECT_EQ(record.loss_scale, 65536.0);
  record.loss_scale = LossScaler::initial(DType::bf16);
  LossScaler::after_step(DType::bf16, false, record);
  EXPECT_EQ(record.loss_scale, 1.0);
}

}  // namespace
}  // namespace strata::scheduler
