#include "attention_lists.h"

#include <stdlib.h>
#include <string.h>

#include "attention_topk.h"

void bsrg_attention_free_lists(void *plan) {
  bsrg_attention_lists *lists = plan;
  free(lists->tile_begin);
  free(lists->tile_end);
  free(lists->tiles);
  free(lists->words);
  free(lists);
}

/* The bits of keys begin .. end - 1, counted from the tile's first key and cut to the tile. */
static uint64_t key_bits(int64_t begin, int64_t end) {
  begin = bsrg_max(begin, 0);
  end = bsrg_min(end, BSRG_ATTENTION_KEYS);
  return begin >= end ? 0 : UINT64_MAX << begin & UINT64_MAX >> (64 - end);
}

/* The next tile that block row `row` has keys in, from *at on. */
static int64_t next_tile(const bsrg_structure_view *mask, int64_t at, int64_t row, int64_t not_before) {
  if (at == mask->indptr[row + 1]) return INT64_MAX;
  return bsrg_max(mask->indices[at] * mask->block_width / BSRG_ATTENTION_KEYS, not_before);
}

/* The keys of `tile` that block row `row` has. Moves *at on to the first block that ends behind the tile. */
static uint64_t tile_bits(const bsrg_structure_view *mask, int64_t *at, int64_t row, int64_t tile) {
  const int64_t first = tile * BSRG_ATTENTION_KEYS;
  uint64_t bits = 0;
  for (; *at < mask->indptr[row + 1]; ++*at) {
    const int64_t begin = mask->indices[*at] * mask->block_width - first;
    if (begin >= BSRG_ATTENTION_KEYS) break;
    bits |= key_bits(begin, begin + mask->block_width);
    if (begin + mask->block_width > BSRG_ATTENTION_KEYS) break;
  }
  return bits;
}

/* The key tiles of one tile of queries, whose block rows are first .. first + count - 1. Written where lists has
 * memory, counted in any case; at: [count], scratch. */
static void list_tiles(const bsrg_structure_view *mask, int64_t first, int64_t count, int64_t *at,
                       bsrg_attention_lists *lists) {
  for (int64_t r = 0; r < count; ++r) at[r] = mask->indptr[first + r];
  for (int64_t tile = 0;; ++tile) {
    int64_t next = INT64_MAX;
    for (int64_t r = 0; r < count; ++r) next = bsrg_min(next, next_tile(mask, at[r], first + r, tile));
    if (next == INT64_MAX) return;
    tile = next;
    uint64_t all = UINT64_MAX;
    for (int64_t r = 0; r < count; ++r) {
      const uint64_t bits = tile_bits(mask, &at[r], first + r, tile);
      if (lists->words) lists->words[lists->word_count + r] = bits;
      all &= bits;
    }
    const bool full = all == UINT64_MAX;
    if (lists->tiles)
      lists->tiles[lists->tile_count] =
          (bsrg_attention_tile){(int32_t)tile, full ? -1 : (int32_t)lists->word_count};
    ++lists->tile_count;
    if (!full) lists->word_count += count;
  }
}

/* The mask before mask m, or that of its head in the batch before, if it is the same one; else -1. */
static int64_t same_mask(const bsrg_attention_args *args, int64_t m) {
  const int64_t heads = args->mask_heads;
  if (m >= 1 && args->masks[m - 1] == args->masks[m]) return m - 1;
  return m >= heads && args->masks[m - heads] == args->masks[m] ? m - heads : -1;
}

static void list_all(const bsrg_attention_args *args, int64_t tile_rows, int64_t *at,
                     bsrg_attention_lists *lists) {
  const int64_t queries = args->q.rows, masks = args->mask_batch * args->mask_heads;
  const int64_t query_tiles = bsrg_ceil_div(queries, tile_rows);
  lists->rows = lists->tile_count = lists->word_count = lists->longest = 0;
  for (int64_t m = 0; m < masks; ++m) {
    const bsrg_structure_view *mask = &args->masks[m]->view;
    const int64_t same = same_mask(args, m);
    if (same >= 0) {
      if (lists->tile_begin) {
        const size_t bytes = sizeof(int64_t) * (size_t)query_tiles;
        memcpy(lists->tile_begin + lists->rows, lists->tile_begin + same * query_tiles, bytes);
        memcpy(lists->tile_end + lists->rows, lists->tile_end + same * query_tiles, bytes);
      }
      lists->rows += query_tiles;
      continue;
    }
    for (int64_t query = 0; query < queries; query += tile_rows, ++lists->rows) {
      const int64_t first = query / mask->block_height;
      const int64_t last = (bsrg_min(query + tile_rows, queries) - 1) / mask->block_height;
      const int64_t begin = lists->tile_count;
      list_tiles(mask, first, last - first + 1, at, lists);
      if (lists->tile_begin) {
        lists->tile_begin[lists->rows] = begin;
        lists->tile_end[lists->rows] = lists->tile_count;
      }
      lists->longest = bsrg_max(lists->longest, lists->tile_count - begin);
    }
  }
}

