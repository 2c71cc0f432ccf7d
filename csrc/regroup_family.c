/* The regroup family: which larger blocks suit a structure, what they cost, and the launch. */
#include "regroup.h"
#include "tall.h"
#include "uploads.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

/* ---- shapes ----------------------------------------------------------------------------------- */

enum { MOST_SHAPES = 8 };

/* The shapes that are worth a look, all of them for the tall kernels: 64 rows fill up with fewer zeros, 128 share
 * their columns of X; the stored blocks' own width, made a multiple of 16, cuts no block in two. */
static int list_shapes(const bsrg_structure_view *v, bsrg_block_shape shapes[MOST_SHAPES]) {
  const int64_t bw = v->block_width;
  const int64_t own = bw % 16 == 0  ? bw
                      : bw % 8 == 0 ? 2 * bw
                      : bw % 4 == 0 ? 4 * bw
                      : bw % 2 == 0 ? 8 * bw
                                    : 16 * bw;
  const int64_t widths[] = {64, 32, 16, own};
  int count = 0;
  for (int i = 0; i < 4; ++i) {
    if (i == 3 && (own > 128 || own == 64 || own == 32 || own == 16)) break;
    for (int32_t height = 128; height >= 64; height -= 64) {
      const bsrg_block_shape shape = {height, (int32_t)widths[i]};
      if (v->block_height == shape.height && bw == shape.width) continue;
      /* The tall kernels count rows of stored blocks in 32 bits. */
      if (bsrg_regroup_most_blocks(v, shape) > INT32_MAX / shape.height) continue;
      shapes[count++] = shape;
    }
  }
  return count;
}

static double packing_seconds(const bsrg_structure_view *v, double child_blocks, bsrg_block_shape shape,
                              const bsrg_chip *chip, double *bytes) {
  *bytes = 2 * (child_blocks * shape.height * shape.width +
                (double)v->nnzb * (double)(v->block_height * v->block_width));
  return BSRG_LAUNCH_SECONDS + *bytes / chip->hbm_bytes_per_s;
}

/* Predicted seconds for a shape, as if its blocks were spread evenly. `pairs` is the number of blocks of twice the
 * height, for a shape of one strip: what two neighbouring block rows need together. */
static double estimate(const bsrg_structure_view *v, bsrg_block_shape shape, double blocks, double pairs) {
  enum { TYPICAL_COLUMNS = 4096 };
  const bsrg_chip chip = bsrg_chip_h200();
  const int64_t strips = shape.height / BSRG_TALL_STRIP;
  const int64_t rows = bsrg_ceil_div(v->rows, shape.height), cols = bsrg_ceil_div(v->cols, shape.width);
  const bsrg_structure_view child = {.rows = rows * shape.height,
                                     .cols = cols * shape.width,
                                     .block_height = shape.height,
                                     .block_width = shape.width,
                                     .block_rows = rows,
                                     .block_cols = cols,
                                     .nnzb = (int64_t)blocks};
  bsrg_tall_plan plan = {.tile_count = (int32_t)bsrg_ceil_div(rows * strips, 2),
                         .tile_entries = (int64_t)ceil(strips == 1 ? pairs : blocks)};
  plan.longest_tile = (int32_t)bsrg_ceil_div(plan.tile_entries, plan.tile_count);
  bsrg_candidate candidate;
  bsrg_tall_family.predict(&child, &plan, BSRG_F16, TYPICAL_COLUMNS, &chip, &candidate);
  double bytes;
  return candidate.seconds + packing_seconds(v, blocks, shape, &chip, &bytes);
}

/* The best of the listed shapes by what a sample of the blocks says. false: no memory. */
static bool choose_shape(const bsrg_structure_view *v, bsrg_block_shape *best) {
  enum { LOOK_AT = 8192 }; /* blocks; enough for two digits of a share */
  bsrg_block_shape shapes[MOST_SHAPES];
  const int count = list_shapes(v, shapes);
  int32_t *marks = calloc((size_t)(v->cols / 16 + 1), sizeof(*marks)), stamp = 1;
  if (!marks) return false;
  double least = INFINITY;
  for (int i = 0; i < count; ++i) {
    const bsrg_block_shape doubled = {2 * shapes[i].height, shapes[i].width};
    const double blocks = bsrg_regroup_estimate_blocks(v, shapes[i], LOOK_AT, marks, &stamp);
    const double pairs = shapes[i].height == BSRG_TALL_STRIP
                             ? bsrg_regroup_estimate_blocks(v, doubled, LOOK_AT, marks, &stamp)
                             : 0;
    const double seconds = estimate(v, shapes[i], blocks, pairs);
    if (seconds >= least) continue;
    least = seconds;
    *best = shapes[i];
  }
  free(marks);
  return true;
}

