#include "ptx/sync.cuh"
#include "sm80/topk_lists.cuh"
#include "sm80/topk_select.cuh"

BSRG_TOPK_KERNEL(f16, KeyF16)
BSRG_TOPK_KERNEL(bf16, KeyBf16)
BSRG_TOPK_KERNEL(f32, KeyF32)

extern "C" __global__ void __launch_bounds__(BSRG_TOPK_THREADS)
    topk_tiles(const __grid_constant__ bsrg_topk_lists_params p) {
  bsrg::ptx::follow_grid_before();
  bsrg::topk::list_tiles(p);
}

extern "C" __global__ void __launch_bounds__(BSRG_TOPK_THREADS, 4)
    topk_pairs(const __grid_constant__ bsrg_topk_lists_params p) {
  bsrg::ptx::follow_grid_before();
  bsrg::topk::PairList(p).make();
}

extern "C" __global__ void __launch_bounds__(BSRG_TOPK_THREADS)
    topk_words(const __grid_constant__ bsrg_topk_words_params p) {
  bsrg::ptx::follow_grid_before();
  bsrg::topk::list_words(p);
}
