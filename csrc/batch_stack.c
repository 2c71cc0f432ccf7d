/* Matrices of one pattern with values of their own, and dense ones that lie below one another or are copied so, as one product: of a matrix that has
 * the former along its diagonal, or below one another where there is one dense matrix for all. */
#include "batch.h"
#include "dense.h"
#include "edges.h"

/* A transposed view has no rows of values for one dense matrix. */
static bool is_diagonal(const bsrg_matmul_args *args) {
  return args->batch.x_strides[0] != 0 || bsrg_structure_get(args->a).order != NULL;
}

static bool can_copy(const bsrg_dense *d, int64_t count) {
  int64_t rows, elements;
  return bsrg_mul_ok(count, d->rows, &rows) && bsrg_mul_ok(rows, d->cols, &elements) &&
         elements < (int64_t)1 << 56;
}

/* Vectors along the rows would begin anew with each matrix, and factors of blocks are those of one. */
bool bsrg_batch_can_stack(const bsrg_matmul_args *args) {
  const bsrg_structure_view a = bsrg_structure_get(args->a);
  const bsrg_batch *batch = &args->batch;
  const bsrg_epilogue *e = &args->epilogue;
  return args->a->dynamic == NULL && a.nnzb > 0 && a.rows % a.block_height == 0 &&
         (a.cols % a.block_width == 0 || !is_diagonal(args)) &&
         batch->values_strides[0] == a.nnzb * a.block_height * a.block_width && !e->row_scale.data &&
         !e->row_bias.data && args->values_scale_count <= 1 && can_copy(&args->x, batch->shape[0]) &&
         can_copy(&args->y, batch->shape[0]);
}

/* `count` of them below one another: the same memory or, in a copy in the same order, none yet. */
static void extend(bsrg_dense *matrix, int64_t count, bool copied, bsrg_dtype dtype) {
  const bool by_columns = bsrg_dense_is_by_columns(matrix);
  if (copied)
    *matrix =
        bsrg_dense_of_lines(count * matrix->rows, matrix->cols, by_columns, (int64_t)bsrg_dtype_size(dtype));
  else
    matrix->rows *= count;
}

bsrg_joined bsrg_batch_stack(const bsrg_matmul_args *args, int64_t first) {
  const bsrg_batch *batch = &args->batch;
  const bool diagonal = is_diagonal(args);
  bsrg_joined all = {.args = bsrg_batch_at(args, &first), .below = true};
  all.args.a = bsrg_structure_stack(args->a, batch->shape[0] - first, diagonal, &all.count);
  if (all.count == 1) return all;
  all.copy_x = diagonal && !bsrg_batch_follows(args->x.rows, args->x.row_stride, batch->x_strides[0]);
  all.copy_y = !bsrg_batch_follows(args->y.rows, args->y.row_stride, batch->y_strides[0]);
  /* Where Y is not copied, C may not be at the same place. */
  all.copy_c = args->beta != 0 &&
               (all.copy_y || !bsrg_batch_follows(args->c.rows, args->c.row_stride, batch->c_strides[0]));
  if (diagonal) extend(&all.args.x, all.count, all.copy_x, args->dtype);
  extend(&all.args.y, all.count, all.copy_y, bsrg_out_dtype(args));
  all.args.y_padded = all.copy_y || args->y_padded;
  if (all.copy_c)
    all.args.c = all.args.y;
  else
    all.args.c.rows *= all.count;
  return all;
}
