/* The streaming family's plan: tiles of up to 384 rows, cut into stages that hold only the block columns in use. */
#include "stream.h"
#include "tensor_map.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define SHAPE(height, width) {height, width},
static const int32_t shapes[][2] = {BSRG_STREAM_SHAPES(SHAPE)};
#undef SHAPE

bsrg_stream_shape bsrg_stream_choose(const bsrg_structure_view *v) {
  bsrg_stream_shape best = {0};
  for (int i = 0; i < BSRG_STREAM_SHAPE_COUNT; ++i) {
    const int32_t height = shapes[i][0], width = shapes[i][1];
    if (v->block_height % height || v->block_width % width) continue;
    /* A tile has room for fewer rows of high parts than of others. */
    if (height > 64 && !bsrg_stream_fits(v->block_height / height, height)) continue;
    /* Taller parts read X less often, and of wider ones there are fewer. */
    if (height < best.height || (height == best.height && width < best.width)) continue;
    best = (bsrg_stream_shape){height, width, (int32_t)(v->block_height / height),
                               (int32_t)(v->block_width / width), BSRG_KERNEL_STREAM_F16_8X16 + i};
  }
  return best;
}

/* ---- from a tile's blocks to its stages ------------------------------------------------------- */

/* A part of a stored block, where a tile needs it. */
typedef struct part {
  int32_t column;     /* in parts */
  int16_t group, row; /* the warpgroup, and which of its part rows */
  int32_t source;
} part;

typedef struct builder {
  const bsrg_structure_view *v;
  bsrg_stream_plan *plan;
  int64_t stage_capacity;
  int32_t group_rows; /* part rows that a warpgroup has room for */
  part *parts;        /* the tile's, by column, then row */
  int64_t *starts;    /* [part columns], zeros between tiles */
  int32_t *touched;   /* [part columns] */
} builder;

static bsrg_stream_stage *new_stage(builder *b) {
  bsrg_stream_plan *plan = b->plan;
  if (plan->stage_count == b->stage_capacity) {
    const int64_t capacity = 2 * b->stage_capacity + 64;
    bsrg_stream_stage *moved = realloc(plan->stages, sizeof(*moved) * (size_t)capacity);
    if (!moved) return NULL;
    plan->stages = moved;
    b->stage_capacity = capacity;
  }
  bsrg_stream_stage *stage = &plan->stages[plan->stage_count++];
  memset(stage, 0, sizeof(*stage));
  stage->a_begin = (int32_t)plan->part_count;
  return stage;
}

/* A stage's parts, by where they are needed. */
typedef struct stage_parts {
  int32_t source[BSRG_STREAM_GROUPS][BSRG_STREAM_MOST_ROWS][BSRG_STREAM_SLOTS];
  uint32_t slots[BSRG_STREAM_GROUPS][BSRG_STREAM_MOST_ROWS]; /* bit s: there is a part */
} stage_parts;

static void sort_parts(stage_parts *sorted, const part *parts, int64_t count) {
  memset(sorted->slots, 0, sizeof(sorted->slots));
  int32_t slot = -1;
  for (int64_t i = 0; i < count; ++i) {
    slot += i == 0 || parts[i].column != parts[i - 1].column;
    const int16_t g = parts[i].group, row = parts[i].row;
    sorted->source[g][row][slot] = parts[i].source;
    sorted->slots[g][row] |= 1u << slot;
  }
}

/* The stage's parts in the order in which the warpgroups use them. */
static void pack_stage(builder *b, bsrg_stream_stage *stage, const part *parts) {
  bsrg_stream_plan *plan = b->plan;
  stage_parts sorted;
  sort_parts(&sorted, parts, stage->a_count);
  int32_t *packed = plan->source + stage->a_begin;
  const bool in_pairs = BSRG_STREAM_PAIRS(plan->shape.width);
  for (int32_t g = 0; g < BSRG_STREAM_GROUPS; ++g) {
    bsrg_stream_share *share = &stage->share[g];
    share->blocks = stage->a_count - (int32_t)(packed - plan->source - stage->a_begin);
    for (int32_t row = 0; row < b->group_rows; ++row) {
      uint32_t left = sorted.slots[g][row];
      if (in_pairs) {
        share->slots[row] = left;
        plan->steps += (__builtin_popcount(left) + 1) / 2;
        for (; left; left &= left - 1) *packed++ = sorted.source[g][row][__builtin_ctz(left)];
        continue;
      }
      share->slots[row / 2] |= left << row % 2 * 16;
      for (int32_t slot = stage->x_count - 1; left; --slot) {
        if (left >> slot) *packed++ = sorted.source[g][row][slot];
        left &= (1u << slot) - 1;
      }
    }
  }
  if (!in_pairs) plan->steps += stage->a_count * (plan->shape.width / 16);
  plan->part_count += stage->a_count;
  plan->slots += stage->x_count;
}

