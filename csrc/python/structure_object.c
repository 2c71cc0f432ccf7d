/* Structure: the core's immutable block pattern as a Python object. */
#include "array.h"
#include "pattern_object.h"

#include <stdlib.h>
#include <string.h>

/* ---- index arrays in ------------------------------------------------------------------------------ */

/* One of indices and indptr in host memory, contiguous and aligned. */
typedef struct index_array {
  bsrg_array array;
  void *copy; /* NULL when the array could be used where it is */
} index_array;

static void release_index(index_array *index) {
  free(index->copy);
  bsrg_release_array(&index->array);
}

static int64_t index_at(const bsrg_array *array, int64_t at) {
  if (array->element->bits == 64) return ((const int64_t *)array->data)[at];
  return ((const int32_t *)array->data)[at];
}

/* Makes `copy` the array. */
static void settle(index_array *index, void *copy) {
  free(index->copy);
  index->copy = index->array.data = copy;
  index->array.strides[0] = 1;
  index->array.device = (bsrg_device){BSRG_CPU, 0};
}

/* Copies what the array spans from its device: the one place where the host waits for a GPU. */
static int download(bsrg_state *state, index_array *index, const char *name, void *stream) {
  bsrg_array *array = &index->array;
  const int64_t count = array->shape[0], stride = count > 1 ? array->strides[0] : 1;
  int64_t span;
  if (stride < 1 || __builtin_mul_overflow(count - 1, stride, &span) || span >= INT64_MAX / 8) {
    PyErr_Format(PyExc_ValueError, "%s is on cuda:%d with stride %lld, but must be contiguous", name,
                 array->device.index, (long long)array->strides[0]);
    return -1;
  }
  const size_t bytes = ((size_t)span + 1) * bsrg_element_bytes(array->element);
  void *copy = malloc(bytes);
  if (copy == NULL) {
    PyErr_NoMemory();
    return -1;
  }
  bsrg_error error;
  bsrg_status status;
  Py_BEGIN_ALLOW_THREADS;
  status = bsrg_gpu_copy(array->device.index, copy, array->data, bytes, 1, stream, &error);
  Py_END_ALLOW_THREADS;
  if (status != BSRG_OK) {
    free(copy);
    bsrg_raise(state, status, &error);
    return -1;
  }
  settle(index, copy);
  array->strides[0] = stride;
  return 0;
}

static int make_contiguous(index_array *index) {
  bsrg_array *array = &index->array;
  if (bsrg_is_contiguous(array) && bsrg_is_aligned(array)) return 0;
  void *copy = malloc((size_t)bsrg_array_size(array) * bsrg_element_bytes(array->element));
  if (copy == NULL) {
    PyErr_NoMemory();
    return -1;
  }
  bsrg_pack(array, copy);
  settle(index, copy);
  return 0;
}

static int import_index(bsrg_state *state, PyObject *obj, const char *name, index_array *index) {
  bsrg_work work = {.mode = BSRG_ADOPT_STREAM}; /* the copy waits for the producer by running on its stream */
  index->copy = NULL;
  if (bsrg_import_array(state, obj, name, &work, &index->array) < 0) return -1;
  const bsrg_array *array = &index->array;
  if (array->ndim != 1) {
    PyErr_Format(PyExc_ValueError, "%s has shape %s, but must have one dimension", name,
                 bsrg_format_shape(array->ndim, array->shape).text);
  } else if (strcmp(array->element->name, "int32") != 0 && strcmp(array->element->name, "int64") != 0) {
    PyErr_Format(PyExc_TypeError, "%s has dtype %s, but must have dtype int32 or int64", name,
                 array->element->name);
  } else if (array->shape[0] == 0) {
    return 0;
  } else if ((array->device.kind == BSRG_CPU || download(state, index, name, work.stream) == 0) &&
             make_contiguous(index) == 0) {
    return 0;
  }
  release_index(index);
  return -1;
}

/* The core takes both arrays in one integer type. */
static int widen(index_array *index) {
  bsrg_array *array = &index->array;
  const int64_t count = array->shape[0];
  int64_t *wide = malloc((size_t)(count + 1) * sizeof *wide);
  if (wide == NULL) {
    PyErr_NoMemory();
    return -1;
  }
  for (int64_t i = 0; i < count; ++i) wide[i] = index_at(array, i);
  settle(index, wide);
  array->element = bsrg_element_by_name("int64");
  return 0;
}

