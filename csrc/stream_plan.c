/* The streaming family's plan: tiles of up to 512 rows, cut into stages that hold only the block columns in use. */
#include "stream.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define SHAPE(height, width) {height, width},
static const int32_t shapes[][2] = {BSRG_STREAM_SHAPES(SHAPE)};
#undef SHAPE

bsrg_stream_shape bsrg_stream_choose(const bsrg_structure_view *v) {
  bsrg_stream_shape best = {.index = -1};
  for (int i = 0; i < BSRG_STREAM_SHAPE_COUNT; ++i) {
    const int32_t height = shapes[i][0], width = shapes[i][1];
    if (v->block_height % height || v->block_width % width) continue;
    /* Taller parts share a fragment of X, wider ones the work of a step. */
    if (height < best.height || (height == best.height && width < best.width)) continue;
    best = (bsrg_stream_shape){height, width, (int32_t)(v->block_height / height),
                               (int32_t)(v->block_width / width), i};
  }
  return best;
}

/* ---- from a tile's blocks to its stages ------------------------------------------------------- */

/* A part of a stored block, where a tile needs it. */
typedef struct part {
  int32_t column; /* in parts */
  int32_t row;    /* in the tile, in parts */
  int32_t source;
} part;

typedef struct builder {
  const bsrg_structure_view *v;
  bsrg_stream_plan *plan;
  int64_t stage_capacity;
  int32_t group_rows; /* part rows of a warpgroup */
  part *parts;        /* the tile's, by column, then row */
  part *ordered;      /* the same, columns in the order of use */
  int64_t *starts;    /* [part columns + 1] */
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
  return stage;
}

/* Puts the parts of a warpgroup into packed order and notes its steps. */
static void pack_group(builder *b, const part *parts, int64_t count, int32_t group, bsrg_stream_work *work) {
  bsrg_stream_plan *plan = b->plan;
  const int32_t g = group % BSRG_STREAM_GROUPS;
  int32_t steps = 0, column = -1, slot = -1, last = -1;
  work->group_begin[g] = work->a_count;
  for (int64_t i = 0; i < count; ++i) {
    if (parts[i].column != column) {
      column = parts[i].column;
      ++slot;
    }
    if (parts[i].row / b->group_rows != group) continue;
    if (slot != last) {
      work->step[g][steps++] = (uint32_t)slot << 16;
      last = slot;
    }
    work->step[g][steps - 1] |= 1u << (parts[i].row % b->group_rows);
    plan->source[plan->part_count++] = parts[i].source;
    work->a_count++;
  }
  work->group_steps[g] = steps;
  plan->steps += steps;
}

static void pack_stage(builder *b, const part *parts, int64_t count, bsrg_stream_stage *stage) {
  for (int32_t rank = 0; rank < b->plan->cluster; ++rank) {
    bsrg_stream_work *work = &stage->work[rank];
    work->a_begin = (int32_t)b->plan->part_count;
    for (int32_t g = 0; g < BSRG_STREAM_GROUPS; ++g)
      pack_group(b, parts, count, rank * BSRG_STREAM_GROUPS + g, work);
  }
  b->plan->slots += stage->x_count;
}

/* Fills b->parts with the parts of block rows `rows`, by column. */
static int64_t collect_parts(builder *b, const int32_t *block_rows, int64_t count) {
  const bsrg_structure_view *v = b->v;
  const bsrg_stream_shape *shape = &b->plan->shape;
  const int64_t columns = v->block_cols * shape->columns;
  int64_t *starts = b->starts;
  memset(starts, 0, sizeof(*starts) * (size_t)(columns + 1));
  for (int64_t r = 0; r < count; ++r)
    for (int64_t k = v->indptr[block_rows[r]]; k < v->indptr[block_rows[r] + 1]; ++k)
      for (int32_t c = 0; c < shape->columns; ++c)
        starts[(int64_t)v->indices[k] * shape->columns + c + 1] += shape->rows;
  for (int64_t c = 0; c < columns; ++c) starts[c + 1] += starts[c];
  const int64_t total = starts[columns];
  for (int64_t r = 0; r < count; ++r)
    for (int32_t down = 0; down < shape->rows; ++down)
      for (int64_t k = v->indptr[block_rows[r]]; k < v->indptr[block_rows[r] + 1]; ++k)
        for (int32_t c = 0; c < shape->columns; ++c) {
          const int64_t column = (int64_t)v->indices[k] * shape->columns + c;
          b->parts[starts[column]++] = (part){(int32_t)column, (int32_t)(r * shape->rows + down),
                                              (int32_t)((k * shape->rows + down) * shape->columns + c)};
        }
  return total;
}

/* The block columns in an order in which the warpgroups' work grows evenly: those that have least to do decide which
 * of the next columns comes first. A stage waits for its slowest warpgroup, and in natural order some have twice as
 * much to do as others. */
