/* topk(): imports scores and columns, and calls the core without the GIL. Attention reads its masks here too. */
#include "topk_object.h"

#include <string.h>

static const char numbers_message[] =
    "numbers is %R, but must be a tuple of the ten integers batch, heads, block rows, block columns, block "
    "height, block width, k, causal, queries, diagonal";

int bsrg_parse_topk(PyObject *obj, bsrg_topk_mask *mask) {
  int64_t causal, *const to[] = {
                      &mask->batch,        &mask->heads,       &mask->block_rows, &mask->block_cols,
                      &mask->block_height, &mask->block_width, &mask->k,          &causal,
                      &mask->queries,      &mask->diagonal};
  const Py_ssize_t count = sizeof to / sizeof to[0];
  if (!PyTuple_Check(obj) || PyTuple_Size(obj) != count) {
    PyErr_Format(PyExc_TypeError, numbers_message, obj);
    return -1;
  }
  for (Py_ssize_t i = 0; i < count; ++i)
    if (bsrg_parse_integer(PyTuple_GetItem(obj, i), "a number of the mask", to[i]) < 0) return -1;
  mask->causal = causal != 0;
  return 0;
}

int bsrg_import_columns(bsrg_state *state, PyObject *obj, bsrg_operand *operand, bsrg_work *work,
                        bsrg_topk_mask *mask) {
  if (bsrg_import_array(state, obj, operand->name, work, &operand->array) < 0) return -1;
  operand->given = true;
  const bsrg_array *a = &operand->array;
  const int64_t shape[4] = {mask->batch, mask->heads, mask->block_rows,
                            mask->k < mask->block_cols ? mask->k : mask->block_cols};
  if (strcmp(a->element->name, "int32") != 0 || a->ndim != 4 || memcmp(a->shape, shape, sizeof shape) != 0 ||
      !bsrg_is_contiguous(a)) {
    PyErr_Format(PyExc_ValueError,
                 "%s has dtype %s and shape %s, but must have dtype int32 and shape %s, C-contiguous",
                 operand->name, a->element->name, bsrg_format_shape(a->ndim, a->shape).text,
                 bsrg_format_shape(4, shape).text);
    return -1;
  }
  mask->columns = a->data;
  return 0;
}

enum { SCORES, COLUMNS, OPERANDS, NUMBERS = OPERANDS, STREAM, ARGUMENTS };

PyObject *bsrg_py_topk(PyObject *module, PyObject *const *args, Py_ssize_t nargs, PyObject *kwnames) {
  static const bsrg_name names[ARGUMENTS] = {[SCORES] = BSRG_NAME_scores,
                                             [COLUMNS] = BSRG_NAME_columns,
                                             [NUMBERS] = BSRG_NAME_numbers,
                                             [STREAM] = BSRG_NAME_stream};
  static const bsrg_signature signature = {"topk", 3, ARGUMENTS, names};
  bsrg_state *state = PyModule_GetState(module);
  PyObject *found[ARGUMENTS];
  bsrg_topk_mask mask;
  bsrg_work work;
  if (bsrg_parse(state, &signature, args, nargs, kwnames, found) < 0 ||
      bsrg_parse_topk(found[NUMBERS], &mask) < 0 || bsrg_parse_work(found[STREAM], &work) < 0) {
    return NULL;
  }
  bsrg_operand operands[OPERANDS] = {{.name = "scores"}, {.name = "columns"}};
  const bsrg_array *scores = &operands[SCORES].array;
  PyObject *result = NULL;
  if (bsrg_import_operand(state, found[SCORES], &operands[SCORES], &work) == 0 &&
      bsrg_import_columns(state, found[COLUMNS], &operands[COLUMNS], &work, &mask) == 0 &&
      bsrg_check_same_device(&operands[SCORES], &operands[COLUMNS]) == 0 &&
      bsrg_check_writable(&operands[COLUMNS]) == 0) {
    if (scores->ndim != 2 && scores->ndim != 4) {
      PyErr_Format(PyExc_ValueError, "scores has shape %s, but must have two or four dimensions",
                   bsrg_format_shape(scores->ndim, scores->shape).text);
    } else {
      const bool leads = scores->ndim == 4;
      const int r = scores->ndim - 2;
      const bsrg_tensor tensor = {.data = scores->data,
                                  .batch = leads ? scores->shape[0] : 1,
                                  .heads = leads ? scores->shape[1] : 1,
                                  .rows = scores->shape[r],
                                  .size = scores->shape[r + 1],
                                  .batch_stride = leads ? scores->strides[0] : 0,
                                  .head_stride = leads ? scores->strides[1] : 0,
                                  .row_stride = scores->strides[r],
                                  .element_stride = scores->strides[r + 1]};
      bsrg_error error;
      bsrg_status status;
      Py_BEGIN_ALLOW_THREADS;
      status = bsrg_topk_fill(&mask, &tensor, (bsrg_dtype)scores->element->dtype, scores->device, work.stream,
                              &error);
      Py_END_ALLOW_THREADS;
      result = status == BSRG_OK ? Py_NewRef(Py_None) : bsrg_raise(state, status, &error);
    }
  }
  bsrg_release_operands(state, operands, OPERANDS, result != NULL, &work);
  return result;
}

const char bsrg_topk_doc[] =
    "topk(scores, columns, numbers, stream=0)\n--\n\n"
    "Writes the block columns with the highest scores of each block row into columns, ascending.\n\n"
    "scores      [batch, heads, block rows, block columns] or [block rows, block columns], on a GPU: "
    "float16,\n"
    "            bfloat16 or float32, any strides\n"
    "columns     [batch, heads, block rows, min(k, block columns)], int32, C-contiguous, on the same GPU\n"
    "numbers     (batch, heads, block rows, block columns, block height, block width, k, causal, queries,\n"
    "            diagonal), as in bsrg_topk_mask\n"
    "stream      CUDA stream handle; None takes the current stream of scores' library\n\n"
    "Neither allocates nor waits. Raises TypeError (no array, dtype, device), ValueError (shapes, numbers),\n"
    "DeviceUnavailableError, RuntimeError (CUDA).";
