/* Arrays in: one description for whatever object an array came from.
 *
 * An object is taken, in this order, as our DeviceArray, as a NumPy array, through DLPack's C exchange table,
 * through __dlpack__, through __cuda_array_interface__, and through the buffer protocol.
 */
#ifndef BSRG_ARRAY_H
#define BSRG_ARRAY_H

#include "bsrg_py.h"
#include "dlpack.h"

#include <stdbool.h>

enum { BSRG_MAX_DIMS = 8 };

/* An element type. Rows of one table (elements.c) tie together the numberings of DLPack, NumPy and the
 * core. */
typedef struct bsrg_element {
  const char *name;
  uint8_t dlpack_code, bits;
  int numpy_type; /* NPY_NOTYPE: NumPy knows it only through ml_dtypes, by name */
  char kind;      /* of a typestr such as '<f4'; 0 when there is no portable one */
  int dtype;      /* bsrg_dtype, or -1 when nothing is computed with it */
} bsrg_element;

/* Whether all operations take it: it is not one of 8 bits. */
bool bsrg_is_multiplied(const bsrg_element *element);

const bsrg_element *bsrg_element_by_name(const char *name);
const bsrg_element *bsrg_element_by_dlpack(dlpack_dtype dtype);
const bsrg_element *bsrg_element_by_typestr(char kind, int bytes);
/* NULL when unknown (no exception) or on failure (with one). */
const bsrg_element *bsrg_element_by_descr(bsrg_state *state, PyArray_Descr *descr);
/* A NumPy array of this type over new memory; ml_dtypes is imported where needed. */
PyObject *bsrg_new_numpy(const bsrg_element *element, int ndim, const int64_t *shape);
/* "float16, bfloat16, ...": every name there is. */
PyObject *bsrg_element_names(void);

typedef struct bsrg_array {
  void *data;
  const bsrg_element *element;
  int ndim;
  int64_t shape[BSRG_MAX_DIMS], strides[BSRG_MAX_DIMS]; /* in elements */
  bsrg_device device;
  bool readonly;
  PyObject *owner; /* keeps the memory alive until bsrg_release_array */
} bsrg_array;

/* The stream that will use the arrays of one call. Importing an array on a GPU makes that stream wait for the
 * array's pending work. ADOPT becomes ON with the stream of the first GPU array's producer, so that a call
 * that names no stream needs no waiting at all. */
typedef struct bsrg_work {
  enum { BSRG_NO_WORK, BSRG_ADOPT_STREAM, BSRG_ON_STREAM } mode;
  void *stream;
  int first_device; /* 1 + that of the first array on a GPU, 0 before */
} bsrg_work;

/* -1 with an exception that names the argument. `out` needs releasing only after success. */
int bsrg_import_array(bsrg_state *state, PyObject *obj, const char *name, bsrg_work *work, bsrg_array *out);
void bsrg_release_array(bsrg_array *array);

bool bsrg_is_contiguous(const bsrg_array *array);
bool bsrg_is_aligned(const bsrg_array *array);
int64_t bsrg_array_size(const bsrg_array *array);
size_t bsrg_element_bytes(const bsrg_element *element);
/* Strides of a C-contiguous array. */
void bsrg_contiguous_strides(int ndim, const int64_t *shape, int64_t *strides);
/* Sizes or steps as a tuple. */
PyObject *bsrg_tuple_of(int count, const int64_t *numbers);
/* Copies host elements in C order, from any strides and alignment. */
void bsrg_pack(const bsrg_array *array, void *destination);

/* Lets the work's stream wait for what producer holds, or adopts producer. */
int bsrg_join_stream(bsrg_state *state, bsrg_work *work, int index, void *producer);

/* Whether arrays of the type come through the exchange table, which tells the current stream of their library. */
bool bsrg_has_exchange(bsrg_state *state, PyObject *type);

/* The ways in: 1 taken, 0 the object does not offer this way, -1 exception. */
int bsrg_import_exchange(bsrg_state *state, PyObject *obj, const char *name, bsrg_work *work,
                         bsrg_array *out);
int bsrg_import_dlpack(bsrg_state *state, PyObject *obj, const char *name, bsrg_work *work, bsrg_array *out);
int bsrg_import_cuda_interface(bsrg_state *state, PyObject *obj, const char *name, bsrg_work *work,
                               bsrg_array *out);

#endif
