#include "core/file.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <fstream>
#include <string>
#include <vector>

#include "core/error.hpp"
#include "tests/support/scratch_directory.hpp"

namespace strata {
namespace {

using ::testing::HasSubstr;

TEST(ReadOnlyFile, ReadsWhatIsThereAndRefusesWhatIsNot) {
  const ScratchDirectory directory;
  std::ofstream(directory / "f") << "0123456789";
  const ReadOnlyFile file(directory / "f");
  EXPECT_EQ(file.size(), 10u);
  char buffer[4] = {};
  file.read(3, buffer, 4);
  EXPECT_EQ(std::string(buffer, 4), "3456");
  file.read(10, buffer, 0);
  try {
    file.read(8, buffer, 4);
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::invalid_data);
    EXPECT_THAT(error.what(), HasSubstr("ends at offset 10 where 2 more bytes"));
  }
}

TEST(ReadOnlyFile, AFileThatIsNotThereIsRefusedWithWhatToTry) {
  const ScratchDirectory directory;
  std::ofstream(directory / "f") << "x";
  for (const auto& path : {directory / "absent", directory / "f/below"}) {
    try {
      const ReadOnlyFile file(path);
      FAIL();
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::io);
      EXPECT_EQ(error.where(), path.string());
      EXPECT_THAT(error.remedy(), HasSubstr("check the path"));
    }
  }
}

TEST(ReadOnlyFile, ALinkThatLeadsNowhereIsNotCalledMissing) {
  const ScratchDirectory directory;
  std::filesystem::create_symlink("../blobs/0123", directory / "link");
  std::filesystem::create_symlink(directory / "absent", directory / "folder");
  for (const auto& path : {directory / "link", directory / "folder/f"}) {
    try {
      const ReadOnlyFile file(path);
      FAIL();
    } catch (const Error& error) {
      EXPECT_THAT(error.message(), HasSubstr(path == directory / "link" ? "link is a symbolic link to ../blobs/0123, which is not there"
                                                                        : "folder is a symbolic link to "));
    }
  }
  EXPECT_TRUE(is_named(directory / "link"));
  EXPECT_FALSE(is_named(directory / "absent"));
  EXPECT_FALSE(is_named(directory / "absent/f"));
}

TEST(ReadOnlyFile, ALackOfDescriptorsIsNotAMatterOfPermissions) {
  const ScratchDirectory directory;
  std::ofstream(directory / "f") << "x";
  rlimit before{};
  ASSERT_EQ(::getrlimit(RLIMIT_NOFILE, &before), 0);
  const rlimit none{0, before.rlim_max};
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &none), 0);
  std::string said;
  try {
    const ReadOnlyFile file(directory / "f");
  } catch (const Error& error) {
    said = error.what();
  }
  ::setrlimit(RLIMIT_NOFILE, &before);
  EXPECT_THAT(said, HasSubstr("Too many open files"));
  EXPECT_THAT(said, HasSubstr("ulimit -n"));
  EXPECT_THAT(said, ::testing::Not(HasSubstr("permission")));
}

TEST(FileErrors, AnErrorOfTheStandardLibraryBecomesOneOfOurs) {
  const ScratchDirectory directory;
  try {
    std::filesystem::copy_file(directory / "absent", directory / "to");
    FAIL();
  } catch (const std::filesystem::filesystem_error& thrown) {
    const Error error = to_error(thrown);
    EXPECT_EQ(error.code(), ErrorCode::io);
    EXPECT_EQ(error.message(), "cannot copy file: there is no such file or directory");
    EXPECT_THAT(error.where(), HasSubstr((directory / "absent").string() + " and "));
    EXPECT_THAT(error.remedy(), HasSubstr("check the path"));
    EXPECT_THAT(error.what(), ::testing::Not(HasSubstr("filesystem error")));
  }
  const std::filesystem::filesystem_error full("cannot copy file", "/a", std::error_code(ENOSPC, std::generic_category()));
  EXPECT_EQ(to_error(full).code(), ErrorCode::resource_exhausted);
  EXPECT_EQ(to_error(full).message(), "cannot copy file: No space left on device");
  const std::filesystem::filesystem_error many("directory iterator cannot open directory", "/a",
                                               std::error_code(EMFILE, std::system_category()));
  EXPECT_THAT(to_error(many).remedy(), HasSubstr("ulimit -n"));
}

TEST(ReadOnlyFile, OnlyRegularFilesAreOpened) {
  const ScratchDirectory directory;
  EXPECT_THROW(ReadOnlyFile(directory / "absent"), Error);
  EXPECT_THROW(ReadOnlyFile(directory.path()), Error);
  ASSERT_EQ(::mkfifo((directory / "fifo").c_str(), 0600), 0);
  EXPECT_THROW(ReadOnlyFile(directory / "fifo"), Error) << "and it does not hang";
}

TEST(AtomicFile, ReplacesTheOldFileOnlyWhenItIsComplete) {
  const ScratchDirectory directory;
  std::ofstream(directory / "f") << "old";
  const auto contents = [&] {
    std::ifstream in(directory / "f");
    return std::string(std::istreambuf_iterator<char>(in), {});
  };
  {
    AtomicFile file(directory / "f");
    file.write(0, "new", 3);
    EXPECT_EQ(contents(), "old");
  }
  EXPECT_EQ(contents(), "old");
  AtomicFile file(directory / "f");
  file.write(2, "w!", 2);
  file.write(0, "ne", 2);
  file.finish();
  EXPECT_EQ(contents(), "new!");
  EXPECT_THROW(file.finish(), Error);
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(directory.path()), {}), 1);
  EXPECT_THROW(AtomicFile(directory / "absent/f"), Error);
}

// In a child process, since the limit cannot be raised again by everybody.
TEST(AtomicFile, AFullDiskIsResourceExhaustedAndNamesTheFile) {
  const ScratchDirectory directory;
  const pid_t child = ::fork();
  if (child == 0) {
    ::signal(SIGXFSZ, SIG_IGN);
    const struct rlimit limit = {10'000, 10'000};
    if (::setrlimit(RLIMIT_FSIZE, &limit) != 0) ::_exit(3);
    int found = 0;
    const std::vector<char> data(20'000);
    try {
      AtomicFile file(directory / "f");
      file.write(0, data.data(), data.size());
    } catch (const Error& error) {
      if (error.code() == ErrorCode::resource_exhausted && error.where() == (directory / "f").string()) ++found;
    }
    try {
      AtomicFile file(directory / "g");
      file.preallocate(20'000);
    } catch (const Error& error) {
      if (error.code() == ErrorCode::resource_exhausted) ++found;
    }
    ::_exit(found == 2 && std::filesystem::is_empty(directory.path()) ? 0 : 1);
  }
  ASSERT_GT(child, 0);
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  ASSERT_TRUE(WIFEXITED(status));
  if (WEXITSTATUS(status) == 3) GTEST_SKIP() << "the file size limit cannot be set here";
  EXPECT_EQ(WEXITSTATUS(status), 0);
}

}  // namespace
}  // namespace strata
