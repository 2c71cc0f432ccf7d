/* bsrgemm._core: module creation and state. */
#define BSRG_IMPORTS_NUMPY
#include "../kernel_images.h"
#include "dynamic_object.h"

static const char module_doc[] = "The compiled core of bsrgemm. The package bsrgemm is its public face.";

static const char unavailable_doc[] =
    "A GPU was asked for, but there is none that can be used: no CUDA driver, no device, or a build without\n"
    "kernels. The message says which.";

/* NumPy's module state is one per process, so it refuses subinterpreters, and an extension that hands out
 * NumPy arrays cannot do better. The module slot that says so, Py_mod_multiple_interpreters, is newer than
 * the limited API used here. */
static int refuse_subinterpreters(void) {
  const int64_t id = PyInterpreterState_GetID(PyInterpreterState_Get());
  if (id == 0) return 0;
  if (id > 0) {
    PyErr_SetString(
        PyExc_ImportError,
        "bsrgemm works in the main interpreter only, because NumPy does not support subinterpreters");
  }
  return -1;
}

static int intern_names(bsrg_state *state) {
  static const char *const names[] = {
#define BSRG_PY_STRING(name) #name,
      BSRG_PY_NAMES(BSRG_PY_STRING)
#undef BSRG_PY_STRING
  };
  for (int i = 0; i < BSRG_NAME_COUNT; ++i) {
    state->names[i] = PyUnicode_InternFromString(names[i]);
    if (state->names[i] == NULL) return -1;
  }
  return 0;
}

static int add_type(PyObject *module, const char *name, PyTypeObject *type) {
  return type == NULL ? -1 : PyModule_AddObjectRef(module, name, (PyObject *)type);
}

static int execute(PyObject *module) {
  if (refuse_subinterpreters() < 0) return -1;
  if (PyArray_ImportNumPyAPI() < 0) return -1;
  bsrg_state *state = PyModule_GetState(module);
  state->bfloat16_type = -1;
  if (intern_names(state) < 0) return -1;

  state->structure_type = bsrg_make_structure_type(module);
  if (add_type(module, "Structure", state->structure_type) < 0) return -1;
  state->dynamic_type = bsrg_make_dynamic_type(module);
  if (add_type(module, "DynamicStructure", state->dynamic_type) < 0) return -1;
  state->device_array_type = bsrg_make_device_array_type(module);
  if (add_type(module, "DeviceArray", state->device_array_type) < 0) return -1;
  state->array_info_type = bsrg_make_array_info_type();
  if (add_type(module, "ArrayInfo", state->array_info_type) < 0) return -1;
  state->device_unavailable_error = PyErr_NewExceptionWithDoc("bsrgemm._core.DeviceUnavailableError",
                                                              unavailable_doc, PyExc_RuntimeError, NULL);
  if (state->device_unavailable_error == NULL ||
      PyModule_AddObjectRef(module, "DeviceUnavailableError", state->device_unavailable_error) < 0) {
    return -1;
  }
  PyObject *built_with_cuda = bsrg_kernel_image_count > 0 ? Py_True : Py_False;
  if (PyModule_AddObjectRef(module, "built_with_cuda", built_with_cuda) < 0) return -1;
  if (PyModule_AddStringConstant(module, "__version__", BSRG_VERSION) < 0) return -1;
  return PyModule_AddFunctions(module, bsrg_system_methods);
}

static int traverse(PyObject *module, visitproc visit, void *arg) {
  bsrg_state *state = PyModule_GetState(module);
  Py_VISIT(state->device_unavailable_error);
  Py_VISIT(state->structure_type);
  Py_VISIT(state->dynamic_type);
  Py_VISIT(state->device_array_type);
  Py_VISIT(state->array_info_type);
  Py_VISIT(state->tensor_type);
  Py_VISIT(state->parameter_type);
  Py_VISIT(state->is_grad_enabled);
  Py_VISIT(state->strided);
  for (int i = 0; i < BSRG_EXCHANGE_TYPES; ++i) Py_VISIT(state->exchange_types[i].type);
  return 0;
}

