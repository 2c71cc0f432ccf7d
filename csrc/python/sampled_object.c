/* sampled_matmul(): imports the operands, checks that they belong together, and calls the core without the GIL; and
 * try_sampled(), the short way to it, as try_matmul() is one. */
#include "operands.h"
#include "usual.h"

enum { A, B, OUT, VALUES, OPERANDS };

/* A product on its way to the core. Operands that have been given need releasing, also after a failure. */
typedef struct sampled_call {
  bsrg_sampled_args args;             /* at first but pattern, factors and family */
  const bsrg_chip_question *question; /* NULL: none */
  bsrg_work work;
  bsrg_operand operands[OPERANDS];
} sampled_call;

static void name_operands(bsrg_operand *operands) {
  operands[A].name = "a";
  operands[B].name = "b";
  operands[OUT].name = "out.data";
  operands[VALUES].name = "pattern.data";
}

/* Those of the objects that have not been given yet. NULL and None stand for no values. */
static int import_operands(bsrg_state *state, PyObject *const *objects, const bsrg_structure_view *pattern,
                           bsrg_work *work, bsrg_operand *operands) {
  /* a first: a call that names no stream takes that of its library. */
  for (int i = A; i <= OUT; ++i)
    if (!operands[i].given && bsrg_import_operand(state, objects[i], &operands[i], work) < 0) return -1;
  if (objects[VALUES] == objects[OUT]) {
    bsrg_share_operand(&operands[OUT], &operands[VALUES]);
  } else if (!bsrg_is_absent(objects[VALUES]) &&
             bsrg_import_operand(state, objects[VALUES], &operands[VALUES], work) < 0) {
    return -1;
  }
  for (int i = B; i < OPERANDS; ++i)
    if (bsrg_check_same_kind(&operands[A], &operands[i]) < 0) return -1;
  for (int i = A; i <= B; ++i)
    if (operands[i].array.ndim < 2) return bsrg_check_dimensions(&operands[i], 2, "at least two");
  for (int i = OUT; i < OPERANDS; ++i)
    if (operands[i].given && bsrg_check_value_batch(pattern, &operands[i]) < 0) return -1;
  return bsrg_check_writable(&operands[OUT]);
}

/* The dimensions of out before the blocks, along which others are repeated that lack them or have one of them. */
static int set_batch(const bsrg_operand *operands, bsrg_sampled_batch *batch) {
  const bsrg_array *out = &operands[OUT].array;
  batch->ndim = out->ndim - 3;
  const struct {
    int operand, core;
    int64_t *strides;
  } parts[] = {{A, 2, batch->a_strides}, {B, 2, batch->b_strides}, {VALUES, 3, batch->values_strides}};
  for (int d = 0; d < batch->ndim && d < BSRG_BATCH_DIMS; ++d) batch->shape[d] = out->shape[d];
  for (int i = 0; i < 3; ++i) {
    const bsrg_operand *operand = &operands[parts[i].operand];
    if (!operand->given) continue;
    const bsrg_array *array = &operand->array;
    const int missing = batch->ndim - (array->ndim - parts[i].core);
    bool fits = missing >= 0 && batch->ndim <= BSRG_BATCH_DIMS;
    for (int d = 0; fits && d < batch->ndim; ++d) {
      const int64_t size = d < missing ? 1 : array->shape[d - missing];
      fits = size == 1 || size == out->shape[d];
      parts[i].strides[d] = size == 1 ? 0 : array->strides[d - missing];
    }
    if (fits) continue;
    PyErr_Format(PyExc_ValueError,
                 "%s has shape %s, but out.data has shape %s, to whose dimensions before the last three, at "
                 "most %d, those of %s before the last %d must broadcast",
                 operand->name, bsrg_format_shape(array->ndim, array->shape).text,
                 bsrg_format_shape(out->ndim, out->shape).text, BSRG_BATCH_DIMS, operand->name,
                 parts[i].core);
    return -1;
  }
  return 0;
}

