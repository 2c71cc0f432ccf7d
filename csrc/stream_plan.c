/* The streaming family's plan: tiles of up to 256 rows, cut into stages that hold only the block columns in use. */
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
    /* Taller parts share a fragment of X, wider ones the work of a step. */
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
  int32_t group_rows; /* part rows of a warpgroup */
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
  uint16_t slots[BSRG_STREAM_GROUPS][BSRG_STREAM_MOST_ROWS]; /* bit s: there is a part */
  uint8_t count[BSRG_STREAM_GROUPS][BSRG_STREAM_SLOTS];
} stage_parts;

static void sort_parts(stage_parts *sorted, const part *parts, int64_t count) {
  memset(sorted->slots, 0, sizeof(sorted->slots));
  memset(sorted->count, 0, sizeof(sorted->count));
  int32_t slot = -1;
  for (int64_t i = 0; i < count; ++i) {
    slot += i == 0 || parts[i].column != parts[i - 1].column;
    const int16_t g = parts[i].group, row = parts[i].row;
    sorted->source[g][row][slot] = parts[i].source;
    sorted->slots[g][row] |= (uint16_t)(1u << slot);
    ++sorted->count[g][slot];
  }
}

/* From how many blocks of a warpgroup on a slot goes through registers. A slot of few makes the warpgroup wait for it
 * more than the shared memory's time that it spares; where slots are full, that time is what decides. */
static int32_t least_shared(const builder *b, const bsrg_stream_stage *stage) {
  const int32_t all = BSRG_STREAM_GROUPS * b->group_rows * stage->x_count;
  if (b->group_rows <= 2) return BSRG_STREAM_MOST_ROWS + 1;
  if (5 * stage->a_count < all) return 4;
  return b->group_rows <= 4 ? 2 : 3;
}

