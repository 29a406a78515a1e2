// `strata doctor`: what it finds on this machine, and on machines that a child process is made to see.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sched.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>

#include <cerrno>
#include <cstddef>

#include "tests/cli/program.hpp"
#include "tiers/file.hpp"
#include "tiers/lock.hpp"

namespace strata::cli::testing {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::HasSubstr;
using Json = nlohmann::json;

/// The check of that name; the first one's when several have it.
Json check_of(const Json& rows, const std::string& name) {
  for (const Json& row : rows)
    if (row.at("check") == name) return row;
  ADD_FAILURE() << "no check " << name << " in " << rows.dump(1);
  return {{"health", "absent"}, {"finding", ""}, {"remedy", nullptr}};
}
bool has_check(const Json& rows, const std::string& name) {
  return std::any_of(rows.begin(), rows.end(), [&](const Json& row) { return row.at("check") == name; });
}

class Doctor : public ::testing::Test {
 protected:
  Json machine(const std::function<void()>& prepare = {}) {
    const Outcome outcome = strata({"doctor", "--json", "--dir", scratch_.path()}, prepare);
    EXPECT_EQ(outcome.status, 0) << outcome.out << outcome.err;
    return outcome.json().at("machine");
  }
  Json directory(const fs::path& path, int status) {
    const Outcome outcome = strata({"doctor", "--json", "--dir", path.string()});
    EXPECT_EQ(outcome.status, status) << outcome.out << outcome.err;
    EXPECT_EQ(outcome.json().at("missing").get<int>() > 0, status == 1);
    return outcome.json().at("directories")[0].at("checks");
  }
  const ScratchDirectory scratch_;
};

TEST_F(Doctor, ExaminesTheMachineAndTheCurrentDirectory) {
  const Outcome outcome = strata({"doctor"});
  EXPECT_EQ(outcome.status, 0) << outcome.out << outcome.err;
  for (const char* expected : {"processor", "vector code", "processors", "NUMA", "memory", "huge pages", "locked memory", "io_uring",
                               "GPU", "directory .", "file system", "space", "direct I/O", "round trip"})
    EXPECT_THAT(outcome.out, HasSubstr(expected));
}

TEST_F(Doctor, PrintsTheSameAsJson) {
  const Outcome outcome = strata({"doctor", "--json"});
  EXPECT_EQ(outcome.status, 0);
  const Json facts = outcome.json();
  EXPECT_EQ(facts.at("schema_version"), 1);
  EXPECT_EQ(facts.at("missing"), 0);
  for (const Json& row : facts.at("machine")) {
    EXPECT_THAT(row.at("health").get<std::string>(), ::testing::AnyOf("ok", "note", "missing"));
    EXPECT_NE(row.at("finding"), "");
  }
  EXPECT_EQ(facts.at("directories").size(), 1u);
}

TEST_F(Doctor, FindsAnOrdinaryDirectoryFitAndLeavesNothingThere) {
  const Json checks = directory(scratch_.path(), 0);
  for (const char* name : {"space", "permissions", "locks", "round trip"}) EXPECT_EQ(check_of(checks, name).at("health"), "ok") << name;
  EXPECT_TRUE(fs::is_empty(scratch_.path()));
}

TEST_F(Doctor, ExaminesEveryDirectoryThatIsNamed) {
  fs::create_directory(scratch_ / "a");
  fs::create_directory(scratch_ / "b");
  const Outcome outcome = strata({"doctor", "--json", "--dir", scratch_ / "a", "--dir", scratch_ / "b"});
  EXPECT_EQ(outcome.status, 0);
  EXPECT_EQ(outcome.json().at("directories").size(), 2u);
}

TEST_F(Doctor, FailsForADirectoryThatCannotBeUsed) {
  EXPECT_THAT(check_of(directory(scratch_ / "absent", 1), "directory").at("finding").get<std::string>(), HasSubstr("no such directory"));
  write_file(scratch_ / "file", "x");
  EXPECT_THAT(check_of(directory(scratch_ / "file", 1), "directory").at("finding").get<std::string>(), HasSubstr("not a directory"));
  fs::create_directory(scratch_ / "open");
  chmod((scratch_ / "open").c_str(), 0777);
  const Json permissions = check_of(directory(scratch_ / "open", 1), "permissions");
  EXPECT_EQ(permissions.at("health"), "missing");
  EXPECT_THAT(permissions.at("remedy").get<std::string>(), HasSubstr("chmod"));
  EXPECT_EQ(check_of(directory("/proc", 1), "files").at("health"), "missing");
}

TEST_F(Doctor, OnlyNotesAnUnfitDirectoryThatNobodyNamed) {
  const Outcome outcome = strata({"doctor"}, [] { EXPECT_EQ(chdir("/proc"), 0); });
  EXPECT_EQ(outcome.status, 0) << outcome.out;
}

TEST_F(Doctor, SaysThatFilesInMemoryAreNoDrive) {
  if (!fs::is_directory("/dev/shm")) GTEST_SKIP() << "no /dev/shm";
  const Json checks = directory("/dev/shm", 0);
  EXPECT_THAT(check_of(checks, "file system").at("finding").get<std::string>(), HasSubstr("memory"));
  EXPECT_EQ(check_of(checks, "direct I/O").at("health"), "note");
  EXPECT_EQ(check_of(checks, "round trip").at("health"), "ok");
}

TEST_F(Doctor, NamesTheRunThatHoldsADirectory) {
  const tiers::FileDescriptor handle = tiers::open_directory(scratch_.path());
  const tiers::DirectoryLock lock(handle.get(), scratch_.path(), tiers::DirectoryLock::Kind::run);
  EXPECT_THAT(check_of(directory(scratch_.path(), 0), "in use").at("finding").get<std::string>(), HasSubstr(std::to_string(getpid())));
}

TEST_F(Doctor, SaysThatThreadVariablesHaveNoEffect) {
  EXPECT_FALSE(has_check(machine([] { unsetenv("OMP_NUM_THREADS"); unsetenv("OMP_THREAD_LIMIT"); unsetenv("MKL_NUM_THREADS"); }),
                         "thread variables"));
  const Json row = check_of(machine([] { setenv("OMP_NUM_THREADS", "3", 1); }), "thread variables");
  EXPECT_EQ(row.at("health"), "note");
  EXPECT_THAT(row.at("finding").get<std::string>(), AllOf(HasSubstr("OMP_NUM_THREADS=3"), HasSubstr("without effect")));
}

TEST_F(Doctor, CountsTheProcessorsOfTheAffinityMask) {
  const Json row = check_of(machine([] {
    cpu_set_t present, one;
    sched_getaffinity(0, sizeof present, &present);
    CPU_ZERO(&one);
    for (int i = CPU_SETSIZE - 1; i >= 0 && CPU_COUNT(&one) == 0; --i)
      if (CPU_ISSET(i, &present)) CPU_SET(i, &one);
    sched_setaffinity(0, sizeof one, &one);
  }), "processors");
  EXPECT_THAT(row.at("finding").get<std::string>(), ::testing::StartsWith("1 of "));
  EXPECT_EQ(row.at("health"), sysconf(_SC_NPROCESSORS_ONLN) > 1 ? "note" : "ok");
}

TEST_F(Doctor, GivesTheReasonAndTheFixWhenIoUringIsRefused) {
  const auto forbid_io_uring = [] {
    sock_filter program[] = {BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr)),
                             BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, __NR_io_uring_setup, 0, 1),
                             BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EPERM),
                             BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW)};
    sock_fprog filter{4, program};
    if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0 || prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &filter) != 0) _exit(126);
  };
  const Outcome outcome = strata({"doctor", "--json", "--dir", scratch_.path()}, forbid_io_uring);
  if (outcome.status == 126) GTEST_SKIP() << "no seccomp filters here";
  EXPECT_EQ(outcome.status, 0) << outcome.out << outcome.err;
  const Json facts = outcome.json();
  const Json row = check_of(facts.at("machine"), "io_uring");
  EXPECT_EQ(row.at("health"), "note");
  EXPECT_THAT(row.at("remedy").get<std::string>(), Not(::testing::IsEmpty()));
  // The directory works all the same, by the other engine.
  const Json trip = check_of(facts.at("directories")[0].at("checks"), "round trip");
  EXPECT_EQ(trip.at("health"), "ok");
  EXPECT_THAT(trip.at("finding").get<std::string>(), HasSubstr("threads"));
}

TEST_F(Doctor, GivesTheLimitOnLockedMemory) {
  const Json row = check_of(machine([] {
    prctl(PR_CAPBSET_DROP, 14, 0, 0, 0);  // CAP_IPC_LOCK, which lifts the limit
    const struct rlimit limit {1 << 20, 1 << 20};
    setrlimit(RLIMIT_MEMLOCK, &limit);
  }), "locked memory");
  EXPECT_EQ(row.at("health"), "note");
  EXPECT_THAT(row.at("finding").get<std::string>(), AllOf(HasSubstr("1 MiB"), HasSubstr("could not be locked")));
  EXPECT_THAT(row.at("remedy").get<std::string>(), HasSubstr("ulimit -l"));
}

TEST_F(Doctor, SaysWhereRunsCompute) {
  EXPECT_THAT(check_of(machine(), "GPU").at("finding").get<std::string>(), HasSubstr("this build"));
}

}  // namespace
}  // namespace strata::cli::testing
