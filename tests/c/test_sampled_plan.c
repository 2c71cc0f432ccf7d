/* The plan of sampled products: tiles and items have every stored column exactly once, and keep their limits. */
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "check.h"
#include "sampled.h"

static const bsrg_sampled_plan *plan_of(bsrg_structure *structure) {
  const void *plan = NULL;
  CHECK(bsrg_plan_get(structure, &bsrg_sampled_lists, false, &plan, NULL) == BSRG_OK);
  return plan;
}

static void check_items(const bsrg_structure_view *v, const bsrg_sampled_plan *plan) {
  char *seen = calloc((size_t)(v->nnzb * v->block_width), 1);
  CHECK(plan->item_columns == BSRG_SAMPLED_FEW || plan->item_columns == BSRG_SAMPLED_MANY);
  for (int64_t i = 0; i < plan->item_count; ++i) {
    const bsrg_sampled_item *item = &plan->items[i];
    CHECK(item->count >= 1 && item->count <= plan->item_columns && item->offset < v->block_width);
    CHECK(item->block >= v->indptr[item->block_row]);
    const int64_t first = item->block * v->block_width + item->offset;
    CHECK(first + item->count <= v->indptr[item->block_row + 1] * v->block_width);
    for (int64_t f = first; f < first + item->count; ++f) CHECK(seen[f]++ == 0);
  }
  for (int64_t f = 0; f < v->nnzb * v->block_width; ++f) CHECK(seen[f] == 1);
  free(seen);
}

static void check_tiles(const bsrg_structure_view *v, const bsrg_sampled_plan *plan) {
  CHECK(plan->part == 64 && plan->strips == (v->block_height % 128 ? 1 : 2));
  const int64_t across = v->block_width / 64, down = v->block_height / 64;
  char *seen = calloc((size_t)(v->nnzb * across * down), 1);
  CHECK(plan->panel_count == v->nnzb * across);
  for (int64_t i = 0; i < plan->panel_count; ++i) {
    const bsrg_sampled_panel *panel = &plan->panels[i];
    CHECK(panel->block[0] == i / across && panel->offset == i % across * 64);
    CHECK(panel->column == v->indices[panel->block[0]] * v->block_width + panel->offset);
  }
  for (int32_t t = 0; t < plan->tile_count; ++t) {
    const bsrg_sampled_tile *tile = &plan->tiles[t];
    const int64_t row = tile->row[0] / v->block_height, row_in_block = tile->row[0] % v->block_height;
    CHECK(tile->row[1] == tile->row[0] + (plan->strips == 2 ? 64 : 0));
    CHECK(tile->panel_count >= 1 && tile->panel_count <= BSRG_SAMPLED_PANELS(plan->strips, 64));
    CHECK(tile->panel_begin >= v->indptr[row] * across);
    CHECK(tile->panel_begin + tile->panel_count <= v->indptr[row + 1] * across);
    CHECK(row_in_block + 64 * plan->strips <= v->block_height);
    for (int i = 0; i < tile->panel_count; ++i)
      for (int strip = 0; strip < plan->strips; ++strip)
        CHECK(seen[(tile->panel_begin + i) * down + row_in_block / 64 + strip]++ == 0);
  }
  for (int64_t i = 0; i < v->nnzb * across * down; ++i) CHECK(seen[i] == 1);
  free(seen);
}

/* Parts of 32 rows: every one of a stored block is written by one tile, and panels are those of its columns. */
static void check_parts(const bsrg_structure_view *v, const bsrg_sampled_plan *plan) {
  CHECK(plan->part == 32 && plan->strips == 1);
  const int64_t across = v->block_width / 32, down = v->block_height / 32;
  char *seen = calloc((size_t)(v->nnzb * across * down), 1);
  int64_t panels = 0;
  for (int32_t t = 0; t < plan->tile_count; ++t) {
    const bsrg_sampled_tile *tile = &plan->tiles[t];
    CHECK(tile->panel_count >= 2 && tile->panel_count % 2 == 0);
    CHECK(tile->panel_count <= BSRG_SAMPLED_PANELS(1, 32));
    panels += tile->panel_count;
    for (int i = 0; i < tile->panel_count; ++i) {
      const bsrg_sampled_panel *panel = &plan->panels[tile->panel_begin + i];
      CHECK(panel->column >= 0 && panel->column + 32 <= v->cols && panel->offset % 32 == 0);
      for (int j = 0; j < 2; ++j) {
        const int64_t block = panel->block[j], row = tile->row[j] / v->block_height;
        if (block < 0) continue;
        CHECK(j == 0 || tile->row[0] != tile->row[1]);
        CHECK(tile->row[j] % 32 == 0 && block >= v->indptr[row] && block < v->indptr[row + 1]);
        CHECK(panel->column == v->indices[block] * v->block_width + panel->offset);
        const int64_t part = tile->row[j] % v->block_height / 32;
        CHECK(seen[(block * down + part) * across + panel->offset / 32]++ == 0);
      }
    }
  }
  CHECK(panels == plan->panel_count);
  for (int64_t i = 0; i < v->nnzb * across * down; ++i) CHECK(seen[i] == 1);
  free(seen);
}

