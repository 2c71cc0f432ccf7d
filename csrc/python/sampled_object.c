/* sampled_matmul(): imports the operands, checks that they belong together, and calls the core without the GIL. */
#include "dynamic_object.h"
#include "operands.h"

enum { A, B, OUT, VALUES, OPERANDS };

/* Imports the operands in place; those marked given need releasing, also after a failure. */
static int import_operands(bsrg_state *state, PyObject *const *found, const bsrg_structure_view *pattern,
                           bsrg_work *work, bsrg_operand *operands) {
  /* a first: a call that names no stream takes that of its library. */
  for (int i = A; i <= OUT; ++i)
    if (bsrg_import_operand(state, found[1 + i], &operands[i], work) < 0) return -1;
  if (found[4] == found[3]) {
    operands[VALUES] = operands[OUT];
    operands[VALUES].name = "pattern.data";
    Py_INCREF(operands[VALUES].array.owner);
  } else if (found[4] != NULL && found[4] != Py_None &&
             bsrg_import_operand(state, found[4], &operands[VALUES], work) < 0) {
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

static int parse_scalars(PyObject *const *found, bsrg_sampled_args *args, bsrg_work *work) {
  args->alpha = 1.0;
  args->beta = 0.0;
  args->family = BSRG_AUTO;
  if (found[5] != NULL && bsrg_parse_real(found[5], "alpha", &args->alpha) < 0) return -1;
  if (found[6] != NULL && bsrg_parse_real(found[6], "beta", &args->beta) < 0) return -1;
  if (bsrg_parse_work(found[7], work) < 0) return -1;
  return found[8] == NULL ? 0 : bsrg_parse_family(found[8], &args->family);
}

PyObject *bsrg_py_sampled_matmul(PyObject *module, PyObject *const *args, Py_ssize_t nargs,
                                 PyObject *kwnames) {
  static const bsrg_name names[] = {BSRG_NAME_structure, BSRG_NAME_a,     BSRG_NAME_b,    BSRG_NAME_out,
                                    BSRG_NAME_values,    BSRG_NAME_alpha, BSRG_NAME_beta, BSRG_NAME_stream,
                                    BSRG_NAME_family,    BSRG_NAME_chip};
  static const bsrg_signature signature = {"sampled_matmul", 4, 10, names};
  bsrg_state *state = PyModule_GetState(module);
  PyObject *found[10];
  if (bsrg_parse(state, &signature, args, nargs, kwnames, found) < 0) return NULL;
  bsrg_sampled_args call = {.pattern = bsrg_matrix_structure(state, found[0])};
  if (call.pattern == NULL) return NULL;
  bsrg_work work;
  bsrg_chip_question question;
  if (parse_scalars(found, &call, &work) < 0 || bsrg_parse_question(found[9], &question) < 0) return NULL;

  bsrg_operand operands[OPERANDS] = {[A] = {.name = "a"},
                                     [B] = {.name = "b"},
                                     [OUT] = {.name = "out.data"},
                                     [VALUES] = {.name = "pattern.data"}};
  PyObject *result = NULL;
  const bsrg_structure_view view = bsrg_structure_get(call.pattern);
  if (import_operands(state, found, &view, &work, operands) == 0 && set_batch(operands, &call.batch) == 0) {
    call.dtype = (bsrg_dtype)operands[A].array.element->dtype;
    call.device = bsrg_device_of_question(&question, operands[A].array.device);
    call.question = question.asked;
    call.a = bsrg_operand_dense(&operands[A]);
    call.b = bsrg_operand_dense(&operands[B]);
    if (operands[VALUES].given) call.values = operands[VALUES].array.data;
    call.out = operands[OUT].array.data;
    call.stream = work.stream;
    bsrg_error error;
    bsrg_status status;
    Py_BEGIN_ALLOW_THREADS;
    status = bsrg_sampled_matmul(&call, &error);
    Py_END_ALLOW_THREADS;
    result = status == BSRG_OK ? bsrg_answer(&question) : bsrg_raise(state, status, &error);
  }
  bsrg_release_operands(state, operands, OPERANDS, result != NULL, &work);
  return result;
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
