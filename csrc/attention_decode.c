/* Attention of a few queries by the kernels of kernels/sm80/attention_decode.cuh. */
#include "attention_lists.h"

typedef struct kernel_tile {
  int64_t size, rows, ctas;
} kernel_tile;
#define TILE_ROW(size, rows, ctas) {size, rows, ctas},
static const kernel_tile tiles[] = {BSRG_DECODE_TILES(TILE_ROW)};
#undef TILE_ROW
enum { TILES = sizeof(tiles) / sizeof(tiles[0]) };

/* What a CTA, or one for each split, computes: the rows of all heads of q that share a head of k, or of one head of q. */
typedef struct decode_units {
  int64_t heads, group; /* units of a batch, and heads of q of each */
  int64_t count, rows;  /* of all batches, and of each: INT64_MAX where that is no number */
} decode_units;

/* Whether the heads of q that share a head of k share their masks, too. */
static bool groups_share_masks(const bsrg_attention_args *args, int64_t group) {
  if (bsrg_attention_mask_group(args) >= group) return true;
  if (args->topk) return false; /* the GPU knows whether they are equal */
  for (int64_t i = 0; i < args->mask_batch * args->mask_heads; ++i)
    if (args->masks[i] != args->masks[i - i % group]) return false; /* one for each head of q */
  return true;
}

static decode_units units_of(const bsrg_attention_args *args) {
  const int64_t group = args->q.heads / bsrg_max(1, args->k.heads);
  decode_units units = {.heads = args->k.heads, .group = group};
  if (!bsrg_mul_ok(args->q.rows, group, &units.rows)) units.rows = INT64_MAX;
  if (bsrg_attention_is_masked(args) && (units.rows > BSRG_DECODE_ROWS || !groups_share_masks(args, group)))
    units = (decode_units){.heads = args->q.heads, .group = 1, .rows = args->q.rows};
  if (!bsrg_mul_ok(args->k.batch, units.heads, &units.count)) units.count = INT64_MAX;
  return units;
}

/* The first one that fits: larger ones come later. */
static int choose_tile(const bsrg_attention_args *args, int64_t rows) {
  const int64_t size = bsrg_max(args->q.size, args->v.size);
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
  int64_t ctas;
  if (args->dtype == BSRG_F8_E4M3)
    return "needs float16 or bfloat16; float8_e4m3fn is computed by 'hopper' and 'cpu'";
  if (gpu->sm_arch < 80) return "needs a GPU of compute capability 8.0 or later";
  if (args->sequences != NULL) return "needs a call without cu_seqlens_q";
  const decode_units units = units_of(args);
  if (units.rows > BSRG_DECODE_ROWS)
    return bsrg_attention_is_masked(args)
               ? "needs at most 64 queries"
               : "needs at most 64 rows, queries times heads of q for each head of k";
  if (args->q.size % 8 || args->v.size % 8) return "needs head sizes that are multiples of 8";
  if (bsrg_max(args->q.size, args->v.size) > tiles[TILES - 1].size) return "needs head sizes of at most 256";
  if (args->k.rows > most) return "needs at most 2**30 keys";
  if (!bsrg_attention_has_aligned_rows(&args->q) || !bsrg_attention_has_aligned_rows(&args->k) ||
      !bsrg_attention_has_aligned_rows(&args->v) || !bsrg_attention_has_aligned_rows(&args->out))
    return "needs q, k, v and out with neighbouring elements, and rows, heads and batches at multiples of 16 "
           "bytes";
  /* CTAs of the second kernel and of the first: there are several splits only where there are few units. */
  if (!bsrg_mul_ok(units.count, BSRG_DECODE_ROWS, &ctas) || ctas > INT32_MAX)
    return bsrg_attention_is_masked(args) ? "needs fewer than 2^25 heads of q in all batches"
                                          : "needs fewer than 2^25 heads of k in all batches";
  return NULL;
}

bool bsrg_attention_decode_suits(const bsrg_attention_args *args, const bsrg_gpu_info *gpu) {
  /* Up to a fragment of rows, products cost nothing beside the bytes of k and v. Beyond, other kernels compute faster,
   * if they have enough to do. Under masks those compute a whole tile of queries for each head of q and few keys, so what
   * counts is how many of a tile there are. */
  const decode_units units = units_of(args);
  const int64_t rows = bsrg_attention_is_masked(args) ? args->q.rows : units.rows;
  return rows <= 16 || units.count < gpu->sm_count;
}

/* The lists of masks, and *keys, what a unit meets of the keys at most, in whole tiles. */
static bsrg_status set_lists(const bsrg_attention_args *args, const decode_units *units, bsrg_gpu gpu,
                             bsrg_masked_decode_params *p, int64_t *keys, CUdeviceptr *scratch,
                             bsrg_error *error) {
  const int64_t tile_keys = BSRG_ATTENTION_KEYS, height = bsrg_attention_block_shape(args).height;
  const int64_t first_tile = p->decode.first_key / tile_keys;
  const int64_t tiles_between = bsrg_ceil_div(p->decode.end_key, tile_keys) - first_tile;
  int64_t longest;
  bsrg_status status = bsrg_attention_get_lists(args, args->q.rows, gpu, &p->lists, &longest, scratch, error);
  if (status != BSRG_OK) return status;
  *keys = bsrg_max(0, bsrg_min(longest, tiles_between)) * tile_keys;
  p->list_batch_stride = args->mask_batch == 1 ? 0 : (int32_t)args->mask_heads;
  p->list_group = (int32_t)bsrg_attention_mask_group(args);
  p->key_group = (int32_t)(units->heads / args->k.heads);
  p->mask_height = (int32_t)bsrg_min(height, INT32_MAX); /* then all queries are in one block row */
  p->block_rows = (int32_t)bsrg_ceil_div(args->q.rows, height);
  p->narrowed = p->decode.first_key > 0 || p->decode.end_key < args->k.rows;
  return BSRG_OK;
}

