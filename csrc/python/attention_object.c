/* attention(): imports the operands, collects the masks, and calls the core without the GIL. */
#include "topk_object.h"

#include <stdlib.h>
#include <string.h>

/* Operands, of which the first are the first arguments, too. */
enum { Q, K, V, OUT, LSE, Q_DESCALE, K_DESCALE, V_DESCALE, BLOCK_MASK, CU_SEQLENS_Q, CU_SEQLENS_K, OPERANDS };

/* The dimensions of q, k, v and out; a packed tensor has no batch. */
typedef struct dimensions {
  bool packed;
  int heads, rows;
} dimensions;

static int parse_layout(PyObject *obj, bool packed, dimensions *at) {
  *at = packed ? (dimensions){true, 1, 0} : (dimensions){false, 1, 2};
  if (packed || obj == NULL) return 0;
  if (PyUnicode_Check(obj) && PyUnicode_CompareWithASCIIString(obj, "bhsd") == 0) return 0;
  *at = (dimensions){false, 2, 1};
  if (PyUnicode_Check(obj) && PyUnicode_CompareWithASCIIString(obj, "bshd") == 0) return 0;
  PyErr_Format(PyUnicode_Check(obj) ? PyExc_ValueError : PyExc_TypeError,
               "layout is %R, but must be 'bhsd' or 'bshd'", obj);
  return -1;
}

static bsrg_tensor as_tensor(const bsrg_operand *operand, dimensions at) {
  const bsrg_array *a = &operand->array;
  const int size = a->ndim - 1;
  return (bsrg_tensor){.data = a->data,
                       .batch = at.packed ? 1 : a->shape[0],
                       .heads = a->shape[at.heads],
                       .rows = a->shape[at.rows],
                       .size = a->shape[size],
                       .batch_stride = at.packed ? 0 : a->strides[0],
                       .head_stride = a->strides[at.heads],
                       .row_stride = a->strides[at.rows],
                       .element_stride = a->strides[size]};
}

static int import_lse(bsrg_state *state, PyObject *obj, const bsrg_tensor *q, bool packed, bsrg_work *work,
                      bsrg_operand *operands, float **lse) {
  bsrg_operand *operand = &operands[LSE];
  if (bsrg_import_operand(state, obj, operand, work) < 0 ||
      bsrg_check_same_device(&operands[Q], operand) < 0 || bsrg_check_writable(operand) < 0) {
    return -1;
  }
  const int64_t whole[3] = {q->batch, q->heads, q->rows}, *expected = packed ? whole + 1 : whole;
  const int ndim = packed ? 2 : 3;
  if (operand->array.element->dtype != BSRG_F32 || operand->array.ndim != ndim ||
      memcmp(operand->array.shape, expected, sizeof(int64_t) * (size_t)ndim) != 0 ||
      !bsrg_is_contiguous(&operand->array)) {
    PyErr_Format(PyExc_ValueError,
                 "lse has dtype %s and shape %s, but must have dtype float32 and shape %s, C-contiguous",
                 operand->array.element->name,
                 bsrg_format_shape(operand->array.ndim, operand->array.shape).text,
                 bsrg_format_shape(ndim, expected).text);
    return -1;
  }
  *lse = operand->array.data;
  return 0;
}

/* 8-bit operands have a result of 16 bits. */
static int check_out_of_e4m3(const bsrg_operand *q, const bsrg_operand *out) {
  if (out->array.element->dtype == BSRG_BF16) return bsrg_check_same_device(q, out);
  PyErr_Format(PyExc_TypeError, "out has dtype %s, but must have dtype bfloat16, as q has dtype %s",
               out->array.element->name, q->array.element->name);
  return -1;
}

