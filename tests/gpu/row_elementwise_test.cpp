// RoPE, embedding rows, biases, casts, sums of squares and AdamW on the host device.
#include <limits>

#include "core/layout.hpp"
#include "tests/gpu/row_support.hpp"

namespace strata::gpu {
namespace {

TEST(RowElementwise, RopeRotatesPairsAndBackAgain) {
  constexpr int64_t kRows = 1021, kHeads = 3, kSequence = 8;
  for (const DType dtype : kAllDTypes) {
    for (const int64_t head_dim : {2, 10, 64}) {
      const int64_t half = head_dim / 2, stride = kHeads * head_dim + 7;
      const Array x = Array::normal(dtype, kRows * stride, 1);
      Array cosines(DType::f32, kSequence * half), sines(DType::f32, kSequence * half);
      for (int64_t i = 0; i < cosines.size(); ++i) {
        cosines.set(i, std::cos(0.37 * static_cast<double>(i)));
        sines.set(i, std::sin(0.37 * static_cast<double>(i)));
      }
      const auto [rotated, back] = on_every_machine([&](Machine& m) {
        void* in_place = m.put(x);
        const auto *dev_cosines = static_cast<float*>(m.put(cosines)), *dev_sines = static_cast<float*>(m.put(sines));
        const Rows rows{kRows, kHeads * head_dim, stride};
        m.rows().rope(m.stream(), dtype, rows, in_place, kHeads, head_dim, dev_cosines, dev_sines, kSequence, false);
        Array forward = m.get(in_place, dtype, x.size());
        m.rows().rope(m.stream(), dtype, rows, in_place, kHeads, head_dim, dev_cosines, dev_sines, kSequence, true);
        return std::pair(forward, m.get(in_place, dtype, x.size()));
      });
      std::vector<double> want, original;
      for (int64_t i = 0; i < x.size(); ++i) {
        const int64_t row = i / stride, column = i % stride, k = column % head_dim, table = row % kSequence * half + k % half;
        const bool padding = column >= kHeads * head_dim;
        original.push_back(x[i]);
        if (padding) want.push_back(x[i]);
        else if (k < half) want.push_back(x[i] * cosines[table] - x[i + half] * sines[table]);
        else want.push_back(x[i] * cosines[table] + x[i - half] * sines[table]);
      }
      expect_close(rotated, want, 1.1, 8, "rotated");
      expect_close(back, original, 1, 4 + 6 * rounding(dtype) / 0x1p-24, "rotated back");
    }
  }
}

TEST(RowElementwise, AddAndAddBiasMatchDouble) {
  for (const DType dtype : kAllDTypes) {
    constexpr int64_t kRows = 3000, kColumns = 77, kStride = 80;
    const Array a = Array::normal(dtype, kRows * kStride, 1), b = Array::normal(dtype, kRows * kStride, 2);
    const Array bias = Array::normal(dtype, kColumns, 3);
    struct Sums {
      Array sum, in_place, biased;
      bool operator==(const Sums&) const = default;
    };
    const auto got = on_every_machine([&](Machine& m) {
      void *sum = m.room(a.bytes().size()), *in_place = m.put(a), *biased = m.put(a);
      const void* dev_b = m.put(b);
      m.rows().add(m.stream(), dtype, a.size(), m.put(a), dev_b, sum);
      m.rows().add(m.stream(), dtype, a.size(), in_place, dev_b, in_place);
      m.rows().add_bias(m.stream(), dtype, {kRows, kColumns, kStride}, biased, m.put(bias));
      return Sums{m.get(sum, dtype, a.size()), m.get(in_place, dtype, a.size()), m.get(biased, dtype, a.size())};
    });
    EXPECT_EQ(got.sum, got.in_place);
    std::vector<double> sum, biased;
    for (int64_t i = 0; i < a.size(); ++i) {
      sum.push_back(a[i] + b[i]);
      biased.push_back(a[i] + (i % kStride < kColumns ? bias[i % kStride] : 0.0));
    }
    expect_close(got.sum, sum, 1.01, 0, "sum");
    expect_close(got.biased, biased, 1.01, 0, "biased");
  }
}

TEST(RowElementwise, GatherTakesRowsAndAddsPositions) {
  for (const DType dtype : kAllDTypes) {
    constexpr int64_t kTokens = 4045, kColumns = 50, kVocabulary = 13, kSequence = 9;
    const Array table = Array::normal(dtype, kVocabulary * kColumns, 1), positions = Array::normal(dtype, kSequence * kColumns, 2);
    std::vector<int32_t> tokens;
    for (int64_t t = 0; t < kTokens; ++t) tokens.push_back(static_cast<int32_t>(t * 5 % kVocabulary));
    const auto got = on_every_machine([&](Machine& m) {
      const int32_t* dev_tokens = m.put(tokens);
      const void *dev_table = m.put(table), *dev_positions = m.put(positions);
      const uint64_t bytes = static_cast<uint64_t>(kTokens * kColumns) * size_bytes(dtype);
      void *alone = m.room(bytes), *placed = m.room(bytes);
      m.rows().gather(m.stream(), dtype, kTokens, kColumns, dev_tokens, dev_table, nullptr, kSequence, alone);
      m.rows().gather(m.stream(), dtype, kTokens, kColumns, dev_tokens, dev_table, dev_positions, kSequence, placed);
      return std::pair(m.get(alone, dtype, kTokens * kColumns), m.get(placed, dtype, kTokens * kColumns));
    });
    for (int64_t i = 0; i < kTokens * kColumns; ++i) {
      const double row = table[tokens[static_cast<size_t>(i / kColumns)] * kColumns + i % kColumns];
      const double position = positions[i / kColumns % kSequence * kColumns + i % kColumns];
      ASSERT_EQ(got.first[i], row) << i;
      ASSERT_EQ(got.second[i], Array::of(dtype, {row + position})[0]) << i;
    }
  }
}

TEST(RowElementwise, ScatterAddAddsRepeatedTokensInTokenOrder) {
  constexpr int64_t kTokens = 1200, kColumns = 333, kVocabulary = 7, kSequence = 40;
  for (const DType dtype : kAllDTypes) {
    const Array d_y = Array::normal(dtype, kTokens * kColumns, 1), before = Array::normal(DType::f32, kVocabulary * kColumns, 2);
    std::vector<int32_t> tokens;
    for (int64_t t = 0; t < kTokens; ++t) tokens.push_back(t % 3 == 0 ? 4 : static_cast<int32_t>(t * t % kVocabulary));
    const auto got = on_every_machine([&](Machine& m) {
      const int32_t* dev_tokens = m.put(tokens);
      const void* dev_d_y = m.put(d_y);
      auto *table = static_cast<float*>(m.put(before)), *table_alone = static_cast<float*>(m.put(before));
      auto* positions = static_cast<float*>(m.put(Array(DType::f32, kSequence * kColumns)));
      m.rows().scatter_add(m.stream(), dtype, kTokens, kColumns, dev_tokens, dev_d_y, table, positions, kSequence);
      m.rows().scatter_add(m.stream(), dtype, kTokens, kColumns, dev_tokens, dev_d_y, table_alone, nullptr, kSequence);
      EXPECT_EQ(m.get(table_alone, DType::f32, before.size()), m.get(table, DType::f32, before.size()));
      return std::pair(m.get(table, DType::f32, before.size()), m.get(positions, DType::f32, kSequence * kColumns));
    });
    std::vector<float> table, positions(static_cast<size_t>(kSequence * kColumns));
    for (int64_t i = 0; i < before.size(); ++i) table.push_back(static_cast<float>(before[i]));
    for (int64_t t = 0; t < kTokens; ++t) {
      for (int64_t i = 0; i < kColumns; ++i) {
        const auto value = static_cast<float>(d_y[t * kColumns + i]);
        table[static_cast<size_t>(tokens[static_cast<size_t>(t)] * kColumns + i)] += value;
        positions[static_cast<size_t>(t % kSequence * kColumns + i)] += value;
      }
    }
    EXPECT_EQ(got.first, floats(table)) << "not the bits of adding in token order";
    EXPECT_EQ(got.second, floats(positions));
  }
}

/// Every fp16 pattern, every bf16 pattern, and fp32 numbers around every rounding boundary.
std::vector<float> hard_numbers() {
  std::vector<float> numbers;
  for (uint32_t bits = 0; bits < 0x10000u; ++bits) {
    numbers.push_back(float_from_bf16(static_cast<uint16_t>(bits)));
    numbers.push_back(float_from_f16(static_cast<uint16_t>(bits)));
    for (const uint32_t low : {0x7fffu, 0x8000u, 0x8001u}) numbers.push_back(std::bit_cast<float>(bits << 16 | low));
    if ((bits & 0x7c00u) == 0x7c00u) continue;
    const float half = float_from_f16(static_cast<uint16_t>(bits)), next = float_from_f16(static_cast<uint16_t>(bits + 1));
    const float middle = half + (next - half) / 2;
    for (const float toward : {-INFINITY, INFINITY}) numbers.push_back(std::nextafter(middle, toward));
    numbers.push_back(middle);
  }
  return numbers;
}

TEST(RowElementwise, CastsHaveTheBitsOfTheScalarConversions) {
  const std::vector<float> numbers = hard_numbers();
  const auto count = static_cast<int64_t>(numbers.size());
  with_every_instruction_set([&](Machine& m) {
    const float* x = m.put(numbers);
    auto *halves = m.room<uint16_t>(numbers.size() * 2), *more_halves = m.room<uint16_t>(numbers.size() * 2);
    auto* singles = m.room<float>(numbers.size() * 4);
    const auto is_signaling_nan = [](float value) {
      const auto bits = std::bit_cast<uint32_t>(value);
      return std::isnan(value) && (bits & 0x400000u) == 0;
    };
    for (const DType dtype : {DType::bf16, DType::f16}) {
      m.rows().cast(m.stream(), DType::f32, dtype, count, x, halves);
      m.rows().cast(m.stream(), dtype, DType::f32, count, halves, singles);
      m.rows().cast(m.stream(), dtype, dtype, count, halves, more_halves);
      const auto narrow = m.get(halves, count), again = m.get(more_halves, count);
      const auto wide = m.get(singles, count);
      for (size_t i = 0; i < numbers.size(); ++i) {
        if (is_signaling_nan(numbers[i])) {  // moving it through a register may make it quiet
          ASSERT_TRUE(std::isnan(wide[i]));
          continue;
        }
        ASSERT_EQ(narrow[i], half_from_float(dtype, numbers[i])) << to_string(dtype) << " of " << numbers[i];
        ASSERT_EQ(std::bit_cast<uint32_t>(wide[i]), std::bit_cast<uint32_t>(float_from_half(dtype, narrow[i]))) << narrow[i];
        ASSERT_EQ(again[i], narrow[i]);
      }
    }
    m.rows().cast(m.stream(), DType::f32, DType::f32, count, x, singles);
    const auto same = m.get(singles, count);
    EXPECT_EQ(std::memcmp(same.data(), numbers.data(), numbers.size() * 4), 0);
  });
}

TEST(RowElementwise, SumSquaresHasTheBitsOfItsDefinition) {
  constexpr auto kBlock = static_cast<int64_t>(kBlockElements);
  constexpr int64_t kBlocks = 51;
  for (const DType dtype : kAllDTypes) {
    Array x = Array::normal(dtype, kBlocks * kBlock, 3);
    for (int64_t i = 0; i < x.size(); i += 7) x.set(i, x[i] * 1e-6);
    const auto got = on_every_machine([&](Machine& m) {
      auto* sums = m.room<double>(kBlocks * 8);
      m.rows().sum_squares(m.stream(), dtype, x.size(), m.put(x), sums);
      return m.get(sums, kBlocks);
    });
    for (int64_t block = 0; block < kBlocks; ++block) {
      double sums[16] = {};
      for (int64_t i = 0; i < kBlock; ++i) sums[i % 16] += x[block * kBlock + i] * x[block * kBlock + i];
      for (const int width : {8, 4, 2, 1}) {
        for (int k = 0; k < width; ++k) sums[k] += sums[k + width];
      }
      ASSERT_EQ(got[static_cast<size_t>(block)], sums[0]) << to_string(dtype) << " block " << block;
    }
  }
}

TEST(RowElementwise, ANonFiniteElementMakesItsBlockSumNonFinite) {
  constexpr auto kBlock = static_cast<int64_t>(kBlockElements);
  for (const DType dtype : kAllDTypes) {
    for (const double bad : {static_cast<double>(INFINITY), -static_cast<double>(INFINITY), static_cast<double>(NAN)}) {
      for (const int64_t place : {int64_t{0}, int64_t{15}, int64_t{1234}, kBlock - 1}) {
        Array x = Array::normal(dtype, 3 * kBlock, 3);
        x.set(kBlock + place, bad);
        with_every_instruction_set([&](Machine& m) {
          auto* sums = m.room<double>(3 * 8);
          m.rows().sum_squares(m.stream(), dtype, x.size(), m.put(x), sums);
          const auto got = m.get(sums, 3);
          EXPECT_TRUE(std::isfinite(got[0]) && std::isfinite(got[2]));
          EXPECT_FALSE(std::isfinite(got[1])) << bad << " at " << place;
        });
      }
    }
  }
}

TEST(RowElementwise, SumSquaresOfTheLargestFloatsDoesNotOverflow) {
  Array x(DType::f32, static_cast<int64_t>(kBlockElements));
  for (int64_t i = 0; i < x.size(); ++i) x.set(i, std::numeric_limits<float>::max());
  with_every_instruction_set([&](Machine& m) {
    auto* sums = m.room<double>(8);
    m.rows().sum_squares(m.stream(), DType::f32, x.size(), m.put(x), sums);
    EXPECT_NEAR(m.get(sums, 1)[0] / (4096.0 * 0x1.fffffep127 * 0x1.fffffep127), 1.0, 1e-13);
  });
}

TEST(RowKernels, SumSquaresRefusesPartOfABlock) {
  Machine m(1);
  EXPECT_THROW(m.rows().sum_squares(m.stream(), DType::f32, 4095, m.room(4096 * 4), m.room<double>(8)), Error);
}

struct AdamCase {
  MasterFormat master;
  DType parameter;
  DType gradient;
};

TEST(RowElementwise, AdamwHasTheBitsOfTheScalarUpdate) {
  constexpr AdamCase kCases[] = {{MasterFormat::parameter, DType::f32, DType::f32}, {MasterFormat::split, DType::bf16, DType::bf16},
                                 {MasterFormat::split, DType::bf16, DType::f32},    {MasterFormat::fp32, DType::f16, DType::f16},
                                 {MasterFormat::fp32, DType::bf16, DType::f32}};
  constexpr int64_t kCount = 200001;  // several parts, the last one odd
  for (const AdamCase& c : kCases) {
    SCOPED_TRACE(std::string(to_string(c.parameter)) + ", gradient " + std::string(to_string(c.gradient)));
    Array parameter = Array::normal(c.parameter, kCount, 1), gradient = Array::normal(c.gradient, kCount, 2, 0.1);
    Array momentum = Array::normal(DType::f32, kCount, 3, 0.01), variance(DType::f32, kCount);
    for (int64_t i = 0; i < kCount; ++i) variance.set(i, momentum[i] * momentum[i]);
    Array master = c.master == MasterFormat::split ? Array::normal(DType::bf16, kCount, 4) : Array::normal(DType::f32, kCount, 4);
    const auto tile_of = [&](void* p, void* s, void* m, void* v, const void* g) {
      AdamTile tile{c.master, c.parameter, c.gradient, p, c.master == MasterFormat::parameter ? nullptr : s, static_cast<float*>(m),
                    static_cast<float*>(v), g, kCount, {}};
      tile.step = AdamStep::make({.weight_decay = 0.1}, 3, 1e-3, 0.5);
      return tile;
    };
    const auto got = on_every_machine([&](Machine& machine) {
      void *p = machine.put(parameter), *s = machine.put(master), *m = machine.put(momentum), *v = machine.put(variance);
      machine.rows().adamw(machine.stream(), tile_of(p, s, m, v, machine.put(gradient)));
      return std::vector<Array>{machine.get(p, c.parameter, kCount), machine.get(s, master.dtype(), kCount),
                                machine.get(m, DType::f32, kCount), machine.get(v, DType::f32, kCount)};
    });
    // Tiles must be aligned to 64 bytes: the reference works on copies that are.
    struct alignas(64) Line {
      std::byte bytes[64];
    };
    const auto aligned = [](const Array& array) {
      std::vector<Line> lines((array.bytes().size() + 63) / 64);
      std::memcpy(lines.data(), array.bytes().data(), array.bytes().size());
      return lines;
    };
    auto p = aligned(parameter), s = aligned(master), m = aligned(momentum), v = aligned(variance), g = aligned(gradient);
    adam_update_scalar(tile_of(p.data(), s.data(), m.data(), v.data(), g.data()));
    EXPECT_EQ(std::memcmp(got[0].bytes().data(), p.data(), got[0].bytes().size()), 0) << "parameter";
    EXPECT_EQ(std::memcmp(got[1].bytes().data(), s.data(), got[1].bytes().size()), 0) << "master";
    EXPECT_EQ(std::memcmp(got[2].bytes().data(), m.data(), got[2].bytes().size()), 0) << "momentum";
    EXPECT_EQ(std::memcmp(got[3].bytes().data(), v.data(), got[3].bytes().size()), 0) << "variance";
    EXPECT_NE(std::memcmp(got[0].bytes().data(), parameter.bytes().data(), got[0].bytes().size()), 0) << "nothing was updated";
  }
}

}  // namespace
}  // namespace strata::gpu
