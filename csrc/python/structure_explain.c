/* Structure.explain(), .explain_sampled() and .explain_sparse(): the planner's predictions as a dict. */
#include "bsrg_py.h"

#include <stdio.h>
#include <string.h>

static int parse_positive(PyObject *value, const char *name, double *out) {
  if (bsrg_parse_real(value, name, out) < 0) return -1;
  if (*out > 0) return 0;
  PyErr_Format(PyExc_ValueError, "%s is %R, but must be positive", name, value);
  return -1;
}

static int parse_count(PyObject *value, const char *name, int *out) {
  int64_t number;
  if (bsrg_parse_integer(value, name, &number) < 0) return -1;
  if (number >= 1 && number <= 10000) {
    *out = (int)number;
    return 0;
  }
  PyErr_Format(PyExc_ValueError, "%s is %R, but must be from 1 to 10000", name, value);
  return -1;
}

static int parse_entry(PyObject *key, PyObject *value, bsrg_chip *chip) {
  const struct {
    const char *key;
    double *to;
  } reals[] = {{"hbm_bytes_per_s", &chip->hbm_bytes_per_s},
               {"l2_bytes_per_s", &chip->l2_bytes_per_s},
               {"l2_bytes", &chip->l2_bytes},
               {"mma_flops_per_s", &chip->mma_flops_per_s}};
  const struct {
    const char *key;
    int *to;
  } counts[] = {{"sm_arch", &chip->sm_arch}, {"sm_count", &chip->sm_count}};
  const char *text = PyUnicode_Check(key) ? PyUnicode_AsUTF8AndSize(key, NULL) : NULL;
  if (PyErr_Occurred()) return -1;
  char name[64]; /* of what is known, all of it */
  snprintf(name, sizeof name, "chip['%s']", text == NULL ? "" : text);
  for (size_t i = 0; text != NULL && i < sizeof reals / sizeof reals[0]; ++i)
    if (strcmp(text, reals[i].key) == 0) return parse_positive(value, name, reals[i].to);
  for (size_t i = 0; text != NULL && i < sizeof counts / sizeof counts[0]; ++i)
    if (strcmp(text, counts[i].key) == 0) return parse_count(value, name, counts[i].to);
  if (text != NULL && strcmp(text, "name") == 0 && PyUnicode_Check(value)) {
    const char *model = PyUnicode_AsUTF8AndSize(value, NULL);
    if (model == NULL) return -1;
    strncpy(chip->name, model, sizeof chip->name - 1);
    return 0;
  }
  PyErr_Format(PyExc_ValueError,
               "chip has an entry %R: %R, but its entries are name (a string), sm_arch, sm_count (integers), "
               "hbm_bytes_per_s, l2_bytes_per_s, l2_bytes, mma_flops_per_s (numbers)",
               key, value);
  return -1;
}

int bsrg_parse_chip(PyObject *dict, bsrg_chip *chip) {
  if (!PyDict_Check(dict)) {
    PyErr_Format(PyExc_TypeError, "chip is %R, but must be None or a dict", dict);
    return -1;
  }
  Py_ssize_t position = 0;
  PyObject *key, *value;
  while (PyDict_Next(dict, &position, &key, &value)) {
    /* A value may be an object whose conversion to a number changes the dict. */
    Py_INCREF(key);
    Py_INCREF(value);
    const int status = parse_entry(key, value, chip);
    Py_DECREF(value);
    Py_DECREF(key);
    if (status < 0) return -1;
  }
  return 0;
}

static PyObject *plan_as_dict(const bsrg_plan_info *plan) {
  PyObject *candidates = PyList_New(0);
  for (int i = 0; i < plan->count && candidates != NULL; ++i) {
    const bsrg_candidate *c = &plan->candidates[i];
    PyObject *candidate =
        Py_BuildValue("{s:s,s:N,s:d,s:d,s:d,s:d,s:s}", "family", bsrg_family_name(c->family), "supported",
                      PyBool_FromLong(c->supported), "seconds", c->seconds, "hbm_bytes", c->hbm_bytes,
                      "l2_bytes", c->l2_bytes, "mma_flops", c->mma_flops, "reason", c->reason);
    if (candidate == NULL || PyList_Append(candidates, candidate) < 0) Py_CLEAR(candidates);
    Py_XDECREF(candidate);
  }
  if (candidates == NULL) return NULL;
  return Py_BuildValue("{s:d,s:s,s:N}", "useful_flops", plan->useful_flops, "chosen",
                       bsrg_family_name(plan->candidates[plan->chosen].family), "candidates", candidates);
}

