/* The order of entries of the tall family: a permutation of every tile's, the same for tiles that a cluster pairs, in which
 * tiles that are computed at the same time meet. */
#include <stdlib.h>

#include "structures.h"
#include "tall.h"

enum { WIDTH = 128 };

/* Row i stores `count` columns from first(i, ...) on, around the end. */
static bsrg_structure *make(int64_t rows, int64_t cols, int64_t height, int64_t count,
                            int64_t (*first)(int64_t row, int64_t cols, int64_t count)) {
  int64_t *indptr = calloc((size_t)rows + 1, sizeof(*indptr));
  int64_t *indices = malloc(sizeof(*indices) * (size_t)(rows * count));
  for (int64_t i = 0; i < rows; ++i) {
    const int64_t from = first(i, cols, count);
    int64_t *row = indices + indptr[i];
    int64_t n = 0;
    for (int64_t j = 0; j < cols; ++j)
      if ((j - from + cols) % cols < count) row[n++] = j;
    CHECK(n == count);
    indptr[i + 1] = indptr[i] + count;
  }
  return make_structure(rows, cols, height, WIDTH, indptr, indices);
}

static int64_t band(int64_t row, int64_t cols, int64_t count) {
  return row < count / 2 ? 0 : row - count / 2 > cols - count ? cols - count : row - count / 2;
}
static int64_t anywhere(int64_t row, int64_t cols, int64_t count) {
  return row + count >= 0 ? (int64_t)random_below((uint32_t)cols) : 0;
}
static int64_t one_place(int64_t row, int64_t cols, int64_t count) { return (row * 0 + cols - count) / 2; }

/* Places in the lists of tiles first to last at which some of them have a column, all columns together. */
static int64_t meetings(const bsrg_tall_plan *plan, int32_t first, int32_t last, int64_t cols) {
  uint8_t *met = calloc((size_t)(cols * plan->longest_tile), 1);
  int64_t count = 0;
  for (int32_t t = first; t < last; ++t)
    for (int32_t e = 0; e < plan->tiles[t].entry_count; ++e) {
      uint8_t *here =
          &met[plan->entries[plan->tiles[t].entry_begin + e].x_row / WIDTH * plan->longest_tile + e];
      count += !*here;
      *here = 1;
    }
  free(met);
  return count;
}

/* Every tile has each of its strips' columns once. */
static void check_lists(const bsrg_structure_view *v, const bsrg_tall_plan *plan) {
  uint8_t *seen = malloc((size_t)v->block_cols);
  for (int32_t t = 0; t < plan->tile_count; ++t) {
    const bsrg_tall_tile *tile = &plan->tiles[t];
    for (int64_t j = 0; j < v->block_cols; ++j) seen[j] = 0;
    for (int32_t e = 0; e < tile->entry_count; ++e) {
      const bsrg_tall_entry *entry = &plan->entries[tile->entry_begin + e];
      const int64_t column = entry->x_row / WIDTH;
      CHECK(entry->x_row % WIDTH == 0 && column < v->block_cols && !seen[column]);
      seen[column] = 1;
      for (int s = 0; s < 2; ++s) {
        if (entry->a_block[s] < 0) continue;
        const int64_t row = (int64_t)tile->strip[s] * BSRG_TALL_STRIP / v->block_height;
        const int64_t block = entry->a_block[s] / v->block_height;
        CHECK(block >= v->indptr[row] && block < v->indptr[row + 1] && v->indices[block] == column);
      }
    }
    for (int s = 0; s < 2 && tile->strip[s] >= 0; ++s) {
      const int64_t row = (int64_t)tile->strip[s] * BSRG_TALL_STRIP / v->block_height;
      for (int64_t b = v->indptr[row]; b < v->indptr[row + 1]; ++b) CHECK(seen[v->indices[b]]);
    }
  }
  free(seen);
}

static bool is_ascending(const bsrg_tall_plan *plan) {
  for (int32_t t = 0; t < plan->tile_count; ++t)
    for (int32_t e = 1; e < plan->tiles[t].entry_count; ++e) {
      const bsrg_tall_entry *entry = &plan->entries[plan->tiles[t].entry_begin + e];
      if (entry[-1].x_row >= entry->x_row) return false;
    }
  return true;
}

static bsrg_tall_plan *checked_plan(const bsrg_structure *structure) {
  const bsrg_structure_view view = bsrg_structure_get(structure);
  bsrg_tall_plan *plan = bsrg_tall_make_plan((bsrg_structure *)structure);
  check_lists(&view, plan);
  return plan;
}

