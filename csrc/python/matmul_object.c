/* matmul(): imports the operands, checks that they belong together, and calls the core without the GIL. */
#include "matmul_object.h"

#include <string.h>

static bool is_8_bit(const bsrg_operand *operand) { return operand->array.element->bits == 8; }

int bsrg_import_dense(bsrg_state *state, PyObject *obj, bsrg_operand *operand, bsrg_work *work) {
  if (bsrg_import_operand(state, obj, operand, work) < 0) return -1;
  if (operand->array.ndim >= 1) return 0;
  PyErr_Format(PyExc_ValueError, "%s has shape (), but must have at least one dimension", operand->name);
  return -1;
}

/* c as NumPy broadcasts it to the result: repeated along dimensions that it lacks or where it has one element. */
static int broadcast(bsrg_operand *operand, const bsrg_array *result) {
  bsrg_array *array = &operand->array;
  const int missing = result->ndim - array->ndim;
  bsrg_array repeated = *array;
  repeated.ndim = result->ndim;
  bool fits = missing >= 0;
  for (int i = 0; fits && i < result->ndim; ++i) {
    const int64_t size = i < missing ? 1 : array->shape[i - missing];
    fits = size == result->shape[i] || size == 1;
    repeated.shape[i] = result->shape[i];
    repeated.strides[i] = size == 1 ? 0 : array->strides[i - missing];
  }
  if (!fits) {
    PyErr_Format(PyExc_ValueError, "%s has shape %s, but must have or broadcast to the result's shape %s",
                 operand->name, bsrg_format_shape(array->ndim, array->shape).text,
                 bsrg_format_shape(result->ndim, result->shape).text);
    return -1;
  }
  *array = repeated;
  return 0;
}

/* A vector is a matrix of one column right of A, and of one row left of it. */
static bool is_vector(const bsrg_operand *dense) { return dense->array.ndim == 1; }

/* The batch is what is before the matrices, or vectors, of out. Values and the dense operand are repeated along what they
 * lack or have one of, but not both along the same dimension, and out has no more dimensions than they. */
static int set_batch(const bsrg_operand *values, const bsrg_operand *dense, const bsrg_operand *out,
                     bsrg_batch *batch) {
  const bsrg_array *y = &out->array, *parts[2] = {&values->array, &dense->array};
  const int core = is_vector(dense) ? 1 : 2, dims[2] = {values->array.ndim - 3, dense->array.ndim - core};
  int64_t *strides[2] = {batch->values_strides, batch->x_strides};
  batch->ndim = y->ndim - core;
  bool fits = batch->ndim <= BSRG_BATCH_DIMS && batch->ndim == (dims[0] > dims[1] ? dims[0] : dims[1]);
  for (int d = 0; fits && d < batch->ndim; ++d) {
    batch->shape[d] = y->shape[d];
    batch->y_strides[d] = y->strides[d];
    bool found = y->shape[d] == 1;
    for (int i = 0; fits && i < 2; ++i) {
      const int at = d - (batch->ndim - dims[i]);
      const int64_t size = at < 0 ? 1 : parts[i]->shape[at];
      found = found || size == y->shape[d];
      fits = size == 1 || size == y->shape[d];
      strides[i][d] = size == 1 ? 0 : parts[i]->strides[at];
    }
    fits = fits && found;
  }
  if (fits) return 0;
  PyErr_Format(PyExc_ValueError,
               "%s has shape %s, %s has shape %s and %s has shape %s, but %s must have the dimensions before "
               "the last ones that those of the others broadcast to, at most %d",
               out->name, bsrg_format_shape(y->ndim, y->shape).text, dense->name,
               bsrg_format_shape(dense->array.ndim, dense->array.shape).text, values->name,
               bsrg_format_shape(values->array.ndim, values->array.shape).text, out->name, BSRG_BATCH_DIMS);
  return -1;
}

