// The `strata` program: parses the command line, runs one command, and turns errors into exit statuses (0 ok, 1 failed, 2 bad usage or
// configuration, 3 a training run that was ended before its last step).
#include <fcntl.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <exception>
#include <filesystem>
#include <new>
#include <sstream>

#include "cli/commands.hpp"
#include "cli/console.hpp"
#include "cli/facts.hpp"
#include "cli/interrupt.hpp"
#include "core/error.hpp"
#include "core/file.hpp"
#include "core/json_fields.hpp"
#include "core/thread.hpp"
#include "core/topology.hpp"

namespace {

constexpr int kFailed = 1;
constexpr int kBadUsage = 2;
constexpr int kStopped = 3;  // by a signal, before the work was done

int exit_status(const strata::Error& error) {
  switch (error.code()) {
    case strata::ErrorCode::invalid_configuration:
    case strata::ErrorCode::unsupported: return kBadUsage;
    case strata::ErrorCode::cancelled: return kStopped;
    default: return kFailed;
  }
}

/// A file opened later must not get the number of a standard stream that the caller closed, and narration with it. A closed stdout
/// still fails when it is written: its stand-in is open for reading.
void open_missing_standard_streams() {
  for (const int descriptor : {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO})
    if (fcntl(descriptor, F_GETFD) < 0 && errno == EBADF)
      static_cast<void>(open("/dev/null", descriptor == STDOUT_FILENO ? O_RDONLY : O_WRONLY));
}

std::string text_of(const strata::Error& error) {
  std::string text = strata::shown_lines(error.message());
  if (!error.where().empty()) text += "\n  where: " + strata::shown_text(error.where());
  if (!error.remedy().empty()) text += "\n  try: " + strata::shown_lines(error.remedy());
  return text;
}

void refuse_unknown_command(CLI::App& app, const std::string& word) {
  std::vector<std::string> commands;
  for (const CLI::App* command : app.get_subcommands({})) commands.push_back(command->get_name());
  if (word.starts_with("-") || std::find(commands.begin(), commands.end(), word) != commands.end()) return;
  const std::string near = strata::nearest_word(word, commands);
  throw strata::Error(
      strata::ErrorCode::invalid_configuration,
      fmt::format("there is no command \"{}\"{}", word, near.empty() ? "" : fmt::format("; did you mean \"{}\"?", near)), {},
      fmt::format("{}; strata --help tells what each does", fmt::join(commands, ", ")));
}

int run(int argc, char** argv) {
  CLI::App app("Strata trains transformers whose training state is larger than GPU memory.", "strata");
  app.require_subcommand(1);
  app.set_version_flag("--version", "strata 0.1.0");
  strata::cli::add_train(app);
  strata::cli::add_plan(app);
  strata::cli::add_init(app);
  strata::cli::add_inspect(app);
  strata::cli::add_verify(app);
  strata::cli::add_export(app);
  strata::cli::add_eval(app);
  strata::cli::add_doctor(app);
  try {
    if (argc > 1) refuse_unknown_command(app, argv[1]);
    app.parse(argc, argv);
    return 0;
  } catch (const CLI::ParseError& error) {
    std::ostringstream out, err;
    const int status = app.exit(error, out, err);
    fmt::print("{}", out.str());
    strata::cli::complain(strata::shown_lines(err.str()));  // it repeats what was given
    return status == 0 ? 0 : kBadUsage;
  } catch (const strata::cli::CommandFailed&) {
    return kFailed;
  } catch (const strata::cli::CommandEnded& end) {
    return end.status;
  } catch (const strata::Error& error) {
    strata::cli::complain(fmt::format("strata: {}\n", text_of(error)));
    return exit_status(error);
  } catch (const strata::cli::Interrupted& interrupted) {
    strata::cli::complain(fmt::format("strata: stopped ({})\n", strsignal(interrupted.signal_number)));
    std::signal(interrupted.signal_number, SIG_DFL);
    std::raise(interrupted.signal_number);
    return kFailed;
  } catch (const std::filesystem::filesystem_error& error) {
    strata::cli::complain(fmt::format("strata: {}\n", text_of(strata::to_error(error))));
    return kFailed;
  } catch (const std::bad_alloc&) {
    strata::cli::complain("strata: out of memory\n  try: lower device.memory and tiers.host.memory\n");
    return kFailed;
  } catch (const std::exception& error) {
    strata::cli::complain(fmt::format("strata: {}\n", strata::shown_lines(error.what())));
    return kFailed;
  }
}

}  // namespace

int main(int argc, char** argv) {
  open_missing_standard_streams();
  strata::preload_thread_support();
  // libgomp may have bound this thread to one processor before main, and every later thread would inherit that.
  strata::undo_openmp_binding();
  // A file that passes the size limit is then an error with a name and a place, instead of the end of the process; so is a pipe that
  // nobody reads any more.
  std::signal(SIGXFSZ, SIG_IGN);
  std::signal(SIGPIPE, SIG_IGN);
  const int status = run(argc, argv);
  if (std::fflush(stdout) == 0 && std::ferror(stdout) == 0) return status;
  strata::cli::complain("strata: cannot write all of the output\n  where: standard output\n  try: make room where it goes\n");
  return status == 0 ? kFailed : status;
}
