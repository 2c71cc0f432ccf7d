// Lists of sampled products that are made for one product: those that depend on the pattern alone pattern.cu makes. Values
// behind the last block become zeros, so that sums over all of them are right.
#include "ptx/sync.cuh"
#include "sm80/sampled_lists.cuh"

namespace {

constexpr int kWarps = BSRG_SAMPLED_LISTS_THREADS / 32;

// By the threads of `ctas` CTAs, of which this is number `cta`.
template <typename T>
__device__ __forceinline__ void clear_rest(const bsrg_sampled_lists_params &p, int64_t cta, int64_t ctas) {
  const int64_t units = p.block_bytes / static_cast<int64_t>(sizeof(T));
  T *out = static_cast<T *>(p.out);
  for (int64_t i = p.counts[0] * units + cta * BSRG_SAMPLED_LISTS_THREADS + threadIdx.x;
       i < p.capacity * units; i += ctas * BSRG_SAMPLED_LISTS_THREADS)
    out[i] = T{};
}

}  // namespace

extern "C" __global__ void __launch_bounds__(BSRG_SAMPLED_LISTS_THREADS)
    sampled_lists(const __grid_constant__ bsrg_sampled_lists_params p) {
  bsrg::ptx::follow_grid_before();
  const int cta = static_cast<int>(blockIdx.x), row = cta * kWarps + static_cast<int>(threadIdx.x) / 32;
  if (cta < p.list_ctas) {
    if (row < p.rows) bsrg::sampled_lists::Row(p, row).make();
    return;
  }
  const int64_t mine = cta - p.list_ctas, all = static_cast<int>(gridDim.x) - p.list_ctas;
  if (p.unit == 16)
    clear_rest<uint4>(p, mine, all);
  else if (p.unit == 8)
    clear_rest<uint64_t>(p, mine, all);
  else if (p.unit == 4)
    clear_rest<uint32_t>(p, mine, all);
  else
    clear_rest<uint16_t>(p, mine, all);
}
