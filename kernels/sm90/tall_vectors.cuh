// Fused output of the tall kernels (bsrg_output_params) but for activations: vectors of a tile's rows and columns come to where
// its pieces will lie, before the sums are ready, and meet these in registers.
#pragma once

#include "output.cuh"
#include "ptx/convert.cuh"
#include "ptx/cp_async.cuh"
#include "ptx/sync.cuh"
#include "ptx/tma.cuh"
#include "ptx/wgmma.cuh"
#include "sm90/tall_layout.cuh"

namespace bsrg::tall {

// kSwapped: rows of A come in the order of BSRG_TWO_ROWS.
template <typename T, typename L, bool kTransposed, bool kHandsOver, bool kSwapped>
struct Vectors {
  static_assert(!kTransposed || !kHandsOver, "only rows are handed over");
  // 64 columns of a warp's 16 rows or, where a warpgroup has its pieces together, of its 64.
  static constexpr bool kTogether = kTransposed || kHandsOver;
  static constexpr int kPieceBytes = (kTogether ? kStrip : 16) * kPanel * 2;
  static constexpr int kWarpOutputBytes = 2 * 16 * kPanel * 2;  // two pieces, or its part of a warpgroup's
  static_assert(2 * kTileN * 4 <= kWarpOutputBytes, "two vectors of a tile's columns");

  const bsrg_tall_params &p;
  const uint32_t shared;
  const int warp, lane;

  // Of a warp's 16 rows a thread has sums of row lane / 4 and of this one.
  __device__ int row_below() const { return 8 + (lane >> 2 ^ (kSwapped ? 1 : 0)); }

  // ---- pieces of the output ---------------------------------------------------------------------

  // Two a warp or, of four times the size, two a warpgroup, which begin where those of its first warp would.
  __device__ uint32_t piece_buffers(int consumer_warp) const {
    return shared + L::kOutput + (kTogether ? consumer_warp & ~3 : consumer_warp) * kWarpOutputBytes;
  }
  __device__ uint32_t piece_buffers() const { return piece_buffers(warp - 4); }

  // Where pieces are handed over: of a strip's two buffers the one of this piece. A tile has four, so that which phase it
  // is follows from the piece.
  __device__ uint32_t piece_full(int strip, int piece) const {
    return shared + L::kPieceFull + 8 * (2 * strip + (piece & 1));
  }
  __device__ uint32_t piece_empty(int strip, int piece) const {
    return shared + L::kPieceEmpty + 8 * (2 * strip + (piece & 1));
  }
  static __device__ uint32_t piece_parity(int piece) { return piece >> 1 & 1; }

  // Until TMA has read what the pieces held.
  __device__ void wait_for_pieces() const {
    if constexpr (kHandsOver) {
      ptx::barrier_wait(piece_empty(warp / 4 - 1, 0), 1);
      ptx::barrier_wait(piece_empty(warp / 4 - 1, 1), 1);
    } else if constexpr (kTransposed) {
      if ((warp & 3) == 0 && lane == 0) ptx::bulk_wait_read<0>();
      ptx::named_barrier_sync(warp / 4, 128);
    } else {
      if (lane == 0) ptx::bulk_wait_read<0>();
      __syncwarp();
    }
  }

  // ---- in passes over d that only cost where they are asked for ------------------------------------

  // The warp's share of the output pieces, where the vectors of its columns wait as float32, 1 KB each.
  __device__ uint32_t column_vector(int i) const {
    return shared + L::kOutput + (warp - 4) * kWarpOutputBytes + i * (kTileN * 4);
  }

  // Whether the vector is copied 16 bytes at a time. cp.async needs no registers, of which there are not enough for all of a
  // lane's elements at once, so that it takes one trip to L2 and not four.
  __device__ bool copied(const bsrg_output_vector &v) const {
    return v.stride == 1 && !v.is_float && reinterpret_cast<uintptr_t>(v.data) % 16 == 0;
  }

