/* DynamicStructure: a pattern that a GPU makes, as a Python object, and the functions that fill it. */
#include "dynamic_object.h"

#include "pattern_object.h"

#include <string.h>

static PyObject *dynamic_new(PyTypeObject *type, PyObject *args, PyObject *keywords) {
  static char *names[] = {"shape", "blocksize", "capacity", "device", "chip", "memory", NULL};
  PyObject *shape_object, *blocksize_object, *capacity_object, *device_object = NULL, *chip_object = NULL,
                                                               *memory_object = NULL;
  if (!PyArg_ParseTupleAndKeywords(args, keywords, "OOO|OOO:DynamicStructure", names, &shape_object,
                                   &blocksize_object, &capacity_object, &device_object, &chip_object,
                                   &memory_object)) {
    return NULL;
  }
  void *memory = NULL;
  if (!bsrg_is_absent(memory_object)) {
    memory = PyLong_AsVoidPtr(memory_object);
    if (memory == NULL && PyErr_Occurred()) return NULL;
  }
  int64_t shape[2], blocksize[2], capacity;
  int device;
  bsrg_chip_question question;
  if (bsrg_parse_question(chip_object, &question) < 0) return NULL;
  if (bsrg_parse_pair(shape_object, "shape", shape) < 0 ||
      bsrg_parse_pair(blocksize_object, "blocksize", blocksize) < 0 ||
      bsrg_parse_integer(capacity_object, "capacity", &capacity) < 0 ||
      bsrg_parse_cuda_device(device_object, &device) < 0) {
    return NULL;
  }
  bsrg_structure *structure;
  bsrg_error error;
  bsrg_status status;
  Py_BEGIN_ALLOW_THREADS;
  status = question.asked ? bsrg_dynamic_describe(shape[0], shape[1], blocksize[0], blocksize[1], capacity,
                                                  &question.chip, &structure, &error)
                          : bsrg_dynamic_create_in(shape[0], shape[1], blocksize[0], blocksize[1], capacity,
                                                   device, memory, &structure, &error);
  Py_END_ALLOW_THREADS;
  return status == BSRG_OK ? bsrg_pattern_new(type, structure)
                           : bsrg_raise(PyType_GetModuleState(type), status, &error);
}

/* ---- attributes and methods ------------------------------------------------------------------------ */

static PyObject *get_capacity(PyObject *obj, void *Py_UNUSED(closure)) {
  return PyLong_FromLongLong(bsrg_structure_get(bsrg_structure_of(obj)).nnzb);
}

static PyObject *get_pointers(PyObject *obj, void *Py_UNUSED(closure)) {
  bsrg_dynamic_arrays arrays;
  bsrg_error error;
  const bsrg_status status = bsrg_dynamic_get(bsrg_structure_of(obj), &arrays, &error);
  if (status != BSRG_OK) return bsrg_raise(PyType_GetModuleState(Py_TYPE(obj)), status, &error);
  return Py_BuildValue("(NNN)", PyLong_FromVoidPtr((void *)arrays.indptr),
                       PyLong_FromVoidPtr((void *)arrays.indices), PyLong_FromVoidPtr((void *)arrays.counts));
}

static PyObject *get_bytes(PyObject *obj, void *Py_UNUSED(closure)) {
  return PyLong_FromSize_t(bsrg_dynamic_bytes(bsrg_structure_of(obj)));
}

/* An array in host memory that has been copied from the device when this returns; NULL with an exception. */
static PyObject *download(PyTypeObject *type, int device, const void *source, int64_t length, int numpy_type,
                          size_t item, void *stream) {
  npy_intp dims[1] = {(npy_intp)length};
  PyObject *array = PyArray_SimpleNew(1, dims, numpy_type);
  if (array == NULL) return NULL;
  void *to = PyArray_DATA((PyArrayObject *)array);
  bsrg_error error;
  bsrg_status status;
  Py_BEGIN_ALLOW_THREADS;
  status = bsrg_gpu_copy(device, to, source, (size_t)length * item, 1, stream, &error);
  Py_END_ALLOW_THREADS;
  if (status == BSRG_OK) return array;
  Py_DECREF(array);
  return bsrg_raise(PyType_GetModuleState(type), status, &error);
}

