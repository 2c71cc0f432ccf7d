/* The align family: dense operands that kernels cannot read and write by vectors (of Hopper, by TMA) are copied into memory
 * where they can, row-major or by columns, the best of the other families computes there, and the result is copied out.
 * Kernels in kernels/sm80/align_copy.cu. */
#include "copy.h"
#include "dense.h"
#include "edges.h"
#include "tensor_map.h"

#include <math.h>
#include <stdlib.h>

/* ---- the product on aligned operands ---------------------------------------------------------- */

typedef struct aligned_product {
  bsrg_matmul_args args; /* the data of copies is NULL until there is memory */
  bool by_columns;       /* the copies */
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

static aligned_product align(const bsrg_matmul_args *args, bool by_columns) {
  const int64_t n = args->x.cols, size = (int64_t)bsrg_dtype_size(args->dtype);
  const int64_t columns = !by_columns && n % vector_of(args) ? padded(n) : n;
  aligned_product p = {.args = *args, .by_columns = by_columns};
  p.args.family = BSRG_AUTO;
  if (by_columns) { /* of 16 bits, for TMA; C may be any */
    const bsrg_dense x = bsrg_dense_turned(args->x), y = bsrg_dense_turned(args->y);
    p.copy_x = !bsrg_map_can_describe(&x);
    p.copy_y = !bsrg_map_can_store(&y, size, args->y_padded);
  } else {
    p.copy_x = !has_vectors(&args->x, args);
    p.copy_y = !has_vectors(&args->y, args);
    p.copy_c = args->beta != 0 && !has_vectors(&args->c, args);
  }
  if (p.copy_x) p.args.x = bsrg_dense_of_lines(args->x.rows, columns, by_columns, size);
  if (p.copy_y) p.args.y = bsrg_dense_of_lines(args->y.rows, columns, by_columns, size);
  p.args.y_padded = p.copy_y || args->y_padded;
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
  const aligned_product p = align(args, false);
  return p.copy_x || p.copy_c || p.copy_y ? NULL : "needs operands that kernels cannot read by vectors";
}

/* ---- plan and prediction ------------------------------------------------------------------------ */

/* Nothing: the families that compute have theirs. */
static void *make_plan(bsrg_structure *structure) {
  (void)structure;
  return malloc(1);
}

/* The share of the memory's rate that copies are taken to reach; of 16 bits, with what a launch beside the product's takes,
 * fitted on an H200 to calls that the host does not keep waiting, as the families with copies of their own, of tf32, are not. */
static const double copy_share = 0.7, half_copy_share = 0.9, half_copy_launch_seconds = 2e-6;

static void predict_product(const bsrg_matmul_args *args, bool by_columns, const bsrg_chip *chip,
                            bsrg_candidate *c) {
  const aligned_product p = align(args, by_columns);
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
  const bool half = bsrg_is_half(args->dtype);
  const double share = half ? half_copy_share : copy_share;
  c->seconds = product.seconds +
               (p.copy_x + p.copy_c + p.copy_y) * (half ? half_copy_launch_seconds : BSRG_LAUNCH_SECONDS) +
               bytes / (chip->hbm_bytes_per_s * share);
  c->mma_flops = product.mma_flops;
  c->l2_bytes = product.l2_bytes;
  c->hbm_bytes = product.hbm_bytes + bytes;
  bsrg_set_reason(c, "as %s on aligned copies; %.100s", bsrg_family_name(ops->family), product.reason);
}

/* Products with A on the right have X and Y by columns, and Hopper's kernels of 16 bits take them so: copies in the same
 * order are no transposes. tf32 has families that make such copies themselves. */
static bool may_go_by_columns(const bsrg_matmul_args *args, const bsrg_chip *chip) {
  if (chip->sm_arch != 90 || bsrg_dtype_size(args->dtype) != 2) return false;
  if (args->x.row_stride != 1 || args->y.row_stride != 1) return false;
  const aligned_product p = align(args, true);
  /* Copies that TMA cannot describe would have to be copied again, without end. */
  const int64_t most = (int64_t)1 << 39;
  return (p.copy_x || p.copy_y) && p.args.x.col_stride < most && p.args.y.col_stride < most;
}

/* Returns whether copies go by columns. */
static bool predict_better(const bsrg_matmul_args *args, const bsrg_chip *chip, bsrg_candidate *c) {
  bsrg_candidate in_columns = *c;
  predict_product(args, false, chip, c);
  if (!may_go_by_columns(args, chip)) return false;
  predict_product(args, true, chip, &in_columns);
  if (in_columns.seconds >= c->seconds) return false;
  *c = in_columns;
  return true;
}

static void predict(const bsrg_matmul_args *args, const void *plan, const bsrg_chip *chip,
                    bsrg_candidate *c) {
  (void)plan;
  predict_better(args, chip, c);
}

/* ---- launch ------------------------------------------------------------------------------------- */

/* Up to so many columns a thread a vector is faster than a warp a row. */
enum { FEW_COLUMNS = 512 };

static bsrg_status copy_in(const bsrg_dense *source, const bsrg_dense *target, const aligned_product *p,
                           bsrg_gpu gpu, bsrg_error *error) {
  const int64_t size = (int64_t)bsrg_dtype_size(p->args.dtype);
  const CUstream stream = (CUstream)p->args.stream;
  return size == 2 && !p->by_columns && source->cols <= FEW_COLUMNS
             ? bsrg_copy_to_vectors(source, target, gpu, stream, error)
             : bsrg_copy(source, target, size, gpu, stream, error);
}

static bsrg_status multiply(const bsrg_matmul_args *args, const aligned_product *p, bsrg_gpu gpu,
                            bsrg_error *error) {
  const bsrg_chip chip = bsrg_chip_of(gpu);
  const bsrg_family_ops *ops;
  const void *plan;
  bsrg_status status = bsrg_choose_family(&p->args, &chip, &ops, &plan, error);
  if (status == BSRG_OK && p->copy_x) status = copy_in(&args->x, &p->args.x, p, gpu, error);
  if (status == BSRG_OK && p->copy_c) status = copy_in(&args->c, &p->args.c, p, gpu, error);
  if (status == BSRG_OK) status = bsrg_whole_launch(ops, &p->args, plan, gpu, error);
  if (status == BSRG_OK && p->copy_y)
    status = bsrg_copy(&p->args.y, &args->y, (int64_t)bsrg_dtype_size(args->dtype), gpu,
                       (CUstream)args->stream, error);
  return status;
}

static bsrg_status launch(const bsrg_matmul_args *args, const void *plan, bsrg_gpu gpu, bsrg_error *error) {
  (void)plan;
  const bsrg_chip chip = bsrg_chip_of(gpu);
  bsrg_candidate unused = bsrg_new_candidate(BSRG_ALIGN, false);
  aligned_product p = align(args, may_go_by_columns(args, &chip) && predict_better(args, &chip, &unused));
  const int64_t size = (int64_t)bsrg_dtype_size(args->dtype);
  const size_t x_bytes = p.copy_x ? bsrg_lines_bytes(&p.args.x, size) : 0;
  const size_t y_bytes = p.copy_y ? bsrg_lines_bytes(&p.args.y, size) : 0;
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
