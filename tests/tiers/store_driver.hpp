// Drives a store one blocking call at a time, with contents that a seed determines.
#pragma once

#include <future>
#include <memory>
#include <vector>

#include "tiers/file.hpp"
#include "tiers/store.hpp"

namespace strata::tiers::testing {

/// `bytes` bytes that depend on every argument.
inline std::vector<std::byte> pattern(uint64_t bytes, uint64_t seed) {
  std::vector<std::byte> data(bytes);
  uint64_t state = seed * 0x9e3779b97f4a7c15ull + 1;
  for (auto& byte : data) {
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    byte = static_cast<std::byte>(state >> 24);
  }
  return data;
}

/// A callback and the wait for it. The promise is shared: the callback may still be inside it when wait() returns.
class Completion {
 public:
  /// Owns `buffer` as long as the store may touch it.
  IoCallback callback(std::shared_ptr<const AlignedBuffer> buffer = nullptr) const {
    return [promise = promise_, buffer = std::move(buffer)](std::exception_ptr error) {
      error ? promise->set_exception(error) : promise->set_value();
    };
  }
  /// Throws the error of the transfer.
  void wait() { result_.get(); }

 private:
  std::shared_ptr<std::promise<void>> promise_ = std::make_shared<std::promise<void>>();
  std::future<void> result_ = promise_->get_future();
};

enum class Part { state, scratch };

inline void write(NvmeStore& store, uint32_t extent, const std::vector<std::byte>& data, Part part = Part::state) {
  const auto buffer = std::make_shared<AlignedBuffer>(data.size());
  std::copy(data.begin(), data.end(), buffer->data());
  Completion done;
  part == Part::state ? store.write_state(extent, buffer->data(), done.callback(buffer))
                      : store.write_scratch(extent, buffer->data(), done.callback(buffer));
  done.wait();
}

inline std::vector<std::byte> read(NvmeStore& store, uint32_t extent, uint64_t bytes, Part part = Part::state) {
  const auto buffer = std::make_shared<AlignedBuffer>(bytes);
  Completion done;
  part == Part::state ? store.read_state(extent, buffer->data(), done.callback(buffer))
                      : store.read_scratch(extent, buffer->data(), done.callback(buffer));
  done.wait();
  return {buffer->data(), buffer->data() + bytes};
}

/// Runs `action` and returns the Error it throws; fails to return when it throws nothing.
template <class Action>
Error error_of(Action&& action) {
  try {
    action();
  } catch (const Error& error) {
    return error;
  }
  return Error(ErrorCode::internal, "(nothing was thrown)");
}

}  // namespace strata::tiers::testing
