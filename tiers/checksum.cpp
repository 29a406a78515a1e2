#include "tiers/checksum.hpp"

#include <new>

#ifdef STRATA_XXHASH_DISPATCH
#include <xxh_x86dispatch.h>  // the same functions, for the widest vectors that the processor has
#else
#include <xxhash.h>
#endif

namespace strata::tiers {

struct Checksum::State {
  State() : xxh(XXH3_createState()) {
    if (!xxh) throw std::bad_alloc();
  }
  ~State() { XXH3_freeState(xxh); }
  XXH3_state_t* xxh;
};

Checksum::Checksum(uint64_t seed) : state_(std::make_unique<State>()) { XXH3_64bits_reset_withSeed(state_->xxh, seed); }

Checksum::~Checksum() = default;

void Checksum::add(const void* data, uint64_t bytes) { XXH3_64bits_update(state_->xxh, data, bytes); }

uint64_t Checksum::value() const { return XXH3_64bits_digest(state_->xxh); }

uint64_t checksum_of(const void* data, uint64_t bytes, uint64_t seed) {
  return XXH3_64bits_withSeed(data, bytes, seed);
}

}  // namespace strata::tiers
