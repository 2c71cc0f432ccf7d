// How the tall kernels' sums leave the registers: to Y by way of shared memory and TMA or, of a part, as they are to
// memory of the launch. With a transposed X, Y and C lie as X does: the rows of a column are adjacent in memory.
#pragma once

#include "output.cuh"
#include "ptx/convert.cuh"
#include "ptx/sync.cuh"
#include "ptx/tma.cuh"
#include "ptx/wgmma_small.cuh"
#include "sm90/tall_layout.cuh"
#include "sm90/tall_vectors.cuh"

namespace bsrg::tall {

// kHandsOver: consumers leave pieces in shared memory, and a lane of the producers has TMA store them (tall.cuh).
template <typename T, typename L, bool kTransposed, bool kHandsOver, bool kSwapped>
struct Output : Vectors<T, L, kTransposed, kHandsOver, kSwapped> {
  using Base = Vectors<T, L, kTransposed, kHandsOver, kSwapped>;
  using Base::kPieceBytes;
  using Base::kTogether;
  using Base::lane;
  using Base::p;
  using Base::piece_buffers;
  using Base::piece_empty;
  using Base::piece_full;
  using Base::piece_parity;
  using Base::row_below;
  using Base::shared;
  using Base::warp;

  // d = alpha * d + beta * C, apart from the stores: inside them, even unused, it cost 2.5% of a product.
  __device__ void scale_and_add(float (&d)[kTileN / 2], int row, int column) const {
    if constexpr (kTransposed)
      scale_and_add_elements(d, row + (lane >> 2), column + 2 * (lane & 3));
    else
      scale_and_add_pairs(d, row, column);
  }

  __device__ void scale_and_add_pairs(float (&d)[kTileN / 2], int row, int column) const {
    const int first_row = row + (lane >> 2), to_below = row_below() - (lane >> 2);
    const T *c = static_cast<const T *>(p.c) + first_row * p.c_row_stride + column + 2 * (lane & 3);
#pragma unroll
    for (int i = 0; i < kTileN / 2; i += 2) {
      d[i] *= p.alpha;
      d[i + 1] *= p.alpha;
      const int offset = i / 4 * 8, below = i / 2 % 2 * to_below;
      // n is a multiple of 8; the last strip may reach beyond the last row.
      if (p.beta != 0.f && column + offset < p.n && first_row + below < p.rows) {
        const float2 old =
            ptx::unpack<T>(*reinterpret_cast<const uint32_t *>(c + below * p.c_row_stride + offset));
        d[i] = fmaf(p.beta, old.x, d[i]);
        d[i + 1] = fmaf(p.beta, old.y, d[i + 1]);
      }
    }
  }

  // For any strides of C and any n.
  __device__ void scale_and_add_elements(float (&d)[kTileN / 2], int row, int column) const {
    const T *c = static_cast<const T *>(p.c) + row * p.c_row_stride + column * p.c_col_stride;
#pragma unroll
    for (int i = 0; i < kTileN / 2; ++i) {
      d[i] *= p.alpha;
      const int right = i / 4 * 8 + i % 2, below = i / 2 % 2 * 8;
      if (p.beta != 0.f && column + right < p.n && row + below < p.rows)
        d[i] = fmaf(p.beta, static_cast<float>(c[below * p.c_row_stride + right * p.c_col_stride]), d[i]);
    }
  }

  // ---- stores -----------------------------------------------------------------------------------

  static constexpr int kPieces = kTileN / kPanel;
  static constexpr int kPairs = kTileN / 4 / kPieces;  // a thread's of a piece, rounded

  static __device__ void round(uint32_t (&pairs)[kPairs], const float (&d)[kTileN / 2], int piece,
                               bool clipped) {
    const float *v = d + 2 * piece * kPairs;
    if (clipped) {
#pragma unroll
      for (int i = 0; i < kPairs; ++i) pairs[i] = ptx::pack_relu<T>(v[2 * i], v[2 * i + 1]);
    } else {
#pragma unroll
      for (int i = 0; i < kPairs; ++i) pairs[i] = ptx::pack<T>(v[2 * i], v[2 * i + 1]);
    }
  }

  __device__ bool relu() const { return p.output.given && p.output.activation == BSRG_OUTPUT_RELU; }
  __device__ bool curved() const { return p.output.given && p.output.activation > BSRG_OUTPUT_RELU; }

  // TMA clips what lies beyond the last column or row.
  __device__ void store_piece(const uint32_t (&pairs)[kPairs], int piece, int row, int column,
                              uint32_t buffers, uint64_t policy) const {
    const uint32_t buffer = buffers + (piece & 1) * kPieceBytes;
    column += piece * kPanel;
    if constexpr (kHandsOver) {
      const int strip = warp / 4 - 1;
      ptx::barrier_wait(piece_empty(strip, piece), piece_parity(piece) ^ 1);
      write_rows(pairs, buffer + (warp & 3) * (16 * kPanel * 2));
      __syncwarp();
      if (lane == 0) ptx::barrier_arrive(piece_full(strip, piece));
    } else if constexpr (kTransposed) {
      store_transposed_piece(pairs, row - (warp & 3) * 16, column, buffer, policy);
    } else {
      store_warp_piece(pairs, row, column, buffer, policy);
    }
  }

