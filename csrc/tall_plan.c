/* The tall family's plan: from a structure to tiles of two strips and their order. */
#include "tall.h"

#include <stdlib.h>
#include <string.h>

/* ---- tiles ------------------------------------------------------------------------------------ */

/* Word operations that the search for rows with common columns may spend; about a millisecond. */
enum { PAIRING_BUDGET = 1 << 20, PAIRING_WINDOW = 256 };

/* Partners for strips of different block rows: partner[i] is a block row that shares many columns with i, or
 * -1. Two rows that share a column share one load of X; the work of the tensor cores is the same for any
 * pairing. */
static bool pair_rows(const bsrg_structure_view *v, const int32_t *order, int32_t *partner) {
  const int64_t rows = v->block_rows, words = bsrg_ceil_div(v->block_cols, 64);
  int64_t candidates = rows > 0 && words > 0 ? PAIRING_BUDGET / (rows * words) : 0;
  if (candidates > PAIRING_WINDOW) candidates = PAIRING_WINDOW;
  for (int64_t i = 0; i < rows; ++i) partner[i] = -1;
  if (candidates < 2) { /* too large to search: neighbours in the order */
    for (int64_t k = 0; k + 1 < rows; k += 2) {
      partner[order[k]] = order[k + 1];
      partner[order[k + 1]] = order[k];
    }
    return true;
  }
  uint64_t *bits = calloc((size_t)(rows * words), sizeof(*bits));
  if (!bits) return false;
  for (int64_t i = 0; i < rows; ++i)
    for (int64_t b = v->indptr[i]; b < v->indptr[i + 1]; ++b)
      bits[i * words + v->indices[b] / 64] |= (uint64_t)1 << (v->indices[b] % 64);
  for (int64_t k = 0; k < rows; ++k) {
    const int32_t row = order[k];
    if (partner[row] >= 0) continue;
    int64_t best_shared = -1, tried = 0;
    int32_t best = -1;
    for (int64_t l = k + 1; l < rows && tried < candidates; ++l) {
      const int32_t other = order[l];
      if (partner[other] >= 0) continue;
      int64_t shared = 0;
      for (int64_t w = 0; w < words; ++w)
        shared += __builtin_popcountll(bits[row * words + w] & bits[other * words + w]);
      ++tried;
      if (shared > best_shared) {
        best_shared = shared;
        best = other;
      }
    }
    if (best >= 0) {
      partner[row] = best;
      partner[best] = row;
    }
  }
  free(bits);
  return true;
}

/* Where block b of the structure begins in values, as entries say it. */
static int32_t block_at(const bsrg_structure_view *v, int64_t b) {
  return (int32_t)(v->order ? v->order[b] * v->block_width : b * v->block_height);
}

/* Appends the union of the columns of block rows i and j (j < 0: i alone; j == i: both strips in one block
 * row). */
static void append_entries(const bsrg_structure_view *v, int64_t i, int64_t j, bsrg_tall_plan *plan) {
  int64_t a = v->indptr[i], a_end = v->indptr[i + 1];
  int64_t b = j >= 0 && j != i ? v->indptr[j] : 0, b_end = j >= 0 && j != i ? v->indptr[j + 1] : 0;
  while (a < a_end || b < b_end) {
    const int32_t column_a = a < a_end ? v->indices[a] : INT32_MAX;
    const int32_t column_b = b < b_end ? v->indices[b] : INT32_MAX;
    const int32_t column = column_a < column_b ? column_a : column_b;
    bsrg_tall_entry entry = {(int32_t)(column * v->block_width), {-1, -1}, 0};
    if (a < a_end && column_a == column) entry.a_block[0] = block_at(v, a++);
    if (b < b_end && column_b == column) entry.a_block[1] = block_at(v, b++);
    if (i == j) entry.a_block[1] = entry.a_block[0];
    plan->entries[plan->entry_count++] = entry;
  }
}

static void append_tile(bsrg_tall_plan *plan, int64_t strip0, int64_t strip1, int64_t begin) {
  const int32_t count = (int32_t)(plan->entry_count - begin);
  plan->tiles[plan->tile_count++] =
      (bsrg_tall_tile){{(int32_t)strip0, (int32_t)strip1}, (int32_t)begin, count};
  plan->tile_entries += count;
  if (count > plan->longest_tile) plan->longest_tile = count;
}

