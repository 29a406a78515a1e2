#include "core/json.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "core/file.hpp"

namespace strata {
namespace {

struct Position {
  size_t line = 1, column = 1;
};

Position position_of(std::string_view text, size_t offset) {
  const std::string_view before = text.substr(0, std::min(offset, text.size()));
  const size_t last_newline = before.rfind('\n');
  return {1 + static_cast<size_t>(std::count(before.begin(), before.end(), '\n')),
          last_newline == std::string_view::npos ? before.size() + 1 : before.size() - last_newline};
}

/// Builds the document from the events of nlohmann's parser and stops it at the first passed limit.
template <class Tree>
class GuardedBuilder final : public nlohmann::json_sax<Tree> {
 public:
  GuardedBuilder(std::string_view text, const JsonLimits& limits, std::vector<std::string>* duplicates)
      : text_(text), limits_(limits), duplicates_(duplicates) {}

  bool null() override { return add(nullptr); }
  bool boolean(bool value) override { return add(value); }
  bool number_integer(int64_t value) override { return add(value); }
  bool number_unsigned(uint64_t value) override { return add(value); }
  bool number_float(double value, const std::string&) override { return add(value); }
  bool string(std::string& value) override { return add(std::move(value)); }
  bool binary(typename Tree::binary_t&) override { return fail("binary values are not JSON"); }
  bool start_object(std::size_t) override { return open(Tree::object()); }
  bool start_array(std::size_t) override { return open(Tree::array()); }
  bool end_object() override { return close(); }
  bool end_array() override { return close(); }

  bool key(std::string& value) override {
    if (!count_value()) return false;
    Frame& frame = frames_.back();
    frame.duplicate = frame.container->contains(value);
    frame.key = std::move(value);
    if (!frame.duplicate) return true;
    if (duplicates_ == nullptr) return fail(fmt::format("duplicate key {}", printable(pointer(), 200)));
    duplicates_->push_back(pointer());
    return true;
  }

  bool parse_error(std::size_t offset, const std::string&, const nlohmann::detail::exception& reason) override {
    // The library's text begins with its own name and position; ours says the position itself.
    std::string_view what = reason.what();
    for (const std::string_view prefix : {"] ", ": "}) {
      const size_t found = what.find(prefix);
      if (found != std::string_view::npos) what.remove_prefix(found + prefix.size());
    }
    const Position at = position_of(text_, offset == 0 ? 0 : offset - 1);
    return fail(fmt::format("line {}, column {}: {}", at.line, at.column, printable(what, 200)));
  }

  const std::string& failure() const { return failure_; }
  Tree take() { return std::move(root_); }

 private:
  struct Frame {
    Tree* container;
    std::string key;
    bool duplicate = false;
  };

  bool fail(std::string reason) {
    if (failure_.empty()) failure_ = std::move(reason);
    return false;
  }

  bool count_value() {
    if (++values_ > limits_.values) return fail(fmt::format("more than {} values", limits_.values));
    return true;
  }

  /// Puts the value where the document is being built and returns its place; a duplicate goes to a place that is thrown
  /// away.
  Tree* place(Tree value) {
    if (frames_.empty()) return &(root_ = std::move(value));
    Frame& frame = frames_.back();
    if (frame.container->is_array()) {
      frame.container->push_back(std::move(value));
      return &frame.container->back();
    }
    if (frame.duplicate) {
      discarded_.push_back(std::make_unique<Tree>(std::move(value)));
      return discarded_.back().get();
    }
    return &frame.container->emplace(std::move(frame.key), std::move(value)).first.value();
  }

  bool add(Tree value) {
    if (!count_value()) return false;
    place(std::move(value));
    return true;
  }

  bool open(Tree value) {
    if (!count_value()) return false;
    if (frames_.size() >= static_cast<size_t>(limits_.depth)) {
      return fail(fmt::format("nested more than {} levels deep", limits_.depth));
    }
    // The parent's key is needed for pointers while the child is open, so it is copied, not moved, here.
    const std::string key = frames_.empty() ? std::string() : frames_.back().key;
    Tree* container = place(std::move(value));
    if (!frames_.empty()) frames_.back().key = key;
    frames_.push_back({container, {}, false});
    return true;
  }

  bool close() {
    frames_.pop_back();
    return true;
  }

  std::string pointer() const {
    std::string text;
    for (size_t i = 0; i < frames_.size(); ++i) {
      const Frame& frame = frames_[i];
      text = json_pointer(text, frame.container->is_array() ? std::to_string(frame.container->size() - 1) : frame.key);
    }
    return text;
  }

  std::string_view text_;
  const JsonLimits& limits_;
  std::vector<std::string>* duplicates_;
  Tree root_;
  std::vector<Frame> frames_;
  std::vector<std::unique_ptr<Tree>> discarded_;
  std::string failure_;
  uint64_t values_ = 0;
};

[[noreturn]] void throw_too_large(const std::string& name, ErrorCode code, uint64_t bytes, const JsonLimits& limits) {
  throw Error(code, fmt::format("the JSON text has {} bytes; at most {} are read", bytes, limits.bytes), name);
}

}  // namespace

std::string json_pointer(const std::string& parent, std::string_view key) {
  std::string text = parent + "/";
  for (const char c : key) {
    if (c == '~')
      text += "~0";
    else if (c == '/')
      text += "~1";
    else
      text += c;
  }
  return text;
}

template <class Tree>
Tree parse_json(std::string_view text, const std::string& name, ErrorCode code, const JsonLimits& limits,
                std::vector<std::string>* duplicates) {
  if (text.size() > limits.bytes) throw_too_large(name, code, text.size(), limits);
  // The parser takes a NUL for the end of the text and would not see what follows.
  if (const size_t nul = text.find('\0'); nul != std::string_view::npos) {
    const Position at = position_of(text, nul);
    throw Error(code, fmt::format("not acceptable as JSON: line {}, column {}: a NUL byte", at.line, at.column), name,
                "correct the file at that place");
  }
  GuardedBuilder<Tree> builder(text, limits, duplicates);
  const bool parsed = Tree::sax_parse(text.begin(), text.end(), &builder, Tree::input_format_t::json, /*strict=*/true,
                                      /*ignore_comments=*/limits.comments);
  if (!parsed)
    throw Error(code, "not acceptable as JSON: " + builder.failure(), name, "correct the file at that place");
  return builder.take();
}

template <class Tree>
Tree parse_json_file(const std::filesystem::path& file, ErrorCode code, const JsonLimits& limits,
                     std::vector<std::string>* duplicates) {
  const ReadOnlyFile input(file);
  if (input.size() > limits.bytes) throw_too_large(file.string(), code, input.size(), limits);
  std::string text(input.size(), '\0');
  input.read(0, text.data(), text.size());
  return parse_json<Tree>(text, file.string(), code, limits, duplicates);
}

using Duplicates = std::vector<std::string>;
template Json parse_json(std::string_view, const std::string&, ErrorCode, const JsonLimits&, Duplicates*);
template OrderedJson parse_json(std::string_view, const std::string&, ErrorCode, const JsonLimits&, Duplicates*);
template Json parse_json_file(const std::filesystem::path&, ErrorCode, const JsonLimits&, Duplicates*);
template OrderedJson parse_json_file(const std::filesystem::path&, ErrorCode, const JsonLimits&, Duplicates*);

}  // namespace strata
