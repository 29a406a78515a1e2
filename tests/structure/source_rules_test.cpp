// The rules of the tree: folders include downwards only, headers say what they are for, no machine's own paths are committed.
// Each rule is also shown to fail on a tree that breaks it.
#include <gtest/gtest.h>
#include <stdlib.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <functional>
#include <map>
#include <memory>
#include <regex>
#include <set>
#include <string>
#include <vector>

#include "tests/support/files.hpp"
#include "tests/support/scratch_directory.hpp"

namespace {

namespace fs = std::filesystem;

/// What a folder may include: whole folders ("core/") or single headers ("gpu/device.hpp"). Folders that are not here may include
/// anything.
const std::map<std::string, std::vector<std::string>>& allowed_includes() {
  static const std::map<std::string, std::vector<std::string>> allowed = {
      {"core", {"core/"}},
      {"cpu_adam", {"core/", "cpu_adam/"}},
      {"gpu", {"core/", "cpu_adam/", "gpu/"}},
      {"tiers", {"core/", "gpu/device.hpp", "tiers/"}},
      {"scheduler", {"core/", "cpu_adam/", "gpu/", "tiers/", "scheduler/"}},
      {"cli", {"core/", "cpu_adam/", "gpu/", "tiers/", "scheduler/", "cli/"}},
  };
  return allowed;
}

bool starts_with(const std::string& text, const std::string& beginning) { return text.rfind(beginning, 0) == 0; }

bool has_extension(const std::string& file, std::initializer_list<const char*> extensions) {
  return std::find(extensions.begin(), extensions.end(), fs::path(file).extension()) != extensions.end();
}
bool is_header(const std::string& file) { return has_extension(file, {".hpp", ".h", ".cuh"}); }
bool is_source(const std::string& file) { return is_header(file) || has_extension(file, {".cpp", ".cc", ".cu"}); }

/// A tree's files, by their paths from its root.
struct Tree {
  fs::path root;
  std::vector<std::string> files;
  std::string text(const std::string& file) const { return strata::read_file(root / file); }
};

/// Every file but those of hidden and build folders.
Tree walk(const fs::path& root) {
  Tree tree{root, {}};
  for (auto at = fs::recursive_directory_iterator(root); at != fs::recursive_directory_iterator(); ++at) {
    const std::string name = at->path().filename().string();
    if (at->is_directory() && (name == "build" || starts_with(name, "build-") || name == ".git" || name == ".venv" || name == "runs"))
      at.disable_recursion_pending();
    else if (at->is_regular_file())
      tree.files.push_back(at->path().lexically_relative(root).generic_string());
  }
  std::sort(tree.files.begin(), tree.files.end());
  return tree;
}

/// The files that git tracks; every file where there is no git or no repository (an unpacked archive).
Tree tracked(const fs::path& root) {
  Tree tree{root, {}};
  const std::string command = "git -C '" + root.string() + "' ls-files -z 2>/dev/null";
  const std::unique_ptr<FILE, int (*)(FILE*)> pipe(popen(command.c_str(), "r"), pclose);
  std::string names;
  std::array<char, 4096> buffer;
  for (size_t got; pipe && (got = std::fread(buffer.data(), 1, buffer.size(), pipe.get())) > 0;) names.append(buffer.data(), got);
  for (size_t begin = 0, end; (end = names.find('\0', begin)) != std::string::npos; begin = end + 1)
    if (fs::is_regular_file(root / names.substr(begin, end - begin))) tree.files.push_back(names.substr(begin, end - begin));
  return tree.files.empty() ? walk(root) : tree;
}

using Defects = std::vector<std::string>;

std::string folder_of(const std::string& file) { return file.substr(0, file.find('/')); }

void for_quoted_includes(const Tree& tree, const std::function<void(const std::string& file, const std::string& included)>& visit) {
  static const std::regex pattern(R"re((?:^|\n)[ \t]*#[ \t]*include[ \t]*"([^"\n]+)")re");
  for (const auto& file : tree.files) {
    if (!is_source(file)) continue;
    const std::string text = tree.text(file);
    for (auto at = std::sregex_iterator(text.begin(), text.end(), pattern); at != std::sregex_iterator(); ++at)
      visit(file, (*at)[1]);
  }
}

Defects upward_includes(const Tree& tree) {
  Defects defects;
  for_quoted_includes(tree, [&](const std::string& file, const std::string& included) {
    const auto rule = allowed_includes().find(folder_of(file));
    if (rule == allowed_includes().end() || file.find('/') == std::string::npos) return;
    const bool allowed = std::any_of(rule->second.begin(), rule->second.end(), [&](const std::string& beginning) {
      return beginning.back() == '/' ? starts_with(included, beginning) : included == beginning;
    });
    if (!allowed) defects.push_back(file + " includes \"" + included + "\", which " + rule->first + "/ may not");
  });
  return defects;
}

Defects circles(const Tree& tree) {
  std::map<std::string, std::map<std::string, std::string>> includes;  // folder -> folder -> an example
  for_quoted_includes(tree, [&](const std::string& file, const std::string& included) {
    const std::string from = folder_of(file), to = folder_of(included);
    if (from != to && included.find('/') != std::string::npos) includes[from].emplace(to, file);
  });
  Defects defects;
  std::set<std::string> done;
  std::vector<std::string> path;
  const std::function<void(const std::string&)> follow = [&](const std::string& folder) {
    if (const auto seen = std::find(path.begin(), path.end(), folder); seen != path.end()) {
      std::string circle;
      for (auto at = seen; at != path.end(); ++at) {
        const std::string& next = at + 1 == path.end() ? folder : *(at + 1);
        circle += *at + " -> " + next + " (" + includes[*at][next] + ") ";
      }
      defects.push_back("folders in a circle: " + circle);
      return;
    }
    if (done.count(folder)) return;
    path.push_back(folder);
    for (const auto& [next, example] : std::map(includes[folder])) follow(next);
    path.pop_back();
    done.insert(folder);
  };
  for (const auto& [folder, targets] : std::map(includes)) follow(folder);
  return defects;
}

Defects unexplained_headers(const Tree& tree) {
  Defects defects;
  for (const auto& file : tree.files) {
    if (!is_header(file)) continue;
    const std::string text = tree.text(file);
    const auto guard = text.find("#pragma once");
    // What Highway compiles once for each instruction set has to be included again and again.
    const bool included_again = text.find("HWY_TARGET_TOGGLE") != std::string::npos || text.find("HWY_TARGET_INCLUDE") != std::string::npos;
    if (guard == std::string::npos && !included_again)
      defects.push_back(file + " has no #pragma once");
    if (!starts_with(text, "// ") || text.find('\n') < 20 || (guard != std::string::npos && guard < text.find('\n')))
      defects.push_back(file + " does not begin with a comment that says what it is for");
  }
  return defects;
}

Defects long_sources(const Tree& tree) {
  Defects defects;
  for (const auto& file : tree.files) {
    if (!is_source(file)) continue;
    const std::string text = tree.text(file);
    const auto lines = std::count(text.begin(), text.end(), '\n');
    if (lines > 600) defects.push_back(file + " has " + std::to_string(lines) + " lines: two ideas?");
  }
  return defects;
}

/// Paths that exist on one machine only: the tree's own place, and home directories.
Defects machine_paths(const Tree& tree, const fs::path& place, const std::string& home) {
  std::vector<std::string> literals;
  if (std::distance(place.begin(), place.end()) > 2) literals.push_back(place.string());
  if (home.size() > 1) literals.push_back(home + "/");
  // In pieces, so that this file keeps its own rule.
  static const std::regex homes(std::string("(^|[^A-Za-z0-9_.~/-])/(ho") + "me|Us" + "ers)/[A-Za-z0-9_.-]+/|(^|[^A-Za-z0-9_.~/-])/ro" + "ot/");
  Defects defects;
  for (const auto& file : tree.files) {
    std::ifstream in(tree.root / file, std::ios::binary);
    int number = 0;
    for (std::string line; std::getline(in, line);) {
      ++number;
      if (line.size() > 100'000 || line.find('/') == std::string::npos) continue;
      const bool has_literal =
          std::any_of(literals.begin(), literals.end(), [&](const auto& path) { return line.find(path) != std::string::npos; });
      if (has_literal || std::regex_search(line, homes))
        defects.push_back(file + ":" + std::to_string(number) + " names a path of one machine: " + line.substr(0, 160));
    }
  }
  return defects;
}

std::string joined(const Defects& defects) {
  std::string text;
  for (const auto& defect : defects) text += "\n  " + defect;
  return text;
}

const Tree& this_tree() {
  static const Tree tree = tracked(STRATA_SOURCE_DIR);
  return tree;
}

std::string home_directory() {
  const char* home = getenv("HOME");
  return home ? home : "";
}

TEST(SourceRules, TheTreeIsFound) {
  EXPECT_GE(this_tree().files.size(), 10u);
  EXPECT_NE(std::find(this_tree().files.begin(), this_tree().files.end(), "core/error.hpp"), this_tree().files.end());
}

TEST(SourceRules, FoldersIncludeDownwardsOnly) {
  const Defects defects = upward_includes(this_tree());
  EXPECT_TRUE(defects.empty()) << joined(defects);
}

TEST(SourceRules, NoFoldersIncludeEachOtherInACircle) {
  const Defects defects = circles(this_tree());
  EXPECT_TRUE(defects.empty()) << joined(defects);
}

TEST(SourceRules, HeadersAreIncludedOnceAndSayWhatTheyAreFor) {
  const Defects defects = unexplained_headers(this_tree());
  EXPECT_TRUE(defects.empty()) << joined(defects);
}

TEST(SourceRules, NoTrackedFileNamesAPathOfThisMachine) {
  const Defects defects = machine_paths(this_tree(), STRATA_SOURCE_DIR, home_directory());
  EXPECT_TRUE(defects.empty()) << joined(defects);
}

TEST(SourceRules, LongSourceFilesAreNamed) {
  for (const auto& defect : long_sources(this_tree())) std::printf("warning: %s\n", defect.c_str());
}

/// A tree of given files in a temporary folder.
class SourceRulesOnABrokenTree : public testing::Test {
 protected:
  void write(const std::string& file, const std::string& text) const {
    fs::create_directories((root_ / file).parent_path());
    std::ofstream(root_ / file) << text;
  }
  void expect_defect(const Defects& defects, const std::string& file) const {
    EXPECT_EQ(defects.size(), 1u) << joined(defects);
    EXPECT_NE(joined(defects).find(file), std::string::npos) << joined(defects);
  }
  const std::string good_header_ = "// What this header is for, in a line.\n#pragma once\n";
  const strata::ScratchDirectory directory_;
  const fs::path root_ = directory_.path();
};

TEST_F(SourceRulesOnABrokenTree, AnUpwardIncludeIsFound) {
  write("core/a.hpp", good_header_ + "#include \"core/error.hpp\"\n#include <tiers/x.hpp>\n// #include \"cli/main.hpp\"\n");
  EXPECT_TRUE(upward_includes(walk(root_)).empty());
  write("core/deep/b.cpp", "#include <vector>\n  #  include \"tiers/store.hpp\"\n");
  expect_defect(upward_includes(walk(root_)), "core/deep/b.cpp");
}

TEST_F(SourceRulesOnABrokenTree, EveryFolderHasItsOwnLimits) {
  const auto count = [&](const std::string& file, const std::string& included) {
    write(file, "#include \"" + included + "\"\n");
    const size_t defects = upward_includes(walk(root_)).size();
    fs::remove(root_ / file);
    return defects;
  };
  EXPECT_EQ(count("tiers/a.cpp", "gpu/device.hpp"), 0u);
  EXPECT_EQ(count("tiers/a.cpp", "gpu/engine.hpp"), 1u);
  EXPECT_EQ(count("tiers/a.cpp", "cpu_adam/adam.hpp"), 1u);
  EXPECT_EQ(count("gpu/host/a.cpp", "cpu_adam/adam.hpp"), 0u);
  EXPECT_EQ(count("gpu/host/a.cpp", "tiers/store.hpp"), 1u);
  EXPECT_EQ(count("cpu_adam/a.cpp", "gpu/device.hpp"), 1u);
  EXPECT_EQ(count("scheduler/a.cpp", "tiers/store.hpp"), 0u);
  EXPECT_EQ(count("scheduler/a.cpp", "cli/main.hpp"), 1u);
  EXPECT_EQ(count("scheduler/a.cpp", "neighbour.hpp"), 1u);  // includes are from the root
  EXPECT_EQ(count("scheduler/a.cpp", "../core/error.hpp"), 1u);
  EXPECT_EQ(count("core/a.cpp", "tests/core/helper.hpp"), 1u);
  EXPECT_EQ(count("cli/a.cpp", "scheduler/trainer.hpp"), 0u);
  EXPECT_EQ(count("tests/core/a.cpp", "scheduler/trainer.hpp"), 0u);
  EXPECT_EQ(count("bench/a.cpp", "gpu/engine.hpp"), 0u);
}

TEST_F(SourceRulesOnABrokenTree, ACircleOfFoldersIsFound) {
  write("core/a.cpp", "#include \"gpu/b.hpp\"\n");
  write("gpu/b.hpp", good_header_ + "#include \"tiers/c.hpp\"\n");
  EXPECT_TRUE(circles(walk(root_)).empty());
  write("tiers/c.hpp", good_header_ + "#include \"core/d.hpp\"\n");
  expect_defect(circles(walk(root_)), "tiers/c.hpp");
}

TEST_F(SourceRulesOnABrokenTree, AHeaderWithoutGuardOrPurposeIsFound) {
  write("core/good.hpp", good_header_);
  write("core/source.cpp", "int x;\n");
  EXPECT_TRUE(unexplained_headers(walk(root_)).empty());
  write("core/bare.hpp", "// What this header is for, in a line.\nint x;\n");
  expect_defect(unexplained_headers(walk(root_)), "core/bare.hpp has no #pragma once");
  fs::remove(root_ / "core/bare.hpp");
  write("core/mute.hpp", "#pragma once\n// What this header is for, but too late.\n");
  expect_defect(unexplained_headers(walk(root_)), "core/mute.hpp does not begin");
}

TEST_F(SourceRulesOnABrokenTree, ALongSourceIsFound) {
  std::string text;
  for (int i = 0; i < 600; ++i) text += "\n";
  write("core/a.cpp", text);
  EXPECT_TRUE(long_sources(walk(root_)).empty());
  write("core/a.cpp", text + "\n");
  expect_defect(long_sources(walk(root_)), "core/a.cpp");
}

TEST_F(SourceRulesOnABrokenTree, APathOfOneMachineIsFound) {
  const std::string place = "/some/where/tree", home = "/data/people/ann";
  write("docs/good.md", "see /usr/include, /tmp/x, DIR/home/x, https://x.org/home/y/, /some/where/else and /data/people/bob/x\n");
  EXPECT_TRUE(machine_paths(walk(root_), place, home).empty());
  for (const std::string& line : {"cd " + place + "/build", "\"" + home + "/x\"", std::string("open /ho") + "me/ann/model",
                                  std::string("x=/ro") + "ot/.cache", std::string("/Us") + "ers/ann/x"}) {
    write("scripts/bad.sh", "one\n" + line + "\n");
    expect_defect(machine_paths(walk(root_), place, home), "scripts/bad.sh:2");
  }
}

TEST_F(SourceRulesOnABrokenTree, BuildFoldersAreNotLookedAt) {
  write("build/core/a.hpp", "x\n");
  write("build-asan/core/a.hpp", "x\n");
  EXPECT_TRUE(walk(root_).files.empty());
}

}  // namespace