/* The first matrix of a batch. */
static bsrg_dense as_dense(const bsrg_operand *operand, bsrg_side side, bool vector) {
  if (!vector) return bsrg_operand_dense(operand);
  const bsrg_array *array = &operand->array;
  const int n = array->ndim - 1;
  return side == BSRG_A_LEFT ? (bsrg_dense){array->data, array->shape[n], 1, array->strides[n], 1}
                             : (bsrg_dense){array->data, 1, array->shape[n], 1, array->strides[n]};
}

/* A vector of the epilogue: of one dimension or, with one element across, of two, along number 0 or 1 of these. None and NULL
 * stand for none. */
static int import_vector(bsrg_state *state, PyObject *obj, int along, bsrg_operand *operand,
                         bsrg_work *work) {
  if (bsrg_is_absent(obj)) return 0;
  if (bsrg_import_operand(state, obj, operand, work) < 0) return -1;
  bsrg_array *array = &operand->array;
  if (array->ndim == 2 && array->shape[1 - along] == 1) {
    array->ndim = 1;
    array->shape[0] = array->shape[along];
    array->strides[0] = array->strides[along];
  }
  return bsrg_check_dimensions(operand, 1, "one (or, with one element across, two)");
}

static int import_operands(bsrg_state *state, PyObject *const *objects, bsrg_work *work,
                           bsrg_operand *operands) {
  if ((!operands[DENSE].given && bsrg_import_dense(state, objects[DENSE], &operands[DENSE], work) < 0) ||
      (!operands[VALUES].given && bsrg_import_operand(state, objects[VALUES], &operands[VALUES], work) < 0) ||
      bsrg_check_same_kind(&operands[VALUES], &operands[DENSE]) < 0 ||
      bsrg_import_dense(state, objects[OUT], &operands[OUT], work) < 0) {
    return -1;
  }
  if (objects[C] == objects[OUT]) {
    bsrg_share_operand(&operands[OUT], &operands[C]);
  } else if (!bsrg_is_absent(objects[C]) && (bsrg_import_operand(state, objects[C], &operands[C], work) < 0 ||
                                             broadcast(&operands[C], &operands[OUT].array) < 0)) {
    return -1;
  }
  for (int i = ROW_SCALE; i <= COL_BIAS; ++i) {
    if (!operands[i].given && import_vector(state, objects[i], (i - ROW_SCALE) % 2, &operands[i], work) < 0)
      return -1;
    if (operands[i].given && bsrg_check_same_device(&operands[VALUES], &operands[i]) < 0) return -1;
  }
  const bool eight = is_8_bit(&operands[VALUES]);
  if (eight ? bsrg_check_same_device(&operands[VALUES], &operands[OUT]) < 0
            : bsrg_check_same_kind(&operands[VALUES], &operands[OUT]) < 0) {
    return -1;
  }
  if (bsrg_check_same_kind(&operands[eight ? OUT : VALUES], &operands[C]) < 0) return -1;
  return bsrg_check_writable(&operands[OUT]);
}

static bsrg_vector as_vector(const bsrg_operand *operand) {
  const bsrg_array *array = &operand->array;
  if (!operand->given) return (bsrg_vector){NULL, 0, 0, BSRG_F32};
  return (bsrg_vector){array->data, array->shape[0], array->strides[0], (bsrg_dtype)array->element->dtype};
}

static int set_dense(bsrg_matmul_args *call, const bsrg_operand *operands) {
  if (set_batch(&operands[VALUES], &operands[DENSE], &operands[OUT], &call->batch) < 0) return -1;
  const bool vector = is_vector(&operands[DENSE]);
  call->x = as_dense(&operands[DENSE], call->side, vector);
  if (operands[C].given) {
    call->c = as_dense(&operands[C], call->side, vector);
    memcpy(call->batch.c_strides, operands[C].array.strides,
           sizeof(*call->batch.c_strides) * (size_t)call->batch.ndim);
  }
  call->y = as_dense(&operands[OUT], call->side, vector);
  return 0;
}

