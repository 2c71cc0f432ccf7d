#include "device_array.h"
#include "device_array_doc.h"

#include <stdlib.h>
#include <string.h>

bsrg_device_array *bsrg_memory_owner(bsrg_device_array *self) {
  return self->base == NULL ? self : (bsrg_device_array *)self->base;
}

void bsrg_mark_exported(bsrg_device_array *self) { bsrg_memory_owner(self)->exported = true; }

static bsrg_status order_streams(int index, void *producer, void *consumer, bsrg_error *error) {
  bsrg_status status;
  Py_BEGIN_ALLOW_THREADS;
  status = bsrg_gpu_order_streams(index, producer, consumer, error);
  Py_END_ALLOW_THREADS;
  return status;
}

/* Orders `stream` behind all that is pending, and then makes it the array's: who reads that takes it for ordered. While the
 * driver is called without the GIL, others may use the array or move it; then it is ordered again. */
static bsrg_status follow(bsrg_device_array *owner, void *stream, bsrg_error *error) {
  while (owner->stream != stream) {
    void *const previous = owner->stream;
    const uint64_t uses = owner->uses;
    if (owner->pending) {
      const bsrg_status status = order_streams(owner->device_index, previous, stream, error);
      if (status != BSRG_OK) return status;
    }
    if (owner->stream == previous && owner->uses == uses) owner->stream = stream;
  }
  return BSRG_OK;
}

int bsrg_move_to_stream(bsrg_state *state, bsrg_device_array *self, void *stream) {
  bsrg_error error;
  const bsrg_status status = follow(bsrg_memory_owner(self), stream, &error);
  if (status == BSRG_OK) return 0;
  bsrg_raise(state, status, &error);
  return -1;
}

int bsrg_import_device_array(bsrg_state *state, PyObject *obj, bsrg_work *work, bsrg_array *out) {
  bsrg_device_array *self = (bsrg_device_array *)obj;
  const bsrg_device_array *owner = bsrg_memory_owner(self);
  if (work->mode == BSRG_ADOPT_STREAM) *work = (bsrg_work){BSRG_ON_STREAM, owner->stream, work->first_device};
  if (work->mode == BSRG_ON_STREAM) {
    if (work->first_device == 0) work->first_device = 1 + self->device_index;
    /* One of another device, for which the call will be refused, stays on a stream of its own. */
    const bool moves = work->first_device == 1 + self->device_index;
    if (moves ? bsrg_move_to_stream(state, self, work->stream) < 0
              : bsrg_join_stream(state, work, self->device_index, owner->stream) < 0)
      return -1;
  }
  out->data = self->data;
  out->element = self->element;
  out->ndim = self->ndim;
  memcpy(out->shape, self->shape, sizeof out->shape);
  bsrg_contiguous_strides(self->ndim, self->shape, out->strides);
  out->device = (bsrg_device){BSRG_CUDA, self->device_index};
  out->readonly = false;
  out->owner = Py_NewRef(obj);
  return 1;
}

void bsrg_note_device_use(bsrg_state *state, const bsrg_array *array, void *stream) {
  if (array->owner == NULL || !Py_IS_TYPE(array->owner, state->device_array_type)) return;
  bsrg_device_array *owner = bsrg_memory_owner((bsrg_device_array *)array->owner);
  owner->pending = true;
  ++owner->uses; /* of whatever stream the array is by now, which the call's work has to be joined with */
  /* A failure here is the driver's and shows up at its next call. */
  bsrg_error error;
  if (follow(owner, stream, &error) != BSRG_OK) owner->stream = stream;
}

/* ---- making and freeing ------------------------------------------------------------------------------- */

static bsrg_device_array *new_array(PyTypeObject *type, const bsrg_element *element, int device_index,
                                    int ndim, const int64_t *shape) {
  allocfunc allocate = (allocfunc)PyType_GetSlot(type, Py_tp_alloc);
  bsrg_device_array *self = (bsrg_device_array *)allocate(type, 0); /* all zero */
  if (self == NULL) return NULL;
  self->element = element;
  self->device_index = device_index;
  self->ndim = ndim;
  self->bytes = bsrg_element_bytes(element);
  for (int i = 0; i < ndim; ++i) {
    self->shape[i] = shape[i];
    self->bytes *= (size_t)shape[i];
  }
  return self;
}