static PyObject *dynamic_read(PyObject *obj, PyObject *stream_object) {
  PyTypeObject *type = Py_TYPE(obj);
  bsrg_dynamic_arrays arrays;
  bsrg_error error;
  void *stream;
  if (bsrg_parse_stream(stream_object, &stream) < 0) return NULL;
  const bsrg_status status = bsrg_dynamic_get(bsrg_structure_of(obj), &arrays, &error);
  if (status != BSRG_OK) return bsrg_raise(PyType_GetModuleState(type), status, &error);
  bsrg_structure_view view = bsrg_structure_get(bsrg_structure_of(obj));
  const int64_t rows = ((bsrg_pattern_object *)obj)->original ? view.block_cols : view.block_rows;
  PyObject *counts = download(type, arrays.device, arrays.counts, 2, NPY_INT64, sizeof(int64_t), stream);
  if (counts == NULL) return NULL;
  const int64_t *count = PyArray_DATA((PyArrayObject *)counts);
  const int64_t stored = count[0], dropped = count[1];
  Py_DECREF(counts);
  PyObject *indptr =
      download(type, arrays.device, arrays.indptr, rows + 1, NPY_INT64, sizeof(int64_t), stream);
  if (indptr == NULL) return NULL;
  PyObject *indices =
      download(type, arrays.device, arrays.indices, stored, NPY_INT32, sizeof(int32_t), stream);
  if (indices == NULL) {
    Py_DECREF(indptr);
    return NULL;
  }
  return Py_BuildValue("(NNL)", indices, indptr, (long long)dropped);
}

static PyGetSetDef attributes[] = {
    {"shape", bsrg_pattern_shape, NULL, "(rows, columns) in elements.", NULL},
    {"blocksize", bsrg_pattern_blocksize, NULL, "(height, width) of a block.", NULL},
    {"capacity", get_capacity, NULL, "Number of blocks that it has room for.", NULL},
    {"is_transposed", bsrg_pattern_is_transposed, NULL, "Whether transposed() made it.", NULL},
    {"pointers", get_pointers, NULL,
     "Addresses in device memory, of the pattern that is not transposed: indptr, int64 of block rows + 1; "
     "indices,\n"
     "int32 of capacity; counts, int64 of the blocks stored and dropped.",
     NULL},
    {"bytes", get_bytes, NULL,
     "Device memory that it takes. First in it are counts, indptr and indices, each at a multiple of 256.",
     NULL},
    {NULL, NULL, NULL, NULL, NULL}};

static PyMethodDef methods[] = {
    {"transposed", bsrg_pattern_transposed, METH_NOARGS,
     "transposed($self, /)\n--\n\n"
     "The DynamicStructure of the transposed matrix around the same values; transposed again, it is this "
     "one."},
    {"read", dynamic_read, METH_O,
     "read($self, stream, /)\n--\n\n"
     "indices and indptr as NumPy arrays, of the pattern that is not transposed, and how many blocks were "
     "dropped,\n"
     "once the work on the stream is done."},
    {NULL, NULL, 0, NULL}};

static const char dynamic_doc[] =
    "DynamicStructure(shape, blocksize, capacity, device='cuda:0', chip=None, memory=None)\n--\n\n"
    "Which blocks a block-sparse (BSR) matrix stores, made anew on a GPU by pattern_update and "
    "pattern_topk.\n"
    "\n"
    "shape, blocksize   pairs of integers; blocksize divides shape\n"
    "capacity           the most blocks that it can store, from 1 to all of them\n"
    "chip               not None: one for calls with an argument chip alone, without a device\n"
    "memory             address of as many bytes as it takes on the device, a multiple of 256: all of the "
    "pattern lies "
    "there,\n"
    "                   memory of the caller's, which has to live as long as work with it\n\n"
    "It begins without blocks, or with what is in the memory. matmul and sampled_matmul take it with values "
    "[capacity, block height, block width].";

PyTypeObject *bsrg_make_dynamic_type(PyObject *module) {
  static PyType_Slot slots[] = {
      {Py_tp_doc, (void *)dynamic_doc}, {Py_tp_new, dynamic_new},   {Py_tp_dealloc, bsrg_pattern_dealloc},
      {Py_tp_methods, methods},         {Py_tp_getset, attributes}, {0, NULL}};
  static PyType_Spec spec = {"bsrgemm._core.DynamicStructure", sizeof(bsrg_pattern_object), 0,
                             Py_TPFLAGS_DEFAULT | Py_TPFLAGS_IMMUTABLETYPE, slots};
  return (PyTypeObject *)PyType_FromModuleAndSpec(module, &spec, NULL);
}