void *bsrg_attention_make_lists(const bsrg_attention_args *args, const int64_t *options) {
  const int64_t tile_rows = options[0];
  bsrg_attention_lists *lists = calloc(1, sizeof(*lists));
  int64_t *at = malloc(sizeof(*at) * (size_t)tile_rows); /* block rows of a tile, at most */
  if (!lists || !at) {
    free(lists);
    free(at);
    return NULL;
  }
  list_all(args, tile_rows, at, lists);
  if (lists->word_count > INT32_MAX) {
    free(at);
    return lists;
  }
  lists->tile_begin = malloc(sizeof(*lists->tile_begin) * (size_t)lists->rows);
  lists->tile_end = malloc(sizeof(*lists->tile_end) * (size_t)lists->rows);
  lists->tiles = malloc(sizeof(*lists->tiles) * (size_t)(lists->tile_count + 1));
  /* The words of a tile are written before they turn out not to be needed. */
  lists->words = malloc(sizeof(*lists->words) * (size_t)(lists->word_count + tile_rows));
  const bool ready = lists->tile_begin && lists->tile_end && lists->tiles && lists->words;
  if (ready) list_all(args, tile_rows, at, lists);
  free(at);
  if (ready) return lists;
  bsrg_attention_free_lists(lists);
  return NULL;
}

static bsrg_status upload_lists(const bsrg_attention_args *args, int64_t tile_rows, bsrg_gpu gpu,
                                bsrg_attention_tile_lists *out, int64_t *longest, bsrg_error *error) {
  /* The number of tiles does not follow from the mask, whose blocks may be higher than a tile. Whichever kernels a plan
   * is for, it is known by the portable ones. */
  const int64_t options[BSRG_MASK_OPTIONS] = {tile_rows, bsrg_ceil_div(args->q.rows, tile_rows)};
  bsrg_mask_plan *plan;
  bsrg_status status = bsrg_mask_plan_get(args, BSRG_PORTABLE, options, bsrg_attention_make_lists,
                                          bsrg_attention_free_lists, &plan, error);
  if (status != BSRG_OK) return status;
  const bsrg_attention_lists *lists = plan->plan;
  if (lists->word_count > INT32_MAX)
    return bsrg_fail(
        error, BSRG_ERR_VALUE,
        "block_mask has %lld lists, of %lld tiles with %lld block rows in all, but these kernels "
        "take fewer than 2^31 block rows of tiles",
        (long long)lists->rows, (long long)lists->tile_count, (long long)lists->word_count);
  enum { BEGIN, END, TILES, WORDS, PARTS };
  const bsrg_upload_part parts[PARTS] = {
      [BEGIN] = {lists->tile_begin, sizeof(*lists->tile_begin) * (size_t)lists->rows},
      [END] = {lists->tile_end, sizeof(*lists->tile_end) * (size_t)lists->rows},
      [TILES] = {lists->tiles, sizeof(*lists->tiles) * (size_t)lists->tile_count},
      [WORDS] = {lists->words, sizeof(*lists->words) * (size_t)lists->word_count}};
  const CUdeviceptr *uploads;
  status = bsrg_uploads_get_in(&plan->uploads, BSRG_PORTABLE, parts, PARTS, gpu, &uploads, error);
  if (status != BSRG_OK) return status;
  *out = (bsrg_attention_tile_lists){.tile_begin = (const int64_t *)(uintptr_t)uploads[BEGIN],
                                     .tile_end = (const int64_t *)(uintptr_t)uploads[END],
                                     .tiles = (const bsrg_attention_tile *)(uintptr_t)uploads[TILES],
                                     .words = (const uint64_t *)(uintptr_t)uploads[WORDS]};
  *longest = lists->longest;
  return BSRG_OK;
}

bsrg_status bsrg_attention_get_lists(const bsrg_attention_args *args, int64_t tile_rows, bsrg_gpu gpu,
                                     bsrg_attention_tile_lists *out, int64_t *longest, CUdeviceptr *scratch,
                                     bsrg_error *error) {
  *scratch = 0;
  if (!args->topk) return upload_lists(args, tile_rows, gpu, out, longest, error);
  *longest = bsrg_topk_most_tiles(args->topk, args->k.rows, tile_rows, BSRG_ATTENTION_KEYS);
  return bsrg_topk_list_words(args, tile_rows, gpu, out, scratch, error);
}