  // Activations go piece by piece, so that TMA reads one while the next one is computed.
  __device__ void store_tile(float (&d)[kTileN / 2], int row, int column, uint32_t buffers,
                             uint64_t policy) const {
    const bool clipped = relu(), curved = this->curved();
#pragma unroll
    for (int piece = 0; piece < kPieces; ++piece) {
      uint32_t pairs[kPairs];
      if (curved) {
        output::with_curve(p.output, [&](auto curve) {
#pragma unroll
          for (int i = 2 * piece * kPairs; i < 2 * (piece + 1) * kPairs; ++i) d[i] = curve(d[i]);
        });
      }
      round(pairs, d, piece, clipped);
      store_piece(pairs, piece, row, column, buffers, policy);
    }
  }

  // A tile that stays in registers, rounded, until the next one is multiplied: then its stores cost nothing.
  struct Held {
    uint32_t pairs[kPieces][kPairs];
    int row, column;
    int left = 0;  // pieces that are not stored yet
  };

  __device__ void hold(Held &held, float (&d)[kTileN / 2], int row, int column) const {
    const bool clipped = relu();
    if (curved()) {
      output::with_curve(p.output, [&](auto curve) {
#pragma unroll
        for (float &sum : d) sum = curve(sum);
      });
    }
#pragma unroll
    for (int piece = 0; piece < kPieces; ++piece) round(held.pairs[piece], d, piece, clipped);
    held.row = row;
    held.column = column;
    held.left = kPieces;
  }

  // Votes tell ptxas that the branches are uniform.
  static __device__ bool any_left(const Held &held) { return __any_sync(~0u, held.left > 0); }

  // A piece in registers has a constant number.
  template <int kPiece = 0>
  __device__ void store_next(Held &held) const {
    if (kPiece == kPieces - 1 || __any_sync(~0u, held.left == kPieces - kPiece)) {
      store_piece(held.pairs[kPiece], kPiece, held.row, held.column, piece_buffers(),
                  ptx::policy_evict_first());
      --held.left;
    } else if constexpr (kPiece < kPieces - 1) {
      store_next<kPiece + 1>(held);
    }
  }

  __device__ void store_rest(Held &held) const {
    while (any_left(held)) store_next(held);
  }

  __device__ void store_warp_piece(const uint32_t (&pairs)[kPairs], int row, int column, uint32_t buffer,
                                   uint64_t policy) const {
    if (lane == 0) ptx::bulk_wait_read<1>();  // the store before the previous one has left this buffer
    __syncwarp();
    write_rows(pairs, buffer);
    ptx::fence_async_proxy();
    __syncwarp();
    if (lane == 0) {
      ptx::tma_store_2d(p.y, buffer, column, row, policy);
      ptx::bulk_commit();
    }
  }

  __device__ void write_rows(const uint32_t (&pairs)[kPairs], uint32_t buffer) const {
    const int matrix = lane >> 3;
    const int piece_row = ((matrix & 1) * 8 + (lane & 7)) ^ (kSwapped ? matrix & 1 : 0);
#pragma unroll
    for (int j = 0; j < 8; j += 2) {
      const uint32_t *v = pairs + 2 * j;  // column group j, then j + 1: rows 0-7, rows 8-15
      // 128-byte swizzle: 16-byte chunk c of row r lies at chunk c ^ (r % 8).
      const int chunk = (j + (matrix >> 1)) ^ (piece_row & 7);
      ptx::store_matrix_x4(buffer + piece_row * 128 + chunk * 16, v[0], v[1], v[2], v[3]);
    }
  }

  // By one lane of the producers, what both warpgroups have left or will leave of a tile. They would wait for the fence, for
  // TMA and for its answer whether it has read what was stored before: tiles of 384 and 512 k took 2 and 6% longer then.
  // They take the same stages at about the same time, so pieces come in turn.
  __device__ void store_handed_over(int strip0, int strip1, int column, uint64_t policy) const {
    uint32_t before = 0;  // what becomes empty when TMA has read it
#pragma unroll 1
    for (int piece = 0; piece < kPieces; ++piece) {
#pragma unroll 1
      for (int strip = 0; strip < 2; ++strip) {
        const int row = (strip == 0 ? strip0 : strip1) * kStrip;
        if (row < 0) continue;
        ptx::barrier_wait(piece_full(strip, piece), piece_parity(piece));
        ptx::fence_async_proxy();
        ptx::tma_store_2d(p.y, piece_buffers(4 * strip) + (piece & 1) * kPieceBytes, column + piece * kPanel,
                          row, policy);
        ptx::bulk_commit();
        ptx::bulk_wait_read<1>();
        if (before != 0) ptx::barrier_arrive(before);
        before = piece_empty(strip, piece);
      }
    }
    ptx::bulk_wait_read<0>();
    if (before != 0) ptx::barrier_arrive(before);
  }

