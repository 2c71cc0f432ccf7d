/* The streaming family's plan of a dynamic structure: a GPU makes its lists with the pattern, since the host knows no more than
 * how many blocks there may be. */
#include "stream.h"

#include <math.h>
#include <stdlib.h>

static int64_t tiles_of(const bsrg_structure_view *v, const bsrg_stream_shape *shape) {
  return bsrg_ceil_div(v->block_rows, bsrg_stream_tile_rows(shape, false));
}

/* As if as many blocks as there is room for were spread evenly. */
void *bsrg_stream_make_dynamic_plan(const bsrg_structure_view *v) {
  bsrg_stream_plan *plan = calloc(1, sizeof(*plan));
  if (!plan) return NULL;
  const bsrg_stream_shape shape = bsrg_stream_choose(v);
  const int64_t tiles = tiles_of(v, &shape);
  const double density = (double)v->nnzb / ((double)v->block_rows * (double)v->block_cols);
  const double used = 1 - pow(1 - density, (double)v->block_rows / (double)tiles); /* of a tile's columns */
  plan->shape = shape;
  plan->columns = v->block_cols * shape.columns;
  plan->tile_count = (int32_t)tiles;
  plan->part_count = v->nnzb * shape.rows * shape.columns;
  plan->slots = (int64_t)ceil(used * (double)plan->columns * (double)tiles);
  plan->longest_tile = bsrg_ceil_div(plan->part_count, tiles);
  const bsrg_stream_work work = bsrg_stream_work_of(plan);
  plan->steps = (int64_t)bsrg_stream_steps(&work);
  return plan;
}

/* Stages that a block takes at most, in a tile that may have one more. A stage ends because it has all its slots, or because what
 * it has and the next column are too much for it; and each column is the next one of a single stage. */
static int32_t stages_of_block(const bsrg_stream_shape *shape) {
  const double slot_bytes = 2.0 * shape->width * BSRG_STREAM_TILE_N;
  const double part_bytes = 2.0 * shape->width * shape->height;
  const double column = 1.0 / BSRG_STREAM_SLOTS_OF(shape->width) +
                        2 * (slot_bytes + shape->rows * part_bytes) / BSRG_STREAM_STAGE_BYTES;
  return (int32_t)ceil(ldexp(shape->columns * column, BSRG_STREAM_LISTS_SHIFT));
}

enum { MOST_CTAS = 8 }; /* of a tile */

bsrg_stream_list_sizes bsrg_stream_describe_lists(const bsrg_structure_view *v, int64_t sm_count,
                                                  bsrg_stream_lists *out) {
  const bsrg_stream_shape shape = bsrg_stream_choose(v);
  const int64_t tiles = tiles_of(v, &shape);
  /* Of the matrix and of its transposed, so that each SM has two. */
  const int64_t ctas = bsrg_max(1, sm_count / tiles);
  *out = (bsrg_stream_lists){.tile_count = (int32_t)tiles,
                             .ctas = (int32_t)bsrg_min(ctas, MOST_CTAS),
                             .height = shape.height,
                             .width = shape.width,
                             .rows = shape.rows,
                             .columns = shape.columns,
                             .block_stages = stages_of_block(&shape)};
  return (bsrg_stream_list_sizes){
      .stages = (size_t)(tiles + (v->nnzb * out->block_stages >> BSRG_STREAM_LISTS_SHIFT)),
      .tiles = (size_t)tiles,
      .rows = (size_t)(tiles * BSRG_STREAM_GROUPS * BSRG_STREAM_ROWS_OF(shape.height)),
      .sources = (size_t)(v->nnzb * shape.rows * shape.columns + BSRG_STREAM_SOURCE_SLACK)};
}
