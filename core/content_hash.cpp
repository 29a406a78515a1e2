#include "core/content_hash.hpp"

#include <fmt/format.h>
#include <xxhash.h>

#include <algorithm>
#include <new>
#include <vector>

#include "core/rng.hpp"

namespace strata {
namespace {

constexpr uint64_t kScanBytes = 4ull << 20;
constexpr uint64_t kEndBytes = 1ull << 20, kPieceBytes = 64ull << 10, kPieces = 64;
static_assert(kSampledWholeBytes == 2 * kEndBytes + kPieces * kPieceBytes, "a sample is never more than the file");

/// Adds [offset, offset + bytes) of a file in pieces.
void add_range(ContentHash& hash, const ReadOnlyFile& file, uint64_t offset, uint64_t bytes, const OnRead& on_read) {
  std::vector<std::byte> buffer(std::min(kScanBytes, bytes));
  for (const uint64_t end = offset + bytes; offset < end;) {
    const uint64_t piece = std::min<uint64_t>(buffer.size(), end - offset);
    file.read(offset, buffer.data(), piece);
    hash.add(buffer.data(), piece);
    file.drop_cached(offset, piece);
    offset += piece;
    if (on_read) on_read(piece);
  }
}

}  // namespace

struct ContentHash::State {
  State() : xxh3(XXH3_createState()) {
    if (xxh3 == nullptr) throw std::bad_alloc();
    XXH3_128bits_reset(xxh3);
  }
  ~State() { XXH3_freeState(xxh3); }
  State(const State&) = delete;
  State& operator=(const State&) = delete;
  XXH3_state_t* xxh3;
};

ContentHash::ContentHash() : state_(std::make_unique<State>()) {}
ContentHash::~ContentHash() = default;

void ContentHash::add(const void* data, uint64_t bytes) { XXH3_128bits_update(state_->xxh3, data, bytes); }

std::string ContentHash::hex() const {
  const XXH128_hash_t digest = XXH3_128bits_digest(state_->xxh3);
  return fmt::format("{:016x}{:016x}", digest.high64, digest.low64);
}

std::string hash_text(std::string_view text) {
  ContentHash hash;
  hash.add(text.data(), text.size());
  return hash.hex();
}

std::string hash_file(const std::filesystem::path& file, const OnRead& on_read) {
  const ReadOnlyFile in(file);
  ContentHash hash;
  add_range(hash, in, 0, in.size(), on_read);
  return hash.hex();
}

std::string sampled_hash(const ReadOnlyFile& file) {
  ContentHash hash;
  const uint64_t size = file.size();
  hash.add(&size, sizeof size);
  if (size <= kSampledWholeBytes) {
    add_range(hash, file, 0, size, {});
    return hash.hex();
  }
  add_range(hash, file, 0, kEndBytes, {});
  const CounterRng places(size, 0);
  const uint64_t stretch = (size - 2 * kEndBytes) / kPieces;
  for (uint64_t piece = 0; piece < kPieces; ++piece) {
    const uint64_t within = places.bits(piece) % (stretch - kPieceBytes + 1);
    add_range(hash, file, kEndBytes + piece * stretch + within, kPieceBytes, {});
  }
  add_range(hash, file, size - kEndBytes, kEndBytes, {});
  return hash.hex();
}

std::string sampled_hash(const std::filesystem::path& file) { return sampled_hash(ReadOnlyFile(file)); }

}  // namespace strata
