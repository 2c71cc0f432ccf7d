/* The align family: dense operands that kernels cannot read and write by vectors (of Hopper, by TMA) are copied into row-major
 * memory where they can, the best of the other families computes there, and the result is copied out. Kernels in
 * kernels/sm80/align_copy.cu. */
#include "copy.h"
#include "dense.h"
#include "edges.h"
#include "tensor_map.h"

#include <math.h>
#include <stdlib.h>

/* ---- the product on aligned operands ---------------------------------------------------------- */

typedef struct aligned_product {
  bsrg_matmul_args args; /* the data of copies is NULL until there is memory */
  bool copy_x, copy_c, copy_y;
} aligned_product;

/* Elements of a vector of 16 bytes. */
static int64_t vector_of(const bsrg_matmul_args *args) { return 16 / (int64_t)bsrg_dtype_size(args->dtype); }

/* Rows of copies begin at multiples of 128 bytes. A number of columns that is no multiple of a vector becomes one of 64, which
 * lets the tall kernels load X with one instruction a stage and is less than a tile in any case. What the columns
 * beyond n hold does not matter: column j of Y depends on column j of X and C alone. Other numbers of columns stay,
 * since operands that need no copy have no more. */
static int64_t padded(int64_t n) { return bsrg_ceil_div(n, 64) * 64; }

/* Whether every row can be read and written by vectors and, of 16 bits, by TMA. */
static bool has_vectors(const bsrg_dense *dense, const bsrg_matmul_args *args) {
  const int64_t size = (int64_t)bsrg_dtype_size(args->dtype);
  return args->x.cols % vector_of(args) == 0 &&
         (size == 2 ? bsrg_map_can_describe(dense) : bsrg_dense_has_vectors(dense, size));
}

static aligned_product align(const bsrg_matmul_args *args) {
  const int64_t n = args->x.cols, columns = n % vector_of(args) ? padded(n) : n;
  aligned_product p = {.args = *args};
  p.args.family = BSRG_AUTO;
  p.copy_x = !has_vectors(&args->x, args);
  p.copy_y = !has_vectors(&args->y, args);
  p.copy_c = args->beta != 0 && !has_vectors(&args->c, args);
  if (p.copy_x) p.args.x = (bsrg_dense){NULL, args->x.rows, columns, padded(n), 1};
  if (p.copy_y) p.args.y = (bsrg_dense){NULL, args->y.rows, columns, padded(n), 1};
  if (p.copy_c) p.args.c = p.args.y; /* C is copied to where the product goes */
  return p;
}

/* ---- obstacles --------------------------------------------------------------------------------- */

static const char *obstacle(const bsrg_structure_view *v, bsrg_dtype dtype, int sm_arch) {
  if (bsrg_is_8_bit(dtype)) return "needs float16, bfloat16, float32 or float64";
  if (v->nnzb == 0) return "needs at least one block";
  return bsrg_portable_family.obstacle(v, dtype, sm_arch); /* which takes what others do not */
}

static const char *columns_obstacle(int64_t n) {
  return n > INT32_MAX - 63 ? "needs fewer than 2^31 - 63 columns" : NULL;
}

static const char *layout_obstacle(const bsrg_matmul_args *args) {
  /* Of fewer the narrow family copies X itself, where that gains, and asking the other families would cost such a product their
   * planning. Dynamic structures have neither. */
  const bool narrow = !args->a->dynamic && vector_of(args) == 8 &&
                      !bsrg_narrow_family.obstacle(&args->a->view, args->dtype, 90);
  if (args->x.cols <= 64 && narrow) return "needs more than 64 columns";
  const aligned_product p = align(args);
  return p.copy_x || p.copy_c || p.copy_y ? NULL : "needs operands that kernels cannot read by vectors";
}

/* ---- plan and prediction ------------------------------------------------------------------------ */

/* Nothing: the families that compute have theirs. */
static void *make_plan(bsrg_structure *structure) {
  (void)structure;
  return malloc(1);
}

