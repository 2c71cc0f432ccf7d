#include "usual.h"

#include "device_array.h"

PyObject *bsrg_not_implemented(void) {
  PyErr_Clear();
  return Py_NewRef(Py_NotImplemented);
}

PyObject *bsrg_give_up(void) {
  if (PyErr_Occurred() && !PyErr_ExceptionMatches(PyExc_Exception)) return NULL;
  return bsrg_not_implemented();
}

/* Looks for PyTorch among what has been imported. Without an exchange table (before 2.10) nothing here could tell its
 * current stream. */
static void find_tensor_types(bsrg_state *state) {
  PyObject *torch = PyImport_GetModule(state->names[BSRG_NAME_torch]);
  PyObject *nn = torch == NULL ? NULL : PyObject_GetAttrString(torch, "nn");
  PyObject *tensor = nn == NULL ? NULL : PyObject_GetAttrString(torch, "Tensor");
  PyObject *parameter = tensor == NULL ? NULL : PyObject_GetAttrString(nn, "Parameter");
  PyObject *is_grad_enabled = parameter == NULL ? NULL : PyObject_GetAttrString(torch, "is_grad_enabled");
  PyObject *strided = is_grad_enabled == NULL ? NULL : PyObject_GetAttrString(torch, "strided");
  if (strided != NULL && bsrg_has_exchange(state, tensor)) {
    state->tensor_type = tensor;
    state->parameter_type = parameter;
    state->is_grad_enabled = is_grad_enabled;
    state->strided = strided;
  } else {
    Py_XDECREF(strided);
    Py_XDECREF(is_grad_enabled);
    Py_XDECREF(parameter);
    Py_XDECREF(tensor);
  }
  Py_XDECREF(nn);
  Py_XDECREF(torch);
  PyErr_Clear(); /* a torch that is being imported, or none */
}

/* Exactly that: subclasses of tensors may mean something else than their memory says. */
static bool is_tensor(bsrg_state *state, PyObject *obj) {
  PyObject *type = (PyObject *)Py_TYPE(obj);
  if (state->tensor_type == NULL) find_tensor_types(state);
  return state->tensor_type != NULL && (type == state->tensor_type || type == state->parameter_type);
}

static bool is_ndarray(PyObject *obj) { return Py_IS_TYPE(obj, &PyArray_Type); }

/* false with an exception. */
static bool ask_recording(bsrg_state *state, bsrg_recording *answer) {
  PyObject *enabled = PyObject_CallNoArgs(state->is_grad_enabled);
  *answer = enabled == Py_False ? BSRG_NOT_RECORDING : BSRG_RECORDING;
  Py_XDECREF(enabled); /* True and False stay */
  return enabled != NULL;
}

/* Also true with an exception. */
static bool wants_gradient(bsrg_state *state, PyObject *tensor) {
  PyObject *wanted = PyObject_GetAttr(tensor, state->names[BSRG_NAME_requires_grad]);
  Py_XDECREF(wanted);
  return wanted != Py_False;
}

/* Whether a tensor means the negative of what its memory says; also true with an exception, and where nobody knows. The
 * function behind the method is called as it is: the way to it takes a third as long again. */
static bool is_negated(bsrg_state *state, PyObject *tensor) {
  if (state->is_neg == NULL) {
    PyObject *method = PyObject_GetAttr(tensor, state->names[BSRG_NAME_is_neg]);
    if (method != NULL && Py_IS_TYPE(method, &PyCFunction_Type) &&
        PyCFunction_GetFlags(method) == METH_NOARGS)
      state->is_neg = PyCFunction_GetFunction(method);
    Py_XDECREF(method);
    if (state->is_neg == NULL) return true;
  }
  PyObject *negated = state->is_neg(tensor, NULL);
  Py_XDECREF(negated);
  return negated != Py_False;
}

bool bsrg_is_plain_tensor(bsrg_state *state, PyObject *obj, bool is_values, bsrg_recording *recorded) {
  if (!is_tensor(state, obj)) return false;
  if (*recorded == BSRG_RECORDING_UNKNOWN && !ask_recording(state, recorded)) return false;
  return (*recorded == BSRG_NOT_RECORDING || !wants_gradient(state, obj)) &&
         (is_values || !is_negated(state, obj));
}

bool bsrg_is_usual(bsrg_state *state, PyObject *obj, bool is_values, bsrg_recording *recorded) {
  return is_ndarray(obj) || Py_IS_TYPE(obj, state->device_array_type) ||
         bsrg_is_plain_tensor(state, obj, is_values, recorded);
}

bool bsrg_parse_factor(PyObject *obj, double *out) {
  if (!PyFloat_CheckExact(obj) && !PyLong_CheckExact(obj)) return false;
  *out = PyFloat_AsDouble(obj);
  return *out != -1.0 || !PyErr_Occurred();
}

PyObject *bsrg_new_usual(bsrg_state *state, PyObject *like, const bsrg_element *element, int ndim,
                         const int64_t *shape) {
  if (element->bits == 8) return NULL; /* of another dtype */
  if (is_ndarray(like)) return bsrg_new_numpy(element, ndim, shape);
  if (!is_tensor(state, like)) return NULL;
  PyObject *sizes = bsrg_tuple_of(ndim, shape);
  if (sizes == NULL) return NULL;
  PyObject *result = PyObject_CallMethodObjArgs(like, state->names[BSRG_NAME_new_empty], sizes, NULL);
  Py_DECREF(sizes);
  return result;
}

/* Whether a tensor has strides: one that has not is refused where it is imported, by a general message. */
static bool is_strided(bsrg_state *state, PyObject *tensor) {
  PyObject *layout = PyObject_GetAttr(tensor, state->names[BSRG_NAME_layout]);
  Py_XDECREF(layout);
  return layout == state->strided;
}

PyObject *bsrg_py_are_usual(PyObject *module, PyObject *const *args, Py_ssize_t nargs) {
  bsrg_state *state = PyModule_GetState(module);
  bsrg_recording recorded = BSRG_RECORDING_UNKNOWN;
  bool usual = true;
  for (Py_ssize_t i = 0; usual && i < nargs; ++i)
    usual = bsrg_is_usual(state, args[i], false, &recorded) &&
            (!is_tensor(state, args[i]) || is_strided(state, args[i]));
  if (!PyErr_Occurred()) return PyBool_FromLong(usual);
  if (!PyErr_ExceptionMatches(PyExc_Exception)) return NULL;
  PyErr_Clear();
  Py_RETURN_FALSE;
}

const char bsrg_are_usual_doc[] =
    "are_usual(*arrays)\n"
    "--\n\n"
    "Whether all are NumPy arrays, DeviceArrays or torch tensors that are nothing but their memory, and no\n"
    "gradient of them is recorded. Modes of PyTorch are the caller's business.";
