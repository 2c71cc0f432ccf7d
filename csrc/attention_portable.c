/* Attention by the portable kernels, kernels/sm80/attention.cuh. */
#include "attention_lists.h"

typedef struct kernel_size {
  int64_t size, tile_rows;
} kernel_size;
#define SIZE_ROW(size, warp_rows, ctas) {size, BSRG_ATTENTION_WARPS * (warp_rows)},
static const kernel_size sizes[] = {BSRG_ATTENTION_SIZES(SIZE_ROW)},
                         sequence_sizes[] = {BSRG_ATTENTION_SEQUENCE_SIZES(SIZE_ROW)};
#undef SIZE_ROW

const char *bsrg_attention_portable_obstacle(const bsrg_attention_args *args, const bsrg_gpu_info *gpu) {
  const int64_t most = INT64_C(1) << 30; /* sums of a query and a key, rounded up, stay within 32 bits */
  if (args->dtype == BSRG_F8_E4M3)
    return "needs float16 or bfloat16; float8_e4m3fn is computed by 'hopper' and 'cpu'";
  if (gpu->sm_arch < 80) return "needs a GPU of compute capability 8.0 or later";
  if (args->q.size > BSRG_ATTENTION_MAX_SIZE || args->v.size > BSRG_ATTENTION_MAX_SIZE)
    return "needs head sizes of at most 256";
  if (args->q.rows > most || args->k.rows > most) return "needs at most 2**30 queries and as many keys";
  return NULL;
}

bsrg_status bsrg_attention_portable_launch(const bsrg_attention_args *args, bsrg_gpu gpu, bsrg_error *error) {
  const bsrg_tensor *q = &args->q, *k = &args->k, *v = &args->v;
  const int64_t size = bsrg_max(q->size, v->size);
  const bool by_sequence = args->sequences != NULL;
  const kernel_size *table = by_sequence ? sequence_sizes : sizes;
  int choice = 0;
  while (table[choice].size < size) ++choice;
  const int64_t tile_rows = table[choice].tile_rows;
  const int64_t query_tiles =
      by_sequence ? bsrg_attention_slots(args, tile_rows) : bsrg_ceil_div(q->rows, tile_rows);
  int64_t ctas;
  if (!bsrg_mul_ok(q->batch * q->heads, query_tiles, &ctas) || ctas > INT32_MAX || q->heads > INT32_MAX ||
      q->batch > INT32_MAX)
    return bsrg_fail(
        error, BSRG_ERR_VALUE,
        "q has %lld batches of %lld heads of %lld rows, but the portable kernels take fewer than "
        "2^31 tiles of %lld rows",
        (long long)q->batch, (long long)q->heads, (long long)q->rows, (long long)tile_rows);
  const bsrg_band band = bsrg_attention_band(args);
  const bsrg_capped_scale capped = bsrg_attention_capped_scale(args);
  bsrg_attention_portable_params p = {.q = bsrg_tensor_operand_of(q),
                                      .k = bsrg_tensor_operand_of(k),
                                      .v = bsrg_tensor_operand_of(v),
                                      .out = bsrg_tensor_operand_of(&args->out),
                                      .lse = args->lse,
                                      .heads = (int32_t)q->heads,
                                      .group = k->heads == 0 ? 1 : (int32_t)(q->heads / k->heads),
                                      .mask_group = 1,
                                      .mask_height = 1,
                                      .query_tiles = (int32_t)query_tiles,
                                      .queries = (int32_t)q->rows,
                                      .keys = (int32_t)k->rows,
                                      .size = (int32_t)q->size,
                                      .value_size = (int32_t)v->size,
                                      .band_first = (int32_t)band.first,
                                      .band_last = (int32_t)band.last,
                                      .copy_q = bsrg_attention_has_aligned_rows(q),
                                      .copy_k = bsrg_attention_has_aligned_rows(k),
                                      .copy_v = bsrg_attention_has_aligned_rows(v),
                                      .copy_out = bsrg_attention_has_aligned_rows(&args->out),
                                      .scale = capped.scale,
                                      .softcap = capped.softcap};
  CUdeviceptr scratch = 0; /* of the lists of a top-k mask, which a kernel makes */
  bsrg_status status = BSRG_OK;
  if (bsrg_attention_is_masked(args)) {
    p.mask_batch_stride = args->mask_batch == 1 ? 0 : (int32_t)args->mask_heads;
    p.mask_group = (int32_t)bsrg_attention_mask_group(args);
    /* A block may be higher than there are queries: then all of them are in it. */
    p.mask_height = (int32_t)bsrg_min(bsrg_attention_block_shape(args).height, INT32_MAX);
    bsrg_attention_tile_lists lists = {0};
    int64_t longest;
    status = bsrg_attention_get_lists(args, tile_rows, gpu, &lists, &longest, &scratch, error);
    p.tile_begin = lists.tile_begin;
    p.tile_end = lists.tile_end;
    p.tiles = lists.tiles;
    p.words = lists.words;
  }
  int first = args->dtype == BSRG_F16 ? BSRG_KERNEL_PORTABLE_ATTENTION_F16_D32
                                      : BSRG_KERNEL_PORTABLE_ATTENTION_BF16_D32;
  if (by_sequence) {
    p.sequences = bsrg_attention_sequences_of(args);
    first = args->dtype == BSRG_F16 ? BSRG_KERNEL_PORTABLE_ATTENTION_F16_D64_VARLEN
                                    : BSRG_KERNEL_PORTABLE_ATTENTION_BF16_D64_VARLEN;
  }
  if (status == BSRG_OK)
    status = bsrg_launch(gpu.api, gpu.device, (bsrg_kernel_id)(first + choice), ctas, 1,
                         (CUstream)args->stream, &p, error);
  return scratch ? bsrg_scratch_free(gpu.api, scratch, (CUstream)args->stream, status, error) : status;
}
