// Runs a fuzz target without libFuzzer: every file of a folder as it is, then mutations of them drawn from a seed.
// Usage: TARGET CORPUS_FOLDER RUNS [SEED]. So the targets are built and exercised by every compiler, in the ordinary
// tests.
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <random>
#include <string>
#include <vector>

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size);

namespace {

std::vector<std::string> read_corpus(const char* folder) {
  std::vector<std::string> corpus;
  for (const auto& item : std::filesystem::directory_iterator(folder)) {
    std::ifstream in(item.path(), std::ios::binary);
    corpus.emplace_back(std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>());
  }
  return corpus;
}

void mutate(std::string& text, std::mt19937_64& random) {
  const auto below = [&](size_t limit) { return limit == 0 ? 0 : static_cast<size_t>(random() % limit); };
  for (size_t count = 1 + below(4); count > 0; --count) {
    const size_t at = below(text.size()), length = below(16);
    switch (below(6)) {
      case 0:
        if (!text.empty()) text[at] = static_cast<char>(text[at] ^ (1 << below(8)));
        break;
      case 1:
        if (!text.empty()) text[at] = static_cast<char>(random());
        break;
      case 2: text.erase(at, length); break;
      case 3: text.insert(at, text.substr(below(text.size()), length)); break;
      case 4: text.resize(at); break;
      default: text.insert(at, std::to_string(random() >> below(64))); break;
    }
  }
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 3) return std::fprintf(stderr, "usage: %s CORPUS_FOLDER RUNS [SEED]\n", argv[0]), 2;
  const std::vector<std::string> corpus = read_corpus(argv[1]);
  if (corpus.empty()) return std::fprintf(stderr, "%s holds no files\n", argv[1]), 2;
  const long runs = std::atol(argv[2]);
  const uint64_t seed = argc > 3 ? std::strtoull(argv[3], nullptr, 0) : 1;
  std::printf("seed %llu\n", static_cast<unsigned long long>(seed));
  std::mt19937_64 random(seed);
  const auto run = [](const std::string& text) {
    LLVMFuzzerTestOneInput(reinterpret_cast<const uint8_t*>(text.data()), text.size());
  };
  for (const std::string& text : corpus) run(text);
  for (long i = 0; i < runs; ++i) {
    std::string text = corpus[random() % corpus.size()];
    mutate(text, random);
    run(text);
  }
}
