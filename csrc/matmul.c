/* BSR x dense and dense x BSR: checks everything that a backend relies on, then hands over to the backend of the
 * device, which knows the former only: X @ A is the transpose of A^T @ X^T, and views of transposes cost nothing.
 *
 * Messages call the operands what users of the Python package call them: a and b in the order of the product, the
 * block-sparse one's values a.data or b.data, c and out (y).
 */
#include "batch.h"
#include "dense.h"
#include "dynamic.h"
#include "epilogue.h"

#include <inttypes.h>
#include <stdio.h>

/* The operands' names in messages. */
typedef struct operand_names {
  const char *sparse, *values, *dense;
} operand_names;

static operand_names names_of(const bsrg_matmul_args *args) {
  return args->side == BSRG_A_LEFT ? (operand_names){"a", "a.data", "b"}
                                   : (operand_names){"b", "b.data", "a"};
}

/* What a family computes that is not for these products. */
static const char *other_operation(bsrg_family family) {
  switch (family) {
    case BSRG_ATTENTION_HOPPER:
    case BSRG_ATTENTION_DECODE:
      return "attention";
    case BSRG_SAMPLED:
    case BSRG_COVER:
      return "sampled products";
    case BSRG_PAIRS:
    case BSRG_SPREAD:
      return "products of two block-sparse matrices";
    default:
      return NULL;
  }
}

static bsrg_status check_family(const bsrg_matmul_args *args, bsrg_error *error) {
  const bsrg_family family = args->family;
  if ((int)family < 0 || family >= BSRG_FAMILY_COUNT) {
    return bsrg_fail(error, BSRG_ERR_VALUE, "family is %d, but families are numbered 0 to %d", (int)family,
                     BSRG_FAMILY_COUNT - 1);
  }
  const char *other = other_operation(family);
  if (other != NULL) {
    return bsrg_fail(
        error, BSRG_ERR_VALUE,
        "family is '%s', which computes %s; products of BSR and dense matrices have 'auto', 'tall', "
        "'stream', 'regroup', 'align', 'narrow', 'portable', 'kmajor', 'widen', 'kstream' and "
        "'cpu'",
        bsrg_family_name(family), other);
  }
  return bsrg_check_family_place(family, args->device, "only the GPU's families can be used", error);
}

/* Of float32 and 8-bit operands: what only those have. */
static bsrg_status check_precision(const bsrg_matmul_args *args, bsrg_error *error) {
  const bool eight = bsrg_is_8_bit(args->dtype);
  const operand_names names = names_of(args);
  const bsrg_status status = bsrg_check_precision(args->precision, error);
  if (status != BSRG_OK) return status;
  if (args->precision == BSRG_TF32 && args->dtype != BSRG_F32)
    return bsrg_fail(error, BSRG_ERR_TYPE, "precision is 'tf32', but %s has dtype %s: only float32 has it",
                     names.values, bsrg_dtype_name(args->dtype));
  if (!eight && (args->values_scale || args->x_scale))
    return bsrg_fail(
        error, BSRG_ERR_TYPE, "%s_scale is given, but %s has dtype %s: only 8-bit floats take scales",
        args->values_scale ? names.sparse : names.dense, names.values, bsrg_dtype_name(args->dtype));
  if (eight && args->out_dtype != BSRG_F16 && args->out_dtype != BSRG_BF16 && args->out_dtype != BSRG_F32)
    return bsrg_fail(error, BSRG_ERR_TYPE,
                     "out has dtype %s, but must have dtype float16, bfloat16 or float32, as %s has dtype %s",
                     bsrg_dtype_name(args->out_dtype), names.values, bsrg_dtype_name(args->dtype));
  return BSRG_OK;
}

static bsrg_status check_scales(const bsrg_matmul_args *args, const bsrg_structure_view *a, bsrg_view *y,
                                bsrg_error *error) {
  if (!args->values_scale && !args->x_scale) return BSRG_OK;
  const operand_names names = names_of(args);
  if (args->values_scale && args->values_scale_count != 1 && args->values_scale_count != a->nnzb)
    return bsrg_fail(error, BSRG_ERR_VALUE,
                     "%s_scale has %" PRId64 " elements, but %s stores %" PRId64
                     " blocks: it must have one element, or one for each block",
                     names.sparse, args->values_scale_count, names.sparse, a->nnzb);
  char sparse_name[16], dense_name[16];
  snprintf(sparse_name, sizeof sparse_name, "%s_scale", names.sparse);
  snprintf(dense_name, sizeof dense_name, "%s_scale", names.dense);
  const bsrg_dense scales[2] = {{(void *)args->values_scale, 1, args->values_scale_count, 0, 1},
                                {(void *)args->x_scale, 1, 1, 0, 1}};
  for (int i = 0; i < 2; ++i) {
    if (!scales[i].data) continue;
    bsrg_view view = bsrg_dense_view(i == 0 ? sparse_name : dense_name, &scales[i], sizeof(float));
    bsrg_status status = bsrg_view_check(&view, error);
    if (status == BSRG_OK) status = bsrg_check_apart(y, &view, error);
    if (status != BSRG_OK) return status;
  }
  return BSRG_OK;
}

static bsrg_status check_side(const bsrg_matmul_args *args, bsrg_error *error) {
  if (args->side == BSRG_A_LEFT || args->side == BSRG_A_RIGHT) return BSRG_OK;
  return bsrg_fail(error, BSRG_ERR_VALUE, "side is %d, but must be BSRG_A_LEFT or BSRG_A_RIGHT",
                   (int)args->side);
}

