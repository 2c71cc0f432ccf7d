/* Attention of a few queries by the kernels of kernels/sm80/attention_decode.cuh. */
#include "attention.h"

typedef struct kernel_tile {
  int64_t size, rows, ctas;
} kernel_tile;
#define TILE_ROW(size, rows, ctas) {size, rows, ctas},
static const kernel_tile tiles[] = {BSRG_DECODE_TILES(TILE_ROW)};
#undef TILE_ROW
enum { TILES = sizeof(tiles) / sizeof(tiles[0]) };

/* The queries of all heads that share a head of k and v; INT64_MAX where that is no number. */
static int64_t rows_of(const bsrg_attention_args *args) {
  int64_t rows;
  return bsrg_mul_ok(args->q.rows, args->q.heads / bsrg_max(1, args->k.heads), &rows) ? rows : INT64_MAX;
}

/* The first one that fits: larger ones come later. */
static int choose_tile(const bsrg_attention_args *args) {
  const int64_t size = bsrg_max(args->q.size, args->v.size), rows = rows_of(args);
  int i = 0;
  while (tiles[i].size < size || tiles[i].rows < rows) ++i;
  return i;
}

int64_t bsrg_attention_decode_splits(int64_t units, int64_t keys, int64_t tile_keys, int64_t slots) {
  /* What a CTA costs beside its keys, and a second kernel, counted in keys of a CTA. Not fitted. */
  enum { START = 192, COMBINE = 64 };
  const int64_t tiles_in_all = bsrg_ceil_div(keys, tile_keys);
  /* No more than a few CTAs for every slot; more gain nothing. */
  const int64_t most =
      bsrg_min(keys / BSRG_DECODE_SPLIT_KEYS, bsrg_ceil_div(BSRG_DECODE_SLOT_SPLITS * slots, units));
  int64_t best = 1, least = INT64_MAX;
  for (int64_t splits = 1; splits <= bsrg_max(1, most); ++splits) {
    const int64_t rounds = bsrg_ceil_div(units * splits, slots);
    const int64_t of_one = bsrg_ceil_div(tiles_in_all, splits) * tile_keys + START;
    const int64_t cost = rounds * of_one + (splits > 1 ? COMBINE : 0);
    if (cost < least) {
      least = cost;
      best = splits;
    }
  }
  return best;
}

const char *bsrg_attention_decode_obstacle(const bsrg_attention_args *args, const bsrg_gpu_info *gpu) {
  const int64_t most = INT64_C(1) << 30; /* sums of a query and a key, rounded up, stay within 32 bits */
  int64_t units, ctas;
  if (args->dtype == BSRG_F8_E4M3)
    return "needs float16 or bfloat16; float8_e4m3fn is computed by 'hopper' and 'cpu'";
  if (gpu->sm_arch < 80) return "needs a GPU of compute capability 8.0 or later";
  if (bsrg_attention_is_masked(args)) return "needs a call without block_mask";
  if (args->sequences != NULL) return "needs a call without cu_seqlens_q";
  if (rows_of(args) > BSRG_DECODE_ROWS)
    return "needs at most 64 rows, queries times heads of q for each head of k";
  if (args->q.size % 8 || args->v.size % 8) return "needs head sizes that are multiples of 8";
  if (bsrg_max(args->q.size, args->v.size) > tiles[TILES - 1].size) return "needs head sizes of at most 256";
  if (args->k.rows > most) return "needs at most 2**30 keys";
  if (!bsrg_attention_has_aligned_rows(&args->q) || !bsrg_attention_has_aligned_rows(&args->k) ||
      !bsrg_attention_has_aligned_rows(&args->v) || !bsrg_attention_has_aligned_rows(&args->out))
    return "needs q, k, v and out with neighbouring elements, and rows, heads and batches at multiples of 16 "
           "bytes";
  /* CTAs of the second kernel and of the first: there are several splits only where there are few units. */
  if (!bsrg_mul_ok(args->k.batch, args->k.heads, &units) || !bsrg_mul_ok(units, BSRG_DECODE_ROWS, &ctas) ||
      ctas > INT32_MAX)
    return "needs fewer than 2^25 heads of k in all batches";
  return NULL;
}