static int by_number(const void *a, const void *b) {
  const int32_t x = *(const int32_t *)a, y = *(const int32_t *)b;
  return (x > y) - (x < y);
}

/* Counts the parts in each column of the given block rows into b->starts, and lists the columns in ascending order. */
static int64_t count_parts(builder *b, const int32_t *block_rows, int64_t count) {
  const bsrg_structure_view *v = b->v;
  const bsrg_stream_shape *shape = &b->plan->shape;
  const int64_t columns = v->block_cols * shape->columns;
  int64_t touched = 0;
  for (int64_t r = 0; r < count; ++r)
    for (int64_t k = v->indptr[block_rows[r]]; k < v->indptr[block_rows[r] + 1]; ++k)
      for (int32_t c = 0; c < shape->columns; ++c) {
        const int32_t column = v->indices[k] * shape->columns + c;
        if (b->starts[column] == 0) b->touched[touched++] = column;
        b->starts[column] += shape->rows;
      }
  /* To look at every column is fast where many are there; a matrix of few blocks has too many for that. */
  if (touched < columns / 32) {
    qsort(b->touched, (size_t)touched, sizeof(*b->touched), by_number);
    return touched;
  }
  touched = 0;
  for (int64_t c = 0; c < columns; ++c)
    if (b->starts[c]) b->touched[touched++] = (int32_t)c;
  return touched;
}

/* Part rows of each warpgroup of a tile of so many; the last one may have fewer. */
static int32_t rows_of_group(int64_t part_rows) {
  return (int32_t)bsrg_ceil_div(part_rows, BSRG_STREAM_GROUPS);
}

/* Fills b->parts with the parts of the given block rows, by column; returns how many. */
static int64_t collect_parts(builder *b, const int32_t *block_rows, int64_t count) {
  const bsrg_structure_view *v = b->v;
  const bsrg_stream_shape *shape = &b->plan->shape;
  const int64_t touched = count_parts(b, block_rows, count);
  int64_t *starts = b->starts, total = 0;
  for (int64_t i = 0; i < touched; ++i) {
    const int64_t parts = starts[b->touched[i]];
    starts[b->touched[i]] = total;
    total += parts;
  }
  const int32_t group_rows = rows_of_group(count * shape->rows);
  for (int64_t r = 0; r < count; ++r)
    for (int32_t down = 0; down < shape->rows; ++down) {
      const int32_t row = (int32_t)r * shape->rows + down; /* in the tile */
      const int16_t group = (int16_t)(row / group_rows), in_group = (int16_t)(row % group_rows);
      for (int64_t k = v->indptr[block_rows[r]]; k < v->indptr[block_rows[r] + 1]; ++k) {
        const int64_t block = v->order ? v->order[k] : k;
        for (int32_t c = 0; c < shape->columns; ++c) {
          const int64_t column = (int64_t)v->indices[k] * shape->columns + c;
          b->parts[starts[column]++] = (part){(int32_t)column, group, in_group,
                                              (int32_t)((block * shape->rows + down) * shape->columns + c)};
        }
      }
    }
  for (int64_t i = 0; i < touched; ++i) starts[b->touched[i]] = 0;
  return total;
}