static PyObject *structure_new(PyTypeObject *type, PyObject *args, PyObject *keywords) {
  static char *names[] = {"indices", "indptr", "shape", "blocksize", "check", NULL};
  PyObject *indices_object, *indptr_object, *shape_object, *blocksize_object;
  int check = 1;
  if (!PyArg_ParseTupleAndKeywords(args, keywords, "OOOO|p:Structure", names, &indices_object, &indptr_object,
                                   &shape_object, &blocksize_object, &check)) {
    return NULL;
  }
  int64_t shape[2], blocksize[2];
  if (bsrg_parse_pair(shape_object, "shape", shape) < 0 ||
      bsrg_parse_pair(blocksize_object, "blocksize", blocksize) < 0) {
    return NULL;
  }
  bsrg_state *state = PyType_GetModuleState(type);
  index_array indices, indptr;
  if (import_index(state, indices_object, "indices", &indices) < 0) return NULL;
  if (import_index(state, indptr_object, "indptr", &indptr) < 0) {
    release_index(&indices);
    return NULL;
  }
  PyObject *self = NULL;
  const bool same_type = indices.array.element == indptr.array.element;
  if (same_type || widen(indices.array.element->bits == 32 ? &indices : &indptr) == 0) {
    const bsrg_pattern pattern = {
        .rows = shape[0],
        .cols = shape[1],
        .block_height = blocksize[0],
        .block_width = blocksize[1],
        .nnzb = indices.array.shape[0],
        .indptr_len = indptr.array.shape[0],
        .index_type = indices.array.element->bits == 32 ? BSRG_I32 : BSRG_I64,
        .indices = indices.array.data,
        .indptr = indptr.array.data,
    };
    bsrg_structure *structure;
    bsrg_error error;
    bsrg_status status;
    Py_BEGIN_ALLOW_THREADS;
    status = bsrg_structure_create(&pattern, check, &structure, &error);
    Py_END_ALLOW_THREADS;
    self = status == BSRG_OK ? bsrg_pattern_new(type, structure) : bsrg_raise(state, status, &error);
  }
  release_index(&indptr);
  release_index(&indices);
  return self;
}

/* ---- attributes ----------------------------------------------------------------------------------- */

static bsrg_structure_view view_of(PyObject *obj) { return bsrg_structure_get(bsrg_structure_of(obj)); }

static PyObject *get_nnzb(PyObject *obj, void *Py_UNUSED(closure)) {
  return PyLong_FromLongLong(view_of(obj).nnzb);
}

static PyObject *get_longest_row(PyObject *obj, void *Py_UNUSED(closure)) {
  return PyLong_FromLongLong(view_of(obj).longest_row);
}

/* A read-only array over memory of the structure, which it keeps alive. */
static PyObject *view_memory(PyObject *obj, const void *data, int64_t length, int type) {
  npy_intp shape[1] = {(npy_intp)length};
  PyObject *array =
      PyArray_New(&PyArray_Type, 1, shape, type, NULL, (void *)data, 0, NPY_ARRAY_CARRAY_RO, NULL);
  if (array == NULL) return NULL;
  if (PyArray_SetBaseObject((PyArrayObject *)array, Py_NewRef(obj)) < 0) { /* takes the reference, always */
    Py_DECREF(array);
    return NULL;
  }
  return array;
}

static PyObject *get_indices(PyObject *obj, void *Py_UNUSED(closure)) {
  const bsrg_structure_view view = view_of(obj);
  return view_memory(obj, view.indices, view.nnzb, NPY_INT32);
}

static PyObject *get_indptr(PyObject *obj, void *Py_UNUSED(closure)) {
  const bsrg_structure_view view = view_of(obj);
  return view_memory(obj, view.indptr, view.block_rows + 1, NPY_INT64);
}

static PyObject *get_order(PyObject *obj, void *Py_UNUSED(closure)) {
  const bsrg_structure_view view = view_of(obj);
  return view.order == NULL ? Py_NewRef(Py_None) : view_memory(obj, view.order, view.nnzb, NPY_INT64);
}

static PyObject *structure_repr(PyObject *obj) {
  const bsrg_structure_view view = view_of(obj);
  return PyUnicode_FromFormat("Structure(shape=(%lld, %lld), blocksize=(%lld, %lld), nnzb=%lld)",
                              (long long)view.rows, (long long)view.cols, (long long)view.block_height,
                              (long long)view.block_width, (long long)view.nnzb);
}

/* `count` integers of 32 or 64 bits as a bytes object of integers of `size` bytes. */
static PyObject *copy_integers(const void *data, bool wide, int64_t count, Py_ssize_t size) {
  PyObject *copy = PyBytes_FromStringAndSize(NULL, (Py_ssize_t)count * size);
  char *to = copy == NULL ? NULL : PyBytes_AsString(copy);
  for (int64_t i = 0; to != NULL && i < count; ++i) {
    const int64_t number = wide ? ((const int64_t *)data)[i] : ((const int32_t *)data)[i];
    const int32_t narrow = (int32_t)number;
    memcpy(to + i * size, size == 4 ? (const void *)&narrow : (const void *)&number, (size_t)size);
  }
  return copy;
}

static PyObject *structure_contents(PyObject *obj, PyObject *args) {
  Py_ssize_t sizes[2];
  if (!PyArg_ParseTuple(args, "nn:contents", &sizes[0], &sizes[1])) return NULL;
  for (int i = 0; i < 2; ++i)
    if (sizes[i] != 4 && sizes[i] != 8)
      return PyErr_Format(PyExc_ValueError, "an integer has %zd bytes; accepted: 4 or 8", sizes[i]);
  const bsrg_structure_view view = view_of(obj);
  PyObject *indices = copy_integers(view.indices, false, view.nnzb, sizes[0]);
  PyObject *indptr = indices == NULL ? NULL : copy_integers(view.indptr, true, view.block_rows + 1, sizes[1]);
  if (indptr == NULL) {
    Py_XDECREF(indices);
    return NULL;
  }
  return Py_BuildValue("(NN)", indices, indptr);
}