/* Factors of float32 on the device of the values: one, in any number of dimensions, or a vector. */
static int import_scale(bsrg_state *state, PyObject *obj, bsrg_work *work, const bsrg_operand *values,
                        bsrg_operand *operand, const float **data, int64_t *count) {
  if (bsrg_is_absent(obj)) return 0;
  if (bsrg_import_operand(state, obj, operand, work) < 0 || bsrg_check_same_device(values, operand) < 0) {
    return -1;
  }
  const bsrg_array *array = &operand->array;
  *count = bsrg_array_size(array);
  const bool is_float32 = array->element->dtype == BSRG_F32;
  if (!is_float32 || (*count != 1 && array->ndim != 1) || !bsrg_is_contiguous(array)) {
    PyErr_Format(is_float32 ? PyExc_ValueError : PyExc_TypeError,
                 "%s has dtype %s, shape %s and strides %s, but must have dtype float32 and one dimension or "
                 "element, C-contiguous",
                 operand->name, array->element->name, bsrg_format_shape(array->ndim, array->shape).text,
                 bsrg_format_shape(array->ndim, array->strides).text);
    return -1;
  }
  /* An empty vector may have no memory; there are no blocks to multiply then. */
  *data = *count > 0 ? array->data : NULL;
  return 0;
}

static int import_scales(bsrg_state *state, PyObject *const *objects, bsrg_work *work, bsrg_operand *operands,
                         bsrg_matmul_args *args) {
  int64_t count = 1;
  if (import_scale(state, objects[VALUES_SCALE], work, &operands[VALUES], &operands[VALUES_SCALE],
                   &args->values_scale, &args->values_scale_count) < 0 ||
      import_scale(state, objects[X_SCALE], work, &operands[VALUES], &operands[X_SCALE], &args->x_scale,
                   &count) < 0) {
    return -1;
  }
  const int64_t nnzb = bsrg_structure_get(args->a).nnzb;
  if (!bsrg_is_absent(objects[VALUES_SCALE]) && args->values_scale_count == 0 && nnzb > 0) {
    PyErr_Format(
        PyExc_ValueError,
        "%s has 0 elements, but %s stores %lld blocks: it must have one element, or one for each block",
        operands[VALUES_SCALE].name, operands[VALUES].name, (long long)nnzb);
    return -1;
  }
  if (count == 1) return 0;
  PyErr_Format(PyExc_ValueError, "%s has shape %s, but must have one element", operands[X_SCALE].name,
               bsrg_format_shape(operands[X_SCALE].array.ndim, operands[X_SCALE].array.shape).text);
  return -1;
}

#define MATMUL_ARGUMENTS(X) \
  X(structure)              \
  X(values)                 \
  X(x)                      \
  X(out)                    \
  X(c)                      \
  X(alpha)                  \
  X(beta)                   \
  X(stream)                 \
  X(family)                 \
  X(right)                  \
  X(row_scale)              \
  X(col_scale)              \
  X(row_bias)               \
  X(col_bias)               \
  X(activation)             \
  X(precision)              \
  X(values_scale)           \
  X(x_scale)                \
  X(chip)
enum { MATMUL_ARGUMENTS(BSRG_PY_PLACE) ARGUMENTS };

static int parse_scalars(PyObject *const *found, bsrg_matmul_args *args, bsrg_work *work) {
  args->alpha = 1.0;
  args->beta = 0.0;
  args->family = BSRG_AUTO;
  if (found[AT_alpha] != NULL && bsrg_parse_real(found[AT_alpha], "alpha", &args->alpha) < 0) return -1;
  if (found[AT_beta] != NULL && bsrg_parse_real(found[AT_beta], "beta", &args->beta) < 0) return -1;
  if (bsrg_parse_work(found[AT_stream], work) < 0) return -1;
  if (found[AT_family] != NULL && bsrg_parse_family(found[AT_family], &args->family) < 0) return -1;
  const int right = found[AT_right] == NULL ? 0 : PyObject_IsTrue(found[AT_right]);
  if (right < 0) return -1;
  args->side = right ? BSRG_A_RIGHT : BSRG_A_LEFT;
  if (found[AT_precision] != NULL && bsrg_parse_precision(found[AT_precision], &args->precision) < 0)
    return -1;
  PyObject *activation = found[AT_activation];
  return activation == NULL ? 0 : bsrg_parse_activation(activation, &args->epilogue.activation);
}

