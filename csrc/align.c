/* The align family: dense operands that TMA cannot address are copied into row-major memory that it can, the best of
 * the Hopper families computes there, and the result is copied out. Kernels in kernels/sm80/align_copy.cu. */
#include "copy.h"
#include "dynamic.h"
#include "family.h"
#include "stream.h"
#include "tensor_map.h"

#include <stdlib.h>

/* The families that may compute the product itself; all but the last one take any number of columns. */
static const bsrg_family_ops *const inner_families[] = {&bsrg_tall_family, &bsrg_stream_family,
                                                        &bsrg_regroup_family, &bsrg_narrow_family};
enum { INNER = sizeof(inner_families) / sizeof(inner_families[0]), ANY_COLUMNS = INNER - 1 };

/* ---- the product on aligned operands ---------------------------------------------------------- */

typedef struct aligned_product {
  bsrg_matmul_args args; /* for the inner family; the data of copies is NULL until there is memory */
  bool copy_x, copy_c, copy_y;
} aligned_product;

/* Rows of copies begin at multiples of 128 bytes. A number of columns that is no multiple of 8 becomes one of 64, which
 * lets the tall kernels load X with one instruction a stage and is less than a tile in any case. What the columns
 * beyond n hold does not matter: column j of Y depends on column j of X and C alone. Other numbers of columns stay,
 * since operands that need no copy have no more. */
static int64_t padded(int64_t n) { return bsrg_ceil_div(n, 64) * 64; }

static aligned_product align(const bsrg_matmul_args *args) {
  const int64_t n = args->x.cols, columns = n % 8 ? padded(n) : n;
  aligned_product p = {.args = *args};
  p.copy_x = n % 8 || !bsrg_map_can_describe(&args->x);
  p.copy_y = n % 8 || !bsrg_map_can_describe(&args->y);
  p.copy_c = args->beta != 0 && (n % 8 || !bsrg_map_can_describe(&args->c));
  if (p.copy_x) p.args.x = (bsrg_dense){NULL, args->x.rows, columns, padded(n), 1};
  if (p.copy_y) p.args.y = (bsrg_dense){NULL, args->y.rows, columns, padded(n), 1};
  if (p.copy_c) p.args.c = p.args.y; /* C is copied to where the product goes */
  return p;
}

/* ---- obstacles --------------------------------------------------------------------------------- */

static const char *obstacle(const bsrg_structure_view *v, bsrg_dtype dtype, int sm_arch) {
  if (dtype != BSRG_F16 && dtype != BSRG_BF16) return "needs float16 or bfloat16";
  if (v->nnzb == 0) return "needs at least one block";
  if (sm_arch != 90) return "needs a Hopper GPU (compute capability 9.0)";
  for (int i = 0; i < ANY_COLUMNS; ++i)
    if (!inner_families[i]->obstacle(v, dtype, sm_arch)) return NULL;
  return "needs a structure that the tall, stream or regroup family can compute";
}

/* Of fewer the narrow family copies X itself, where that gains, and asking the inner families would cost such a product their
 * planning. */
static const char *columns_obstacle(int64_t n) {
  if (n <= 64) return "needs more than 64 columns";
  return n > INT32_MAX - 63 ? "needs fewer than 2^31 - 63 columns" : NULL;
}

static const char *layout_obstacle(const bsrg_matmul_args *args) {
  if ((uintptr_t)args->values % 16) return "needs a.data to start at a multiple of 16 bytes";
  const aligned_product p = align(args);
  return p.copy_x || p.copy_c || p.copy_y ? NULL
                                          : "needs operands that the Hopper kernels cannot read as they are";
}

/* ---- plan and prediction ------------------------------------------------------------------------ */

/* The inner families' plans belong to the structure. */
typedef struct align_plan {
  int count;
  const bsrg_family_ops *ops[INNER];
  const void *plans[INNER];
} align_plan;

static void *make_plan_of(bsrg_structure *structure, bool low) {
  align_plan *plan = calloc(1, sizeof(*plan));
  for (int i = 0; plan && i < INNER; ++i) {
    const bsrg_family_ops *ops = inner_families[i];
    /* Both 16-bit types are alike, and this family is for Hopper only. */
    if (ops->obstacle(&structure->view, BSRG_F16, 90) || bsrg_dynamic_obstacle(structure, ops->family))
      continue;
    plan->ops[plan->count] = ops;
    if (bsrg_plan_get(structure, ops, low, &plan->plans[plan->count++], NULL) == BSRG_OK) continue;
    free(plan);
    plan = NULL;
  }
  return plan;
}

static void *make_plan(bsrg_structure *structure) { return make_plan_of(structure, false); }

static void *make_low_plan(bsrg_structure *structure) { return make_plan_of(structure, true); }

/* Whether a family takes so many columns, and X where blocks reach beyond it. */
static bool takes(const bsrg_family_ops *ops, const bsrg_matmul_args *aligned) {
  const bsrg_structure_view *v = &aligned->a->view;
  return !ops->columns_obstacle(aligned->x.cols) && (ops->clips_x || v->cols == bsrg_whole_cols(v));
}

