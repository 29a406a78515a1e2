// Any text is either refused with an Error or is a configuration that reads back from its own JSON unchanged; the same
// text as a model description is refused or described.
#include <string>

#include "core/config.hpp"
#include "core/error.hpp"
#include "core/layout.hpp"
#include "tests/fuzz/memory_file.hpp"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using strata::ErrorCode;
  const std::string text(reinterpret_cast<const char*>(data), size);
  try {
    const std::string once = strata::parse_config(text, "fuzz").to_json();
    if (strata::parse_config(once, "again").to_json() != once) std::abort();
  } catch (const strata::Error& error) {
    if (error.code() != ErrorCode::invalid_configuration) std::abort();
  }
  const strata::MemoryFile input(data, size);
  try {
    strata::ModelDescription model = strata::read_model_description(input.path());
    // The layout of a deep model takes memory in proportion, which is no defect.
    if (model.layers <= 100) strata::make_layout(model);
    if (model.family == strata::Family::llama && model.head_dim <= 4096) strata::rope_frequencies(model, 4096);
  } catch (const strata::Error& error) {
    if (error.code() != ErrorCode::invalid_configuration && error.code() != ErrorCode::unsupported) std::abort();
  }
  return 0;
}
