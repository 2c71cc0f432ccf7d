/* Values of 8-bit attention, packed by kernels/sm80/attention_values.cu. */
#include "attention_hopper.h"

bsrg_status bsrg_attention_pack_values(const bsrg_attention_args *args, const bsrg_tensor *distinct,
                                       int32_t size, int32_t tile_keys, bsrg_gpu gpu,
                                       bsrg_attention_values *values, CUdeviceptr *scratch,
                                       bsrg_error *error) {
  /* One tile more than there are: a list may name the one behind the last. */
  const int64_t keys = (bsrg_ceil_div(distinct->rows, tile_keys) + 1) * tile_keys;
  const int64_t chunks = keys / BSRG_ATTENTION_VALUE_CHUNK, heads = distinct->batch * distinct->heads;
  const CUstream stream = (CUstream)args->stream;
  bsrg_status status =
      bsrg_scratch_alloc(gpu.api, gpu.device, (size_t)(heads * keys * size), stream, scratch, error);
  if (status != BSRG_OK) return status;
  *values = (bsrg_attention_values){
      .data = (uint8_t *)(uintptr_t)*scratch, .head_bytes = keys * size, .heads = (int32_t)distinct->heads};
  bsrg_attention_values_params p = {
      .v = distinct->data,
      .batch_stride = distinct->batch_stride,
      .head_stride = distinct->head_stride,
      .row_stride = distinct->row_stride,
      .keys = (int32_t)distinct->rows,
      .value_size = (int32_t)distinct->size,
      .values = *values,
      .size = size,
      .chunks = (int32_t)chunks,
      .ctas = (int32_t)bsrg_ceil_div(chunks, BSRG_ATTENTION_VALUE_CHUNKS(size))};
  return bsrg_launch(gpu.api, gpu.device, BSRG_KERNEL_ATTENTION_VALUES, heads * p.ctas, 1, stream, &p, error);
}
