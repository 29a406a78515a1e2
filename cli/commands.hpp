// The commands of the `strata` program: each adds itself to the command line and runs when it was named.
#pragma once

#include <CLI/CLI.hpp>
#include <string>
#include <vector>

namespace strata::cli {

/// Adds the subcommand with its options and help. Its callback throws strata::Error, which main turns into an exit status, or
/// CommandFailed or CommandEnded.
void add_train(CLI::App& app);
void add_plan(CLI::App& app);
void add_init(CLI::App& app);
void add_inspect(CLI::App& app);
void add_verify(CLI::App& app);
void add_export(CLI::App& app);
void add_eval(CLI::App& app);
void add_doctor(CLI::App& app);

/// --store OLD=NEW, repeatable: where a directory of a store is now that was moved. For scheduler::parse_store_moves().
void add_store_option(CLI::App& command, std::vector<std::string>& texts);

/// The command ran and its answer is "no" (something is broken); what is wrong has been printed. Exit status 1.
struct CommandFailed {};

/// The command did its work and its exit status says how it ended.
struct CommandEnded {
  int status = 0;
};

}  // namespace strata::cli
