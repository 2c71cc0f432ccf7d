#include "ptx/sync.cuh"
#include "sm80/pattern_bits.cuh"
#include "sm80/pattern_gather.cuh"
#include "sm80/pattern_lists.cuh"
#include "sm80/pattern_rows.cuh"
#include "sm80/sampled_lists.cuh"

#define BSRG_PATTERN_KERNEL(NAME, PARAMS, WORK)                      \
  extern "C" __global__ void __launch_bounds__(BSRG_PATTERN_THREADS) \
      NAME(const __grid_constant__ PARAMS p) {                       \
    bsrg::ptx::follow_grid_before();                                 \
    WORK;                                                            \
  }

BSRG_PATTERN_KERNEL(pattern_bits, bsrg_pattern_params, bsrg::pattern::bits_of_mask(p))
BSRG_PATTERN_KERNEL(pattern_columns, bsrg_pattern_params, bsrg::pattern::bits_of_columns(p))
BSRG_PATTERN_KERNEL(pattern_turn, bsrg_pattern_params, bsrg::pattern::turn(p))
BSRG_PATTERN_KERNEL(pattern_ranks, bsrg_pattern_rows_params, bsrg::pattern::ranks(p.side))

extern "C" __global__ void __launch_bounds__(BSRG_PATTERN_ROWS_THREADS)
    pattern_rows(const __grid_constant__ bsrg_pattern_rows_params p) {
  bsrg::ptx::follow_grid_before();
  __shared__ bsrg::pattern::Rows::Shared shared;
  bsrg::pattern::Rows(p, shared).make();
}

namespace {

// A warp a block row.
__device__ __forceinline__ void make_sampled_lists(const bsrg_sampled_lists_params &p) {
  const int row = bsrg::pattern::row_of_warp();
  if (row < p.rows) bsrg::sampled_lists::Row(p, row).make();
}

}  // namespace

// grid.y: the matrix, the transposed and, where there are any, the lists of sampled products. Four CTAs an SM: by itself ptxas
// spills registers to have six.
extern "C" __global__ void __launch_bounds__(BSRG_PATTERN_THREADS, 4)
    pattern_lists(const __grid_constant__ bsrg_pattern_params p) {
  bsrg::ptx::follow_grid_before();
  if (blockIdx.y == 0)
    bsrg::pattern::Lists<false>(p).make();
  else if (blockIdx.y == 1)
    bsrg::pattern::Lists<true>(p).make();
  else
    make_sampled_lists(p.sampled);
}

BSRG_PATTERN_KERNEL(pattern_gather_2, bsrg_gather_params, bsrg::pattern::gather<uint16_t>(p))
BSRG_PATTERN_KERNEL(pattern_gather_4, bsrg_gather_params, bsrg::pattern::gather<uint32_t>(p))
BSRG_PATTERN_KERNEL(pattern_gather_8, bsrg_gather_params, bsrg::pattern::gather<uint64_t>(p))
BSRG_PATTERN_KERNEL(pattern_gather_16, bsrg_gather_params, bsrg::pattern::gather<uint4>(p))
