// Any bytes are either refused with an Error or are a file whose every tensor can be read whole.
#include <vector>

#include "core/error.hpp"
#include "core/safetensors.hpp"
#include "tests/fuzz/memory_file.hpp"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const strata::MemoryFile input(data, size);
  try {
    const strata::SafetensorsFile file(input.path());
    uint64_t sum = 0;
    for (const strata::SafetensorsEntry& tensor : file.tensors()) {
      std::vector<char> bytes(tensor.bytes());
      file.read(tensor, 0, bytes.data(), bytes.size());
      sum += bytes.size();
    }
    if (sum != file.data_bytes()) std::abort();
  } catch (const strata::Error& error) {
    if (error.code() != strata::ErrorCode::invalid_data) std::abort();
  }
  try {
    strata::read_safetensors_index(input.path());
  } catch (const strata::Error& error) {
    if (error.code() != strata::ErrorCode::invalid_data) std::abort();
  }
  return 0;
}
