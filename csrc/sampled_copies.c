/* Sampled products of dense operands that kernels cannot read by vectors or, on Hopper, by TMA: copied to lines that they can,
 * where that pays. */
#include "copy.h"
#include "dense.h"
#include "edges.h"
#include "sampled.h"
#include "tensor_map.h"

/* The kernels of 16 bits take rows and columns, the others rows alone. */
static bool suits(const bsrg_dense *dense, const bsrg_sampled_args *args) {
  if (!bsrg_is_half(args->dtype)) return bsrg_dense_has_vectors(dense, (int64_t)bsrg_dtype_size(args->dtype));
  const bsrg_dense turned = bsrg_dense_turned(*dense);
  return bsrg_map_can_describe(dense) || bsrg_map_can_describe(&turned);
}

bsrg_dense bsrg_sampled_copy_of(const bsrg_dense *dense, int64_t rows, int64_t cols, bsrg_dtype dtype) {
  const bool by_columns = bsrg_is_half(dtype) && bsrg_dense_is_by_columns(dense);
  return bsrg_dense_of_lines(rows, cols, by_columns, (int64_t)bsrg_dtype_size(dtype));
}

/* Seconds for a product of two elements that are read one by one, more than by vectors, and for a copied element. Guessed from
 * products of 4096 x 4096 at density .1. */
static const double element_seconds = 0.02e-12, copy_seconds = 1e-12;

static double elements_of(const bsrg_dense *dense) { return (double)dense->rows * (double)dense->cols; }

double bsrg_sampled_copies_seconds(const bsrg_sampled_copies *copies) {
  const double copied =
      (copies->a ? elements_of(&copies->args.a) : 0) + (copies->b ? elements_of(&copies->args.b) : 0);
  return copied * copy_seconds + (copies->a + copies->b) * BSRG_LAUNCH_SECONDS;
}

static bool pay(const bsrg_sampled_args *args, const bsrg_sampled_copies *copies) {
  const bsrg_structure_view *v = &args->pattern->view;
  const double stored = (double)v->nnzb * (double)(v->block_height * v->block_width);
  return stored * (double)args->a.cols * element_seconds > bsrg_sampled_copies_seconds(copies);
}

bsrg_sampled_copies bsrg_sampled_describe_copies(const bsrg_sampled_args *args) {
  bsrg_sampled_copies copies = {.args = *args};
  if (args->family != BSRG_AUTO || args->a.cols < 1) return copies;
  copies.a = !suits(&args->a, args);
  copies.b = !suits(&args->b, args);
  if (copies.a) copies.args.a = bsrg_sampled_copy_of(&args->a, args->a.rows, args->a.cols, args->dtype);
  if (copies.b) copies.args.b = bsrg_sampled_copy_of(&args->b, args->b.rows, args->b.cols, args->dtype);
  if ((copies.a || copies.b) && !pay(args, &copies)) copies = (bsrg_sampled_copies){.args = *args};
  return copies;
}

bsrg_status bsrg_sampled_launch_copies(const bsrg_sampled_args *args, bsrg_sampled_copies *copies,
                                       bsrg_sampled_launcher launch, bsrg_gpu gpu, bsrg_error *error) {
  const int64_t size = (int64_t)bsrg_dtype_size(args->dtype);
  const CUstream stream = (CUstream)args->stream;
  bsrg_dense *a = &copies->args.a, *b = &copies->args.b;
  const size_t a_bytes = copies->a ? bsrg_lines_bytes(a, size) : 0;
  const size_t b_bytes = copies->b ? bsrg_lines_bytes(b, size) : 0;
  CUdeviceptr scratch;
  bsrg_status status = bsrg_scratch_alloc(gpu.api, gpu.device, a_bytes + b_bytes, stream, &scratch, error);
  /* Without memory, the slower kernels that need none. */
  if (status == BSRG_ERR_MEMORY) return launch(args, gpu, error);
  if (status != BSRG_OK) return status;
  if (copies->a) a->data = (void *)(uintptr_t)scratch;
  if (copies->b) b->data = (void *)(uintptr_t)(scratch + a_bytes);
  if (copies->a) status = bsrg_copy(&args->a, a, size, gpu, stream, error);
  if (status == BSRG_OK && copies->b) status = bsrg_copy(&args->b, b, size, gpu, stream, error);
  if (status == BSRG_OK) status = launch(&copies->args, gpu, error);
  return bsrg_scratch_free(gpu.api, scratch, stream, status, error);
}
