// Checkpoint directories whose process dies before any system call: a whole checkpoint is always found, and nothing half there is.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>

#include "core/content_hash.hpp"
#include "core/error.hpp"
#include "scheduler/checkpoint_directory.hpp"
#include "scheduler/checkpoint_manifest.hpp"
#include "tests/support/files.hpp"
#include "tests/support/killed_child.hpp"
#include "tests/support/scratch_directory.hpp"

namespace strata::scheduler {
namespace {

namespace fs = std::filesystem;
using ::testing::AnyOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

/// A whole checkpoint as far as its directory is concerned, told from another of its step by its content.
void make_checkpoint(const fs::path& path, int64_t step, const std::string& content) {
  fs::create_directories(path / kModelFolder);
  CheckpointManifest manifest;
  manifest.record.step = step;
  for (const char* name : {"config.json", "notes.txt"}) {
    const std::string relative = std::string(kModelFolder) + "/" + name;
    write_file(path / relative, content);
    manifest.files.push_back({relative, content.size(), hash_file(path / relative)});
  }
  write_file(path / kManifestName, manifest.to_json());
}

std::string content_of(const fs::path& checkpoint) { return read_file(checkpoint / kModelFolder / "config.json"); }

std::vector<std::string> names_in(const fs::path& folder) {
  std::set<std::string> names;
  for (const auto& entry : fs::directory_iterator(folder)) names.insert(entry.path().filename().string());
  return {names.begin(), names.end()};
}

std::vector<int64_t> steps_of(const std::vector<CheckpointInfo>& found) {
  std::vector<int64_t> steps;
  for (const CheckpointInfo& info : found) steps.push_back(info.record.step);
  return steps;
}

class CheckpointDirectory : public ::testing::Test {
 protected:
  fs::path folder() const { return scratch_ / "checkpoints"; }
  fs::path at(const std::string& name) const { return folder() / name; }
  /// What every reader sees; a directory that it must not judge is none of its business.
  std::vector<CheckpointInfo> listed() const {
    std::vector<IgnoredCheckpoint> ignored;
    const auto found = list_checkpoints(folder(), &ignored);
    for (const IgnoredCheckpoint& one : ignored) EXPECT_TRUE(one.unfinished) << one.text();
    return found;
  }
  /// Does `prepare`, lets `action` die at each system call in turn, and does `examine` after each death.
  void die_everywhere(const std::function<void()>& prepare, const std::function<void()>& action, const std::function<void()>& examine) {
    for (uint64_t nth = 1; nth < 2000; ++nth) {
      SCOPED_TRACE(fmt::format("dies at system call {}", nth));
      fs::remove_all(folder());
      prepare();
      const ChildEnd end = run_until_system_call(nth, action);
      if (end == ChildEnd::not_traceable) GTEST_SKIP() << "this machine allows no ptrace: " << system_reason(errno);
      ASSERT_NE(end, ChildEnd::failed);
      examine();
      if (HasFailure()) return;
      if (end == ChildEnd::finished) {
        EXPECT_GT(nth, 5u) << "the child made hardly any system call";
        return;
      }
    }
    FAIL() << "the child never ended";
  }

