/* Sampled products: checks everything that a backend relies on, then hands over to the backend of the device, which knows
 * patterns that are no transposed views only: (A @ B) at the blocks of P is the transpose of (B^T @ A^T) at those of P^T,
 * and the blocks of both lie in one order.
 *
 * Messages call the operands what users of the Python package call them: a, b, pattern and its values pattern.data, and
 * the values of the result out.data. */
#include "dense.h"
#include "dynamic.h"

#include <inttypes.h>

static bsrg_status check_family(const bsrg_sampled_args *args, bsrg_error *error) {
  const bsrg_family family = args->family;
  if (family != BSRG_AUTO && family != BSRG_SAMPLED && family != BSRG_COVER && family != BSRG_PORTABLE &&
      family != BSRG_HOST)
    return bsrg_fail(
        error, BSRG_ERR_VALUE,
        "family is '%s' (%d), but sampled products have 'auto', 'sampled', 'cover', 'portable' and 'cpu'",
        bsrg_family_name(family), (int)family);
  if (args->device.kind == BSRG_CPU && family != BSRG_AUTO && family != BSRG_HOST)
    return bsrg_fail(error, BSRG_ERR_VALUE,
                     "family is '%s', but the operands are on cpu, where 'auto' and 'cpu' exist",
                     bsrg_family_name(family));
  if (args->device.kind == BSRG_CUDA && family == BSRG_HOST)
    return bsrg_fail(error, BSRG_ERR_VALUE,
                     "family is 'cpu', but the operands are on cuda:%d, where 'auto', 'sampled', 'cover' and "
                     "'portable' exist",
                     args->device.index);
  return BSRG_OK;
}

static bsrg_status check_shapes(const bsrg_sampled_args *args, const bsrg_structure_view *pattern,
                                bsrg_error *error) {
  const bsrg_dense *a = &args->a, *b = &args->b;
  if (a->rows != pattern->rows)
    return bsrg_fail(error, BSRG_ERR_VALUE,
                     "a has shape (M, K) = (%" PRId64 ", %" PRId64 "), but pattern has %" PRId64
                     " rows: a must have as many",
                     a->rows, a->cols, pattern->rows);
  if (b->cols != pattern->cols)
    return bsrg_fail(error, BSRG_ERR_VALUE,
                     "b has shape (K, N) = (%" PRId64 ", %" PRId64 "), but pattern has %" PRId64
                     " columns: b must have as many",
                     b->rows, b->cols, pattern->cols);
  if (a->cols != b->rows)
    return bsrg_fail(error, BSRG_ERR_VALUE,
                     "a has shape (M, K) = (%" PRId64 ", %" PRId64 ") and b has shape (K, N) = (%" PRId64
                     ", %" PRId64 "), but b must have as many rows as a has columns",
                     a->rows, a->cols, b->rows, b->cols);
  return BSRG_OK;
}

static bsrg_status check_memory(const bsrg_sampled_args *args, const bsrg_structure_view *pattern,
                                bsrg_error *error) {
  const int64_t item = (int64_t)bsrg_dtype_size(args->dtype);
  /* The product fits: bsrg_structure_create has made sure. */
  const int64_t elements = pattern->nnzb * pattern->block_height * pattern->block_width;
  const bsrg_dense stored = {(void *)args->values, 1, elements, 0, 1}, made = {args->out, 1, elements, 0, 1};
  bsrg_view a = bsrg_dense_view("a", &args->a, item), b = bsrg_dense_view("b", &args->b, item);
  bsrg_view values = bsrg_dense_view("pattern.data", &stored, item),
            out = bsrg_dense_view("out.data", &made, item);
  bsrg_status status = bsrg_view_check(&a, error);
  if (status == BSRG_OK) status = bsrg_view_check(&b, error);
  if (status == BSRG_OK) status = bsrg_view_check(&out, error);
  if (status != BSRG_OK) return status;
  const char *shared = bsrg_views_overlap(&out, &a) ? "a" : bsrg_views_overlap(&out, &b) ? "b" : NULL;
  if (shared != NULL)
    return bsrg_fail(error, BSRG_ERR_VALUE,
                     "out.data overlaps %s in memory, but must share memory with no operand except "
                     "pattern.data",
                     shared);
  if (args->beta == 0) return BSRG_OK;
  status = bsrg_view_check(&values, error);
  if (status != BSRG_OK) return status;
  if (args->values != args->out && bsrg_views_overlap(&out, &values))
    return bsrg_fail(error, BSRG_ERR_VALUE,
                     "out.data overlaps pattern.data in memory without being the same array: it must be "
                     "exactly that or share no memory with it");
  return BSRG_OK;
}

bsrg_status bsrg_sampled_matmul(const bsrg_sampled_args *args, bsrg_error *error) {
  if (args->question) args->question->family = BSRG_AUTO;
  if (args->pattern == NULL)
    return bsrg_fail(error, BSRG_ERR_VALUE, "pattern is NULL, but must be a structure");
  const bsrg_structure_view pattern = bsrg_structure_get(args->pattern);
  bsrg_status status = bsrg_check_place(args->dtype, BSRG_TAKES_NONE, args->device, error);
  if (status == BSRG_OK && !args->question)
    status = bsrg_dynamic_check_place(args->pattern, args->device, error);
  if (status == BSRG_OK) status = check_family(args, error);
  if (status == BSRG_OK) status = check_shapes(args, &pattern, error);
  if (status == BSRG_OK) status = check_memory(args, &pattern, error);
  if (status != BSRG_OK || pattern.nnzb == 0) return status;

  bsrg_sampled_args settled = *args;
  if (pattern.order) {
    settled.a = args->b;
    settled.b = args->a;
    bsrg_dense_turn(&settled.a);
    bsrg_dense_turn(&settled.b);
    settled.pattern = args->pattern->original;
  }
  bsrg_dense_settle(&settled.a);
  bsrg_dense_settle(&settled.b);
  return settled.device.kind == BSRG_CPU ? bsrg_cpu_sampled(&settled, error)
                                         : bsrg_gpu_sampled(&settled, error);
}