/* The stage's parts in the order in which the warpgroups use them. */
static void pack_stage(builder *b, bsrg_stream_stage *stage, const part *parts) {
  bsrg_stream_plan *plan = b->plan;
  const int32_t least = least_shared(b, stage);
  stage_parts sorted;
  sort_parts(&sorted, parts, stage->a_count);
  int32_t *packed = plan->source + stage->a_begin;
  for (int32_t g = 0; g < BSRG_STREAM_GROUPS; ++g) {
    uint32_t shared = 0; /* the slots of its steps */
    for (int32_t slot = 0; slot < stage->x_count; ++slot) {
      shared |= (uint32_t)(sorted.count[g][slot] >= least) << slot;
      plan->group_slots += sorted.count[g][slot] > 0;
    }
    stage->group_begin[g] = (int32_t)(packed - plan->source) - stage->a_begin;
    for (int32_t row = 0; row < b->group_rows; ++row) {
      uint32_t left = sorted.slots[g][row] & ~shared;
      stage->by_row[g][row] = (uint16_t)left;
      for (int32_t slot = stage->x_count - 1; left; --slot) {
        if (left >> slot) *packed++ = sorted.source[g][row][slot];
        left &= (1u << slot) - 1;
      }
    }
    for (int32_t slot = 0; shared >> slot; ++slot) {
      if (!(shared >> slot & 1)) continue;
      uint32_t *step = &stage->step[g][stage->group_steps[g]++];
      *step = (uint32_t)slot << 16;
      for (int32_t row = 0; row < b->group_rows; ++row) {
        if (!(sorted.slots[g][row] >> slot & 1)) continue;
        *step |= 1u << row;
        *packed++ = sorted.source[g][row][slot];
      }
    }
  }
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
  for (int64_t r = 0; r < count; ++r)
    for (int32_t down = 0; down < shape->rows; ++down) {
      const int32_t row = (int32_t)r * shape->rows + down; /* in the tile */
      const int16_t group = (int16_t)(row / b->group_rows), in_group = (int16_t)(row % b->group_rows);
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
    if (stage && (stage->x_count == BSRG_STREAM_SLOTS ||
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
  for (int64_t r = 0; r < BSRG_STREAM_GROUPS * b->group_rows; ++r)
    plan->rows[plan->row_count++] =
        r < count * shape->rows
            ? (int32_t)(block_rows[r / shape->rows] * b->v->block_height + r % shape->rows * shape->height)
            : -1;
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

static bool make_tiles(builder *b, const int32_t *row_order, int64_t tile_rows, int64_t tiles) {
  bsrg_stream_plan *plan = b->plan;
  const bsrg_structure_view *v = b->v;
  const int64_t parts = (int64_t)plan->shape.rows * plan->shape.columns;
  plan->tiles = malloc(sizeof(*plan->tiles) * (size_t)(tiles + 1));
  plan->rows = malloc(sizeof(*plan->rows) * (size_t)(tiles * BSRG_STREAM_GROUPS * b->group_rows + 1));
  plan->source = malloc(sizeof(*plan->source) * (size_t)(v->nnzb * parts + 1));
  int64_t longest = 0;
  for (int64_t t = 0; t < tiles; ++t) {
    int64_t blocks = 0;
    for (int64_t r = t * tile_rows; r < bsrg_min((t + 1) * tile_rows, v->block_rows); ++r)
      blocks += v->indptr[row_order[r] + 1] - v->indptr[row_order[r]];
    longest = bsrg_max(longest, blocks);
  }
  b->parts = malloc(sizeof(*b->parts) * (size_t)(longest * parts + 1));
  const size_t columns = (size_t)(v->block_cols * plan->shape.columns);
  b->starts = calloc(columns + 1, sizeof(*b->starts));
  b->touched = malloc(sizeof(*b->touched) * (columns + 1));
  bool done = plan->tiles && plan->rows && plan->source && b->parts && b->starts && b->touched;
  for (int64_t t = 0; done && t < tiles; ++t)
    done = add_tile(b, row_order + t * tile_rows, bsrg_min(tile_rows, v->block_rows - t * tile_rows));
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

void *bsrg_stream_make_plan(bsrg_structure *structure) {
  const bsrg_structure_view *v = &structure->view;
  bsrg_stream_plan *plan = calloc(1, sizeof(*plan));
  int32_t *row_order = malloc(sizeof(*row_order) * (size_t)v->block_rows);
  bool done = plan && row_order;
  if (done) {
    plan->shape = bsrg_stream_choose(v);
    plan->columns = v->block_cols * plan->shape.columns;
    plan->skewed = bsrg_is_skewed(v->longest_row, v->nnzb, v->block_rows);
    builder b = {.v = v, .plan = plan, .group_rows = BSRG_STREAM_GROUP_ROWS / plan->shape.height};
    /* Whole block rows: all parts of a block lie in one tile. */
    const int64_t tile_rows = BSRG_STREAM_GROUPS * b.group_rows / plan->shape.rows;
    done = bsrg_row_order(v, row_order) && bsrg_stream_order(v, tile_rows, row_order) &&
           make_tiles(&b, row_order, tile_rows, bsrg_ceil_div(v->block_rows, tile_rows)) &&
           (!plan->skewed || sort_tiles(plan));
  }
  free(row_order);
  if (done) return plan;
  if (plan) bsrg_stream_free_plan(plan);
  return NULL;
}

bool bsrg_stream_in_step(const bsrg_stream_plan *plan) {
  return (double)plan->slots >= 0.85 * (double)plan->columns * plan->tile_count &&
         bsrg_is_even(plan->longest_tile, plan->part_count, plan->tile_count);
}

static bool is_kept(double parts, int32_t height, int32_t width, bool skewed) {
  /* All tiles read them again for every group of columns, at nearly the same time. Of 32 MB little is left then. */
  const int64_t most_bytes = 24 << 20;
  return 2 * parts * height * width <= (double)most_bytes && !skewed;
}

bool bsrg_stream_keeps(const bsrg_stream_plan *plan) {
  return is_kept((double)plan->part_count, plan->shape.height, plan->shape.width, plan->skewed);
}

int32_t bsrg_stream_group(const bsrg_stream_plan *plan, int32_t n_tiles) {
  /* Column tiles that run side by side read the same blocks at the same time. Where these stay in L2 anyway, row tiles side by
   * side read the same X. */
  return (int32_t)bsrg_min(bsrg_stream_in_step(plan) ? 8 : bsrg_stream_keeps(plan) ? 1 : 4, n_tiles);
}

int32_t bsrg_stream_lead(const bsrg_stream_plan *plan, int32_t n_tiles, int64_t sm_count) {
  const int32_t group = bsrg_stream_group(plan, n_tiles);
  int32_t lead = 0;
  while (plan->skewed && lead < plan->tile_count &&
         bsrg_goes_first(plan->tiles[lead].parts, (double)plan->part_count, group, n_tiles, sm_count))
    ++lead;
  return lead;
}

/* ---- cost ------------------------------------------------------------------------------------- */

/* Fitted on an H200: within 10% for 88% of 240 products that took turns, at a clock of 1.75 GHz, which power does not
 * allow for long. Loads alone end at some 9.6 TB/s. */
static const double clock_hz = 1.5e9, l2_bytes_per_s = 15.7e12;
/* Likewise, of blocks up to 32 rows high that L2 keeps: within 3% for five products of 16 x 16 and 32 x 32. */
static const double l2_kept_bytes_per_s = 21e12;
/* Of an SM, for what one column of a transposed X has in a slot, 32 or 64 bytes: X @ A.T of 16 x 16 blocks took 860 us,
 * A @ X 556, of 32 x 32 425 and 410. */
static const double run_cycles = 1.2;
/* Cycles of an SM for 16 columns of a part, of a slot that a warpgroup goes through, and for a tile. */
static const double low_part_cycles = 26.5, slot_cycles = 19, part_cycles = 39.4, part_row_cycles = .34,
                    tile_cycles = 4600;
/* Of these, for low parts of 32 columns. */
static const double wide_part_share = .96;
/* With a single block row a warpgroup has no second one to go on with while a product ends. */
static const double row_of_64_overhead = 1.27, row_of_40_overhead = 1.12;

/* Of an SM, for 128 columns of all parts. */
static double product_cycles(const bsrg_stream_work *w) {
  double cycles = w->parts * (part_cycles + part_row_cycles * w->height);
  if (w->height == BSRG_STREAM_GROUP_ROWS)
    cycles *= row_of_64_overhead;
  else if (2 * w->height > BSRG_STREAM_GROUP_ROWS)
    cycles *= row_of_40_overhead;
  /* Rows that are this low share what is read of X. */
  if (w->height <= 16)
    cycles =
        (low_part_cycles * w->parts + slot_cycles * w->group_slots) * (w->width > 16 ? wide_part_share : 1);
  return cycles * w->width / 16;
}

bsrg_stream_work bsrg_stream_work_of(const bsrg_stream_plan *plan) {
  return (bsrg_stream_work){.height = plan->shape.height,
                            .width = plan->shape.width,
                            .parts = (double)plan->part_count,
                            .slots = (double)plan->slots,
                            .group_slots = (double)plan->group_slots,
                            .tiles = (double)plan->tile_count,
                            .longest_tile = (double)plan->longest_tile,
                            .skewed = plan->skewed};
}

void bsrg_stream_predict_packed(const bsrg_stream_work *w, double compulsory_bytes, int64_t n,
                                bool transposed_x, const bsrg_chip *chip, bsrg_candidate *c) {
  const double columns = (double)bsrg_ceil_div(n, BSRG_STREAM_TILE_N);
  const double part_bytes = 2.0 * w->height * w->width;
  const double slot_bytes = 2.0 * BSRG_STREAM_TILE_N * w->width;
  c->mma_flops = w->parts * part_bytes * columns * BSRG_STREAM_TILE_N;
  c->l2_bytes = columns * (w->parts * part_bytes + w->slots * slot_bytes);
  c->hbm_bytes = compulsory_bytes;
  /* Loads and products overlap, though not all of the time. */
  const double runs = transposed_x ? columns * BSRG_STREAM_TILE_N * w->slots : 0;
  const bool kept = is_kept(w->parts, w->height, w->width, w->skewed);
  const double rate = kept && w->height <= 32 ? l2_kept_bytes_per_s : l2_bytes_per_s;
  const double loads = fmax(c->l2_bytes / rate, runs * run_cycles / (clock_hz * chip->sm_count));
  const double products = product_cycles(w) * columns / (clock_hz * chip->sm_count);
  const double work = hypot(loads, products);
  /* Most of that is the output. */
  const double of_tile =
      tile_cycles / clock_hz * bsrg_stream_group_height(w->height) / BSRG_STREAM_GROUP_ROWS;
  const double busy =
      fmax(work + of_tile * w->tiles * columns / chip->sm_count, c->mma_flops / chip->mma_flops_per_s);
  const double memory = compulsory_bytes / chip->hbm_bytes_per_s;
  /* Nothing ends before the longest tile, and the last wave is rarely full. */
  const double tiles = w->tiles * columns, waves = ceil(tiles / chip->sm_count);
  const double longest = work * chip->sm_count / columns * w->longest_tile / w->parts + of_tile;
  const double spread = w->skewed || waves > 4 ? 1 : waves * chip->sm_count / tiles;
  c->seconds = BSRG_LAUNCH_SECONDS + fmax(fmax(busy * spread, longest), memory);
  bsrg_set_reason(c, "limited by %s",
                  memory > busy      ? "memory"
                  : loads > products ? "the L2 cache"
                                     : "shared memory");
}

void bsrg_stream_predict(const bsrg_matmul_args *args, const void *plan, const bsrg_chip *chip,
                         bsrg_candidate *c) {
  const bsrg_stream_work work = bsrg_stream_work_of(plan);
  const int64_t n = args->x.cols;
  bsrg_stream_predict_packed(&work, bsrg_compulsory_bytes(&args->a->view, args->dtype, n), n,
                             bsrg_map_has_transposed_x(args), chip, c);
  const double packing = 2 * work.parts * 2.0 * work.height * work.width; /* read and written */
  c->hbm_bytes += packing;
  c->seconds += BSRG_LAUNCH_SECONDS + packing / chip->hbm_bytes_per_s;
}
