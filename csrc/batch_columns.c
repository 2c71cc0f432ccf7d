/* Batches of products on a GPU: stacked or joined where that takes less time than one after the other. */
#include "batch.h"
#include "copy.h"
#include "edges.h"

#include <math.h>

/* The share of the memory's rate that copies are taken to reach. */
static const double copy_share = 0.5;

static double copy_seconds(const bsrg_joined *all, const bsrg_chip *chip) {
  const bsrg_matmul_args *args = &all->args;
  const int copies_of_y = all->copy_y + all->copy_c;
  const double x_bytes =
      all->copy_x ? (double)args->x.rows * (double)args->x.cols * (double)bsrg_dtype_size(args->dtype) : 0;
  const double y_bytes = copies_of_y * (double)args->y.rows * (double)args->y.cols *
                         (double)bsrg_dtype_size(bsrg_out_dtype(args));
  return (all->copy_x + copies_of_y) * BSRG_LAUNCH_SECONDS +
         2 * (x_bytes + y_bytes) / (chip->hbm_bytes_per_s * copy_share);
}

/* Copies have rows for columns where these are what lies together. */
static bsrg_tensor turned(const bsrg_tensor *t) {
  return (bsrg_tensor){t->data,         t->batch,       t->heads,          t->size,      t->rows,
                       t->batch_stride, t->head_stride, t->element_stride, t->row_stride};
}

bsrg_status bsrg_batch_copy(const bsrg_tensor *matrices, const bsrg_tensor *joined, bool back, int64_t size,
                            bsrg_gpu gpu, void *stream, bsrg_error *error) {
  bsrg_tensor a = *matrices, b = *joined;
  if (b.element_stride != 1) {
    a = turned(&a);
    b = turned(&b);
  }
  return bsrg_copy_tensor(back ? &b : &a, back ? &a : &b, size, gpu, (CUstream)stream, error);
}

/* Infinite where no kernel can compute it. */
static double product_seconds(const bsrg_matmul_args *args, const bsrg_chip *chip) {
  const bsrg_family_ops *ops;
  const void *plan;
  bsrg_candidate candidate;
  return bsrg_choose_candidate(args, chip, false, &ops, &plan, &candidate, NULL) == BSRG_OK
             ? candidate.seconds
             : INFINITY;
}

/* Of all, one after the other. */
static double seconds_one_by_one(const bsrg_matmul_args *args, const bsrg_chip *chip) {
  bsrg_matmul_args one = *args;
  one.batch.ndim = 0;
  return (double)args->batch.shape[0] * product_seconds(&one, chip);
}

static double seconds_joined(const bsrg_joined *all, const bsrg_chip *chip) {
  return product_seconds(&all->args, chip) + copy_seconds(all, chip);
}

static double seconds_stacked(const bsrg_matmul_args *args, const bsrg_chip *chip) {
  double seconds = 0;
  for (int64_t first = 0; first < args->batch.shape[0];) {
    const bsrg_joined stack = bsrg_batch_stack(args, first);
    seconds += seconds_joined(&stack, chip);
    first += stack.count;
  }
  return seconds;
}

/* ---- launch ------------------------------------------------------------------------------------- */

static bsrg_status one_by_one(const bsrg_matmul_args *args, bsrg_gpu gpu, bsrg_multiply multiply,
                              bsrg_error *error) {
  int64_t position[BSRG_BATCH_DIMS] = {0};
  bsrg_status status;
  do {
    const bsrg_matmul_args one = bsrg_batch_at(args, position);
    status = multiply(&one, gpu, error);
  } while (status == BSRG_OK && bsrg_batch_next(args->batch.ndim, args->batch.shape, position));
  return status;
}

