/* Lists of key tiles from a top-k mask, made by kernels: how large they may become, and where they lie.
 *
 * What host code works out from other masks is made anew for each call, in its stream's order: the mask may have changed,
 * and several streams may use it at once. Nothing about the result is known to the host but bounds: each list has room
 * for the most that the counts of the mask's rows allow. */
#include "attention_topk.h"

/* Tiles that a block of `width` keys can lie in. */
static int64_t tiles_of_block(int64_t width, int64_t tile_keys) {
  if (tile_keys % width == 0) return 1;
  return width % tile_keys == 0 ? width / tile_keys : (width - 1) / tile_keys + 2;
}

/* Block rows that some tile_rows queries, from a multiple of that number on, can lie in. */
static int64_t rows_of_tile(int64_t height, int64_t tile_rows) { return tiles_of_block(tile_rows, height); }

int64_t bsrg_topk_most_tiles(const bsrg_topk_mask *mask, int64_t keys, int64_t tile_rows, int64_t tile_keys) {
  const int64_t key_tiles = bsrg_ceil_div(keys, tile_keys);
  const int64_t rows = bsrg_min(rows_of_tile(mask->block_height, tile_rows), mask->block_rows);
  int64_t tiles;
  if (!bsrg_mul_ok(rows * bsrg_min(mask->k, mask->block_cols), tiles_of_block(mask->block_width, tile_keys),
                   &tiles))
    return key_tiles;
  return bsrg_min(tiles, key_tiles);
}

static int64_t pair_capacity(const bsrg_topk_mask *mask, int64_t keys) {
  const int64_t rows = BSRG_ATTENTION_PAIR_ROWS;
  const int64_t tiles = bsrg_topk_most_tiles(mask, keys, rows, rows); /* of a query block */
  /* Where both need other tiles, half of them each, rounded up. Otherwise no tile comes twice but one that is left
   * over, and either's last entry may be half empty. */
  return bsrg_min(2 * bsrg_ceil_div(tiles, 2), bsrg_ceil_div(keys, 2 * rows) + 2);
}

/* Bytes, so that what follows is aligned for whatever it is. */
static size_t aligned(size_t bytes) { return (bytes + 255) / 256 * 256; }

bsrg_status bsrg_topk_list_tiles(const bsrg_attention_args *args, const bsrg_attention_plan_key *key,
                                 bsrg_gpu gpu, bsrg_attention_params *p, CUdeviceptr *scratch,
                                 bsrg_error *error) {
  const bsrg_topk_mask *mask = args->topk;
  const int64_t rows = BSRG_ATTENTION_LIST_ROWS, keys = args->k.rows;
  const int64_t capacity = bsrg_max(
      1, key->pairs ? pair_capacity(mask, keys) : bsrg_topk_most_tiles(mask, keys, rows, key->tile_keys));
  const int64_t lists = mask->batch * mask->heads * key->order.query_tiles;
  const size_t tile_bytes = aligned(sizeof(bsrg_attention_item) * (size_t)p->tile_count);
  const size_t entry_bytes = sizeof(bsrg_attention_entry) * (size_t)(lists * capacity);
  bsrg_status status = bsrg_scratch_alloc(gpu.api, gpu.device, tile_bytes + entry_bytes,
                                          (CUstream)args->stream, scratch, error);
  if (status != BSRG_OK) return status;
  bsrg_topk_lists_params lists_p = {.shape = bsrg_topk_shape_of(mask),
                                    .columns = mask->columns,
                                    .order = key->order,
                                    .bounds = key->bounds,
                                    .batch = (int32_t)args->q.batch,
                                    .heads = key->heads,
                                    .mask_batch = (int32_t)mask->batch,
                                    .mask_heads = (int32_t)mask->heads,
                                    .tile_keys = key->tile_keys,
                                    .capacity = (int32_t)capacity,
                                    .tiles = (bsrg_attention_item *)(uintptr_t)*scratch,
                                    .entries = (void *)(uintptr_t)(*scratch + tile_bytes)};
  p->tiles = lists_p.tiles;
  p->entries = lists_p.entries;
  return bsrg_launch(gpu.api, gpu.device, key->pairs ? BSRG_KERNEL_TOPK_PAIRS : BSRG_KERNEL_TOPK_TILES, lists,
                     1, (CUstream)args->stream, &lists_p, error);
}

bsrg_status bsrg_topk_list_words(const bsrg_attention_args *args, int64_t tile_rows, bsrg_gpu gpu,
                                 bsrg_attention_tile_lists *out, CUdeviceptr *scratch, bsrg_error *error) {
  const bsrg_topk_mask *mask = args->topk;
  const int64_t query_tiles = bsrg_ceil_div(args->q.rows, tile_rows);
  const int64_t lists = mask->batch * mask->heads * query_tiles;
  const int64_t capacity = bsrg_topk_most_tiles(mask, args->k.rows, tile_rows, BSRG_ATTENTION_KEYS);
  const int64_t tile_words = rows_of_tile(mask->block_height, tile_rows);
  int64_t tiles, words;
  if (!bsrg_mul_ok(lists, capacity, &tiles) || !bsrg_mul_ok(tiles, tile_words, &words) || words > INT32_MAX)
    return bsrg_fail(
        error, BSRG_ERR_VALUE,
        "block_mask can have %lld lists of up to %lld tiles of %lld block rows, but these kernels "
        "take fewer than 2^31 block rows of tiles in all",
        (long long)lists, (long long)capacity, (long long)tile_words);
  const size_t bound_bytes = aligned(sizeof(int64_t) * (size_t)lists);
  const size_t tile_bytes = aligned(sizeof(bsrg_attention_tile) * (size_t)tiles);
  bsrg_status status =
      bsrg_scratch_alloc(gpu.api, gpu.device, 2 * bound_bytes + tile_bytes + sizeof(uint64_t) * (size_t)words,
                         (CUstream)args->stream, scratch, error);
  if (status != BSRG_OK) return status;
  bsrg_topk_words_params words_p = {
      .shape = bsrg_topk_shape_of(mask),
      .columns = mask->columns,
      .queries = (int32_t)args->q.rows,
      .keys = (int32_t)args->k.rows,
      .query_tiles = (int32_t)query_tiles,
      .tile_rows = (int32_t)tile_rows,
      .capacity = (int32_t)capacity,
      .tile_words = (int32_t)tile_words,
      .tile_begin = (int64_t *)(uintptr_t)*scratch,
      .tile_end = (int64_t *)(uintptr_t)(*scratch + bound_bytes),
      .tiles = (bsrg_attention_tile *)(uintptr_t)(*scratch + 2 * bound_bytes),
      .words = (uint64_t *)(uintptr_t)(*scratch + 2 * bound_bytes + tile_bytes)};
  *out = (bsrg_attention_tile_lists){words_p.tile_begin, words_p.tile_end, words_p.tiles, words_p.words};
  return bsrg_launch(gpu.api, gpu.device, BSRG_KERNEL_TOPK_WORDS, lists, 1, (CUstream)args->stream, &words_p,
                     error);
}