static bool add_tile(builder *b, const int32_t *block_rows, int64_t count) {
  bsrg_stream_plan *plan = b->plan;
  const bsrg_stream_shape *shape = &plan->shape;
  const int64_t total = collect_parts(b, block_rows, count);
  const int64_t slot_bytes = 2 * shape->width * BSRG_STREAM_TILE_N;
  const int64_t part_bytes = 2 * shape->width * shape->height;
  bsrg_stream_tile *tile = &plan->tiles[plan->tile_count++];
  tile->stage_begin = (int32_t)plan->stage_count;
  tile->row_begin = (int32_t)plan->row_count;
  bsrg_stream_stage *stage = NULL;
  int64_t first = 0; /* of the stage */
  for (int64_t i = 0; i < total;) {
    int64_t end = i;
    while (end < total && b->parts[end].column == b->parts[i].column) ++end;
    if (stage && (stage->x_count == BSRG_STREAM_SLOTS_OF(shape->width) ||
                  (stage->x_count + 1) * slot_bytes + (end - first) * part_bytes > BSRG_STREAM_STAGE_BYTES)) {
      pack_stage(b, stage, b->parts + first);
      stage = NULL;
    }
    if (!stage) {
      stage = new_stage(b);
      if (!stage) return false;
      first = i;
    }
    stage->x_row[stage->x_count++] = b->parts[i].column * shape->width;
    stage->a_count += (int32_t)(end - i);
    i = end;
  }
  if (stage) pack_stage(b, stage, b->parts + first);
  tile->stage_count = (int32_t)plan->stage_count - tile->stage_begin;
  const int32_t group_rows = rows_of_group(count * shape->rows);
  for (int32_t g = 0; g < BSRG_STREAM_GROUPS; ++g)
    for (int32_t i = 0; i < b->group_rows; ++i) {
      const int64_t r = (int64_t)g * group_rows + i;
      plan->rows[plan->row_count++] =
          i < group_rows && r < count * shape->rows
              ? (int32_t)(block_rows[r / shape->rows] * b->v->block_height + r % shape->rows * shape->height)
              : -1;
    }
  tile->parts = (int32_t)total;
  plan->longest_tile = bsrg_max(plan->longest_tile, total);
  return true;
}

/* ---- the plan --------------------------------------------------------------------------------- */

void bsrg_stream_free_plan(void *plan) {
  bsrg_stream_plan *stream = plan;
  free(stream->stages);
  free(stream->tiles);
  free(stream->rows);
  free(stream->source);
  free(stream);
}

/* Of so many block rows, that go into tiles of up to tile_rows: where each tile begins in their order, and where the last one
 * ends. Tiles of sorted rows are full, others as even as can be. */
static void cut_rows(const bsrg_stream_plan *plan, int64_t block_rows, int64_t tile_rows, int64_t tiles,
                     int64_t *start) {
  for (int64_t t = 0; t < tiles; ++t) start[t] = plan->skewed ? t * tile_rows : t * block_rows / tiles;
  start[tiles] = block_rows;
}

static bool make_tiles(builder *b, const int32_t *row_order, const int64_t *start, int64_t tiles) {
  bsrg_stream_plan *plan = b->plan;
  const bsrg_structure_view *v = b->v;
  const int64_t parts = (int64_t)plan->shape.rows * plan->shape.columns;
  plan->tiles = malloc(sizeof(*plan->tiles) * (size_t)(tiles + 1));
  plan->rows = malloc(sizeof(*plan->rows) * (size_t)(tiles * BSRG_STREAM_GROUPS * b->group_rows + 1));
  plan->source = calloc((size_t)(v->nnzb * parts + BSRG_STREAM_SOURCE_SLACK), sizeof(*plan->source));
  int64_t longest = 0;
  for (int64_t t = 0; t < tiles; ++t) {
    int64_t blocks = 0;
    for (int64_t r = start[t]; r < start[t + 1]; ++r)
      blocks += v->indptr[row_order[r] + 1] - v->indptr[row_order[r]];
    longest = bsrg_max(longest, blocks);
  }
  b->parts = malloc(sizeof(*b->parts) * (size_t)(longest * parts + 1));
  const size_t columns = (size_t)(v->block_cols * plan->shape.columns);
  b->starts = calloc(columns + 1, sizeof(*b->starts));
  b->touched = malloc(sizeof(*b->touched) * (columns + 1));
  bool done = plan->tiles && plan->rows && plan->source && b->parts && b->starts && b->touched;
  for (int64_t t = 0; done && t < tiles; ++t)
    done = add_tile(b, row_order + start[t], start[t + 1] - start[t]);
  free(b->parts);
  free(b->starts);
  free(b->touched);
  return done;
}

/* Longest first. Rows come so, too, but for those that were brought together. */
static bool sort_tiles(bsrg_stream_plan *plan) {
  int64_t *length = malloc(sizeof(*length) * (size_t)plan->tile_count);
  if (!length) return false;
  for (int32_t t = 0; t < plan->tile_count; ++t) length[t] = plan->tiles[t].parts;
  const bool done =
      bsrg_sort_records(plan->tiles, sizeof(*plan->tiles), length, plan->tile_count, plan->longest_tile);
  free(length);
  return done;
}

