/* DeviceArray out: __cuda_array_interface__ and DLPack. */
#include "device_array.h"

#include <stdlib.h>

PyObject *bsrg_device_array_cuda_interface(PyObject *obj, void *Py_UNUSED(closure)) {
  bsrg_device_array *self = (bsrg_device_array *)obj;
  if (self->element->kind == 0) {
    /* AttributeError makes hasattr() false, so that consumers turn to DLPack. */
    PyErr_Format(PyExc_AttributeError, "__cuda_array_interface__ cannot express %s: use DLPack",
                 self->element->name);
    return NULL;
  }
  const bsrg_device_array *owner = bsrg_memory_owner(self);
  PyObject *stream = Py_NewRef(Py_None); /* nothing to wait for */
  if (owner->pending) {
    Py_DECREF(stream);
    stream = PyLong_FromVoidPtr(owner->stream == NULL ? (void *)1 : owner->stream);
  }
  PyObject *shape = stream == NULL ? NULL : bsrg_tuple_of(self->ndim, self->shape);
  PyObject *typestr = shape == NULL ? NULL
                                    : PyUnicode_FromFormat("%c%c%d", self->element->bits == 8 ? '|' : '<',
                                                           self->element->kind, self->element->bits / 8);
  PyObject *address = typestr == NULL ? NULL : PyLong_FromVoidPtr(self->data);
  if (address == NULL) {
    Py_XDECREF(typestr);
    Py_XDECREF(shape);
    Py_XDECREF(stream);
    return NULL;
  }
  bsrg_mark_exported(self);
  return Py_BuildValue("{s:N,s:N,s:(NO),s:O,s:i,s:N}", "shape", shape, "typestr", typestr, "data", address,
                       Py_False, "strides", Py_None, "version", 3, "stream", stream);
}

PyObject *bsrg_device_array_dlpack_device(PyObject *obj, PyObject *Py_UNUSED(unused)) {
  return Py_BuildValue("(ii)", DLPACK_CUDA, ((bsrg_device_array *)obj)->device_index);
}

/* One allocation holds whichever of the two structs the consumer understands, and the shape and strides. */
typedef struct exported_tensor {
  union {
    dlpack_managed plain;
    dlpack_managed_versioned versioned;
  } managed;
  int64_t shape[BSRG_MAX_DIMS], strides[BSRG_MAX_DIMS];
} exported_tensor;

/* Consumers delete from any thread, with or without the GIL. */
static void drop_reference(void *context) {
  if (!Py_IsInitialized()) return; /* the object went with the interpreter */
  const PyGILState_STATE gil = PyGILState_Ensure();
  Py_DECREF((PyObject *)context);
  PyGILState_Release(gil);
}

static void delete_plain(dlpack_managed *self) {
  drop_reference(self->context);
  free(self);
}

static void delete_versioned(dlpack_managed_versioned *self) {
  drop_reference(self->context);
  free(self);
}

/* A consumer that takes the tensor renames the capsule; until then it belongs to the capsule. */
static void destroy_capsule(PyObject *capsule) {
  if (PyCapsule_IsValid(capsule, "dltensor_versioned")) {
    dlpack_managed_versioned *managed = PyCapsule_GetPointer(capsule, "dltensor_versioned");
    managed->deleter(managed);
  } else if (PyCapsule_IsValid(capsule, "dltensor")) {
    dlpack_managed *managed = PyCapsule_GetPointer(capsule, "dltensor");
    managed->deleter(managed);
  }
}

static PyObject *make_capsule(bsrg_device_array *self, bool versioned) {
  exported_tensor *exported = calloc(1, sizeof *exported);
  if (exported == NULL) return PyErr_NoMemory();
  for (int i = 0; i < self->ndim; ++i) exported->shape[i] = self->shape[i];
  bsrg_contiguous_strides(self->ndim, self->shape, exported->strides);
  const dlpack_tensor tensor = {
      .data = self->data,
      .device = {DLPACK_CUDA, self->device_index},
      .ndim = self->ndim,
      .dtype = {self->element->dlpack_code, self->element->bits, 1},
      .shape = exported->shape,
      .strides = exported->strides,
  };
  /* Both structs are the first member of exported, so freeing them frees it. */
  if (versioned) {
    exported->managed.versioned = (dlpack_managed_versioned){.version = {DLPACK_MAJOR, DLPACK_MINOR},
                                                             .context = self,
                                                             .deleter = delete_versioned,
                                                             .tensor = tensor};
  } else {
    exported->managed.plain = (dlpack_managed){.tensor = tensor, .context = self, .deleter = delete_plain};
  }
  PyObject *capsule = PyCapsule_New(exported, versioned ? "dltensor_versioned" : "dltensor", destroy_capsule);
  if (capsule == NULL) {
    free(exported);
    return NULL;
  }
  Py_INCREF((PyObject *)self); /* drop_reference() takes it back */
  return capsule;
}

/* Orders our pending work before the consumer's stream, following the array API standard: None means the
 * legacy default stream, -1 no ordering. */
static int order_for_consumer(bsrg_state *state, bsrg_device_array *self, PyObject *stream) {
  void *handle = NULL;
  if (stream != Py_None) {
    const long long number = PyLong_AsLongLong(stream);
    if (number == -1 && PyErr_Occurred()) return -1;
    if (number == -1) return 0;
    if (number == 0) {
      PyErr_SetString(
          PyExc_ValueError,
          "stream is 0, which could mean two streams: give 1 for the legacy default stream, 2 for the "
          "per-thread default stream, None or -1");
      return -1;
    }
    if (bsrg_parse_stream(stream, &handle) < 0) return -1;
  }
  if (bsrg_move_to_stream(state, self, handle) < 0) return -1;
  bsrg_memory_owner(self)->pending = true; /* what the consumer will do there */
  ++bsrg_memory_owner(self)->uses;
  return 0;
}

PyObject *bsrg_device_array_dlpack(PyObject *obj, PyObject *args, PyObject *keywords) {
  static char *names[] = {"stream", "max_version", "dl_device", "copy", NULL};
  bsrg_device_array *self = (bsrg_device_array *)obj;
  PyObject *stream = Py_None, *max_version = Py_None, *device = Py_None, *copy = Py_None;
  if (!PyArg_ParseTupleAndKeywords(args, keywords, "|$OOOO:__dlpack__", names, &stream, &max_version, &device,
                                   &copy)) {
    return NULL;
  }
  int64_t version[2] = {0, 0}, wanted[2] = {DLPACK_CUDA, self->device_index};
  if (max_version != Py_None && bsrg_parse_pair(max_version, "max_version", version) < 0) return NULL;
  if (device != Py_None && bsrg_parse_pair(device, "dl_device", wanted) < 0) return NULL;
  if (wanted[0] != DLPACK_CUDA || wanted[1] != self->device_index) {
    PyErr_Format(PyExc_BufferError,
                 "dl_device is %R, but this array stays on (%d, %d): use to_host() for a copy", device,
                 DLPACK_CUDA, self->device_index);
    return NULL;
  }
  const int wants_copy = copy == Py_None ? 0 : PyObject_IsTrue(copy);
  if (wants_copy < 0) return NULL;
  if (wants_copy) {
    PyErr_SetString(PyExc_BufferError, "copy is True, but a DeviceArray shares its memory and makes no copy");
    return NULL;
  }
  if (order_for_consumer(PyType_GetModuleState(Py_TYPE(obj)), self, stream) < 0) return NULL;
  PyObject *capsule = make_capsule(self, version[0] >= DLPACK_MAJOR);
  if (capsule != NULL) bsrg_mark_exported(self);
  return capsule;
}
