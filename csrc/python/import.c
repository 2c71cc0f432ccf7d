/* Arrays in: the order of the ways, NumPy and the buffer protocol, and what all ways share. */
#include "array.h"

#include "device_array.h"

#include <string.h>

void bsrg_release_array(bsrg_array *array) { Py_CLEAR(array->owner); }

int64_t bsrg_array_size(const bsrg_array *array) {
  int64_t size = 1;
  for (int i = 0; i < array->ndim; ++i) size *= array->shape[i];
  return size;
}

void bsrg_contiguous_strides(int ndim, const int64_t *shape, int64_t *strides) {
  uint64_t stride = 1; /* unsigned: an impossible shape, refused later, wraps without undefined behaviour */
  for (int i = ndim - 1; i >= 0; --i) {
    strides[i] = (int64_t)stride;
    stride *= shape[i] > 0 ? (uint64_t)shape[i] : 1;
  }
}

PyObject *bsrg_tuple_of(int count, const int64_t *numbers) {
  PyObject *tuple = PyTuple_New(count);
  for (int i = 0; i < count && tuple != NULL; ++i) {
    PyObject *number = PyLong_FromLongLong(numbers[i]);
    if (number == NULL || PyTuple_SetItem(tuple, i, number) < 0) Py_CLEAR(tuple);
  }
  return tuple;
}

bool bsrg_is_contiguous(const bsrg_array *array) {
  if (bsrg_array_size(array) == 0) return true;
  int64_t stride = 1;
  for (int i = array->ndim - 1; i >= 0; --i) {
    if (array->shape[i] == 1) continue; /* never stepped along: any stride will do */
    if (array->strides[i] != stride) return false;
    stride *= array->shape[i];
  }
  return true;
}

bool bsrg_is_aligned(const bsrg_array *array) {
  return (uintptr_t)array->data % bsrg_element_bytes(array->element) == 0;
}

static char *pack_dimension(const bsrg_array *array, int dimension, const char *from, char *to) {
  const size_t item = bsrg_element_bytes(array->element);
  if (dimension == array->ndim) {
    memcpy(to, from, item);
    return to + item;
  }
  const int64_t step = array->strides[dimension] * (int64_t)item;
  for (int64_t i = 0; i < array->shape[dimension]; ++i) {
    to = pack_dimension(array, dimension + 1, from + i * step, to);
  }
  return to;
}

void bsrg_pack(const bsrg_array *array, void *destination) {
  const int64_t size = bsrg_array_size(array);
  if (size == 0) return;
  if (bsrg_is_contiguous(array)) {
    memcpy(destination, array->data, (size_t)size * bsrg_element_bytes(array->element));
  } else {
    pack_dimension(array, 0, array->data, destination);
  }
}

int bsrg_join_stream(bsrg_state *state, bsrg_work *work, int index, void *producer) {
  if (work->mode == BSRG_NO_WORK) return 0;
  if (work->mode == BSRG_ADOPT_STREAM) {
    work->mode = BSRG_ON_STREAM;
    work->stream = producer;
    return 0;
  }
  if (work->stream == producer) return 0;
  bsrg_error error;
  bsrg_status status;
  Py_BEGIN_ALLOW_THREADS;
  status = bsrg_gpu_order_streams(index, producer, work->stream, &error);
  Py_END_ALLOW_THREADS;
  if (status == BSRG_OK) return 0;
  bsrg_raise(state, status, &error);
  return -1;
}

/* Whether it is a numpy.ma.MaskedArray. -1 with an exception. */
static int is_masked(PyObject *array) {
  if (PyArray_CheckExact(array)) return 0;
  PyObject *module = PyImport_ImportModule("numpy.ma");
  PyObject *type = module == NULL ? NULL : PyObject_GetAttrString(module, "MaskedArray");
  const int found = type == NULL ? -1 : PyObject_IsInstance(array, type);
  Py_XDECREF(type);
  Py_XDECREF(module);
  return found;
}

