/* Arrays in through __cuda_array_interface__, versions 0 to 3. */
#include "array.h"

#include <string.h>

/* A borrowed entry of the dictionary; NULL without an exception when it is absent or None. */
static PyObject *entry(PyObject *interface, const char *key) {
  PyObject *value = PyDict_GetItemString(interface, key);
  return value == Py_None ? NULL : value;
}

static int refuse(const char *name, const char *key, PyObject *found, const char *accepted) {
  if (PyErr_Occurred() && !PyErr_ExceptionMatches(PyExc_TypeError) &&
      !PyErr_ExceptionMatches(PyExc_ValueError) && !PyErr_ExceptionMatches(PyExc_OverflowError)) {
    return -1;
  }
  PyErr_Clear();
  PyErr_Format(PyExc_TypeError, "%s has a __cuda_array_interface__ whose %s is %R, but must be %s", name, key,
               found == NULL ? Py_None : found, accepted);
  return -1;
}

/* A tuple of integers into numbers; the count, or -1 when it is no such tuple. */
static int read_integers(PyObject *tuple, int64_t *numbers) {
  if (tuple == NULL || !PyTuple_Check(tuple) || PyTuple_Size(tuple) > BSRG_MAX_DIMS) return -1;
  const int count = (int)PyTuple_Size(tuple);
  for (int i = 0; i < count; ++i) {
    PyObject *integer = PyNumber_Index(PyTuple_GetItem(tuple, i));
    numbers[i] = integer == NULL ? -1 : PyLong_AsLongLong(integer);
    Py_XDECREF(integer);
    if (numbers[i] == -1 && PyErr_Occurred()) return -1;
  }
  return count;
}

static const bsrg_element *read_typestr(PyObject *typestr) {
  const char *text =
      typestr == NULL || !PyUnicode_Check(typestr) ? NULL : PyUnicode_AsUTF8AndSize(typestr, NULL);
  if (text == NULL || strlen(text) < 3 || strlen(text) > 4 || strchr("<|=", text[0]) == NULL ||
      strspn(text + 2, "0123456789") != strlen(text + 2)) {
    return NULL;
  }
  int bytes = 0;
  for (const char *digit = text + 2; *digit != '\0'; ++digit) bytes = 10 * bytes + (*digit - '0');
  return bsrg_element_by_typestr(text[1], bytes);
}

static int read_layout(PyObject *interface, const char *name, bsrg_array *out) {
  PyObject *version = entry(interface, "version");
  const long number = version == NULL ? 0 : PyLong_AsLong(version);
  if (number < 0 || number > 3) return refuse(name, "version", version, "0, 1, 2 or 3");
  PyObject *typestr = entry(interface, "typestr");
  out->element = read_typestr(typestr);
  if (out->element == NULL) {
    return refuse(name, "typestr", typestr, "that of a little-endian number type, such as '<f4'");
  }
  PyObject *shape = entry(interface, "shape");
  out->ndim = read_integers(shape, out->shape);
  if (out->ndim < 0) return refuse(name, "shape", shape, "a tuple of at most 8 integers");
  if (entry(interface, "mask") != NULL) return refuse(name, "mask", entry(interface, "mask"), "None");

  bsrg_contiguous_strides(out->ndim, out->shape, out->strides);
  PyObject *strides = entry(interface, "strides");
  if (strides == NULL) return 0;
  if (read_integers(strides, out->strides) != out->ndim) {
    return refuse(name, "strides", strides, "None or a tuple with one number of bytes per dimension");
  }
  const int64_t item = (int64_t)bsrg_element_bytes(out->element);
  for (int i = 0; i < out->ndim; ++i) {
    if (out->strides[i] % item != 0 && out->shape[i] > 1) {
      return refuse(name, "strides", strides, "multiples of the item size");
    }
    out->strides[i] /= item;
  }
  return 0;
}

/* data is (address, read-only). */
static int read_data(PyObject *interface, const char *name, bsrg_array *out) {
  PyObject *data = entry(interface, "data");
  PyObject *address =
      data != NULL && PyTuple_Check(data) && PyTuple_Size(data) == 2 ? PyTuple_GetItem(data, 0) : NULL;
  if (address == NULL) return refuse(name, "data", data, "a tuple of an address and a read-only flag");
  /* The address of an array without elements may be None as well as 0. */
  out->data = address == Py_None ? NULL : PyLong_AsVoidPtr(address);
  const int readonly = PyObject_IsTrue(PyTuple_GetItem(data, 1));
  if (PyErr_Occurred() || readonly < 0) {
    return refuse(name, "data", data, "a tuple of an address and a read-only flag");
  }
  out->readonly = readonly != 0;
  return 0;
}

/* The interface does not tell the device, only the driver knows. */
static int find_device(bsrg_state *state, bsrg_array *out) {
  out->device = (bsrg_device){BSRG_CUDA, 0};
  if (out->data == NULL) return 0;
  bsrg_error error;
  bsrg_status status;
  Py_BEGIN_ALLOW_THREADS;
  status = bsrg_gpu_pointer_device(out->data, &out->device.index, &error);
  Py_END_ALLOW_THREADS;
  if (status == BSRG_OK) return 0;
  bsrg_raise(state, status, &error);
  return -1;
}

/* Version 3: pending work is on `stream`; None says that there is none. */
static int join_producer(bsrg_state *state, PyObject *interface, const char *name, bsrg_work *work,
                         const bsrg_array *out) {
  PyObject *stream = entry(interface, "stream");
  if (stream == NULL) return 0;
  int64_t handle = PyLong_Check(stream) ? PyLong_AsLongLong(stream) : 0;
  if (handle <= 0) {
    return refuse(name, "stream", stream, "None or a positive integer (0 could mean two different streams)");
  }
  return bsrg_join_stream(state, work, out->device.index, handle == 1 ? NULL : (void *)(uintptr_t)handle);
}

int bsrg_import_cuda_interface(bsrg_state *state, PyObject *obj, const char *name, bsrg_work *work,
                               bsrg_array *out) {
  PyObject *interface = PyObject_GetAttr(obj, state->names[BSRG_NAME___cuda_array_interface__]);
  if (interface == NULL) {
    /* A property that raises AttributeError says that this object is not on a GPU. */
    if (PyErr_ExceptionMatches(PyExc_AttributeError)) {
      PyErr_Clear();
      return 0;
    }
    bsrg_wrap_error(obj, name);
    return -1;
  }
  int taken = 1;
  if (!PyDict_Check(interface)) {
    PyErr_Format(PyExc_TypeError, "%s has a __cuda_array_interface__ that is %R, but must be a dict", name,
                 interface);
    taken = -1;
  } else {
    /* Numbers in it may be objects whose code changes it. */
    PyObject *const given = interface;
    interface = PyDict_Copy(given);
    Py_DECREF(given);
    if (interface == NULL) return -1;
  }
  if (taken > 0 && (read_layout(interface, name, out) < 0 || read_data(interface, name, out) < 0 ||
                    find_device(state, out) < 0 || join_producer(state, interface, name, work, out) < 0)) {
    taken = -1;
  }
  Py_DECREF(interface);
  if (taken > 0) out->owner = Py_NewRef(obj);
  return taken;
}
