/* DynamicStructure, and the functions on it that the module has. */
#ifndef BSRG_DYNAMIC_OBJECT_H
#define BSRG_DYNAMIC_OBJECT_H

#include "operands.h"

PyTypeObject *bsrg_make_dynamic_type(PyObject *module);

PyObject *bsrg_py_pattern_update(PyObject *module, PyObject *const *args, Py_ssize_t nargs,
                                 PyObject *kwnames);
PyObject *bsrg_py_pattern_topk(PyObject *module, PyObject *const *args, Py_ssize_t nargs, PyObject *kwnames);
PyObject *bsrg_py_pattern_gather(PyObject *module, PyObject *const *args, Py_ssize_t nargs,
                                 PyObject *kwnames);
extern const char bsrg_pattern_update_doc[], bsrg_pattern_topk_doc[], bsrg_pattern_gather_doc[];

#endif
