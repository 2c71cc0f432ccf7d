/* The regroup family: which larger blocks suit a structure, what they cost, and the launch. */
#include "regroup.h"
#include "tall.h"
#include "tensor_map.h"
#include "uploads.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

/* ---- shapes ----------------------------------------------------------------------------------- */

/* Widths that are worth a look: those that fill a stage of the tall kernels well, and the stored blocks' own, made a
 * multiple of 16, which cuts no block in two. Returns how many. */
enum { MOST_WIDTHS = 3 };
static int list_widths(const bsrg_structure_view *v, int32_t widths[MOST_WIDTHS]) {
  widths[0] = 64, widths[1] = 32;
  if (v->block_width > 128) return 2;
  widths[2] = (int32_t)v->block_width;
  while (widths[2] % 16 || widths[2] < 32) widths[2] *= 2;
  return widths[2] > 128 || 64 % widths[2] == 0 ? 2 : 3;
}

/* The tall kernels count rows of stored blocks in 32 bits. */
static bool fits(const bsrg_structure_view *v, bsrg_block_shape shape) {
  return bsrg_regroup_most_blocks(v, shape) <= INT32_MAX / shape.height;
}

/* Copying: the child's values are written, the stored ones read. */
static double packing_seconds(const bsrg_structure_view *v, double child_blocks, bsrg_block_shape shape,
                              const bsrg_chip *chip, double *bytes) {
  *bytes = 2 * (child_blocks * shape.height * shape.width +
                (double)v->nnzb * (double)(v->block_height * v->block_width));
  return BSRG_LAUNCH_SECONDS + *bytes / chip->hbm_bytes_per_s;
}

/* What the tall family's prediction leaves out: narrow blocks pass more barriers for the same work. Fitted to 32x32
 * blocks, regrouped, at density .25. */
static double stage_overhead(bsrg_block_shape shape) {
  const double stages = shape.width < 64 ? 1 : ceil(shape.width / 64.0);
  return (1 + 8 * stages / shape.width) / (1 + 8 / 64.0);
}

/* Predicted seconds for a shape, as if its blocks were spread evenly. entries: what the tiles of two strips need in
 * block columns. */
static double estimate(const bsrg_structure_view *v, bsrg_block_shape shape, double blocks, double entries) {
  enum { TYPICAL_COLUMNS = 4096 };
  const bsrg_chip chip = bsrg_chip_h200();
  const int64_t rows = bsrg_ceil_div(v->rows, shape.height), cols = bsrg_ceil_div(v->cols, shape.width);
  const bsrg_structure_view child = {.rows = rows * shape.height,
                                     .cols = cols * shape.width,
                                     .block_height = shape.height,
                                     .block_width = shape.width,
                                     .block_rows = rows,
                                     .block_cols = cols,
                                     .nnzb = (int64_t)blocks};
  bsrg_tall_plan plan = {.tile_count = (int32_t)bsrg_ceil_div(child.rows, 2 * BSRG_TALL_STRIP),
                         .tile_entries = (int64_t)ceil(entries)};
  plan.longest_tile = (int32_t)bsrg_ceil_div(plan.tile_entries, plan.tile_count);
  bsrg_candidate candidate;
  bsrg_tall_family.predict(&child, &plan, BSRG_F16, TYPICAL_COLUMNS, &chip, &candidate);
  double bytes;
  return candidate.seconds * stage_overhead(shape) + packing_seconds(v, blocks, shape, &chip, &bytes);
}

/* The best shape by what a sample of the blocks says: 64 rows fill up with fewer zeros, 128 share their columns of X.
 * false: no memory. */