  // A row of the piece is a column of Y: its 128 bytes are the 64 rows of the strip, to which each warp of the
  // warpgroup contributes 16.
  __device__ void store_transposed_piece(const uint32_t (&pairs)[kPairs], int strip_row, int column,
                                         uint32_t buffer, uint64_t policy) const {
    const int barrier = warp / 4;  // one a consumer warpgroup; 0 is that of __syncthreads
    const bool issues = (warp & 3) == 0 && lane == 0;
    const int matrix = lane >> 3;
    const int chunk = (warp & 3) * 2 + (matrix & 1);
    if (issues) ptx::bulk_wait_read<1>();
    ptx::named_barrier_sync(barrier, 128);
#pragma unroll
    for (int j = 0; j < 8; j += 2) {
      const uint32_t *v = pairs + 2 * j;
      const int piece_row = (j + (matrix >> 1)) * 8 + (lane & 7);
      ptx::store_matrix_x4_transposed(buffer + piece_row * 128 + ((chunk ^ (lane & 7)) << 4), v[0], v[1],
                                      v[2], v[3]);
    }
    ptx::fence_async_proxy();
    ptx::named_barrier_sync(barrier, 128);
    if (issues) {
      ptx::tma_store_2d(p.y, buffer, strip_row, column, policy);
      ptx::bulk_commit();
    }
  }

  // The sums of a part, for add_parts.
  __device__ void store_part(const float (&d)[kTileN / 2], int slot, int strip, int column) const {
    const int row = strip * kStrip + (warp & 3) * 16 + (lane >> 2);
    column += 2 * (lane & 3);
    if constexpr (kTransposed)
      store_part_columns(d, slot, row, column);
    else
      store_part_rows(d, slot, row, column);
  }

  // The quads of a warp fill 32 bytes of eight rows at a time.
  __device__ void store_part_rows(const float (&d)[kTileN / 2], int slot, int row, int column) const {
    float *target = p.partial + (static_cast<int64_t>(slot) * (2 * kStrip) + row) * p.n + column;
#pragma unroll
    for (int i = 0; i < kTileN / 2; i += 2) {
      const int offset = i / 4 * 8;
      if (column + offset >= p.n) continue;  // n is a multiple of 8
      float *at = target + (i / 2 % 2 ? static_cast<int64_t>(8) * p.n : 0) + offset;
      *reinterpret_cast<float2 *>(at) = make_float2(d[i], d[i + 1]);
    }
  }

  // Lanes of equal columns fill 32 bytes of four columns at a time.
  __device__ void store_part_columns(const float (&d)[kTileN / 2], int slot, int row, int column) const {
    float *target = p.partial + (static_cast<int64_t>(slot) * p.n + column) * (2 * kStrip) + row;
#pragma unroll
    for (int i = 0; i < kTileN / 2; ++i) {
      const int right = i / 4 * 8 + i % 2, below = i / 2 % 2 * 8;
      if (column + right < p.n) target[right * (2 * kStrip) + below] = d[i];
    }
  }

  // Warp 3 of every CTA, while others multiply: zeros to the rows of tiles without entries.
  __device__ void clear() const {
    if constexpr (kTransposed)
      clear_columns();
    else
      clear_rows();
  }

  __device__ void clear_rows() const {
    for (int i = blockIdx.x; i < p.empty_tiles * 2 * kStrip; i += gridDim.x) {
      const int strip = __ldg(&p.tiles[p.tile_count + i / (2 * kStrip)].strip[i / kStrip % 2]);
      const int row = strip * kStrip + i % kStrip;
      if (strip < 0 || row >= p.rows) continue;
      T *y = static_cast<T *>(p.y_data) + row * p.y_row_stride;
      for (int column = 8 * lane; column < p.n; column += 8 * 32)  // n is a multiple of 8
        __stcs(reinterpret_cast<int4 *>(y + column), make_int4(0, 0, 0, 0));
    }
  }

  // Strips of as many columns as a tile has, four of them at a time.
  __device__ void clear_columns() const {
    const int across = (p.n + kTileN - 1) / kTileN;
    for (int i = blockIdx.x; i < p.empty_tiles * 2 * across; i += gridDim.x) {
      const int strip = __ldg(&p.tiles[p.tile_count + i / (2 * across)].strip[i / across % 2]);
      if (strip < 0) continue;
      const int first = i % across * kTileN, end = min(first + kTileN, p.n);
      T *y = static_cast<T *>(p.y_data) + strip * kStrip + 8 * (lane & 7);
      for (int column = first + (lane >> 3); column < end; column += 4)
        __stcs(reinterpret_cast<int4 *>(y + column * p.y_col_stride), make_int4(0, 0, 0, 0));
    }
  }
};

}  // namespace bsrg::tall