bool bsrg_attention_decode_suits(const bsrg_attention_args *args, const bsrg_gpu_info *gpu) {
  /* Up to a fragment of rows, products cost nothing beside the bytes of k and v. Beyond, other kernels compute faster,
   * if they have enough to do. */
  return rows_of(args) <= 16 || args->k.batch * args->k.heads < gpu->sm_count;
}

bsrg_status bsrg_attention_decode_launch(const bsrg_attention_args *args, bsrg_gpu gpu, bsrg_error *error) {
  const bsrg_tensor *q = &args->q, *k = &args->k, *v = &args->v;
  const CUstream stream = (CUstream)args->stream;
  const int choice = choose_tile(args);
  const kernel_tile *tile = &tiles[choice];
  const int64_t tile_keys = BSRG_DECODE_KEYS(tile->size), rows = rows_of(args), units = k->batch * k->heads;
  const bsrg_band band = bsrg_attention_band(args);
  const bsrg_capped_scale capped = bsrg_attention_capped_scale(args);
  const int64_t first_key = bsrg_max(band.first, 0);
  const int64_t end_key = bsrg_max(first_key, bsrg_min(q->rows - 1 + band.last, k->rows - 1) + 1);
  const int64_t slots = gpu.device->info.sm_count * tile->ctas;
  const int64_t splits = bsrg_attention_decode_splits(units, end_key - first_key, tile_keys, slots);

  const size_t parts = (size_t)(units * splits * rows), stats_bytes = parts * 2 * sizeof(float),
               sums_bytes = parts * (size_t)v->size * sizeof(float);
  CUdeviceptr scratch = 0;
  bsrg_status status = BSRG_OK;
  if (splits > 1)
    status = bsrg_scratch_alloc(gpu.api, gpu.device, sums_bytes + stats_bytes, stream, &scratch, error);
  if (status != BSRG_OK) return status;
  bsrg_decode_params p = {.q = bsrg_attention_operand_of(q),
                          .k = bsrg_attention_operand_of(k),
                          .v = bsrg_attention_operand_of(v),
                          .out = bsrg_attention_operand_of(&args->out),
                          .lse = args->lse,
                          .heads = (int32_t)k->heads,
                          .group = (int32_t)(q->heads / k->heads),
                          .queries = (int32_t)q->rows,
                          .rows = (int32_t)rows,
                          .size = (int32_t)q->size,
                          .value_size = (int32_t)v->size,
                          .first_key = (int32_t)first_key,
                          .end_key = (int32_t)end_key,
                          .tiles = (int32_t)bsrg_ceil_div(end_key - first_key, tile_keys),
                          .splits = (int32_t)splits,
                          .band_first = (int32_t)band.first,
                          .band_last = (int32_t)band.last,
                          .scale = capped.scale,
                          .softcap = capped.softcap};
  if (scratch) {
    p.sums = (float *)(uintptr_t)scratch;
    p.stats = (float *)(uintptr_t)(scratch + sums_bytes);
  }
  const int first = args->dtype == BSRG_F16 ? BSRG_KERNEL_ATTENTION_DECODE_F16_D64_R16
                                            : BSRG_KERNEL_ATTENTION_DECODE_BF16_D64_R16;
  status = bsrg_launch(gpu.api, gpu.device, (bsrg_kernel_id)(first + choice), units * splits, 1, stream, &p,
                       error);
  if (status == BSRG_OK && splits > 1) {
    const bsrg_kernel_id combine =
        args->dtype == BSRG_F16 ? BSRG_KERNEL_ATTENTION_COMBINE_F16 : BSRG_KERNEL_ATTENTION_COMBINE_BF16;
    status = bsrg_launch(gpu.api, gpu.device, combine, units * rows, 1, stream, &p, error);
  }
  return scratch ? bsrg_scratch_free(gpu.api, scratch, stream, status, error) : status;
}
