/* BSR x dense and dense x BSR: checks everything that a backend relies on, then hands over to the backend of the
 * device, which knows the former only: X @ A is the transpose of A^T @ X^T, and views of transposes cost nothing.
 *
 * Messages call the operands what users of the Python package call them: a and b in the order of the product, the
 * block-sparse one's values a.data or b.data, c and out (y).
 */
#include "dynamic.h"
#include "views.h"

#include <inttypes.h>

/* The operands' names in messages. */
typedef struct operand_names {
  const char *sparse, *values, *dense;
} operand_names;

static operand_names names_of(const bsrg_matmul_args *args) {
  return args->side == BSRG_A_LEFT ? (operand_names){"a", "a.data", "b"}
                                   : (operand_names){"b", "b.data", "a"};
}

static bool is_empty(const bsrg_dense *dense) { return dense->rows == 0 || dense->cols == 0; }

static bsrg_view view_of(const char *name, const bsrg_dense *dense, int64_t item) {
  return (bsrg_view){.name = name,
                     .data = dense->data,
                     .ndim = 2,
                     .item = item,
                     .shape = {dense->rows, dense->cols},
                     .strides = {dense->row_stride, dense->col_stride}};
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
  if (family == BSRG_ATTENTION_HOPPER || family == BSRG_ATTENTION_DECODE) {
    return bsrg_fail(error, BSRG_ERR_VALUE,
                     "family is '%s', which computes attention; products have 'auto', 'tall', 'stream', "
                     "'regroup', 'narrow', 'portable' and 'cpu'",
                     bsrg_family_name(family));
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

static bsrg_status check_side(const bsrg_matmul_args *args, bsrg_error *error) {
  if (args->side == BSRG_A_LEFT || args->side == BSRG_A_RIGHT) return BSRG_OK;
  return bsrg_fail(error, BSRG_ERR_VALUE, "side is %d, but must be BSRG_A_LEFT or BSRG_A_RIGHT",
                   (int)args->side);
}

static bsrg_status check_shapes(const bsrg_matmul_args *args, const bsrg_structure_view *a,
                                bsrg_error *error) {
  const bsrg_dense *x = &args->x, *y = &args->y, *c = &args->c;
  const bool left = args->side == BSRG_A_LEFT;
  if (left && x->rows != a->cols) {
    return bsrg_fail(error, BSRG_ERR_VALUE,
                     "b has shape (K, N) = (%" PRId64 ", %" PRId64 "), but a has %" PRId64
                     " columns: b must have %" PRId64 " rows",
                     x->rows, x->cols, a->cols, a->cols);
  }
  if (!left && x->cols != a->rows) {
    return bsrg_fail(error, BSRG_ERR_VALUE,
                     "a has shape (N, K) = (%" PRId64 ", %" PRId64 "), but b has %" PRId64
                     " rows: a must have %" PRId64 " columns",
                     x->rows, x->cols, a->rows, a->rows);
  }
  const int64_t rows = left ? a->rows : x->rows, cols = left ? x->cols : a->cols;
  if (y->rows != rows || y->cols != cols) {
    return bsrg_fail(error, BSRG_ERR_VALUE,
                     "out has shape (%" PRId64 ", %" PRId64 "), but a @ b has shape (%" PRId64 ", %" PRId64
                     "), which out must have too",
                     y->rows, y->cols, rows, cols);
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
  const bsrg_dense all = {(void *)args->values, 1, a->nnzb * a->block_height * a->block_width, 0, 1};
  const operand_names names = names_of(args);
  bsrg_view values = view_of(names.values, &all, item), x = view_of(names.dense, &args->x, item);
  bsrg_view y = view_of("out", &args->y, item), c = view_of("c", &args->c, item);
  bsrg_status status = bsrg_view_check(&values, error);
  if (status == BSRG_OK) status = bsrg_view_check(&x, error);
  if (status == BSRG_OK) status = bsrg_view_check(&y, error);
  if (status == BSRG_OK) status = bsrg_view_check_distinct(&y, error);
  if (status != BSRG_OK) return status;
  const char *shared = bsrg_views_overlap(&y, &x)        ? names.dense
                       : bsrg_views_overlap(&y, &values) ? names.values
                                                         : NULL;
  if (shared != NULL) {
    return bsrg_fail(error, BSRG_ERR_VALUE,
                     "out overlaps %s in memory, but must share memory with no operand except c", shared);
  }
  if (args->beta == 0) return BSRG_OK;
  status = bsrg_view_check(&c, error);
  if (status != BSRG_OK) return status;
  if (!same_view(&args->c, &args->y) && bsrg_views_overlap(&y, &c)) {
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

static void turn(bsrg_dense *view) {
  *view = (bsrg_dense){view->data, view->cols, view->rows, view->col_stride, view->row_stride};
}

bsrg_status bsrg_matmul(const bsrg_matmul_args *args, bsrg_error *error) {
  bsrg_status status = check_side(args, error);
  if (status != BSRG_OK) return status;
  if (args->a == NULL)
    return bsrg_fail(error, BSRG_ERR_VALUE, "%s is NULL, but must be a structure", names_of(args).sparse);
  const bsrg_structure_view a = bsrg_structure_get(args->a);
  status = bsrg_check_place(args->dtype, false, args->device, error);
  if (status == BSRG_OK) status = bsrg_dynamic_check_place(args->a, args->device, error);
  if (status == BSRG_OK) status = check_family(args, error);
  if (status == BSRG_OK) status = check_shapes(args, &a, error);
  if (status == BSRG_OK) status = check_memory(args, &a, error);
  if (status != BSRG_OK || is_empty(&args->y)) return status;

  bsrg_matmul_args settled = *args;
  if (args->side == BSRG_A_RIGHT) {
    settled.side = BSRG_A_LEFT;
    turn(&settled.x);
    turn(&settled.c);
    turn(&settled.y);
    status = bsrg_structure_transposed(args->a, &settled.a, error);
    if (status != BSRG_OK) return status;
  }
  settle_strides(&settled.x);
  settle_strides(&settled.c);
  settle_strides(&settled.y);
  return settled.device.kind == BSRG_CPU ? bsrg_cpu_matmul(&settled, error)
                                         : bsrg_gpu_matmul(&settled, error);
}