/* The product, after which the operands are released. */
static bsrg_outcome compute(bsrg_state *state, PyObject *const *objects, sampled_call *call) {
  bsrg_sampled_args *args = &call->args;
  bsrg_operand *operands = call->operands;
  bsrg_outcome outcome = BSRG_REFUSED;
  const bsrg_structure_view view = bsrg_structure_get(args->pattern);
  if (import_operands(state, objects, &view, &call->work, operands) == 0 &&
      set_batch(operands, &args->batch) == 0) {
    args->dtype = (bsrg_dtype)operands[A].array.element->dtype;
    args->device = operands[A].array.device;
    if (call->question) {
      args->device = bsrg_device_of_question(call->question, args->device);
      args->question = call->question->asked;
    }
    args->a = bsrg_operand_dense(&operands[A]);
    args->b = bsrg_operand_dense(&operands[B]);
    if (operands[VALUES].given) args->values = operands[VALUES].array.data;
    args->out = operands[OUT].array.data;
    args->stream = call->work.stream;
    bsrg_error error;
    bsrg_status status;
    Py_BEGIN_ALLOW_THREADS;
    status = bsrg_sampled_matmul(args, &error);
    Py_END_ALLOW_THREADS;
    outcome = bsrg_outcome_of(state, status, &error);
  }
  bsrg_release_operands(state, operands, OPERANDS, outcome == BSRG_DONE, &call->work);
  return outcome;
}

/* ---- sampled_matmul() ------------------------------------------------------------------------------- */

#define SAMPLED_ARGUMENTS(X) \
  X(structure) X(a) X(b) X(out) X(values) X(alpha) X(beta) X(stream) X(family) X(chip)
enum { SAMPLED_ARGUMENTS(BSRG_PY_PLACE) ARGUMENTS };

static int parse_scalars(PyObject *const *found, sampled_call *call) {
  bsrg_sampled_args *args = &call->args;
  args->alpha = 1.0;
  args->beta = 0.0;
  args->family = BSRG_AUTO;
  if (found[AT_alpha] != NULL && bsrg_parse_real(found[AT_alpha], "alpha", &args->alpha) < 0) return -1;
  if (found[AT_beta] != NULL && bsrg_parse_real(found[AT_beta], "beta", &args->beta) < 0) return -1;
  if (bsrg_parse_work(found[AT_stream], &call->work) < 0) return -1;
  return found[AT_family] == NULL ? 0 : bsrg_parse_family(found[AT_family], &args->family);
}

PyObject *bsrg_py_sampled_matmul(PyObject *module, PyObject *const *args, Py_ssize_t nargs,
                                 PyObject *kwnames) {
  static const bsrg_name names[] = {SAMPLED_ARGUMENTS(BSRG_PY_NAME)};
  static const bsrg_signature signature = {"sampled_matmul", 4, ARGUMENTS, names};
  bsrg_state *state = PyModule_GetState(module);
  PyObject *found[ARGUMENTS];
  if (bsrg_parse(state, &signature, args, nargs, kwnames, found) < 0) return NULL;
  bsrg_chip_question question;
  sampled_call call = {.args.pattern = bsrg_matrix_structure(state, found[AT_structure]),
                       .question = &question};
  if (call.args.pattern == NULL || parse_scalars(found, &call) < 0 ||
      bsrg_parse_question(found[AT_chip], &question) < 0) {
    return NULL;
  }
  name_operands(call.operands);
  PyObject *const objects[OPERANDS] = {
      [A] = found[AT_a], [B] = found[AT_b], [OUT] = found[AT_out], [VALUES] = found[AT_values]};
  return compute(state, objects, &call) == BSRG_DONE ? bsrg_answer(&question) : NULL;
}

/* ---- try_sampled() ---------------------------------------------------------------------------------- */

/* Whether the operand has elements of that name and is on the device of that name. */
static bool is_like(const bsrg_operand *operand, PyObject *dtype, PyObject *device) {
  const bsrg_device where = operand->array.device;
  if (!PyUnicode_Check(dtype) || !PyUnicode_Check(device) ||
      PyUnicode_CompareWithASCIIString(dtype, operand->array.element->name) != 0)
    return false;
  if (where.kind == BSRG_CPU) return PyUnicode_CompareWithASCIIString(device, "cpu") == 0;
  PyObject *name = bsrg_device_name(where);
  const bool same = name != NULL && PyUnicode_Compare(name, device) == 0;
  Py_XDECREF(name);
  return same;
}

