/* The widen family: 8-bit operands are copied to 16-bit floats, which have all of their values, and the best family for
 * those computes the product. Kernels in kernels/sm80/widen.cu.
 *
 * WGMMA reads 8 bits K-major alone, which fits blocks of at least 64 rows (kmajor); lower ones are faster so than by the
 * portable kernels' tiles. Factors of the operands are taken for scales of rows and columns. */
#include "dense.h"
#include "edges.h"
#include "family.h"
#include "kmajor.h"

#include <math.h>
#include <stdlib.h>

/* ---- the product of 16-bit floats --------------------------------------------------------------- */

/* Rows or columns of the copy, whichever are contiguous, begin at multiples of 128 bytes. */
static int64_t pitch_of(int64_t length) { return bsrg_ceil_div(length, 64) * 64; }

/* Of a copy whose columns or rows are contiguous; the data is missing. */
static bsrg_dense copy_of(const bsrg_dense *x, bool columns) {
  const int64_t pitch = pitch_of(columns ? x->rows : x->cols);
  return (bsrg_dense){NULL, x->rows, x->cols, columns ? 1 : pitch, columns ? pitch : 1};
}

static int64_t x_elements(const bsrg_dense *copy) {
  return copy->row_stride == 1 ? copy->col_stride * copy->cols : copy->row_stride * copy->rows;
}

static int64_t value_elements(const bsrg_structure_view *v) {
  return pitch_of(v->nnzb * v->block_height * v->block_width);
}

/* One factor for each of `size` rows or columns. */
static bsrg_vector repeated(const float *factor, int64_t size) {
  return (bsrg_vector){.data = factor, .size = size, .stride = 0, .dtype = BSRG_F32};
}

/* columns: of X's copy. The data of copies is NULL until there is memory. */
static bsrg_matmul_args widened(const bsrg_matmul_args *args, bool columns) {
  bsrg_matmul_args wide = *args;
  wide.family = BSRG_AUTO;
  wide.dtype = args->out_dtype;
  wide.values = NULL;
  wide.x = copy_of(&args->x, columns);
  if (args->values_scale) wide.epilogue.row_scale = repeated(args->values_scale, args->y.rows);
  if (args->x_scale) wide.epilogue.col_scale = repeated(args->x_scale, args->y.cols);
  wide.values_scale = wide.x_scale = NULL;
  return wide;
}

/* How the product is computed. */
typedef struct widen_way {
  bsrg_matmul_args args;
  const bsrg_family_ops *ops;
  const void *plan;
  bsrg_candidate product;
} widen_way;

/* The fastest by prediction. X by columns may be copied to rows, which streams of blocks read in less time. */
static bsrg_status choose(const bsrg_matmul_args *args, const bsrg_chip *chip, bool says_why, widen_way *best,
                          bsrg_error *error) {
  const bool columns = bsrg_dense_is_by_columns(&args->x);
  for (int turned = 0; turned <= columns; ++turned) {
    widen_way way = {.args = widened(args, columns && !turned)};
    const bsrg_status status =
        bsrg_choose_candidate(&way.args, chip, says_why, &way.ops, &way.plan, &way.product, error);
    if (status != BSRG_OK) return status;
    if (!turned || way.product.seconds < best->product.seconds) *best = way;
  }
  return BSRG_OK;
}

/* ---- obstacles ---------------------------------------------------------------------------------- */

static const char *obstacle(const bsrg_structure_view *v, bsrg_dtype dtype, int sm_arch) {
  if (!bsrg_is_8_bit(dtype)) return "needs 8-bit floats";
  if (sm_arch != 90) return "needs a Hopper GPU (compute capability 9.0)";
  return v->nnzb == 0 ? "needs at least one block" : NULL;
}

static const char *layout_obstacle(const bsrg_matmul_args *args) {
  const bsrg_epilogue *e = &args->epilogue;
  if (!bsrg_is_half(args->out_dtype)) return "needs a result of float16 or bfloat16";
  if (args->values_scale && args->values_scale_count != 1)
    return "needs one factor for all blocks, since 16-bit floats do not have all of their products with more";
  if ((args->values_scale && e->row_scale.data) || (args->x_scale && e->col_scale.data))
    return "needs factors of the operands or scales of rows and columns, not both";
  return NULL;
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
  const double elements =
      (double)value_elements(&args->a->view) + (double)args->x.rows * (double)args->x.cols;
  const double bytes = 3 * elements;
  widen_way way;
  bsrg_error error;
  if (choose(args, chip, bsrg_says_why(c), &way, &error) != BSRG_OK) {
    c->seconds = INFINITY;
    bsrg_set_reason(c, "as float16 or bfloat16: %.150s", error.message);
    return;
  }
  c->seconds = way.product.seconds + 2 * BSRG_LAUNCH_SECONDS + bytes / (chip->hbm_bytes_per_s * copy_share);
  c->mma_flops = way.product.mma_flops;
  c->l2_bytes = way.product.l2_bytes;
  c->hbm_bytes = way.product.hbm_bytes + bytes;
  bsrg_set_reason(c, "as %s on copies of %s; %.100s", bsrg_family_name(way.ops->family),
                  bsrg_dtype_name(way.args.dtype), way.product.reason);
}

/* ---- launch ------------------------------------------------------------------------------------- */

