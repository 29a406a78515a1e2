// What changed since the last session: told, refused, or allowed by name.
#include "scheduler/session_changes.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>

#include "core/error.hpp"
#include "core/json.hpp"
#include "tests/support/files.hpp"
#include "tests/support/scratch_directory.hpp"
#include "tiers/format.hpp"

namespace strata::scheduler {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

class SessionChanges : public testing::Test {
 protected:
  SessionChanges() {
    config_.model.path = "/models/m";
    config_.data.train = {"/data/a", "/data/b"};
    config_.optimizer.lr = 3e-5;
    config_.device.memory_bytes = 8ull << 30;
    files_ = {{"/data/a", "text", 100, "aa"}, {"/data/b", "text", 200, "bb"}};
    model_.model_type = "llama";
    model_.rope.theta = 10000;
    machine_ = {{"program version", "0.1.0"}, {"compute threads", "2"}};
    last_ = session();
    record_.step = 16;
    record_.samples = 64;
    record_.data_identity = data_identity(config_, files_);
  }

  SessionRecord session() const {
    SessionRecord session;
    session.config = config_.to_json();
    session.model = model_facts(model_);
    session.train = files_;
    session.machine = machine_;
    return session;
  }
  std::vector<std::string> changes(const std::vector<std::string>& allow = {}, bool in_store = false) const {
    return changes_since(last_, session(), config_, {record_, in_store, "the run"}, allow);
  }
  std::string refusal(const std::vector<std::string>& allow = {}, bool in_store = false) const {
    try {
      changes(allow, in_store);
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::invalid_configuration);
      return error.what();
    }
    return "accepted";
  }

  Config config_;
  std::vector<DataFile> files_;
  ModelDescription model_;
  std::vector<std::pair<std::string, std::string>> machine_;
  std::optional<SessionRecord> last_;
  TrainerRecord record_;
};

TEST_F(SessionChanges, NothingChangedIsNothingToTell) {
  EXPECT_THAT(changes(), IsEmpty());
  last_.reset();
  EXPECT_THAT(changes(), IsEmpty());
}

TEST_F(SessionChanges, EachIsALineThatSaysWhetherNumbersChange) {
  config_.optimizer.lr = 1e-5;
  config_.steps = 200;
  config_.lr_schedule = {.type = ScheduleKind::cosine, .warmup_steps = 0, .min_lr = 0.0};
  config_.placement.optimizer = Tier::nvme;
  config_.device.memory_bytes = 4ull << 30;
  config_.batch.gradient_accumulation_steps = 4;
  machine_[1].second = "8";
  EXPECT_THAT(changes(), ::testing::IsSupersetOf({
      std::string("optimizer.lr 3e-05 -> 1e-05 (takes effect now: the loss curve continues with it)"),
      std::string("steps 100 -> 200 (the learning rates to come follow the new length)"),
      std::string("lr_schedule.type constant -> cosine (takes effect now: the learning rates to come follow it)"),
      std::string("device.memory 8GiB -> 4GiB (no number changes)"),
      std::string("batch.gradient_accumulation_steps 1 -> 4 (the loss curve continues with 4 samples a step instead of 1)"),
      std::string("compute threads 2 -> 8 (sums may round otherwise: the last digits can differ)")}));
  EXPECT_THAT(changes(), ::testing::Contains(AllOf(::testing::StartsWith("placement auto -> "), HasSubstr("(no number changes)"))));
  EXPECT_EQ(changes().size(), 7u);
}

TEST_F(SessionChanges, MicroBatchesOfTheSameStepKeepItsSamples) {
  config_.batch = {.micro_batch_size = 2, .gradient_accumulation_steps = 4};
  last_ = session();
  config_.batch = {.micro_batch_size = 4, .gradient_accumulation_steps = 2};
  for (const std::string& line : changes()) EXPECT_THAT(line, HasSubstr("8 samples a step as before"));
  EXPECT_EQ(changes().size(), 2u);
}

TEST_F(SessionChanges, DataOfOtherContentOrOrderIsRefusedUnlessAllowedByName) {
  files_[1].hash = "cc";
  EXPECT_THAT(refusal(), AllOf(HasSubstr("file 2 of 2, /data/b, has other content (of the same 200 bytes)"), HasSubstr("--allow data.train"),
                               HasSubstr("step 16")));
  for (const char* name : {"data", "data.train"})
    EXPECT_THAT(changes({name}), ElementsAre(AllOf(HasSubstr("other content"), HasSubstr("sample 64")))) << name;
  EXPECT_THAT(refusal({"data.seed"}), HasSubstr("other content"));
  files_[1] = {"/data/b", "text", 201, "bb"};
  EXPECT_THAT(refusal(), HasSubstr("has 201 bytes instead of 200"));
  files_ = {last_->train[1], last_->train[0]};
  EXPECT_THAT(refusal(), HasSubstr("file 1 of 2"));
  files_ = {last_->train[0]};
  EXPECT_THAT(refusal(), HasSubstr("1 files instead of 2"));
  files_ = last_->train;
  config_.data.seed = 7;
  config_.data.sequence_length = 2048;
  EXPECT_THAT(refusal(), AllOf(HasSubstr("data.seed 42 -> 7"), HasSubstr("data.sequence_length 1024 -> 2048"),
                               HasSubstr("--allow data.sequence_length --allow data.seed")));
  EXPECT_EQ(changes({"data"}).size(), 2u);
}

