/* Tiles of sampled products for blocks whose sides are multiples of 32, but not both of 64: a strip is two parts of 32 rows,
 * of one block row or of two, and is multiplied by the panels of 32 columns that either of them stores. */
#include "sampled.h"

#include <stdlib.h>

#include "stream.h"

enum {
  PART = 32,
  UNIT = 64 / PART, /* a tile has a multiple of so many panels */
  /* What a tile costs beside its panels, in panels: about one of 64 columns by 128 rows. */
  TILE_PANELS = 4
};

/* Two parts that share a strip, as block rows and numbers of parts in these; without a second one it is the first again. */
typedef struct pair {
  int64_t row[2], part[2];
  int64_t begin, count; /* panels */
  int64_t next;         /* the first tile that is not placed yet */
} pair;

typedef struct builder {
  const bsrg_structure_view *v;
  pair *pairs;
  int64_t pair_count;
  bsrg_sampled_panel *panels; /* of all pairs, one behind the other */
} builder;

/* Parts in such an order that neighbours share columns: those of one block row, then those of its partner backwards. */
static void pair_parts(builder *b, const int32_t *order) {
  const int64_t parts = b->v->block_height / PART;
  pair *p = b->pairs;
  for (int64_t i = 0; i < b->v->block_rows; i += 2) {
    const int64_t rows = bsrg_min(2, b->v->block_rows - i), count = rows * parts;
    for (int64_t first = 0; first < count; first += 2, ++p) {
      for (int64_t j = 0; j < 2; ++j) {
        const int64_t k = bsrg_min(first + j, count - 1);
        p->row[j] = order[i + k / parts];
        p->part[j] = k < parts ? k : 2 * parts - 1 - k;
      }
    }
  }
  b->pair_count = p - b->pairs;
}

static bool is_alone(const pair *p) { return p->row[0] == p->row[1] && p->part[0] == p->part[1]; }

/* The union of the pair's block columns: where panels is NULL, how many panels that are. */
static int64_t merge(const bsrg_structure_view *v, const pair *p, bsrg_sampled_panel *panels) {
  const int64_t across = v->block_width / PART;
  int64_t i = v->indptr[p->row[0]], count = 0;
  const int64_t i_end = v->indptr[p->row[0] + 1], j_end = v->indptr[p->row[1] + 1];
  int64_t j = is_alone(p) ? j_end : v->indptr[p->row[1]];
  while (i < i_end || j < j_end) {
    const int32_t upper = i < i_end ? v->indices[i] : INT32_MAX,
                  lower = j < j_end ? v->indices[j] : INT32_MAX;
    const int32_t column = upper < lower ? upper : lower;
    const int32_t block[2] = {upper == column ? (int32_t)i++ : -1, lower == column ? (int32_t)j++ : -1};
    for (int64_t k = 0; panels && k < across; ++k)
      panels[count + k] = (bsrg_sampled_panel){.column = (int32_t)(column * v->block_width + k * PART),
                                               .offset = (int32_t)(k * PART),
                                               .block = {block[0], block[1]}};
    count += across;
  }
  return count;
}

static int64_t count_tiles(const void *of, int64_t most) {
  const builder *b = of;
  int64_t tiles = 0;
  for (int64_t i = 0; i < b->pair_count; ++i) tiles += bsrg_ceil_div(b->pairs[i].count, most);
  return tiles;
}

/* An even number of panels: the last one again, for nobody. */
static int64_t merge_evenly(const bsrg_structure_view *v, const pair *p, bsrg_sampled_panel *panels) {
  int64_t count = merge(v, p, panels);
  for (; count % UNIT; ++count) {
    panels[count] = panels[count - 1];
    panels[count].block[0] = panels[count].block[1] = -1;
  }
  return count;
}

/* Where tile `index` of `count` begins, when a pair's panels are dealt evenly in units. */
static int64_t deal(int64_t panels, int64_t index, int64_t count) {
  const int64_t units = panels / UNIT;
  return UNIT * (units / count * index + bsrg_min(index, units % count));
}