static bsrg_status launch(const bsrg_attention_args *args, const decode_units *units, int choice,
                          int64_t keys, bsrg_masked_decode_params *p, bsrg_gpu gpu, bsrg_error *error) {
  const CUstream stream = (CUstream)args->stream;
  const bool is_f16 = args->dtype == BSRG_F16;
  const int64_t slots = gpu.device->info.sm_count * tiles[choice].ctas;
  const int64_t splits =
      bsrg_attention_decode_splits(units->count, keys, BSRG_DECODE_KEYS(tiles[choice].size), slots);
  const size_t parts = (size_t)(units->count * splits * units->rows), stats_bytes = parts * 2 * sizeof(float),
               sums_bytes = parts * (size_t)args->v.size * sizeof(float);
  CUdeviceptr scratch = 0;
  bsrg_status status = BSRG_OK;
  if (splits > 1)
    status = bsrg_scratch_alloc(gpu.api, gpu.device, sums_bytes + stats_bytes, stream, &scratch, error);
  if (status != BSRG_OK) return status;
  p->decode.splits = (int32_t)splits;
  if (scratch) {
    p->decode.sums = (float *)(uintptr_t)scratch;
    p->decode.stats = (float *)(uintptr_t)(scratch + sums_bytes);
  }
  int first;
  void *params = &p->decode;
  if (bsrg_attention_is_masked(args)) {
    first = is_f16 ? BSRG_KERNEL_ATTENTION_DECODE_MASK_F16_D64_R16
                   : BSRG_KERNEL_ATTENTION_DECODE_MASK_BF16_D64_R16;
    params = p;
  } else {
    first = is_f16 ? BSRG_KERNEL_ATTENTION_DECODE_F16_D64_R16 : BSRG_KERNEL_ATTENTION_DECODE_BF16_D64_R16;
  }
  status = bsrg_launch(gpu.api, gpu.device, (bsrg_kernel_id)(first + choice), units->count * splits, 1,
                       stream, params, error);
  if (status == BSRG_OK && splits > 1) {
    const bsrg_kernel_id combine =
        is_f16 ? BSRG_KERNEL_ATTENTION_COMBINE_F16 : BSRG_KERNEL_ATTENTION_COMBINE_BF16;
    status =
        bsrg_launch(gpu.api, gpu.device, combine, units->count * units->rows, 1, stream, &p->decode, error);
  }
  return scratch ? bsrg_scratch_free(gpu.api, scratch, stream, status, error) : status;
}

bsrg_status bsrg_attention_decode_launch(const bsrg_attention_args *args, bsrg_gpu gpu, bsrg_error *error) {
  const bsrg_tensor *q = &args->q, *k = &args->k, *v = &args->v;
  const decode_units units = units_of(args);
  const int choice = choose_tile(args, units.rows);
  const bsrg_band band = bsrg_attention_band(args);
  const bsrg_capped_scale capped = bsrg_attention_capped_scale(args);
  const int64_t first_key = bsrg_max(band.first, 0);
  const int64_t end_key = bsrg_max(first_key, bsrg_min(q->rows - 1 + band.last, k->rows - 1) + 1);
  int64_t keys = end_key - first_key;
  bsrg_masked_decode_params p = {
      .decode = {.q = bsrg_tensor_operand_of(q),
                 .k = bsrg_tensor_operand_of(k),
                 .v = bsrg_tensor_operand_of(v),
                 .out = bsrg_tensor_operand_of(&args->out),
                 .lse = args->lse,
                 .heads = (int32_t)units.heads,
                 .group = (int32_t)units.group,
                 .queries = (int32_t)q->rows,
                 .rows = (int32_t)units.rows,
                 .size = (int32_t)q->size,
                 .value_size = (int32_t)v->size,
                 .first_key = (int32_t)first_key,
                 .end_key = (int32_t)end_key,
                 .tiles = (int32_t)bsrg_ceil_div(keys, BSRG_DECODE_KEYS(tiles[choice].size)),
                 .band_first = (int32_t)band.first,
                 .band_last = (int32_t)band.last,
                 .scale = capped.scale,
                 .softcap = capped.softcap}};
  CUdeviceptr scratch = 0; /* of the lists of a top-k mask, which a kernel makes */
  bsrg_status status = BSRG_OK;
  if (bsrg_attention_is_masked(args)) status = set_lists(args, &units, gpu, &p, &keys, &scratch, error);
  if (status == BSRG_OK) status = launch(args, &units, choice, keys, &p, gpu, error);
  return scratch ? bsrg_scratch_free(gpu.api, scratch, (CUstream)args->stream, status, error) : status;
}
