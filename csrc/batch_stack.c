/* Matrices of one pattern with values of their own, and dense ones that lie below one another, as one product: of a matrix that has
 * the former along its diagonal, or below one another where there is one dense matrix for all. */
#include "batch.h"

/* Whether the next matrix of a batch, so far away, begins where the rows of one would go on. */
static bool continues_below(const bsrg_dense *matrix, int64_t stride) {
  int64_t next;
  return bsrg_mul_ok(matrix->rows, matrix->row_stride, &next) && next == stride;
}

/* Vectors along the rows would begin anew with each matrix, and factors of blocks are those of one. */
static bool can_stack(const bsrg_matmul_args *args, const bsrg_structure_view *a) {
  const bsrg_batch *batch = &args->batch;
  const bsrg_epilogue *e = &args->epilogue;
  return args->a->dynamic == NULL && a->nnzb > 0 && a->rows % a->block_height == 0 &&
         batch->values_strides[0] == a->nnzb * a->block_height * a->block_width && !e->row_scale.data &&
         !e->row_bias.data && args->values_scale_count <= 1 &&
         continues_below(&args->y, batch->y_strides[0]) &&
         (args->beta == 0 || continues_below(&args->c, batch->c_strides[0]));
}

bool bsrg_batch_stack(const bsrg_matmul_args *args, bsrg_matmul_args *stacked) {
  const bsrg_structure_view a = bsrg_structure_get(args->a);
  const bsrg_batch *batch = &args->batch;
  const int64_t count = batch->shape[0];
  const bool diagonal = a.cols % a.block_width == 0 && continues_below(&args->x, batch->x_strides[0]);
  if (!can_stack(args, &a) || (!diagonal && batch->x_strides[0] != 0)) return false;
  *stacked = *args;
  stacked->batch.ndim = 0;
  stacked->a = bsrg_structure_stacked(args->a, count, diagonal);
  if (stacked->a == NULL) return false;
  if (diagonal) stacked->x.rows *= count;
  stacked->y.rows *= count;
  stacked->c.rows *= count;
  return true;
}
