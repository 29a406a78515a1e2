// The `strata` program: parses the command line, runs one command, and turns errors into exit statuses (0 ok, 1 failed, 2 bad usage or
// configuration).
#include <fmt/format.h>

#include <csignal>
#include <cstdio>
#include <exception>
#include <new>

#include "cli/commands.hpp"
#include "core/error.hpp"
#include "core/topology.hpp"

namespace {

constexpr int kFailed = 1;
constexpr int kBadUsage = 2;

int exit_status(const strata::Error& error) {
  switch (error.code()) {
    case strata::ErrorCode::invalid_configuration:
    case strata::ErrorCode::unsupported: return kBadUsage;
    default: return kFailed;
  }
}

}  // namespace

int main(int argc, char** argv) {
  // libgomp may have bound this thread to one processor before main, and every later thread would inherit that.
  strata::undo_openmp_binding();
  // A file that passes the size limit is then an error with a name and a place, instead of the end of the process.
  std::signal(SIGXFSZ, SIG_IGN);
  CLI::App app("Strata trains transformers whose training state is larger than GPU memory.", "strata");
  app.require_subcommand(1);
  app.set_version_flag("--version", "strata 0.1.0");
  strata::cli::add_train(app);
  strata::cli::add_plan(app);
  strata::cli::add_init(app);
  strata::cli::add_inspect(app);
  strata::cli::add_verify(app);
  strata::cli::add_export(app);
  strata::cli::add_doctor(app);
  try {
    app.parse(argc, argv);
    return 0;
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? 0 : kBadUsage;
  } catch (const strata::cli::CommandFailed&) {
    return kFailed;
  } catch (const strata::Error& error) {
    fmt::print(stderr, "strata: {}\n", error.what());
    return exit_status(error);
  } catch (const std::bad_alloc&) {
    fmt::print(stderr, "strata: out of memory\n  try: lower device.memory and tiers.host.memory\n");
    return kFailed;
  } catch (const std::exception& error) {
    fmt::print(stderr, "strata: {}\n", error.what());
    return kFailed;
  }
}
