/* try_matmul(), try_linear(): products of the usual kinds of arrays, whose cost on the host is what small products take.
 * Whatever is not usual, and whatever is wrong, gives NotImplemented: the package then goes the general way, which takes
 * more kinds and has the error messages. Nothing is remembered between calls but types, so a call cannot be mistaken for
 * an earlier one. */
#include "matmul_object.h"
#include "usual.h"

/* ---- what the general way does in Python ------------------------------------------------------------ */

typedef struct result_shape {
  int ndim;
  int64_t sizes[BSRG_MAX_DIMS];
} result_shape;

/* Of batches what they broadcast to, if they do, else anything. */
static result_shape shape_of_result(const bsrg_matmul_call *call) {
  const bsrg_array *dense = &call->operands[DENSE].array, *values = &call->operands[VALUES].array;
  const bsrg_structure_view a = bsrg_structure_get(call->args.a);
  const bool right = call->args.side == BSRG_A_RIGHT;
  const int core = dense->ndim == 1 ? 1 : 2, lead = dense->ndim - core, values_lead = values->ndim - 3;
  result_shape shape = {.ndim = (lead > values_lead ? lead : values_lead) + core};
  const int missing = shape.ndim - dense->ndim;
  for (int i = 0; i < shape.ndim; ++i) shape.sizes[i] = i < missing ? 1 : dense->shape[i - missing];
  for (int i = 0; i < values_lead; ++i) {
    int64_t *const size = &shape.sizes[shape.ndim - core - values_lead + i];
    if (*size == 1) *size = values->shape[i];
  }
  shape.sizes[right || core == 1 ? shape.ndim - 1 : shape.ndim - 2] =
      right != call->transposed ? a.cols : a.rows;
  return shape;
}

/* Makes a bias one of rows or of columns, by its shape and that of a result of two or more dimensions. */
static bool place_bias(const result_shape *shape, bsrg_operand *operands) {
  bsrg_array *bias = &operands[COL_BIAS].array;
  const int64_t rows = shape->sizes[shape->ndim - 2], cols = shape->sizes[shape->ndim - 1];
  if (bias->ndim == 1) return bias->shape[0] == cols;
  if (bias->ndim != 2) return false;
  bias->ndim = 1;
  if (bias->shape[0] == 1 && bias->shape[1] == cols) {
    bias->shape[0] = cols;
    bias->strides[0] = bias->strides[1];
    return true;
  }
  operands[ROW_BIAS] = operands[COL_BIAS];
  operands[COL_BIAS].given = false;
  return bias->shape[0] == rows && bias->shape[1] == 1;
}

/* ---- the calls ------------------------------------------------------------------------------------ */

/* The dense operand, the values, a new result where none is given, and the bias. */
static bool begin(bsrg_state *state, PyObject **objects, PyObject *bias, bsrg_matmul_call *call) {
  bsrg_operand *operands = call->operands;
  bsrg_name_operands(call);
  call->work = (bsrg_work){.mode = BSRG_ADOPT_STREAM};
  if (bsrg_import_dense(state, objects[DENSE], &operands[DENSE], &call->work) < 0 ||
      bsrg_import_operand(state, objects[VALUES], &operands[VALUES], &call->work) < 0)
    return false;
  const bsrg_array *dense = &operands[DENSE].array;
  const result_shape shape = shape_of_result(call);
  const bool is_layer = call->transposed;
  /* A layer has one matrix, and its batch is one, which others are copied into. */
  if (is_layer && (operands[VALUES].array.ndim != 3 || (dense->ndim > 2 && !bsrg_is_contiguous(dense))))
    return false;
  if (objects[OUT] == NULL)
    objects[OUT] = bsrg_new_usual(state, objects[DENSE], dense->element, shape.ndim, shape.sizes);
  if (objects[OUT] == NULL) return false;
  /* What vectors are allowed of a result of one dimension is another question. */
  const bool vectors = bias != NULL || objects[ROW_SCALE] != NULL || objects[COL_SCALE] != NULL;
  if (vectors && !is_layer && shape.ndim < 2) return false;
  if (bias == NULL) return true;
  if (bsrg_import_operand(state, bias, &operands[COL_BIAS], &call->work) < 0) return false;
  return is_layer ? operands[COL_BIAS].array.ndim == 1 : place_bias(&shape, operands);
}