/* A number, or an array with one for all or for each batch and head of k. */
static int import_factors(bsrg_state *state, PyObject *obj, bsrg_work *work, const bsrg_operand *q,
                          bsrg_operand *operand, const bsrg_attention_args *call, bsrg_factors *factors) {
  factors->all = 1;
  if (bsrg_is_absent(obj)) return 0;
  if (call->dtype != BSRG_F8_E4M3) {
    PyErr_Format(PyExc_TypeError, "%s is given, but q has dtype %s: only float8_e4m3fn takes factors",
                 operand->name, q->array.element->name);
    return -1;
  }
  if (PyFloat_Check(obj) || PyLong_Check(obj)) return bsrg_parse_real(obj, operand->name, &factors->all);
  if (bsrg_import_operand(state, obj, operand, work) < 0 || bsrg_check_same_device(q, operand) < 0) {
    return -1;
  }
  const bsrg_array *a = &operand->array;
  const int64_t expected[2] = {call->k.batch, call->k.heads};
  const bool one = a->ndim == 0, each = a->ndim == 2 && memcmp(a->shape, expected, sizeof expected) == 0;
  if (a->element->dtype != BSRG_F32 || !(one || each)) {
    PyErr_Format(PyExc_ValueError,
                 "%s has dtype %s and shape %s, but must be a number, or have dtype float32 and shape () or "
                 "(batch, key heads) = %s",
                 operand->name, a->element->name, bsrg_format_shape(a->ndim, a->shape).text,
                 bsrg_format_shape(2, expected).text);
    return -1;
  }
  factors->data = a->data;
  factors->batch_stride = each ? a->strides[0] : 0;
  factors->head_stride = each ? a->strides[1] : 0;
  return 0;
}

/* A mask whose columns are on the device of q. */
static int import_topk(bsrg_state *state, PyObject *columns, PyObject *numbers, bsrg_work *work,
                       bsrg_operand *operands, bsrg_topk_mask *mask, bsrg_attention_args *call) {
  if (bsrg_is_absent(columns)) return 0;
  if (numbers == NULL) {
    PyErr_SetString(PyExc_TypeError, "columns are given, so numbers must be, too");
    return -1;
  }
  bsrg_operand *operand = &operands[BLOCK_MASK];
  if (bsrg_parse_topk(numbers, mask) < 0 || bsrg_import_columns(state, columns, operand, work, mask) < 0 ||
      bsrg_check_same_device(&operands[Q], operand) < 0) {
    return -1;
  }
  call->topk = mask;
  return 0;
}

/* Offsets of sequences. *count is that of cu_seqlens_q; negative: this is cu_seqlens_q, which sets it. */
static int import_offsets(bsrg_state *state, PyObject *obj, bsrg_work *work, bsrg_operand *operands,
                          int which, const void **offsets, bsrg_index_type *type, int64_t *count) {
  bsrg_operand *operand = &operands[which];
  const bsrg_array *a = &operand->array;
  if (bsrg_import_array(state, obj, operand->name, work, &operand->array) < 0) return -1;
  operand->given = true;
  const bool is_wide = strcmp(a->element->name, "int64") == 0;
  if (!is_wide && strcmp(a->element->name, "int32") != 0) {
    PyErr_Format(PyExc_TypeError, "%s has dtype %s, but must have dtype int32 or int64", operand->name,
                 a->element->name);
    return -1;
  }
  if (a->ndim != 1 || a->shape[0] < 1) {
    PyErr_Format(PyExc_ValueError, "%s has shape %s, but must have shape (sequences + 1,)", operand->name,
                 bsrg_format_shape(a->ndim, a->shape).text);
    return -1;
  }
  if (*count >= 0 && a->shape[0] != *count + 1) {
    PyErr_Format(PyExc_ValueError, "%s has shape (%lld,), but must have shape (%lld,), that of cu_seqlens_q",
                 operand->name, (long long)a->shape[0], (long long)*count + 1);
    return -1;
  }
  if (!bsrg_is_contiguous(a)) {
    PyErr_Format(PyExc_ValueError, "%s has strides of %lld elements, but must be C-contiguous", operand->name,
                 (long long)a->strides[0]);
    return -1;
  }
  *offsets = a->data;
  *type = is_wide ? BSRG_I64 : BSRG_I32;
  *count = a->shape[0] - 1;
  return bsrg_check_same_device(&operands[Q], operand);
}

static int import_sequences(bsrg_state *state, PyObject *const *offsets, bsrg_work *work,
                            bsrg_operand *operands, bsrg_sequences *s) {
  s->count = -1;
  if (import_offsets(state, offsets[0], work, operands, CU_SEQLENS_Q, &s->q_offsets, &s->q_type, &s->count) <
      0)
    return -1;
  return import_offsets(state, offsets[1], work, operands, CU_SEQLENS_K, &s->k_offsets, &s->k_type,
                        &s->count);
}