/* ---- plan and prediction ---------------------------------------------------------------------- */

static const char *obstacle(const bsrg_structure_view *v, bsrg_dtype dtype, int sm_arch) {
  bsrg_block_shape shapes[MOST_SHAPES];
  int64_t block;
  if (dtype != BSRG_F16 && dtype != BSRG_BF16) return "needs float16 or bfloat16";
  if (v->nnzb == 0) return "needs at least one block";
  if (v->block_height % 128 == 0 && v->block_width % 16 == 0)
    return "needs a block shape that larger blocks improve on, and (128, 16) or a multiple is none";
  if (v->rows > INT32_MAX - 128 || v->cols > INT32_MAX - 128 || v->nnzb > INT32_MAX ||
      !bsrg_mul_ok(v->block_height, v->block_width, &block) || block > INT32_MAX ||
      list_shapes(v, shapes) == 0)
    return "needs fewer than 2^31 rows, columns, stored blocks and rows of larger blocks";
  if (sm_arch != 90) return "needs a Hopper GPU (compute capability 9.0)";
  return NULL;
}

static const char *columns_obstacle(int64_t n) { return bsrg_tall_family.columns_obstacle(n); }

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
  c->seconds = product.seconds + packing_seconds(v, (double)child->nnzb, r->shape, chip, &bytes);
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

/* What the planner would have chosen without this family: it needs no memory. */
static bsrg_status launch_portable(const bsrg_matmul_args *args, bsrg_gpu gpu, bsrg_error *error) {
  const void *plan;
  const bsrg_status status = bsrg_plan_get(args->a, &bsrg_portable_family, &plan, error);
  return status == BSRG_OK ? bsrg_portable_family.launch(args, plan, gpu, error) : status;
}

static bsrg_status launch(const bsrg_matmul_args *args, const void *plan, bsrg_gpu gpu, bsrg_error *error) {
  const bsrg_regrouped *r = plan;
  const CUstream stream = (CUstream)args->stream;
  const int64_t bytes = 2 * r->child->view.nnzb * r->shape.height * r->shape.width;
  CUdeviceptr packed = 0;
  const CUresult result = gpu.api->memory_alloc_async(&packed, (size_t)bytes, stream);
  if (result == CUDA_ERROR_OUT_OF_MEMORY) {
    if (args->family == BSRG_AUTO) return launch_portable(args, gpu, error);
    return bsrg_fail(
        error, BSRG_ERR_MEMORY,
        "family 'regroup' needs %lld bytes for a in larger blocks, and cuda:%d has no room for them",
        (long long)bytes, gpu.device->index);
  }
  bsrg_status status = bsrg_cuda_check(gpu.api, result, "cuMemAllocAsync", error);
  if (status != BSRG_OK) return status;

  status = pack(args, r, packed, gpu, error);
  if (status == BSRG_OK) {
    bsrg_matmul_args child = *args;
    child.a = r->child;
    child.values = (const void *)(uintptr_t)packed;
    status = bsrg_tall_family.launch(&child, r->child_plan, gpu, error);
  }
  const CUresult freed = gpu.api->memory_free_async(packed, stream);
  return status == BSRG_OK ? bsrg_cuda_check(gpu.api, freed, "cuMemFreeAsync", error) : status;
}

const bsrg_family_ops bsrg_regroup_family = {.family = BSRG_REGROUP,
                                             .obstacle = obstacle,
                                             .columns_obstacle = columns_obstacle,
                                             .layout_obstacle = layout_obstacle,
                                             .make_plan = make_plan,
                                             .free_plan = bsrg_regrouped_free,
                                             .predict = predict,
                                             .launch = launch};