/* a and b, two matrices, and values for the product. */
static bool begin(bsrg_state *state, PyObject **objects, PyObject *dtype, PyObject *device,
                  sampled_call *call) {
  bsrg_operand *operands = call->operands;
  name_operands(operands);
  call->work = (bsrg_work){.mode = BSRG_ADOPT_STREAM};
  for (int i = A; i <= B; ++i)
    if (bsrg_import_operand(state, objects[i], &operands[i], &call->work) < 0 || operands[i].array.ndim != 2)
      return false;
  if (!is_like(&operands[A], dtype, device)) return false;
  const bsrg_structure_view v = bsrg_structure_get(call->args.pattern);
  int64_t shape[3];
  bsrg_values_shape(&v, shape);
  objects[OUT] = bsrg_new_usual(state, objects[A], operands[A].array.element, 3, shape);
  return objects[OUT] != NULL;
}

PyObject *bsrg_py_try_sampled(PyObject *module, PyObject *const *args, Py_ssize_t nargs) {
  enum { COUNT = 8 };
  bsrg_state *state = PyModule_GetState(module);
  if (nargs != COUNT) return PyErr_Format(PyExc_TypeError, "try_sampled() takes %d arguments", COUNT);
  PyObject *objects[OPERANDS] = {[A] = args[1], [B] = args[2], [VALUES] = args[3]};
  bsrg_recording recorded = BSRG_RECORDING_UNKNOWN;
  for (int i = A; i <= B; ++i)
    if (!bsrg_is_usual(state, objects[i], false, &recorded)) return bsrg_give_up();
  if (!Py_IS_TYPE(args[0], state->structure_type)) return bsrg_not_implemented();
  sampled_call call = {.args.pattern = bsrg_structure_of(args[0])};
  if (!bsrg_parse_factor(args[4], &call.args.alpha) || !bsrg_parse_factor(args[5], &call.args.beta))
    return bsrg_give_up();
  if (call.args.beta == 0) objects[VALUES] = NULL; /* not read: of any kind, and anywhere */
  if (objects[VALUES] != NULL && !bsrg_is_usual(state, objects[VALUES], true, &recorded))
    return bsrg_give_up();
  bsrg_outcome outcome = BSRG_REFUSED;
  if (begin(state, objects, args[6], args[7], &call))
    outcome = compute(state, objects, &call);
  else
    bsrg_release_operands(state, call.operands, OPERANDS, false, &call.work);
  if (outcome == BSRG_DONE) return objects[OUT];
  Py_XDECREF(objects[OUT]);
  return outcome == BSRG_FAILED ? NULL : bsrg_give_up();
}

const char bsrg_sampled_matmul_doc[] =
    "sampled_matmul(structure, a, b, out, values=None, alpha=1.0, beta=0.0, stream=0, family='auto', "
    "chip=None)\n"
    "--\n\n"
    "out = alpha * (a @ b at the stored blocks of structure) + beta * values.\n\n"
    "structure  a Structure of a matrix of M rows and N columns, or a DynamicStructure, of which nnzb is "
    "the\n"
    "           capacity; out then becomes zeros behind the last block\n"
    "a, b       [..., M, K] and [..., K, N], any strides\n"
    "out        [..., nnzb, block height, block width], C-contiguous, writable, sharing memory with no "
    "operand "
    "unless it is\n"
    "           values; with a transposed structure laid out as the one that it is the transposed of has it\n"
    "values     as out, or None; not read when beta is 0. The batches of a, b and values broadcast to that "
    "of out\n"
    "stream     CUDA stream handle; None takes the current stream of a's library\n"
    "family     'auto', 'sampled', 'cover' or 'portable' (GPU), or 'cpu'\n"
    "chip       as in matmul\n\n"
    "Operands are of one dtype (float16, bfloat16, float32, float64) and on one device; 16-bit dtypes are\n"
    "accumulated in float32. On a GPU the call returns once the work is on the stream, behind what the\n"
    "operands' libraries have pending on other streams. Messages call values pattern.data, and out "
    "out.data.\n\n"
    "Raises TypeError (no array, dtype, device), ValueError (shapes, strides, memory), MemoryError,\n"
    "DeviceUnavailableError, RuntimeError (CUDA).";

const char bsrg_try_sampled_doc[] =
    "try_sampled(structure, a, b, values, alpha, beta, dtype, device, /)\n"
    "--\n\n"
    "The values of what bsrgemm.sampled_matmul returns for two matrices, or NotImplemented where that has to "
    "find\n"
    "out what is asked for.\n\n"
    "Structure, values, dtype and device are those of the pattern, of which the last two must be a's.";