static int import_operands(bsrg_state *state, PyObject *const *found, bsrg_work *work, bsrg_operand *operands,
                           dimensions at, bsrg_attention_args *call) {
  const int ndim = at.packed ? 3 : 4;
  /* q first: a call that names no stream takes that of q's library. */
  for (int i = Q; i <= OUT; ++i) {
    if (bsrg_import_operand(state, found[i], &operands[i], work) < 0) return -1;
    if (operands[i].array.ndim != ndim) {
      PyErr_Format(PyExc_ValueError, "%s has shape %s, but must have %s dimensions", operands[i].name,
                   bsrg_format_shape(operands[i].array.ndim, operands[i].array.shape).text,
                   at.packed ? "three" : "four");
      return -1;
    }
    if (i == OUT && operands[Q].array.element->dtype == BSRG_F8_E4M3) {
      if (check_out_of_e4m3(&operands[Q], &operands[OUT]) < 0) return -1;
    } else if (bsrg_check_same_kind(&operands[Q], &operands[i]) < 0) {
      return -1;
    }
  }
  if (bsrg_check_writable(&operands[OUT]) < 0) return -1;
  call->dtype = (bsrg_dtype)operands[Q].array.element->dtype;
  call->device = operands[Q].array.device;
  call->q = as_tensor(&operands[Q], at);
  call->k = as_tensor(&operands[K], at);
  call->v = as_tensor(&operands[V], at);
  call->out = as_tensor(&operands[OUT], at);
  if (bsrg_is_absent(found[LSE])) return 0;
  return import_lse(state, found[LSE], &call->q, at.packed, work, operands, &call->lse);
}

static int import_all_factors(bsrg_state *state, PyObject *const *factors, bsrg_work *work,
                              bsrg_operand *operands, bsrg_attention_args *call) {
  bsrg_factors *to[] = {&call->q_descale, &call->k_descale, &call->v_descale};
  for (int i = 0; i < 3; ++i)
    if (import_factors(state, factors[i], work, &operands[Q], &operands[Q_DESCALE + i], call, to[i]) < 0)
      return -1;
  return 0;
}

/* A tuple of Structures, which the caller's reference keeps alive. The array is to be freed. */
static int parse_masks(bsrg_state *state, PyObject *masks, PyObject *shape, bsrg_attention_args *call) {
  if (bsrg_is_absent(masks)) return 0;
  if (!PyTuple_Check(masks) || shape == NULL) {
    PyErr_Format(PyExc_TypeError, "masks is %R, but must be None, or a tuple of Structures beside mask_shape",
                 masks);
    return -1;
  }
  int64_t pair[2];
  if (bsrg_parse_pair(shape, "mask_shape", pair) < 0) return -1;
  const Py_ssize_t count = PyTuple_Size(masks);
  int64_t wanted;
  if (pair[0] < 1 || pair[1] < 1 || __builtin_mul_overflow(pair[0], pair[1], &wanted) || wanted != count) {
    PyErr_Format(PyExc_ValueError, "mask_shape is %s, but masks has %zd entries",
                 bsrg_format_shape(2, pair).text, count);
    return -1;
  }
  bsrg_structure **list = malloc(sizeof *list * (size_t)count);
  if (list == NULL) {
    PyErr_NoMemory();
    return -1;
  }
  call->masks = list;
  call->mask_batch = pair[0];
  call->mask_heads = pair[1];
  for (Py_ssize_t i = 0; i < count; ++i) {
    PyObject *mask = PyTuple_GetItem(masks, i);
    if (!Py_IS_TYPE(mask, state->structure_type)) {
      PyErr_Format(PyExc_TypeError, "masks[%zd] is %R, but must be a Structure", i, mask);
      return -1;
    }
    list[i] = bsrg_structure_of(mask);
  }
  return 0;
}

/* Arguments: operands come first, but for the mask's columns. */
enum {
  MASKS = LSE + 1,
  MASK_SHAPE,
  SCALE,
  SOFTCAP,
  DIAGONAL,
  LEFT,
  RIGHT,
  LAYOUT,
  STREAM,
  FAMILY,
  Q_FACTORS,
  K_FACTORS,
  V_FACTORS,
  COLUMNS,
  NUMBERS,
  Q_OFFSETS,
  K_OFFSETS,
  MAX_SEQLEN_Q,
  MAX_SEQLEN_K,
  ALIGN_LAST,
  CHIP,
  ARGUMENTS
};

static int parse_bounds(PyObject *const *found, bsrg_sequences *s) {
  *s = (bsrg_sequences){.max_queries = INT64_MAX, .max_keys = INT64_MAX};
  if (found[MAX_SEQLEN_Q] != NULL &&
      bsrg_parse_integer(found[MAX_SEQLEN_Q], "max_seqlen_q", &s->max_queries) < 0)
    return -1;
  if (found[MAX_SEQLEN_K] != NULL &&
      bsrg_parse_integer(found[MAX_SEQLEN_K], "max_seqlen_k", &s->max_keys) < 0)
    return -1;
  s->align_last = found[ALIGN_LAST] == NULL ? 0 : PyObject_IsTrue(found[ALIGN_LAST]);
  return s->align_last < 0 ? -1 : 0;
}

