/* matmul(): imports the operands, checks that they belong together, and calls the core without the GIL. */
#include "operands.h"

#include <string.h>

static int import_operand(bsrg_state *state, PyObject *obj, bsrg_operand *operand, int ndim,
                          bsrg_work *work) {
  if (bsrg_import_operand(state, obj, operand, work) < 0) return -1;
  bsrg_array *array = &operand->array;
  if (ndim == 2 && array->ndim == 1) { /* a vector is a matrix of one column */
    array->ndim = 2;
    array->shape[1] = array->strides[1] = 1;
  }
  if (array->ndim == ndim) return 0;
  PyErr_Format(PyExc_ValueError, "%s has shape %s, but must have %s dimensions", operand->name,
               bsrg_format_shape(array->ndim, array->shape).text, ndim == 2 ? "one or two" : "three");
  return -1;
}

static int check_values(const bsrg_structure_view *a, const bsrg_array *values) {
  const int64_t expected[3] = {a->nnzb, a->block_height, a->block_width};
  if (memcmp(values->shape, expected, sizeof expected) != 0) {
    PyErr_Format(
        PyExc_ValueError,
        "a.data has shape %s, but a stores %lld blocks of blocksize (%lld, %lld): a.data must have shape %s",
        bsrg_format_shape(3, values->shape).text, (long long)a->nnzb, (long long)a->block_height,
        (long long)a->block_width, bsrg_format_shape(3, expected).text);
    return -1;
  }
  if (!bsrg_is_contiguous(values)) {
    PyErr_Format(PyExc_ValueError, "a.data has shape %s and strides %s, but must be C-contiguous",
                 bsrg_format_shape(3, values->shape).text, bsrg_format_shape(3, values->strides).text);
    return -1;
  }
  return 0;
}

static bsrg_dense as_dense(const bsrg_operand *operand) {
  const bsrg_array *array = &operand->array;
  return (bsrg_dense){array->data, array->shape[0], array->shape[1], array->strides[0], array->strides[1]};
}

enum { VALUES, B, C, OUT, OPERANDS };

/* Imports the operands in place; those marked given need releasing, also after a failure. */
static int import_operands(bsrg_state *state, PyObject *const *found, bsrg_work *work,
                           bsrg_operand *operands) {
  /* b first: a call that names no stream takes that of b's library. */
  if (import_operand(state, found[2], &operands[B], 2, work) < 0 ||
      import_operand(state, found[1], &operands[VALUES], 3, work) < 0 ||
      import_operand(state, found[3], &operands[OUT], 2, work) < 0) {
    return -1;
  }
  if (found[4] == found[3]) {
    operands[C] = operands[OUT];
    operands[C].name = "c";
    Py_INCREF(operands[C].array.owner);
  } else if (found[4] != NULL && found[4] != Py_None &&
             import_operand(state, found[4], &operands[C], 2, work) < 0) {
    return -1;
  }
  for (int i = VALUES + 1; i < OPERANDS; ++i) {
    if (bsrg_check_same_kind(&operands[VALUES], &operands[i]) < 0) return -1;
  }
  return bsrg_check_writable(&operands[OUT]);
}

static int parse_scalars(PyObject *const *found, bsrg_matmul_args *args, bsrg_work *work) {
  args->alpha = 1.0;
  args->beta = 0.0;
  args->family = BSRG_AUTO;
  if (found[5] != NULL && bsrg_parse_real(found[5], "alpha", &args->alpha) < 0) return -1;
  if (found[6] != NULL && bsrg_parse_real(found[6], "beta", &args->beta) < 0) return -1;
  if (bsrg_parse_work(found[7], work) < 0) return -1;
  if (found[8] != NULL && bsrg_parse_family(found[8], &args->family) < 0) return -1;
  return 0;
}

PyObject *bsrg_py_matmul(PyObject *module, PyObject *const *args, Py_ssize_t nargs, PyObject *kwnames) {
  static const bsrg_name names[] = {BSRG_NAME_structure, BSRG_NAME_values, BSRG_NAME_x,
                                    BSRG_NAME_out,       BSRG_NAME_c,      BSRG_NAME_alpha,
                                    BSRG_NAME_beta,      BSRG_NAME_stream, BSRG_NAME_family};
  static const bsrg_signature signature = {"matmul", 4, 9, names};
  bsrg_state *state = PyModule_GetState(module);
  PyObject *found[9];
  if (bsrg_parse(state, &signature, args, nargs, kwnames, found) < 0) return NULL;
  if (!Py_IS_TYPE(found[0], state->structure_type)) {
    return PyErr_Format(PyExc_TypeError, "structure is %R, but must be a Structure", found[0]);
  }
  bsrg_matmul_args call = {.a = bsrg_structure_of(found[0])};
  bsrg_work work;
  if (parse_scalars(found, &call, &work) < 0) return NULL;

  bsrg_operand operands[OPERANDS] = {{.name = "a.data"}, {.name = "b"}, {.name = "c"}, {.name = "out"}};
  PyObject *result = NULL;
  const bsrg_structure_view view = bsrg_structure_get(call.a);
  if (import_operands(state, found, &work, operands) == 0 &&
      check_values(&view, &operands[VALUES].array) == 0) {
    call.values = operands[VALUES].array.data;
    call.dtype = (bsrg_dtype)operands[VALUES].array.element->dtype;
    call.device = operands[VALUES].array.device;
    call.x = as_dense(&operands[B]);
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
    "matmul(structure, values, x, out, c=None, alpha=1.0, beta=0.0, stream=0, family='auto')\n--\n\n"
    "out = alpha * A @ x + beta * c, for the block-sparse matrix A of structure and values.\n\n"
    "structure  a Structure of a matrix of M rows and K columns\n"
    "values     [nnzb, block height, block width], C-contiguous\n"
    "x          [K, N] or [K], any strides; vectors are matrices of one column\n"
    "out        [M, N] or [M], writable, any strides, sharing memory with no operand unless it is c\n"
    "c          [M, N], [M] or None; not read when beta is 0\n"
    "stream     CUDA stream handle; None takes the current stream of x's library\n"
    "family     'auto', or one of 'tall', 'stream', 'regroup', 'align', 'narrow', 'portable' (GPU) and "
    "'cpu'\n\n"
    "Operands are of one dtype (float16, bfloat16, float32, float64) and on one device; 16-bit dtypes are\n"
    "accumulated in float32. On a GPU the call returns once the work is on the stream, behind what the\n"
    "operands' libraries have pending on other streams. Messages call values a.data and x b.\n\n"
    "Raises TypeError (no array, dtype, device), ValueError (shapes, strides, memory), MemoryError,\n"
    "DeviceUnavailableError, RuntimeError (CUDA).";
