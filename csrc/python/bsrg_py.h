/* What the extension's files share: Python's and NumPy's headers in one order, the module state, and helpers.
 *
 * The extension converts arguments, calls the core and converts results; it computes nothing itself.
 */
#ifndef BSRG_PY_H
#define BSRG_PY_H

#ifndef Py_LIMITED_API
#define Py_LIMITED_API 0x030B0000
#endif
#define PY_SSIZE_T_CLEAN
#include <Python.h>

/* Built against NumPy 2 headers, runs on NumPy 1.23 (the first for Python 3.11) and later. */
#define NPY_NO_DEPRECATED_API NPY_2_0_API_VERSION
#define NPY_TARGET_VERSION NPY_1_23_API_VERSION
#define PY_ARRAY_UNIQUE_SYMBOL bsrg_numpy_api
#ifndef BSRG_IMPORTS_NUMPY /* module.c alone holds NumPy's function table */
#define NO_IMPORT_ARRAY
#endif
#include <numpy/arrayobject.h>

#include "../bsrgemm.h"

/* Names that are looked up on objects or compared with keywords: interned once per module. */
#define BSRG_PY_NAMES(X)       \
  X(__cuda_array_interface__)  \
  X(__dlpack__)                \
  X(__dlpack_c_exchange_api__) \
  X(__dlpack_device__)         \
  X(a)                         \
  X(activation)                \
  X(alpha)                     \
  X(align_last)                \
  X(b)                         \
  X(b_structure)               \
  X(b_values)                  \
  X(beta)                      \
  X(c)                         \
  X(chip)                      \
  X(col_bias)                  \
  X(col_scale)                 \
  X(columns)                   \
  X(cu_seqlens_k)              \
  X(cu_seqlens_q)              \
  X(dense)                     \
  X(diagonal)                  \
  X(family)                    \
  X(is_neg)                    \
  X(k)                         \
  X(k_descale)                 \
  X(layout)                    \
  X(left)                      \
  X(lse)                       \
  X(mask)                      \
  X(mask_shape)                \
  X(masks)                     \
  X(max_seqlen_k)              \
  X(max_seqlen_q)              \
  X(name)                      \
  X(new_empty)                 \
  X(numbers)                   \
  X(obj)                       \
  X(out)                       \
  X(precision)                 \
  X(q)                         \
  X(q_descale)                 \
  X(requires_grad)             \
  X(right)                     \
  X(row_bias)                  \
  X(row_scale)                 \
  X(scale)                     \
  X(scores)                    \
  X(softcap)                   \
  X(stream)                    \
  X(structure)                 \
  X(torch)                     \
  X(v)                         \
  X(v_descale)                 \
  X(values)                    \
  X(values_scale)              \
  X(x)                         \
  X(x_scale)

typedef enum bsrg_name {
#define BSRG_PY_ENUM(name) BSRG_NAME_##name,
  BSRG_PY_NAMES(BSRG_PY_ENUM)
#undef BSRG_PY_ENUM
      BSRG_NAME_COUNT
} bsrg_name;

/* A type and the table of DLPack's functions that it has. */
enum { BSRG_EXCHANGE_TYPES = 4 };
typedef struct bsrg_exchange_type {
  PyObject *type;
  const struct dlpack_exchange *table;
} bsrg_exchange_type;

typedef struct bsrg_state {
  PyObject *device_unavailable_error;
  PyTypeObject *structure_type;
  PyTypeObject *dynamic_type;
  PyTypeObject *device_array_type;
  PyTypeObject *array_info_type;
  PyObject *names[BSRG_NAME_COUNT];
  PyObject *tensor_type, *parameter_type, *is_grad_enabled, *strided; /* torch's once met, else NULL */
  PyCFunction is_neg;                                     /* behind the method of tensors, likewise */
  bsrg_exchange_type exchange_types[BSRG_EXCHANGE_TYPES]; /* the newest first, NULL behind the last one */
  int bfloat16_type; /* ml_dtypes' NumPy type number once it has been met, else -1 */
} bsrg_state;

/* ---- errors.c ---------------------------------------------------------------------------------------- */

/* Raises what a failed core call reported; returns NULL for `return bsrg_raise(...)`. */
PyObject *bsrg_raise(bsrg_state *state, bsrg_status status, const bsrg_error *error);

/* Turns the pending exception into a TypeError that names the argument, with the original as its cause.
 * MemoryError and what is no Exception (KeyboardInterrupt) pass unchanged. */
void bsrg_wrap_error(PyObject *obj, const char *name);

/* "(3, 4)", "(3,)" or "()". */
typedef struct bsrg_shape_text {
  char text[192];
} bsrg_shape_text;
bsrg_shape_text bsrg_format_shape(int ndim, const int64_t *shape);

/* ---- arguments.c ------------------------------------------------------------------------------------- */

/* The parameters of a METH_FASTCALL | METH_KEYWORDS function: all may be given by position or by name. */
typedef struct bsrg_signature {
  const char *function;
  int required, count;
  const bsrg_name *names;
} bsrg_signature;

/* What a function's list of arguments, a macro of X(name), is made into: places in `found` and the signature's names. */
#define BSRG_PY_PLACE(name) AT_##name,
#define BSRG_PY_NAME(name) BSRG_NAME_##name,

