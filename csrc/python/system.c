/* Module functions about threads, devices and single instructions. */
#include "array.h"

static PyObject *py_set_num_threads(PyObject *module, PyObject *argument) {
  const long count = PyLong_AsLong(argument);
  if (count == -1 && PyErr_Occurred()) {
    if (!PyErr_ExceptionMatches(PyExc_TypeError) && !PyErr_ExceptionMatches(PyExc_OverflowError)) return NULL;
    const int is_type = PyErr_ExceptionMatches(PyExc_TypeError);
    PyErr_Clear();
    return PyErr_Format(is_type ? PyExc_TypeError : PyExc_ValueError,
                        "n is %R, but must be a number of threads, or 0 for the default", argument);
  }
  if (count < 0 || count > INT_MAX) {
    return PyErr_Format(PyExc_ValueError, "n is %ld, but must be a number of threads, or 0 for the default",
                        count);
  }
  bsrg_error error;
  bsrg_status status;
  Py_BEGIN_ALLOW_THREADS;
  status = bsrg_set_num_threads((int)count, &error);
  Py_END_ALLOW_THREADS;
  if (status != BSRG_OK) return bsrg_raise(PyModule_GetState(module), status, &error);
  Py_RETURN_NONE;
}

static PyObject *py_get_num_threads(PyObject *Py_UNUSED(module), PyObject *Py_UNUSED(unused)) {
  return PyLong_FromLong(bsrg_get_num_threads());
}

static PyObject *py_cpu_isa(PyObject *Py_UNUSED(module), PyObject *Py_UNUSED(unused)) {
  return PyUnicode_FromString(bsrg_cpu_isa());
}

static PyObject *describe_device(bsrg_state *state, int index) {
  bsrg_gpu_info info;
  bsrg_error error;
  bsrg_status status;
  Py_BEGIN_ALLOW_THREADS;
  status = bsrg_gpu_get_info(index, &info, &error);
  Py_END_ALLOW_THREADS;
  if (status != BSRG_OK) return bsrg_raise(state, status, &error);
  return Py_BuildValue("{s:s,s:i,s:i,s:i,s:i,s:L,s:d}", "name", info.name, "index", info.index, "sm_arch",
                       info.sm_arch, "sm_count", info.sm_count, "driver_version", info.driver_version,
                       "memory_bytes", (long long)info.memory_bytes, "hbm_bytes_per_s", info.hbm_bytes_per_s);
}

static PyObject *py_cuda_devices(PyObject *module, PyObject *Py_UNUSED(unused)) {
  bsrg_state *state = PyModule_GetState(module);
  int count = 0;
  bsrg_error error;
  bsrg_status status;
  Py_BEGIN_ALLOW_THREADS;
  status = bsrg_gpu_count(&count, &error);
  Py_END_ALLOW_THREADS;
  if (status != BSRG_OK) return bsrg_raise(state, status, &error);
  PyObject *devices = PyList_New(0);
  for (int i = 0; i < count && devices != NULL; ++i) {
    PyObject *device = describe_device(state, i);
    if (device == NULL || PyList_Append(devices, device) < 0) Py_CLEAR(devices);
    Py_XDECREF(device);
  }
  return devices;
}

static PyObject *py_synchronize(PyObject *module, PyObject *args, PyObject *keywords) {
  static char *names[] = {"device", "stream", NULL};
  PyObject *device_object, *stream_object = NULL;
  bsrg_device device;
  void *stream = NULL;
  if (!PyArg_ParseTupleAndKeywords(args, keywords, "O|O:synchronize", names, &device_object,
                                   &stream_object) ||
      bsrg_parse_device(device_object, &device) < 0 ||
      (stream_object != NULL && bsrg_parse_stream(stream_object, &stream) < 0)) {
    return NULL;
  }
  if (device.kind == BSRG_CPU) Py_RETURN_NONE;
  bsrg_error error;
  bsrg_status status;
  Py_BEGIN_ALLOW_THREADS;
  status = bsrg_gpu_synchronize(device.index, stream, &error);
  Py_END_ALLOW_THREADS;
  if (status != BSRG_OK) return bsrg_raise(PyModule_GetState(module), status, &error);
  Py_RETURN_NONE;
}

