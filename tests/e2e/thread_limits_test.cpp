// The built program under the system's own limits on threads and address space: it trains, or says what is missing and exits with 1. It
// never aborts, hangs or leaves a shell with a signal's status.
#include <grp.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <chrono>
#include <cstddef>
#include <thread>

#include "tests/e2e/run_files.hpp"
#include "tests/support/program_run.hpp"

namespace strata::e2e {
namespace {

using ::testing::AnyOf;
using ::testing::HasSubstr;

class ThreadLimits : public ::testing::Test {
 protected:
  ThreadLimits() {
    files_.config.device.threads = 3;
    files_.config.schedule.update_threads = 3;
  }

  struct Outcome {
    int status = -1;
    std::string text;
  };
  Outcome train(const std::string& name, const std::function<void()>& prepare) {
    auto arguments = files_.train(name);
    ProgramRun run(arguments, files_ / (name + ".log"), prepare);
    const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(120);
    while (run.running()) {
      if (std::chrono::steady_clock::now() > deadline) return {-1, "it hangs: " + run.text()};
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    }
    return {run.wait(), run.text()};
  }

  RunFiles files_{scheduler::kTinyTiedLlama, 2};
};

/// A user whom no other process of the machine belongs to: root is under no limit on processes, and others' would count.
uid_t lonely_user() { return 60000 + static_cast<uid_t>(getpid()) % 5000; }

TEST_F(ThreadLimits, EveryLimitOnProcessesLeadsToARunOrARefusal) {
  if (geteuid() != 0) GTEST_SKIP() << "only root can become a user without other processes";
  const std::filesystem::path top = files_ / ".";
  const uid_t user = lonely_user();
  ASSERT_EQ(chown(top.c_str(), user, user), 0);
  for (const auto& entry : std::filesystem::recursive_directory_iterator(top)) ASSERT_EQ(chown(entry.path().c_str(), user, user), 0);
  int refused = 0;
  bool whole = false;
  for (rlim_t limit = 1; limit <= 40 && !whole; ++limit) {
    SCOPED_TRACE(limit);
    const Outcome outcome = train("limit", [&] {
      const rlimit processes{limit, limit};
      if (setgroups(0, nullptr) != 0 || setgid(user) != 0 || setrlimit(RLIMIT_NPROC, &processes) != 0 || setuid(user) != 0) _exit(126);
    });
    if (outcome.status == 126 || outcome.text.find("cannot open the configuration") != std::string::npos)
      GTEST_SKIP() << "another user cannot be taken on, or cannot read the test's directory here: " << outcome.text;
    whole = outcome.status == 0;
    if (whole) break;
    ++refused;
    ASSERT_EQ(outcome.status, 1) << outcome.text;
    EXPECT_THAT(outcome.text, AnyOf(HasSubstr("threads are needed at once"), HasSubstr("cannot start a thread")));
    EXPECT_THAT(outcome.text, HasSubstr("(ulimit -u)"));
    EXPECT_THAT(outcome.text, HasSubstr("try: "));
  }
  EXPECT_TRUE(whole);
  EXPECT_GE(refused, 10) << "the limit was not felt";
}

TEST_F(ThreadLimits, EveryLimitOnAddressSpaceLeadsToARunOrARefusal) {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "sanitizers reserve terabytes of address space";
#endif
  int refused = 0;
  bool whole = false;
  for (rlim_t mebibytes = 16; mebibytes <= 8192 && !whole; mebibytes += mebibytes < 512 ? 16 : 128) {
    SCOPED_TRACE(mebibytes);
    const Outcome outcome = train("space", [&] {
      const rlimit space{mebibytes << 20, mebibytes << 20};
      if (setrlimit(RLIMIT_AS, &space) != 0) _exit(126);
    });
    if (outcome.status == 127) continue;  // the program itself could not be loaded
    whole = outcome.status == 0;
    if (whole) break;
    ++refused;
    ASSERT_EQ(outcome.status, 1) << outcome.text;
    EXPECT_THAT(outcome.text, HasSubstr("strata: "));
    EXPECT_THAT(outcome.text, HasSubstr("try: "));
  }
  EXPECT_TRUE(whole);
  EXPECT_GE(refused, 1) << "the limit was not felt";
}

TEST_F(ThreadLimits, ARunGoesOnWhereTheAffinityMaskCannotBeRead) {
  const Outcome free_run = train("free", [] {});
  ASSERT_EQ(free_run.status, 0) << free_run.text;
  const Outcome outcome = train("mask", [] {
    sock_filter program[] = {BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr)),
                             BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, __NR_sched_getaffinity, 0, 1),
                             BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EPERM),
                             BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW)};
    sock_fprog filter{4, program};
    if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0 || prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &filter) != 0) _exit(126);
  });
  if (outcome.status == 126) GTEST_SKIP() << "no seccomp filters here";
  EXPECT_EQ(outcome.status, 0) << outcome.text;
  const auto hash_of = [](const std::string& text) { return text.substr(text.find("state_hash "), 43); };
  EXPECT_EQ(hash_of(outcome.text), hash_of(free_run.text));
}

}  // namespace
}  // namespace strata::e2e