static bool choose_shape(const bsrg_structure_view *v, bsrg_block_shape *best) {
  enum { LOOK_AT = 4096 };            /* blocks; shares come out within a few percent */
  const double mask_overhead = 1.015; /* strips of different block rows ask a mask at every stage */
  int32_t widths[MOST_WIDTHS], *marks = calloc((size_t)(v->cols / 16 + 1), sizeof(*marks)), stamp = 1;
  if (!marks) return false;
  double least = INFINITY;
  const int count = list_widths(v, widths);
  for (int i = 0; i < count; ++i) {
    const bsrg_block_shape pair = {128, widths[i]}, strip = {64, widths[i]};
    const double pairs = bsrg_regroup_estimate_blocks(v, pair, LOOK_AT, marks, &stamp);
    const double strips = bsrg_regroup_estimate_blocks(v, strip, LOOK_AT, marks, &stamp);
    const double pair_seconds = fits(v, pair) ? estimate(v, pair, pairs, pairs) : INFINITY;
    const double strip_seconds =
        fits(v, strip) ? estimate(v, strip, strips, fmin(pairs, strips)) * mask_overhead : INFINITY;
    if (fmin(pair_seconds, strip_seconds) >= least) continue;
    least = fmin(pair_seconds, strip_seconds);
    *best = pair_seconds <= strip_seconds ? pair : strip;
  }
  free(marks);
  return true;
}

/* ---- plan and prediction ---------------------------------------------------------------------- */

static const char *obstacle(const bsrg_structure_view *v, bsrg_dtype dtype, int sm_arch) {
  int64_t block;
  if (dtype != BSRG_F16 && dtype != BSRG_BF16) return "needs float16 or bfloat16";
  if (v->nnzb == 0) return "needs at least one block";
  if (v->block_height % 64 == 0 && v->block_width % 16 == 0)
    return "needs blocks that gain from being larger: the tall kernels take multiples of (64, 16) as they "
           "are";
  if (v->rows > INT32_MAX - 128 || v->cols > INT32_MAX - 128 || v->nnzb > INT32_MAX ||
      !bsrg_mul_ok(v->block_height, v->block_width, &block) || block > INT32_MAX ||
      !fits(v, (bsrg_block_shape){64, 64}))
    return "needs fewer than 2^31 rows, columns, stored blocks and rows of larger blocks";
  if (sm_arch != 90) return "needs a Hopper GPU (compute capability 9.0)";
  return NULL;
}

static const char *layout_obstacle(const bsrg_matmul_args *args) {
  bsrg_matmul_args packed = *args;
  packed.values = NULL; /* the stored values may start anywhere; the packed ones are aligned */
  return bsrg_tall_family.layout_obstacle(&packed);
}

static void *make_plan(const bsrg_structure_view *v) {
  bsrg_block_shape shape;
  bsrg_regrouped *r = choose_shape(v, &shape) ? bsrg_regroup(v, shape) : NULL;
  if (!r || bsrg_plan_get(r->child, &bsrg_tall_family, &r->child_plan, NULL) == BSRG_OK) return r;
  bsrg_regrouped_free(r);
  return NULL;
}

static void predict(const bsrg_structure_view *v, const void *plan, bsrg_dtype dtype, int64_t n,
                    const bsrg_chip *chip, bsrg_candidate *c) {
  const bsrg_regrouped *r = plan;
  const bsrg_structure_view *child = &r->child->view;
  bsrg_candidate product = {0};
  bsrg_tall_family.predict(child, r->child_plan, dtype, n, chip, &product);
  double bytes;
  c->seconds = product.seconds * stage_overhead(r->shape) +
               packing_seconds(v, (double)child->nnzb, r->shape, chip, &bytes);
  c->mma_flops = product.mma_flops;
  c->l2_bytes = product.l2_bytes;
  c->hbm_bytes = product.hbm_bytes + bytes;
  const double stored = (double)v->nnzb * (double)(v->block_height * v->block_width);
  const double zeros = 1 - stored / ((double)child->nnzb * r->shape.height * r->shape.width);
  snprintf(c->reason, sizeof(c->reason), "as %dx%d blocks, %.0f%% zeros; %.100s", r->shape.height,
           r->shape.width, 100 * zeros, product.reason);
}

/* ---- launch ----------------------------------------------------------------------------------- */

