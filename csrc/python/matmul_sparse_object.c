/* matmul_sparse(): as matmul(), for two block-sparse operands. */
#include "operands.h"

enum { A, B, C, OUT, OPERANDS };

#define SPARSE_ARGUMENTS(X) \
  X(structure) X(values) X(b_structure) X(b_values) X(out) X(c) X(alpha) X(beta) X(stream) X(family) X(chip)
enum { SPARSE_ARGUMENTS(BSRG_PY_PLACE) ARGUMENTS };

/* Imports the operands in place; those marked given need releasing, also after a failure. */
static int import_operands(bsrg_state *state, PyObject *const *found, bsrg_work *work,
                           bsrg_operand *operands) {
  if (bsrg_import_operand(state, found[AT_values], &operands[A], work) < 0 ||
      bsrg_import_operand(state, found[AT_b_values], &operands[B], work) < 0 ||
      bsrg_import_operand(state, found[AT_out], &operands[OUT], work) < 0 ||
      bsrg_check_dimensions(&operands[OUT], 2, "two") < 0) {
    return -1;
  }
  if (found[AT_c] == found[AT_out]) {
    bsrg_share_operand(&operands[OUT], &operands[C]);
  } else if (!bsrg_is_absent(found[AT_c]) &&
             (bsrg_import_operand(state, found[AT_c], &operands[C], work) < 0 ||
              bsrg_check_dimensions(&operands[C], 2, "two") < 0)) {
    return -1;
  }
  for (int i = B; i < OPERANDS; ++i) {
    if (bsrg_check_same_kind(&operands[A], &operands[i]) < 0) return -1;
  }
  return bsrg_check_writable(&operands[OUT]);
}

static int parse_arguments(bsrg_state *state, PyObject *const *found, bsrg_matmul_sparse_args *args,
                           bsrg_work *work) {
  args->alpha = 1.0;
  args->a = bsrg_fixed_structure(state, found[AT_structure], "structure");
  args->b = args->a == NULL ? NULL : bsrg_fixed_structure(state, found[AT_b_structure], "b_structure");
  if (args->b == NULL) return -1;
  if (found[AT_alpha] != NULL && bsrg_parse_real(found[AT_alpha], "alpha", &args->alpha) < 0) return -1;
  if (found[AT_beta] != NULL && bsrg_parse_real(found[AT_beta], "beta", &args->beta) < 0) return -1;
  if (bsrg_parse_work(found[AT_stream], work) < 0) return -1;
  return found[AT_family] == NULL ? 0 : bsrg_parse_family(found[AT_family], &args->family);
}

PyObject *bsrg_py_matmul_sparse(PyObject *module, PyObject *const *args, Py_ssize_t nargs,
                                PyObject *kwnames) {
  static const bsrg_name names[] = {SPARSE_ARGUMENTS(BSRG_PY_NAME)};
  static const bsrg_signature signature = {"matmul_sparse", 5, ARGUMENTS, names};
  bsrg_state *state = PyModule_GetState(module);
  PyObject *found[ARGUMENTS];
  if (bsrg_parse(state, &signature, args, nargs, kwnames, found) < 0) return NULL;
  bsrg_matmul_sparse_args call = {0};
  bsrg_work work;
  bsrg_chip_question question;
  if (parse_arguments(state, found, &call, &work) < 0 || bsrg_parse_question(found[AT_chip], &question) < 0)
    return NULL;

  bsrg_operand operands[OPERANDS] = {
      [A] = {.name = "a.data"}, [B] = {.name = "b.data"}, [C] = {.name = "c"}, [OUT] = {.name = "out"}};
  PyObject *result = NULL;
  const bsrg_structure_view a = bsrg_structure_get(call.a), b = bsrg_structure_get(call.b);
  if (import_operands(state, found, &work, operands) == 0 && bsrg_check_values(&a, &operands[A]) == 0 &&
      bsrg_check_values(&b, &operands[B]) == 0) {
    call.a_values = operands[A].array.data;
    call.b_values = operands[B].array.data;
    call.dtype = (bsrg_dtype)operands[A].array.element->dtype;
    call.device = bsrg_device_of_question(&question, operands[A].array.device);
    call.question = question.asked;
    if (operands[C].given) call.c = bsrg_operand_dense(&operands[C]);
    call.y = bsrg_operand_dense(&operands[OUT]);
    call.stream = work.stream;
    bsrg_error error;
    bsrg_status status;
    Py_BEGIN_ALLOW_THREADS;
    status = bsrg_matmul_sparse(&call, &error);
    Py_END_ALLOW_THREADS;
    result = status == BSRG_OK ? bsrg_answer(&question) : bsrg_raise(state, status, &error);
  }
  bsrg_release_operands(state, operands, OPERANDS, result != NULL, &work);
  return result;
}

const char bsrg_matmul_sparse_doc[] =
    "matmul_sparse(structure, values, b_structure, b_values, out, c=None, alpha=1.0, beta=0.0, stream=0, "
    "family='auto', chip=None)\n"
    "--\n\n"
    "out = alpha * A @ B + beta * c, for the block-sparse matrices A of structure and values and B of\n"
    "b_structure and b_values.\n\n"
    "structure  a Structure of a matrix of M rows and K columns; b_structure: of K rows and N columns, its\n"
    "           blocks as high as those of A are wide\n"
    "values     [nnzb, block height, block width], C-contiguous; with a transposed structure those of the\n"
    "           one that it is the transposed of. b_values likewise\n"
    "out        [M, N], writable, any strides, sharing memory with no operand unless it is c\n"
    "c          [M, N] or None; not read when beta is 0\n"
    "stream     CUDA stream handle; None takes the current stream of the library of values\n"
    "family     'auto', 'pairs', 'spread', 'portable' (GPU) or 'cpu'\n\n"
    "All else is as in matmul.";