static bsrg_status check_batch(const bsrg_batch *batch, bsrg_error *error) {
  if (batch->ndim >= 0 && batch->ndim <= BSRG_BATCH_DIMS) return BSRG_OK;
  return bsrg_fail(error, BSRG_ERR_VALUE, "batch has %d dimensions, but must have 0 to %d", batch->ndim,
                   BSRG_BATCH_DIMS);
}

static bsrg_status check_shapes(const bsrg_matmul_args *args, const bsrg_structure_view *a,
                                bsrg_error *error) {
  const bsrg_dense *x = &args->x;
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
  return bsrg_check_shapes_of_result(&args->y, &args->c, args->beta, left ? a->rows : x->rows,
                                     left ? x->cols : a->cols, error);
}

static bsrg_status check_memory(const bsrg_matmul_args *args, const bsrg_structure_view *a,
                                bsrg_error *error) {
  const int64_t item = (int64_t)bsrg_dtype_size(args->dtype);
  /* The product fits: bsrg_structure_create has made sure. */
  const bsrg_dense all = {(void *)args->values, 1, a->nnzb * a->block_height * a->block_width, 0, 1};
  const operand_names names = names_of(args);
  const int64_t out_item = (int64_t)bsrg_dtype_size(bsrg_out_dtype(args));
  const bsrg_batch *batch = &args->batch;
  bsrg_view values =
      bsrg_batch_view(names.values, &all, batch->ndim, batch->shape, batch->values_strides, item);
  bsrg_view x = bsrg_batch_view(names.dense, &args->x, batch->ndim, batch->shape, batch->x_strides, item);
  bsrg_view y = bsrg_batch_view("out", &args->y, batch->ndim, batch->shape, batch->y_strides, out_item);
  bsrg_view c = bsrg_batch_view("c", &args->c, batch->ndim, batch->shape, batch->c_strides, out_item);
  bsrg_status status = bsrg_view_check(&values, error);
  if (status == BSRG_OK) status = bsrg_view_check(&x, error);
  if (status == BSRG_OK) status = bsrg_view_check(&y, error);
  if (status == BSRG_OK) status = bsrg_view_check_distinct(&y, error);
  if (status == BSRG_OK) status = bsrg_check_apart(&y, &x, error);
  if (status == BSRG_OK) status = bsrg_check_apart(&y, &values, error);
  if (status == BSRG_OK) status = bsrg_epilogue_check_memory(&args->epilogue, &y, error);
  if (status == BSRG_OK) status = check_scales(args, a, &y, error);
  if (status == BSRG_OK && args->beta != 0) status = bsrg_check_memory_of_c(&y, &c, error);
  return status;
}

bsrg_status bsrg_matmul(const bsrg_matmul_args *args, bsrg_error *error) {
  if (args->question) args->question->family = BSRG_AUTO;
  bsrg_status status = check_side(args, error);
  if (status != BSRG_OK) return status;
  if (args->a == NULL)
    return bsrg_fail(error, BSRG_ERR_VALUE, "%s is NULL, but must be a structure", names_of(args).sparse);
  const bsrg_structure_view a = bsrg_structure_get(args->a);
  status = bsrg_check_place(args->dtype, BSRG_TAKES_BOTH, args->device, error);
  if (status == BSRG_OK && !args->question) status = bsrg_dynamic_check_place(args->a, args->device, error);
  if (status == BSRG_OK) status = check_precision(args, error);
  if (status == BSRG_OK) status = bsrg_check_factor(args->alpha, "alpha", args->dtype, error);
  if (status == BSRG_OK) status = bsrg_check_factor(args->beta, "beta", args->dtype, error);
  if (status == BSRG_OK) status = check_family(args, error);
  if (status == BSRG_OK) status = check_batch(&args->batch, error);
  if (status == BSRG_OK) status = check_shapes(args, &a, error);
  if (status == BSRG_OK) status = bsrg_epilogue_check(args, error);
  if (status == BSRG_OK) status = check_memory(args, &a, error);
  if (status != BSRG_OK || bsrg_dense_is_empty(&args->y) ||
      bsrg_batch_is_empty(args->batch.ndim, args->batch.shape))
    return status;

  bsrg_matmul_args settled = *args;
  if (args->side == BSRG_A_RIGHT) {
    settled.side = BSRG_A_LEFT;
    bsrg_dense_turn(&settled.x);
    bsrg_dense_turn(&settled.c);
    bsrg_dense_turn(&settled.y);
    bsrg_epilogue_turn(&settled.epilogue);
    status = bsrg_structure_transposed(args->a, &settled.a, error);
    if (status != BSRG_OK) return status;
  }
  bsrg_batch_fold(&settled);
  bsrg_dense_settle(&settled.x);
  bsrg_dense_settle(&settled.c);
  bsrg_dense_settle(&settled.y);
  /* Devices get the last dimension as a whole. */
  const bool on_gpu = settled.device.kind != BSRG_CPU;
  bsrg_batch last = {0};
  if (!args->question && settled.batch.ndim > 0) last = bsrg_batch_take_last(&settled.batch);
  int64_t position[BSRG_BATCH_DIMS] = {0};
  do {
    bsrg_matmul_args one = bsrg_batch_at(&settled, position);
    one.batch = last;
    status = on_gpu ? bsrg_gpu_matmul(&one, error) : bsrg_cpu_matmul(&one, error);
  } while (status == BSRG_OK && !args->question &&
           bsrg_batch_next(settled.batch.ndim, settled.batch.shape, position));
  return status;
}