/* The product, into objects[OUT] or a new array. */
static PyObject *try_product(bsrg_state *state, PyObject **objects, PyObject *bias, bsrg_matmul_call *call) {
  Py_XINCREF(objects[OUT]);
  bsrg_outcome outcome = BSRG_REFUSED;
  if (begin(state, objects, bias, call)) {
    outcome = bsrg_call_matmul(state, objects, call);
  } else {
    bsrg_release_operands(state, call->operands, OPERANDS, false, &call->work);
  }
  if (outcome == BSRG_DONE) return objects[OUT];
  Py_XDECREF(objects[OUT]);
  return outcome == BSRG_FAILED ? NULL : bsrg_give_up();
}

/* None becomes NULL. */
static PyObject *given(PyObject *obj) { return obj == Py_None ? NULL : obj; }

PyObject *bsrg_py_try_matmul(PyObject *module, PyObject *const *args, Py_ssize_t nargs) {
  enum { COUNT = 13 };
  bsrg_state *state = PyModule_GetState(module);
  if (nargs != COUNT) return PyErr_Format(PyExc_TypeError, "try_matmul() takes %d arguments", COUNT);
  PyObject *alpha = args[5], *beta = given(args[6]), *bias = given(args[7]);
  PyObject *objects[OPERANDS] = {[VALUES] = args[1],           [DENSE] = args[2],
                                 [C] = given(args[4]),         [OUT] = given(args[11]),
                                 [ROW_SCALE] = given(args[9]), [COL_SCALE] = given(args[10])};
  bsrg_recording recorded = BSRG_RECORDING_UNKNOWN;
  for (int i = 0; i < OPERANDS; ++i)
    if (objects[i] != NULL && !bsrg_is_usual(state, objects[i], i == VALUES, &recorded))
      return bsrg_give_up();
  if (bias != NULL && !bsrg_is_usual(state, bias, false, &recorded)) return bsrg_give_up();
  bsrg_matmul_call call = {.args = {.a = bsrg_matrix_structure(state, args[0]),
                                    .side = args[3] == Py_True ? BSRG_A_RIGHT : BSRG_A_LEFT,
                                    .beta = objects[C] != NULL}};
  if (call.args.a == NULL || !bsrg_parse_factor(alpha, &call.args.alpha) ||
      (beta != NULL && !bsrg_parse_factor(beta, &call.args.beta)) ||
      (objects[C] == NULL && call.args.beta != 0) ||
      bsrg_parse_activation(args[8], &call.args.epilogue.activation) < 0 ||
      bsrg_parse_precision(args[12], &call.args.precision) < 0) {
    return bsrg_give_up();
  }
  return try_product(state, objects, bias, &call);
}

PyObject *bsrg_py_try_linear(PyObject *module, PyObject *const *args, Py_ssize_t nargs) {
  enum { COUNT = 5 };
  bsrg_state *state = PyModule_GetState(module);
  if (nargs != COUNT) return PyErr_Format(PyExc_TypeError, "try_linear() takes %d arguments", COUNT);
  PyObject *objects[OPERANDS] = {[VALUES] = args[1], [DENSE] = args[2]}, *bias = given(args[3]);
  bsrg_recording recorded = BSRG_RECORDING_UNKNOWN;
  if (!bsrg_is_plain_tensor(state, objects[VALUES], false, &recorded) || /* a layer's may be replaced */
      !bsrg_is_plain_tensor(state, objects[DENSE], false, &recorded) ||
      (bias != NULL && !bsrg_is_plain_tensor(state, bias, false, &recorded))) {
    return bsrg_give_up();
  }
  if (!Py_IS_TYPE(args[0], state->structure_type)) return bsrg_not_implemented();
  bsrg_matmul_call call = {.args = {.a = bsrg_structure_of(args[0]), .side = BSRG_A_RIGHT, .alpha = 1.0},
                           .transposed = true};
  if (bsrg_structure_get(call.args.a).order != NULL) return bsrg_not_implemented();
  if (bsrg_parse_activation(args[4], &call.args.epilogue.activation) < 0) return bsrg_give_up();
  return try_product(state, objects, bias, &call);
}

const char bsrg_try_matmul_doc[] =
    "try_matmul(structure, values, dense, right, c, alpha, beta, bias, activation, row_scale, col_scale, "
    "out,\n"
    "           precision, /)\n"
    "--\n\n"
    "What bsrgemm.matmul returns, or NotImplemented where that has to find out what is asked for.\n\n"
    "Arguments are those of bsrgemm.matmul, the block-sparse one as its structure and values; it stands on "
    "the\n"
    "right where right is True.";

const char bsrg_try_linear_doc[] =
    "try_linear(structure, values, input, bias, activation, /)\n"
    "--\n\n"
    "What bsrgemm.torch.linear returns where nothing is recorded, or NotImplemented. The structure is the\n"
    "weight's; modes of PyTorch are the caller's business.";