static void order_columns(builder *b, int64_t total) {
  enum { WINDOW = 32, GROUPS = 2 * BSRG_STREAM_GROUPS };
  struct span {
    int64_t begin, end;
    uint32_t groups; /* bit g: warpgroup g has a part here */
  } window[WINDOW];
  int64_t load[GROUPS] = {0}, sum = 0, next = 0, written = 0;
  int count = 0;
  for (;;) {
    while (count < WINDOW && next < total) {
      struct span *span = &window[count++];
      *span = (struct span){next, next, 0};
      for (; next < total && b->parts[next].column == b->parts[span->begin].column; ++next)
        span->groups |= 1u << (b->parts[next].row / b->group_rows);
      span->end = next;
    }
    if (count == 0) return;
    int best = 0;
    int64_t least = INT64_MAX;
    for (int i = 0; i < count; ++i) {
      int64_t excess = 0;
      for (uint32_t g = window[i].groups; g; g &= g - 1) excess += GROUPS * load[__builtin_ctz(g)] - sum;
      if (excess < least) {
        least = excess;
        best = i;
      }
    }
    for (uint32_t g = window[best].groups; g; g &= g - 1) {
      load[__builtin_ctz(g)]++;
      sum++;
    }
    for (int64_t i = window[best].begin; i < window[best].end; ++i) b->ordered[written++] = b->parts[i];
    --count;
    memmove(&window[best], &window[best + 1], sizeof(window[0]) * (size_t)(count - best));
  }
}

static bool add_tile(builder *b, const int32_t *block_rows, int64_t count) {
  bsrg_stream_plan *plan = b->plan;
  const bsrg_stream_shape *shape = &plan->shape;
  const int64_t total = collect_parts(b, block_rows, count);
  order_columns(b, total);
  const int64_t slot_bytes = 2 * shape->width * BSRG_STREAM_TILE_N;
  const int64_t part_bytes = 2 * shape->width * shape->height;
  bsrg_stream_tile *tile = &plan->tiles[plan->tile_count++];
  tile->stage_begin = (int32_t)plan->stage_count;
  tile->row_begin = (int32_t)plan->row_count;
  bsrg_stream_stage *stage = NULL;
  int64_t first = 0, held[2] = {0, 0}; /* of the stage: its first part, and parts of each rank */
  for (int64_t i = 0; i < total;) {
    int64_t end = i, more[2] = {0, 0};
    for (; end < total && b->ordered[end].column == b->ordered[i].column; ++end)
      more[b->ordered[end].row / (BSRG_STREAM_GROUPS * b->group_rows)]++;
    const int64_t most = bsrg_max(held[0] + more[0], held[1] + more[1]);
    if (stage && (stage->x_count == BSRG_STREAM_SLOTS ||
                  (stage->x_count + 1) * slot_bytes + most * part_bytes > BSRG_STREAM_STAGE_BYTES)) {
      pack_stage(b, b->ordered + first, i - first, stage);
      stage = NULL;
    }
    if (!stage) {
      stage = new_stage(b);
      if (!stage) return false;
      first = i;
      held[0] = held[1] = 0;
    }
    stage->x_row[stage->x_count++] = b->ordered[i].column * shape->width;
    held[0] += more[0];
    held[1] += more[1];
    i = end;
  }
  if (stage) pack_stage(b, b->ordered + first, total - first, stage);
  tile->stage_count = (int32_t)plan->stage_count - tile->stage_begin;
  for (int64_t r = 0; r < plan->cluster * BSRG_STREAM_GROUPS * b->group_rows; ++r)
    plan->rows[plan->row_count++] =
        r < count * shape->rows
            ? (int32_t)(block_rows[r / shape->rows] * b->v->block_height + r % shape->rows * shape->height)
            : -1;
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
  plan->rows =
      malloc(sizeof(*plan->rows) * (size_t)(tiles * plan->cluster * BSRG_STREAM_GROUPS * b->group_rows + 1));
  plan->source = malloc(sizeof(*plan->source) * (size_t)(v->nnzb * parts + 1));
  int64_t longest = 0;
  for (int64_t t = 0; t < tiles; ++t) {
    int64_t blocks = 0;
    for (int64_t r = t * tile_rows; r < bsrg_min((t + 1) * tile_rows, v->block_rows); ++r)
      blocks += v->indptr[row_order[r] + 1] - v->indptr[row_order[r]];
    longest = bsrg_max(longest, blocks);
  }
  b->parts = malloc(sizeof(*b->parts) * (size_t)(longest * parts + 1));
  b->ordered = malloc(sizeof(*b->ordered) * (size_t)(longest * parts + 1));
  b->starts = malloc(sizeof(*b->starts) * (size_t)(v->block_cols * plan->shape.columns + 1));
  bool done = plan->tiles && plan->rows && plan->source && b->parts && b->ordered && b->starts;
  for (int64_t t = 0; done && t < tiles; ++t)
    done = add_tile(b, row_order + t * tile_rows, bsrg_min(tile_rows, v->block_rows - t * tile_rows));
  free(b->parts);
  free(b->ordered);
  free(b->starts);
  return done;
}

