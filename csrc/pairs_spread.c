/* Products of two block-sparse matrices as products of the first with a dense one, for which the second is written out in
 * scratch memory. Of blocks that Hopper's kernels for pairs do not take, where many meet. */
#include "dense.h"
#include "edges.h"
#include "pairs.h"
#include "portable.h"

#include <stdio.h>

/* Of two transposed views the product is the transposed one of what they are views of: its blocks are taken and written out as they
 * are stored, and Y^T is copied where kernels do not store it. */
static bsrg_matmul_sparse_args as_stored(const bsrg_matmul_sparse_args *args) {
  bsrg_matmul_sparse_args stored = *args;
  if (!args->a->view.order || !args->b->view.order) return stored;
  stored.a = args->b->original;
  stored.b = args->a->original;
  stored.a_values = args->b_values;
  stored.b_values = args->a_values;
  bsrg_dense_turn(&stored.c);
  bsrg_dense_turn(&stored.y);
  return stored;
}

const char *bsrg_pairs_spread_obstacle(const bsrg_matmul_sparse_args *given, const bsrg_gpu_info *gpu) {
  const bsrg_matmul_sparse_args args = as_stored(given);
  const bsrg_structure_view *b = &args.b->view;
  int64_t elements;
  if (gpu->sm_arch < 80) return "needs a GPU of compute capability 8.0 or later";
  if (b->block_rows > INT32_MAX || b->block_height > INT32_MAX || b->block_width > INT32_MAX)
    return "needs fewer than 2^31 block rows of b, and sides of its blocks";
  return bsrg_mul_ok(b->rows, b->cols, &elements) && elements < (int64_t)1 << 56
             ? NULL
             : "needs fewer than 2^56 elements of b as a dense matrix";
}

/* B, the data of which is missing: rows begin at multiples of 128 bytes. */
static bsrg_dense dense_b(const bsrg_matmul_sparse_args *args) {
  const bsrg_structure_view *b = &args->b->view;
  const int64_t item = (int64_t)bsrg_dtype_size(args->dtype);
  return (bsrg_dense){NULL, b->rows, b->cols, bsrg_ceil_div(b->cols * item, 128) * 128 / item, 1};
}

static double dense_bytes(const bsrg_matmul_sparse_args *args, const bsrg_dense *b) {
  return (double)bsrg_dtype_size(args->dtype) * (double)b->rows * (double)b->row_stride;
}

bsrg_matmul_args bsrg_pairs_spread_product(const bsrg_matmul_sparse_args *args, const bsrg_dense *b) {
  return (bsrg_matmul_args){.a = args->a,
                            .values = args->a_values,
                            .dtype = args->dtype,
                            .x = *b,
                            .c = args->c,
                            .y = args->y,
                            .alpha = args->alpha,
                            .beta = args->beta,
                            .device = args->device,
                            .stream = args->stream};
}

bool bsrg_pairs_spread_has_room(const bsrg_matmul_sparse_args *given) {
  const bsrg_matmul_sparse_args args = as_stored(given);
  const bsrg_dense b = dense_b(&args);
  return dense_bytes(&args, &b) <= 4 * bsrg_pairs_bytes(&args);
}

double bsrg_pairs_spread_copy_seconds(const bsrg_matmul_sparse_args *given, const bsrg_chip *chip) {
  const bsrg_matmul_sparse_args args = as_stored(given);
  const bsrg_structure_view *v = &args.b->view;
  const bsrg_dense b = dense_b(&args);
  const double stored = (double)v->nnzb * (double)(v->block_height * v->block_width);
  const double bytes = dense_bytes(&args, &b) + 2 * (double)bsrg_dtype_size(args.dtype) * stored;
  return 2 * BSRG_LAUNCH_SECONDS + bytes / chip->hbm_bytes_per_s;
}

bsrg_status bsrg_pairs_spread_predict(const bsrg_matmul_sparse_args *given, const bsrg_chip *chip,
                                      bsrg_candidate *c, bsrg_error *error) {
  const bsrg_matmul_sparse_args args = as_stored(given);
  const bsrg_dense b = dense_b(&args);
  const bsrg_matmul_args product = bsrg_pairs_spread_product(&args, &b);
  const bsrg_family_ops *ops;
  const void *plan;
  bsrg_candidate best;
  bsrg_error why;
  const bsrg_status status = bsrg_choose_candidate(&product, chip, true, &ops, &plan, &best, &why);
  c->supported = status == BSRG_OK;
  if (status == BSRG_ERR_VALUE) {
    snprintf(c->reason, sizeof(c->reason), "with b as a dense matrix: %.100s", why.message);
    return BSRG_OK;
  }
  if (status != BSRG_OK) return bsrg_fail(error, status, "%s", why.message);
  c->seconds = best.seconds + bsrg_pairs_spread_copy_seconds(given, chip);
  c->mma_flops = best.mma_flops;
  c->l2_bytes = best.l2_bytes;
  c->hbm_bytes = best.hbm_bytes + dense_bytes(&args, &b);
  snprintf(c->reason, sizeof(c->reason), "as %s with b as a dense matrix; %.100s",
           bsrg_family_name(ops->family), best.reason);
  return BSRG_OK;
}

