/* Products of two block-sparse matrices on a GPU: from a checked call to the kernels that compute it. */
#include "pairs.h"

#include "copy.h"
#include "dense.h"
#include "edges.h"

/* The fastest first. */
static const struct backend {
  bsrg_family family;
  const char *(*obstacle)(const bsrg_matmul_sparse_args *args, const bsrg_gpu_info *gpu);
  bsrg_status (*launch)(const bsrg_matmul_sparse_args *args, bsrg_gpu gpu, bsrg_error *error);
  bool (*takes_y)(const bsrg_dense *y); /* others are copied; NULL where it takes any */
  bool clips_y; /* writes nothing where Y ends before the last blocks do; C is read there always */
  bool clips_c; /* nor that */
} backends[] = {
    {BSRG_PAIRS, bsrg_pairs_hopper_obstacle, bsrg_pairs_hopper_launch, bsrg_pairs_hopper_takes, true, false},
    {BSRG_SPREAD, bsrg_pairs_spread_obstacle, bsrg_pairs_spread_launch, NULL, true, true},
    {BSRG_PORTABLE, bsrg_pairs_portable_obstacle, bsrg_pairs_portable_launch, NULL, false, false},
};
enum { BACKENDS = sizeof(backends) / sizeof(backends[0]) };

/* Y^T = alpha * B^T @ A^T + beta * C^T: views of transposes cost nothing. */
static bsrg_status turn(bsrg_matmul_sparse_args *args, bsrg_error *error) {
  bsrg_structure *a, *b;
  bsrg_status status = bsrg_structure_transposed(args->b, &a, error);
  if (status == BSRG_OK) status = bsrg_structure_transposed(args->a, &b, error);
  if (status != BSRG_OK) return status;
  const void *values = args->a_values;
  args->a = a;
  args->b = b;
  args->a_values = args->b_values;
  args->b_values = values;
  bsrg_dense_turn(&args->c);
  bsrg_dense_turn(&args->y);
  return BSRG_OK;
}

/* With copies of C and Y of whole blocks, where partial ones need them, or of Y alone, where its layout does. */
static bsrg_status launch_whole(const struct backend *backend, const bsrg_matmul_sparse_args *args,
                                bsrg_gpu gpu, bsrg_error *error) {
  const int64_t rows = bsrg_whole_rows(&args->a->view), cols = bsrg_whole_cols(&args->b->view);
  const int64_t size = (int64_t)bsrg_dtype_size(args->dtype);
  const bool partial = rows != args->y.rows || cols != args->y.cols;
  const bool copy_y = (partial && !backend->clips_y) || (backend->takes_y && !backend->takes_y(&args->y));
  const bool copy_c = partial && args->beta != 0 && !backend->clips_c;
  if (!copy_y && !copy_c) return backend->launch(args, gpu, error);
  const CUstream stream = (CUstream)args->stream;
  bsrg_dense whole = bsrg_dense_of_lines(rows, cols, false, size); /* which all backends take */
  CUdeviceptr scratch;
  bsrg_status status =
      bsrg_scratch_alloc(gpu.api, gpu.device, bsrg_lines_bytes(&whole, size), stream, &scratch, error);
  if (status != BSRG_OK) return status;
  whole.data = (void *)(uintptr_t)scratch;
  bsrg_matmul_sparse_args of_whole = *args;
  if (copy_c) of_whole.c = whole;
  if (copy_y) of_whole.y = whole;
  if (copy_c) status = bsrg_copy(&args->c, &whole, size, gpu, stream, error);
  if (status == BSRG_OK) status = backend->launch(&of_whole, gpu, error);
  if (status == BSRG_OK && copy_y) status = bsrg_copy(&whole, &args->y, size, gpu, stream, error);
  return bsrg_scratch_free(gpu.api, scratch, stream, status, error);
}

static bsrg_status choose(const bsrg_matmul_sparse_args *args, const bsrg_chip *chip,
                          const struct backend **chosen, bsrg_error *error) {
  const bsrg_gpu_info gpu = {.sm_arch = chip->sm_arch};
  bsrg_family family = args->family;
  if (family == BSRG_AUTO && !backends[0].obstacle(args, &gpu)) family = backends[0].family;
  if (family == BSRG_AUTO) {
    const bsrg_status status = bsrg_pairs_choose_other(args, chip, &family, error);
    if (status != BSRG_OK) return status;
  }
  for (int i = 0; i < BACKENDS; ++i)
    if (backends[i].family == family) *chosen = &backends[i];
  const char *obstacle = (*chosen)->obstacle(args, &gpu);
  if (obstacle == NULL) return BSRG_OK;
  return bsrg_fail(error, BSRG_ERR_VALUE, "family '%s' cannot compute this product on %s: it %s",
                   bsrg_family_name(args->family), chip->name, obstacle);
}

static bsrg_status answer(const bsrg_matmul_sparse_args *args, bsrg_error *error) {
  const bsrg_gpu_info info = bsrg_question_gpu(args->question);
  const struct backend *backend = NULL;
  bsrg_status status = bsrg_check_arch(&info, error);
  if (status == BSRG_OK) status = choose(args, args->question->chip, &backend, error);
  if (status == BSRG_OK) args->question->family = backend->family;
  return status;
}

static bsrg_status compute(const bsrg_matmul_sparse_args *args, bsrg_gpu gpu, bsrg_error *error) {
  const bsrg_chip chip = bsrg_chip_of(gpu);
  const struct backend *backend = NULL;
  bsrg_status status = bsrg_check_arch(&gpu.device->info, error);
  if (status == BSRG_OK) status = choose(args, &chip, &backend, error);
  if (status == BSRG_OK) status = launch_whole(backend, args, gpu, error);
  /* The portable kernels need less. Not where C is overwritten, of which a launch that failed half-way may have changed a part. */
  const bool repeatable = args->beta == 0 || args->c.data != args->y.data;
  const struct backend *const last = &backends[BACKENDS - 1];
  const bool again = args->family == BSRG_AUTO && backend && backend != last && repeatable &&
                     !last->obstacle(args, &gpu.device->info);
  return status == BSRG_ERR_MEMORY && again ? launch_whole(last, args, gpu, error) : status;
}

static bsrg_status multiply(const bsrg_matmul_sparse_args *args, bsrg_error *error) {
  const bsrg_cuda_api *api;
  bsrg_device_state *device;
  bool pushed;
  bsrg_status status = bsrg_open_device(args->device.index, &api, &device, error);
  if (status == BSRG_OK) status = bsrg_enter(api, device, &pushed, error);
  if (status != BSRG_OK) return status;
  status = compute(args, (bsrg_gpu){api, device}, error);
  bsrg_leave(api, pushed);
  return status;
}

bsrg_status bsrg_gpu_matmul_sparse(const bsrg_matmul_sparse_args *args, bsrg_error *error) {
  bsrg_matmul_sparse_args turned = *args;
  bsrg_status status = BSRG_OK;
  if (args->y.col_stride != 1 && args->y.row_stride == 1) status = turn(&turned, error);
  if (status != BSRG_OK) return status;
  return args->question ? answer(&turned, error) : multiply(&turned, error);
}