  __device__ void fetch_column_vector(int i, const bsrg_output_vector &v, int column, float otherwise) const {
    if (v.data == nullptr) return;
    if (copied(v)) {
      const int first = column + 8 * lane;
      const int count = min(max(static_cast<int>(v.count) - first, 0), 8);
      ptx::cp_async_part(column_vector(i) + 16 * lane,
                         static_cast<const T *>(v.data) + (count > 0 ? first : 0), 2 * count);
      return;
    }
#pragma unroll 1
    for (int first = lane; first < kTileN; first += kTileN / 4) {
      float mine[kTileN / 128];
      output::load_strided<T>(mine, v, column + first, otherwise);
#pragma unroll
      for (int j = 0; j < kTileN / 128; ++j)
        ptx::store_shared(column_vector(i) + 4 * (first + 32 * j), mine[j]);
    }
  }

  __device__ void convert_column_vector(int i, const bsrg_output_vector &v) const {
    if (v.data == nullptr || !copied(v)) return;
    const int4 eight = ptx::load_shared_int4(column_vector(i) + 16 * lane);
    __syncwarp();
    const float2 a = ptx::unpack<T>(eight.x), b = ptx::unpack<T>(eight.y), c = ptx::unpack<T>(eight.z),
                 d = ptx::unpack<T>(eight.w);
    const uint32_t target = column_vector(i) + 32 * lane;
    ptx::store_shared(target, make_int4(__float_as_int(a.x), __float_as_int(a.y), __float_as_int(b.x),
                                        __float_as_int(b.y)));
    ptx::store_shared(target + 16, make_int4(__float_as_int(c.x), __float_as_int(c.y), __float_as_int(d.x),
                                             __float_as_int(d.y)));
  }

  // Where the pieces are empty, before the sums are ready. Returns what lane i has of the rows: the bias of row i or the scale
  // of row i - 16.
  __device__ float fetch_vectors(int row, int column) const {
    wait_for_pieces();
    if (adds_by_mma()) {
      fetch_bias(row & -kStrip, column);  // from the strip's first row on
      return 0;
    }
    fetch_column_vector(0, p.output.col_scale, column, 1.f);
    fetch_column_vector(1, p.output.col_bias, column, 0.f);
    ptx::cp_async_commit();
    return lane < 16 ? output::load<T>(p.output.row_bias, row + lane, 0.f)
                     : output::load<T>(p.output.row_scale, row + lane - 16, 1.f);
  }

  __device__ void convert_column_vectors() const {
    if (adds_by_mma()) return;
    ptx::cp_async_wait<0>();
    convert_column_vector(0, p.output.col_scale);
    convert_column_vector(1, p.output.col_bias);
    __syncwarp();
  }

  // apply(sum, element of the vector), of the tile's first or second.
  template <typename Apply>
  __device__ void for_columns(float (&d)[kTileN / 2], int vector, Apply apply) const {
    const uint32_t mine = column_vector(vector) + 8 * (lane & 3);
#pragma unroll
    for (int i = 0; i < kTileN / 2; i += 4) {
      const float2 pair = ptx::load_shared_float2(mine + i / 4 * 32);
      apply(d[i], pair.x);
      apply(d[i + 1], pair.y);
      apply(d[i + 2], pair.x);
      apply(d[i + 3], pair.y);
    }
  }

  // apply(sum, element of rows), which the warp has in lanes from `first` on.
  template <typename Apply>
  __device__ void for_rows(float (&d)[kTileN / 2], float rows, int first, Apply apply) const {
    const float above = __shfl_sync(~0u, rows, first + (lane >> 2)),
                below = __shfl_sync(~0u, rows, first + row_below());
#pragma unroll
    for (int i = 0; i < kTileN / 2; ++i) apply(d[i], i / 2 % 2 ? below : above);
  }

  // Before alpha and C.
  __device__ void scale(float (&d)[kTileN / 2], float rows) const {
    if (adds_by_mma()) return;
    const auto multiply = [](float &sum, float factor) { sum *= factor; };
    if (p.output.col_scale.data != nullptr) for_columns(d, 0, multiply);
    if (p.output.row_scale.data != nullptr) for_rows(d, rows, 16, multiply);
  }