static int parse_numbers(PyObject *const *found, bsrg_attention_args *call) {
  call->scale = 1.0;
  call->left = call->right = -1;
  call->family = BSRG_AUTO;
  if (found[SCALE] != NULL && bsrg_parse_real(found[SCALE], "scale", &call->scale) < 0) return -1;
  if (found[SOFTCAP] != NULL && bsrg_parse_real(found[SOFTCAP], "softcap", &call->softcap) < 0) return -1;
  if (found[DIAGONAL] != NULL && bsrg_parse_integer(found[DIAGONAL], "diagonal", &call->diagonal) < 0)
    return -1;
  if (found[LEFT] != NULL && bsrg_parse_integer(found[LEFT], "left", &call->left) < 0) return -1;
  if (found[RIGHT] != NULL && bsrg_parse_integer(found[RIGHT], "right", &call->right) < 0) return -1;
  return found[FAMILY] == NULL ? 0 : bsrg_parse_family(found[FAMILY], &call->family);
}

PyObject *bsrg_py_attention(PyObject *module, PyObject *const *args, Py_ssize_t nargs, PyObject *kwnames) {
  static const bsrg_name names[ARGUMENTS] = {
      [Q] = BSRG_NAME_q,
      [K] = BSRG_NAME_k,
      [V] = BSRG_NAME_v,
      [OUT] = BSRG_NAME_out,
      [LSE] = BSRG_NAME_lse,
      [MASKS] = BSRG_NAME_masks,
      [MASK_SHAPE] = BSRG_NAME_mask_shape,
      [SCALE] = BSRG_NAME_scale,
      [SOFTCAP] = BSRG_NAME_softcap,
      [DIAGONAL] = BSRG_NAME_diagonal,
      [LEFT] = BSRG_NAME_left,
      [RIGHT] = BSRG_NAME_right,
      [LAYOUT] = BSRG_NAME_layout,
      [STREAM] = BSRG_NAME_stream,
      [FAMILY] = BSRG_NAME_family,
      [Q_FACTORS] = BSRG_NAME_q_descale,
      [K_FACTORS] = BSRG_NAME_k_descale,
      [V_FACTORS] = BSRG_NAME_v_descale,
      [COLUMNS] = BSRG_NAME_columns,
      [NUMBERS] = BSRG_NAME_numbers,
      [Q_OFFSETS] = BSRG_NAME_cu_seqlens_q,
      [K_OFFSETS] = BSRG_NAME_cu_seqlens_k,
      [MAX_SEQLEN_Q] = BSRG_NAME_max_seqlen_q,
      [MAX_SEQLEN_K] = BSRG_NAME_max_seqlen_k,
      [ALIGN_LAST] = BSRG_NAME_align_last,
      [CHIP] = BSRG_NAME_chip,
  };
  static const bsrg_signature signature = {"attention", 4, ARGUMENTS, names};
  bsrg_state *state = PyModule_GetState(module);
  PyObject *found[ARGUMENTS];
  if (bsrg_parse(state, &signature, args, nargs, kwnames, found) < 0) return NULL;
  bsrg_attention_args call = {0};
  bsrg_work work;
  dimensions at;
  bsrg_sequences sequences;
  for (int i = Q_OFFSETS; i <= K_OFFSETS; ++i)
    if (found[i] == Py_None) found[i] = NULL;
  const bool packed = found[Q_OFFSETS] != NULL;
  if (packed != (found[K_OFFSETS] != NULL)) {
    PyErr_SetString(PyExc_TypeError, "cu_seqlens_q and cu_seqlens_k must both be given, or none of them");
    return NULL;
  }
  bsrg_chip_question question;
  if (bsrg_parse_question(found[CHIP], &question) < 0) return NULL;
  if (parse_numbers(found, &call) < 0 || parse_bounds(found, &sequences) < 0 ||
      parse_layout(found[LAYOUT], packed, &at) < 0 || bsrg_parse_work(found[STREAM], &work) < 0) {
    return NULL;
  }
  bsrg_operand operands[OPERANDS] = {[Q] = {.name = "q", .takes_e4m3 = true},
                                     [K] = {.name = "k", .takes_e4m3 = true},
                                     [V] = {.name = "v", .takes_e4m3 = true},
                                     [OUT] = {.name = "out"},
                                     [LSE] = {.name = "lse"},
                                     [Q_DESCALE] = {.name = "q_descale"},
                                     [K_DESCALE] = {.name = "k_descale"},
                                     [V_DESCALE] = {.name = "v_descale"},
                                     [BLOCK_MASK] = {.name = "block_mask"},
                                     [CU_SEQLENS_Q] = {.name = "cu_seqlens_q"},
                                     [CU_SEQLENS_K] = {.name = "cu_seqlens_k"}};
  bsrg_topk_mask topk;
  PyObject *result = NULL;
  if (parse_masks(state, found[MASKS], found[MASK_SHAPE], &call) == 0 &&
      import_operands(state, found, &work, operands, at, &call) == 0 &&
      import_all_factors(state, found + Q_FACTORS, &work, operands, &call) == 0 &&
      import_topk(state, found[COLUMNS], found[NUMBERS], &work, operands, &topk, &call) == 0 &&
      (!packed || import_sequences(state, found + Q_OFFSETS, &work, operands, &sequences) == 0)) {
    call.stream = work.stream;
    call.device = bsrg_device_of_question(&question, call.device);
    call.question = question.asked;
    if (packed) call.sequences = &sequences;
    bsrg_error error;
    bsrg_status status;
    Py_BEGIN_ALLOW_THREADS;
    status = bsrg_attention(&call, &error);
    Py_END_ALLOW_THREADS;
    result = status == BSRG_OK ? bsrg_answer(&question) : bsrg_raise(state, status, &error);
  }
  free((void *)call.masks);
  bsrg_release_operands(state, operands, OPERANDS, result != NULL, &work);
  return result;
}

