/* Sampled products of dense operands that kernels cannot read by vectors or, on Hopper, by TMA: copied to lines that they can,
 * where that pays. */
#include "copy.h"
#include "dense.h"
#include "edges.h"
#include "sampled.h"
#include "tensor_map.h"

#include <stdlib.h>

static bool is_half(const bsrg_sampled_args *args) {
  return args->dtype == BSRG_F16 || args->dtype == BSRG_BF16;
}

static bsrg_dense turned(bsrg_dense dense) {
  bsrg_dense_turn(&dense);
  return dense;
}

/* The kernels of 16 bits take rows and columns, the others rows alone. */
static bool suits(const bsrg_dense *dense, const bsrg_sampled_args *args) {
  const bsrg_dense other = turned(*dense);
  if (is_half(args)) return bsrg_map_can_describe(dense) || bsrg_map_can_describe(&other);
  return dense->col_stride == 1 && (uintptr_t)dense->data % 16 == 0 &&
         dense->row_stride * (int64_t)bsrg_dtype_size(args->dtype) % 16 == 0;
}

/* Lines at multiples of 128 bytes, in the order in which the operand lies if kernels take that; the data is missing. */
static bsrg_dense copy_of(const bsrg_dense *dense, const bsrg_sampled_args *args) {
  const bool by_columns = is_half(args) && llabs(dense->row_stride) < llabs(dense->col_stride);
  const int64_t line = 128 / (int64_t)bsrg_dtype_size(args->dtype);
  const int64_t pitch = bsrg_ceil_div(by_columns ? dense->rows : dense->cols, line) * line;
  return (bsrg_dense){NULL, dense->rows, dense->cols, by_columns ? 1 : pitch, by_columns ? pitch : 1};
}

static int64_t elements_of(const bsrg_dense *copy) {
  return copy->row_stride == 1 ? copy->cols * copy->col_stride : copy->rows * copy->row_stride;
}

/* What reading element by element costs: some .02 ps for each product of two elements; and copying, about 1 ps an element and 4 us
 * a launch. */
static bool pay(const bsrg_sampled_args *args, const bsrg_sampled_copies *copies) {
  const double products = bsrg_stored_elements(&args->pattern->view) * (double)args->a.cols;
  const double copied = (copies->a ? (double)elements_of(&copies->args.a) : 0) +
                        (copies->b ? (double)elements_of(&copies->args.b) : 0);
  return products * 0.02 > copied * 1.0 + (copies->a + copies->b) * 4e6;
}

bsrg_sampled_copies bsrg_sampled_describe_copies(const bsrg_sampled_args *args) {
  bsrg_sampled_copies copies = {.args = *args};
  if (args->family != BSRG_AUTO || args->a.cols < 1) return copies;
  copies.a = !suits(&args->a, args);
  copies.b = !suits(&args->b, args);
  if (copies.a) copies.args.a = copy_of(&args->a, args);
  if (copies.b) copies.args.b = copy_of(&args->b, args);
  if ((copies.a || copies.b) && !pay(args, &copies)) copies = (bsrg_sampled_copies){.args = *args};
  return copies;
}

bsrg_status bsrg_sampled_launch_copies(const bsrg_sampled_args *args, bsrg_sampled_copies *copies,
                                       bsrg_status (*launch)(const bsrg_sampled_args *args, bsrg_gpu gpu,
                                                             bsrg_error *error),
                                       bsrg_gpu gpu, bsrg_error *error) {
  const size_t size = bsrg_dtype_size(args->dtype);
  const CUstream stream = (CUstream)args->stream;
  bsrg_dense *a = &copies->args.a, *b = &copies->args.b;
  const size_t a_bytes = copies->a ? size * (size_t)elements_of(a) : 0;
  const size_t b_bytes = copies->b ? size * (size_t)elements_of(b) : 0;
  CUdeviceptr scratch;
  bsrg_status status = bsrg_scratch_alloc(gpu.api, gpu.device, a_bytes + b_bytes, stream, &scratch, error);
  /* Without memory, the slower kernels that need none. */
  if (status == BSRG_ERR_MEMORY) return launch(args, gpu, error);
  if (status != BSRG_OK) return status;
  if (copies->a) a->data = (void *)(uintptr_t)scratch;
  if (copies->b) b->data = (void *)(uintptr_t)(scratch + a_bytes);
  if (copies->a) status = bsrg_copy(&args->a, a, (int64_t)size, gpu, stream, error);
  if (status == BSRG_OK && copies->b) status = bsrg_copy(&args->b, b, (int64_t)size, gpu, stream, error);
  if (status == BSRG_OK) status = launch(&copies->args, gpu, error);
  return bsrg_scratch_free(gpu.api, scratch, stream, status, error);
}
