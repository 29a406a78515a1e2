#include "cli/facts.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <vector>

#include "core/config.hpp"

namespace strata::cli {

namespace {

constexpr int kSchemaVersion = 1;

bool is_size(const std::string& name) { return name == "bytes" || name.ends_with("_bytes"); }

bool is_table(const Facts& value) {
  return value.is_array() && !value.empty() &&
         std::all_of(value.begin(), value.end(), [](const Facts& row) { return row.is_object(); });
}

std::string label_of(const std::string& name) {
  std::string label = name == "bytes" ? "size" : name.ends_with("_bytes") ? name.substr(0, name.size() - 6) : name;
  std::replace(label.begin(), label.end(), '_', ' ');
  return shown_text(label);
}

std::string scalar_text(const Facts& value) {
  if (value.is_null()) return "-";
  if (value.is_boolean()) return value.get<bool>() ? "yes" : "no";
  if (value.is_number_float()) return fmt::format("{:.9g}", value.get<double>());
  if (value.is_string()) return shown_text(value.get<std::string>());
  if (value.is_array()) {
    std::string text;
    for (const Facts& item : value) text += (text.empty() ? "" : ", ") + scalar_text(item);
    return text.empty() ? "none" : text;
  }
  return shown_text(value.dump(-1, ' ', false, Facts::error_handler_t::replace));
}

std::string value_text(const std::string& name, const Facts& value) {
  if (!is_size(name) || !value.is_number_unsigned()) return scalar_text(value);
  const auto bytes = value.get<uint64_t>();
  return bytes < 1024 ? fmt::format("{} bytes", bytes) : fmt::format("{} ({} bytes)", format_bytes(bytes), bytes);
}

/// As value_text, but the lines of a text stay lines, each after the first begun with `line_start`.
std::string with_lines(const std::string& name, const Facts& value, const std::string& line_start) {
  if (!value.is_string()) return value_text(name, value);
  const std::string whole = value.get<std::string>();
  std::string text;
  for (size_t begin = 0; begin <= whole.size();) {
    const size_t end = std::min(whole.find('\n', begin), whole.size());
    text += (begin == 0 ? "" : line_start) + shown_text(whole.substr(begin, end - begin));
    begin = end + 1;
  }
  return text;
}

/// A column per name of the first row; numbers to the right, text to the left.
std::string table_text(const Facts& rows, const std::string& indent) {
  struct Column {
    std::string name, head;
    bool number = true;
    size_t width = 0;
    std::vector<std::string> cells;
  };
  std::vector<Column> columns;
  for (const auto& [name, value] : rows.front().items()) {
    std::string head = name;
    std::replace(head.begin(), head.end(), '_', ' ');
    head = shown_text(head);
    columns.push_back({name, head, true, head.size(), {}});
  }
  for (Column& column : columns) {
    for (const Facts& row : rows) {
      const Facts value = row.contains(column.name) ? row[column.name] : Facts();
      column.number = column.number && (value.is_number() || value.is_null());
      column.cells.push_back(scalar_text(value));
      column.width = std::max(column.width, column.cells.back().size());
    }
  }
  std::string text;
  const auto add_line = [&](const auto& cell_of) {
    std::string line = indent;
    for (const Column& column : columns)
      line += column.number ? fmt::format("{:>{}}  ", cell_of(column), column.width)
                            : fmt::format("{:<{}}  ", cell_of(column), column.width);
    line.resize(line.find_last_not_of(' ') + 1);
    text += line + "\n";
  };
  add_line([](const Column& column) { return column.head; });
  for (size_t row = 0; row < rows.size(); ++row) add_line([row](const Column& column) { return column.cells[row]; });
  return text;
}

std::string object_text(const Facts& facts, const std::string& indent) {
  size_t width = 0;
  for (const auto& [name, value] : facts.items())
    if (!is_table(value) && !value.is_object()) width = std::max(width, label_of(name).size());
  std::string text;
  for (const auto& [name, value] : facts.items()) {
    if (value.is_object())
      text += fmt::format("{}{}\n{}", indent, label_of(name), object_text(value, indent + "  "));
    else if (is_table(value))
      text += fmt::format("{}{}\n{}", indent, label_of(name), table_text(value, indent + "  "));
    else
      text += fmt::format("{}{:<{}}  {}\n", indent, label_of(name), width,
                          with_lines(name, value, "\n" + indent + std::string(width + 2, ' ')));
  }
  return text;
}

}  // namespace

std::string facts_text(const Facts& facts) { return object_text(facts, ""); }

void print_facts(const Facts& facts, bool json) {
  if (!json) {
    fmt::print("{}", facts_text(facts));
    return;
  }
  Facts document = {{"schema_version", kSchemaVersion}};
  document.update(facts);
  // Names of files need not be UTF-8.
  fmt::print("{}\n", shown_json(document.dump(2, ' ', false, Facts::error_handler_t::replace)));
}

}  // namespace strata::cli
