/* Batches of products on a GPU: stacked or joined where that takes less time than one after the other. */
#include "batch.h"
#include "copy.h"
#include "edges.h"

#include <math.h>

/* The share of the memory's rate that copies are taken to reach. */
static const double copy_share = 0.5;

static double copy_seconds(const bsrg_matmul_args *args, const bsrg_joined *all, const bsrg_chip *chip) {
  const double columns = (double)args->batch.shape[0] * (double)args->x.cols;
  const double x_bytes = all->copy_x ? (double)args->x.rows * (double)bsrg_dtype_size(args->dtype) : 0;
  const double y_bytes =
      (all->copy_y + all->copy_c) * (double)args->y.rows * (double)bsrg_dtype_size(bsrg_out_dtype(args));
  return (all->copy_x + all->copy_y + all->copy_c) * BSRG_LAUNCH_SECONDS +
         2 * columns * (x_bytes + y_bytes) / (chip->hbm_bytes_per_s * copy_share);
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

static double seconds_stacked(const bsrg_matmul_args *args, const bsrg_chip *chip) {
  double seconds = 0;
  bsrg_matmul_args stacked;
  for (int64_t first = 0; first < args->batch.shape[0];) {
    first += bsrg_batch_stack(args, first, &stacked);
    seconds += product_seconds(&stacked, chip);
  }
  return seconds;
}

static bool pays(const bsrg_matmul_args *args, const bsrg_joined *all, const bsrg_chip *chip) {
  return product_seconds(&all->args, chip) + copy_seconds(args, all, chip) < seconds_one_by_one(args, chip);
}

/* ---- launch ------------------------------------------------------------------------------------- */

static bsrg_status multiply_copies(const bsrg_matmul_args *args, const bsrg_joined *all, bsrg_gpu gpu,
                                   bsrg_multiply multiply, bsrg_error *error) {
  const bsrg_batch *batch = &args->batch;
  const int64_t count = batch->shape[0], size = (int64_t)bsrg_dtype_size(args->dtype),
                out_size = (int64_t)bsrg_dtype_size(bsrg_out_dtype(args));
  const CUstream stream = (CUstream)args->stream;
  bsrg_status status = BSRG_OK;
  if (all->copy_x) {
    const bsrg_tensor from = bsrg_batch_tensor(&args->x, count, batch->x_strides[0]),
                      to = bsrg_joined_tensor(&all->args.x, count);
    status = bsrg_copy_tensor(&from, &to, size, gpu, stream, error);
  }
  const bsrg_tensor y = bsrg_batch_tensor(&args->y, count, batch->y_strides[0]),
                    y_copy = bsrg_joined_tensor(&all->args.y, count);
  if (status == BSRG_OK && all->copy_c) {
    const bsrg_tensor from = bsrg_batch_tensor(&args->c, count, batch->c_strides[0]);
    status = bsrg_copy_tensor(&from, &y_copy, out_size, gpu, stream, error);
  }
  if (status == BSRG_OK) status = multiply(&all->args, gpu, error);
  if (status == BSRG_OK && all->copy_y) status = bsrg_copy_tensor(&y_copy, &y, out_size, gpu, stream, error);
  return status;
}

static bsrg_status multiply_stacked(const bsrg_matmul_args *args, bsrg_gpu gpu, bsrg_multiply multiply,
                                    bsrg_error *error) {
  bsrg_status status = BSRG_OK;
  bsrg_matmul_args stacked;
  for (int64_t first = 0; status == BSRG_OK && first < args->batch.shape[0];) {
    first += bsrg_batch_stack(args, first, &stacked);
    status = multiply(&stacked, gpu, error);
  }
  return status;
}

static bsrg_status one_by_one(const bsrg_matmul_args *args, bsrg_gpu gpu, bsrg_multiply multiply,
                              bsrg_error *error) {
  int64_t position[BSRG_BATCH_DIMS] = {0};
  bsrg_status status;
  do {
    const bsrg_matmul_args one = bsrg_batch_at(args, position);
    status = multiply(&one, gpu, error);
  } while (status == BSRG_OK && bsrg_batch_next(&args->batch, position));
  return status;
}

bsrg_status bsrg_batch_multiply(const bsrg_matmul_args *args, bsrg_gpu gpu, bsrg_multiply multiply,
                                bsrg_error *error) {
  const bsrg_chip chip = bsrg_chip_of(gpu);
  if (bsrg_batch_can_stack(args) && seconds_stacked(args, &chip) < seconds_one_by_one(args, &chip))
    return multiply_stacked(args, gpu, multiply, error);
  if (!bsrg_batch_can_join(args)) return one_by_one(args, gpu, multiply, error);
  bsrg_joined all = bsrg_batch_join(args);
  if (!pays(args, &all, &chip)) return one_by_one(args, gpu, multiply, error);
  const size_t x_bytes =
      all.copy_x ? bsrg_lines_bytes(&all.args.x, (int64_t)bsrg_dtype_size(args->dtype)) : 0;
  const size_t y_bytes =
      all.copy_y ? bsrg_lines_bytes(&all.args.y, (int64_t)bsrg_dtype_size(bsrg_out_dtype(args))) : 0;
  CUdeviceptr scratch;
  bsrg_status status =
      bsrg_scratch_alloc(gpu.api, gpu.device, x_bytes + y_bytes, (CUstream)args->stream, &scratch, error);
  if (status == BSRG_ERR_MEMORY) return one_by_one(args, gpu, multiply, error);
  if (status != BSRG_OK) return status;
  if (all.copy_x) all.args.x.data = (void *)(uintptr_t)scratch;
  if (all.copy_y) all.args.y.data = (void *)(uintptr_t)(scratch + x_bytes);
  if (all.copy_c) all.args.c.data = all.args.y.data;
  status = multiply_copies(args, &all, gpu, multiply, error);
  return bsrg_scratch_free(gpu.api, scratch, (CUstream)args->stream, status, error);
}
