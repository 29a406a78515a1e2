#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "core/config_keys.hpp"

namespace strata {
namespace {

/// A configuration in which every list has an item, so that each key has a default to show.
Config defaults() {
  Config config;
  config.tiers.nvme.emplace_back();
  return config;
}

std::string default_of(const ConfigKey& row) {
  if (!row.required.empty()) return "required";
  if (row.pointer == "/tiers/nvme") return "`[]`";
  return fmt::format("`{}`", row.write(defaults(), 0).dump());
}

/// "/tiers/nvme/*/path" -> "tiers.nvme.0.path", as --set writes it.
std::string dotted(const std::string& pointer) {
  std::string text = pointer.substr(1);
  for (char& c : text) c = c == '/' ? '.' : c == '*' ? '0' : c;
  return text;
}

std::string section_of(const std::string& pointer) {
  const size_t end = pointer.find('/', 1);
  return end == std::string::npos ? "" : pointer.substr(1, end - 1);
}

constexpr const char* kIntroduction = R"(# Configuration

Made from the parser's own table by `strata train --keys`; a test compares them.

A configuration is a JSON file in which comments are allowed: `// to the end of the line` and `/* between */`. `strata train --example`
prints one with every key; after its two paths are edited, it runs. Only `model.path` and `data.train` have no default. Relative paths
start at the current directory. A size is a number of bytes or a text such as `"8GiB"` or `"1.5GB"` (GiB is 2^30, GB is 10^9). On the
command line, `--set KEY=VALUE` sets any key of this page, as in `--set optimizer.lr=1e-4` or `--set tiers.nvme.0.path=DIR`. Every
unknown, duplicate or mistaken key is listed at once, and nothing is started.

[tuning.md](tuning.md) says which key to turn when, [data.md](data.md) how token files are made, [formats.md](formats.md) what the files
are.

**Learning rate.** With w = `lr_schedule.warmup_steps`, T = `steps`, peak = `optimizer.lr` and floor = `lr_schedule.min_lr`, step s (from 0)
has the rate

- s < w: peak (s + 1) / w, or peak s / w with `"warmup": "huggingface"`;
- after it, with p = (s - w) / (T - w): peak (constant), floor + (peak - floor) (1 - p) (linear), or
  floor + (peak - floor) (1 + cos(pi p)) / 2 (cosine).

With `"warmup": "huggingface"` and `min_lr` 0 these are the rates of `get_constant_schedule_with_warmup`,
`get_linear_schedule_with_warmup` and `get_cosine_schedule_with_warmup` of transformers. The default's first step already trains.

**Weight decay.** `"decay": "all"` decays every tensor, norm gains and biases included, as `torch.optim.AdamW(model.parameters())` does.
`"matrices"` is the usual recipe of two parameter groups: tensors of two or more dimensions decay (the weights of linear layers, token and
position embeddings, an output head of its own); tensors of one dimension (norm gains and biases) do not.

**Evaluation.** The loss over `data.eval` is the mean over every token that counts, each once: windows of `data.sequence_length` in file
order, the last, shorter one of each file included. The first token of a file is not predicted, masked ones do not count, and the order of
samples has no part in it. Losses are summed in double in file order: seed and gradient accumulation change no bit of it, the micro-batch
size only what the shapes of its matrix products round differently (below 1e-6 of the loss). `strata eval` gives the same number alone.
)";

/// The text as comment lines of at most 100 columns.
std::string comment(const std::string& text, const std::string& indent) {
  std::string lines, line;
  for (size_t begin = 0; begin < text.size();) {
    const size_t end = std::min(text.find(' ', begin), text.size());
    const std::string word = text.substr(begin, end - begin);
    if (!line.empty() && indent.size() + 4 + line.size() + word.size() > 100) {
      lines += fmt::format("{}// {}\n", indent, line);
      line.clear();
    }
    line += line.empty() ? word : " " + word;
    begin = end + 1;
  }
  return lines + fmt::format("{}// {}\n", indent, line);
}

/// A comment and the member, without the comma that may follow it.
std::string example_member(const ConfigKey& row, std::string_view name, const std::string& indent) {
  const std::string value = row.example.empty() ? row.write(Config(), 0).dump() : row.example;
  std::string text = comment(fmt::format("{} Values: {}.", row.effect, row.allowed), indent);
  if (row.container != ConfigKey::Container::none) {
    for (const ConfigKey& part : config_keys()) {
      const std::string_view below = part_below(part.pointer, row.pointer);
      if (below.empty()) continue;
      text += comment(fmt::format("- {}: {}. Values: {}.", below.substr(below.rfind('/') + 1),
                                  part.effect.substr(0, part.effect.size() - 1), part.allowed),
                      indent);
    }
  }
  return text + fmt::format("{}\"{}\": {}", indent, name, value);
}

std::string example_object(const std::string& prefix, const std::string& indent) {
  std::vector<std::string> members;
  for_each_member(
      prefix, [&](const ConfigKey& row, std::string_view name) { members.push_back(example_member(row, name, indent)); },
      [&](std::string_view name) {
        if (name == "debug") return;
        members.push_back(fmt::format("{}\"{}\": {}", indent, name, example_object(json_pointer(prefix, name), indent + "  ")));
      });
  return fmt::format("{{\n{}\n{}}}", fmt::join(members, ",\n"), indent.substr(2));
}

}  // namespace

std::string example_configuration() {
  return "// A configuration of Strata with every default. Edit model.path and data.train, then: strata plan FILE, strata train FILE\n" +
         example_object("", "  ") + "\n";
}

std::string configuration_page() {
  std::string text = kIntroduction, section = "none yet";
  for (const ConfigKey& row : config_keys()) {
    std::string here = section_of(row.pointer);
    if (row.pointer == "/placement") here = "placement";
    if (here != section) {
      section = here;
      text += fmt::format("\n## {}\n\n| key | values | default | effect |\n|---|---|---|---|\n", here.empty() ? "The run" : here);
    }
    text += fmt::format("| `{}` | {} | {} | {} |\n", dotted(row.pointer), row.allowed, default_of(row), row.effect);
  }
  return text;
}

}  // namespace strata
