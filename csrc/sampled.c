/* Sampled products: checks everything that a backend relies on, then hands over to the backend of the device, which knows
 * patterns that are no transposed views only: (A @ B) at the blocks of P is the transpose of (B^T @ A^T) at those of P^T,
 * and the blocks of both lie in one order.
 *
 * Messages call the operands what users of the Python package call them: a, b, pattern and its values pattern.data, and
 * the values of the result out.data. */
#include "sampled.h"
#include "batch.h"
#include "dense.h"
#include "dynamic.h"

#include <inttypes.h>
#include <string.h>

static bsrg_status check_family(const bsrg_sampled_args *args, bsrg_error *error) {
  const bsrg_family family = args->family;
  if (family != BSRG_AUTO && family != BSRG_SAMPLED && family != BSRG_COVER && family != BSRG_PORTABLE &&
      family != BSRG_HOST)
    return bsrg_fail(
        error, BSRG_ERR_VALUE,
        "family is '%s' (%d), but sampled products have 'auto', 'sampled', 'cover', 'portable' and 'cpu'",
        bsrg_family_name(family), (int)family);
  return bsrg_check_family_place(family, args->device, "'auto', 'sampled', 'cover' and 'portable' exist",
                                 error);
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

static bsrg_status check_batch(const bsrg_sampled_args *args, bsrg_error *error) {
  const int ndim = args->batch.ndim;
  if (ndim < 0 || ndim > BSRG_BATCH_DIMS)
    return bsrg_fail(error, BSRG_ERR_VALUE, "batch has %d dimensions, but must have 0 to %d", ndim,
                     BSRG_BATCH_DIMS);
  if (ndim > 0 && args->pattern->dynamic)
    return bsrg_fail(error, BSRG_ERR_VALUE,
                     "batch has %d dimensions, but must have none, since pattern is one that changes", ndim);
  return BSRG_OK;
}

/* As those of out, whose blocks follow one another. */
static bool follow_one_another(const bsrg_sampled_batch *batch, const int64_t *strides, int64_t elements) {
  for (int d = batch->ndim - 1; d >= 0; --d) {
    if (batch->shape[d] > 1 && strides[d] != elements) return false;
    elements *= batch->shape[d];
  }
  return true;
}

static bsrg_status check_memory(const bsrg_sampled_args *args, const bsrg_structure_view *pattern,
                                bsrg_error *error) {
  const int64_t item = (int64_t)bsrg_dtype_size(args->dtype);
  const bsrg_sampled_batch *batch = &args->batch;
  /* The product fits: bsrg_structure_create has made sure. */
  const int64_t elements = pattern->nnzb * pattern->block_height * pattern->block_width;
  const bsrg_dense stored = {(void *)args->values, 1, elements, 0, 1}, made = {args->out, 1, elements, 0, 1};
  int64_t out_strides[BSRG_BATCH_DIMS], step = elements;
  for (int d = batch->ndim - 1; d >= 0; --d) {
    out_strides[d] = step;
    if (!bsrg_mul_ok(step, bsrg_max(batch->shape[d], 1), &step))
      return bsrg_fail(error, BSRG_ERR_VALUE, "out.data has more elements than 64 bits can count");
  }
  bsrg_view a = bsrg_batch_view("a", &args->a, batch->ndim, batch->shape, batch->a_strides, item),
            b = bsrg_batch_view("b", &args->b, batch->ndim, batch->shape, batch->b_strides, item);
  bsrg_view values = bsrg_batch_view("pattern.data", &stored, batch->ndim, batch->shape,
                                     batch->values_strides, item),
            out = bsrg_batch_view("out.data", &made, batch->ndim, batch->shape, out_strides, item);
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
  const bool same = args->values == args->out && follow_one_another(batch, batch->values_strides, elements);
  if (!same && bsrg_views_overlap(&out, &values))
    return bsrg_fail(error, BSRG_ERR_VALUE,
                     "out.data overlaps pattern.data in memory without being the same array: it must be "
                     "exactly that or share no memory with it");
  return BSRG_OK;
}

/* A GPU gets the last dimension as a whole. A question is about one product. */
static bsrg_status multiply_batch(const bsrg_sampled_args *args, bsrg_error *error) {
  const bool on_gpu = args->device.kind != BSRG_CPU;
  const int ndim = args->batch.ndim, last = on_gpu && ndim > 0 && !args->question ? 1 : 0;
  int64_t position[BSRG_BATCH_DIMS] = {0};
  bsrg_status status;
  do {
    bsrg_sampled_args one = bsrg_sampled_at(args, position);
    if (last)
      one.batch = (bsrg_sampled_batch){1,
                                       {args->batch.shape[ndim - 1]},
                                       {args->batch.a_strides[ndim - 1]},
                                       {args->batch.b_strides[ndim - 1]},
                                       {args->batch.values_strides[ndim - 1]}};
    status = on_gpu ? bsrg_gpu_sampled(&one, error) : bsrg_cpu_sampled(&one, error);
  } while (status == BSRG_OK && !args->question && bsrg_batch_next(ndim - last, args->batch.shape, position));
  return status;
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
  if (status == BSRG_OK) status = bsrg_check_factor(args->alpha, "alpha", args->dtype, error);
  if (status == BSRG_OK) status = bsrg_check_factor(args->beta, "beta", args->dtype, error);
  if (status == BSRG_OK) status = check_batch(args, error);
  if (status == BSRG_OK) status = check_shapes(args, &pattern, error);
  if (status == BSRG_OK) status = check_memory(args, &pattern, error);
  if (status != BSRG_OK || pattern.nnzb == 0 || bsrg_batch_is_empty(args->batch.ndim, args->batch.shape))
    return status;

  bsrg_sampled_args settled = *args;
  if (pattern.order) {
    settled.a = args->b;
    settled.b = args->a;
    bsrg_dense_turn(&settled.a);
    bsrg_dense_turn(&settled.b);
    memcpy(settled.batch.a_strides, args->batch.b_strides, sizeof(settled.batch.a_strides));
    memcpy(settled.batch.b_strides, args->batch.a_strides, sizeof(settled.batch.b_strides));
    settled.pattern = args->pattern->original;
  }
  bsrg_dense_settle(&settled.a);
  bsrg_dense_settle(&settled.b);
  bsrg_sampled_fold(&settled);
  return multiply_batch(&settled, error);
}
