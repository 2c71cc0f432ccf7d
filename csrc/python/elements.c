/* Element types: one table for the numberings of DLPack, NumPy, typestrs and the core. */
#include "array.h"

#include <string.h>

static const bsrg_element kElements[] = {
    {"float16", DLPACK_FLOAT, 16, NPY_HALF, 'f', BSRG_F16},
    {"bfloat16", DLPACK_BFLOAT, 16, NPY_NOTYPE, 0, BSRG_BF16},
    {"float32", DLPACK_FLOAT, 32, NPY_FLOAT, 'f', BSRG_F32},
    {"float64", DLPACK_FLOAT, 64, NPY_DOUBLE, 'f', BSRG_F64},
    {"int32", DLPACK_INT, 32, NPY_INT32, 'i', -1},
    {"int64", DLPACK_INT, 64, NPY_INT64, 'i', -1},
    {"bool", DLPACK_BOOL, 8, NPY_BOOL, 'b', -1},
    {"int8", DLPACK_INT, 8, NPY_INT8, 'i', -1},
    {"int16", DLPACK_INT, 16, NPY_INT16, 'i', -1},
    {"uint8", DLPACK_UINT, 8, NPY_UINT8, 'u', -1},
    {"uint16", DLPACK_UINT, 16, NPY_UINT16, 'u', -1},
    {"uint32", DLPACK_UINT, 32, NPY_UINT32, 'u', -1},
    {"uint64", DLPACK_UINT, 64, NPY_UINT64, 'u', -1},
    {"complex64", DLPACK_COMPLEX, 64, NPY_CFLOAT, 'c', -1},
    {"complex128", DLPACK_COMPLEX, 128, NPY_CDOUBLE, 'c', -1},
    {"float8_e4m3fn", DLPACK_FLOAT8_E4M3FN, 8, NPY_NOTYPE, 0, BSRG_F8_E4M3},
    {"float8_e5m2", DLPACK_FLOAT8_E5M2, 8, NPY_NOTYPE, 0, BSRG_F8_E5M2},
};
enum { ELEMENT_COUNT = sizeof kElements / sizeof kElements[0] };

bool bsrg_is_multiplied(const bsrg_element *element) { return element->dtype >= 0 && element->bits > 8; }

size_t bsrg_element_bytes(const bsrg_element *element) { return element->bits / 8; }

const bsrg_element *bsrg_element_by_name(const char *name) {
  for (int i = 0; i < ELEMENT_COUNT; ++i) {
    if (strcmp(kElements[i].name, name) == 0) return &kElements[i];
  }
  return NULL;
}

const bsrg_element *bsrg_element_by_dlpack(dlpack_dtype dtype) {
  if (dtype.lanes != 1) return NULL;
  for (int i = 0; i < ELEMENT_COUNT; ++i) {
    if (kElements[i].dlpack_code == dtype.code && kElements[i].bits == dtype.bits) return &kElements[i];
  }
  return NULL;
}

const bsrg_element *bsrg_element_by_typestr(char kind, int bytes) {
  for (int i = 0; i < ELEMENT_COUNT; ++i) {
    if (kElements[i].kind == kind && kElements[i].bits == 8 * bytes) return &kElements[i];
  }
  return NULL;
}

const bsrg_element *bsrg_element_by_descr(bsrg_state *state, PyArray_Descr *descr) {
  if (!PyArray_ISNBO(descr->byteorder)) return NULL;
  const int type = descr->type_num;
  for (int i = 0; i < ELEMENT_COUNT; ++i) {
    /* C has two integer types of the same size (long and long long, say), and so has NumPy. */
    if (kElements[i].numpy_type == type || (PyTypeNum_ISINTEGER(type) && descr->kind == kElements[i].kind &&
                                            PyDataType_ELSIZE(descr) == kElements[i].bits / 8)) {
      return &kElements[i];
    }
  }
  if (!PyTypeNum_ISUSERDEF(type)) return NULL;
  if (type == state->bfloat16_type) return bsrg_element_by_name("bfloat16");
  PyObject *name = PyObject_GetAttrString((PyObject *)descr, "name");
  const char *text = name == NULL ? NULL : PyUnicode_AsUTF8AndSize(name, NULL);
  const bsrg_element *element = text == NULL ? NULL : bsrg_element_by_name(text);
  Py_XDECREF(name);
  if (element != NULL && element->numpy_type != NPY_NOTYPE) element = NULL;
  if (element != NULL && element->dtype == BSRG_BF16) state->bfloat16_type = type;
  return element;
}

PyObject *bsrg_new_numpy(const bsrg_element *element, int ndim, const int64_t *shape) {
  npy_intp dims[BSRG_MAX_DIMS];
  for (int i = 0; i < ndim; ++i) dims[i] = (npy_intp)shape[i];
  if (element->numpy_type != NPY_NOTYPE) return PyArray_SimpleNew(ndim, dims, element->numpy_type);
  PyObject *ml_dtypes = PyImport_ImportModule("ml_dtypes");
  if (ml_dtypes == NULL) {
    if (!PyErr_ExceptionMatches(PyExc_ImportError)) return NULL;
    PyErr_Clear();
    PyErr_Format(PyExc_TypeError, "NumPy itself has no %s: install ml_dtypes for NumPy arrays of that dtype",
                 element->name);
    return NULL;
  }
  PyObject *type = PyObject_GetAttrString(ml_dtypes, element->name);
  Py_DECREF(ml_dtypes);
  PyArray_Descr *descr = NULL;
  if (type == NULL) return NULL;
  const int converted = PyArray_DescrConverter(type, &descr);
  Py_DECREF(type);
  if (converted == NPY_FAIL) return NULL;
  return PyArray_NewFromDescr(&PyArray_Type, descr, ndim, dims, NULL, NULL, 0, NULL); /* takes descr */
}

PyObject *bsrg_element_names(void) {
  PyObject *names = PyUnicode_FromString(kElements[0].name);
  for (int i = 1; i < ELEMENT_COUNT && names != NULL; ++i) {
    PyObject *longer = PyUnicode_FromFormat("%U, %s", names, kElements[i].name);
    Py_DECREF(names);
    names = longer;
  }
  return names;
}
