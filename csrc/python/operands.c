#include "operands.h"

#include "device_array.h"

#include <string.h>

bsrg_outcome bsrg_outcome_of(bsrg_state *state, bsrg_status status, const bsrg_error *error) {
  if (status == BSRG_OK) return BSRG_DONE;
  bsrg_raise(state, status, error);
  /* Arguments are judged before the first launch. */
  return status == BSRG_ERR_VALUE || status == BSRG_ERR_TYPE ? BSRG_REFUSED : BSRG_FAILED;
}

int bsrg_parse_work(PyObject *obj, bsrg_work *work) {
  *work = (bsrg_work){.mode = BSRG_ON_STREAM};
  if (obj == Py_None) work->mode = BSRG_ADOPT_STREAM;
  return bsrg_is_absent(obj) ? 0 : bsrg_parse_stream(obj, &work->stream);
}

int bsrg_import_operand(bsrg_state *state, PyObject *obj, bsrg_operand *operand, bsrg_work *work) {
  if (bsrg_import_array(state, obj, operand->name, work, &operand->array) < 0) return -1;
  operand->given = true;
  const bsrg_element *element = operand->array.element;
  if (bsrg_is_multiplied(element) || (operand->takes_e4m3 && element->dtype == BSRG_F8_E4M3) ||
      (operand->takes_e5m2 && element->dtype == BSRG_F8_E5M2)) {
    return 0;
  }
  PyErr_Format(PyExc_TypeError, "%s has dtype %s, but must have dtype float16, bfloat16, float32%s",
               operand->name, element->name,
               operand->takes_e5m2   ? ", float64, float8_e4m3fn or float8_e5m2"
               : operand->takes_e4m3 ? ", float64 or float8_e4m3fn"
                                     : " or float64");
  return -1;
}

void bsrg_share_operand(const bsrg_operand *shared, bsrg_operand *operand) {
  operand->array = shared->array;
  operand->given = true;
  Py_INCREF(operand->array.owner);
}

int bsrg_check_same_device(const bsrg_operand *first, const bsrg_operand *other) {
  const bsrg_device a = first->array.device, b = other->array.device;
  if (a.kind == b.kind && a.index == b.index) return 0;
  PyObject *a_name = bsrg_device_name(a), *b_name = bsrg_device_name(b);
  if (a_name != NULL && b_name != NULL) {
    PyErr_Format(PyExc_TypeError, "%s is on %U, but %s is on %U: all operands must be on one device",
                 other->name, b_name, first->name, a_name);
  }
  Py_XDECREF(a_name);
  Py_XDECREF(b_name);
  return -1;
}

int bsrg_check_same_kind(const bsrg_operand *first, const bsrg_operand *other) {
  if (!other->given) return 0;
  const bsrg_element *a = first->array.element, *b = other->array.element;
  if (a == b) return bsrg_check_same_device(first, other);
  PyErr_Format(PyExc_TypeError, "%s has dtype %s, but %s has dtype %s: all operands must have one dtype",
               other->name, b->name, first->name, a->name);
  return -1;
}

int bsrg_check_writable(const bsrg_operand *operand) {
  if (!operand->array.readonly) return 0;
  PyErr_Format(PyExc_ValueError, "%s is read-only, but must be writable", operand->name);
  return -1;
}

int bsrg_check_dimensions(const bsrg_operand *operand, int ndim, const char *accepted) {
  const bsrg_array *array = &operand->array;
  if (array->ndim == ndim) return 0;
  PyErr_Format(PyExc_ValueError, "%s has shape %s, but must have %s dimensions", operand->name,
               bsrg_format_shape(array->ndim, array->shape).text, accepted);
  return -1;
}

int bsrg_check_values(const bsrg_structure_view *a, const bsrg_operand *operand) {
  return bsrg_check_dimensions(operand, 3, "three") < 0 ? -1 : bsrg_check_value_batch(a, operand);
}

void bsrg_values_shape(const bsrg_structure_view *a, int64_t shape[3]) {
  const bool turned = a->order != NULL;
  shape[0] = a->nnzb;
  shape[1] = turned ? a->block_width : a->block_height;
  shape[2] = turned ? a->block_height : a->block_width;
}

int bsrg_check_value_batch(const bsrg_structure_view *a, const bsrg_operand *operand) {
  const bsrg_array *values = &operand->array;
  const int lead = values->ndim - 3;
  const char *name = operand->name;
  int64_t expected[3];
  bsrg_values_shape(a, expected);
  if (lead < 0 || memcmp(values->shape + lead, expected, sizeof expected) != 0) {
    PyErr_Format(PyExc_ValueError,
                 "%s has shape %s, but the matrix stores %lld blocks of blocksize (%lld, %lld): %s must have "
                 "shape %s",
                 name, bsrg_format_shape(values->ndim, values->shape).text, (long long)a->nnzb,
                 (long long)expected[1], (long long)expected[2], name, bsrg_format_shape(3, expected).text);
    return -1;
  }
  if (!bsrg_is_contiguous(values)) {
    PyErr_Format(PyExc_ValueError, "%s has shape %s and strides %s, but must be C-contiguous", name,
                 bsrg_format_shape(values->ndim, values->shape).text,
                 bsrg_format_shape(values->ndim, values->strides).text);
    return -1;
  }
  return 0;
}

bsrg_dense bsrg_operand_dense(const bsrg_operand *operand) {
  const bsrg_array *array = &operand->array;
  const int n = array->ndim - 2;
  return (bsrg_dense){array->data, array->shape[n], array->shape[n + 1], array->strides[n],
                      array->strides[n + 1]};
}

void bsrg_release_operands(bsrg_state *state, bsrg_operand *operands, int count, bool used,
                           const bsrg_work *work) {
  /* Libraries free device memory in stream order, so letting go of the operands here is safe; our own arrays are told
   * which stream that is. */
  /* Of a call that has failed, too, but for arguments, which are judged before the first launch. */
  used |= PyErr_Occurred() && !PyErr_ExceptionMatches(PyExc_TypeError) &&
          !PyErr_ExceptionMatches(PyExc_ValueError);
  for (int i = 0; i < count; ++i) {
    if (!operands[i].given) continue;
    if (used) bsrg_note_device_use(state, &operands[i].array, work->stream);
    bsrg_release_array(&operands[i].array);
  }
}
