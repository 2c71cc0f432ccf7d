/* Arrays in through DLPack: the C exchange table of a type, and the __dlpack__ method. */
#include "array.h"

#include <string.h>

/* Describes `tensor`; the caller sets owner and readonly. -1 with an exception. */
static int describe_tensor(bsrg_state *state, const dlpack_tensor *tensor, const char *name,
                           bsrg_array *out) {
  switch (tensor->device.type) {
    case DLPACK_CPU:
    case DLPACK_CUDA_HOST:
      out->device = (bsrg_device){BSRG_CPU, 0};
      break;
    case DLPACK_CUDA:
    case DLPACK_CUDA_MANAGED:
      out->device = (bsrg_device){BSRG_CUDA, tensor->device.index};
      break;
    default:
      PyErr_Format(PyExc_TypeError,
                   "%s is on a device of DLPack type %d, but must be on the CPU (%d) or CUDA (%d)", name,
                   (int)tensor->device.type, DLPACK_CPU, DLPACK_CUDA);
      return -1;
  }
  out->element = bsrg_element_by_dlpack(tensor->dtype);
  if (out->element == NULL) {
    PyObject *names = bsrg_element_names();
    if (names != NULL) {
      PyErr_Format(PyExc_TypeError,
                   "%s has the DLPack dtype of code %d, %d bits, %d lanes, but dtypes known here are %U",
                   name, (int)tensor->dtype.code, (int)tensor->dtype.bits, (int)tensor->dtype.lanes, names);
      Py_DECREF(names);
    }
    return -1;
  }
  if (tensor->ndim < 0 || tensor->ndim > BSRG_MAX_DIMS) {
    PyErr_Format(PyExc_ValueError, "%s has %d dimensions, but at most %d are accepted", name,
                 (int)tensor->ndim, BSRG_MAX_DIMS);
    return -1;
  }
  out->ndim = tensor->ndim;
  for (int i = 0; i < tensor->ndim; ++i) out->shape[i] = tensor->shape[i];
  if (tensor->strides == NULL) {
    bsrg_contiguous_strides(out->ndim, out->shape, out->strides);
  } else {
    for (int i = 0; i < tensor->ndim; ++i) out->strides[i] = tensor->strides[i];
  }
  out->data = tensor->data == NULL ? NULL : (char *)tensor->data + tensor->byte_offset;
  if (tensor->device.type == DLPACK_CUDA_MANAGED && out->data != NULL) {
    /* Managed memory carries device 0 by convention, whichever GPU it was allocated for. */
    bsrg_error error;
    bsrg_status status;
    Py_BEGIN_ALLOW_THREADS;
    status = bsrg_gpu_pointer_device(out->data, &out->device.index, &error);
    Py_END_ALLOW_THREADS;
    if (status != BSRG_OK) {
      bsrg_raise(state, status, &error);
      return -1;
    }
  }
  return 0;
}

/* The type's table for the ABI that we know, or NULL. Looked up on the type, as the specification asks,
 * and remembered with the last few types. */
static const dlpack_exchange *find_exchange(bsrg_state *state, PyObject *type) {
  bsrg_exchange_type *known = state->exchange_types;
  for (int i = 0; i < BSRG_EXCHANGE_TYPES; ++i)
    if (known[i].type == type) return known[i].table;
  PyObject *capsule = PyObject_GetAttr(type, state->names[BSRG_NAME___dlpack_c_exchange_api__]);
  const dlpack_exchange_header *table =
      capsule == NULL ? NULL : PyCapsule_GetPointer(capsule, "dlpack_exchange_api");
  Py_XDECREF(capsule); /* tables live as long as the process */
  PyErr_Clear();
  while (table != NULL && table->version.major != DLPACK_MAJOR) table = table->previous;
  if (table != NULL) {
    PyObject *oldest = known[BSRG_EXCHANGE_TYPES - 1].type;
    memmove(known + 1, known, sizeof(*known) * (BSRG_EXCHANGE_TYPES - 1));
    known[0] = (bsrg_exchange_type){Py_NewRef(type), (const dlpack_exchange *)table};
    Py_XDECREF(oldest);
  }
  return (const dlpack_exchange *)table;
}