void bsrg_name_operands(bsrg_matmul_call *call) {
  const bool right = call->args.side == BSRG_A_RIGHT;
  const char *const names[OPERANDS] = {[VALUES] = right ? "b.data" : "a.data",
                                       [DENSE] = right ? "a" : "b",
                                       [C] = "c",
                                       [OUT] = "out",
                                       [ROW_SCALE] = "row_scale",
                                       [COL_SCALE] = "col_scale",
                                       [ROW_BIAS] = "bias",
                                       [COL_BIAS] = "bias",
                                       [VALUES_SCALE] = right ? "b_scale" : "a_scale",
                                       [X_SCALE] = right ? "a_scale" : "b_scale"};
  for (int i = 0; i < OPERANDS; ++i) call->operands[i].name = names[i];
  for (int i = VALUES; i <= DENSE; ++i) call->operands[i].takes_e4m3 = call->operands[i].takes_e5m2 = true;
}

bsrg_outcome bsrg_call_matmul(bsrg_state *state, PyObject *const *objects, bsrg_matmul_call *call) {
  bsrg_matmul_args *args = &call->args;
  bsrg_operand *operands = call->operands;
  bsrg_outcome outcome = BSRG_REFUSED;
  const bsrg_structure_view view = bsrg_structure_get(args->a);
  if (import_operands(state, objects, &call->work, operands) == 0 &&
      import_scales(state, objects, &call->work, operands, args) == 0 &&
      bsrg_check_value_batch(&view, &operands[VALUES]) == 0 && set_dense(args, operands) == 0) {
    args->values = operands[VALUES].array.data;
    args->dtype = (bsrg_dtype)operands[VALUES].array.element->dtype;
    args->out_dtype = (bsrg_dtype)operands[OUT].array.element->dtype;
    args->device = operands[VALUES].array.device;
    if (call->question) {
      args->device = bsrg_device_of_question(call->question, args->device);
      args->question = call->question->asked;
    }
    args->epilogue.row_scale = as_vector(&operands[ROW_SCALE]);
    args->epilogue.col_scale = as_vector(&operands[COL_SCALE]);
    args->epilogue.row_bias = as_vector(&operands[ROW_BIAS]);
    args->epilogue.col_bias = as_vector(&operands[COL_BIAS]);
    args->stream = call->work.stream;
    bsrg_error error;
    bsrg_status status = BSRG_OK;
    Py_BEGIN_ALLOW_THREADS;
    if (call->transposed) status = bsrg_structure_transposed(args->a, &args->a, &error);
    if (status == BSRG_OK) status = bsrg_matmul(args, &error);
    Py_END_ALLOW_THREADS;
    outcome = bsrg_outcome_of(state, status, &error);
  }
  bsrg_release_operands(state, operands, OPERANDS, outcome == BSRG_DONE, &call->work);
  return outcome;
}