  const ScratchDirectory scratch_;
};

class CheckpointReplacement : public CheckpointDirectory, public ::testing::WithParamInterface<Exchange> {};
INSTANTIATE_TEST_SUITE_P(Renames, CheckpointReplacement, ::testing::Values(Exchange::automatic, Exchange::never),
                         [](const auto& info) { return info.param == Exchange::automatic ? "Exchanged" : "OneAfterTheOther"; });

TEST_P(CheckpointReplacement, OfTheSameStepLeavesAWholeOneAtEverySystemCall) {
  die_everywhere(
      [&] {
        make_checkpoint(at("step-00000004"), 4, "the old one");
        make_checkpoint(at("step-00000004.partial"), 4, "the new one");
      },
      [&] { publish_checkpoint(at("step-00000004.partial"), at("step-00000004"), GetParam()); },
      [&] {
        const auto before = listed();
        ASSERT_THAT(steps_of(before), ElementsAre(4));
        const std::string content = content_of(before.front().path);
        EXPECT_THAT(content, AnyOf("the old one", "the new one"));
        settle_checkpoints(folder(), {});
        EXPECT_THAT(names_in(folder()), ElementsAre("step-00000004"));
        EXPECT_EQ(content_of(at("step-00000004")), content);
      });
  if (!IsSkipped()) {
    EXPECT_EQ(content_of(at("step-00000004")), "the new one");
  }
}

TEST_F(CheckpointDirectory, ACheckpointThatIsBeingRemovedIsThereOrNotAtEverySystemCall) {
  die_everywhere(
      [&] {
        make_checkpoint(at("step-00000002"), 2, "older");
        make_checkpoint(at("step-00000004"), 4, "newer");
      },
      [&] { remove_checkpoint(at("step-00000002")); },
      [&] {
        const auto before = steps_of(listed());
        EXPECT_THAT(before, AnyOf(ElementsAre(4, 2), ElementsAre(4)));
        settle_checkpoints(folder(), {});
        EXPECT_EQ(steps_of(listed()), before);
        EXPECT_EQ(names_in(folder()).size(), before.size());
      });
  if (!IsSkipped()) {
    EXPECT_THAT(names_in(folder()), ElementsAre("step-00000004"));
  }
}

TEST_F(CheckpointDirectory, PuttingThingsRightCanItselfDieAtEverySystemCall) {
  die_everywhere(
      [&] {
        make_checkpoint(at("step-00000002"), 2, "older");
        make_checkpoint(at("step-00000004.partial"), 4, "whole");
        make_checkpoint(at("step-00000006.partial"), 6, "not whole");
        fs::remove(at("step-00000006.partial") / kManifestName);
        make_checkpoint(at("step-00000001.removed"), 1, "going");
      },
      [&] { settle_checkpoints(folder(), {}); },
      [&] {
        EXPECT_THAT(steps_of(listed()), ElementsAre(4, 2));
        settle_checkpoints(folder(), {});
        EXPECT_THAT(names_in(folder()), ElementsAre("step-00000002", "step-00000004"));
        EXPECT_THAT(steps_of(listed()), ElementsAre(4, 2));
      });
}

TEST_F(CheckpointDirectory, AWholeOneWithoutItsNameIsFoundAndTakesThePlaceOfADamagedOne) {
  make_checkpoint(at("step-00000004"), 4, "damaged");
  fs::remove(at("step-00000004") / kModelFolder / "notes.txt");
  make_checkpoint(at("step-00000004.partial"), 4, "whole");
  std::vector<IgnoredCheckpoint> ignored;
  EXPECT_EQ(list_checkpoints(folder(), &ignored).front().path, at("step-00000004.partial"));
  EXPECT_EQ(resolve_checkpoint(scratch_.path()), at("step-00000004.partial"));
  std::string told;
  settle_checkpoints(folder(), [&](const std::string& line) { told += line; });
  EXPECT_THAT(told, HasSubstr(at("step-00000004").string()));
  EXPECT_THAT(names_in(folder()), ElementsAre("step-00000004"));
  EXPECT_EQ(content_of(at("step-00000004")), "whole");
}

TEST_F(CheckpointDirectory, PinsAreMarksInTheCheckpointItself) {
  make_checkpoint(at("step-00000002"), 2, "best");
  EXPECT_FALSE(listed().front().pinned);
  pin_checkpoint(at("step-00000002"));
  pin_checkpoint(at("step-00000002"));
  EXPECT_TRUE(listed().front().pinned);
  unpin_checkpoint(at("step-00000002"));
  unpin_checkpoint(at("step-00000002"));
  EXPECT_FALSE(is_pinned(at("step-00000002")));
  settle_checkpoints(scratch_ / "absent", {});
}

}  // namespace
}  // namespace strata::scheduler
