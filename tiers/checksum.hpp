// XXH3-64, whole or in pieces: the checksum of every extent, header and commit record.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

namespace strata::tiers {

/// Gives the same value however the bytes are cut into pieces.
class Checksum {
 public:
  explicit Checksum(uint64_t seed = 0);
  ~Checksum();
  Checksum(const Checksum&) = delete;
  Checksum& operator=(const Checksum&) = delete;

  void add(const void* data, uint64_t bytes);
  uint64_t value() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

uint64_t checksum_of(const void* data, uint64_t bytes, uint64_t seed = 0);

}  // namespace strata::tiers
