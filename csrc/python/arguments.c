/* Arguments that are no arrays: parsing of fast calls, numbers, streams, devices, dtypes, families. */
#include "array.h"

#include <stdlib.h>
#include <string.h>

static int find_keyword(const bsrg_state *state, const bsrg_signature *signature, PyObject *keyword) {
  for (int i = 0; i < signature->count; ++i) {
    if (keyword == state->names[signature->names[i]]) return i;
  }
  /* Keywords are interned except where a caller made up a dict at run time. */
  for (int i = 0; i < signature->count; ++i) {
    if (PyUnicode_Compare(keyword, state->names[signature->names[i]]) == 0) return i;
  }
  return -1;
}

int bsrg_parse(bsrg_state *state, const bsrg_signature *signature, PyObject *const *args, Py_ssize_t nargs,
               PyObject *kwnames, PyObject **found) {
  if (nargs > signature->count) {
    PyErr_Format(PyExc_TypeError, "%s() takes at most %d arguments, but %zd were given", signature->function,
                 signature->count, nargs);
    return -1;
  }
  for (int i = 0; i < signature->count; ++i) found[i] = i < nargs ? args[i] : NULL;
  const Py_ssize_t keywords = kwnames == NULL ? 0 : PyTuple_Size(kwnames);
  for (Py_ssize_t k = 0; k < keywords; ++k) {
    PyObject *keyword = PyTuple_GetItem(kwnames, k);
    const int at = find_keyword(state, signature, keyword);
    if (at < 0) {
      PyErr_Format(PyExc_TypeError, "%s() got an unexpected keyword argument '%U'", signature->function,
                   keyword);
      return -1;
    }
    if (found[at] != NULL) {
      PyErr_Format(PyExc_TypeError, "%s() got two values for argument '%U'", signature->function, keyword);
      return -1;
    }
    found[at] = args[nargs + k];
  }
  for (int i = 0; i < signature->required; ++i) {
    if (found[i] == NULL) {
      PyErr_Format(PyExc_TypeError, "%s() is missing the argument '%U'", signature->function,
                   state->names[signature->names[i]]);
      return -1;
    }
  }
  return 0;
}

static int parse_int64(PyObject *obj, int64_t *out) {
  PyObject *integer = PyNumber_Index(obj);
  if (integer == NULL) return -1;
  *out = PyLong_AsLongLong(integer);
  Py_DECREF(integer);
  return *out == -1 && PyErr_Occurred() ? -1 : 0;
}

int bsrg_parse_pair(PyObject *obj, const char *name, int64_t pair[2]) {
  PyObject *tuple = PySequence_Tuple(obj);
  if (tuple != NULL && PyTuple_Size(tuple) == 2 && parse_int64(PyTuple_GetItem(tuple, 0), &pair[0]) == 0 &&
      parse_int64(PyTuple_GetItem(tuple, 1), &pair[1]) == 0) {
    Py_DECREF(tuple);
    return 0;
  }
  Py_XDECREF(tuple);
  const int too_large = PyErr_Occurred() && PyErr_ExceptionMatches(PyExc_OverflowError);
  if (PyErr_Occurred() && !too_large && !PyErr_ExceptionMatches(PyExc_TypeError)) return -1;
  PyErr_Clear();
  PyErr_Format(too_large ? PyExc_ValueError : PyExc_TypeError,
               "%s is %R, but must be a pair of integers that fit in 64 bits", name, obj);
  return -1;
}

int bsrg_parse_integer(PyObject *obj, const char *name, int64_t *out) {
  if (parse_int64(obj, out) == 0) return 0;
  if (PyErr_ExceptionMatches(PyExc_TypeError) || PyErr_ExceptionMatches(PyExc_OverflowError)) {
    const int is_type = PyErr_ExceptionMatches(PyExc_TypeError);
    PyErr_Clear();
    PyErr_Format(is_type ? PyExc_TypeError : PyExc_ValueError,
                 "%s is %R, but must be an integer that fits in 64 bits", name, obj);
  }
  return -1;
}

int bsrg_parse_real(PyObject *obj, const char *name, double *out) {
  *out = PyFloat_AsDouble(obj);
  if (*out != -1.0 || !PyErr_Occurred()) return 0;
  if (PyErr_ExceptionMatches(PyExc_TypeError)) {
    PyErr_Clear();
    PyErr_Format(PyExc_TypeError, "%s is %R, but must be a real number", name, obj);
  } else if (PyErr_ExceptionMatches(PyExc_OverflowError)) {
    PyErr_Clear();
    PyErr_Format(PyExc_ValueError, "%s is beyond what float64 holds, but must be a number up to 1.8e308",
                 name);
  }
  return -1;
}

int bsrg_parse_stream(PyObject *obj, void **stream) {
  int64_t handle;
  if (parse_int64(obj, &handle) < 0) {
    if (PyErr_ExceptionMatches(PyExc_TypeError) || PyErr_ExceptionMatches(PyExc_OverflowError)) {
      const int is_type = PyErr_ExceptionMatches(PyExc_TypeError);
      PyErr_Clear();
      PyErr_Format(is_type ? PyExc_TypeError : PyExc_ValueError,
                   "stream is %R, but must be a CUDA stream handle as an integer (0 is the default stream)",
                   obj);
    }
    return -1;
  }
  if (handle < 0) {
    PyErr_Format(PyExc_ValueError, "stream is %R, but a CUDA stream handle is at least 0", obj);
    return -1;
  }
  *stream = handle == 1 ? NULL : (void *)(uintptr_t)handle;
  return 0;
}