static bsrg_device_array *allocate(PyTypeObject *type, const bsrg_element *element, int device_index,
                                   int ndim, const int64_t *shape, void *stream) {
  bsrg_device_array *self = new_array(type, element, device_index, ndim, shape);
  if (self == NULL) return NULL;
  self->stream = stream;
  self->pending = true; /* the allocation itself is ordered on the stream */
  if (self->bytes == 0) return self;
  bsrg_error error;
  bsrg_status status;
  Py_BEGIN_ALLOW_THREADS;
  status = bsrg_gpu_alloc(device_index, self->bytes, stream, &self->data, &error);
  Py_END_ALLOW_THREADS;
  if (status == BSRG_OK) return self;
  self->data = NULL;
  Py_DECREF(self);
  bsrg_raise(PyType_GetModuleState(type), status, &error);
  return NULL;
}

static void device_array_dealloc(PyObject *obj) {
  bsrg_device_array *self = (bsrg_device_array *)obj;
  PyTypeObject *type = Py_TYPE(obj);
  if (self->base == NULL && self->data != NULL) {
    /* Failures are not reported: nothing can be done about them here, and what breaks a context (or ends
     * it, at exit) also frees its memory. */
    bsrg_error error;
    void *stream = self->stream;
    if (self->exported) {
      if (stream != NULL) order_streams(self->device_index, stream, NULL, &error);
      stream = NULL;
    }
    bsrg_gpu_free(self->device_index, self->data, stream, &error);
  }
  Py_XDECREF(self->base);
  freefunc release = (freefunc)PyType_GetSlot(type, Py_tp_free);
  release(obj);
  Py_DECREF(type);
}

/* Shape from an integer or a sequence of them. allow_unknown: one entry may be -1. Returns ndim or -1. */
static int parse_shape(PyObject *obj, bool allow_unknown, int64_t *shape) {
  PyObject *tuple = PyIndex_Check(obj) ? PyTuple_Pack(1, obj) : PySequence_Tuple(obj);
  if (tuple == NULL) return -1;
  const Py_ssize_t ndim = PyTuple_Size(tuple);
  bool good = ndim <= BSRG_MAX_DIMS;
  int64_t size = 16; /* room for any item size */
  for (Py_ssize_t i = 0; i < ndim && good; ++i) {
    PyObject *integer = PyNumber_Index(PyTuple_GetItem(tuple, i));
    shape[i] = integer == NULL ? -2 : PyLong_AsLongLong(integer);
    Py_XDECREF(integer);
    if (PyErr_Occurred()) {
      if (!PyErr_ExceptionMatches(PyExc_OverflowError)) {
        Py_DECREF(tuple);
        return -1;
      }
      PyErr_Clear();
      good = false;
    } else if (allow_unknown && shape[i] == -1) {
      allow_unknown = false;
    } else {
      good = shape[i] >= 0 && !__builtin_mul_overflow(size, shape[i] > 0 ? shape[i] : 1, &size);
    }
  }
  Py_DECREF(tuple);
  if (good) return (int)ndim;
  PyErr_Format(PyExc_ValueError,
               "shape is %R, but must be at most %d sizes of at least 0 whose product fits in memory", obj,
               BSRG_MAX_DIMS);
  return -1;
}

static PyObject *device_array_empty(PyObject *type, PyObject *args, PyObject *keywords) {
  static char *names[] = {"shape", "dtype", "device", "stream", NULL};
  PyObject *shape_object, *device = NULL, *stream_object = NULL;
  const char *dtype;
  if (!PyArg_ParseTupleAndKeywords(args, keywords, "Os|OO:empty", names, &shape_object, &dtype, &device,
                                   &stream_object)) {
    return NULL;
  }
  const bsrg_element *element = bsrg_element_by_name(dtype);
  if (element == NULL) {
    PyObject *accepted = bsrg_element_names();
    if (accepted != NULL)
      PyErr_Format(PyExc_TypeError, "dtype is '%s', but must be one of %U", dtype, accepted);
    Py_XDECREF(accepted);
    return NULL;
  }
  int64_t shape[BSRG_MAX_DIMS];
  const int ndim = parse_shape(shape_object, false, shape);
  int index;
  void *stream = NULL;
  if (ndim < 0 || bsrg_parse_cuda_device(device, &index) < 0 ||
      (stream_object != NULL && bsrg_parse_stream(stream_object, &stream) < 0)) {
    return NULL;
  }
  return (PyObject *)allocate((PyTypeObject *)type, element, index, ndim, shape, stream);
}

