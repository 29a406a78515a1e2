// The contract of io_engine.hpp, run on every engine, alone, with registered memory, and under the fault-injecting decorator.
#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <map>
#include <thread>

#include "tests/support/scratch_directory.hpp"
#include "tests/tiers/faulty_io_engine.hpp"
#include "tests/tiers/store_driver.hpp"
#include "tiers/file.hpp"

namespace strata::tiers {
namespace {

using testing::pattern;
using ::testing::HasSubstr;
using namespace std::chrono_literals;

constexpr uint64_t kFileBytes = 1u << 20;

struct Setting {
  const char* name;
  IoEngineKind kind;
  bool registered;
  bool decorated;
};

class IoEngineContract : public ::testing::TestWithParam<Setting> {
 protected:
  void SetUp() override {
    directory_handle_ = open_directory(directory_.path());
    file_ = make_file(directory_handle_.get(), "file", directory_.path());
    preallocate(file_.get(), kFileBytes, directory_.path());
    enable_direct_io(file_.get());
    read_only_ = open_file(directory_handle_.get(), "file", Access::read_only, directory_.path());
    IoEngineConfig config{GetParam().kind, {file_.get(), read_only_.get()}, {}, 16};
    if (GetParam().registered) config.regions.push_back({memory_.data(), memory_.bytes()});
    try {
      engine_ = GetParam().decorated ? testing::faulty(std::make_shared<testing::FaultPlan>())(config) : make_io_engine(config);
    } catch (const Error& error) {
      GTEST_SKIP() << error.what();
    }
  }

  /// Waits for `count` completions, by tag.
  std::map<uint64_t, int64_t> collect(size_t count) {
    std::map<uint64_t, int64_t> results;
    std::vector<IoCompletion> completions(3);
    const auto deadline = std::chrono::steady_clock::now() + 20s;
    while (results.size() < count && std::chrono::steady_clock::now() < deadline) {
      const size_t got = engine_->wait(completions, 100ms);
      for (size_t i = 0; i < got; ++i) EXPECT_TRUE(results.emplace(completions[i].tag, completions[i].result).second) << "twice";
    }
    EXPECT_EQ(results.size(), count);
    return results;
  }
  int64_t perform(const IoRequest& request) {
    engine_->submit({&request, 1});
    return collect(1)[request.tag];
  }
  std::byte* at(uint64_t offset) { return memory_.data() + offset; }