/* ---- functions ------------------------------------------------------------------------------------- */

static bsrg_structure *parse_dynamic(bsrg_state *state, PyObject *obj) {
  if (Py_IS_TYPE(obj, state->dynamic_type)) return bsrg_structure_of(obj);
  PyErr_Format(PyExc_TypeError, "structure is %R, but must be a DynamicStructure", obj);
  return NULL;
}

/* That an operand lies where the pattern is. */
static int check_device(const bsrg_structure *structure, const bsrg_operand *operand) {
  bsrg_dynamic_arrays arrays = {0};
  bsrg_dynamic_get(structure, &arrays, NULL);
  const bsrg_device device = operand->array.device;
  if (arrays.device < 0 || (device.kind == BSRG_CUDA && device.index == arrays.device)) return 0;
  PyObject *found = bsrg_device_name(device);
  if (found != NULL)
    PyErr_Format(PyExc_TypeError, "%s is on %U, but the pattern is on cuda:%d", operand->name, found,
                 arrays.device);
  Py_XDECREF(found);
  return -1;
}

static PyObject *finish(bsrg_state *state, bsrg_status status, const bsrg_error *error) {
  return status == BSRG_OK ? Py_NewRef(Py_None) : bsrg_raise(state, status, error);
}

PyObject *bsrg_py_pattern_update(PyObject *module, PyObject *const *args, Py_ssize_t nargs,
                                 PyObject *kwnames) {
  static const bsrg_name names[] = {BSRG_NAME_structure, BSRG_NAME_mask, BSRG_NAME_stream};
  static const bsrg_signature signature = {"pattern_update", 2, 3, names};
  bsrg_state *state = PyModule_GetState(module);
  PyObject *found[3];
  bsrg_work work;
  if (bsrg_parse(state, &signature, args, nargs, kwnames, found) < 0) return NULL;
  bsrg_structure *structure = parse_dynamic(state, found[0]);
  if (structure == NULL || bsrg_parse_work(found[2], &work) < 0) return NULL;
  bsrg_operand mask = {.name = "mask"};
  if (bsrg_import_array(state, found[1], mask.name, &work, &mask.array) < 0) return NULL;
  mask.given = true;
  PyObject *result = NULL;
  const char *dtype = mask.array.element->name;
  if (strcmp(dtype, "bool") != 0 && strcmp(dtype, "uint8") != 0) {
    PyErr_Format(PyExc_TypeError, "mask has dtype %s, but must have dtype bool or uint8", dtype);
  } else if (bsrg_check_dimensions(&mask, 2, "2") == 0 && check_device(structure, &mask) == 0) {
    const bsrg_dense dense = bsrg_operand_dense(&mask);
    bsrg_error error;
    bsrg_status status;
    Py_BEGIN_ALLOW_THREADS;
    status = bsrg_dynamic_update(structure, &dense, work.stream, &error);
    Py_END_ALLOW_THREADS;
    result = finish(state, status, &error);
  }
  bsrg_release_operands(state, &mask, 1, result != NULL, &work);
  return result;
}

PyObject *bsrg_py_pattern_topk(PyObject *module, PyObject *const *args, Py_ssize_t nargs, PyObject *kwnames) {
  static const bsrg_name names[] = {BSRG_NAME_structure, BSRG_NAME_scores, BSRG_NAME_k, BSRG_NAME_stream};
  static const bsrg_signature signature = {"pattern_topk", 3, 4, names};
  bsrg_state *state = PyModule_GetState(module);
  PyObject *found[4];
  bsrg_work work;
  int64_t k;
  if (bsrg_parse(state, &signature, args, nargs, kwnames, found) < 0) return NULL;
  bsrg_structure *structure = parse_dynamic(state, found[0]);
  if (structure == NULL || bsrg_parse_integer(found[2], "k", &k) < 0 || bsrg_parse_work(found[3], &work) < 0)
    return NULL;
  bsrg_operand scores = {.name = "scores"};
  PyObject *result = NULL;
  if (bsrg_import_operand(state, found[1], &scores, &work) == 0 &&
      bsrg_check_dimensions(&scores, 2, "2") == 0 && check_device(structure, &scores) == 0) {
    const bsrg_dense dense = bsrg_operand_dense(&scores);
    const bsrg_dtype dtype = (bsrg_dtype)scores.array.element->dtype;
    bsrg_error error;
    bsrg_status status;
    Py_BEGIN_ALLOW_THREADS;
    status = bsrg_dynamic_update_topk(structure, &dense, dtype, k, work.stream, &error);
    Py_END_ALLOW_THREADS;
    result = finish(state, status, &error);
  }
  bsrg_release_operands(state, &scores, 1, result != NULL, &work);
  return result;
}

