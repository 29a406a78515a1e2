#include "scheduler/trainer_record.hpp"

#include <gtest/gtest.h>

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
  record.run_directory = "/a \"quoted\" place";
  record.model_path = "model";
  record.data_identity = "seed 1";
  const TrainerRecord back = TrainerRecord::from_json(record.to_json(), "test");
  EXPECT_EQ(back.to_json(), record.to_json());
  EXPECT_EQ(back.samples, record.samples);
  EXPECT_EQ(back.loss_scale, record.loss_scale);
}

TEST(TrainerRecord, NamesWhatIsNotWhole) {
  EXPECT_THROW(TrainerRecord::from_json("{\"version\": 1}", "test"), Error);
  EXPECT_THROW(TrainerRecord::from_json("{\"version\": 2}", "test"), Error);
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
