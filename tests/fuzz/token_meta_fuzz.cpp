// Any bytes are either refused with an Error or describe a token file with numbers in their ranges, and are written as they were read.
#include <cstdlib>
#include <string_view>

#include "core/error.hpp"
#include "core/token_meta.hpp"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  try {
    const auto meta = strata::TokenMeta::from_json({reinterpret_cast<const char*>(data), size}, "input");
    if (meta.vocab_size < 1 || meta.vocab_size > INT32_MAX || meta.dtype.empty()) std::abort();
    if (!meta.tokenizer_xxh3.empty() && meta.tokenizer_xxh3.size() != 32) std::abort();
    const auto again = strata::TokenMeta::from_json(meta.to_json(), "own");
    if (again.tokens != meta.tokens || again.vocab_size != meta.vocab_size || again.dtype != meta.dtype ||
        again.tokenizer_xxh3 != meta.tokenizer_xxh3)
      std::abort();
  } catch (const strata::Error& error) {
    if (error.code() != strata::ErrorCode::invalid_data) std::abort();
  }
  return 0;
}
