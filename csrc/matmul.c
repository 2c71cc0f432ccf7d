/* BSR x dense: checks everything that a backend relies on, then hands over to the backend of the device.
 *
 * Messages call the operands what users of the Python package call them: a, a.data, b (the dense operand,
 * x in the C structs), c and out (y).
 */
#include "internal.h"

#include <inttypes.h>
#include <stdlib.h>

/* The bytes that a view reaches, end exclusive; empty when it has no elements. */
typedef struct byte_range {
  uintptr_t begin, end;
} byte_range;

static bool is_empty(const bsrg_dense *view) { return view->rows == 0 || view->cols == 0; }

static bsrg_status check_address(const char *name, const void *data, int64_t item, bsrg_error *error) {
  if (data == NULL) {
    return bsrg_fail(error, BSRG_ERR_VALUE, "%s has elements, but its pointer is NULL", name);
  }
  if ((uintptr_t)data % (uintptr_t)item != 0) {
    return bsrg_fail(error, BSRG_ERR_VALUE,
                     "%s starts at address %p, but must be aligned to its item size of %" PRId64 " bytes",
                     name, data, item);
  }
  return BSRG_OK;
}

/* Adds the distance from a view's first to its last element along one dimension, in bytes, to low when it is
 * negative and to high when it is positive. */
static bool add_reach(int64_t count, int64_t stride, int64_t item, int64_t *low, int64_t *high) {
  int64_t reach;
  if (!bsrg_mul_ok(count - 1, stride, &reach) || !bsrg_mul_ok(reach, item, &reach)) return false;
  int64_t *side = reach < 0 ? low : high;
  return !__builtin_add_overflow(*side, reach, side);
}