/* Copies a host array into self. */
static int upload(bsrg_state *state, bsrg_device_array *self, const bsrg_array *from) {
  void *packed = NULL;
  bsrg_error error;
  bsrg_status status;
  Py_BEGIN_ALLOW_THREADS;
  const void *source = from->data;
  if (!bsrg_is_contiguous(from)) {
    source = packed = malloc(self->bytes);
    if (packed != NULL) bsrg_pack(from, packed);
  }
  if (source == NULL) {
    status = BSRG_ERR_MEMORY;
    memcpy(error.message, "no host memory to pack array", sizeof "no host memory to pack array");
  } else {
    status = bsrg_gpu_copy(self->device_index, self->data, source, self->bytes, 0, self->stream, &error);
  }
  free(packed);
  Py_END_ALLOW_THREADS;
  if (status == BSRG_OK) {
    self->pending = false; /* the copy has finished and nobody else has the array yet */
    return 0;
  }
  bsrg_raise(state, status, &error);
  return -1;
}

static PyObject *device_array_from_host(PyObject *type, PyObject *args, PyObject *keywords) {
  static char *names[] = {"array", "device", "stream", NULL};
  PyObject *array, *device = NULL, *stream_object = NULL;
  if (!PyArg_ParseTupleAndKeywords(args, keywords, "O|OO:from_host", names, &array, &device,
                                   &stream_object)) {
    return NULL;
  }
  int index;
  void *stream = NULL;
  if (bsrg_parse_cuda_device(device, &index) < 0 ||
      (stream_object != NULL && bsrg_parse_stream(stream_object, &stream) < 0)) {
    return NULL;
  }
  bsrg_state *state = PyType_GetModuleState((PyTypeObject *)type);
  bsrg_work no_work = {.mode = BSRG_NO_WORK};
  bsrg_array from;
  if (bsrg_import_array(state, array, "array", &no_work, &from) < 0) return NULL;
  bsrg_device_array *self = NULL;
  if (from.device.kind != BSRG_CPU) {
    PyErr_Format(PyExc_TypeError, "array is on cuda:%d, but must be on cpu", from.device.index);
  } else {
    self = allocate((PyTypeObject *)type, from.element, index, from.ndim, from.shape, stream);
  }
  if (self != NULL && self->bytes > 0 && upload(state, self, &from) < 0) Py_CLEAR(self);
  bsrg_release_array(&from);
  return (PyObject *)self;
}

static PyObject *device_array_to_host(PyObject *obj, PyObject *Py_UNUSED(unused)) {
  bsrg_device_array *self = (bsrg_device_array *)obj;
  PyObject *host = bsrg_new_numpy(self->element, self->ndim, self->shape);
  if (host == NULL || self->bytes == 0) return host;
  void *to = PyArray_DATA((PyArrayObject *)host), *stream = bsrg_memory_owner(self)->stream;
  bsrg_error error;
  bsrg_status status;
  Py_BEGIN_ALLOW_THREADS;
  status = bsrg_gpu_copy(self->device_index, to, self->data, self->bytes, 1, stream, &error);
  Py_END_ALLOW_THREADS;
  if (status == BSRG_OK) return host;
  Py_DECREF(host);
  return bsrg_raise(PyType_GetModuleState(Py_TYPE(obj)), status, &error);
}

/* Without this NumPy would make an array of one object. */
static PyObject *device_array_array(PyObject *obj, PyObject *Py_UNUSED(args), PyObject *Py_UNUSED(keywords)) {
  PyErr_Format(PyExc_TypeError, "%R does not turn into a NumPy array silently; use its method to_host()",
               obj);
  return NULL;
}

static int64_t size_of(const bsrg_device_array *self) {
  return (int64_t)(self->bytes / bsrg_element_bytes(self->element));
}

static PyObject *device_array_reshape(PyObject *obj, PyObject *args) {
  bsrg_device_array *self = (bsrg_device_array *)obj;
  PyObject *wanted = PyTuple_Size(args) == 1 ? PyTuple_GetItem(args, 0) : args;
  int64_t shape[BSRG_MAX_DIMS], known = 1;
  const int ndim = parse_shape(wanted, true, shape);
  if (ndim < 0) return NULL;
  int unknown = -1;
  for (int i = 0; i < ndim; ++i) {
    if (shape[i] < 0) {
      unknown = i;
    } else {
      known *= shape[i];
    }
  }
  const int64_t size = size_of(self);
  if (unknown >= 0 && known > 0) {
    shape[unknown] = size / known;
    known *= shape[unknown];
  }
  if (known != size || (unknown >= 0 && shape[unknown] < 0)) {
    PyErr_Format(PyExc_ValueError, "shape is %R, but an array of shape %s has %lld elements", wanted,
                 bsrg_format_shape(self->ndim, self->shape).text, (long long)size);
    return NULL;
  }
  bsrg_device_array *view = new_array(Py_TYPE(obj), self->element, self->device_index, ndim, shape);
  if (view == NULL) return NULL;
  view->base = Py_NewRef((PyObject *)bsrg_memory_owner(self));
  view->data = self->data;
  return (PyObject *)view;
}

