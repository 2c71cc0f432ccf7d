/* The plan of sampled products: which stored columns of a block row are computed together, and in which order. */
#include "sampled.h"

#include <stdlib.h>

/* ---- tiles for Hopper ------------------------------------------------------------------------- */

int64_t bsrg_sampled_sweep_columns(const bsrg_structure_view *v) {
  enum { COLUMNS = 4096, MOST_SWEEPS = 64 };
  return bsrg_max(COLUMNS, bsrg_ceil_div(v->cols, MOST_SWEEPS));
}

/* Wide tiles read A less often; but where the last round of tiles leaves much of the chip without work, narrower ones end
 * sooner. A tile costs as many panels as it has and about one more of 64 columns by 128 rows. */
int64_t bsrg_sampled_choose_width(int64_t (*tiles)(const void *of, int64_t most), const void *of,
                                  int64_t widest, int64_t unit, int64_t overhead) {
  const int64_t workers = bsrg_chip_h200().sm_count;
  int64_t best = widest, least = INT64_MAX;
  for (int64_t most = widest; most >= unit; most -= unit) {
    const int64_t cost = bsrg_ceil_div(tiles(of, most), workers) * (most + overhead);
    if (cost < least) {
      least = cost;
      best = most;
    }
  }
  return best;
}

static int64_t row_panels(const bsrg_structure_view *v, int64_t row) {
  return (v->indptr[row + 1] - v->indptr[row]) * (v->block_width / BSRG_SAMPLED_STRIP);
}

int bsrg_sampled_strips(const bsrg_structure_view *v) {
  return v->block_height % (2 * BSRG_SAMPLED_STRIP) == 0 ? 2 : 1;
}

static int64_t count_tiles(const void *of, int64_t most) {
  const bsrg_structure_view *v = of;
  int64_t tiles = 0;
  for (int64_t row = 0; row < v->block_rows; ++row) tiles += bsrg_ceil_div(row_panels(v, row), most);
  return tiles * (v->block_height / (BSRG_SAMPLED_STRIP * bsrg_sampled_strips(v)));
}

/* The panels of all blocks, in the order of these. */
static void fill_panels(const bsrg_structure_view *v, bsrg_sampled_panel *panels) {
  const int32_t across = (int32_t)(v->block_width / BSRG_SAMPLED_STRIP);
  for (int64_t block = 0; block < v->nnzb; ++block) {
    for (int32_t i = 0; i < across; ++i) {
      const int32_t offset = i * BSRG_SAMPLED_STRIP;
      *panels++ = (bsrg_sampled_panel){.column = v->indices[block] * (int32_t)v->block_width + offset,
                                       .offset = offset,
                                       .block = {(int32_t)block, -1}};
    }
  }
}

/* Where tile `index` of `count` begins, when a row's panels are dealt evenly. */
static int64_t deal(int64_t panels, int64_t index, int64_t count) {
  return panels / count * index + bsrg_min(index, panels % count);
}

/* Tiles by sweeps: those whose first panel lies in one stretch of columns follow one another, down the rows of A in one
 * sweep and up in the next. next[row]: the row's first tile of the sweep. */
static void fill_tiles(const bsrg_structure_view *v, int64_t most, int64_t *next, bsrg_sampled_plan *plan) {
  const int64_t width = bsrg_sampled_sweep_columns(v);
  const int64_t per_block = v->block_width / BSRG_SAMPLED_STRIP;
  const int32_t height = BSRG_SAMPLED_STRIP * plan->strips;
  bsrg_sampled_tile *tile = plan->tiles;
  for (int64_t sweep = 0; sweep * width < v->cols; ++sweep) {
    for (int64_t i = 0; i < v->block_rows; ++i) {
      const int64_t row = sweep % 2 ? v->block_rows - 1 - i : i;
      const int64_t panels = row_panels(v, row), tiles = bsrg_ceil_div(panels, most);
      const int64_t begin = v->indptr[row] * per_block;
      for (; next[row] < tiles; ++next[row]) {
        const int64_t first = deal(panels, next[row], tiles), end = deal(panels, next[row] + 1, tiles);
        if (plan->panels[begin + first].column >= (sweep + 1) * width) break;
        for (int32_t in_block = 0; in_block < v->block_height; in_block += height) {
          const int32_t top = (int32_t)(row * v->block_height) + in_block;
          *tile++ = (bsrg_sampled_tile){.row = {top, plan->strips == 2 ? top + BSRG_SAMPLED_STRIP : top},
                                        .panel_begin = (int32_t)(begin + first),
                                        .panel_count = (int32_t)(end - first)};
        }
      }
    }
  }
}