/* Of four kernels that follow one another in kernels.def: of e4m3 and e5m2, each to float16 and bfloat16. */
static bsrg_kernel_id kernel_of(const bsrg_matmul_args *args, bsrg_kernel_id e4m3_f16) {
  const int pair = (args->dtype == BSRG_F8_E5M2 ? 2 : 0) + (args->out_dtype == BSRG_BF16 ? 1 : 0);
  return (bsrg_kernel_id)((int)e4m3_f16 + pair);
}

static bsrg_status copy(bsrg_widen_params p, const bsrg_matmul_args *args, bsrg_gpu gpu, bsrg_error *error) {
  const int64_t most_y = 65535; /* of a grid; the kernel walks over the rest */
  const int64_t pieces = bsrg_ceil_div(p.cols, BSRG_WIDEN_ELEMENTS);
  while (p.thread_bits < BSRG_WIDEN_THREAD_BITS && (int64_t)1 << p.thread_bits < pieces) ++p.thread_bits;
  const int64_t rows = (int64_t)BSRG_WIDEN_ROWS << (BSRG_WIDEN_THREAD_BITS - p.thread_bits);
  p.vectors = p.source_col_stride == 1 &&
              (p.source_row_stride | (int64_t)(uintptr_t)p.source) % BSRG_WIDEN_ELEMENTS == 0;
  return bsrg_launch(gpu.api, gpu.device, kernel_of(args, BSRG_KERNEL_WIDEN_E4M3_F16),
                     bsrg_ceil_div(pieces, (int64_t)1 << p.thread_bits),
                     bsrg_min(bsrg_ceil_div(p.rows, rows), most_y), (CUstream)args->stream, &p, error);
}

static bsrg_status copy_values(const bsrg_matmul_args *args, const void *target, bsrg_gpu gpu,
                               bsrg_error *error) {
  const bsrg_structure_view *v = &args->a->view;
  /* Seen as rows of as many elements as a CTA has side by side. */
  const int64_t count = v->nnzb * v->block_height * v->block_width;
  const int64_t cols = (int64_t)BSRG_WIDEN_ELEMENTS << BSRG_WIDEN_THREAD_BITS;
  const int64_t rows = bsrg_ceil_div(count, cols);
  const bsrg_widen_params p = {.source = args->values,
                               .target = (void *)(uintptr_t)target,
                               .rows = rows,
                               .cols = cols,
                               .last_cols = count - (rows - 1) * cols,
                               .source_row_stride = cols,
                               .source_col_stride = 1,
                               .target_row_stride = cols};
  return copy(p, args, gpu, error);
}

/* X by columns to rows. */
static bsrg_status turn_x(const bsrg_matmul_args *args, const bsrg_dense *target, bsrg_gpu gpu,
                          bsrg_error *error) {
  const bsrg_dense *x = &args->x;
  bsrg_turn_params p = {.source = x->data,
                        .target = target->data,
                        .rows = x->cols,
                        .cols = x->rows,
                        .source_row_stride = x->col_stride,
                        .source_col_stride = x->row_stride,
                        .target_row_stride = target->row_stride};
  bsrg_turn_split(&p, 1);
  return bsrg_launch(gpu.api, gpu.device, kernel_of(args, BSRG_KERNEL_TURN_E4M3_F16),
                     p.row_tiles * p.col_tiles, 1, (CUstream)args->stream, &p, error);
}

static bsrg_status copy_x(const bsrg_matmul_args *args, const bsrg_dense *target, bsrg_gpu gpu,
                          bsrg_error *error) {
  bsrg_dense from = args->x, to = *target;
  if (bsrg_dense_is_by_columns(&from)) {
    if (to.row_stride != 1) return turn_x(args, target, gpu, error);
    bsrg_dense_turn(&from);
    bsrg_dense_turn(&to);
  }
  const bsrg_widen_params p = {.source = from.data,
                               .target = to.data,
                               .rows = from.rows,
                               .cols = from.cols,
                               .last_cols = from.cols,
                               .source_row_stride = from.row_stride,
                               .source_col_stride = from.col_stride,
                               .target_row_stride = to.row_stride};
  return copy(p, args, gpu, error);
}

static bsrg_status launch(const bsrg_matmul_args *args, const void *plan, bsrg_gpu gpu, bsrg_error *error) {
  (void)plan;
  const CUstream stream = (CUstream)args->stream;
  const size_t value_bytes = 2 * (size_t)value_elements(&args->a->view);
  const bsrg_chip chip = bsrg_chip_of(gpu);
  widen_way way;
  bsrg_status status = choose(args, &chip, false, &way, error);
  if (status != BSRG_OK) return status;
  CUdeviceptr scratch;
  status = bsrg_scratch_alloc(gpu.api, gpu.device, value_bytes + 2 * (size_t)x_elements(&way.args.x), stream,
                              &scratch, error);
  if (status != BSRG_OK) return status;
  way.args.values = (const void *)(uintptr_t)scratch;
  way.args.x.data = (void *)(uintptr_t)(scratch + value_bytes);
  status = copy_values(args, way.args.values, gpu, error);
  if (status == BSRG_OK) status = copy_x(args, &way.args.x, gpu, error);
  if (status == BSRG_OK) status = bsrg_whole_launch(way.ops, &way.args, way.plan, gpu, error);
  return bsrg_scratch_free(gpu.api, scratch, stream, status, error);
}

const bsrg_family_ops bsrg_widen_family = {.family = BSRG_WIDEN,
                                           .obstacle = obstacle,
                                           .layout_obstacle = layout_obstacle,
                                           .make_plan = make_plan,
                                           .free_plan = free,
                                           .predict = predict,
                                           .clips_x = true,
                                           .clips_y = true,
                                           .launch = launch};