/* 64 rows of a band, eight wide: each column is at one place of all lists that have it, but for the first and last rows, which
 * all have the same columns. */
static void test_band(void) {
  bsrg_structure *structure = make(64, 64, 128, 8, band);
  bsrg_tall_plan *plan = checked_plan(structure);
  CHECK(meetings(plan, 0, plan->tile_count, 64) <= 64 + 8);
  CHECK(!is_ascending(plan));
  bsrg_tall_free_plan(plan);
  bsrg_structure_destroy(structure);
}

/* Rows of equal columns meet everywhere, in more windows than one, and clusters still pair them. */
static void test_equal_rows(void) {
  static const int64_t heights[] = {128, 256, 384};
  for (size_t i = 0; i < sizeof(heights) / sizeof(heights[0]); ++i) {
    bsrg_structure *structure = make(150, 40, heights[i], 9, one_place);
    bsrg_tall_plan *plan = checked_plan(structure);
    CHECK(plan->row_pairs);
    for (int32_t t = 0; t < plan->tile_count; t += 2) CHECK(meetings(plan, t, t + 2, 40) == 9);
    bsrg_tall_free_plan(plan);
    bsrg_structure_destroy(structure);
  }
}

/* Whatever the rows: windows that are not full, tiles of two block rows, tiles that share a list. */
static void test_any(void) {
  for (int i = 0; i < 60; ++i) {
    const int64_t rows = 1 + random_below(180), cols = 9 + random_below(60);
    const int64_t count = 8 + random_below((uint32_t)(cols - 8));
    bsrg_structure *structure = make(rows, cols, 64 * (1 + random_below(6)), count, anywhere);
    bsrg_tall_free_plan(checked_plan(structure));
    bsrg_structure_destroy(structure);
  }
}

/* Rows that meet about as often as they could keep their columns as they come. */
static void test_random_rows(void) {
  int64_t *indptr = calloc(65, sizeof(*indptr)), *indices = malloc(sizeof(*indices) * 64 * 64);
  for (int64_t i = 0; i < 64; ++i) {
    indptr[i + 1] = indptr[i];
    for (int64_t j = 0; j < 64; ++j) /* of four columns one */
      if (j % 4 == 0) indices[indptr[i + 1]++] = j + random_below(4);
  }
  bsrg_structure *structure = make_structure(64, 64, 128, WIDTH, indptr, indices);
  bsrg_tall_plan *plan = checked_plan(structure);
  CHECK(plan->longest_tile == 16 && is_ascending(plan));
  bsrg_tall_free_plan(plan);
  bsrg_structure_destroy(structure);
}

/* Tiles that do not stay in step keep their columns as they come. */
static void test_short_tiles(void) {
  bsrg_structure *structure = make(64, 64, 128, 7, band); /* 896 k */
  bsrg_tall_plan *plan = checked_plan(structure);
  CHECK(is_ascending(plan));
  bsrg_tall_free_plan(plan);
  bsrg_structure_destroy(structure);
}

/* Columns that a row stores more than once: each block has an entry of its own. */
static void test_repeated_columns(void) {
  enum { ROWS = 64, COUNT = 24 };
  int64_t *indptr = calloc(ROWS + 1, sizeof(*indptr)),
          *indices = malloc(sizeof(*indices) * ROWS * (COUNT + 1));
  for (int64_t i = 0; i < ROWS; ++i) {
    indptr[i + 1] = indptr[i];
    for (int64_t j = 0; j < COUNT; ++j) {
      indices[indptr[i + 1]++] = (i + j) % ROWS;
      if (j == 0) indices[indptr[i + 1]++] = i;
    }
  }
  const int64_t nnzb = indptr[ROWS];
  bsrg_structure *structure = make_any_structure(ROWS, ROWS, 128, WIDTH, indptr, indices, 0);
  bsrg_tall_plan *plan = bsrg_tall_make_plan(structure);
  int *multiplied = calloc((size_t)nnzb, sizeof(*multiplied));
  for (int64_t e = 0; e < plan->entry_count; ++e) ++multiplied[plan->entries[e].a_block[0] / 128];
  for (int64_t b = 0; b < nnzb; ++b) CHECK(multiplied[b] == 1);
  free(multiplied);
  bsrg_tall_free_plan(plan);
  bsrg_structure_destroy(structure);
}

int main(void) {
  test_repeated_columns();
  test_band();
  test_equal_rows();
  test_any();
  test_random_rows();
  test_short_tiles();
  if (failures) fprintf(stderr, "%d checks failed\n", failures);
  return failures != 0;
}