int bsrg_parse_device(PyObject *obj, bsrg_device *out) {
  const char *text = PyUnicode_Check(obj) ? PyUnicode_AsUTF8AndSize(obj, NULL) : NULL;
  if (text != NULL && strcmp(text, "cpu") == 0) {
    *out = (bsrg_device){BSRG_CPU, 0};
    return 0;
  }
  if (text != NULL && strncmp(text, "cuda", 4) == 0) {
    const char *digits = text + 4;
    long index = 0;
    if (*digits == ':' && strspn(digits + 1, "0123456789") == strlen(digits + 1) && digits[1] != '\0' &&
        strlen(digits + 1) <= 4) {
      index = strtol(digits + 1, NULL, 10);
      digits = "";
    }
    if (*digits == '\0') {
      *out = (bsrg_device){BSRG_CUDA, (int)index};
      return 0;
    }
  }
  if (PyErr_Occurred()) return -1;
  PyErr_Format(PyUnicode_Check(obj) ? PyExc_ValueError : PyExc_TypeError,
               "device is %R, but must be 'cpu', 'cuda' or 'cuda:' with a device number", obj);
  return -1;
}

int bsrg_parse_cuda_device(PyObject *obj, int *index) {
  bsrg_device device = {BSRG_CUDA, 0};
  if (obj != NULL && bsrg_parse_device(obj, &device) < 0) return -1;
  if (device.kind != BSRG_CUDA) {
    PyErr_SetString(PyExc_ValueError, "device is 'cpu', but must be 'cuda' or 'cuda:' with a device number");
    return -1;
  }
  *index = device.index;
  return 0;
}

int bsrg_parse_family(PyObject *obj, bsrg_family *out) {
  if (!PyUnicode_Check(obj)) {
    PyErr_Format(PyExc_TypeError, "family is %R, but must be a string", obj);
    return -1;
  }
  for (int i = 0; i < BSRG_FAMILY_COUNT; ++i) {
    if (PyUnicode_CompareWithASCIIString(obj, bsrg_family_name((bsrg_family)i)) == 0) {
      *out = (bsrg_family)i;
      return 0;
    }
  }
  PyErr_Format(PyExc_ValueError,
               "family is %R, but must be 'auto', 'tall', 'stream', 'regroup', 'align', 'narrow', "
               "'portable', 'hopper', 'decode', 'sampled', 'cover', 'pairs', 'spread', 'kmajor', 'widen', "
               "'kstream' or 'cpu'",
               obj);
  return -1;
}

int bsrg_parse_activation(PyObject *obj, bsrg_activation *out) {
  *out = BSRG_IDENTITY;
  if (obj == Py_None) return 0;
  if (!PyUnicode_Check(obj)) {
    PyErr_Format(PyExc_TypeError, "activation is %R, but must be a string or None", obj);
    return -1;
  }
  for (int i = BSRG_IDENTITY + 1; i < BSRG_ACTIVATION_COUNT; ++i) {
    if (PyUnicode_CompareWithASCIIString(obj, bsrg_activation_name((bsrg_activation)i)) == 0) {
      *out = (bsrg_activation)i;
      return 0;
    }
  }
  PyErr_Format(PyExc_ValueError, "activation is %R, but must be None, 'relu', 'gelu', 'gelu_tanh' or 'silu'",
               obj);
  return -1;
}

int bsrg_parse_dtype(PyObject *obj, bsrg_dtype *out) {
  const char *text = PyUnicode_Check(obj) ? PyUnicode_AsUTF8AndSize(obj, NULL) : NULL;
  const bsrg_element *element = text == NULL ? NULL : bsrg_element_by_name(text);
  if (element != NULL && element->dtype >= 0) {
    *out = (bsrg_dtype)element->dtype;
    return 0;
  }
  if (PyErr_Occurred()) return -1;
  PyErr_Format(PyExc_TypeError,
               "dtype is %R, but must be 'float16', 'bfloat16', 'float32', 'float64', 'float8_e4m3fn' or "
               "'float8_e5m2'",
               obj);
  return -1;
}

int bsrg_parse_precision(PyObject *obj, bsrg_precision *out) {
  const bool tf32 = PyUnicode_Check(obj) && PyUnicode_CompareWithASCIIString(obj, "tf32") == 0;
  *out = tf32 ? BSRG_TF32 : BSRG_IEEE;
  if (tf32 || (PyUnicode_Check(obj) && PyUnicode_CompareWithASCIIString(obj, "ieee") == 0)) return 0;
  PyErr_Format(PyUnicode_Check(obj) ? PyExc_ValueError : PyExc_TypeError,
               "precision is %R, but must be 'ieee' or 'tf32'", obj);
  return -1;
}

PyObject *bsrg_device_name(bsrg_device device) {
  return device.kind == BSRG_CPU ? PyUnicode_FromString("cpu")
                                 : PyUnicode_FromFormat("cuda:%d", device.index);
}
