#include <fmt/format.h>

#include <algorithm>
#include <memory>

#include "cli/commands.hpp"
#include "cli/facts.hpp"
#include "cli/health.hpp"

namespace strata::cli {

namespace {

struct DoctorArguments {
  std::vector<std::string> directories;
  bool json = false;
};

const char* word_of(Health health) {
  return health == Health::ok ? "ok" : health == Health::note ? "note" : "missing";
}

Facts rows_of(const std::vector<Check>& checks) {
  Facts rows = Facts::array();
  for (const Check& check : checks)
    rows.push_back({{"check", check.name},
                    {"health", word_of(check.health)},
                    {"finding", check.finding},
                    {"remedy", check.remedy.empty() ? Facts(nullptr) : Facts(check.remedy)}});
  return rows;
}

void print_text(const std::string& title, const std::vector<Check>& checks) {
  size_t width = 0;
  for (const Check& check : checks) width = std::max(width, check.name.size());
  fmt::print("{}\n", shown_text(title));
  for (const Check& check : checks) {
    fmt::print("  {:7}  {:{}}  {}\n", word_of(check.health), check.name, width, shown_text(check.finding));
    if (!check.remedy.empty()) fmt::print("  {:7}  {:{}}  try: {}\n", "", "", width, shown_text(check.remedy));
  }
}

void run(const DoctorArguments& arguments) {
  std::vector<std::pair<std::string, std::vector<Check>>> parts = {{"machine", check_machine()}};
  std::vector<std::string> directories = arguments.directories;
  if (directories.empty()) directories = {"."};
  for (const std::string& directory : directories) {
    parts.emplace_back("directory " + directory, check_directory(directory));
    // Nobody asked for the current directory to be fit for anything.
    if (arguments.directories.empty())
      for (Check& check : parts.back().second)
        if (check.health == Health::missing) check.health = Health::note;
  }
  size_t notes = 0, missing = 0;
  Facts facts = Facts::object();
  for (size_t i = 0; i < parts.size(); ++i) {
    for (const Check& check : parts[i].second) {
      notes += check.health == Health::note;
      missing += check.health == Health::missing;
    }
    if (i == 0) facts["machine"] = rows_of(parts[i].second);
    else facts["directories"].push_back({{"directory", directories[i - 1]}, {"checks", rows_of(parts[i].second)}});
    if (!arguments.json) print_text(parts[i].first, parts[i].second);
  }
  facts["notes"] = notes;
  facts["missing"] = missing;
  if (arguments.json) print_facts(facts, true);
  else if (missing > 0) fmt::print("{} missing, {} to note\n", missing, notes);
  else fmt::print("nothing that is required is missing; {} to note\n", notes);
  if (missing > 0) throw CommandFailed{};
}

}  // namespace

void add_doctor(CLI::App& app) {
  auto arguments = std::make_shared<DoctorArguments>();
  CLI::App* command = app.add_subcommand("doctor", "Tell what this machine offers, each ok or the reason and the fix");
  command->add_option("--dir", arguments->directories, "A directory meant for the NVMe tier (repeatable; by default the current one)")
      ->allow_extra_args(false)->take_all();
  command->add_flag("--json", arguments->json, "Print JSON");
  command->callback([arguments] { run(*arguments); });
}

}  // namespace strata::cli
