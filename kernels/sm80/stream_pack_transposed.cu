// As stream_pack.cu, for transposed views: stored blocks are [columns * width][rows * height], and are turned on the way.
#include <cstdint>

#include "params.h"
#include "ptx/mma_sync.cuh"
#include "ptx/sync.cuh"

namespace {

constexpr int kTogether = 4;  // core matrices of a warp: keeps loads in flight

// Where a part begins, in elements, and the distance of its k.
struct Source {
  int64_t element;
  int pitch;
};

__device__ __forceinline__ Source source_of(const bsrg_pack_params &p, int source) {
  const int column = source % p.columns, row = source / p.columns % p.rows;
  const int64_t block = source / p.columns / p.rows;
  const int pitch = p.rows * p.height;
  return {(block * p.columns + column) * p.width * pitch + row * p.height, pitch};
}

}  // namespace

// A part is (height / 8) x (width / 8) core matrices of 8 rows x 8 k, those of the first 8 rows first.
extern "C" __global__ void __launch_bounds__(BSRG_PACK_THREADS)
    stream_pack_transposed(const __grid_constant__ bsrg_pack_params p) {
  bsrg::ptx::follow_grid_before();
  const int across = p.width / 8, cores = across * (p.height / 8);  // of a part
  const int lane = threadIdx.x % 32;
  const int64_t warp = (static_cast<int64_t>(blockIdx.x) * BSRG_PACK_THREADS + threadIdx.x) / 32;
  const int64_t warps = static_cast<int64_t>(gridDim.x) * (BSRG_PACK_THREADS / 32);
  const uint16_t *values = static_cast<const uint16_t *>(p.values);
  uint32_t *packed = static_cast<uint32_t *>(p.packed);
  const int64_t total = (p.blocks != nullptr ? *p.blocks * p.rows * p.columns : p.count) * cores;
  for (int64_t first = warp * kTogether; first < total; first += warps * kTogether) {
    int64_t part = first / cores;
    int core = static_cast<int>(first - part * cores);
    uint32_t pair[kTogether];
#pragma unroll
    for (int i = 0; i < kTogether; ++i) {
      pair[i] = 0;
      if (first + i < total) {
        const Source from = source_of(p, __ldg(p.source + part));
        const int k = core % across * 8 + lane / 4, row = core / across * 8 + lane % 4 * 2;
        pair[i] = __ldg(reinterpret_cast<const uint32_t *>(values + from.element +
                                                           static_cast<int64_t>(k) * from.pitch + row));
      }
      if (++core == cores) {
        core = 0;
        ++part;
      }
    }
#pragma unroll
    for (int i = 0; i < kTogether; ++i) {
      const uint32_t turned = bsrg::ptx::transpose_matrix(pair[i]);
      if (first + i < total) packed[(first + i) * 32 + lane] = turned;
    }
  }
}