static bsrg_status multiply_copies(const bsrg_matmul_args *args, const bsrg_joined *all, bsrg_gpu gpu,
                                   bsrg_multiply multiply, bsrg_error *error) {
  const bsrg_batch *batch = &args->batch;
  const int64_t size = (int64_t)bsrg_dtype_size(args->dtype),
                out_size = (int64_t)bsrg_dtype_size(bsrg_out_dtype(args));
  bsrg_status status = BSRG_OK;
  if (all->copy_x) {
    const bsrg_tensor x = bsrg_batch_tensor(&args->x, all->count, batch->x_strides[0]),
                      copy = bsrg_joined_tensor(&all->args.x, all->count, all->below);
    status = bsrg_batch_copy(&x, &copy, false, size, gpu, args->stream, error);
  }
  const bsrg_tensor y = bsrg_batch_tensor(&args->y, all->count, batch->y_strides[0]),
                    y_copy = bsrg_joined_tensor(&all->args.y, all->count, all->below);
  if (status == BSRG_OK && all->copy_c) {
    const bsrg_tensor c = bsrg_batch_tensor(&args->c, all->count, batch->c_strides[0]);
    status = bsrg_batch_copy(&c, &y_copy, false, out_size, gpu, args->stream, error);
  }
  if (status == BSRG_OK) status = multiply(&all->args, gpu, error);
  if (status == BSRG_OK && all->copy_y)
    status = bsrg_batch_copy(&y, &y_copy, true, out_size, gpu, args->stream, error);
  return status;
}

/* The matrices of args, all of which are joined. */
static bsrg_status multiply_joined(const bsrg_matmul_args *args, bsrg_joined *all, bsrg_gpu gpu,
                                   bsrg_multiply multiply, bsrg_error *error) {
  if (!all->copy_x && !all->copy_c && !all->copy_y) return multiply(&all->args, gpu, error);
  const CUstream stream = (CUstream)args->stream;
  bsrg_matmul_args *one = &all->args;
  const size_t x_bytes = all->copy_x ? bsrg_lines_bytes(&one->x, (int64_t)bsrg_dtype_size(args->dtype)) : 0;
  /* C alone is copied to where Y is. */
  const size_t y_bytes =
      all->copy_y ? bsrg_lines_bytes(&one->y, (int64_t)bsrg_dtype_size(bsrg_out_dtype(args))) : 0;
  CUdeviceptr scratch;
  bsrg_status status = bsrg_scratch_alloc(gpu.api, gpu.device, x_bytes + y_bytes, stream, &scratch, error);
  if (status == BSRG_ERR_MEMORY) return one_by_one(args, gpu, multiply, error);
  if (status != BSRG_OK) return status;
  if (all->copy_x) one->x.data = (void *)(uintptr_t)scratch;
  if (all->copy_y) one->y.data = (void *)(uintptr_t)(scratch + x_bytes);
  if (all->copy_c) one->c.data = one->y.data;
  status = multiply_copies(args, all, gpu, multiply, error);
  return bsrg_scratch_free(gpu.api, scratch, stream, status, error);
}

static bsrg_status multiply_stacked(const bsrg_matmul_args *args, bsrg_gpu gpu, bsrg_multiply multiply,
                                    bsrg_error *error) {
  bsrg_status status = BSRG_OK;
  for (int64_t first = 0; status == BSRG_OK && first < args->batch.shape[0];) {
    bsrg_joined stack = bsrg_batch_stack(args, first);
    const bsrg_matmul_args part = bsrg_batch_part(args, first, stack.count);
    status = multiply_joined(&part, &stack, gpu, multiply, error);
    first += stack.count;
  }
  return status;
}

bsrg_status bsrg_batch_multiply(const bsrg_matmul_args *args, bsrg_gpu gpu, bsrg_multiply multiply,
                                bsrg_error *error) {
  const bsrg_chip chip = bsrg_chip_of(gpu);
  if (bsrg_batch_can_stack(args) && seconds_stacked(args, &chip) < seconds_one_by_one(args, &chip))
    return multiply_stacked(args, gpu, multiply, error);
  if (bsrg_batch_can_join(args)) {
    bsrg_joined all = bsrg_batch_join(args);
    if (seconds_joined(&all, &chip) < seconds_one_by_one(args, &chip))
      return multiply_joined(args, &all, gpu, multiply, error);
  }
  return one_by_one(args, gpu, multiply, error);
}