static int32_t first_row(const bsrg_structure_view *v, const pair *p, int j) {
  return (int32_t)(p->row[j] * v->block_height + p->part[j] * PART);
}

/* By sweeps, as those of larger blocks. */
static void fill_tiles(const builder *b, int64_t most, bsrg_sampled_tile *tile) {
  const bsrg_structure_view *v = b->v;
  const int64_t width = bsrg_sampled_sweep_columns(v);
  for (int64_t sweep = 0; sweep * width < v->cols; ++sweep) {
    for (int64_t i = 0; i < b->pair_count; ++i) {
      pair *p = &b->pairs[sweep % 2 ? b->pair_count - 1 - i : i];
      const int64_t tiles = bsrg_ceil_div(p->count, most);
      for (; p->next < tiles; ++p->next) {
        const int64_t first = deal(p->count, p->next, tiles), end = deal(p->count, p->next + 1, tiles);
        if (b->panels[p->begin + first].column >= (sweep + 1) * width) break;
        *tile++ = (bsrg_sampled_tile){.row = {first_row(v, p, 0), first_row(v, p, 1)},
                                      .panel_begin = (int32_t)(p->begin + first),
                                      .panel_count = (int32_t)(end - first)};
      }
    }
  }
}

/* false: no memory. */
static bool make_tiles(builder *b, bsrg_sampled_plan *plan) {
  int64_t panels = 0;
  for (int64_t i = 0; i < b->pair_count; ++i)
    panels += bsrg_ceil_div(merge(b->v, &b->pairs[i], NULL), UNIT) * UNIT;
  if (panels > INT32_MAX) return true;
  plan->panels = b->panels = malloc(sizeof(*b->panels) * (size_t)panels);
  if (!b->panels) return false;
  for (int64_t i = 0, begin = 0; i < b->pair_count; begin += b->pairs[i++].count) {
    b->pairs[i].begin = begin;
    b->pairs[i].count = merge_evenly(b->v, &b->pairs[i], b->panels + begin);
  }
  const int64_t most =
      bsrg_sampled_choose_width(count_tiles, b, BSRG_SAMPLED_PANELS(1, PART), UNIT, TILE_PANELS);
  const int64_t tiles = count_tiles(b, most);
  if (tiles > INT32_MAX / 2) return true;
  plan->tiles = malloc(sizeof(*plan->tiles) * (size_t)tiles);
  if (!plan->tiles) return false;
  fill_tiles(b, most, plan->tiles);
  plan->strips = 1;
  plan->part = PART;
  plan->panel_count = panels;
  plan->tile_count = (int32_t)tiles;
  return true;
}

bool bsrg_sampled_plan_parts(const bsrg_structure_view *v, bsrg_sampled_plan *plan) {
  if (v->block_height % PART || v->block_width % PART || v->column_order != BSRG_ASCENDING) return true;
  const int64_t parts = v->block_height / PART;
  const int64_t pairs = bsrg_ceil_div(v->block_rows, 2);
  int32_t *order = malloc(sizeof(*order) * (size_t)v->block_rows);
  int64_t *start = malloc(sizeof(*start) * (size_t)(pairs + 1));
  builder b = {.v = v, .pairs = calloc((size_t)(pairs * parts), sizeof(*b.pairs))};
  bool done = order && start && b.pairs;
  for (int64_t i = 0; done && i < v->block_rows; ++i) order[i] = (int32_t)i;
  for (int64_t i = 0; done && i <= pairs; ++i) start[i] = bsrg_min(2 * i, v->block_rows);
  /* An even number of parts is paired within the block row. */
  if (done && parts % 2) done = bsrg_stream_order(v, start, pairs, order);
  if (done) {
    pair_parts(&b, order);
    done = make_tiles(&b, plan);
  }
  free(order);
  free(start);
  free(b.pairs);
  return done;
}