static bsrg_status check_dense(const char *name, const bsrg_dense *view, int64_t item, byte_range *range,
                               bsrg_error *error) {
  *range = (byte_range){0, 0};
  if (view->rows < 0 || view->cols < 0) {
    return bsrg_fail(error, BSRG_ERR_VALUE,
                     "%s has shape (%" PRId64 ", %" PRId64 "), but both numbers must be at least 0", name,
                     view->rows, view->cols);
  }
  if (is_empty(view)) return BSRG_OK;
  const bsrg_status status = check_address(name, view->data, item, error);
  if (status != BSRG_OK) return status;
  int64_t low = 0, high = item;
  const bool fits = add_reach(view->rows, view->row_stride, item, &low, &high) &&
                    add_reach(view->cols, view->col_stride, item, &low, &high) && low != INT64_MIN;
  const uintptr_t base = (uintptr_t)view->data;
  if (!fits || (uintptr_t)-low > base || __builtin_add_overflow(base, (uintptr_t)high, &range->end)) {
    return bsrg_fail(error, BSRG_ERR_VALUE,
                     "%s has shape (%" PRId64 ", %" PRId64 ") and strides (%" PRId64 ", %" PRId64
                     "), which reach beyond the address space",
                     name, view->rows, view->cols, view->row_stride, view->col_stride);
  }
  range->begin = base - (uintptr_t)-low;
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

/* Whether two elements of the view share an address: i row_stride = j col_stride has its smallest solution at
 * i = |col_stride| / g, j = |row_stride| / g, which matters when it lies inside the view. */
static bool overlaps_itself(const bsrg_dense *view) {
  if (is_empty(view)) return false;
  const int64_t rs = view->rows > 1 ? llabs(view->row_stride) : 0;
  const int64_t cs = view->cols > 1 ? llabs(view->col_stride) : 0;
  if (view->rows == 1 || view->cols == 1) {
    return (view->rows > 1 && rs == 0) || (view->cols > 1 && cs == 0);
  }
  if (rs == 0 || cs == 0) return true;
  const int64_t g = greatest_common_divisor(rs, cs);
  return cs / g < view->rows && rs / g < view->cols;
}

/* Whether the view is lines of `length` adjacent elements, one every `pitch` elements. */
static bool as_lines(const bsrg_dense *view, int64_t *pitch, int64_t *length) {
  const bool by_rows = view->col_stride == 1 || view->cols == 1;
  if (!by_rows && view->row_stride != 1 && view->rows != 1) return false;
  *pitch = by_rows ? view->row_stride : view->col_stride;
  *length = by_rows ? view->cols : view->rows;
  return *pitch >= *length;
}

/* Whether two views may share an element. Two windows side by side in one larger matrix interleave without
 * touching; they are recognised, everything else is judged by the bytes from first to last element. */
static bool views_overlap(const bsrg_dense *a, byte_range a_range, const bsrg_dense *b, byte_range b_range,
                          int64_t item) {
  if (a_range.begin >= b_range.end || b_range.begin >= a_range.end) return false;
  int64_t a_pitch, a_length, b_pitch, b_length;
  if (!as_lines(a, &a_pitch, &a_length) || !as_lines(b, &b_pitch, &b_length) || a_pitch != b_pitch)
    return true;
  const uintptr_t pitch = (uintptr_t)(a_pitch * item);
  const uintptr_t a_bytes = (uintptr_t)(a_length * item), b_bytes = (uintptr_t)(b_length * item);
  const uintptr_t apart = a_range.begin <= b_range.begin
                              ? (b_range.begin - a_range.begin) % pitch
                              : (pitch - (a_range.begin - b_range.begin) % pitch) % pitch;
  return apart < a_bytes || apart + b_bytes > pitch;
}

static bool same_view(const bsrg_dense *a, const bsrg_dense *b) {
  return a->data == b->data && (a->rows <= 1 || a->row_stride == b->row_stride) &&
         (a->cols <= 1 || a->col_stride == b->col_stride);
}

static bsrg_status check_family(const bsrg_matmul_args *args, bsrg_error *error) {
  const bsrg_family family = args->family;
  if ((int)family < 0 || family >= BSRG_FAMILY_COUNT) {
    return bsrg_fail(error, BSRG_ERR_VALUE, "family is %d, but families are numbered 0 to %d", (int)family,
                     BSRG_FAMILY_COUNT - 1);
  }
  if (args->device.kind == BSRG_CPU && family != BSRG_AUTO && family != BSRG_HOST) {
    return bsrg_fail(error, BSRG_ERR_VALUE,
                     "family is '%s', but the operands are on cpu, where 'auto' and 'cpu' exist",
                     bsrg_family_name(family));
  }
  if (args->device.kind == BSRG_CUDA && family == BSRG_HOST) {
    return bsrg_fail(
        error, BSRG_ERR_VALUE,
        "family is 'cpu', but the operands are on cuda:%d, where only the GPU's families can be used",
        args->device.index);
  }
  return BSRG_OK;
}

static bsrg_status check_shapes(const bsrg_matmul_args *args, const bsrg_structure_view *a,
                                bsrg_error *error) {
  const bsrg_dense *x = &args->x, *y = &args->y, *c = &args->c;
  if (x->rows != a->cols) {
    return bsrg_fail(error, BSRG_ERR_VALUE,
                     "b has shape (K, N) = (%" PRId64 ", %" PRId64 "), but a has %" PRId64
                     " columns: b must have %" PRId64 " rows",
                     x->rows, x->cols, a->cols, a->cols);
  }
  if (y->rows != a->rows || y->cols != x->cols) {
    return bsrg_fail(error, BSRG_ERR_VALUE,
                     "out has shape (%" PRId64 ", %" PRId64 "), but a @ b has shape (%" PRId64 ", %" PRId64
                     "), which out must have too",
                     y->rows, y->cols, a->rows, x->cols);
  }
  const bool given = c->data != NULL || c->rows != 0 || c->cols != 0;
  if (!given && args->beta != 0 && !is_empty(y)) {
    return bsrg_fail(error, BSRG_ERR_VALUE, "beta is %g, but c is not given: beta without c must be 0",
                     args->beta);
  }
  if (given && (c->rows != y->rows || c->cols != y->cols)) {
    return bsrg_fail(error, BSRG_ERR_VALUE,
                     "c has shape (%" PRId64 ", %" PRId64 "), but a @ b has shape (%" PRId64 ", %" PRId64
                     "), which c must have too",
                     c->rows, c->cols, y->rows, y->cols);
  }
  return BSRG_OK;
}

static bsrg_status check_memory(const bsrg_matmul_args *args, const bsrg_structure_view *a,
                                bsrg_error *error) {
  const int64_t item = (int64_t)bsrg_dtype_size(args->dtype);
  /* The product fits: bsrg_structure_create has made sure. */
  const bsrg_dense values = {(void *)args->values, 1, a->nnzb * a->block_height * a->block_width, 0, 1};
  byte_range values_range, x_range, c_range, y_range;
  bsrg_status status = check_dense("a.data", &values, item, &values_range, error);
  if (status == BSRG_OK) status = check_dense("b", &args->x, item, &x_range, error);
  if (status == BSRG_OK) status = check_dense("out", &args->y, item, &y_range, error);
  if (status != BSRG_OK) return status;
  if (overlaps_itself(&args->y)) {
    return bsrg_fail(error, BSRG_ERR_VALUE,
                     "out has shape (%" PRId64 ", %" PRId64 ") and strides (%" PRId64 ", %" PRId64
                     "), which put several elements at one address: each must have its own",
                     args->y.rows, args->y.cols, args->y.row_stride, args->y.col_stride);
  }
  const char *shared = views_overlap(&args->y, y_range, &args->x, x_range, item)       ? "b"
                       : views_overlap(&args->y, y_range, &values, values_range, item) ? "a.data"
                                                                                       : NULL;
  if (shared != NULL) {
    return bsrg_fail(error, BSRG_ERR_VALUE,
                     "out overlaps %s in memory, but must share memory with no operand except c", shared);
  }
  if (args->beta == 0) return BSRG_OK;
  status = check_dense("c", &args->c, item, &c_range, error);
  if (status != BSRG_OK) return status;
  if (!same_view(&args->c, &args->y) && views_overlap(&args->y, y_range, &args->c, c_range, item)) {
    return bsrg_fail(
        error, BSRG_ERR_VALUE,
        "out overlaps c in memory without being the same view (same first element and strides): out "
        "must be exactly c or share no memory with it");
  }
  return BSRG_OK;
}

/* Libraries put anything into the stride of a dimension of one element. Backends choose fast paths by
 * strides, so such a stride becomes what it would be in a contiguous view. */
static void settle_strides(bsrg_dense *view) {
  if (view->cols <= 1 && view->rows <= 1) {
    view->row_stride = view->col_stride = 1;
  } else if (view->cols <= 1) {
    view->col_stride = 1;
  } else if (view->rows <= 1) {
    view->row_stride = view->col_stride == 1 ? view->cols : 1;
  }
}

bsrg_status bsrg_matmul(const bsrg_matmul_args *args, bsrg_error *error) {
  if (args->a == NULL) return bsrg_fail(error, BSRG_ERR_VALUE, "a is NULL, but must be a structure");
  if (bsrg_dtype_size(args->dtype) == 0) {
    return bsrg_fail(error, BSRG_ERR_TYPE,
                     "dtype is %d, but must be BSRG_F16, BSRG_BF16, BSRG_F32 or BSRG_F64", (int)args->dtype);
  }
  if ((args->device.kind != BSRG_CPU && args->device.kind != BSRG_CUDA) || args->device.index < 0) {
    return bsrg_fail(error, BSRG_ERR_VALUE,
                     "device is kind %d, index %d, but must be BSRG_CPU or BSRG_CUDA and at least 0",
                     (int)args->device.kind, args->device.index);
  }
  const bsrg_structure_view a = bsrg_structure_get(args->a);
  bsrg_status status = check_family(args, error);
  if (status == BSRG_OK) status = check_shapes(args, &a, error);
  if (status == BSRG_OK) status = check_memory(args, &a, error);
  if (status != BSRG_OK || is_empty(&args->y)) return status;

  bsrg_matmul_args settled = *args;
  settle_strides(&settled.x);
  settle_strides(&settled.c);
  settle_strides(&settled.y);
  return settled.device.kind == BSRG_CPU ? bsrg_cpu_matmul(&settled, error)
                                         : bsrg_gpu_matmul(&settled, error);
}