/* ---- attributes ----------------------------------------------------------------------------------- */

static PyObject *get_shape(PyObject *obj, void *Py_UNUSED(closure)) {
  const bsrg_device_array *self = (const bsrg_device_array *)obj;
  return bsrg_tuple_of(self->ndim, self->shape);
}

static PyObject *get_dtype(PyObject *obj, void *Py_UNUSED(closure)) {
  return PyUnicode_FromString(((bsrg_device_array *)obj)->element->name);
}

static PyObject *get_device(PyObject *obj, void *Py_UNUSED(closure)) {
  return bsrg_device_name((bsrg_device){BSRG_CUDA, ((bsrg_device_array *)obj)->device_index});
}

static PyObject *get_nbytes(PyObject *obj, void *Py_UNUSED(closure)) {
  return PyLong_FromSize_t(((bsrg_device_array *)obj)->bytes);
}

static PyObject *get_size(PyObject *obj, void *Py_UNUSED(closure)) {
  return PyLong_FromLongLong(size_of((bsrg_device_array *)obj));
}

static PyObject *get_ndim(PyObject *obj, void *Py_UNUSED(closure)) {
  return PyLong_FromLong(((bsrg_device_array *)obj)->ndim);
}

static PyObject *device_array_repr(PyObject *obj) {
  const bsrg_device_array *self = (const bsrg_device_array *)obj;
  return PyUnicode_FromFormat("DeviceArray(shape=%s, dtype='%s', device='cuda:%d')",
                              bsrg_format_shape(self->ndim, self->shape).text, self->element->name,
                              self->device_index);
}

static PyGetSetDef device_array_attributes[] = {
    {"shape", get_shape, NULL, "Sizes, a tuple of int.", NULL},
    {"dtype", get_dtype, NULL, "Name of the element type, such as ``\"float16\"``.", NULL},
    {"device", get_device, NULL, "Where the memory is, such as ``\"cuda:0\"``.", NULL},
    {"nbytes", get_nbytes, NULL, "Bytes of memory.", NULL},
    {"size", get_size, NULL, "Number of elements.", NULL},
    {"ndim", get_ndim, NULL, "Number of dimensions.", NULL},
    {"__cuda_array_interface__", bsrg_device_array_cuda_interface, NULL, cuda_interface_doc, NULL},
    {NULL, NULL, NULL, NULL, NULL}};

static PyMethodDef device_array_methods[] = {
    {"empty", (PyCFunction)(void (*)(void))device_array_empty, METH_CLASS | METH_VARARGS | METH_KEYWORDS,
     empty_doc},
    {"from_host", (PyCFunction)(void (*)(void))device_array_from_host,
     METH_CLASS | METH_VARARGS | METH_KEYWORDS, from_host_doc},
    {"to_host", device_array_to_host, METH_NOARGS, to_host_doc},
    {"reshape", device_array_reshape, METH_VARARGS, reshape_doc},
    {"__array__", (PyCFunction)(void (*)(void))device_array_array, METH_VARARGS | METH_KEYWORDS, array_doc},
    {"__dlpack__", (PyCFunction)(void (*)(void))bsrg_device_array_dlpack, METH_VARARGS | METH_KEYWORDS,
     dlpack_doc},
    {"__dlpack_device__", bsrg_device_array_dlpack_device, METH_NOARGS, dlpack_device_doc},
    {NULL, NULL, 0, NULL}};

PyTypeObject *bsrg_make_device_array_type(PyObject *module) {
  static PyType_Slot slots[] = {
      {Py_tp_doc, (void *)device_array_doc},   {Py_tp_dealloc, device_array_dealloc},
      {Py_tp_repr, device_array_repr},         {Py_tp_methods, device_array_methods},
      {Py_tp_getset, device_array_attributes}, {0, NULL}};
  static PyType_Spec spec = {
      "bsrgemm._core.DeviceArray", sizeof(bsrg_device_array), 0,
      Py_TPFLAGS_DEFAULT | Py_TPFLAGS_IMMUTABLETYPE | Py_TPFLAGS_DISALLOW_INSTANTIATION, slots};
  return (PyTypeObject *)PyType_FromModuleAndSpec(module, &spec, NULL);
}