static PyObject *py_probe_wgmma(PyObject *module, PyObject *args, PyObject *keywords) {
  static char *names[] = {"dtype",   "transpose_a", "transpose_b", "descriptor_a", "descriptor_b", "image_a",
                          "image_b", "device",      NULL};
  PyObject *dtype, *device = NULL;
  unsigned long long descriptor_a, descriptor_b;
  int transpose_a, transpose_b, index;
  const char *image_a, *image_b;
  Py_ssize_t bytes_a, bytes_b;
  if (!PyArg_ParseTupleAndKeywords(args, keywords, "OppKKy#y#|O:probe_wgmma", names, &dtype, &transpose_a,
                                   &transpose_b, &descriptor_a, &descriptor_b, &image_a, &bytes_a, &image_b,
                                   &bytes_b, &device)) {
    return NULL;
  }
  bsrg_wgmma_probe probe = {.transpose_a = transpose_a,
                            .transpose_b = transpose_b,
                            .descriptor_a = descriptor_a,
                            .descriptor_b = descriptor_b,
                            .image_a = image_a,
                            .image_b = image_b,
                            .image_bytes = (size_t)bytes_a};
  if (bsrg_parse_dtype(dtype, &probe.dtype) < 0 || bsrg_parse_cuda_device(device, &index) < 0) return NULL;
  if (bytes_a != bytes_b) {
    return PyErr_Format(PyExc_ValueError, "image_a has %zd bytes and image_b %zd, but both must have as many",
                        bytes_a, bytes_b);
  }
  npy_intp shape[2] = {64, 64};
  PyObject *d = PyArray_ZEROS(2, shape, NPY_FLOAT32, 0);
  if (d == NULL) return NULL;
  probe.d = PyArray_DATA((PyArrayObject *)d);
  bsrg_error error;
  bsrg_status status;
  Py_BEGIN_ALLOW_THREADS;
  status = bsrg_gpu_probe_wgmma(index, &probe, &error);
  Py_END_ALLOW_THREADS;
  if (status == BSRG_OK) return d;
  Py_DECREF(d);
  return bsrg_raise(PyModule_GetState(module), status, &error);
}

PyMethodDef bsrg_system_methods[] = {
    {"set_num_threads", py_set_num_threads, METH_O,
     "set_num_threads(n, /)\n--\n\n"
     "Sets how many threads products, softmax and attention on the CPU use.\n\n"
     "Results do not depend on it.\n\n"
     "Parameters\n"
     "----------\n"
     "n : int\n"
     "    0 restores the default, which is BSRGEMM_NUM_THREADS, else OMP_NUM_THREADS, else the processors\n"
     "    that this process may run on.\n\n"
     "Raises\n"
     "------\n"
     "ValueError\n"
     "    If ``n`` is negative.\n"
     "TypeError\n"
     "    If it is no integer."},
    {"get_num_threads", py_get_num_threads, METH_NOARGS,
     "get_num_threads()\n--\n\n"
     "How many threads products, softmax and attention on the CPU use."},
    {"cpu_isa", py_cpu_isa, METH_NOARGS,
     "cpu_isa()\n--\n\nThe instruction set chosen for this processor: 'avx512_bf16', 'avx512',\n"
     "'avx2' or 'generic'."},
    {"cuda_devices", py_cuda_devices, METH_NOARGS,
     "cuda_devices()\n--\n\n"
     "One dict per GPU: name, index, sm_arch, sm_count, driver_version (13000 is 13.0), memory_bytes, "
     "hbm_bytes_per_s\n"
     "(that large reads are taken to reach, by the clock and the width of the memory).\n"
     "DeviceUnavailableError says why there is none."},
    {"synchronize", (PyCFunction)(void (*)(void))py_synchronize, METH_VARARGS | METH_KEYWORDS,
     "synchronize(device, stream=0)\n--\n\n"
     "Waits until the work on a stream of a device ('cuda:0') is done. Returns at once for 'cpu'."},
    {"probe_wgmma", (PyCFunction)(void (*)(void))py_probe_wgmma, METH_VARARGS | METH_KEYWORDS,
     "probe_wgmma(dtype, transpose_a, transpose_b, descriptor_a, descriptor_b, image_a, image_b, "
     "device='cuda:0')\n"
     "--\n\n"
     "Runs one m64n64k16 WGMMA on two images of shared memory, given byte for byte (at most 16384 each, both "
     "of\n"
     "one length), with descriptor words as in PTX without the address. transpose: the operand is MN-major.\n"
     "dtype is 'float16' or 'bfloat16'. Returns a float32 NumPy array [64, 64]. For tests of the "
     "instruction."},
    {NULL, NULL, 0, NULL}};
