/* matmul(): imports the operands, checks that they belong together, and calls the core without the GIL. */
#include "operands.h"

#include <string.h>

static bool is_8_bit(const bsrg_operand *operand) { return operand->array.element->bits == 8; }

static int check_dimensions(const bsrg_operand *operand, int ndim, const char *accepted) {
  const bsrg_array *array = &operand->array;
  if (array->ndim == ndim) return 0;
  PyErr_Format(PyExc_ValueError, "%s has shape %s, but must have %s dimensions", operand->name,
               bsrg_format_shape(array->ndim, array->shape).text, accepted);
  return -1;
}

static int import_values(bsrg_state *state, PyObject *obj, bsrg_operand *operand, bsrg_work *work) {
  if (bsrg_import_operand(state, obj, operand, work) < 0) return -1;
  return check_dimensions(operand, 3, "three");
}

/* A vector is a matrix of one column right of A, and of one row left of it. */
static int import_dense(bsrg_state *state, PyObject *obj, bsrg_side side, bsrg_operand *operand,
                        bsrg_work *work) {
  if (bsrg_import_operand(state, obj, operand, work) < 0) return -1;
  bsrg_array *array = &operand->array;
  if (array->ndim == 1) {
    const int along = side == BSRG_A_LEFT ? 0 : 1;
    const int64_t length = array->shape[0], stride = array->strides[0];
    array->ndim = 2;
    array->shape[along] = length;
    array->strides[along] = stride;
    array->shape[1 - along] = array->strides[1 - along] = 1;
  }
  return check_dimensions(operand, 2, "one or two");
}

static int check_values(const bsrg_structure_view *a, const bsrg_operand *operand) {
  const bsrg_array *values = &operand->array;
  const char *name = operand->name;
  const bool turned = a->order != NULL;
  const int64_t expected[3] = {a->nnzb, turned ? a->block_width : a->block_height,
                               turned ? a->block_height : a->block_width};
  if (memcmp(values->shape, expected, sizeof expected) != 0) {
    PyErr_Format(PyExc_ValueError,
                 "%s has shape %s, but the matrix stores %lld blocks of blocksize (%lld, %lld): %s must have "
                 "shape %s",
                 name, bsrg_format_shape(3, values->shape).text, (long long)a->nnzb, (long long)expected[1],
                 (long long)expected[2], name, bsrg_format_shape(3, expected).text);
    return -1;
  }
  if (!bsrg_is_contiguous(values)) {
    PyErr_Format(PyExc_ValueError, "%s has shape %s and strides %s, but must be C-contiguous", name,
                 bsrg_format_shape(3, values->shape).text, bsrg_format_shape(3, values->strides).text);
    return -1;
  }
  return 0;
}

static bsrg_dense as_dense(const bsrg_operand *operand) {
  const bsrg_array *array = &operand->array;
  return (bsrg_dense){array->data, array->shape[0], array->shape[1], array->strides[0], array->strides[1]};
}

enum { VALUES, DENSE, C, OUT, VALUES_SCALE, X_SCALE, OPERANDS };

/* Imports the operands in place; those marked given need releasing, also after a failure. */
static int import_operands(bsrg_state *state, PyObject *const *found, bsrg_side side, bsrg_work *work,
                           bsrg_operand *operands) {
  /* The dense operand first: a call that names no stream takes that of its library. */
  if (import_dense(state, found[2], side, &operands[DENSE], work) < 0 ||
      import_values(state, found[1], &operands[VALUES], work) < 0 ||
      bsrg_check_same_kind(&operands[VALUES], &operands[DENSE]) < 0 ||
      import_dense(state, found[3], side, &operands[OUT], work) < 0) {
    return -1;
  }
  if (found[4] == found[3]) {
    operands[C] = operands[OUT];
    operands[C].name = "c";
    Py_INCREF(operands[C].array.owner);
  } else if (found[4] != NULL && found[4] != Py_None &&
             import_dense(state, found[4], side, &operands[C], work) < 0) {
    return -1;
  }
  const bool eight = is_8_bit(&operands[VALUES]);
  if (eight ? bsrg_check_same_device(&operands[VALUES], &operands[OUT]) < 0
            : bsrg_check_same_kind(&operands[VALUES], &operands[OUT]) < 0) {
    return -1;
  }
  if (bsrg_check_same_kind(&operands[eight ? OUT : VALUES], &operands[C]) < 0) return -1;
  return bsrg_check_writable(&operands[OUT]);
}

