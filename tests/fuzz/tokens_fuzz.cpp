// Any bytes are either refused with an Error or are tokens of the vocabulary, readable to the last.
#include <vector>

#include "core/error.hpp"
#include "core/tokens.hpp"
#include "tests/fuzz/memory_file.hpp"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using strata::DataFormat;
  const strata::MemoryFile input(data, size);
  for (const DataFormat format :
       {DataFormat::automatic, DataFormat::llmc, DataFormat::bintok, DataFormat::raw16, DataFormat::raw32}) {
    try {
      const strata::TokenDataset dataset(
          {.files = {input.path()}, .format = format, .sequence_length = 3, .seed = 1, .vocab_size = 50000});
      std::vector<int32_t> tokens(3), labels(3);
      for (uint64_t i = 0; i < dataset.samples(); ++i) {
        dataset.sample(i, tokens.data(), labels.data());
        for (const int32_t token : tokens) {
          if (token < 0 || token >= 50000) std::abort();
        }
        for (const int32_t label : labels) {
          if (label != -100 && (label < 0 || label >= 50000)) std::abort();
        }
      }
    } catch (const strata::Error& error) {
      if (error.code() != strata::ErrorCode::invalid_data) std::abort();
    }
  }
  return 0;
}
