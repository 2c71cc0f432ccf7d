// Copies the stored blocks into larger ones, whose other elements become zero, for the regroup family, and back.
//
// A CTA writes one tile of the regrouped values once: it clears the tile in shared memory, copies the pieces of
// stored blocks that lie in it there, and stores the whole. Nothing is written twice and stores are always full
// 16-byte vectors, whatever the stored blocks' shape. 16-bit elements of any kind are copied as they are. Blocks for
// the stream kernels leave shared memory in the layout that those read.
#include <cstdint>

#include "params.h"
#include "ptx/cp_async.cuh"
#include "ptx/sync.cuh"

namespace bsrg::regroup {

// Asynchronous where the hardware has such copies, so that a thread's copies overlap.
template <typename Chunk>
__device__ __forceinline__ void copy(Chunk *target, const Chunk *source) {
  if constexpr (sizeof(Chunk) >= 4)
    ptx::cp_async<sizeof(Chunk)>(ptx::shared_address(target), source, true);
  else
    *target = __ldg(source);
}

// Chunk: as many elements as the stored blocks' width and address allow.
template <typename Chunk>
__device__ __forceinline__ void copy_pieces(const bsrg_regroup_params &p, unsigned char *tile) {
  constexpr int kElements = sizeof(Chunk) / 2;
  const int lanes = 1 << p.lanes_log2, groups = BSRG_REGROUP_THREADS >> p.lanes_log2;
  const int lane = threadIdx.x & (lanes - 1), group = threadIdx.x >> p.lanes_log2;
  const int source_pitch = p.block_width / kElements, target_pitch = p.child_width / kElements;
  const int64_t end = __ldg(p.tile_begin + blockIdx.x + 1);
  for (int64_t i = __ldg(p.tile_begin + blockIdx.x) + group; i < end; i += groups) {
    const int4 piece = __ldg(reinterpret_cast<const int4 *>(p.pieces) + i);
    const int rows = piece.w & 0xffff, across = (static_cast<uint32_t>(piece.w) >> 16) / kElements;
    const auto *source = reinterpret_cast<const Chunk *>(static_cast<const uint16_t *>(p.values) +
                                                         piece.x * p.block_elements + piece.y);
    auto *target = reinterpret_cast<Chunk *>(tile) + piece.z / kElements;
    const uint32_t reciprocal = BSRG_REGROUP_RECIPROCAL(across);
#pragma unroll 4
    for (int chunk = lane; chunk < rows * across; chunk += lanes) {
      const int row = BSRG_REGROUP_ROW(chunk, reciprocal), column = chunk - row * across;
      copy(target + row * target_pitch + column, source + row * source_pitch + column);
    }
  }
  ptx::cp_async_commit();
  ptx::cp_async_wait<0>();
}

__device__ __forceinline__ void store_rows(const uint4 *tile, uint4 *out, int vectors) {
  for (int i = threadIdx.x; i < vectors; i += BSRG_REGROUP_THREADS) out[i] = tile[i];
}

__device__ __forceinline__ void store_parts(const uint4 *tile, uint4 *out, int vectors, int width) {
  const int across_log2 = BSRG_PART_ACROSS_LOG2(width);
  for (int i = threadIdx.x; i < vectors; i += BSRG_REGROUP_THREADS)
    out[i] = tile[BSRG_UNIT_BY_ROWS(i, across_log2)];
}

template <typename Chunk>
__device__ __forceinline__ void run(const bsrg_regroup_params &p) {
  extern __shared__ __align__(16) unsigned char tile[];
  const int64_t first = static_cast<int64_t>(blockIdx.x) * p.tile_elements;
  const int bytes = 2 * static_cast<int>(min(static_cast<int64_t>(p.tile_elements), p.elements - first));
  for (int i = 16 * threadIdx.x; i < bytes; i += 16 * BSRG_REGROUP_THREADS)
    *reinterpret_cast<uint4 *>(tile + i) = make_uint4(0, 0, 0, 0);
  __syncthreads();
  copy_pieces<Chunk>(p, tile);
  __syncthreads();
  auto *const out = reinterpret_cast<uint4 *>(static_cast<unsigned char *>(p.regrouped) + 2 * first);
  if (p.for_stream)
    store_parts(reinterpret_cast<const uint4 *>(tile), out, bytes / 16, p.child_width);
  else
    store_rows(reinterpret_cast<const uint4 *>(tile), out, bytes / 16);
}

// The other way: pieces of stored blocks from those that hold them.
template <typename Chunk>
__device__ __forceinline__ void copy_back(const bsrg_regroup_params &p) {
  constexpr int kElements = sizeof(Chunk) / 2;
  const int lanes = 1 << p.lanes_log2, groups = BSRG_REGROUP_THREADS >> p.lanes_log2;
  const int lane = threadIdx.x & (lanes - 1), group = threadIdx.x >> p.lanes_log2;
  const int stored_pitch = p.block_width / kElements, pitch = p.child_width / kElements;
  const auto *tile = static_cast<const uint16_t *>(p.regrouped) + blockIdx.x * int64_t{p.tile_elements};
  const int64_t end = __ldg(p.tile_begin + blockIdx.x + 1);
  for (int64_t i = __ldg(p.tile_begin + blockIdx.x) + group; i < end; i += groups) {
    const int4 piece = __ldg(reinterpret_cast<const int4 *>(p.pieces) + i);
    const int rows = piece.w & 0xffff, across = (static_cast<uint32_t>(piece.w) >> 16) / kElements;
    auto *stored =
        reinterpret_cast<Chunk *>(static_cast<uint16_t *>(p.stored) + piece.x * p.block_elements + piece.y);
    const auto *from = reinterpret_cast<const Chunk *>(tile + piece.z);
    const uint32_t reciprocal = BSRG_REGROUP_RECIPROCAL(across);
#pragma unroll 4
    for (int chunk = lane; chunk < rows * across; chunk += lanes) {
      const int row = BSRG_REGROUP_ROW(chunk, reciprocal), column = chunk - row * across;
      stored[row * stored_pitch + column] = from[row * pitch + column];
    }
  }
}

}  // namespace bsrg::regroup

#define BSRG_REGROUP_KERNEL(elements, Chunk)                               \
  extern "C" __global__ void __launch_bounds__(BSRG_REGROUP_THREADS, 8)    \
      regroup_v##elements(const __grid_constant__ bsrg_regroup_params p) { \
    bsrg::ptx::follow_grid_before();                                       \
    bsrg::regroup::run<Chunk>(p);                                          \
  }                                                                        \
  extern "C" __global__ void __launch_bounds__(BSRG_REGROUP_THREADS, 8)    \
      ungroup_v##elements(const __grid_constant__ bsrg_regroup_params p) { \
    bsrg::ptx::follow_grid_before();                                       \
    bsrg::regroup::copy_back<Chunk>(p);                                    \
  }
BSRG_REGROUP_KERNEL(8, uint4)
BSRG_REGROUP_KERNEL(4, uint2)
BSRG_REGROUP_KERNEL(2, uint32_t)
BSRG_REGROUP_KERNEL(1, uint16_t)