/* Factors of float32 on the device of the values: one, in any number of dimensions, or a vector. */
static int import_scale(bsrg_state *state, PyObject *obj, bsrg_work *work, const bsrg_operand *values,
                        bsrg_operand *operand, const float **data, int64_t *count) {
  if (obj == NULL || obj == Py_None) return 0;
  if (bsrg_import_operand(state, obj, operand, work) < 0 || bsrg_check_same_device(values, operand) < 0) {
    return -1;
  }
  const bsrg_array *array = &operand->array;
  *count = bsrg_array_size(array);
  if (array->element->dtype != BSRG_F32 || (*count != 1 && array->ndim != 1) || !bsrg_is_contiguous(array)) {
    PyErr_Format(PyExc_ValueError,
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

static int import_scales(bsrg_state *state, PyObject *const *found, bsrg_work *work, bsrg_operand *operands,
                         bsrg_matmul_args *call) {
  int64_t count = 1;
  if (import_scale(state, found[11], work, &operands[VALUES], &operands[VALUES_SCALE], &call->values_scale,
                   &call->values_scale_count) < 0 ||
      import_scale(state, found[12], work, &operands[VALUES], &operands[X_SCALE], &call->x_scale, &count) <
          0) {
    return -1;
  }
  if (count == 1) return 0;
  PyErr_Format(PyExc_ValueError, "%s has shape %s, but must have one element", operands[X_SCALE].name,
               bsrg_format_shape(operands[X_SCALE].array.ndim, operands[X_SCALE].array.shape).text);
  return -1;
}

static int parse_scalars(PyObject *const *found, bsrg_matmul_args *args, bsrg_work *work) {
  args->alpha = 1.0;
  args->beta = 0.0;
  args->family = BSRG_AUTO;
  if (found[5] != NULL && bsrg_parse_real(found[5], "alpha", &args->alpha) < 0) return -1;
  if (found[6] != NULL && bsrg_parse_real(found[6], "beta", &args->beta) < 0) return -1;
  if (bsrg_parse_work(found[7], work) < 0) return -1;
  if (found[8] != NULL && bsrg_parse_family(found[8], &args->family) < 0) return -1;
  const int right = found[9] == NULL ? 0 : PyObject_IsTrue(found[9]);
  if (right < 0) return -1;
  args->side = right ? BSRG_A_RIGHT : BSRG_A_LEFT;
  if (found[10] != NULL && bsrg_parse_precision(found[10], &args->precision) < 0) return -1;
  return 0;
}

PyObject *bsrg_py_matmul(PyObject *module, PyObject *const *args, Py_ssize_t nargs, PyObject *kwnames) {
  static const bsrg_name names[] = {
      BSRG_NAME_structure, BSRG_NAME_values,       BSRG_NAME_x,      BSRG_NAME_out,    BSRG_NAME_c,
      BSRG_NAME_alpha,     BSRG_NAME_beta,         BSRG_NAME_stream, BSRG_NAME_family, BSRG_NAME_right,
      BSRG_NAME_precision, BSRG_NAME_values_scale, BSRG_NAME_x_scale};
  static const bsrg_signature signature = {"matmul", 4, 13, names};
  bsrg_state *state = PyModule_GetState(module);
  PyObject *found[13];
  if (bsrg_parse(state, &signature, args, nargs, kwnames, found) < 0) return NULL;
  if (!Py_IS_TYPE(found[0], state->structure_type)) {
    return PyErr_Format(PyExc_TypeError, "structure is %R, but must be a Structure", found[0]);
  }
  bsrg_matmul_args call = {.a = bsrg_structure_of(found[0])};
  bsrg_work work;
  if (parse_scalars(found, &call, &work) < 0) return NULL;

  const bool right = call.side == BSRG_A_RIGHT;
  bsrg_operand operands[OPERANDS] = {
      [VALUES] = {.name = right ? "b.data" : "a.data", .takes_e4m3 = true, .takes_e5m2 = true},
      [DENSE] = {.name = right ? "a" : "b", .takes_e4m3 = true, .takes_e5m2 = true},
      [C] = {.name = "c"},
      [OUT] = {.name = "out"},
      [VALUES_SCALE] = {.name = right ? "b_scale" : "a_scale"},
      [X_SCALE] = {.name = right ? "a_scale" : "b_scale"}};
  PyObject *result = NULL;
  const bsrg_structure_view view = bsrg_structure_get(call.a);
  if (import_operands(state, found, call.side, &work, operands) == 0 &&
      import_scales(state, found, &work, operands, &call) == 0 &&
      check_values(&view, &operands[VALUES]) == 0) {
    call.values = operands[VALUES].array.data;
    call.dtype = (bsrg_dtype)operands[VALUES].array.element->dtype;
    call.out_dtype = (bsrg_dtype)operands[OUT].array.element->dtype;
    call.device = operands[VALUES].array.device;
    call.x = as_dense(&operands[DENSE]);
    if (operands[C].given) call.c = as_dense(&operands[C]);
    call.y = as_dense(&operands[OUT]);
    call.stream = work.stream;
    bsrg_error error;
    bsrg_status status;
    Py_BEGIN_ALLOW_THREADS;
    status = bsrg_matmul(&call, &error);
    Py_END_ALLOW_THREADS;
    result = status == BSRG_OK ? Py_NewRef(Py_None) : bsrg_raise(state, status, &error);
  }
  bsrg_release_operands(state, operands, OPERANDS, result != NULL, &work);
  return result;
}

const char bsrg_matmul_doc[] =
    "matmul(structure, values, x, out, c=None, alpha=1.0, beta=0.0, stream=0, family='auto', right=False,\n"
    "       precision='ieee', values_scale=None, x_scale=None)\n"
    "--\n\n"
    "out = alpha * A @ x + beta * c, for the block-sparse matrix A of structure and values.\n\n"
    "structure  a Structure of a matrix of M rows and K columns\n"
    "values     [nnzb, block height, block width], C-contiguous; with a transposed structure those of the\n"
    "           one that it is the transposed of\n"
    "x          [K, N] or [K], any strides; vectors are matrices of one column\n"
    "out        [M, N] or [M], writable, any strides, sharing memory with no operand unless it is c\n"
    "c          [M, N], [M] or None; not read when beta is 0\n"
    "stream     CUDA stream handle; None takes the current stream of x's library\n"
    "family     'auto', or one of 'tall', 'stream', 'regroup', 'align', 'narrow', 'portable', 'kmajor' "
    "(GPU)\n"
    "           and 'cpu'\n"
    "right      True: out = alpha * x @ A + beta * c, with x [N, M] or [M], out and c [N, K] or [K]; "
    "vectors\n"
    "           are matrices of one row\n"
    "precision  'ieee', or of float32 'tf32'\n"
    "values_scale, x_scale  of 8-bit operands: None, or float32 factors on their device, of values one or "
    "one\n"
    "           for each block, of x one\n\n"
    "Operands are of one dtype (float16, bfloat16, float32, float64) and on one device; 16-bit dtypes are\n"
    "accumulated in float32. With values and x of float8_e4m3fn or float8_e5m2, out and c are float16,\n"
    "bfloat16 or float32. On a GPU the call returns once the work is on the stream, behind what the\n"
    "operands' libraries have pending on other streams. Messages call the operands a and b in the order of\n"
    "the product, and values a.data or b.data.\n\n"
    "Raises TypeError (no array, dtype, device), ValueError (shapes, strides, memory), MemoryError,\n"
    "DeviceUnavailableError, RuntimeError (CUDA).";
