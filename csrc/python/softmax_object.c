/* softmax(): imports values and out, and calls the core without the GIL. */
#include "operands.h"

#include <string.h>

enum { VALUES, OUT, OPERANDS };

static int check_same_batch(const bsrg_operand *operands) {
  const bsrg_array *values = &operands[VALUES].array, *out = &operands[OUT].array;
  if (values->ndim == out->ndim &&
      memcmp(values->shape, out->shape, sizeof(*values->shape) * (size_t)values->ndim) == 0)
    return 0;
  PyErr_Format(PyExc_ValueError, "out has shape %s, but a.data has shape %s, which out must have too",
               bsrg_format_shape(out->ndim, out->shape).text,
               bsrg_format_shape(values->ndim, values->shape).text);
  return -1;
}

/* Of matrices; their number of elements is known to fit. */
static int64_t count_of(const bsrg_operand *values) {
  int64_t count = 1;
  for (int d = 0; d < values->array.ndim - 3; ++d) count *= values->array.shape[d];
  return count;
}

PyObject *bsrg_py_softmax(PyObject *module, PyObject *const *args, Py_ssize_t nargs, PyObject *kwnames) {
  static const bsrg_name names[] = {BSRG_NAME_structure, BSRG_NAME_values, BSRG_NAME_out,
                                    BSRG_NAME_scale,     BSRG_NAME_stream, BSRG_NAME_chip};
  static const bsrg_signature signature = {"softmax", 3, 6, names};
  bsrg_state *state = PyModule_GetState(module);
  PyObject *found[6];
  bsrg_work work;
  bsrg_chip_question question;
  if (bsrg_parse(state, &signature, args, nargs, kwnames, found) < 0) return NULL;
  bsrg_softmax_args call = {.a = bsrg_fixed_structure(state, found[0], "structure"), .scale = 1};
  if (call.a == NULL) return NULL;
  if (found[3] != NULL && bsrg_parse_real(found[3], "scale", &call.scale) < 0) return NULL;
  if (bsrg_parse_work(found[4], &work) < 0 || bsrg_parse_question(found[5], &question) < 0) return NULL;

  bsrg_operand operands[OPERANDS] = {{.name = "a.data"}, {.name = "out"}};
  PyObject *result = NULL;
  const bsrg_structure_view view = bsrg_structure_get(call.a);
  if (bsrg_import_operand(state, found[1], &operands[VALUES], &work) == 0 &&
      bsrg_import_operand(state, found[2], &operands[OUT], &work) == 0 &&
      bsrg_check_same_kind(&operands[VALUES], &operands[OUT]) == 0 &&
      bsrg_check_value_batch(&view, &operands[VALUES]) == 0 &&
      bsrg_check_value_batch(&view, &operands[OUT]) == 0 && check_same_batch(operands) == 0 &&
      bsrg_check_writable(&operands[OUT]) == 0) {
    call.values = operands[VALUES].array.data;
    call.out = operands[OUT].array.data;
    call.count = count_of(&operands[VALUES]);
    call.dtype = (bsrg_dtype)operands[VALUES].array.element->dtype;
    call.device = bsrg_device_of_question(&question, operands[VALUES].array.device);
    call.question = question.asked;
    call.stream = work.stream;
    bsrg_error error;
    bsrg_status status;
    Py_BEGIN_ALLOW_THREADS;
    status = call.count > 0 ? bsrg_softmax(&call, &error) : BSRG_OK;
    Py_END_ALLOW_THREADS;
    result = status == BSRG_OK ? bsrg_answer(&question) : bsrg_raise(state, status, &error);
  }
  bsrg_release_operands(state, operands, OPERANDS, result != NULL, &work);
  return result;
}

const char bsrg_softmax_doc[] =
    "softmax(structure, values, out, scale=1.0, stream=0, chip=None)\n--\n\n"
    "out = softmax(scale * A) row by row, over the elements that A stores.\n\n"
    "structure  a Structure; of a transposed one the rows of that\n"
    "values     [..., nnzb, block height, block width], C-contiguous, of a batch of matrices; with a\n"
    "           transposed structure those of the one that it is the transposed of\n"
    "out        of values' shape, dtype and device, C-contiguous, writable: values itself, or memory apart\n"
    "stream     CUDA stream handle; None takes the current stream of values' library\n"
    "chip       as in matmul\n\n"
    "Raises TypeError (no array, dtype, device), ValueError (shapes, strides, memory), MemoryError,\n"
    "DeviceUnavailableError, RuntimeError (CUDA).";