int64_t bsrg_stream_tile_rows(const bsrg_stream_shape *shape, bool low) {
  const int64_t parts = BSRG_STREAM_GROUPS * BSRG_STREAM_ROWS_OF(shape->height);
  return bsrg_max(1, (low ? 2 * parts / 3 : parts) / shape->rows);
}

static void *make_plan(const bsrg_structure_view *v, bool low) {
  const bsrg_stream_shape shape = bsrg_stream_choose(v);
  const int64_t tile_rows = bsrg_stream_tile_rows(&shape, low),
                tiles = bsrg_ceil_div(v->block_rows, tile_rows);
  bsrg_stream_plan *plan = calloc(1, sizeof(*plan));
  int32_t *row_order = malloc(sizeof(*row_order) * (size_t)v->block_rows);
  int64_t *start = malloc(sizeof(*start) * (size_t)(tiles + 1));
  bool done = plan && row_order && start;
  if (done) {
    plan->shape = shape;
    plan->low = low;
    plan->columns = v->block_cols * shape.columns;
    plan->skewed = bsrg_is_skewed(v->longest_row, v->nnzb, v->block_rows);
    builder b = {.v = v, .plan = plan, .group_rows = BSRG_STREAM_ROWS_OF(shape.height)};
    cut_rows(plan, v->block_rows, tile_rows, tiles, start);
    done = bsrg_row_order(v, row_order) && bsrg_stream_order(v, start, tiles, row_order) &&
           make_tiles(&b, row_order, start, tiles) && (!plan->skewed || sort_tiles(plan));
  }
  free(row_order);
  free(start);
  if (done) return plan;
  if (plan) bsrg_stream_free_plan(plan);
  return NULL;
}

void *bsrg_stream_make_plan(bsrg_structure *structure) { return make_plan(&structure->view, false); }

void *bsrg_stream_make_low_plan(bsrg_structure *structure) { return make_plan(&structure->view, true); }

/* Rows times rounds of all SMs, which have tiles of so many rows to do. */
static double rows_of_rounds(int64_t rows, int64_t tile_rows, int64_t columns, int64_t sm_count) {
  const int64_t tiles = bsrg_ceil_div(rows, tile_rows);
  return (double)bsrg_ceil_div(tiles * columns, sm_count) * (double)rows / (double)tiles;
}

bool bsrg_stream_wants_low(const bsrg_structure_view *v, int64_t n, int64_t sm_count) {
  /* What a row costs in a low tile, as measured. */
  const double low_row = 1.1;
  const int64_t most = BSRG_STREAM_GROUPS * BSRG_STREAM_GROUP_ROWS,
                columns = bsrg_ceil_div(n, BSRG_STREAM_TILE_N);
  return low_row * rows_of_rounds(v->rows, 2 * most / 3, columns, sm_count) <
         rows_of_rounds(v->rows, most, columns, sm_count);
}

/* Whether nearly all block columns are used by every tile. */
static bool uses_most(const bsrg_stream_plan *plan) {
  return !plan->skewed && (double)plan->slots >= 0.85 * (double)plan->columns * plan->tile_count;
}

static bool is_kept(double parts, int32_t height, int32_t width, bool skewed) {
  /* All tiles read them again for every group of columns, at nearly the same time. Of 32 MB little is left then. */
  const int64_t most_bytes = 24 << 20;
  return 2 * parts * height * width <= (double)most_bytes && !skewed;
}

bool bsrg_stream_keeps(const bsrg_stream_plan *plan) {
  return is_kept((double)plan->part_count, plan->shape.height, plan->shape.width, plan->skewed);
}

int32_t bsrg_stream_cluster(int64_t n, double tiles, int64_t sm_count) {
  const int64_t columns = bsrg_ceil_div(n, BSRG_STREAM_TILE_N);
  return columns % 2 == 0 && tiles * (double)columns > (double)sm_count ? 2 : 1;
}

int32_t bsrg_stream_group(const bsrg_stream_plan *plan, int32_t cluster, int32_t n_tiles) {
  /* Column tiles that run side by side read the same blocks at the same time. Where these stay in L2 anyway, row tiles side by
   * side read the same X. */
  const int32_t tiles = bsrg_stream_keeps(plan) ? 1 : uses_most(plan) ? 8 : 4;
  return bsrg_min(bsrg_max(1, tiles / cluster), n_tiles);
}

