// What the kernels of few columns do while the grid before them ends: it may still write X, C and even A, but not the plan, which
// the host has uploaded, and what L2 has of A stays right whoever writes A.
#pragma once

#include "params.h"
#include "ptx/sync.cuh"

namespace bsrg::narrow {

// The CTA's share of the first bytes of A that memory is to send, so that it does not rest between two products. Which CTA
// multiplies them matters to nobody.
__device__ __forceinline__ void ask_for_blocks(const bsrg_narrow_params &p) {
  const char *const share = static_cast<const char *>(p.values) + blockIdx.x * p.share_bytes;
#pragma unroll 1
  for (int i = 128 * threadIdx.x; i < p.ahead_bytes; i += 128 * blockDim.x) ptx::prefetch_l2(share + i);
}

// The block columns of the CTA's item or, if these have no places of their own, of all blocks.
__device__ __forceinline__ const int32_t *columns_of_item(const bsrg_narrow_params &p) {
  return p.columns + static_cast<int64_t>(blockIdx.x) * p.columns_stride;
}

__device__ __forceinline__ bsrg_narrow_item load_item(const bsrg_narrow_params &p) {
  static_assert(sizeof(bsrg_narrow_item) == 24, "three loads");
  const auto *const words = reinterpret_cast<const int2 *>(p.items + blockIdx.x);
  const int2 blocks = ptx::load_uploaded(words), rows = ptx::load_uploaded(words + 1),
             rest = ptx::load_uploaded(words + 2);
  return {blocks.x, blocks.y, rows.x, rows.y, rest.x, rest.y};
}

// What a CTA begins with. Where block columns have places of their own, each thread asks for one and need not wait for the item.
struct Start {
  const int32_t *columns;
  bool has_column;
  int32_t column;
  bsrg_narrow_item item;
};

__device__ __forceinline__ Start load_start(const bsrg_narrow_params &p) {
  Start start;
  start.columns = columns_of_item(p);
  start.has_column = static_cast<int>(threadIdx.x) < p.columns_stride;
  start.column = start.has_column ? ptx::load_uploaded(start.columns + threadIdx.x) : 0;
  start.item = load_item(p);
  return start;
}

// Of all blocks of the item, in shared memory.
__device__ __forceinline__ void keep_columns(const bsrg_narrow_params &p, const Start &start,
                                             int32_t *block_columns) {
  const bsrg_narrow_item &item = start.item;
  if (start.has_column) block_columns[threadIdx.x] = start.column;
  const int32_t *const rest = p.columns_stride > 0 ? start.columns : start.columns + item.first_block;
  for (int i = threadIdx.x + (start.has_column ? blockDim.x : 0); i < item.block_count; i += blockDim.x)
    block_columns[i] = __ldg(rest + i);
}

}  // namespace bsrg::narrow