/* The dtype and the chip that a caller named. */
static int parse_common(PyObject *dtype_object, PyObject *chip_object, bsrg_dtype *dtype, bsrg_chip *chip) {
  *chip = bsrg_chip_h200();
  if (bsrg_parse_dtype(dtype_object, dtype) < 0) return -1;
  return chip_object != Py_None ? bsrg_parse_chip(chip_object, chip) : 0;
}

static PyObject *finish(PyObject *obj, bsrg_status status, const bsrg_plan_info *plan,
                        const bsrg_error *error) {
  if (status != BSRG_OK) return bsrg_raise(PyType_GetModuleState(Py_TYPE(obj)), status, error);
  return plan_as_dict(plan);
}

PyObject *bsrg_structure_explain(PyObject *obj, PyObject *args, PyObject *keywords) {
  static char *names[] = {"n", "dtype", "chip", "precision", "by_columns", NULL};
  PyObject *n_object, *dtype_object, *chip_object = Py_None, *precision_object = NULL;
  int by_columns = 0;
  int64_t n;
  if (!PyArg_ParseTupleAndKeywords(args, keywords, "OO|OOp:explain", names, &n_object, &dtype_object,
                                   &chip_object, &precision_object, &by_columns) ||
      bsrg_parse_integer(n_object, "n", &n) < 0) {
    return NULL;
  }
  bsrg_chip chip;
  bsrg_dtype dtype;
  bsrg_precision precision = BSRG_IEEE;
  if (parse_common(dtype_object, chip_object, &dtype, &chip) < 0) return NULL;
  if (precision_object != NULL && bsrg_parse_precision(precision_object, &precision) < 0) return NULL;
  if (n < 0)
    return PyErr_Format(PyExc_ValueError, "n is %lld, but a plan needs at least one column", (long long)n);
  bsrg_structure *structure = bsrg_structure_of(obj);
  const bsrg_structure_view view = bsrg_structure_get(structure);
  bsrg_matmul_args product = {.a = structure,
                              .dtype = dtype,
                              .precision = precision,
                              .out_dtype = BSRG_BF16,
                              .x = {NULL, view.cols, n, n, 1},
                              .y = {NULL, view.rows, n, n, 1},
                              .alpha = 1};
  if (by_columns) {
    product.x.row_stride = product.y.row_stride = 1;
    product.x.col_stride = view.cols;
    product.y.col_stride = view.rows;
  }
  bsrg_plan_info plan;
  bsrg_error error;
  bsrg_status status;
  Py_BEGIN_ALLOW_THREADS;
  status = bsrg_plan_explain_product(&product, &chip, &plan, &error);
  Py_END_ALLOW_THREADS;
  return finish(obj, status, &plan, &error);
}

PyObject *bsrg_structure_explain_sampled(PyObject *obj, PyObject *args, PyObject *keywords) {
  static char *names[] = {"k", "dtype", "chip", NULL};
  PyObject *k_object, *dtype_object, *chip_object = Py_None;
  int64_t k;
  if (!PyArg_ParseTupleAndKeywords(args, keywords, "OO|O:explain_sampled", names, &k_object, &dtype_object,
                                   &chip_object) ||
      bsrg_parse_integer(k_object, "k", &k) < 0) {
    return NULL;
  }
  bsrg_chip chip;
  bsrg_dtype dtype;
  if (parse_common(dtype_object, chip_object, &dtype, &chip) < 0) return NULL;
  bsrg_structure *pattern = bsrg_structure_of(obj);
  bsrg_plan_info plan;
  bsrg_error error;
  bsrg_status status;
  Py_BEGIN_ALLOW_THREADS;
  status = bsrg_sampled_explain(pattern, dtype, k, &chip, &plan, &error);
  Py_END_ALLOW_THREADS;
  return finish(obj, status, &plan, &error);
}

PyObject *bsrg_structure_explain_sparse(PyObject *obj, PyObject *args, PyObject *keywords) {
  static char *names[] = {"b", "dtype", "chip", NULL};
  PyObject *other, *dtype_object, *chip_object = Py_None;
  if (!PyArg_ParseTupleAndKeywords(args, keywords, "O!O|O:explain_sparse", names, Py_TYPE(obj), &other,
                                   &dtype_object, &chip_object)) {
    return NULL;
  }
  bsrg_chip chip;
  bsrg_dtype dtype;
  if (parse_common(dtype_object, chip_object, &dtype, &chip) < 0) return NULL;
  bsrg_structure *a = bsrg_structure_of(obj), *b = bsrg_structure_of(other);
  bsrg_plan_info plan;
  bsrg_error error;
  bsrg_status status;
  Py_BEGIN_ALLOW_THREADS;
  status = bsrg_matmul_sparse_explain(a, b, dtype, &chip, &plan, &error);
  Py_END_ALLOW_THREADS;
  return finish(obj, status, &plan, &error);
}