int32_t bsrg_stream_lead(const bsrg_stream_plan *plan, int32_t cluster, int32_t n_tiles, int64_t sm_count) {
  const int32_t group = bsrg_stream_group(plan, cluster, n_tiles);
  int32_t lead = 0;
  while (plan->skewed && lead < plan->tile_count &&
         bsrg_goes_first(plan->tiles[lead].parts, (double)plan->part_count, group, n_tiles,
                         sm_count / cluster, bsrg_sweeps_of_first))
    ++lead;
  return lead;
}

/* ---- cost ------------------------------------------------------------------------------------- */

/* Fitted on an H200: within 5% for 31 of 38 products, within 8% for all of 8192 columns, up to 12% too long for fewer. The
 * rates are what fits beside products, and the clock is one that power allows for long; loads alone end at some 9.6 TB/s. */
static const double clock_hz = 1.5e9, l2_bytes_per_s = 20.5e12;
/* Likewise, of blocks up to 32 rows high that L2 keeps. */
static const double l2_kept_bytes_per_s = 26e12;
/* Of an SM, for what one column of a transposed X has in a slot, 16 or 32 bytes, and 64: X @ A.T of 16 x 16 blocks took
 * 860 us, A @ X 556, of 32 x 32 371 and 369. */
static const double short_run_cycles = 1.2, run_cycles = 1.0;
/* Cycles of an SM for a step, 16 columns of a part, and for a tile. */
static const double step_cycles = 20.2, step_row_cycles = .85, tile_cycles = 7900;
/* Where tiles have next to nothing to do, the share of that which other tiles' output hides. Fitted on an H200 to eleven products of
 * density .003 to .05. */
static const double overlap = 0.33;
/* Of parts of 8 rows, for which instructions are issued as fast as they can be. */
static const double low_step_overhead = 1.15;
/* Of pairs, which take more instructions. */
static const double pair_overhead = 1.08;
/* Of parts of 96 and 112 rows. */
static const double high_step_overhead = 1.09;

/* Of an SM, for 128 columns of all parts. */
static double product_cycles(const bsrg_stream_work *w) {
  const double overhead = w->height == 8                ? low_step_overhead
                          : BSRG_STREAM_PAIRS(w->width) ? pair_overhead
                          : w->height > 64              ? high_step_overhead
                                                        : 1;
  return w->steps * (step_cycles + step_row_cycles * w->height) * overhead;
}

double bsrg_stream_steps(const bsrg_stream_work *w) {
  if (!BSRG_STREAM_PAIRS(w->width)) return w->parts * w->width / 16;
  /* Parts are paired within a block row and a stage, and one is left over of an odd number. */
  const double slot_bytes = 2.0 * w->width * (BSRG_STREAM_TILE_N + w->parts / fmax(1, w->slots) * w->height);
  const double stages = w->slots / fmin(BSRG_STREAM_SLOTS, floor(BSRG_STREAM_STAGE_BYTES / slot_bytes));
  const double rows = BSRG_STREAM_GROUPS * BSRG_STREAM_ROWS_OF(w->height) * stages;
  return (w->parts + rows * (1 - exp(-2 * w->parts / rows)) / 2) / 2;
}

bsrg_stream_work bsrg_stream_work_of(const bsrg_stream_plan *plan) {
  return (bsrg_stream_work){.height = plan->shape.height,
                            .width = plan->shape.width,
                            .parts = (double)plan->part_count,
                            .slots = (double)plan->slots,
                            .steps = (double)plan->steps,
                            .tiles = (double)plan->tile_count,
                            .longest_tile = (double)plan->longest_tile,
                            .skewed = plan->skewed};
}

