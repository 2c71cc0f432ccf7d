/* What a batch of products is as one, with the columns of all its dense matrices side by side. */
#include "batch.h"
#include "dense.h"
#include "edges.h"

bsrg_joined bsrg_batch_join(const bsrg_matmul_args *args) {
  const bsrg_batch *batch = &args->batch;
  const int64_t count = batch->shape[0], columns = count * args->x.cols;
  const int64_t size = (int64_t)bsrg_dtype_size(args->dtype),
                out_size = (int64_t)bsrg_dtype_size(bsrg_out_dtype(args));
  bsrg_joined all = {.args = *args, .count = count};
  all.args.batch.ndim = 0;
  all.copy_x = !bsrg_batch_continues(&args->x, batch->x_strides[0]);
  all.copy_y = !bsrg_batch_continues(&args->y, batch->y_strides[0]);
  /* C is copied to where Y goes; where Y is not copied, C may not be at the same place. */
  all.copy_c = args->beta != 0 && (all.copy_y || !bsrg_batch_continues(&args->c, batch->c_strides[0]));
  const bool in_columns = !all.copy_x   ? bsrg_dense_is_by_columns(&args->x)
                          : !all.copy_y ? bsrg_dense_is_by_columns(&args->y)
                                        : false;
  if (all.copy_x)
    all.args.x = bsrg_dense_of_lines(args->x.rows, columns, in_columns, size);
  else
    bsrg_batch_extend(&all.args.x, count, batch->x_strides[0]);
  if (all.copy_y)
    all.args.y = bsrg_dense_of_lines(args->y.rows, columns, in_columns, out_size);
  else
    bsrg_batch_extend(&all.args.y, count, batch->y_strides[0]);
  all.args.y_padded = all.copy_y || args->y_padded;
  if (all.copy_c)
    all.args.c = all.args.y;
  else if (args->beta != 0)
    bsrg_batch_extend(&all.args.c, count, batch->c_strides[0]);
  return all;
}

bool bsrg_batch_can_join(const bsrg_matmul_args *args) {
  const bsrg_epilogue *e = &args->epilogue;
  int64_t columns, elements;
  const bool counts = bsrg_mul_ok(args->batch.shape[0], args->x.cols, &columns) && columns <= INT32_MAX &&
                      bsrg_mul_ok(columns, bsrg_max(args->x.rows, args->y.rows), &elements) &&
                      elements < (int64_t)1 << 56;
  return args->batch.shape[0] > 1 && args->batch.values_strides[0] == 0 && !e->col_scale.data &&
         !e->col_bias.data && counts;
}

bsrg_tensor bsrg_batch_tensor(const bsrg_dense *one, int64_t count, int64_t stride) {
  return (bsrg_tensor){one->data, 1,      count,           one->rows,      one->cols,
                       0,         stride, one->row_stride, one->col_stride};
}

bsrg_tensor bsrg_joined_tensor(const bsrg_dense *all, int64_t count, bool below) {
  const int64_t rows = below ? all->rows / count : all->rows;
  const int64_t columns = below ? all->cols : all->cols / count;
  return (bsrg_tensor){.data = all->data,
                       .batch = 1,
                       .heads = count,
                       .rows = rows,
                       .size = columns,
                       .head_stride = below ? rows * all->row_stride : columns * all->col_stride,
                       .row_stride = all->row_stride,
                       .element_stride = all->col_stride};
}
