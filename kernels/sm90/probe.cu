// One WGMMA on shared-memory images given byte for byte: the smallest test of what a matrix descriptor means.
#include "params.h"
#include "ptx/sync.cuh"
#include "ptx/wgmma.cuh"

namespace bsrg {

template <typename T, int kTransposeA, int kTransposeB>
__device__ __forceinline__ void probe(const bsrg_probe_params &p) {
  alignas(1024) __shared__ uint4 image_a[BSRG_PROBE_IMAGE_BYTES / 16];
  alignas(1024) __shared__ uint4 image_b[BSRG_PROBE_IMAGE_BYTES / 16];
  ptx::follow_grid_before();
  for (int i = threadIdx.x; i < BSRG_PROBE_IMAGE_BYTES / 16; i += 128) {
    image_a[i] = static_cast<const uint4 *>(p.image_a)[i];
    image_b[i] = static_cast<const uint4 *>(p.image_b)[i];
  }
  ptx::fence_async_proxy();
  __syncthreads();

  float d[32];
  ptx::warpgroup_fence();
  ptx::Wgmma<T, 64, kTransposeA, kTransposeB>::run(d, p.descriptor_a | (ptx::shared_address(image_a) >> 4),
                                                   p.descriptor_b | (ptx::shared_address(image_b) >> 4), 0);
  ptx::warpgroup_commit();
  ptx::warpgroup_wait<0>();

  const int row = threadIdx.x / 32 * 16 + threadIdx.x % 32 / 4;
  const int column = threadIdx.x % 4 * 2;
#pragma unroll
  for (int i = 0; i < 32; ++i) p.d[(row + i / 2 % 2 * 8) * 64 + column + i / 4 * 8 + i % 2] = d[i];
}

}  // namespace bsrg

#define BSRG_PROBE_KERNEL(NAME, T, TRANSPOSE_A, TRANSPOSE_B)                                \
  extern "C" __global__ void __launch_bounds__(128, 1)                                      \
      NAME##_a##TRANSPOSE_A##_b##TRANSPOSE_B(const __grid_constant__ bsrg_probe_params p) { \
    bsrg::probe<T, TRANSPOSE_A, TRANSPOSE_B>(p);                                            \
  }

BSRG_PROBE_KERNEL(probe_f16, __half, 0, 0)
BSRG_PROBE_KERNEL(probe_f16, __half, 0, 1)
BSRG_PROBE_KERNEL(probe_f16, __half, 1, 0)
BSRG_PROBE_KERNEL(probe_f16, __half, 1, 1)
BSRG_PROBE_KERNEL(probe_bf16, __nv_bfloat16, 0, 0)
BSRG_PROBE_KERNEL(probe_bf16, __nv_bfloat16, 0, 1)
BSRG_PROBE_KERNEL(probe_bf16, __nv_bfloat16, 1, 0)
BSRG_PROBE_KERNEL(probe_bf16, __nv_bfloat16, 1, 1)