  ScratchDirectory directory_;
  FileDescriptor directory_handle_, file_, read_only_;
  AlignedBuffer memory_{2 * kFileBytes};
  AlignedBuffer elsewhere_{65536};  // never registered
  std::unique_ptr<IoEngine> engine_;
};

TEST_P(IoEngineContract, ReadsBackWhatItWrote) {
  std::cout << engine_->describe() << "\n";
  const auto data = pattern(kFileBytes, 3);
  std::copy(data.begin(), data.end(), memory_.data());
  std::vector<IoRequest> requests;
  for (uint64_t i = 0; i < 16; ++i) requests.push_back({IoOperation::write, 0, i * 65536, 65536, at(i * 65536), i});
  engine_->submit(requests);
  for (const auto& [tag, result] : collect(16)) EXPECT_EQ(result, 65536) << tag;
  EXPECT_EQ(perform({IoOperation::sync, 0, 0, 0, nullptr, 99}), 0);
  requests.clear();
  for (uint64_t i = 0; i < 16; ++i) {
    requests.push_back({IoOperation::read, 1, i * 65536, 65536, at(kFileBytes + i * 65536), 1000 + i});
  }
  engine_->submit(requests);
  for (const auto& [tag, result] : collect(16)) EXPECT_EQ(result, 65536) << tag;
  EXPECT_TRUE(std::equal(data.begin(), data.end(), at(kFileBytes)));
  EXPECT_EQ(perform({IoOperation::read, 0, 65536, 65536, elsewhere_.data(), 5}), 65536);
  EXPECT_TRUE(std::equal(elsewhere_.data(), elsewhere_.data() + 65536, data.data() + 65536));
}

TEST_P(IoEngineContract, ReportsShortAndEmptyReadsAtTheEndAsTheyAre) {
  ASSERT_EQ(ftruncate(file_.get(), 6000), 0);
  EXPECT_EQ(perform({IoOperation::read, 0, 0, 65536, at(0), 1}), 6000);
  EXPECT_EQ(perform({IoOperation::read, 0, 8192, 4096, at(0), 2}), 0);
}

TEST_P(IoEngineContract, ReportsErrorsAsNegativeErrno) {
  EXPECT_EQ(perform({IoOperation::write, 1, 0, 4096, at(0), 1}), -EBADF);
}

TEST_P(IoEngineContract, WaitReturnsWhenThereIsNothing) {
  std::vector<IoCompletion> completions(4);
  EXPECT_EQ(engine_->wait(completions, 0us), 0u);
  EXPECT_EQ(engine_->wait(completions, 2ms), 0u);
}

TEST_P(IoEngineContract, WakeEndsTheWaitThatRunsOrTheNext) {
  std::vector<IoCompletion> completions(4);
  for (int i = 0; i < 20; ++i) {
    std::thread waker([&, i] {
      if (i % 2) std::this_thread::sleep_for(1ms);
      engine_->wake();
    });
    EXPECT_EQ(engine_->wait(completions, 60s), 0u);  // the test's own time limit catches a lost wake-up
    waker.join();
  }
}

TEST_P(IoEngineContract, CancellingWhatIsNotThereIsHarmless) {
  engine_->cancel(12345);
  EXPECT_EQ(perform({IoOperation::read, 0, 0, 4096, at(0), 7}), 4096);
}

TEST_P(IoEngineContract, EveryRequestCompletesOnceOverManyRounds) {
  for (uint64_t round = 0; round < 60; ++round) {
    std::vector<IoRequest> requests;
    for (uint64_t i = 0; i < 16; ++i) {
      requests.push_back({i % 2 ? IoOperation::read : IoOperation::write, 0, i * 8192, 4096, at(i * 8192), (round << 32) | i});
    }
    engine_->submit(requests);
    if (round % 3 == 0) engine_->cancel((round << 32) | 15);
    for (const auto& [tag, result] : collect(16)) EXPECT_TRUE(result == 4096 || result == -ECANCELED) << tag << " " << result;
  }
}

TEST_P(IoEngineContract, EndsWithRequestsInFlight) {
  std::vector<IoRequest> requests;
  for (uint64_t i = 0; i < 16; ++i) requests.push_back({IoOperation::read, 0, i * 65536, 65536, at(i * 65536), i});
  engine_->submit(requests);
  engine_.reset();
}

TEST_P(IoEngineContract, TheFileSizeLimitGivesAShortWriteAndThenEfbig) {
  engine_.reset();
  const pid_t child = fork();
  if (child == 0) {
    signal(SIGXFSZ, SIG_IGN);
    const rlimit limit{200'704, 200'704};  // 49 * 4096
    setrlimit(RLIMIT_FSIZE, &limit);
    engine_ = make_io_engine({GetParam().kind, {file_.get()}, {}, 16});
    const bool short_write = perform({IoOperation::write, 0, 0, 1u << 20, at(0), 1}) == 200'704;
    const bool refused = perform({IoOperation::write, 0, 200'704, 4096, at(0), 2}) == -EFBIG;
    _exit(short_write && refused ? 0 : 1);
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

INSTANTIATE_TEST_SUITE_P(Engines, IoEngineContract,
                         ::testing::Values(Setting{"Threads", IoEngineKind::threads, false, false},
                                           Setting{"ThreadsDecorated", IoEngineKind::threads, false, true},
                                           Setting{"Uring", IoEngineKind::io_uring, false, false},
                                           Setting{"UringRegistered", IoEngineKind::io_uring, true, false},
                                           Setting{"UringDecorated", IoEngineKind::io_uring, true, true}),
                         [](const auto& info) { return info.param.name; });

/// Makes io_uring_setup fail as container profiles do.
bool forbid_io_uring(int error_number) {
  sock_filter filter[] = {
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, 0),  // the system call's number
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, __NR_io_uring_setup, 0, 1),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | static_cast<unsigned>(error_number)),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
  };
  sock_fprog program{4, filter};
  return prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 && prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) == 0;
}

TEST(IoEngineChoice, AForbiddenIoUringMeansThreadsAndTheReasonIsSaid) {
  for (const int error_number : {EPERM, ENOSYS}) {
    const pid_t child = fork();
    if (child == 0) {
      if (!forbid_io_uring(error_number)) _exit(77);
      const auto engine = make_io_engine({IoEngineKind::automatic, {}, {}, 4});
      const std::string text = engine->describe();
      if (text.find("threads") == std::string::npos || text.find("io_uring is not available") == std::string::npos) _exit(1);
      const auto error = testing::error_of([] { make_io_engine({IoEngineKind::io_uring, {}, {}, 4}); });
      _exit(error.code() == ErrorCode::unsupported ? 0 : 2);
    }
    int status = 0;
    ASSERT_EQ(waitpid(child, &status, 0), child);
    ASSERT_TRUE(WIFEXITED(status));
    if (WEXITSTATUS(status) == 77) GTEST_SKIP() << "seccomp is not available";
    EXPECT_EQ(WEXITSTATUS(status), 0) << error_number;
  }
}

TEST(IoEngineChoice, RefusedRegistrationOfBuffersIsSaidAndTheRestWorks) {
  const pid_t child = fork();
  if (child == 0) {
    const rlimit limit{64 << 10, 64 << 10};
    if (setrlimit(RLIMIT_MEMLOCK, &limit) != 0 || (geteuid() == 0 && setuid(65534) != 0)) _exit(77);
    AlignedBuffer memory(8u << 20);
    std::string reason;
    const auto engine = make_uring_engine({IoEngineKind::io_uring, {}, {{memory.data(), memory.bytes()}}, 4}, reason);
    if (!engine) _exit(77);
    // Kernels differ in what they charge; what counts is that nothing throws and the text tells which it was.
    const std::string text = engine->describe();
    _exit(text.find("registered buffer") != std::string::npos || text.find("buffers not registered") != std::string::npos ? 0 : 1);
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  ASSERT_TRUE(WIFEXITED(status));
  if (WEXITSTATUS(status) == 77) GTEST_SKIP() << "cannot drop privileges, or no io_uring";
  EXPECT_EQ(WEXITSTATUS(status), 0);
}

}  // namespace
}  // namespace strata::tiers