bool bsrg_has_exchange(bsrg_state *state, PyObject *type) {
  const dlpack_exchange *exchange = find_exchange(state, type);
  return exchange != NULL && exchange->export_borrowed != NULL;
}

/* PyTorch hands out tensors whose values are negated lazily (the imaginary part of a conjugate) as if they
 * were not. Such a tensor is every second number of complex ones, so most are excluded by their strides. These
 * can be set, so the package asks what it is given; to ask here would slow every operand of small products. */
static int refuse_lazy_negation(bsrg_state *state, PyObject *obj, const char *name, const bsrg_array *array) {
  for (int i = 0; i < array->ndim; ++i) {
    if (array->shape[i] > 1 && array->strides[i] == 1) return 0;
  }
  PyObject *negated = PyObject_CallMethodObjArgs(obj, state->names[BSRG_NAME_is_neg], NULL);
  if (negated == NULL) {
    if (!PyErr_ExceptionMatches(PyExc_AttributeError)) return -1;
    PyErr_Clear();
    return 0;
  }
  const int is_negated = PyObject_IsTrue(negated);
  Py_DECREF(negated);
  if (is_negated > 0) {
    PyErr_Format(PyExc_TypeError, "%s is a tensor with the negative bit set: call .resolve_neg() on it",
                 name);
  }
  return is_negated != 0 ? -1 : 0;
}

int bsrg_import_exchange(bsrg_state *state, PyObject *obj, const char *name, bsrg_work *work,
                         bsrg_array *out) {
  const dlpack_exchange *exchange = find_exchange(state, (PyObject *)Py_TYPE(obj));
  if (exchange == NULL || exchange->export_borrowed == NULL) return 0;
  dlpack_tensor tensor = {0};
  if (exchange->export_borrowed(obj, &tensor) != 0) {
    bsrg_wrap_error(obj, name);
    return -1;
  }
  /* tensor borrows shape and strides from obj, so they are copied; obj keeps the memory alive. The table
   * has no flags: nothing in it says read-only. Tensors that require a gradient come through as plain
   * memory, which is right for a caller that does its own differentiation. */
  if (describe_tensor(state, &tensor, name, out) < 0) return -1;
  if (refuse_lazy_negation(state, obj, name, out) < 0) return -1;
  if (out->device.kind == BSRG_CUDA && work->mode != BSRG_NO_WORK) {
    void *stream = NULL;
    if (exchange->current_stream(DLPACK_CUDA, out->device.index, &stream) != 0) {
      bsrg_wrap_error(obj, name);
      return -1;
    }
    if (stream == (void *)1) stream = NULL; /* both are the legacy default stream */
    if (bsrg_join_stream(state, work, out->device.index, stream) < 0) return -1;
  }
  out->readonly = false;
  out->owner = Py_NewRef(obj);
  return 1;
}

/* obj.__dlpack__(stream=..., max_version=(1, 3), copy=False). Producers older than DLPack 1.0 know neither
 * of the last two and say so with a TypeError. copy=False: a copy would swallow what is written to it. */
static PyObject *call_dlpack(bsrg_state *state, PyObject *obj, int is_cuda, Py_ssize_t stream) {
  PyObject *method = PyObject_GetAttr(obj, state->names[BSRG_NAME___dlpack__]);
  PyObject *none = method == NULL ? NULL : PyTuple_New(0);
  PyObject *keywords =
      none == NULL ? NULL
      : is_cuda ? Py_BuildValue("{s:n,s:(ii),s:O}", "stream", stream, "max_version", DLPACK_MAJOR,
                                DLPACK_MINOR, "copy", Py_False)
                : Py_BuildValue("{s:(ii),s:O}", "max_version", DLPACK_MAJOR, DLPACK_MINOR, "copy", Py_False);
  PyObject *capsule = keywords == NULL ? NULL : PyObject_Call(method, none, keywords);
  if (capsule == NULL && keywords != NULL && PyErr_ExceptionMatches(PyExc_TypeError)) {
    PyErr_Clear();
    if (PyDict_DelItemString(keywords, "max_version") == 0 && PyDict_DelItemString(keywords, "copy") == 0) {
      capsule = PyObject_Call(method, none, keywords);
    }
  }
  Py_XDECREF(keywords);
  Py_XDECREF(none);
  Py_XDECREF(method);
  return capsule;
}