static bsrg_status spread(const bsrg_matmul_sparse_args *args, const bsrg_dense *target, bsrg_gpu gpu,
                          bsrg_error *error) {
  const bsrg_structure_view *v = &args->b->view;
  const int64_t item = (int64_t)bsrg_dtype_size(args->dtype);
  const CUstream stream = (CUstream)args->stream;
  bsrg_portable_uploads uploads;
  bsrg_status status = bsrg_portable_upload(args->b, gpu, &uploads, error);
  if (status != BSRG_OK) return status;
  const CUdeviceptr memory = (CUdeviceptr)(uintptr_t)target->data;
  const size_t words = (size_t)(target->rows * target->row_stride * item / 4);
  status = bsrg_cuda_check(gpu.api, gpu.api->set_32(memory, 0, words, stream), "cuMemsetD32Async", error);
  if (status != BSRG_OK || v->nnzb == 0) return status;
  const bool turned = v->order != NULL;
  const bool chunks = !turned && v->block_width * item % 16 == 0 && v->cols * item % 16 == 0 &&
                      (uintptr_t)args->b_values % 16 == 0;
  const int64_t of_chunk = chunks ? 16 / item : 1;
  bsrg_spread_params p = {.values = args->b_values,
                          .indptr = uploads.indptr,
                          .order = uploads.order,
                          .indices = uploads.indices,
                          .target = target->data,
                          .rows = v->rows,
                          .cols = v->cols / of_chunk,
                          .target_row_stride = target->row_stride / of_chunk,
                          .row_stride = turned ? 1 : v->block_width / of_chunk,
                          .col_stride = turned ? v->block_height : 1,
                          .block_height = (int32_t)v->block_height,
                          .block_width = (int32_t)(v->block_width / of_chunk)};
  p.part_rows = (int32_t)bsrg_min(v->block_height, bsrg_max(1, BSRG_SPREAD_PART / p.block_width));
  p.parts = (int32_t)bsrg_ceil_div(v->block_height, p.part_rows);
  const bsrg_kernel_id kernel = chunks      ? BSRG_KERNEL_SPREAD_16
                                : item == 2 ? BSRG_KERNEL_SPREAD_2
                                : item == 4 ? BSRG_KERNEL_SPREAD_4
                                            : BSRG_KERNEL_SPREAD_8;
  const int64_t warps = BSRG_SPREAD_THREADS / 32, parts = v->longest_row * p.parts;
  const int64_t ctas = bsrg_max(1, bsrg_min(bsrg_ceil_div(parts, warps), BSRG_SPREAD_MOST_CTAS));
  return bsrg_launch(gpu.api, gpu.device, kernel, v->block_rows, ctas, stream, &p, error);
}

bsrg_status bsrg_pairs_spread_launch(const bsrg_matmul_sparse_args *given, bsrg_gpu gpu, bsrg_error *error) {
  const bsrg_chip chip = bsrg_chip_of(gpu);
  const bsrg_matmul_sparse_args args = as_stored(given);
  bsrg_dense b = dense_b(&args);
  bsrg_matmul_args product = bsrg_pairs_spread_product(&args, &b);
  const bsrg_family_ops *ops;
  const void *plan;
  CUdeviceptr scratch;
  bsrg_status status = bsrg_choose_family(&product, &chip, &ops, &plan, error);
  if (status != BSRG_OK) return status;
  status = bsrg_scratch_alloc(gpu.api, gpu.device, (size_t)dense_bytes(&args, &b), (CUstream)args.stream,
                              &scratch, error);
  if (status != BSRG_OK) return status;
  product.x.data = b.data = (void *)(uintptr_t)scratch;
  status = spread(&args, &b, gpu, error);
  if (status == BSRG_OK) status = bsrg_whole_launch(ops, &product, plan, gpu, error);
  return bsrg_scratch_free(gpu.api, scratch, (CUstream)args.stream, status, error);
}