/* The share of the memory's rate that copies are taken to reach. */
static const double copy_share = 0.7;

static void predict(const bsrg_matmul_args *args, const void *plan, const bsrg_chip *chip,
                    bsrg_candidate *c) {
  (void)plan;
  const aligned_product p = align(args);
  const bsrg_family_ops *ops;
  const void *its_plan;
  bsrg_candidate product;
  bsrg_error error;
  if (bsrg_choose_candidate(&p.args, chip, bsrg_says_why(c), &ops, &its_plan, &product, &error) != BSRG_OK) {
    c->seconds = INFINITY;
    bsrg_set_reason(c, "on aligned copies: %.150s", error.message);
    return;
  }
  const double rows = (p.copy_x ? (double)args->x.rows : 0) +
                      ((p.copy_c ? 1 : 0) + (p.copy_y ? 1 : 0)) * (double)args->y.rows;
  const double bytes = 2 * rows * (double)args->x.cols * (double)bsrg_dtype_size(args->dtype);
  c->seconds = product.seconds + (p.copy_x + p.copy_c + p.copy_y) * BSRG_LAUNCH_SECONDS +
               bytes / (chip->hbm_bytes_per_s * copy_share);
  c->mma_flops = product.mma_flops;
  c->l2_bytes = product.l2_bytes;
  c->hbm_bytes = product.hbm_bytes + bytes;
  bsrg_set_reason(c, "as %s on aligned copies; %.100s", bsrg_family_name(ops->family), product.reason);
}

/* ---- launch ------------------------------------------------------------------------------------- */

/* Up to so many columns a thread a vector is faster than a warp a row. */
enum { FEW_COLUMNS = 512 };

static bsrg_status copy_in(const bsrg_dense *source, const bsrg_dense *target, int64_t size, bsrg_gpu gpu,
                           CUstream stream, bsrg_error *error) {
  return size == 2 && source->cols <= FEW_COLUMNS ? bsrg_copy_to_vectors(source, target, gpu, stream, error)
                                                  : bsrg_copy(source, target, size, gpu, stream, error);
}

static bsrg_status multiply(const bsrg_matmul_args *args, const aligned_product *p, bsrg_gpu gpu,
                            bsrg_error *error) {
  const CUstream stream = (CUstream)args->stream;
  const int64_t size = (int64_t)bsrg_dtype_size(args->dtype);
  const bsrg_chip chip = bsrg_chip_of(gpu);
  const bsrg_family_ops *ops;
  const void *plan;
  bsrg_status status = bsrg_choose_family(&p->args, &chip, &ops, &plan, error);
  if (status == BSRG_OK && p->copy_x) status = copy_in(&args->x, &p->args.x, size, gpu, stream, error);
  if (status == BSRG_OK && p->copy_c) status = copy_in(&args->c, &p->args.c, size, gpu, stream, error);
  if (status == BSRG_OK) status = bsrg_whole_launch(ops, &p->args, plan, gpu, error);
  if (status == BSRG_OK && p->copy_y) status = bsrg_copy(&p->args.y, &args->y, size, gpu, stream, error);
  return status;
}

static bsrg_status launch(const bsrg_matmul_args *args, const void *plan, bsrg_gpu gpu, bsrg_error *error) {
  (void)plan;
  aligned_product p = align(args);
  const size_t row_bytes = bsrg_dtype_size(args->dtype) * (size_t)padded(args->x.cols);
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
    status = multiply(args, &p, gpu, error);
  }
  if (scratch) status = bsrg_scratch_free(gpu.api, scratch, (CUstream)args->stream, status, error);
  return status;
}

const bsrg_family_ops bsrg_align_family = {.family = BSRG_ALIGN,
                                           .obstacle = obstacle,
                                           .columns_obstacle = columns_obstacle,
                                           .layout_obstacle = layout_obstacle,
                                           .make_plan = make_plan,
                                           .free_plan = free,
                                           .predict = predict,
                                           .clips_x = true,
                                           .clips_y = true,
                                           .launch = launch};