const char bsrg_attention_doc[] =
    "attention(q, k, v, out, lse=None, masks=None, mask_shape=None, scale=1.0, softcap=0.0, diagonal=0,\n"
    "          left=-1, right=-1, layout='bhsd', stream=0, family='auto', q_descale=None,\n"
    "          k_descale=None, v_descale=None, columns=None, numbers=None, cu_seqlens_q=None,\n"
    "          cu_seqlens_k=None, max_seqlen_q=2**63 - 1, max_seqlen_k=2**63 - 1,\n"
    "          align_last=False, chip=None)\n--\n\n"
    "out = softmax(scale * q @ k^T over the keys that each query may see) @ v.\n\n"
    "q, out      [batch, heads, queries, size], any strides; out is writable and shares memory with nothing\n"
    "k, v        [batch, heads, keys, size]; their number of heads divides that of q\n"
    "lse         [batch, heads, queries], float32, C-contiguous, writable: log of the sum of exponentials\n"
    "cu_seqlens_q, cu_seqlens_k\n"
    "            [sequences + 1], int32 or int64, on the device of q: where sequences begin among the "
    "queries\n"
    "            and keys, and where the last one ends. q and out are then [queries, heads, size], k and v\n"
    "            [keys, heads, size], lse [heads, queries], and there are no masks\n"
    "masks       a tuple of Structures, mask_shape = (1 or batch; 1, key heads or heads) of them: each says\n"
    "            of which blocks of queries and keys the queries may see the keys\n"
    "columns, numbers\n"
    "            in place of masks, one on the GPU: as topk() takes them\n"
    "softcap     not 0: scores become softcap * tanh(score / softcap)\n"
    "diagonal, left, right\n"
    "            query i may see keys i + diagonal - left to i + diagonal + right; negative: no bound\n"
    "layout      'bhsd' as above, or 'bshd': [batch, queries or keys, heads, size]\n"
    "max_seqlen_q, max_seqlen_k\n"
    "            bounds of the lengths of sequences, checked on the CPU alone\n"
    "align_last  add keys - queries of each sequence to diagonal\n"
    "stream      CUDA stream handle; None takes the current stream of q's library\n"
    "family      'auto', 'hopper', 'decode' or 'portable' (GPU), or 'cpu'\n"
    "q_descale, k_descale, v_descale\n"
    "            float8_e4m3fn: factors of q, k and v, numbers or float32 of shape () or [batch, key "
    "heads]\n"
    "chip        as in matmul\n\n"
    "A query that sees no key gets zeros and lse -inf. q, k, v and out are of one dtype and on one device,\n"
    "but for float8_e4m3fn, which has a bfloat16 result; both are accumulated in float32.\n\n"
    "Raises TypeError (no array, dtype, device), ValueError (shapes, strides, memory, numbers), "
    "MemoryError,\n"
    "DeviceUnavailableError, RuntimeError (CUDA).";