static bool sort_tiles(bsrg_tall_plan *plan) {
  int64_t *length = malloc(sizeof(*length) * (size_t)plan->tile_count);
  if (!length) return false;
  for (int32_t t = 0; t < plan->tile_count; ++t) length[t] = plan->tiles[t].entry_count;
  const bool done =
      bsrg_sort_records(plan->tiles, sizeof(*plan->tiles), length, plan->tile_count, plan->longest_tile);
  free(length);
  return done;
}

/* Whether tiles 2i and 2i + 1 have equal lists of columns, all of them: such pairs share X. Sorting by length is
 * stable and keeps them together. */
static bool come_in_pairs(const bsrg_tall_plan *plan) {
  for (int32_t t = 0; t < plan->tile_count; t += 2) {
    if (t + 1 == plan->tile_count) return false;
    const bsrg_tall_tile *a = &plan->tiles[t], *b = a + 1;
    if (a->entry_count != b->entry_count) return false;
    for (int32_t e = 0; a->entry_begin != b->entry_begin && e < a->entry_count; ++e)
      if (plan->entries[a->entry_begin + e].x_row != plan->entries[b->entry_begin + e].x_row) return false;
  }
  return true;
}

static bool make_tiles(const bsrg_structure_view *v, const int32_t *row_order, bsrg_tall_plan *plan) {
  const int64_t strips = v->block_height / BSRG_TALL_STRIP;
  plan->entries = malloc(sizeof(*plan->entries) * (size_t)(strips > 1 ? 2 : 1) * (size_t)v->nnzb);
  plan->tiles = malloc(sizeof(*plan->tiles) * (size_t)(v->block_rows * bsrg_ceil_div(strips, 2)));
  if (!plan->entries || !plan->tiles) return false;

  if (strips > 1) { /* pairs inside a block row: all columns in common */
    for (int64_t k = 0; k < v->block_rows; ++k) {
      const int64_t row = row_order[k], begin = plan->entry_count;
      append_entries(v, row, row, plan);
      for (int64_t s = 0; s + 1 < strips; s += 2)
        append_tile(plan, row * strips + s, row * strips + s + 1, begin);
    }
  }
  if (strips % 2 == 1) { /* the last strip of each block row, with one of another */
    int32_t *partner = malloc(sizeof(*partner) * (size_t)v->block_rows);
    if (!partner || !pair_rows(v, row_order, partner)) {
      free(partner);
      return false;
    }
    for (int64_t k = 0; k < v->block_rows; ++k) {
      const int64_t row = row_order[k], begin = plan->entry_count;
      const int64_t other = partner[row];
      if (other == -2) continue;
      if (other >= 0) partner[other] = -2; /* done with its partner */
      append_entries(v, row, other, plan);
      append_tile(plan, row * strips + strips - 1, other >= 0 ? other * strips + strips - 1 : -1, begin);
    }
    free(partner);
  }
  plan->skewed = bsrg_is_skewed(plan->longest_tile, plan->tile_entries, plan->tile_count);
  if (plan->skewed) {
    if (!sort_tiles(plan)) return false;
    while (plan->tiles[plan->tile_count - 1 - plan->empty_tiles].entry_count == 0) ++plan->empty_tiles;
  }
  plan->row_pairs = strips % 2 == 0 && come_in_pairs(plan);
  return true;
}

void bsrg_tall_free_plan(void *plan) {
  bsrg_tall_plan *tall = plan;
  free(tall->entries);
  free(tall->tiles);
  free(tall->parts);
  free(tall->cuts);
  free(tall);
}

void *bsrg_tall_make_plan(bsrg_structure *structure) {
  const bsrg_structure_view *v = &structure->view;
  bsrg_tall_plan *plan = calloc(1, sizeof(*plan));
  int32_t *row_order = malloc(sizeof(*row_order) * (size_t)v->block_rows);
  const bool done = plan && row_order && bsrg_row_order(v, row_order) && make_tiles(v, row_order, plan) &&
                    bsrg_tall_order_entries(v, plan) && bsrg_tall_make_cuts(plan, v->block_width);
  free(row_order);
  if (done) return plan;
  if (plan) bsrg_tall_free_plan(plan);
  return NULL;
}
