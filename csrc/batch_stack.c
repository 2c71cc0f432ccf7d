/* Matrices of one pattern with values of their own, and dense ones that lie below one another, as one product: of a matrix that has
 * the former along its diagonal, or below one another where there is one dense matrix for all. */
#include "batch.h"

/* Whether the next matrix of a batch, so far away, begins where the rows of one would go on. */
static bool continues_below(const bsrg_dense *matrix, int64_t stride) {
  int64_t next;
  return bsrg_mul_ok(matrix->rows, matrix->row_stride, &next) && next == stride;
}

/* Where there is no dense matrix for all, these lie below one another. */
static bool is_diagonal(const bsrg_matmul_args *args) {
  const bsrg_structure_view a = bsrg_structure_get(args->a);
  return a.cols % a.block_width == 0 && continues_below(&args->x, args->batch.x_strides[0]);
}

/* Vectors along the rows would begin anew with each matrix, and factors of blocks are those of one. */
bool bsrg_batch_can_stack(const bsrg_matmul_args *args) {
  const bsrg_structure_view a = bsrg_structure_get(args->a);
  const bsrg_batch *batch = &args->batch;
  const bsrg_epilogue *e = &args->epilogue;
  return args->a->dynamic == NULL && a.nnzb > 0 && a.rows % a.block_height == 0 &&
         batch->values_strides[0] == a.nnzb * a.block_height * a.block_width && !e->row_scale.data &&
         !e->row_bias.data && args->values_scale_count <= 1 &&
         continues_below(&args->y, batch->y_strides[0]) &&
         (args->beta == 0 || continues_below(&args->c, batch->c_strides[0])) &&
         (is_diagonal(args) || batch->x_strides[0] == 0);
}

/* By powers of two: patterns of these are few, whatever the numbers of matrices, and which products came before makes no
 * difference. */
int64_t bsrg_batch_stack(const bsrg_matmul_args *args, int64_t first, bsrg_matmul_args *stacked) {
  const bool diagonal = is_diagonal(args);
  int64_t size = 1;
  while (size <= (args->batch.shape[0] - first) / 2) size *= 2;
  *stacked = bsrg_batch_at(args, &first);
  for (; size > 1; size /= 2) {
    bsrg_structure *a = bsrg_structure_stacked(args->a, size, diagonal);
    if (a == NULL) continue;
    stacked->a = a;
    if (diagonal) stacked->x.rows *= size;
    stacked->y.rows *= size;
    stacked->c.rows *= size;
    break;
  }
  return size;
}