PyObject *bsrg_py_matmul(PyObject *module, PyObject *const *args, Py_ssize_t nargs, PyObject *kwnames) {
  static const bsrg_name names[] = {MATMUL_ARGUMENTS(BSRG_PY_NAME)};
  static const bsrg_signature signature = {"matmul", 4, ARGUMENTS, names};
  bsrg_state *state = PyModule_GetState(module);
  PyObject *found[ARGUMENTS];
  if (bsrg_parse(state, &signature, args, nargs, kwnames, found) < 0) return NULL;
  bsrg_chip_question question;
  bsrg_matmul_call call = {.args.a = bsrg_matrix_structure(state, found[AT_structure]),
                           .question = &question};
  if (call.args.a == NULL || parse_scalars(found, &call.args, &call.work) < 0 ||
      bsrg_parse_question(found[AT_chip], &question) < 0) {
    return NULL;
  }
  bsrg_name_operands(&call);
  PyObject *const objects[OPERANDS] = {[VALUES] = found[AT_values],
                                       [DENSE] = found[AT_x],
                                       [OUT] = found[AT_out],
                                       [C] = found[AT_c],
                                       [ROW_SCALE] = found[AT_row_scale],
                                       [COL_SCALE] = found[AT_col_scale],
                                       [ROW_BIAS] = found[AT_row_bias],
                                       [COL_BIAS] = found[AT_col_bias],
                                       [VALUES_SCALE] = found[AT_values_scale],
                                       [X_SCALE] = found[AT_x_scale]};
  return bsrg_call_matmul(state, objects, &call) == BSRG_DONE ? bsrg_answer(&question) : NULL;
}

const char bsrg_matmul_doc[] =
    "matmul(structure, values, x, out, c=None, alpha=1.0, beta=0.0, stream=0, family='auto', right=False,\n"
    "       row_scale=None, col_scale=None, row_bias=None, col_bias=None, activation=None,\n"
    "       precision='ieee', values_scale=None, x_scale=None, chip=None)\n"
    "--\n\n"
    "out = alpha * A @ x + beta * c, for the block-sparse matrix A of structure and values.\n\n"
    "structure  a Structure or DynamicStructure of a matrix of M rows and K columns\n"
    "values     [..., nnzb or capacity, block height, block width], C-contiguous; with a transposed "
    "structure\n"
    "           those of the one that it is the transposed of\n"
    "x          [..., K, N] or [K], any strides; vectors are matrices of one column\n"
    "out        [..., M, N] or [..., M], writable, any strides, sharing memory with no operand unless it is "
    "c;\n"
    "           values and x are broadcast to its dimensions before the last ones, of which it has no more\n"
    "c          of out's shape, or broadcast to it as NumPy does, or None; not read when beta is 0\n"
    "stream     CUDA stream handle; None takes the current stream of x's library\n"
    "family     'auto', or one of 'tall', 'stream', 'regroup', 'align', 'narrow', 'portable', 'kmajor', "
    "'widen',\n"
    "           'kstream' (GPU) and 'cpu'\n"
    "right      True: out = alpha * x @ A + beta * c, with x [..., N, M] or [M], out [..., N, K] or [K]; "
    "vectors\n"
    "           are matrices of one row\n"
    "row_scale, col_scale, row_bias, col_bias\n"
    "           vectors with an element for each row or column of out: the product is multiplied by the\n"
    "           scales before c and the biases are added; float32 is accepted with 16-bit operands\n"
    "activation of all that, before it is rounded: None, 'relu', 'gelu', 'gelu_tanh', 'silu'\n"
    "precision  'ieee', or of float32 'tf32'\n"
    "values_scale, x_scale  of 8-bit operands: None, or float32 factors on their device, of values one or "
    "one\n"
    "           for each block, of x one\n"
    "chip       None, or as in Structure.explain: then nothing is computed or read, and the name of the\n"
    "           family is returned that would compute the call, were its operands on such a GPU\n\n"
    "Operands are of one dtype (float16, bfloat16, float32, float64) and on one device; 16-bit dtypes are\n"
    "accumulated in float32. With values and x of float8_e4m3fn or float8_e5m2, out and c are float16,\n"
    "bfloat16 or float32. On a GPU the call returns once the work is on the stream, behind what the\n"
    "operands' libraries have pending on other streams. Messages call the operands a and b in the order of\n"
    "the product, and values a.data or b.data.\n\n"
    "Raises TypeError (no array, dtype, device), ValueError (shapes, strides, memory), MemoryError,\n"
    "DeviceUnavailableError, RuntimeError (CUDA).";