/* The fastest inner family by prediction. */
static int choose(const bsrg_matmul_args *aligned, const align_plan *plan, const bsrg_chip *chip,
                  bool says_why, bsrg_candidate *best) {
  int chosen = -1;
  for (int i = 0; i < plan->count; ++i) {
    if (!takes(plan->ops[i], aligned)) continue;
    bsrg_candidate candidate = bsrg_new_candidate(plan->ops[i]->family, says_why);
    plan->ops[i]->predict(aligned, plan->plans[i], chip, &candidate);
    if (chosen >= 0 && candidate.seconds >= best->seconds) continue;
    *best = candidate;
    chosen = i;
  }
  return chosen;
}

/* The share of the memory's rate that copies are taken to reach. */
static const double copy_share = 0.7;

static void predict(const bsrg_matmul_args *args, const void *plan, const bsrg_chip *chip,
                    bsrg_candidate *c) {
  const align_plan *inner = plan;
  const aligned_product p = align(args);
  bsrg_candidate product;
  const int chosen = choose(&p.args, inner, chip, bsrg_says_why(c), &product);
  const double rows = (p.copy_x ? (double)args->x.rows : 0) +
                      ((p.copy_c ? 1 : 0) + (p.copy_y ? 1 : 0)) * (double)args->y.rows;
  const double bytes = 2 * rows * (double)args->x.cols * (double)bsrg_dtype_size(args->dtype);
  c->seconds = product.seconds + (p.copy_x + p.copy_c + p.copy_y) * BSRG_LAUNCH_SECONDS +
               bytes / (chip->hbm_bytes_per_s * copy_share);
  c->mma_flops = product.mma_flops;
  c->l2_bytes = product.l2_bytes;
  c->hbm_bytes = product.hbm_bytes + bytes;
  bsrg_set_reason(c, "as %s on aligned copies; %.100s", bsrg_family_name(inner->ops[chosen]->family),
                  product.reason);
}

/* ---- launch ------------------------------------------------------------------------------------- */

/* Up to so many columns a thread a vector is faster than a warp a row. */
enum { FEW_COLUMNS = 512 };

static bsrg_status copy_in(const bsrg_dense *source, const bsrg_dense *target, bsrg_gpu gpu, CUstream stream,
                           bsrg_error *error) {
  return source->cols <= FEW_COLUMNS ? bsrg_copy_to_vectors(source, target, gpu, stream, error)
                                     : bsrg_copy_16_bit(source, target, source->cols, gpu, stream, error);
}

static bsrg_status multiply(const bsrg_matmul_args *args, const aligned_product *p, const align_plan *plan,
                            bsrg_gpu gpu, bsrg_error *error) {
  const CUstream stream = (CUstream)args->stream;
  const int64_t n = args->x.cols;
  const bsrg_chip chip = bsrg_chip_of(gpu);
  bsrg_candidate product;
  const int chosen = choose(&p->args, plan, &chip, false, &product);
  bsrg_status status = BSRG_OK;
  if (p->copy_x) status = copy_in(&args->x, &p->args.x, gpu, stream, error);
  if (status == BSRG_OK && p->copy_c) status = copy_in(&args->c, &p->args.c, gpu, stream, error);
  if (status == BSRG_OK) status = plan->ops[chosen]->launch(&p->args, plan->plans[chosen], gpu, error);
  if (status == BSRG_OK && p->copy_y) status = bsrg_copy_16_bit(&p->args.y, &args->y, n, gpu, stream, error);
  return status;
}

static bsrg_status launch(const bsrg_matmul_args *args, const void *plan, bsrg_gpu gpu, bsrg_error *error) {
  aligned_product p = align(args);
  const size_t row_bytes = 2 * (size_t)padded(args->x.cols);
  const size_t x_bytes = p.copy_x ? row_bytes * (size_t)args->x.rows : 0;
  const size_t y_bytes = p.copy_y ? row_bytes * (size_t)args->y.rows : 0;
  CUdeviceptr scratch = 0;
  bsrg_status status = BSRG_OK;
  if (x_bytes + y_bytes > 0)
    status =
        bsrg_scratch_alloc(gpu.api, gpu.device, x_bytes + y_bytes, (CUstream)args->stream, &scratch, error);
  if (status == BSRG_OK) {
    if (p.copy_x) p.args.x.data = (void *)(uintptr_t)scratch;
    if (p.copy_y) p.args.y.data = (void *)(uintptr_t)(scratch + x_bytes);
    if (p.copy_c) p.args.c.data = p.args.y.data;
    status = multiply(args, &p, plan, gpu, error);
  }
  if (scratch) status = bsrg_scratch_free(gpu.api, scratch, (CUstream)args->stream, status, error);
  return status;
}

const bsrg_family_ops bsrg_align_family = {.family = BSRG_ALIGN,
                                           .obstacle = obstacle,
                                           .columns_obstacle = columns_obstacle,
                                           .layout_obstacle = layout_obstacle,
                                           .make_plan = make_plan,
                                           .wants_low = bsrg_stream_wants_low,
                                           .make_low_plan = make_low_plan,
                                           .free_plan = free,
                                           .predict = predict,
                                           .clips_x = true,
                                           .clips_y = true,
                                           .launch = launch};
