/* DeviceArray: a C-contiguous array in GPU memory of our own. */
#ifndef BSRG_DEVICE_ARRAY_H
#define BSRG_DEVICE_ARRAY_H

#include "array.h"

typedef struct bsrg_device_array {
  PyObject_HEAD PyObject *base; /* the DeviceArray that owns the memory; NULL in the owner itself */
  void *data;
  const bsrg_element *element;
  int ndim, device_index;
  int64_t shape[BSRG_MAX_DIMS];
  size_t bytes;
  /* Only the owner's are used. */
  void *stream;  /* every use of the memory so far comes before what is put on this stream from now on */
  uint64_t uses; /* how often work has been put on the memory */
  bool pending;  /* work on `stream` may still be under way */
  bool exported; /* another library may use the memory on streams that we do not know */
} bsrg_device_array;

/* 1: taken. The work's stream waits for the array's pending work and becomes its stream. */
int bsrg_import_device_array(bsrg_state *state, PyObject *obj, bsrg_work *work, bsrg_array *out);
/* After work on the array has been put on `stream`: makes sure that the memory is freed only behind it.
 * No-op for arrays of other kinds. */
void bsrg_note_device_use(bsrg_state *state, const bsrg_array *array, void *stream);
/* Puts the array on `stream`, which waits for its pending work. -1 with an exception. */
int bsrg_move_to_stream(bsrg_state *state, bsrg_device_array *self, void *stream);
bsrg_device_array *bsrg_memory_owner(bsrg_device_array *self);
/* After handing the memory to another library. */
void bsrg_mark_exported(bsrg_device_array *self);

/* device_array_export.c */
PyObject *bsrg_device_array_cuda_interface(PyObject *self, void *closure);
PyObject *bsrg_device_array_dlpack(PyObject *self, PyObject *args, PyObject *keywords);
PyObject *bsrg_device_array_dlpack_device(PyObject *self, PyObject *unused);

#endif
