/* Exceptions: what the core reports, and what other libraries raise while they export an array. */
#include "bsrg_py.h"

#include <inttypes.h>
#include <stdio.h>

PyObject *bsrg_raise(bsrg_state *state, bsrg_status status, const bsrg_error *error) {
  PyObject *type = PyExc_RuntimeError;
  switch (status) {
    case BSRG_OK:
    case BSRG_ERR_CUDA:
      break;
    case BSRG_ERR_VALUE:
      type = PyExc_ValueError;
      break;
    case BSRG_ERR_TYPE:
      type = PyExc_TypeError;
      break;
    case BSRG_ERR_MEMORY:
      type = PyExc_MemoryError;
      break;
    case BSRG_ERR_UNAVAILABLE:
      type = state->device_unavailable_error;
      break;
  }
  PyErr_SetString(type, error->message);
  return NULL;
}

void bsrg_wrap_error(PyObject *obj, const char *name) {
  PyObject *type, *cause, *traceback;
  if (PyErr_Occurred() &&
      (!PyErr_ExceptionMatches(PyExc_Exception) || PyErr_ExceptionMatches(PyExc_MemoryError))) {
    return;
  }
  /* A careless producer fails without an exception. */
  if (!PyErr_Occurred()) PyErr_SetString(PyExc_BufferError, "no reason given");
  PyErr_Fetch(&type, &cause, &traceback);
  PyErr_NormalizeException(&type, &cause, &traceback);
  if (traceback != NULL) PyException_SetTraceback(cause, traceback);
  Py_XDECREF(type);
  Py_XDECREF(traceback);

  /* The first line says it: PyTorch appends a C++ stack trace. */
  PyObject *text = PyObject_Str(cause);
  PyObject *lines = text == NULL ? NULL : PyUnicode_Splitlines(text, 0);
  PyObject *line = lines == NULL || PyList_Size(lines) == 0 ? NULL : PyList_GetItem(lines, 0);
  PyObject *type_name = PyType_GetName(Py_TYPE(obj));
  PyErr_Clear();
  PyErr_Format(PyExc_TypeError, "%s, a %V, does not give access to its memory: %V", name, type_name, "object",
               line, "no reason given");
  Py_XDECREF(type_name);
  Py_XDECREF(lines);
  Py_XDECREF(text);

  PyErr_Fetch(&type, &obj, &traceback);
  PyErr_NormalizeException(&type, &obj, &traceback);
  PyException_SetCause(obj, cause); /* takes the reference */
  PyErr_Restore(type, obj, traceback);
}

bsrg_shape_text bsrg_format_shape(int ndim, const int64_t *shape) {
  bsrg_shape_text out;
  size_t used = 0;
  out.text[used++] = '(';
  for (int i = 0; i < ndim; ++i) {
    const int written =
        snprintf(out.text + used, sizeof out.text - used, i == 0 ? "%" PRId64 : ", %" PRId64, shape[i]);
    used += (size_t)written;
  }
  /* Eight numbers of at most 20 characters with separators fit, so nothing is ever cut off. */
  snprintf(out.text + used, sizeof out.text - used, ndim == 1 ? ",)" : ")");
  return out;
}