/* The stream to name to the producer, which makes it wait for its own pending work (on the GPU, not the
 * host). 0 is not allowed there because it could mean two streams: 1 is the legacy default stream. -1 asks
 * for no waiting, for callers that will not touch the memory. A call without a stream of its own works on
 * the default stream, because __dlpack__ does not tell the producer's. */
static Py_ssize_t stream_for_producer(bsrg_work *work) {
  if (work->mode == BSRG_NO_WORK) return -1;
  if (work->mode == BSRG_ADOPT_STREAM) {
    work->mode = BSRG_ON_STREAM;
    work->stream = NULL;
  }
  return work->stream == NULL ? 1 : (Py_ssize_t)(intptr_t)work->stream;
}

/* Whether obj is on a GPU: 1 or 0, or -1 with an exception. */
static int is_cuda_object(bsrg_state *state, PyObject *obj) {
  PyObject *device = PyObject_CallMethodObjArgs(obj, state->names[BSRG_NAME___dlpack_device__], NULL);
  PyObject *type = device == NULL ? NULL : PySequence_GetItem(device, 0);
  const long number = type == NULL ? -1 : PyLong_AsLong(type);
  Py_XDECREF(type);
  Py_XDECREF(device);
  if (number == -1 && PyErr_Occurred()) return -1;
  return number == DLPACK_CUDA || number == DLPACK_CUDA_MANAGED;
}

int bsrg_import_dlpack(bsrg_state *state, PyObject *obj, const char *name, bsrg_work *work, bsrg_array *out) {
  if (!PyObject_HasAttr(obj, state->names[BSRG_NAME___dlpack__])) return 0;
  const int is_cuda = is_cuda_object(state, obj);
  if (is_cuda < 0) {
    bsrg_wrap_error(obj, name);
    return -1;
  }
  const Py_ssize_t stream = is_cuda ? stream_for_producer(work) : 0;
  PyObject *capsule = call_dlpack(state, obj, is_cuda, stream);
  /* JAX takes -1 for the handle of a stream. Interrupts are no answer. */
  if (capsule == NULL && stream == -1 && PyErr_ExceptionMatches(PyExc_Exception)) {
    PyErr_Clear();
    capsule = call_dlpack(state, obj, is_cuda, 1);
  }
  if (capsule == NULL) {
    bsrg_wrap_error(obj, name);
    return -1;
  }
  /* The capsule stays unconsumed: it keeps the tensor alive, and its destructor calls the deleter. */
  const dlpack_tensor *tensor = NULL;
  uint64_t flags = 0;
  if (PyCapsule_IsValid(capsule, "dltensor_versioned")) {
    const dlpack_managed_versioned *managed = PyCapsule_GetPointer(capsule, "dltensor_versioned");
    if (managed->version.major != DLPACK_MAJOR) {
      PyErr_Format(PyExc_TypeError,
                   "%s comes as DLPack version %u.%u, but only major version %d is understood", name,
                   (unsigned)managed->version.major, (unsigned)managed->version.minor, DLPACK_MAJOR);
    } else {
      flags = managed->flags;
      tensor = &managed->tensor;
    }
  } else if (PyCapsule_IsValid(capsule, "dltensor")) {
    const dlpack_managed *managed = PyCapsule_GetPointer(capsule, "dltensor");
    tensor = &managed->tensor;
  } else {
    PyErr_Format(PyExc_TypeError, "%s has a __dlpack__ method that returns %R instead of a DLPack capsule",
                 name, capsule);
  }
  if (tensor == NULL || describe_tensor(state, tensor, name, out) < 0 ||
      refuse_lazy_negation(state, obj, name, out) < 0) {
    Py_DECREF(capsule);
    return -1;
  }
  /* Writing into a copy that nobody else sees would lose the result, so a copy counts as read-only. */
  out->readonly = (flags & (DLPACK_FLAG_READ_ONLY | DLPACK_FLAG_COPIED)) != 0;
  out->owner = capsule;
  return 1;
}
