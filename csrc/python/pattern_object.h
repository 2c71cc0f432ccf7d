/* What Structure and DynamicStructure share: objects around a structure of the core. */
#ifndef BSRG_PATTERN_OBJECT_H
#define BSRG_PATTERN_OBJECT_H

#include "bsrg_py.h"

typedef struct bsrg_pattern_object {
  PyObject_HEAD bsrg_structure *structure;
  PyObject *original; /* NULL, or the object to which `structure` belongs as its transposed */
} bsrg_pattern_object;

/* Makes an object that owns `structure`, which is destroyed when that fails. */
PyObject *bsrg_pattern_new(PyTypeObject *type, bsrg_structure *structure);
void bsrg_pattern_dealloc(PyObject *obj);

/* Methods and attributes. */
PyObject *bsrg_pattern_transposed(PyObject *obj, PyObject *unused);
PyObject *bsrg_pattern_shape(PyObject *obj, void *closure);
PyObject *bsrg_pattern_blocksize(PyObject *obj, void *closure);
PyObject *bsrg_pattern_is_transposed(PyObject *obj, void *closure);

#endif
