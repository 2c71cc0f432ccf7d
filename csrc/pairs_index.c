/* Masks of which blocks a structure stores, from which kernels find where two structures meet. */
#include "pairs.h"

#include "../kernels/params.h"

#include <stdlib.h>
#include <string.h>

static int64_t words_of(const bsrg_structure_view *v) { return bsrg_ceil_div(v->block_cols, 32); }

int64_t bsrg_pair_mask_bytes(const bsrg_structure_view *v) {
  int64_t bytes;
  const bool fits = bsrg_mul_ok(v->block_rows, words_of(v), &bytes) &&
                    bsrg_mul_ok(bytes, (int64_t)(sizeof(uint32_t) + sizeof(int32_t)), &bytes);
  return fits ? bytes : INT64_MAX;
}

void bsrg_pair_index_destroy(bsrg_pair_index *index) {
  if (!index) return;
  free(index->bits);
  free(index->first);
  free(index->order);
  free(index->tiles);
  free(index);
}

static void fill_masks(const bsrg_structure_view *v, bsrg_pair_index *index) {
  const int64_t words = index->words;
  for (int64_t i = 0; i < v->block_rows; ++i) {
    uint32_t *bits = index->bits + i * words;
    int32_t *first = index->first + i * words;
    int64_t p = v->indptr[i];
    for (int64_t w = 0; w < words; ++w) {
      first[w] = (int32_t)p;
      for (; p < v->indptr[i + 1] && v->indices[p] / 32 == w; ++p) bits[w] |= 1u << v->indices[p] % 32;
    }
  }
}

/* Writes tiles of so many strips of 64 rows, those of the longest lines first. */
static bool sort_tiles(const bsrg_structure_view *v, int64_t tile_strips, int64_t tiles, int32_t *out) {
  const int64_t per_block = v->block_height / BSRG_PAIRS_STRIP, strips = v->block_rows * per_block;
  int64_t *length = calloc((size_t)tiles + 1, sizeof(*length));
  if (!length) return false;
  int64_t longest = 0;
  for (int64_t s = 0; s < strips; ++s) {
    const int64_t row = s / per_block, tile = s / tile_strips;
    length[tile] += v->indptr[row + 1] - v->indptr[row];
    longest = bsrg_max(longest, length[tile]);
  }
  const bool done = bsrg_sort_longest_first(length, tiles, longest, out);
  free(length);
  return done;
}

static bool order_tiles(const bsrg_structure_view *v, bsrg_pair_index *index) {
  enum {
    ROW_STRIPS = BSRG_PAIRS_TILE_M / BSRG_PAIRS_STRIP,
    COLUMN_STRIPS = BSRG_PAIRS_TILE_N / BSRG_PAIRS_STRIP
  };
  const int64_t strips = bsrg_whole_rows(v) / BSRG_PAIRS_STRIP;
  index->row_tiles = bsrg_ceil_div(strips, ROW_STRIPS);
  index->column_tiles = bsrg_ceil_div(strips, COLUMN_STRIPS);
  if (!bsrg_is_skewed(v->longest_row, v->nnzb, v->block_rows)) return true;
  index->tiles = malloc(sizeof(*index->tiles) * (size_t)(index->row_tiles + index->column_tiles + 1));
  return index->tiles && sort_tiles(v, ROW_STRIPS, index->row_tiles, index->tiles) &&
         sort_tiles(v, COLUMN_STRIPS, index->column_tiles, index->tiles + index->row_tiles);
}

static bsrg_pair_index *make_index(const bsrg_structure_view *v) {
  bsrg_pair_index *index = calloc(1, sizeof(*index));
  if (!index) return NULL;
  index->words = words_of(v);
  const size_t count = (size_t)(v->block_rows * index->words) + 1;
  index->bits = calloc(count, sizeof(*index->bits));
  index->first = calloc(count, sizeof(*index->first));
  bool done = index->bits && index->first && order_tiles(v, index);
  if (done && v->order) {
    index->order = malloc(sizeof(*index->order) * ((size_t)v->nnzb + 1));
    done = index->order != NULL;
    for (int64_t p = 0; done && p < v->nnzb; ++p) index->order[p] = (int32_t)v->order[p];
  }
  if (done) {
    fill_masks(v, index);
    return index;
  }
  bsrg_pair_index_destroy(index);
  return NULL;
}

bsrg_status bsrg_pair_index_get(bsrg_structure *structure, const bsrg_pair_index **out, bsrg_error *error) {
  bsrg_pair_index *index = atomic_load(&structure->pair_index);
  if (!index) {
    index = make_index(&structure->view);
    if (!index)
      return bsrg_fail(error, BSRG_ERR_MEMORY, "no memory for the masks of a matrix of %lld blocks",
                       (long long)structure->view.nnzb);
    bsrg_pair_index *expected = NULL; /* two threads may make one at once; the first one's stays */
    if (!atomic_compare_exchange_strong(&structure->pair_index, &expected, index)) {
      bsrg_pair_index_destroy(index);
      index = expected;
    }
  }
  *out = index;
  return BSRG_OK;
}