static PyGetSetDef structure_attributes[] = {
    {"shape", bsrg_pattern_shape, NULL, "(rows, columns) in elements.", NULL},
    {"blocksize", bsrg_pattern_blocksize, NULL, "(height, width) of a block.", NULL},
    {"nnzb", get_nnzb, NULL, "Number of stored blocks.", NULL},
    {"longest_row", get_longest_row, NULL, "Number of blocks in the longest block row.", NULL},
    {"indices", get_indices, NULL,
     "Block columns: a read-only int32 NumPy array of length nnzb over the copy inside.", NULL},
    {"indptr", get_indptr, NULL,
     "Where block rows begin and end in indices: a read-only int64 NumPy array, one longer than the number "
     "of\n"
     "block rows, over the copy inside.",
     NULL},
    {"is_transposed", bsrg_pattern_is_transposed, NULL, "Whether transposed() made it.", NULL},
    {"order", get_order, NULL,
     "None or, of a transposed structure, for each block its index in the values, which hold it transposed: "
     "a\n"
     "read-only int64 NumPy array of length nnzb.",
     NULL},
    {NULL, NULL, NULL, NULL, NULL}};

static PyMethodDef structure_methods[] = {
    {"transposed", bsrg_pattern_transposed, METH_NOARGS,
     "transposed($self, /)\n--\n\n"
     "The Structure of the transposed matrix around the same values; transposed again, it is this one."},
    {"contents", structure_contents, METH_VARARGS,
     "contents($self, indices_size, indptr_size, /)\n--\n\n"
     "Copies of indices and indptr as bytes, of integers of so many bytes each."},
    {"explain", (PyCFunction)(void (*)(void))bsrg_structure_explain, METH_VARARGS | METH_KEYWORDS,
     "explain($self, /, n, dtype, chip=None, precision='ieee', by_columns=False)\n--\n\n"
     "What the planner predicts for the product with a dense matrix of n columns of dtype.\n\n"
     "chip: a dict that replaces entries of the built-in description of an H200 (name, sm_arch, sm_count,\n"
     "hbm_bytes_per_s, l2_bytes_per_s, l2_bytes, mma_flops_per_s). Needs no GPU.\n\n"
     "by_columns: the dense matrix and the result are column-major, as products with A on the right have "
     "them.\n\n"
     "Returns a dict: useful_flops; chosen, a family; candidates, a list of dicts with family, supported,\n"
     "seconds (0 when not supported), hbm_bytes, l2_bytes, mma_flops and reason."},
    {"explain_sampled", (PyCFunction)(void (*)(void))bsrg_structure_explain_sampled,
     METH_VARARGS | METH_KEYWORDS,
     "explain_sampled($self, /, k, dtype, chip=None)\n--\n\n"
     "As explain, for the product of two dense matrices, with k columns and rows, at the stored blocks."},
    {"explain_sparse", (PyCFunction)(void (*)(void))bsrg_structure_explain_sparse,
     METH_VARARGS | METH_KEYWORDS,
     "explain_sparse($self, /, b, dtype, chip=None)\n--\n\n"
     "As explain, for the product with another block-sparse matrix."},
    {NULL, NULL, 0, NULL}};

static const char structure_doc[] =
    "Structure(indices, indptr, shape, blocksize, check=True)\n--\n\n"
    "Which blocks a block-sparse (BSR) matrix stores: an immutable, validated copy.\n\n"
    "indices  block columns, one per stored block, ascending strictly within each block row\n"
    "indptr   block row i stores the blocks indptr[i] .. indptr[i + 1] - 1\n"
    "shape, blocksize   pairs of integers; the last blocks may reach beyond the matrix\n"
    "check    False skips the check that block columns ascend; sizes, bounds and indptr are checked "
    "always\n\n"
    "indices and indptr may be any arrays with one dimension of int32 or int64. From a GPU they are copied "
    "to the\n"
    "host, which waits for them. Raises ValueError or TypeError naming the argument, what was found and "
    "where,\n"
    "and what is accepted.";

PyTypeObject *bsrg_make_structure_type(PyObject *module) {
  static PyType_Slot slots[] = {{Py_tp_doc, (void *)structure_doc},
                                {Py_tp_new, structure_new},
                                {Py_tp_dealloc, bsrg_pattern_dealloc},
                                {Py_tp_repr, structure_repr},
                                {Py_tp_methods, structure_methods},
                                {Py_tp_getset, structure_attributes},
                                {0, NULL}};
  static PyType_Spec spec = {"bsrgemm._core.Structure", sizeof(bsrg_pattern_object), 0,
                             Py_TPFLAGS_DEFAULT | Py_TPFLAGS_IMMUTABLETYPE, slots};
  return (PyTypeObject *)PyType_FromModuleAndSpec(module, &spec, NULL);
}