/* false: no memory. */
static bool plan_strips(const bsrg_structure_view *v, bsrg_sampled_plan *plan) {
  const int strips = bsrg_sampled_strips(v);
  const int64_t panels = v->nnzb * (v->block_width / BSRG_SAMPLED_STRIP);
  if (panels > INT32_MAX) return true;
  const int64_t most = bsrg_sampled_choose_width(
      count_tiles, v, BSRG_SAMPLED_PANELS(strips, BSRG_SAMPLED_STRIP), 1, strips == 2 ? 1 : 2);
  const int64_t tiles = count_tiles(v, most);
  if (tiles > INT32_MAX / 2) return true;
  plan->strips = strips;
  plan->part = BSRG_SAMPLED_STRIP;
  plan->panel_count = panels;
  plan->tile_count = (int32_t)tiles;
  plan->panels = malloc(sizeof(*plan->panels) * (size_t)panels);
  plan->tiles = malloc(sizeof(*plan->tiles) * (size_t)tiles);
  int64_t *next = calloc((size_t)v->block_rows, sizeof(*next));
  const bool done = plan->panels && plan->tiles && next;
  if (done) {
    fill_panels(v, plan->panels);
    fill_tiles(v, most, next, plan);
  }
  free(next);
  return done;
}

/* Kernels count rows, columns, panels and tiles in 32 bits, with room for all that draw a tile once more. false: no
 * memory. */
static bool plan_tiles(const bsrg_structure_view *v, bsrg_sampled_plan *plan) {
  if (bsrg_whole_rows(v) > INT32_MAX || bsrg_whole_cols(v) > INT32_MAX) return true;
  if (v->block_height % BSRG_SAMPLED_STRIP == 0 && v->block_width % BSRG_SAMPLED_STRIP == 0)
    return plan_strips(v, plan);
  return bsrg_sampled_plan_parts(v, plan);
}

/* ---- items for the portable kernels ----------------------------------------------------------- */

/* Items of `width` columns, or of less at the end of a row; those of tall blocks are shared by all row tiles. */
static int64_t count_items(const bsrg_structure_view *v, int64_t width) {
  int64_t items = 0;
  for (int64_t row = 0; row < v->block_rows; ++row)
    items += bsrg_ceil_div((v->indptr[row + 1] - v->indptr[row]) * v->block_width, width);
  return items;
}

static bool plan_items(const bsrg_structure_view *v, bsrg_sampled_plan *plan) {
  /* Items of many columns are worth up to half of their columns left empty. */
  const int64_t many = count_items(v, BSRG_SAMPLED_MANY), few = count_items(v, BSRG_SAMPLED_FEW);
  const bool narrow = 2 * few * BSRG_SAMPLED_FEW < many * BSRG_SAMPLED_MANY;
  plan->item_columns = narrow ? BSRG_SAMPLED_FEW : BSRG_SAMPLED_MANY;
  plan->item_count = narrow ? few : many;
  plan->items = malloc(sizeof(*plan->items) * (size_t)plan->item_count);
  if (!plan->items) return false;
  bsrg_sampled_item *item = plan->items;
  for (int64_t row = 0; row < v->block_rows; ++row) {
    const int64_t columns = (v->indptr[row + 1] - v->indptr[row]) * v->block_width;
    for (int64_t first = 0; first < columns; first += plan->item_columns)
      *item++ = (bsrg_sampled_item){.block = v->indptr[row] + first / v->block_width,
                                    .block_row = (int32_t)row,
                                    .offset = (int32_t)(first % v->block_width),
                                    .count = (int32_t)bsrg_min(plan->item_columns, columns - first)};
  }
  return true;
}

/* ---- the plan --------------------------------------------------------------------------------- */

static void free_plan(void *memory) {
  bsrg_sampled_plan *plan = memory;
  free(plan->tiles);
  free(plan->panels);
  free(plan->items);
  free(plan);
}

/* Of a structure with at least one block. */
static void *make_plan(bsrg_structure *structure) {
  bsrg_sampled_plan *plan = calloc(1, sizeof(*plan));
  if (!plan) return NULL;
  if (structure->dynamic) {
    bsrg_sampled_plan_dynamic(&structure->view, plan);
    return plan;
  }
  if (plan_tiles(&structure->view, plan) && plan_items(&structure->view, plan)) return plan;
  free_plan(plan);
  return NULL;
}

const bsrg_family_ops bsrg_sampled_lists = {
    .family = BSRG_SAMPLED, .make_plan = make_plan, .free_plan = free_plan};