void *bsrg_stream_make_plan(const bsrg_structure_view *v) {
  bsrg_stream_plan *plan = calloc(1, sizeof(*plan));
  int32_t *row_order = malloc(sizeof(*row_order) * (size_t)v->block_rows);
  bool done = plan && row_order && bsrg_row_order(v, row_order);
  if (done) {
    plan->shape = bsrg_stream_choose(v);
    plan->skewed = bsrg_is_skewed(v->longest_row, v->nnzb, v->block_rows);
    builder b = {.v = v, .plan = plan, .group_rows = BSRG_STREAM_GROUP_ROWS / plan->shape.height};
    /* Whole block rows. A second CTA is of no use to a matrix that one covers. */
    const int64_t cta_rows = BSRG_STREAM_GROUPS * b.group_rows / plan->shape.rows;
    plan->cluster = v->block_rows > cta_rows ? 2 : 1;
    const int64_t tile_rows = plan->cluster * BSRG_STREAM_GROUPS * b.group_rows / plan->shape.rows;
    done = make_tiles(&b, row_order, tile_rows, bsrg_ceil_div(v->block_rows, tile_rows));
  }
  free(row_order);
  if (done) return plan;
  if (plan) bsrg_stream_free_plan(plan);
  return NULL;
}

int32_t bsrg_stream_group(const bsrg_stream_plan *plan, int32_t n_tiles) {
  if (plan->skewed) return n_tiles;
  /* Column tiles that run side by side read the same blocks at the same time. */
  return (int32_t)bsrg_min(4, n_tiles);
}

/* ---- cost ------------------------------------------------------------------------------------- */

/* Fitted on an H200. */
static const double clock_hz = 1.7e9, stage_cycles = 500, tile_cycles = 4000;

void bsrg_stream_predict(const bsrg_structure_view *v, const void *plan, bsrg_dtype dtype, int64_t n,
                         const bsrg_chip *chip, bsrg_candidate *c) {
  const bsrg_stream_plan *stream = plan;
  const double columns = (double)bsrg_ceil_div(n, BSRG_STREAM_TILE_N), cluster = stream->cluster;
  const double parts = (double)stream->part_count, slots = (double)stream->slots;
  const double part_bytes = 2.0 * stream->shape.height * stream->shape.width;
  const double slot_bytes = 2.0 * BSRG_STREAM_TILE_N * stream->shape.width;
  c->mma_flops = parts * part_bytes * columns * BSRG_STREAM_TILE_N;
  c->l2_bytes = columns * (parts * part_bytes + slots * slot_bytes);
  const double packing = 2 * parts * part_bytes;
  c->hbm_bytes = bsrg_compulsory_bytes(v, dtype, n) + packing;
  /* Shared memory moves 128 bytes a cycle: slots are written by each CTA and read once a step, or once a part where
   * a warpgroup has one block row; parts are written once and read for each panel. */
  const double reads = stream->shape.height > BSRG_STREAM_GROUP_ROWS / 2 ? parts : (double)stream->steps;
  const double shared_cycles = ((slots * cluster + reads) * slot_bytes + 3 * parts * part_bytes) / 128;
  const double fixed_cycles =
      cluster * (stage_cycles * (double)stream->stage_count + tile_cycles * (double)stream->tile_count);
  const double shared = (shared_cycles + fixed_cycles) * columns / (clock_hz * chip->sm_count);
  const double tensor = c->mma_flops / chip->mma_flops_per_s, l2 = c->l2_bytes / chip->l2_bytes_per_s;
  const double work = fmax(fmax(shared, tensor), l2);
  /* Nothing ends before the longest tile, and the last wave is rarely full. */
  const double tiles = (double)stream->tile_count * columns, at_once = floor(chip->sm_count / cluster);
  const double spread = stream->skewed ? 1 : ceil(tiles / at_once) * at_once / tiles;
  const double longest = work * at_once * (double)stream->longest_tile / (parts * columns);
  const double memory = bsrg_compulsory_bytes(v, dtype, n) / chip->hbm_bytes_per_s;
  c->seconds =
      2 * BSRG_LAUNCH_SECONDS + packing / chip->hbm_bytes_per_s + fmax(fmax(work * spread, longest), memory);
  snprintf(c->reason, sizeof(c->reason), "limited by %s",
           memory >= work   ? "memory"
           : l2 >= work     ? "L2 traffic"
           : tensor >= work ? "the tensor cores"
                            : "shared memory");
}