static void check_hopper(const bsrg_structure_view *v, const bsrg_sampled_plan *plan) {
  if (v->block_height % 64 == 0 && v->block_width % 64 == 0)
    check_tiles(v, plan);
  else if (v->block_height % 32 == 0 && v->block_width % 32 == 0)
    check_parts(v, plan);
  else
    CHECK(plan->strips == 0);
}

/* A matrix of rows x cols blocks of which about one in `every` is stored, the first one always. */
static void check_plan(int64_t height, int64_t width, int rows, int cols, int every, unsigned seed) {
  int32_t *indptr = calloc((size_t)rows + 1, sizeof(*indptr));
  int32_t *indices = malloc(sizeof(*indices) * (size_t)(rows * cols));
  srand(seed);
  int32_t count = 0;
  for (int i = 0; i < rows; ++i) {
    for (int j = 0; j < cols; ++j)
      if (i + j == 0 || rand() % every == 0) indices[count++] = j;
    indptr[i + 1] = count;
  }
  const bsrg_pattern pattern = {rows * height, cols * width, height,  width, count,
                                rows + 1,      BSRG_I32,     indices, indptr};
  bsrg_structure *structure;
  CHECK(bsrg_structure_create(&pattern, 1, &structure, NULL) == BSRG_OK);
  const bsrg_structure_view v = bsrg_structure_get(structure);
  const bsrg_sampled_plan *plan = plan_of(structure);
  check_items(&v, plan);
  check_hopper(&v, plan);
  CHECK(plan_of(structure) == plan);
  bsrg_structure_destroy(structure);
  free(indptr);
  free(indices);
}

/* Tiles are of a width that suits the number of SMs. */
static void check_widths(void) {
  enum { ROWS = 64, COLS = 64, COUNT = 8 };
  int32_t indptr[ROWS + 1], indices[ROWS * COUNT];
  for (int i = 0; i <= ROWS; ++i) indptr[i] = i * COUNT;
  for (int i = 0; i < ROWS * COUNT; ++i) indices[i] = i % COUNT * (COLS / COUNT) + i / COUNT % (COLS / COUNT);
  for (int side = 64; side <= 128; side += 64) {
    const bsrg_pattern pattern = {ROWS * side, COLS * side, side,    side,  ROWS * COUNT,
                                  ROWS + 1,    BSRG_I32,    indices, indptr};
    bsrg_structure *structure;
    CHECK(bsrg_structure_create(&pattern, 1, &structure, NULL) == BSRG_OK);
    const bsrg_sampled_plan *plan = plan_of(structure);
    /* 128 rows: 256 tiles of the widest in two rounds of 132 SMs. 64 rows: 128 tiles of half the width in one round,
     * where 64 of the widest would leave half of the SMs idle. */
    CHECK(plan->tile_count == (side == 128 ? 256 : 128));
    for (int t = 0; t < plan->tile_count; ++t) CHECK(plan->tiles[t].panel_count == 4);
    bsrg_structure_destroy(structure);
  }
}

int main(void) {
  static const int sides[] = {1, 5, 16, 32, 64, 96, 128, 192, 256};
  enum { SIDES = sizeof(sides) / sizeof(*sides) };
  for (int h = 0; h < SIDES; ++h)
    for (int w = 0; w < SIDES; ++w)
      for (int every = 1; every <= 9; every += 4) check_plan(sides[h], sides[w], 7, 5 * every, every, 1);
  check_plan(32, 32, 41, 300, 3, 2);
  check_plan(96, 32, 5, 300, 3, 2);
  check_plan(64, 64, 40, 300, 3, 2); /* several sweeps of 4096 columns */
  check_plan(128, 256, 3, 100, 1, 3);
  check_widths();
  if (failures > 0) fprintf(stderr, "%d failures\n", failures);
  return failures > 0;
}
