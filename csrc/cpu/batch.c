/* Products of one matrix with a batch of dense ones: joined where that takes less time than one after the other. */
#include "../batch.h"
#include "../edges.h"
#include "cpu.h"

/* In multiply-adds of vectors, as bsrg_cpu_product_cost: what a product takes besides, and an element that is copied. */
static const double product_cost = 4000, copy_cost = 1;

static double elements_copied(const bsrg_matmul_args *args, const bsrg_joined *joined) {
  const double columns = (double)joined->args.x.cols;
  return columns *
         (joined->copy_x * (double)args->x.rows + (joined->copy_c + joined->copy_y) * (double)args->y.rows);
}

static bool pays(const bsrg_matmul_args *args, const bsrg_joined *joined) {
  const double one = bsrg_cpu_product_cost(args) + product_cost;
  return bsrg_cpu_product_cost(&joined->args) + copy_cost * elements_copied(args, joined) <
         (double)args->batch.shape[0] * one;
}

static void copy(const bsrg_joined *joined, const bsrg_dense *one, int64_t stride, const bsrg_dense *all,
                 bool back, int64_t size) {
  const bsrg_tensor matrices = bsrg_batch_tensor(one, joined->count, stride),
                    copies = bsrg_joined_tensor(all, joined->count, joined->below);
  bsrg_cpu_copy(back ? &copies : &matrices, back ? &matrices : &copies, size);
}

static bsrg_status multiply_joined(const bsrg_matmul_args *args, bsrg_joined *joined, bsrg_error *error) {
  const bsrg_batch *batch = &args->batch;
  const int64_t size = (int64_t)bsrg_dtype_size(args->dtype),
                out_size = (int64_t)bsrg_dtype_size(bsrg_out_dtype(args));
  bsrg_matmul_args *on = &joined->args;
  const size_t x_bytes = joined->copy_x ? bsrg_lines_bytes(&on->x, size) : 0,
               y_bytes = joined->copy_y ? bsrg_lines_bytes(&on->y, out_size) : 0;
  char *memory = bsrg_scratch_take(x_bytes + y_bytes);
  if (!memory)
    return bsrg_fail(error, BSRG_ERR_MEMORY, "no memory for %zu bytes of copies", x_bytes + y_bytes);
  if (joined->copy_x) {
    on->x.data = memory;
    copy(joined, &args->x, batch->x_strides[0], &on->x, false, size);
  }
  if (joined->copy_y) on->y.data = memory + x_bytes;
  if (joined->copy_c) {
    on->c.data = on->y.data;
    copy(joined, &args->c, batch->c_strides[0], &on->c, false, out_size);
  }
  const bsrg_status status = bsrg_cpu_multiply(on, error);
  if (status == BSRG_OK && joined->copy_y)
    copy(joined, &args->y, batch->y_strides[0], &on->y, true, out_size);
  bsrg_scratch_give(memory);
  return status;
}

static bsrg_status one_by_one(const bsrg_matmul_args *args, bsrg_error *error) {
  int64_t position[BSRG_BATCH_DIMS] = {0};
  bsrg_status status;
  do {
    const bsrg_matmul_args one = bsrg_batch_at(args, position);
    status = bsrg_cpu_multiply(&one, error);
  } while (status == BSRG_OK && bsrg_batch_next(args->batch.ndim, args->batch.shape, position));
  return status;
}

bsrg_status bsrg_cpu_matmul(const bsrg_matmul_args *args, bsrg_error *error) {
  if (args->batch.ndim == 0) return bsrg_cpu_multiply(args, error);
  if (bsrg_batch_can_join(args)) {
    bsrg_joined joined = bsrg_batch_join(args);
    if (pays(args, &joined)) {
      const bsrg_status status = multiply_joined(args, &joined, error);
      if (status != BSRG_ERR_MEMORY) return status;
    }
  }
  return one_by_one(args, error);
}
