/* The kstream family: float32 as tf32 by the stream kernels, for blocks that the kmajor family does not take or that lie too
 * far apart for it.
 *
 * WGMMA reads tf32 K-major alone, as the stream kernels read 16-bit floats of a transposed X, and takes the same bytes of k:
 * everything but the instructions and the output is as for 16-bit floats in a matrix twice as wide. */
#include "kmajor.h"
#include "stream.h"
#include "tensor_map.h"

#include <math.h>
#include <stdlib.h>

enum { HALVES = 2 }; /* of a float32, for which the stream family plans */

typedef struct kstream_plan {
  bsrg_structure *wide;           /* of 16-bit floats */
  const bsrg_stream_plan *stream; /* of these; belongs to them */
} kstream_plan;

/* ---- obstacles ---------------------------------------------------------------------------------- */

static const char *obstacle(const bsrg_structure_view *v, bsrg_dtype dtype, int sm_arch) {
  if (dtype != BSRG_F32) return "needs float32 with precision 'tf32'";
  if (v->block_width % 8) return "needs a block width that is a multiple of 8";
  bsrg_structure_view wide = *v;
  if (!bsrg_mul_ok(v->cols, HALVES, &wide.cols) || !bsrg_mul_ok(v->block_width, HALVES, &wide.block_width))
    return "needs fewer than 2^30 columns";
  return bsrg_stream_family.obstacle(&wide, BSRG_F16, sm_arch);
}

/* ---- plan and prediction ------------------------------------------------------------------------ */

static void free_plan(void *plan) {
  kstream_plan *kstream = plan;
  bsrg_structure_destroy(kstream->wide);
  free(kstream);
}

/* The parts' sources count blocks as they come in a transposed view; stored ones lie in an order of their own. */
static void count_as_stored(bsrg_stream_plan *stream, const int64_t *order) {
  const int64_t parts = (int64_t)stream->shape.rows * stream->shape.columns;
  for (int64_t i = 0; i < stream->part_count; ++i) {
    const int64_t block = stream->source[i] / parts;
    stream->source[i] = (int32_t)(order[block] * parts + stream->source[i] % parts);
  }
}

static void *make_plan_of(bsrg_structure *structure, bool low) {
  kstream_plan *plan = calloc(1, sizeof(*plan));
  if (!plan) return NULL;
  const void *stream = NULL;
  if (bsrg_structure_widen(structure, HALVES, &plan->wide, NULL) != BSRG_OK ||
      bsrg_plan_get(plan->wide, &bsrg_stream_family, low, &stream, NULL) != BSRG_OK) {
    free_plan(plan);
    return NULL;
  }
  plan->stream = stream;
  /* Nobody else knows this plan yet. */
  if (structure->view.order) count_as_stored((bsrg_stream_plan *)stream, structure->view.order);
  return plan;
}

static void *make_plan(bsrg_structure *structure) { return make_plan_of(structure, false); }

static void *make_low_plan(bsrg_structure *structure) { return make_plan_of(structure, true); }

/* What an SM takes to store a tile of float32 longer than one of 16 bits: fitted on an H100, with which products of 8192
 * columns are within 15%. */
static const double tile_seconds = 8e-6;

static void predict(const bsrg_matmul_args *args, const void *plan, const bsrg_chip *chip,
                    bsrg_candidate *c) {
  const kstream_plan *kstream = plan;
  const bsrg_structure_view *v = &args->a->view;
  const int64_t n = args->x.cols;
  const bsrg_stream_work work = bsrg_stream_work_of(kstream->stream);
  const double item = (double)bsrg_dtype_size(args->dtype);
  const double blocks = item * (double)v->nnzb * (double)(v->block_height * v->block_width);
  bsrg_candidate product = bsrg_new_candidate(BSRG_STREAM, bsrg_says_why(c));
  bsrg_stream_predict_packed(&work, bsrg_compulsory_bytes(v, args->dtype, n), n, true, chip, &product);
  const bsrg_kmajor_copies copies = bsrg_kmajor_copies_for(args);
  const double copied =
      2 * ((copies.x ? item * (double)v->cols * (double)n : 0) + (copies.values ? blocks : 0));
  const double tiles = work.tiles * (double)bsrg_ceil_div(n, BSRG_STREAM_TILE_N);
  const double storing = tile_seconds * fmax(1, tiles / chip->sm_count) *
                         bsrg_stream_group_height(work.height) / BSRG_STREAM_GROUP_ROWS;
  c->seconds = product.seconds + storing + BSRG_LAUNCH_SECONDS + 2 * blocks / chip->hbm_bytes_per_s +
               bsrg_kmajor_copy_seconds(copies, copied, chip);
  c->mma_flops = product.mma_flops / HALVES;
  c->l2_bytes = product.l2_bytes;
  c->hbm_bytes = product.hbm_bytes + 2 * blocks + copied;
  bsrg_set_reason(c, "%.80s%s", product.reason, bsrg_kmajor_copied(copies));
}

/* ---- launch ------------------------------------------------------------------------------------- */

static bsrg_status multiply(const bsrg_matmul_args *args, const void *plan, bsrg_gpu gpu, bsrg_error *error) {
  const kstream_plan *kstream = plan;
  bsrg_matmul_args wide = *args;
  wide.a = kstream->wide;
  wide.x.col_stride = bsrg_kmajor_pitch(args);
  return bsrg_stream_launch(&wide, kstream->stream, gpu, error);
}

static bsrg_status launch(const bsrg_matmul_args *args, const void *plan, bsrg_gpu gpu, bsrg_error *error) {
  return bsrg_kmajor_launch_on_copies(args, plan, multiply, gpu, error);
}

const bsrg_family_ops bsrg_kstream_family = {.family = BSRG_KSTREAM,
                                             .obstacle = obstacle,
                                             .columns_obstacle = bsrg_map_count_obstacle,
                                             .layout_obstacle = bsrg_kmajor_layout_obstacle,
                                             .make_plan = make_plan,
                                             .wants_low = bsrg_stream_wants_low,
                                             .make_low_plan = make_low_plan,
                                             .free_plan = free_plan,
                                             .predict = predict,
                                             .clips_x = true,
                                             .clips_y = true,
                                             .launch = launch};
