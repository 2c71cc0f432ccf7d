#include "pattern_object.h"

bsrg_structure *bsrg_structure_of(PyObject *obj) { return ((bsrg_pattern_object *)obj)->structure; }

bsrg_structure *bsrg_fixed_structure(bsrg_state *state, PyObject *obj, const char *name) {
  if (Py_IS_TYPE(obj, state->structure_type)) return bsrg_structure_of(obj);
  PyErr_Format(PyExc_TypeError, "%s is %R, but must be a Structure", name, obj);
  return NULL;
}

bsrg_structure *bsrg_matrix_structure(bsrg_state *state, PyObject *obj) {
  return Py_IS_TYPE(obj, state->dynamic_type) ? bsrg_structure_of(obj)
                                              : bsrg_fixed_structure(state, obj, "structure");
}

/* With an original, that one owns the structure. */
static PyObject *wrap(PyTypeObject *type, bsrg_structure *structure, PyObject *original) {
  allocfunc allocate = (allocfunc)PyType_GetSlot(type, Py_tp_alloc);
  bsrg_pattern_object *self = (bsrg_pattern_object *)allocate(type, 0);
  if (self != NULL) {
    self->structure = structure;
    self->original = Py_XNewRef(original);
  } else if (original == NULL) {
    bsrg_structure_destroy(structure);
  }
  return (PyObject *)self;
}

PyObject *bsrg_pattern_new(PyTypeObject *type, bsrg_structure *structure) {
  return wrap(type, structure, NULL);
}

void bsrg_pattern_dealloc(PyObject *obj) {
  PyTypeObject *type = Py_TYPE(obj);
  bsrg_pattern_object *self = (bsrg_pattern_object *)obj;
  if (self->original == NULL) {
    Py_BEGIN_ALLOW_THREADS; /* it waits for kernels that read plans, which may wait for other threads */
    bsrg_structure_destroy(self->structure);
    Py_END_ALLOW_THREADS;
  }
  Py_XDECREF(self->original);
  freefunc release = (freefunc)PyType_GetSlot(type, Py_tp_free);
  release(obj);
  Py_DECREF(type);
}

PyObject *bsrg_pattern_transposed(PyObject *obj, PyObject *Py_UNUSED(unused)) {
  bsrg_pattern_object *self = (bsrg_pattern_object *)obj;
  if (self->original != NULL) return Py_NewRef(self->original);
  bsrg_structure *transposed;
  bsrg_error error;
  bsrg_status status;
  Py_BEGIN_ALLOW_THREADS;
  status = bsrg_structure_transposed(self->structure, &transposed, &error);
  Py_END_ALLOW_THREADS;
  return status == BSRG_OK ? wrap(Py_TYPE(obj), transposed, obj)
                           : bsrg_raise(PyType_GetModuleState(Py_TYPE(obj)), status, &error);
}

PyObject *bsrg_pattern_shape(PyObject *obj, void *Py_UNUSED(closure)) {
  const bsrg_structure_view view = bsrg_structure_get(bsrg_structure_of(obj));
  return Py_BuildValue("(LL)", (long long)view.rows, (long long)view.cols);
}

PyObject *bsrg_pattern_blocksize(PyObject *obj, void *Py_UNUSED(closure)) {
  const bsrg_structure_view view = bsrg_structure_get(bsrg_structure_of(obj));
  return Py_BuildValue("(LL)", (long long)view.block_height, (long long)view.block_width);
}

PyObject *bsrg_pattern_is_transposed(PyObject *obj, void *Py_UNUSED(closure)) {
  return PyBool_FromLong(((bsrg_pattern_object *)obj)->original != NULL);
}