/* That values have room for the structure's blocks, one behind the other. */
static int check_values(const bsrg_structure *structure, const bsrg_operand *values) {
  const bsrg_structure_view v = bsrg_structure_get(structure);
  int64_t expected[3];
  bsrg_values_shape(&v, expected);
  const bsrg_array *array = &values->array;
  if (array->ndim == 3 && memcmp(array->shape, expected, sizeof expected) == 0 && bsrg_is_contiguous(array))
    return bsrg_check_writable(values);
  PyErr_Format(PyExc_ValueError, "%s has shape %s, but must have shape %s, C-contiguous", values->name,
               bsrg_format_shape(array->ndim, array->shape).text, bsrg_format_shape(3, expected).text);
  return -1;
}

PyObject *bsrg_py_pattern_gather(PyObject *module, PyObject *const *args, Py_ssize_t nargs,
                                 PyObject *kwnames) {
  static const bsrg_name names[] = {BSRG_NAME_structure, BSRG_NAME_dense, BSRG_NAME_out, BSRG_NAME_stream};
  static const bsrg_signature signature = {"pattern_gather", 3, 4, names};
  bsrg_state *state = PyModule_GetState(module);
  PyObject *found[4];
  bsrg_work work;
  if (bsrg_parse(state, &signature, args, nargs, kwnames, found) < 0) return NULL;
  bsrg_structure *structure = parse_dynamic(state, found[0]);
  if (structure == NULL || bsrg_parse_work(found[3], &work) < 0) return NULL;
  bsrg_operand operands[2] = {{.name = "dense"}, {.name = "out"}};
  PyObject *result = NULL;
  if (bsrg_import_operand(state, found[1], &operands[0], &work) == 0 &&
      bsrg_import_operand(state, found[2], &operands[1], &work) == 0 &&
      bsrg_check_same_kind(&operands[0], &operands[1]) == 0 &&
      bsrg_check_dimensions(&operands[0], 2, "2") == 0 && check_device(structure, &operands[0]) == 0 &&
      check_values(structure, &operands[1]) == 0) {
    const bsrg_dense dense = bsrg_operand_dense(&operands[0]);
    const bsrg_dtype dtype = (bsrg_dtype)operands[0].array.element->dtype;
    void *values = operands[1].array.data;
    bsrg_error error;
    bsrg_status status;
    Py_BEGIN_ALLOW_THREADS;
    status = bsrg_dynamic_gather(structure, &dense, dtype, values, work.stream, &error);
    Py_END_ALLOW_THREADS;
    result = finish(state, status, &error);
  }
  bsrg_release_operands(state, operands, 2, result != NULL, &work);
  return result;
}

const char bsrg_pattern_update_doc[] =
    "pattern_update(structure, mask, stream=0)\n--\n\n"
    "Stores the blocks of which mask, bool or uint8 of [block rows, block columns], is not 0.\n\n"
    "mask lies on the structure's GPU, in any strides. Neither allocates nor waits. Raises TypeError (no "
    "array,\n"
    "dtype, device), ValueError (shape), RuntimeError (CUDA).";
const char bsrg_pattern_topk_doc[] =
    "pattern_topk(structure, scores, k, stream=0)\n--\n\n"
    "Stores the k blocks of each block row that have the highest scores, float16, bfloat16 or float32 of "
    "[block\n"
    "rows, block columns]. Otherwise as pattern_update; scratch memory is allocated in stream order.";
const char bsrg_pattern_gather_doc[] =
    "pattern_gather(structure, dense, out, stream=0)\n--\n\n"
    "out, [capacity, block height, block width], becomes the blocks that dense, [rows, columns] in any "
    "strides, "
    "has\n"
    "where the structure stores one, and zeros behind these. Otherwise as pattern_update.";
