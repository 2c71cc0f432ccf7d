// Values of 8-bit elements, as the Hopper kernels of attention multiply them: WGMMA takes 8-bit operands only with the
// dimension that is summed over, the keys, contiguous.
//
// Four neighbouring lanes pack 16 keys x 16 elements. Lane t of them loads 16 elements of each of the keys of word t,
// transposes them by bytes, and exchanges words with the other three, so that each stores whole rows of 16 keys.
#include <cstdint>

#include "params.h"
#include "ptx/sync.cuh"

namespace {

// Words of 4 elements of 4 keys become words of 4 keys of an element.
__device__ __forceinline__ void transpose_bytes(uint32_t (&w)[4]) {
  const uint32_t low01 = __byte_perm(w[0], w[1], 0x5140), high01 = __byte_perm(w[0], w[1], 0x7362);
  const uint32_t low23 = __byte_perm(w[2], w[3], 0x5140), high23 = __byte_perm(w[2], w[3], 0x7362);
  w[0] = __byte_perm(low01, low23, 0x5410);
  w[1] = __byte_perm(low01, low23, 0x7632);
  w[2] = __byte_perm(high01, high23, 0x5410);
  w[3] = __byte_perm(high01, high23, 0x7632);
}

// Word i of lane t becomes word t of lane i, of four lanes.
__device__ __forceinline__ void transpose_lanes(uint32_t (&w)[4], int t) {
#pragma unroll
  for (int distance = 1; distance < 4; distance *= 2) {
    const bool upper = t & distance;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      if (i & distance) continue;
      const uint32_t received = __shfl_xor_sync(~0u, upper ? w[i] : w[i | distance], distance);
      (upper ? w[i] : w[i | distance]) = received;
    }
  }
}

}  // namespace

extern "C" __global__ void __launch_bounds__(BSRG_ATTENTION_VALUE_THREADS)
    attention_values(const __grid_constant__ bsrg_attention_values_params p) {
  bsrg::ptx::follow_grid_before();
  const int head_index = blockIdx.x / p.ctas, cta = blockIdx.x % p.ctas;
  const int batch = head_index / p.values.heads, head = head_index % p.values.heads;
  const int lanes_of_chunk = p.size / 4, in_cta = threadIdx.x / lanes_of_chunk;
  const int t = threadIdx.x % 4, first_element = threadIdx.x % lanes_of_chunk / 4 * 16;
  const int chunk = cta * BSRG_ATTENTION_VALUE_CHUNKS(p.size) + in_cta;
  // The others take part in the exchange.
  const bool packs = in_cta < BSRG_ATTENTION_VALUE_CHUNKS(p.size) && chunk < p.chunks;

  uint4 rows[4] = {};
  if (packs && first_element < p.value_size) {
    const uint8_t *v = p.v + batch * p.batch_stride + head * p.head_stride + first_element;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int key = chunk * BSRG_ATTENTION_VALUE_CHUNK + BSRG_ATTENTION_VALUE_KEY(t, i);
      if (key < p.keys) rows[i] = __ldg(reinterpret_cast<const uint4 *>(v + key * p.row_stride));
    }
  }
  // words[j][i]: of element 4 * j + i, the four keys of word t
  uint32_t words[4][4] = {{rows[0].x, rows[1].x, rows[2].x, rows[3].x},
                          {rows[0].y, rows[1].y, rows[2].y, rows[3].y},
                          {rows[0].z, rows[1].z, rows[2].z, rows[3].z},
                          {rows[0].w, rows[1].w, rows[2].w, rows[3].w}};
  uint8_t *packed = p.values.data + head_index * p.values.head_bytes +
                    (static_cast<int64_t>(chunk) * p.size + first_element + t) * BSRG_ATTENTION_VALUE_CHUNK;
#pragma unroll
  for (int j = 0; j < 4; ++j) {
    transpose_bytes(words[j]);
    transpose_lanes(words[j], t);
    if (packs)
      *reinterpret_cast<uint4 *>(packed + 4 * j * BSRG_ATTENTION_VALUE_CHUNK) =
          make_uint4(words[j][0], words[j][1], words[j][2], words[j][3]);
  }
}