/* Elements that lie together in every row of a block, at aligned addresses: 8, 4, 2 or 1. */
static int32_t elements_at_once(const bsrg_structure_view *v, const void *values) {
  int32_t elements = 8;
  while (v->block_width % elements || (uintptr_t)values % (2 * (uintptr_t)elements)) elements /= 2;
  return elements;
}

static bsrg_status pack(const bsrg_matmul_args *args, const bsrg_regrouped *r, CUdeviceptr packed,
                        bsrg_gpu gpu, bsrg_error *error) {
  const bsrg_structure_view *v = &args->a->view;
  enum { TILE_BEGIN, PIECES, PARTS };
  const bsrg_upload_part parts[PARTS] = {
      [TILE_BEGIN] = {r->tile_begin, sizeof(*r->tile_begin) * (size_t)(r->tile_count + 1)},
      [PIECES] = {r->pieces, sizeof(*r->pieces) * (size_t)r->tile_begin[r->tile_count]}};
  const CUdeviceptr *uploads;
  const bsrg_status status = bsrg_uploads_get(args->a, BSRG_REGROUP, parts, PARTS, gpu, &uploads, error);
  if (status != BSRG_OK) return status;

  const int32_t elements = elements_at_once(v, args->values);
  /* One thread a copy up to a warp a piece, then about four copies a thread, whose loads overlap. */
  const int64_t copies =
      bsrg_min(v->block_height, r->shape.height) * bsrg_min(v->block_width, r->shape.width) / elements;
  int32_t lanes_log2 = 0;
  while (lanes_log2 < 8 && (lanes_log2 < 5 ? 1 : 4) << lanes_log2 < copies) ++lanes_log2;
  bsrg_regroup_params p = {.values = args->values,
                           .regrouped = (void *)(uintptr_t)packed,
                           .tile_begin = (const int64_t *)(uintptr_t)uploads[TILE_BEGIN],
                           .pieces = (const bsrg_regroup_piece *)(uintptr_t)uploads[PIECES],
                           .elements = r->child->view.nnzb * r->shape.height * r->shape.width,
                           .block_elements = v->block_height * v->block_width,
                           .tile_elements = r->tile_elements,
                           .block_width = (int32_t)v->block_width,
                           .child_width = r->shape.width,
                           .lanes_log2 = lanes_log2};
  const bsrg_kernel_id kernel = elements == 8   ? BSRG_KERNEL_REGROUP_V8
                                : elements == 4 ? BSRG_KERNEL_REGROUP_V4
                                : elements == 2 ? BSRG_KERNEL_REGROUP_V2
                                                : BSRG_KERNEL_REGROUP_V1;
  return bsrg_launch(gpu.api, gpu.device, kernel, r->tile_count, 1, (CUstream)args->stream, &p, error);
}

static bsrg_status launch(const bsrg_matmul_args *args, const void *plan, bsrg_gpu gpu, bsrg_error *error) {
  const bsrg_regrouped *r = plan;
  const CUstream stream = (CUstream)args->stream;
  const int64_t bytes = 2 * r->child->view.nnzb * r->shape.height * r->shape.width;
  CUdeviceptr packed = 0;
  bsrg_status status = bsrg_scratch_alloc(gpu.api, gpu.device, (size_t)bytes, stream, &packed, error);
  if (status != BSRG_OK) return status;

  status = pack(args, r, packed, gpu, error);
  if (status == BSRG_OK) {
    bsrg_matmul_args child = *args;
    child.a = r->child;
    child.values = (const void *)(uintptr_t)packed;
    status = bsrg_tall_family.launch(&child, r->child_plan, gpu, error);
  }
  return bsrg_scratch_free(gpu.api, packed, stream, status, error);
}

const bsrg_family_ops bsrg_regroup_family = {.family = BSRG_REGROUP,
                                             .obstacle = obstacle,
                                             .columns_obstacle = bsrg_map_columns_obstacle,
                                             .layout_obstacle = layout_obstacle,
                                             .make_plan = make_plan,
                                             .free_plan = bsrg_regrouped_free,
                                             .predict = predict,
                                             .launch = launch};
