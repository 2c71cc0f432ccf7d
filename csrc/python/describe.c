/* describe(): what array import sees of an object. */
#include "array.h"

PyTypeObject *bsrg_make_array_info_type(void) {
  static PyStructSequence_Field fields[] = {{"dtype", "name of the element type, such as 'float32'"},
                                            {"shape", "sizes"},
                                            {"strides", "steps in elements"},
                                            {"device", "'cpu' or 'cuda:<n>'"},
                                            {"pointer", "address of the first element"},
                                            {"readonly", "whether the memory must not be written"},
                                            {NULL, NULL}};
  static PyStructSequence_Desc description = {"bsrgemm._core.ArrayInfo", "What describe() returns.", fields,
                                              6};
  return PyStructSequence_NewType(&description);
}

PyObject *bsrg_py_describe(PyObject *module, PyObject *const *args, Py_ssize_t nargs, PyObject *kwnames) {
  static const bsrg_name names[] = {BSRG_NAME_obj, BSRG_NAME_name};
  static const bsrg_signature signature = {"describe", 1, 2, names};
  bsrg_state *state = PyModule_GetState(module);
  PyObject *found[2];
  if (bsrg_parse(state, &signature, args, nargs, kwnames, found) < 0) return NULL;
  const char *name = "array";
  if (found[1] != NULL) {
    if (!PyUnicode_Check(found[1]))
      return PyErr_Format(PyExc_TypeError, "name is %R, but must be a string", found[1]);
    name = PyUnicode_AsUTF8AndSize(found[1], NULL);
    if (name == NULL) return NULL;
  }
  bsrg_work no_work = {.mode = BSRG_NO_WORK};
  bsrg_array array;
  if (bsrg_import_array(state, found[0], name, &no_work, &array) < 0) return NULL;
  PyObject *info = PyStructSequence_New(state->array_info_type);
  if (info != NULL) {
    PyObject *const fields[] = {PyUnicode_FromString(array.element->name),
                                bsrg_tuple_of(array.ndim, array.shape),
                                bsrg_tuple_of(array.ndim, array.strides),
                                bsrg_device_name(array.device),
                                PyLong_FromVoidPtr(array.data),
                                PyBool_FromLong(array.readonly)};
    int failed = 0;
    for (int i = 0; i < 6; ++i) {
      failed |= fields[i] == NULL;
      PyStructSequence_SetItem(info, i, fields[i]); /* takes the reference */
    }
    if (failed) Py_CLEAR(info);
  }
  bsrg_release_array(&array);
  return info;
}

const char bsrg_describe_doc[] =
    "describe(obj, name='array')\n--\n\n"
    "ArrayInfo(dtype, shape, strides, device, pointer, readonly) of any object that can be imported as an "
    "array.\n\n"
    "strides count elements. Nothing is copied and no stream is synchronised. TypeError, naming `name`, when "
    "obj\n"
    "is no array that can be imported.";