void bsrg_stream_predict_packed(const bsrg_stream_work *w, double compulsory_bytes, int64_t n,
                                bool transposed_x, const bsrg_chip *chip, bsrg_candidate *c) {
  const double columns = (double)bsrg_ceil_div(n, BSRG_STREAM_TILE_N);
  const double part_bytes = 2.0 * w->height * w->width;
  const double slot_bytes = 2.0 * BSRG_STREAM_TILE_N * w->width;
  c->mma_flops = w->steps * 2.0 * w->height * 16 * columns * BSRG_STREAM_TILE_N;
  const int32_t cluster = bsrg_stream_cluster(n, w->tiles, chip->sm_count);
  c->l2_bytes = columns * (w->parts * part_bytes / cluster + w->slots * slot_bytes);
  c->hbm_bytes = compulsory_bytes;
  /* Loads and products overlap, though not all of the time. */
  const double runs = transposed_x ? columns * BSRG_STREAM_TILE_N * w->slots : 0;
  const bool kept = is_kept(w->parts, w->height, w->width, w->skewed);
  const double rate = kept && w->height <= 32 ? l2_kept_bytes_per_s : l2_bytes_per_s;
  const double of_run = w->width < 32 ? short_run_cycles : run_cycles;
  const double loads = fmax(c->l2_bytes / rate, runs * of_run / (clock_hz * chip->sm_count));
  const double products = product_cycles(w) * columns / (clock_hz * chip->sm_count);
  const double work = hypot(loads, products);
  /* Most of that is the output. */
  const double of_tile =
      tile_cycles / clock_hz * bsrg_stream_group_height(w->height) / BSRG_STREAM_GROUP_ROWS;
  const double tile_seconds = of_tile * w->tiles * columns / chip->sm_count;
  const double hidden = overlap * work * fmax(0, 1 - work / (2 * tile_seconds));
  const double busy = fmax(work - hidden + tile_seconds, c->mma_flops / chip->mma_flops_per_s);
  const double memory = compulsory_bytes / chip->hbm_bytes_per_s;
  /* Nothing ends before the longest tile, and the last wave is rarely full. */
  const double tiles = w->tiles * columns, waves = ceil(tiles / chip->sm_count);
  const double longest = work * chip->sm_count / columns * w->longest_tile / w->parts + of_tile;
  const double spread = w->skewed ? 1 : waves > 12 ? 1.02 : waves * chip->sm_count / tiles;
  c->seconds = BSRG_LAUNCH_SECONDS + fmax(fmax(busy * spread, longest), memory);
  bsrg_set_reason(c, "limited by %s",
                  memory > busy      ? "memory"
                  : loads > products ? "the L2 cache"
                                     : "shared memory");
}

/* Boxes of X for a slot, over all columns: one for a tile, but the last one panel by panel if its rows are contiguous and not
 * all of them are there. */
static int64_t boxes_of_slot(const bsrg_matmul_args *args) {
  const int64_t n = args->x.cols, tile = BSRG_STREAM_TILE_N;
  return bsrg_map_has_transposed_x(args) ? bsrg_ceil_div(n, tile) : n / tile + bsrg_ceil_div(n % tile, 64);
}

/* What an SM takes longer for a slot of a stage whose blocks are no bulk copy. Of 32 products on an H200, of 512 to 8,192
 * columns, this takes the faster way but where they differ by 4% at most. */
static const double slot_seconds = 5.3e-9;

static double packing_bytes(const bsrg_stream_plan *plan) { /* read and written */
  return 4.0 * (double)plan->part_count * plan->shape.height * plan->shape.width;
}

static double packing_seconds(const bsrg_stream_plan *plan, const bsrg_chip *chip) {
  return BSRG_LAUNCH_SECONDS + packing_bytes(plan) / chip->hbm_bytes_per_s;
}

static double stored_seconds(const bsrg_matmul_args *args, const bsrg_stream_plan *plan,
                             const bsrg_chip *chip) {
  return (double)plan->slots * (double)boxes_of_slot(args) * slot_seconds / chip->sm_count;
}

bool bsrg_stream_reads_stored(const bsrg_matmul_args *args, const bsrg_stream_plan *plan,
                              const bsrg_chip *chip) {
  const bsrg_structure_view *v = &args->a->view;
  return args->dtype != BSRG_F32 && !BSRG_STREAM_PAIRS(plan->shape.width) && plan->shape.columns == 1 &&
         !v->order && v->nnzb * v->block_height <= INT32_MAX &&
         stored_seconds(args, plan, chip) < packing_seconds(plan, chip);
}

void bsrg_stream_predict(const bsrg_matmul_args *args, const void *plan, const bsrg_chip *chip,
                         bsrg_candidate *c) {
  const bsrg_stream_work work = bsrg_stream_work_of(plan);
  const int64_t n = args->x.cols;
  bsrg_stream_predict_packed(&work, bsrg_compulsory_bytes(&args->a->view, args->dtype, n), n,
                             bsrg_map_has_transposed_x(args), chip, c);
  if (bsrg_stream_reads_stored(args, plan, chip)) {
    c->seconds += stored_seconds(args, plan, chip);
  } else {
    c->seconds += packing_seconds(plan, chip);
    c->hbm_bytes += packing_bytes(plan);
  }
}