static int clear(PyObject *module) {
  bsrg_state *state = PyModule_GetState(module);
  Py_CLEAR(state->device_unavailable_error);
  Py_CLEAR(state->structure_type);
  Py_CLEAR(state->dynamic_type);
  Py_CLEAR(state->device_array_type);
  Py_CLEAR(state->array_info_type);
  Py_CLEAR(state->tensor_type);
  Py_CLEAR(state->parameter_type);
  Py_CLEAR(state->is_grad_enabled);
  Py_CLEAR(state->strided);
  for (int i = 0; i < BSRG_EXCHANGE_TYPES; ++i) Py_CLEAR(state->exchange_types[i].type);
  for (int i = 0; i < BSRG_NAME_COUNT; ++i) Py_CLEAR(state->names[i]);
  return 0;
}

static void release(void *module) { clear(module); }

static PyMethodDef methods[] = {
    {"matmul", (PyCFunction)(void (*)(void))bsrg_py_matmul, METH_FASTCALL | METH_KEYWORDS, bsrg_matmul_doc},
    {"try_matmul", (PyCFunction)(void (*)(void))bsrg_py_try_matmul, METH_FASTCALL, bsrg_try_matmul_doc},
    {"try_linear", (PyCFunction)(void (*)(void))bsrg_py_try_linear, METH_FASTCALL, bsrg_try_linear_doc},
    {"are_usual", (PyCFunction)(void (*)(void))bsrg_py_are_usual, METH_FASTCALL, bsrg_are_usual_doc},
    {"try_sampled", (PyCFunction)(void (*)(void))bsrg_py_try_sampled, METH_FASTCALL, bsrg_try_sampled_doc},
    {"sampled_matmul", (PyCFunction)(void (*)(void))bsrg_py_sampled_matmul, METH_FASTCALL | METH_KEYWORDS,
     bsrg_sampled_matmul_doc},
    {"matmul_sparse", (PyCFunction)(void (*)(void))bsrg_py_matmul_sparse, METH_FASTCALL | METH_KEYWORDS,
     bsrg_matmul_sparse_doc},
    {"attention", (PyCFunction)(void (*)(void))bsrg_py_attention, METH_FASTCALL | METH_KEYWORDS,
     bsrg_attention_doc},
    {"topk", (PyCFunction)(void (*)(void))bsrg_py_topk, METH_FASTCALL | METH_KEYWORDS, bsrg_topk_doc},
    {"softmax", (PyCFunction)(void (*)(void))bsrg_py_softmax, METH_FASTCALL | METH_KEYWORDS,
     bsrg_softmax_doc},
    {"pattern_update", (PyCFunction)(void (*)(void))bsrg_py_pattern_update, METH_FASTCALL | METH_KEYWORDS,
     bsrg_pattern_update_doc},
    {"pattern_topk", (PyCFunction)(void (*)(void))bsrg_py_pattern_topk, METH_FASTCALL | METH_KEYWORDS,
     bsrg_pattern_topk_doc},
    {"pattern_gather", (PyCFunction)(void (*)(void))bsrg_py_pattern_gather, METH_FASTCALL | METH_KEYWORDS,
     bsrg_pattern_gather_doc},
    {"describe", (PyCFunction)(void (*)(void))bsrg_py_describe, METH_FASTCALL | METH_KEYWORDS,
     bsrg_describe_doc},
    {NULL, NULL, 0, NULL}};

static PyModuleDef_Slot slots[] = {{Py_mod_exec, execute}, {0, NULL}};

static PyModuleDef definition = {PyModuleDef_HEAD_INIT,        .m_name = "bsrgemm._core", .m_doc = module_doc,
                                 .m_size = sizeof(bsrg_state), .m_methods = methods,      .m_slots = slots,
                                 .m_traverse = traverse,       .m_clear = clear,          .m_free = release};

PyMODINIT_FUNC PyInit__core(void);
PyMODINIT_FUNC PyInit__core(void) { return PyModuleDef_Init(&definition); }
