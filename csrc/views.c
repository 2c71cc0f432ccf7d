#include "dense.h"

#include <float.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

bsrg_status bsrg_check_place(bsrg_dtype dtype, bsrg_eight_bits takes, bsrg_device device, bsrg_error *error) {
  static const char *const last[] = {" or BSRG_F64", ", BSRG_F64 or BSRG_F8_E4M3",
                                     ", BSRG_F64, BSRG_F8_E4M3 or BSRG_F8_E5M2"};
  if (bsrg_dtype_size(dtype) == 0 || (dtype == BSRG_F8_E4M3 && takes == BSRG_TAKES_NONE) ||
      (dtype == BSRG_F8_E5M2 && takes != BSRG_TAKES_BOTH)) {
    return bsrg_fail(error, BSRG_ERR_TYPE, "dtype is %d, but must be BSRG_F16, BSRG_BF16, BSRG_F32%s",
                     (int)dtype, last[takes]);
  }
  if ((device.kind != BSRG_CPU && device.kind != BSRG_CUDA) || device.index < 0) {
    return bsrg_fail(error, BSRG_ERR_VALUE,
                     "device is kind %d, index %d, but must be BSRG_CPU or BSRG_CUDA and at least 0",
                     (int)device.kind, device.index);
  }
  return BSRG_OK;
}

bsrg_status bsrg_check_precision(bsrg_precision precision, bsrg_error *error) {
  if (precision == BSRG_IEEE || precision == BSRG_TF32) return BSRG_OK;
  return bsrg_fail(error, BSRG_ERR_VALUE, "precision is %d, but must be BSRG_IEEE or BSRG_TF32",
                   (int)precision);
}

bsrg_status bsrg_check_factor(double value, const char *name, bsrg_dtype dtype, bsrg_error *error) {
  if (dtype == BSRG_F64 || !isfinite(value) || fabs(value) <= (double)FLT_MAX) return BSRG_OK;
  return bsrg_fail(error, BSRG_ERR_VALUE, "%s is %g, but must be from %g to %g where a has dtype %s", name,
                   value, -(double)FLT_MAX, (double)FLT_MAX, bsrg_dtype_name(dtype));
}

bsrg_status bsrg_check_family_place(bsrg_family family, bsrg_device device, const char *on_gpu,
                                    bsrg_error *error) {
  if (device.kind == BSRG_CPU && family != BSRG_AUTO && family != BSRG_HOST)
    return bsrg_fail(error, BSRG_ERR_VALUE,
                     "family is '%s', but the operands are on cpu, where 'auto' and 'cpu' exist",
                     bsrg_family_name(family));
  if (device.kind == BSRG_CUDA && family == BSRG_HOST)
    return bsrg_fail(error, BSRG_ERR_VALUE, "family is 'cpu', but the operands are on cuda:%d, where %s",
                     device.index, on_gpu);
  return BSRG_OK;
}

bsrg_status bsrg_check_plan(bsrg_dtype dtype, bsrg_eight_bits takes, const bsrg_chip *chip,
                            bsrg_error *error) {
  const bsrg_status status = bsrg_check_place(dtype, takes, (bsrg_device){BSRG_CUDA, 0}, error);
  if (status != BSRG_OK) return status;
  if (chip->sm_count < 1 || chip->sm_count > BSRG_MOST_SMS)
    return bsrg_fail(error, BSRG_ERR_VALUE, "chip has sm_count %d, but must have from 1 to %d",
                     chip->sm_count, BSRG_MOST_SMS);
  if (!(chip->hbm_bytes_per_s > 0 && chip->l2_bytes_per_s > 0 && chip->l2_bytes >= 0 &&
        chip->mma_flops_per_s > 0))
    return bsrg_fail(error, BSRG_ERR_VALUE, "chip has a rate that is not above 0");
  return BSRG_OK;
}

bsrg_numbers_text bsrg_format_numbers(const int64_t *numbers, int count) {
  bsrg_numbers_text out;
  int at = snprintf(out.text, sizeof(out.text), "(");
  for (int i = 0; i < count; ++i)
    at += snprintf(out.text + at, sizeof(out.text) - (size_t)at, "%s%" PRId64, i > 0 ? ", " : "", numbers[i]);
  snprintf(out.text + at, sizeof(out.text) - (size_t)at, ")");
  return out;
}