static int import_numpy(bsrg_state *state, PyObject *obj, const char *name, bsrg_array *out) {
  const int masked = is_masked(obj);
  if (masked > 0) {
    PyErr_Format(
        PyExc_TypeError,
        "%s is a numpy.ma.MaskedArray, whose mask would be ignored; accepted: a plain array, for example "
        "%s.filled(0), or %s.data for the memory itself",
        name, name, name);
  }
  if (masked != 0) return -1;
  PyArrayObject *array = (PyArrayObject *)obj;
  PyArray_Descr *descr = PyArray_DESCR(array);
  const bsrg_element *element = bsrg_element_by_descr(state, descr);
  if (element == NULL) {
    if (!PyErr_Occurred()) {
      PyObject *names = bsrg_element_names();
      if (names != NULL) {
        PyErr_Format(PyExc_TypeError, "%s has dtype %S, but dtypes known here are %U, in native byte order",
                     name, descr, names);
        Py_DECREF(names);
      }
    }
    return -1;
  }
  const int ndim = PyArray_NDIM(array);
  if (ndim > BSRG_MAX_DIMS) {
    PyErr_Format(PyExc_ValueError, "%s has %d dimensions, but at most %d are accepted", name, ndim,
                 BSRG_MAX_DIMS);
    return -1;
  }
  const npy_intp item = (npy_intp)bsrg_element_bytes(element);
  for (int i = 0; i < ndim; ++i) {
    out->shape[i] = PyArray_DIM(array, i);
    const npy_intp stride = PyArray_STRIDE(array, i);
    if (stride % item != 0 && out->shape[i] > 1) {
      PyErr_Format(
          PyExc_ValueError,
          "%s steps %zd bytes along dimension %d, but must step a multiple of its item size of %zd bytes",
          name, (Py_ssize_t)stride, i, (Py_ssize_t)item);
      return -1;
    }
    out->strides[i] = stride / item;
  }
  out->data = PyArray_DATA(array);
  out->element = element;
  out->ndim = ndim;
  out->device = (bsrg_device){BSRG_CPU, 0};
  out->readonly = !PyArray_ISWRITEABLE(array);
  out->owner = Py_NewRef(obj);
  return 1;
}

/* NumPy reads the buffer's format; the array it makes keeps the buffer alive. */
static int import_buffer(bsrg_state *state, PyObject *obj, const char *name, bsrg_array *out) {
  if (!PyObject_CheckBuffer(obj)) return 0;
  PyObject *view = PyMemoryView_FromObject(obj);
  if (view == NULL) {
    bsrg_wrap_error(obj, name);
    return -1;
  }
  PyObject *array = PyArray_FromAny(view, NULL, 0, 0, 0, NULL);
  Py_DECREF(view);
  if (array == NULL) {
    bsrg_wrap_error(obj, name);
    return -1;
  }
  /* A format that NumPy cannot map makes it copy element by element into an array of its own. */
  int taken = -1;
  if (PyArray_CHKFLAGS((PyArrayObject *)array, NPY_ARRAY_OWNDATA)) {
    PyErr_Format(PyExc_TypeError, "%s is a buffer of a format that has no dtype", name);
  } else {
    taken = import_numpy(state, array, name, out);
  }
  Py_DECREF(array);
  return taken;
}

/* Catches what no memory can be before anything multiplies sizes or follows the pointer. */
static int check_memory(const char *name, const bsrg_array *array) {
  int64_t size = 1;
  bool fits = true, empty = false;
  for (int i = 0; i < array->ndim; ++i) {
    fits = fits && array->shape[i] >= 0;
    empty = empty || array->shape[i] == 0;
    if (fits && !empty) fits = !__builtin_mul_overflow(size, array->shape[i], &size);
  }
  if (!fits || size > INT64_MAX / 16) { /* 16 bytes: the largest item */
    PyErr_Format(PyExc_ValueError, "%s has shape %s, which no memory can have", name,
                 bsrg_format_shape(array->ndim, array->shape).text);
    return -1;
  }
  if (array->data == NULL && !empty) {
    PyErr_Format(PyExc_TypeError, "%s has shape %s, but its memory is at address 0 (a fake or meta tensor?)",
                 name, bsrg_format_shape(array->ndim, array->shape).text);
    return -1;
  }
  return 0;
}

int bsrg_import_array(bsrg_state *state, PyObject *obj, const char *name, bsrg_work *work, bsrg_array *out) {
  int taken;
  if (Py_IS_TYPE(obj, state->device_array_type)) {
    taken = bsrg_import_device_array(state, obj, work, out);
  } else if (PyArray_Check(obj)) {
    taken = import_numpy(state, obj, name, out);
  } else {
    taken = bsrg_import_exchange(state, obj, name, work, out);
    if (taken == 0) taken = bsrg_import_dlpack(state, obj, name, work, out);
    if (taken == 0) taken = bsrg_import_cuda_interface(state, obj, name, work, out);
    if (taken == 0) taken = import_buffer(state, obj, name, out);
  }
  if (taken > 0) {
    if (out->device.kind == BSRG_CUDA && work->mode != BSRG_NO_WORK && work->first_device == 0)
      work->first_device = 1 + out->device.index;
    if (check_memory(name, out) == 0) return 0;
    bsrg_release_array(out);
  } else if (taken == 0) {
    PyObject *type_name = PyType_GetName(Py_TYPE(obj));
    PyErr_Format(PyExc_TypeError,
                 "%s is of type %V, but must be an array: a NumPy array, a DeviceArray, or an object with "
                 "__dlpack__, __cuda_array_interface__ or the buffer protocol",
                 name, type_name, "object");
    Py_XDECREF(type_name);
  }
  return -1;
}
