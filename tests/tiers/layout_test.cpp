// Dealing extents to directories: what a plan is told is what the store does.
#include "tiers/layout.hpp"

#include <gtest/gtest.h>

#include <random>

#include "core/error.hpp"

namespace strata::tiers {
namespace {

StoreOptions random_options(std::mt19937_64& random) {
  const auto up_to = [&](uint64_t most) { return 1 + random() % most; };
  StoreOptions options;
  const uint64_t extents = up_to(40);
  uint64_t bytes = 0;
  for (uint64_t i = 0; i < extents; ++i) {
    const ExtentSpec extent{fmt::format("extent {}", i), up_to(random() % 3 == 0 ? 4u << 20 : 64u << 10)};
    const bool state = random() % 3 != 0;
    (state ? options.state : options.scratch).push_back(extent);
    bytes += (state ? 2 : 1) * round_up(extent.bytes, kBlockBytes);
  }
  const uint64_t directories = up_to(4);
  for (uint64_t i = 0; i < directories; ++i) {
    // About as much room as is needed: from plenty to too little, and unevenly.
    const auto capacity = static_cast<uint64_t>(static_cast<double>(bytes) * (0.3 + static_cast<double>(random() % 1000) / 600.0) /
                                                static_cast<double>(directories));
    options.directories.push_back({fmt::format("drive{}", i), std::max<uint64_t>(capacity, 64 << 10)});
    options.directories.back().weight = 0.5 + static_cast<double>(random() % 4);
  }
  return options;
}

TEST(StoreLayout, APlanFitsExactlyWhereTheStoreCanBeMade) {
  std::mt19937_64 random(20261201);
  int fitting = 0, refused = 0, refused_though_the_sum_fits = 0;
  for (int trial = 0; trial < 4000; ++trial) {
    const StoreOptions options = random_options(random);
    const StoreNeeds needs = store_needs(options);
    uint64_t capacity = 0;
    for (const auto& directory : options.directories) capacity += directory.capacity_bytes;
    ASSERT_EQ(needs.bytes, store_bytes_needed(options)) << "trial " << trial;
    try {
      const StoreLayout layout = lay_out(options);
      ASSERT_EQ(needs.missing_bytes, 0u) << "the store fits and the plan does not, trial " << trial;
      for (size_t i = 0; i < options.directories.size(); ++i)
        ASSERT_EQ(needs.directories[i].needed_bytes, layout.directory_bytes(i)) << "trial " << trial << ", directory " << i;
      ++fitting;
    } catch (const Error& error) {
      ASSERT_EQ(error.code(), ErrorCode::resource_exhausted);
      ASSERT_GT(needs.missing_bytes, 0u) << "the plan fits and the store does not, trial " << trial;
      ++refused;
      refused_though_the_sum_fits += needs.bytes <= capacity;
    }
  }
  EXPECT_GT(fitting, 500);
  EXPECT_GT(refused, 500);
  EXPECT_GT(refused_though_the_sum_fits, 50);
}

TEST(StoreLayout, NeedsNameTheDirectoryThatIsTooSmall) {
  StoreOptions options;
  options.state = {{"a", 1 << 20}, {"b", 1 << 20}};
  options.directories = {{"first", 4 << 20}, {"second", 1 << 20}};
  const StoreNeeds needs = store_needs(options);  // each extent takes 2 MiB with its two slots
  ASSERT_EQ(needs.directories.size(), 2u);
  EXPECT_GT(needs.missing_bytes, 0u);
  EXPECT_EQ(needs.missing_bytes, needs.directories[0].missing_bytes() + needs.directories[1].missing_bytes());
}

}  // namespace
}  // namespace strata::tiers