static bool is_empty(const bsrg_view *view) {
  for (int i = 0; i < view->ndim; ++i)
    if (view->shape[i] == 0) return true;
  return false;
}

/* Adds the distance from a view's first to its last element along one dimension, in bytes, to low when it is
 * negative and to high when it is positive. */
static bool add_reach(int64_t count, int64_t stride, int64_t item, int64_t *low, int64_t *high) {
  int64_t reach;
  if (!bsrg_mul_ok(count - 1, stride, &reach) || !bsrg_mul_ok(reach, item, &reach)) return false;
  int64_t *side = reach < 0 ? low : high;
  return !__builtin_add_overflow(*side, reach, side);
}

bsrg_status bsrg_view_check(bsrg_view *view, bsrg_error *error) {
  view->begin = view->end = 0;
  for (int i = 0; i < view->ndim; ++i)
    if (view->shape[i] < 0)
      return bsrg_fail(error, BSRG_ERR_VALUE, "%s has shape %s, but all numbers must be at least 0",
                       view->name, bsrg_format_numbers(view->shape, view->ndim).text);
  if (is_empty(view)) return BSRG_OK;
  const uintptr_t base = (uintptr_t)view->data;
  if (base == 0)
    return bsrg_fail(error, BSRG_ERR_VALUE, "%s has elements, but its pointer is NULL", view->name);
  if (base % (uintptr_t)view->item != 0)
    return bsrg_fail(error, BSRG_ERR_VALUE,
                     "%s starts at address %p, but must be aligned to its item size of %" PRId64 " bytes",
                     view->name, view->data, view->item);
  int64_t low = 0, high = view->item;
  bool fits = true;
  for (int i = 0; i < view->ndim; ++i)
    fits = fits && add_reach(view->shape[i], view->strides[i], view->item, &low, &high);
  if (!fits || low == INT64_MIN || (uintptr_t)-low > base ||
      __builtin_add_overflow(base, (uintptr_t)high, &view->end))
    return bsrg_fail(error, BSRG_ERR_VALUE,
                     "%s has shape %s and strides %s, which reach beyond the address space", view->name,
                     bsrg_format_numbers(view->shape, view->ndim).text,
                     bsrg_format_numbers(view->strides, view->ndim).text);
  view->begin = base - (uintptr_t)-low;
  return BSRG_OK;
}

static int64_t greatest_common_divisor(int64_t a, int64_t b) {
  while (b != 0) {
    const int64_t rest = a % b;
    a = b;
    b = rest;
  }
  return a;
}

typedef struct step {
  int64_t count, stride; /* stride without its sign */
} step;

/* The dimensions of more than one element, smallest stride first. */
static int steps_of(const bsrg_view *view, step *steps) {
  int count = 0;
  for (int i = 0; i < view->ndim; ++i) {
    if (view->shape[i] <= 1) continue;
    const step next = {view->shape[i], llabs(view->strides[i])};
    int at = count++;
    for (; at > 0 && steps[at - 1].stride > next.stride; --at) steps[at] = steps[at - 1];
    steps[at] = next;
  }
  return count;
}

static bool has_distinct_elements(const bsrg_view *view) {
  if (is_empty(view)) return true;
  step steps[BSRG_VIEW_DIMS];
  const int count = steps_of(view, steps);
  int64_t reach = 0;
  bool nested = true;
  for (int i = 0; i < count; ++i) {
    nested = nested && steps[i].stride > reach;
    reach += steps[i].stride * (steps[i].count - 1); /* fits: bsrg_view_check */
  }
  if (nested) return true;
  if (count != 2 || steps[0].stride == 0) return false;
  /* i * stride0 = j * stride1 has its smallest solution at i = stride1 / g, j = stride0 / g. */
  const int64_t g = greatest_common_divisor(steps[0].stride, steps[1].stride);
  return steps[1].stride / g >= steps[0].count || steps[0].stride / g >= steps[1].count;
}