TEST_F(SessionChanges, DataThatMovedIsTheSameData) {
  files_[0].path = "/mnt/elsewhere/renamed";
  config_.data.train[0] = "/mnt/elsewhere/renamed";
  EXPECT_THAT(changes(), IsEmpty());
}

TEST_F(SessionChanges, DataIsComparedWithTheStateWhereTheLastSessionIsNotKnown) {
  last_.reset();
  files_[1].hash = "cc";
  EXPECT_THAT(refusal(), AllOf(HasSubstr("data order"), HasSubstr("--allow data")));
  EXPECT_EQ(changes({"data"}).size(), 1u);
}

TEST_F(SessionChanges, ARecordOfVersionOneIsComparedByNamesAndSizes) {
  const ScratchDirectory directory;
  write_file(directory / "a", "12345");
  config_.data.train = {directory / "a"};
  record_.data_identity = "seed 42 sequence 1024 a:5";
  last_.reset();
  EXPECT_THAT(changes(), IsEmpty());
  write_file(directory / "a", "123456");
  EXPECT_THAT(refusal(), HasSubstr("data order"));
}

TEST_F(SessionChanges, AnotherModelIsRefusedWhateverIsAllowed) {
  model_.rope.theta = 500000;
  model_.norm_epsilon = 1e-6;
  model_.heads = 8;
  EXPECT_THAT(refusal(allowable_changes()), AllOf(HasSubstr("rope.theta 10000.0 -> 500000.0"), HasSubstr("norm_epsilon 1e-05 -> 1e-06"),
                                                  HasSubstr("heads 0 -> 8"), Not(HasSubstr("--allow")), HasSubstr("export")));
}

TEST_F(SessionChanges, FormatsAreRefusedInAStoreAndAllowedByNameFromFiles) {
  config_.precision.compute = DType::f32;
  EXPECT_THAT(refusal(), AllOf(HasSubstr("precision.compute bf16 -> fp32"), HasSubstr("--allow precision.compute")));
  EXPECT_EQ(changes({"precision"}).size(), 1u);
  EXPECT_THAT(refusal({"precision"}, /*in_store=*/true),
              AllOf(HasSubstr("precision.compute"), HasSubstr("export"), Not(HasSubstr("--allow"))));
}

TEST_F(SessionChanges, AnUnknownNameToAllowIsRefused) {
  EXPECT_THAT(refusal({"everything"}), AllOf(HasSubstr("everything"), HasSubstr("data.seed")));
}

TEST_F(SessionChanges, EveryKeyOfTheConfigurationHasAnEffect) {
  config_.tiers.nvme = {{"/nvme", 1ull << 30}};
  const std::function<void(const Json&, const std::string&)> visit = [&](const Json& json, const std::string& key) {
    if (!json.is_object()) {
      EXPECT_NO_THROW(effect_of(key)) << key;
      return;
    }
    for (const auto& [name, value] : json.items()) visit(value, key.empty() ? name : key + "." + name);
  };
  visit(Json::parse(config_.to_json()), "");
}

TEST_F(SessionChanges, AHundredThousandFilesMakeAShortRecordAndComeBackFromTheirSession) {
  files_.clear();
  for (int i = 0; i < 100000; ++i) files_.push_back({fmt::format("/data/part-{:06}.bin", i), "llmc", 1000u + i, fmt::format("{:032x}", i)});
  record_.data_identity = data_identity(config_, files_);
  EXPECT_LT(record_.to_json().size(), 4096u);
  EXPECT_LT(record_.to_json().size(), tiers::kRecordBytesMax);
  const ScratchDirectory directory;
  SessionRecord written = session();
  written.run_id = "0123456789abcdef0123456789abcdef";
  written.step = 16;
  written.write(directory.path());
  const std::optional<SessionRecord> read = SessionRecord::read(directory.path());
  ASSERT_TRUE(read);
  EXPECT_EQ(read->train.size(), 100000u);
  EXPECT_TRUE(read->train[99999].same_content(files_[99999]));
  EXPECT_THAT(read->machine, ::testing::UnorderedElementsAreArray(machine_));
  last_ = read;
  EXPECT_THAT(changes(), IsEmpty());
  files_[77777].hash = "x";
  EXPECT_THAT(refusal(), HasSubstr("file 77778 of 100000"));
}

TEST_F(SessionChanges, ADamagedRecordOfTheLastSessionIsNamed) {
  const ScratchDirectory directory;
  for (const char* text : {"", "{", "[]", "{\"format\": \"strata-session\", \"version\": 1}", "{\"format\": \"other\"}"}) {
    write_file(directory / kSessionName, text);
    EXPECT_THROW(SessionRecord::read(directory.path()), Error) << text;
  }
}

}  // namespace
}  // namespace strata::scheduler