  // After them. Activations come with the rounding.
  __device__ void add_bias(float (&d)[kTileN / 2], float rows) const {
    if (adds_by_mma()) return;
    const auto add = [](float &sum, float bias) { sum += bias; };
    if (p.output.col_bias.data != nullptr) for_columns(d, 1, add);
    if (p.output.row_bias.data != nullptr) for_rows(d, rows, 0, add);
  }

  // ---- a bias that the tensor cores add ------------------------------------------------------------

  // As one more instruction along k: 16 k of which numbers 0 and 8 count, a half in one operand and the bias in the other. Other
  // products are of zeros, so it is exact, and what is not finite stays so. A row has 16 bytes, for both groups of eight k.

  __device__ bool adds_by_mma() const { return p.bias_by_mma != BSRG_TALL_BIAS_NONE; }
  __device__ bool is_of_columns() const { return p.bias_by_mma == BSRG_TALL_BIAS_COLUMNS; }

  // Each warp all columns, or its strip's rows.
  __device__ void fetch_bias(int strip_row, int column) const {
    const bsrg_output_vector &v = is_of_columns() ? p.output.col_bias : p.output.row_bias;
    const int first = (is_of_columns() ? column : strip_row) + 8 * lane;
    const int count = min(max(static_cast<int>(v.count) - first, 0), 8);
    if (is_of_columns() || lane < kStrip / 8)
      ptx::cp_async_part(column_vector(0) + 16 * lane,
                         static_cast<const T *>(v.data) + (count > 0 ? first : 0), 2 * count);
    ptx::cp_async_commit();
  }

  // The operands, in the first and the second half of the warpgroup's pieces, two rows of either a thread. Other warps' pieces lie
  // there, too, and what they have fetched.
  static constexpr int kHalves = 2 * kWarpOutputBytes;
  __device__ uint32_t bias_operand() const { return piece_buffers(warp - 4 & ~3); }
  __device__ void place_bias() const {
    const int t = threadIdx.x % 128;
    ptx::cp_async_wait<0>();
    __syncwarp();
    // Of rows there are 64: the other warps' are copies, which nothing reads.
    const uint32_t two = ptx::load_shared_int(column_vector(0) + 4 * (is_of_columns() ? t : lane));
    ptx::named_barrier_sync(warp / 4, 128);
    // Row t, and the one behind it
    const bool swaps = kSwapped && !is_of_columns() && (t >> 2 & 1);
    const uint32_t mine = bias_operand() + 32 * t;
    const int4 half = make_int4(static_cast<int>(ptx::pack<T>(0.5f, 0.f)), 0, 0, 0);
    ptx::store_shared(mine + (swaps ? 16 : 0), make_int4(static_cast<int>(two & 0xffff), 0, 0, 0));
    ptx::store_shared(mine + (swaps ? 0 : 16), make_int4(static_cast<int>(two >> 16), 0, 0, 0));
    ptx::store_shared(mine + kHalves, half);
    ptx::store_shared(mine + kHalves + 16, half);
    ptx::fence_async_proxy();
    ptx::named_barrier_sync(warp / 4, 128);
  }

  // Behind the WGMMAs so far, if the tile is to have it. Whether d has anything now. A vote tells ptxas that the branch is uniform.
  __device__ bool add_bias_by_mma(float (&d)[kTileN / 2], bool fused, bool started) const {
    const bool adds = __any_sync(~0u, fused && adds_by_mma());
    if (adds) multiply_bias(d, started);
    return started || adds;
  }
  __device__ void multiply_bias(float (&d)[kTileN / 2], bool started) const {
    place_bias();
    const uint64_t half = ptx::matrix_descriptor(bias_operand() + kHalves, 0, 128, ptx::Swizzle::kNone);
    const uint64_t bias = ptx::matrix_descriptor(bias_operand(), 0, 128, ptx::Swizzle::kNone);
    ptx::warpgroup_fence();
    ptx::Wgmma<T, kTileN, 0, 0>::run(d, is_of_columns() ? half : bias, is_of_columns() ? bias : half,
                                     started);
    ptx::warpgroup_commit();
  }
};

}  // namespace bsrg::tall