bsrg_status bsrg_view_check_distinct(const bsrg_view *view, bsrg_error *error) {
  if (has_distinct_elements(view)) return BSRG_OK;
  return bsrg_fail(
      error, BSRG_ERR_VALUE,
      "%s has shape %s and strides %s, which may put several elements at one address: each must have "
      "its own",
      view->name, bsrg_format_numbers(view->shape, view->ndim).text,
      bsrg_format_numbers(view->strides, view->ndim).text);
}

/* The length, in elements, of the contiguous runs that a view consists of. Takes the greatest common divisor of the
 * distances of runs into *pitch, which keeps its value where there is but one. */
static int64_t run_length(const bsrg_view *view, int64_t *pitch) {
  step steps[BSRG_VIEW_DIMS];
  const int count = steps_of(view, steps);
  int64_t run = 1;
  int i = 0;
  while (i < count && steps[i].stride == 0) ++i;
  for (; i < count && steps[i].stride == run; ++i) run *= steps[i].count;
  for (; i < count; ++i) *pitch = greatest_common_divisor(steps[i].stride, *pitch);
  return run;
}

bool bsrg_views_overlap(const bsrg_view *a, const bsrg_view *b) {
  if (a->begin >= b->end || b->begin >= a->end) return false;
  if (a->item != b->item) return true;
  int64_t pitch = 0;
  const int64_t a_run = run_length(a, &pitch), b_run = run_length(b, &pitch);
  if (pitch < a_run + b_run) return true;
  /* Every run begins a multiple of the pitch after the first. */
  const uintptr_t bytes = (uintptr_t)(pitch * a->item);
  const uintptr_t apart =
      a->begin <= b->begin ? (b->begin - a->begin) % bytes : (bytes - (a->begin - b->begin) % bytes) % bytes;
  return apart < (uintptr_t)(a_run * a->item) || apart + (uintptr_t)(b_run * b->item) > bytes;
}

bsrg_status bsrg_check_apart(const bsrg_view *out, const bsrg_view *operand, bsrg_error *error) {
  if (!bsrg_views_overlap(out, operand)) return BSRG_OK;
  return bsrg_fail(error, BSRG_ERR_VALUE,
                   "out overlaps %s in memory, but must share memory with no operand except c",
                   operand->name);
}

static bool same_view(const bsrg_view *a, const bsrg_view *b) {
  for (int i = 0; i < a->ndim; ++i)
    if (a->shape[i] > 1 && a->strides[i] != b->strides[i]) return false;
  return a->data == b->data;
}

bsrg_status bsrg_check_memory_of_c(const bsrg_view *y, bsrg_view *c, bsrg_error *error) {
  const bsrg_status status = bsrg_view_check(c, error);
  if (status != BSRG_OK || same_view(c, y) || !bsrg_views_overlap(y, c)) return status;
  return bsrg_fail(
      error, BSRG_ERR_VALUE,
      "out overlaps c in memory without being the same view (same first element and strides): out "
      "must be exactly c or share no memory with it");
}

bsrg_status bsrg_check_shapes_of_result(const bsrg_dense *y, const bsrg_dense *c, double beta, int64_t rows,
                                        int64_t cols, bsrg_error *error) {
  if (y->rows != rows || y->cols != cols) {
    return bsrg_fail(error, BSRG_ERR_VALUE,
                     "out has shape (%" PRId64 ", %" PRId64 "), but a @ b has shape (%" PRId64 ", %" PRId64
                     "), which out must have too",
                     y->rows, y->cols, rows, cols);
  }
  const bool given = c->data != NULL || c->rows != 0 || c->cols != 0;
  if (!given && beta != 0 && !bsrg_dense_is_empty(y))
    return bsrg_fail(error, BSRG_ERR_VALUE, "beta is %g, but c is not given: beta without c must be 0", beta);
  if (given && (c->rows != rows || c->cols != cols)) {
    return bsrg_fail(error, BSRG_ERR_VALUE,
                     "c has shape (%" PRId64 ", %" PRId64 "), but a @ b has shape (%" PRId64 ", %" PRId64
                     "), which c must have too",
                     c->rows, c->cols, rows, cols);
  }
  return BSRG_OK;
}
