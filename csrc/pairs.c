/* Products of two block-sparse matrices on a GPU: from a checked call to the kernels that compute it. */
#include "pairs.h"

/* The fastest first. */
static const struct backend {
  bsrg_family family;
  const char *(*obstacle)(const bsrg_matmul_sparse_args *args, const bsrg_gpu_info *gpu);
  bsrg_status (*launch)(const bsrg_matmul_sparse_args *args, bsrg_gpu gpu, bsrg_error *error);
} backends[] = {
    {BSRG_PAIRS, bsrg_pairs_hopper_obstacle, bsrg_pairs_hopper_launch},
    {BSRG_PORTABLE, bsrg_pairs_portable_obstacle, bsrg_pairs_portable_launch},
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
  args->c = (bsrg_dense){args->c.data, args->c.cols, args->c.rows, args->c.col_stride, args->c.row_stride};
  args->y = (bsrg_dense){args->y.data, args->y.cols, args->y.rows, args->y.col_stride, args->y.row_stride};
  return BSRG_OK;
}

static bsrg_status choose(const bsrg_matmul_sparse_args *args, const bsrg_gpu_info *gpu,
                          const struct backend **chosen, bsrg_error *error) {
  const char *obstacle = NULL;
  const bsrg_status status = bsrg_check_arch(gpu, error);
  if (status != BSRG_OK) return status;
  for (int i = 0; i < BACKENDS; ++i) {
    if (args->family != BSRG_AUTO && args->family != backends[i].family) continue;
    obstacle = backends[i].obstacle(args, gpu);
    if (obstacle != NULL) continue;
    *chosen = &backends[i];
    return BSRG_OK;
  }
  return bsrg_fail(error, BSRG_ERR_VALUE, "family '%s' cannot compute this product on %s: it %s",
                   bsrg_family_name(args->family), gpu->name, obstacle);
}

static bsrg_status answer(const bsrg_matmul_sparse_args *args, bsrg_error *error) {
  const bsrg_gpu_info info = bsrg_question_gpu(args->question);
  const struct backend *backend = NULL;
  const bsrg_status status = choose(args, &info, &backend, error);
  if (status == BSRG_OK) args->question->family = backend->family;
  return status;
}

static bsrg_status multiply(const bsrg_matmul_sparse_args *args, bsrg_error *error) {
  const bsrg_cuda_api *api;
  bsrg_device_state *device;
  bool pushed;
  bsrg_status status = bsrg_open_device(args->device.index, &api, &device, error);
  if (status == BSRG_OK) status = bsrg_enter(api, device, &pushed, error);
  if (status != BSRG_OK) return status;
  const struct backend *backend = NULL;
  status = choose(args, &device->info, &backend, error);
  if (status == BSRG_OK) status = backend->launch(args, (bsrg_gpu){api, device}, error);
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
