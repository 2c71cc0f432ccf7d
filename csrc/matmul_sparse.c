/* BSR x BSR: checks everything that a backend relies on, then hands over to the backend of the device. Messages call
 * the operands what users of the Python package call them. */
#include "dense.h"

#include <inttypes.h>

static bsrg_status check_family(const bsrg_matmul_sparse_args *args, bsrg_error *error) {
  const bsrg_family family = args->family;
  if (family != BSRG_AUTO && family != BSRG_PAIRS && family != BSRG_SPREAD && family != BSRG_PORTABLE &&
      family != BSRG_HOST) {
    return bsrg_fail(error, BSRG_ERR_VALUE,
                     "family is %d, '%s', but products of two block-sparse matrices have 'auto', 'pairs', "
                     "'spread', 'portable' and 'cpu'",
                     (int)family, bsrg_family_name(family));
  }
  return bsrg_check_family_place(family, args->device, "'auto', 'pairs', 'spread' and 'portable' exist",
                                 error);
}

static bsrg_status check_shapes(const bsrg_matmul_sparse_args *args, bsrg_error *error) {
  const bsrg_structure_view *a = &args->a->view, *b = &args->b->view;
  if (b->rows != a->cols) {
    return bsrg_fail(error, BSRG_ERR_VALUE,
                     "b has shape (K, N) = (%" PRId64 ", %" PRId64 "), but a has %" PRId64
                     " columns: b must have %" PRId64 " rows",
                     b->rows, b->cols, a->cols, a->cols);
  }
  if (b->block_height != a->block_width) {
    return bsrg_fail(
        error, BSRG_ERR_VALUE,
        "a has blocksize (%" PRId64 ", %" PRId64 ") and b has blocksize (%" PRId64 ", %" PRId64
        "), but the blocks of b must be as high as those of a are wide: b must have block height "
        "%" PRId64,
        a->block_height, a->block_width, b->block_height, b->block_width, a->block_width);
  }
  return bsrg_check_shapes_of_result(&args->y, &args->c, args->beta, a->rows, b->cols, error);
}

static bsrg_view values_view(const char *name, const void *values, const bsrg_structure_view *of,
                             int64_t item) {
  /* The product fits: bsrg_structure_create has made sure. */
  const bsrg_dense all = {(void *)values, 1, of->nnzb * of->block_height * of->block_width, 0, 1};
  return bsrg_dense_view(name, &all, item);
}

static bsrg_status check_memory(const bsrg_matmul_sparse_args *args, bsrg_error *error) {
  const int64_t item = (int64_t)bsrg_dtype_size(args->dtype);
  bsrg_view a = values_view("a.data", args->a_values, &args->a->view, item);
  bsrg_view b = values_view("b.data", args->b_values, &args->b->view, item);
  bsrg_view y = bsrg_dense_view("out", &args->y, item), c = bsrg_dense_view("c", &args->c, item);
  bsrg_status status = bsrg_view_check(&a, error);
  if (status == BSRG_OK) status = bsrg_view_check(&b, error);
  if (status == BSRG_OK) status = bsrg_view_check(&y, error);
  if (status == BSRG_OK) status = bsrg_view_check_distinct(&y, error);
  if (status == BSRG_OK) status = bsrg_check_apart(&y, &a, error);
  if (status == BSRG_OK) status = bsrg_check_apart(&y, &b, error);
  if (status == BSRG_OK && args->beta != 0) status = bsrg_check_memory_of_c(&y, &c, error);
  return status;
}

bsrg_status bsrg_matmul_sparse(const bsrg_matmul_sparse_args *args, bsrg_error *error) {
  if (args->question) args->question->family = BSRG_AUTO;
  if (args->a == NULL || args->b == NULL)
    return bsrg_fail(error, BSRG_ERR_VALUE, "%s is NULL, but must be a structure",
                     args->a == NULL ? "a" : "b");
  bsrg_status status = bsrg_check_place(args->dtype, BSRG_TAKES_NONE, args->device, error);
  if (status == BSRG_OK) status = bsrg_check_ascending(args->a, "a", error);
  if (status == BSRG_OK) status = bsrg_check_ascending_both(args->b, "b", error);
  if (status == BSRG_OK) status = check_family(args, error);
  if (status == BSRG_OK) status = bsrg_check_factor(args->alpha, "alpha", args->dtype, error);
  if (status == BSRG_OK) status = bsrg_check_factor(args->beta, "beta", args->dtype, error);
  if (status == BSRG_OK) status = check_shapes(args, error);
  if (status == BSRG_OK) status = check_memory(args, error);
  if (status != BSRG_OK || bsrg_dense_is_empty(&args->y)) return status;
  bsrg_matmul_sparse_args settled = *args;
  bsrg_dense_settle(&settled.c);
  bsrg_dense_settle(&settled.y);
  return settled.device.kind == BSRG_CPU ? bsrg_cpu_matmul_sparse(&settled, error)
                                         : bsrg_gpu_matmul_sparse(&settled, error);
}