/* Fills found[0 .. count) with borrowed references, NULL where an optional argument is absent. */
int bsrg_parse(bsrg_state *state, const bsrg_signature *signature, PyObject *const *args, Py_ssize_t nargs,
               PyObject *kwnames, PyObject **found);

/* Whether an optional argument is not given: NULL or None. */
static inline int bsrg_is_absent(const PyObject *obj) { return obj == NULL || obj == Py_None; }

int bsrg_parse_pair(PyObject *obj, const char *name, int64_t pair[2]);
int bsrg_parse_integer(PyObject *obj, const char *name, int64_t *out);
int bsrg_parse_real(PyObject *obj, const char *name, double *out);
/* A CUDA stream as an integer, with 1 (the legacy default stream's other name) turned into NULL. */
int bsrg_parse_stream(PyObject *obj, void **stream);
/* "cpu", "cuda" or "cuda:3". */
int bsrg_parse_device(PyObject *obj, bsrg_device *out);
int bsrg_parse_cuda_device(PyObject *obj, int *index);
int bsrg_parse_family(PyObject *obj, bsrg_family *out);
/* None or a name. */
int bsrg_parse_activation(PyObject *obj, bsrg_activation *out);
int bsrg_parse_dtype(PyObject *obj, bsrg_dtype *out);
/* "ieee" or "tf32". */
int bsrg_parse_precision(PyObject *obj, bsrg_precision *out);
PyObject *bsrg_device_name(bsrg_device device);

/* ---- the module's functions and types ---------------------------------------------------------------- */

PyObject *bsrg_py_matmul(PyObject *module, PyObject *const *args, Py_ssize_t nargs, PyObject *kwnames);
PyObject *bsrg_py_try_matmul(PyObject *module, PyObject *const *args, Py_ssize_t nargs);
PyObject *bsrg_py_try_linear(PyObject *module, PyObject *const *args, Py_ssize_t nargs);
PyObject *bsrg_py_try_sampled(PyObject *module, PyObject *const *args, Py_ssize_t nargs);
PyObject *bsrg_py_are_usual(PyObject *module, PyObject *const *args, Py_ssize_t nargs);
PyObject *bsrg_py_sampled_matmul(PyObject *module, PyObject *const *args, Py_ssize_t nargs,
                                 PyObject *kwnames);
PyObject *bsrg_py_matmul_sparse(PyObject *module, PyObject *const *args, Py_ssize_t nargs, PyObject *kwnames);
PyObject *bsrg_py_attention(PyObject *module, PyObject *const *args, Py_ssize_t nargs, PyObject *kwnames);
PyObject *bsrg_py_topk(PyObject *module, PyObject *const *args, Py_ssize_t nargs, PyObject *kwnames);
PyObject *bsrg_py_softmax(PyObject *module, PyObject *const *args, Py_ssize_t nargs, PyObject *kwnames);
PyObject *bsrg_py_describe(PyObject *module, PyObject *const *args, Py_ssize_t nargs, PyObject *kwnames);
extern const char bsrg_matmul_doc[], bsrg_try_matmul_doc[], bsrg_try_linear_doc[], bsrg_try_sampled_doc[],
    bsrg_are_usual_doc[], bsrg_matmul_sparse_doc[], bsrg_sampled_matmul_doc[], bsrg_attention_doc[],
    bsrg_topk_doc[], bsrg_softmax_doc[], bsrg_describe_doc[];
extern PyMethodDef bsrg_system_methods[]; /* threads, devices, probe */

PyTypeObject *bsrg_make_structure_type(PyObject *module);
PyTypeObject *bsrg_make_device_array_type(PyObject *module);
PyTypeObject *bsrg_make_array_info_type(void);

/* The core structure of a Structure or DynamicStructure object, borrowed. */
bsrg_structure *bsrg_structure_of(PyObject *obj);
/* The same of an argument; NULL with a TypeError where it is neither, or no Structure. */
bsrg_structure *bsrg_matrix_structure(bsrg_state *state, PyObject *obj);
bsrg_structure *bsrg_fixed_structure(bsrg_state *state, PyObject *obj, const char *name);
/* structure_explain.c: methods of Structure. */
PyObject *bsrg_structure_explain(PyObject *structure, PyObject *args, PyObject *keywords);
PyObject *bsrg_structure_explain_sampled(PyObject *structure, PyObject *args, PyObject *keywords);
PyObject *bsrg_structure_explain_sparse(PyObject *structure, PyObject *args, PyObject *keywords);
/* Replaces the fields of `chip` that a dict names. */
int bsrg_parse_chip(PyObject *dict, bsrg_chip *chip);

/* ---- question.c -------------------------------------------------------------------------------------- */

/* A call's argument chip: `asked` is NULL where it is absent, and the question otherwise. */
typedef struct bsrg_chip_question {
  bsrg_chip chip;
  bsrg_question question;
  bsrg_question *asked;
} bsrg_chip_question;
int bsrg_parse_question(PyObject *obj, bsrg_chip_question *out);
/* Where operands count as being: on the GPU that is asked about, else where they are. */
bsrg_device bsrg_device_of_question(const bsrg_chip_question *question, bsrg_device device);
/* What the call returns: None, or the name of a family. */
PyObject *bsrg_answer(const bsrg_chip_question *question);

#endif
