// As kernels/ptx/mma_sync.cuh, whose fragments these are.
#pragma once

#include "ptx/convert.cuh"

namespace bsrg::ptx {

struct MatrixLane {
  uint32_t address, found[4];
};

template <bool kTransposed>
void load_matrices(MatrixLane *const (&lanes)[32]) {
  for (int lane = 0; lane < 32; ++lane)
    for (int m = 0; m < 4; ++m) {
      uint16_t pair[2];
      for (int i = 0; i < 2; ++i) {
        const int g = lane / 4, q = lane % 4 * 2 + i;
        const int row = kTransposed ? q : g, column = kTransposed ? g : q;
        std::memcpy(&pair[i], emulation::shared(lanes[8 * m + row]->address) + 2 * column, 2);
      }
      lanes[lane]->found[m] = pair[0] | static_cast<uint32_t>(pair[1]) << 16;
    }
}

inline void load_matrix_x4(uint32_t (&r)[4], uint32_t address) {
  MatrixLane mine = {address, {}};
  emulation::meet(~0u, mine, [](MatrixLane *const(&lanes)[32]) { load_matrices<false>(lanes); });
  std::copy(mine.found, mine.found + 4, r);
}
inline void load_matrix_x4_trans(uint32_t (&r)[4], uint32_t address) {
  MatrixLane mine = {address, {}};
  emulation::meet(~0u, mine, [](MatrixLane *const(&lanes)[32]) { load_matrices<true>(lanes); });
  std::copy(mine.found, mine.found + 4, r);
}

inline uint32_t transpose_matrix(uint32_t pair) {
  MatrixLane mine = {pair, {}};
  emulation::meet(~0u, mine, [](MatrixLane *const(&lanes)[32]) {
    const auto element = [&](int row, int column) {
      return lanes[row * 4 + column / 2]->address >> 16 * (column % 2) & 0xffff;
    };
    for (int lane = 0; lane < 32; ++lane) {
      const int row = lane / 4, column = lane % 4 * 2;
      lanes[lane]->found[0] = element(column, row) | element(column + 1, row) << 16;
    }
  });
  return mine.found[0];
}

// m16n8 by any k: element i of a lane's A, B and D lies at these places.
template <typename Number, int kA, int kB>
struct ProductLane {
  Number a[kA], b[kB], d[4];
};

template <typename Number, int kA, int kB, int kTogether>
void multiply(ProductLane<Number, kA, kB> *const (&lanes)[32]) {
  constexpr int kK = 2 * kA;
  Number a[16][kK], b[kK][8];
  for (int lane = 0; lane < 32; ++lane) {
    const int g = lane / 4, q = lane % 4;
    for (int i = 0; i < kA; ++i) {
      const int part = i / kTogether;  // rows 0 to 7, 8 to 15, then the same of the further k
      a[g + part % 2 * 8][part / 2 * 4 * kTogether + q * kTogether + i % kTogether] = lanes[lane]->a[i];
    }
    for (int i = 0; i < kB; ++i)
      b[i / kTogether * 4 * kTogether + q * kTogether + i % kTogether][g] = lanes[lane]->b[i];
  }
  for (int lane = 0; lane < 32; ++lane)
    for (int i = 0; i < 4; ++i) {
      const int row = lane / 4 + i / 2 * 8, column = lane % 4 * 2 + i % 2;
      Number sum = lanes[lane]->d[i];
      for (int k = 0; k < kK; ++k) sum = std::fma(a[row][k], b[k][column], sum);
      lanes[lane]->d[i] = sum;
    }
}

template <typename T>
void mma_m16n8k16(float (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  using Lane = ProductLane<float, 8, 4>;
  Lane mine;
  for (int i = 0; i < 4; ++i) {
    const float2 pair = unpack<T>(a[i]);
    mine.a[2 * i] = pair.x;
    mine.a[2 * i + 1] = pair.y;
    mine.d[i] = d[i];
  }
  const float2 low = unpack<T>(b0), high = unpack<T>(b1);
  const float b[] = {low.x, low.y, high.x, high.y};
  std::copy(b, b + 4, mine.b);
  emulation::meet(~0u, mine, [](Lane *const(&lanes)[32]) { multiply<float, 8, 4, 2>(lanes); });
  std::copy(mine.d, mine.d + 4, d);
}

inline void multiply_m16n8k16(float (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  std::fill(d, d + 4, 0.f);
  mma_m16n8k16<__half>(d, a, b0, b1);
}

template <typename Number>
void mma_m16n8k8(Number &d0, Number &d1, Number &d2, Number &d3, const Number (&a)[4], const Number (&b)[2]) {
  using Lane = ProductLane<Number, 4, 2>;
  Lane mine = {{a[0], a[1], a[2], a[3]}, {b[0], b[1]}, {d0, d1, d2, d3}};
  emulation::meet(~0u, mine, [](Lane *const(&lanes)[32]) { multiply<Number, 4, 2, 1>(lanes); });
  d0 = mine.d[0];
  d1 = mine.d[1];
  d2 = mine.d[2];
  d3 = mine.d[3];
}

// Ties away from zero.
inline float round_to_tf32(float x) {
  return std::isfinite(x) ? __uint_as_float((__float_as_uint(x) + 0x1000) & 0xffffe000u) : x;
}

}  // namespace bsrg::ptx
