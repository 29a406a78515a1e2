// Our packing against oneDNN's own reorder, for every layout by name and for those that its products choose here.
#include "gpu/host/onednn.hpp"

#include <gtest/gtest.h>

#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "core/dtype.hpp"

namespace strata::gpu {
namespace {

using dnnl::memory;
using Tag = memory::format_tag;

std::vector<std::byte> random_bytes(size_t count, uint64_t seed) {
  std::mt19937_64 random(seed);
  std::vector<std::byte> bytes(count);
  for (auto& byte : bytes) byte = static_cast<std::byte>(1 + random() % 120);  // normal numbers: a reorder may convert them
  return bytes;
}

class MatrixLayouts : public testing::Test {
 protected:
  /// What oneDNN's reorder makes of the plain matrix.
  std::vector<std::byte> reordered(const memory::desc& from, const memory::desc& to, std::vector<std::byte>& plain) {
    std::vector<std::byte> result(to.get_size());
    memory source(from, engine_, plain.data()), target(to, engine_, result.data());
    dnnl::reorder(source, target).execute(stream_, source, target);
    stream_.wait();
    return result;
  }

  /// Whether panels were used; their bytes are those of the reorder.
  bool expect_same(int64_t depth, int64_t columns, DType dtype, const memory::desc& to) {
    bool by_panels = false;
    for (const auto order : {PlainOrder::rows, PlainOrder::transposed}) {
      const Where where(depth, columns, dtype, order);
      const auto from = matrix_desc(depth, columns, dtype, order == PlainOrder::rows ? Tag::ab : Tag::ba);
      auto plain = random_bytes(from.get_size(), static_cast<uint64_t>(depth * 1000 + columns));
      const Repacking repacking(engine_, depth, columns, dtype, order, to);
      by_panels = repacking.by_panels();
      EXPECT_EQ(repacking.bytes(), to.get_size());
      std::vector<std::byte> packed(to.get_size(), std::byte{0x55});
      repacking(engine_, stream_, plain.data(), packed.data());
      EXPECT_TRUE(packed == reordered(from, to, plain)) << "the bytes differ";
    }
    return by_panels;
  }

  struct Where {
    Where(int64_t depth, int64_t columns, DType dtype, PlainOrder order)
        : trace(__FILE__, __LINE__,
                std::string(to_string(dtype)) + " " + std::to_string(depth) + " x " + std::to_string(columns) +
                    (order == PlainOrder::rows ? " rows" : " transposed")) {}
    testing::ScopedTrace trace;
  };

  dnnl::engine engine_{dnnl::engine::kind::cpu, 0};
  dnnl::stream stream_{engine_};
};

constexpr int64_t kShapes[][2] = {{1, 1}, {16, 64}, {32, 48}, {33, 17}, {7, 130}, {130, 257}, {256, 96}, {70, 8}};

TEST_F(MatrixLayouts, PackedPanelsAreTheBytesOfTheReorderForEveryNamedLayout) {
  const std::vector<Tag> floats = {Tag::BA16a16b, Tag::BA16a32b, Tag::BA16a48b, Tag::BA16a64b,
#if DNNL_VERSION_MAJOR == 3 && DNNL_VERSION_MINOR >= 5
                                   Tag::BA8a8b, Tag::BA8a16b, Tag::BA8a24b
#endif
  };
  for (const auto& [depth, columns] : kShapes) {
    for (const Tag tag : floats) {
      EXPECT_TRUE(expect_same(depth, columns, DType::f32, matrix_desc(depth, columns, DType::f32, tag))) << static_cast<int>(tag);
    }
    for (const Tag tag : {Tag::BA16a16b2a, Tag::BA16a32b2a, Tag::BA16a48b2a, Tag::BA16a64b2a}) {
      EXPECT_TRUE(expect_same(depth, columns, DType::bf16, matrix_desc(depth, columns, DType::bf16, tag))) << static_cast<int>(tag);
    }
  }
}

TEST_F(MatrixLayouts, AnyOtherLayoutIsLeftToTheReorder) {
  for (const auto& [depth, columns] : kShapes) {
    // Plain, and blocks in another order.
    for (const Tag tag : {Tag::ab, Tag::ba, Tag::AB16b16a}) {
      EXPECT_FALSE(expect_same(depth, columns, DType::f32, matrix_desc(depth, columns, DType::f32, tag))) << static_cast<int>(tag);
    }
  }
  // A part of a wider matrix is not the layout that it resembles.
  const memory::desc wide = matrix_desc(64, 128, DType::f32, Tag::BA16a64b);
  EXPECT_FALSE(panels_of(wide, 64, 64, DType::f32).has_value());
  EXPECT_TRUE(panels_of(wide, 64, 128, DType::f32).has_value());
  EXPECT_FALSE(panels_of(wide, 64, 128, DType::bf16).has_value());
}

TEST_F(MatrixLayouts, WhatAProductChoosesHereIsPackedAsItsReorderWould) {
  for (const DType dtype : {DType::f32, DType::bf16}) {
    if (!multiplies(dtype)) {
      std::cout << to_string(dtype) << ": not multiplied by this processor, so its products go through fp32\n";
      continue;
    }
    for (const auto& [tokens, depth, columns] : {std::tuple{48, 64, 96}, {512, 256, 512}, {33, 130, 257}, {1, 16, 8}, {5, 7, 3}}) {
      const auto plan = plan_matmul(engine_, matrix_desc(tokens, depth, dtype, Tag::ab), matrix_desc(depth, columns, dtype, Tag::any), {},
                                    matrix_desc(tokens, columns, dtype, Tag::ab), {});
      const bool by_panels = expect_same(depth, columns, dtype, plan.weights_desc());
      std::cout << to_string(dtype) << " " << tokens << " x " << depth << " x " << columns << ": " << plan.impl_info_str()
                << (by_panels ? ", packed by panels\n" : ", by its reorder, or plain\n");
    }
  }
}

}  // namespace
}  // namespace strata::gpu
