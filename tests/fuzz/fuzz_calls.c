/* The calls of the fuzzer. On the CPU operands are real memory that ends where they end, so calls that would need much
 * of it, or take long, are left out. The fake GPU's kernels compute nothing: addresses there are numbers, and sizes any. */
#include <string.h>

#include "fake/fault_points.h"
#include "fuzz_input.h"

enum { MOST_ELEMENTS = 1 << 15, ARRAYS = 12 };
static const double kMostWork = 1 << 21; /* multiply-adds */

/* ---- memory ------------------------------------------------------------------------------------ */

/* What a call's operands are made of. */
typedef struct memory {
  fuzz_input *in;
  bsrg_device device;
  void *arrays[ARRAYS];
  int count;
  bool too_large;
} memory;

/* So many items; some are zeros, some any bits. On a GPU an address, often aligned. */
static void *take(memory *m, int64_t items, size_t size) {
  static const uint8_t kBytes[] = {0, 0x3c, 0xbf, 0x7f, 0xff, 0x80};
  const int kind = fuzz_byte(m->in);
  if (m->device.kind == BSRG_CUDA) {
    const uintptr_t offset = kind < 200 ? 0 : (uintptr_t)kind % 32;
    return (void *)(((uintptr_t)(1 + m->count++) << 42) + offset);
  }
  if (items < 0 || items > 4 * MOST_ELEMENTS || m->count == ARRAYS) {
    m->too_large = true;
    return NULL;
  }
  char *data = fault_plain_malloc((size_t)items * size + (items == 0));
  if (data) memset(data, kBytes[kind % 6], (size_t)items * size);
  m->too_large = m->too_large || !data;
  return m->arrays[m->count++] = data;
}

static void give_back(memory *m) {
  for (int i = 0; m->device.kind == BSRG_CPU && i < m->count; ++i) fault_plain_free(m->arrays[i]);
}

static int64_t read_size(fuzz_input *in) {
  static const int64_t kSizes[] = {1, 2, 3, 4, 7, 8, 9, 16, 17, 24, 32, 33, 64, 72, 128, 256};
  enum { SIZES = sizeof kSizes / sizeof *kSizes };
  const int64_t kind = fuzz_below(in, SIZES + 2);
  return kind < SIZES ? kSizes[kind] : kind == SIZES ? fuzz_below(in, 300) : fuzz_wild(in);
}

/* Of an array that is read: one element may stand for all of a side. */
static bsrg_dense take_dense(memory *m, int64_t rows, int64_t cols, size_t size, bool written) {
  const int64_t kind = fuzz_below(m->in, 8);
  const bool gaps = (kind == 2 || kind == 3) && rows < INT64_MAX / 2 && cols < INT64_MAX / 2;
  const int64_t gap = gaps ? 1 + fuzz_below(m->in, 9) : 0;
  bsrg_dense d = {NULL, rows, cols, 0, 0};
  int64_t items = 0;
  if (rows < 0 || cols < 0 || !bsrg_mul_ok(rows + gap, cols + gap, &items)) items = INT64_MAX;
  d.row_stride = kind % 2 ? 1 : cols + gap;
  d.col_stride = kind % 2 ? rows + gap : 1;
  if (!written && kind == 4) d.row_stride = 0, items = cols;
  if (!written && kind == 5) d.col_stride = 0, items = rows;
  if (!written && kind == 6) d.row_stride = d.col_stride = 0, items = 1;
  if (kind == 7 && m->device.kind == BSRG_CUDA)
    d.row_stride = fuzz_wild(m->in), d.col_stride = fuzz_wild(m->in);
  d.data = take(m, items, size);
  return d;
}

static void *take_values(memory *m, const bsrg_structure_view *v, size_t size) {
  return take(m, v->nnzb * v->block_height * v->block_width, size);
}

/* ---- parts of calls ---------------------------------------------------------------------------- */

static bsrg_dtype read_dtype(fuzz_input *in) { return (bsrg_dtype)(fuzz_byte(in) % 7); }
static bsrg_device read_device(fuzz_input *in) {
  return (bsrg_device){fuzz_byte(in) % 4 ? BSRG_CUDA : BSRG_CPU, 0};
}
static double read_factor(fuzz_input *in) {
  static const double kFactors[] = {1, 0, 0.5, -1};
  return kFactors[fuzz_byte(in) % 4];
}

/* Any family, or the one that is there for it. */
static bsrg_family read_family(fuzz_input *in, bsrg_device device) {
  const int kind = fuzz_byte(in) % 24;
  if (device.kind == BSRG_CPU) return kind == 23 ? BSRG_TALL : BSRG_AUTO;
  return kind < BSRG_FAMILY_COUNT ? (bsrg_family)kind : BSRG_AUTO;
}

static bsrg_vector read_vector(memory *m, int64_t size, bsrg_dtype dtype) {
  const int kind = fuzz_byte(m->in) % 8;
  if (kind > 2) return (bsrg_vector){0};
  bsrg_vector v = {NULL, size, kind, kind == 1 ? dtype : BSRG_F32};
  v.data = take(m,
                kind == 0                                       ? 1
                : kind == 2 && size > 0 && size < INT64_MAX / 2 ? 2 * size
                                                                : size,
                bsrg_dtype_size(v.dtype));
  return v;
}

/* The structure, or its transposed reading. */
static bsrg_status read_turned(fuzz_input *in, bsrg_structure **a, bsrg_error *error) {
  return fuzz_byte(in) % 3 == 0 ? bsrg_structure_transposed(*a, a, error) : BSRG_OK;
}

/* On the CPU. */
static bool is_much(const memory *m, const bsrg_structure_view *v, int64_t n) {
  if (m->device.kind == BSRG_CUDA) return false;
  const double area = (double)v->block_height * (double)v->block_width;
  return m->too_large || area * (double)v->nnzb * (double)n > kMostWork ||
         (double)v->rows * (double)n > MOST_ELEMENTS || (double)v->cols > 1e9 ||
         (double)v->cols * (double)n > 64.0 * MOST_ELEMENTS;
}

/* ---- calls ------------------------------------------------------------------------------------- */

static bsrg_status explain(fuzz_input *in, bsrg_structure *a, bsrg_error *error) {
  bsrg_chip chip = bsrg_chip_h200();
  bsrg_plan_info info;
  const bsrg_dtype dtype = (bsrg_dtype)(fuzz_byte(in) % 6);
  if (fuzz_byte(in) % 8 == 0) chip.sm_arch = (int)fuzz_below(in, 128);
  const bsrg_precision precision = fuzz_byte(in) % 2 ? BSRG_IEEE : BSRG_TF32;
  return bsrg_plan_explain(a, dtype, precision, read_size(in), &chip, &info, error);
}

static bsrg_status matmul(fuzz_input *in, bsrg_structure *a, bsrg_error *error) {
  memory m = {.in = in, .device = read_device(in)};
  const bsrg_structure_view v = bsrg_structure_get(a);
  const bsrg_dtype dtype = read_dtype(in);
  const size_t size = bsrg_dtype_size(dtype);
  bsrg_matmul_args args = {.a = a,
                           .dtype = dtype,
                           .alpha = read_factor(in),
                           .beta = read_factor(in),
                           .device = m.device,
                           .family = read_family(in, m.device),
                           .side = (bsrg_side)(fuzz_byte(in) % 2),
                           .precision = dtype == BSRG_F32 ? (bsrg_precision)(fuzz_byte(in) % 2) : BSRG_IEEE,
                           .out_dtype = (bsrg_dtype)(fuzz_byte(in) % 4)};
  const size_t out_size = size == 1 ? bsrg_dtype_size(args.out_dtype) : size;
  const int64_t n = read_size(in), rows = args.side == BSRG_A_RIGHT ? n : v.rows;
  const int64_t cols = args.side == BSRG_A_RIGHT ? v.cols : n;
  args.values = take_values(&m, &v, size);
  args.x = args.side == BSRG_A_RIGHT ? take_dense(&m, n, v.rows, size, false)
                                     : take_dense(&m, v.cols, n, size, false);
  args.y = take_dense(&m, rows, cols, out_size, true);
  args.c = fuzz_byte(in) % 3 ? take_dense(&m, rows, cols, out_size, false) : args.y;
  if (args.beta == 0) args.c = (bsrg_dense){0};
  if (fuzz_byte(in) % 3 == 0 && size > 1)
    args.epilogue = (bsrg_epilogue){.row_scale = read_vector(&m, rows, dtype),
                                    .col_scale = read_vector(&m, cols, dtype),
                                    .row_bias = read_vector(&m, rows, dtype),
                                    .col_bias = read_vector(&m, cols, dtype),
                                    .activation = (bsrg_activation)(fuzz_byte(in) % 6)};
  if (size == 1 && fuzz_byte(in) % 2) {
    args.values_scale_count = fuzz_byte(in) % 2 ? v.nnzb : 1;
    args.values_scale = take(&m, args.values_scale_count, sizeof(float));
    args.x_scale = take(&m, 1, sizeof(float));
  }
  if (m.device.kind == BSRG_CUDA && fuzz_byte(in) % 4 == 0)
    args.batch = (bsrg_batch){.ndim = 1, .shape = {fuzz_below(in, 5)}, .x_strides = {fuzz_wild(in)}};
  const bsrg_structure_view turned = {.rows = v.cols,
                                      .cols = v.rows,
                                      .nnzb = v.nnzb,
                                      .block_height = v.block_height,
                                      .block_width = v.block_width};
  const bool much = is_much(&m, args.side == BSRG_A_RIGHT ? &turned : &v, n);
  const bsrg_status status = much ? BSRG_OK : bsrg_matmul(&args, error);
  give_back(&m);
  return status;
}

static bsrg_status matmul_sparse(fuzz_input *in, fuzz_structures s, bsrg_error *error) {
  memory m = {.in = in, .device = read_device(in)};
  bsrg_structure *a = s.a, *b = s.b;
  bsrg_status status = BSRG_OK;
  /* A and the transposed of it fit one another, as A and B do; or anything. */
  const int kind = fuzz_byte(in) % 4;
  if (!b || kind == 0) b = a;
  if (kind == 1) status = bsrg_structure_transposed(a, &b, error);
  if (kind == 2) status = bsrg_structure_transposed(a, &a, error), b = s.a;
  if (status != BSRG_OK) return status;
  const bsrg_structure_view va = bsrg_structure_get(a), vb = bsrg_structure_get(b);
  const bsrg_dtype dtype = read_dtype(in);
  const size_t size = bsrg_dtype_size(dtype);
  bsrg_matmul_sparse_args args = {.a = a,
                                  .b = b,
                                  .dtype = dtype,
                                  .alpha = read_factor(in),
                                  .beta = read_factor(in),
                                  .device = m.device,
                                  .family = read_family(in, m.device)};
  args.a_values = take_values(&m, &va, size);
  args.b_values = take_values(&m, &vb, size);
  args.y = take_dense(&m, va.rows, vb.cols, size, true);
  if (args.beta != 0) args.c = take_dense(&m, va.rows, vb.cols, size, false);
  if (!is_much(&m, &va, bsrg_min(vb.cols, INT64_C(1) << 40))) status = bsrg_matmul_sparse(&args, error);
  give_back(&m);
  return status;
}

static bsrg_status sampled(fuzz_input *in, bsrg_structure *pattern, bsrg_error *error) {
  memory m = {.in = in, .device = read_device(in)};
  bsrg_status status = read_turned(in, &pattern, error);
  if (status != BSRG_OK) return status;
  const bsrg_structure_view v = bsrg_structure_get(pattern);
  const bsrg_dtype dtype = read_dtype(in);
  const size_t size = bsrg_dtype_size(dtype);
  const int64_t k = read_size(in);
  bsrg_sampled_args args = {.pattern = pattern,
                            .dtype = dtype,
                            .alpha = read_factor(in),
                            .beta = read_factor(in),
                            .device = m.device,
                            .family = read_family(in, m.device)};
  args.a = take_dense(&m, v.rows, k, size, false);
  args.b = take_dense(&m, k, v.cols, size, false);
  args.values = take_values(&m, &v, size);
  args.out = fuzz_byte(in) % 2 ? take_values(&m, &v, size) : (void *)args.values;
  if (!is_much(&m, &v, k)) status = bsrg_sampled_matmul(&args, error);
  give_back(&m);
  return status;
}

static bsrg_status softmax(fuzz_input *in, bsrg_structure *a, bsrg_error *error) {
  memory m = {.in = in, .device = read_device(in)};
  bsrg_status status = read_turned(in, &a, error);
  if (status != BSRG_OK) return status;
  const bsrg_structure_view v = bsrg_structure_get(a);
  const bsrg_dtype dtype = read_dtype(in);
  bsrg_softmax_args args = {.a = a, .dtype = dtype, .scale = read_factor(in), .device = m.device};
  args.values = take_values(&m, &v, bsrg_dtype_size(dtype));
  args.out = fuzz_byte(in) % 2 ? take_values(&m, &v, bsrg_dtype_size(dtype)) : (void *)args.values;
  if (!is_much(&m, &v, 1)) status = bsrg_softmax(&args, error);
  give_back(&m);
  return status;
}

/* Contiguous; on a GPU with any stride now and then. */
static bsrg_tensor take_tensor(memory *m, int64_t batch, int64_t heads, int64_t rows, int64_t size,
                               size_t item) {
  int64_t all = 0, matrix = 0, of_batch = 0;
  if (!bsrg_mul_ok(rows, size, &matrix) || !bsrg_mul_ok(matrix, heads, &of_batch) ||
      !bsrg_mul_ok(of_batch, batch, &all))
    all = INT64_MAX;
  bsrg_tensor t = {NULL, batch, heads, rows, size, of_batch, matrix, size, 1};
  if (m->device.kind == BSRG_CUDA && fuzz_byte(m->in) % 16 == 0) t.head_stride = fuzz_wild(m->in);
  t.data = take(m, all, item);
  return t;
}

static bsrg_sequences read_sequences(memory *m, int64_t queries, int64_t keys) {
  const int64_t count = fuzz_below(m->in, 6);
  bsrg_sequences s = {.count = count,
                      .q_type = (bsrg_index_type)(fuzz_byte(m->in) % 2),
                      .k_type = BSRG_I64,
                      .max_queries = queries,
                      .max_keys = keys,
                      .align_last = fuzz_byte(m->in) % 2};
  int64_t *k = take(m, count + 1, sizeof *k);
  void *q = take(m, count + 1, s.q_type == BSRG_I32 ? 4 : 8);
  for (int64_t i = 0; m->device.kind == BSRG_CPU && !m->too_large && i <= count; ++i) {
    const int64_t at = fuzz_byte(m->in) ? i * queries / (count + 1) : fuzz_wild(m->in);
    if (s.q_type == BSRG_I32) ((int32_t *)q)[i] = (int32_t)at;
    if (s.q_type == BSRG_I64) ((int64_t *)q)[i] = at;
    k[i] = fuzz_byte(m->in) ? i * keys / (count + 1) : fuzz_wild(m->in);
  }
  s.q_offsets = q;
  s.k_offsets = k;
  return s;
}

static bsrg_status attention(fuzz_input *in, bsrg_structure *mask, bsrg_error *error) {
  memory m = {.in = in, .device = read_device(in)};
  bsrg_status status = read_turned(in, &mask, error);
  if (status != BSRG_OK) return status;
  const bsrg_structure_view v = bsrg_structure_get(mask);
  const int kind = fuzz_byte(in) % 8; /* 0 .. 4: masks; 5: sequences; 6: top-k; 7: neither */
  const bsrg_dtype dtype = read_dtype(in);
  const size_t item = bsrg_dtype_size(dtype), out_item = dtype == BSRG_F8_E4M3 ? 2 : item;
  /* The last blocks may have rows and columns that are no queries and keys. */
  int64_t queries = v.rows - fuzz_below(in, bsrg_min(v.block_height, 65536));
  int64_t keys = v.cols - fuzz_below(in, bsrg_min(v.block_width, 65536));
  if (kind == 7) queries = read_size(in), keys = read_size(in);
  const int64_t batch = kind == 5 ? 1 : 1 + fuzz_below(in, 3), heads = 1 + fuzz_below(in, 8);
  const int64_t half = heads % 2 ? heads : heads / 2,
                shared = (const int64_t[]){1, heads, half}[fuzz_below(in, 3)];
  const int64_t size = read_size(in), value_size = fuzz_byte(in) % 4 ? size : read_size(in);
  const bool masked = kind < 5;
  bsrg_attention_args args = {.dtype = dtype,
                              .scale = 0.125,
                              .softcap = fuzz_byte(in) % 4 ? 0 : 5,
                              .diagonal = fuzz_byte(in) % 2 ? 0 : fuzz_wild(in),
                              .left = fuzz_byte(in) % 2 ? -1 : fuzz_wild(in),
                              .right = fuzz_byte(in) % 2 ? 0 : fuzz_wild(in),
                              .q_descale = {.all = 1},
                              .k_descale = {.all = 1},
                              .v_descale = {.all = 1},
                              .mask_batch = fuzz_byte(in) % 2 ? batch : 1,
                              .mask_heads = (const int64_t[]){1, heads, shared}[fuzz_byte(in) % 3],
                              .device = m.device,
                              .family = read_family(in, m.device)};
  bsrg_structure *masks[32];
  for (int i = 0; i < 32; ++i) masks[i] = mask;
  if (masked) args.masks = masks;
  args.q = take_tensor(&m, batch, heads, queries, size, item);
  args.k = take_tensor(&m, batch, shared, keys, size, item);
  args.v = take_tensor(&m, batch, shared, keys, value_size, item);
  args.out = take_tensor(&m, batch, heads, queries, value_size, out_item);
  if (fuzz_byte(in) % 2)
    args.lse = take(&m, batch * heads * bsrg_max(0, bsrg_min(queries, 1 << 20)), sizeof(float));
  bsrg_sequences sequences;
  if (kind == 5) {
    sequences = read_sequences(&m, queries, keys);
    args.sequences = &sequences;
  }
  const bsrg_topk_mask topk = {.batch = args.mask_batch,
                               .heads = args.mask_heads,
                               .block_rows = v.block_rows,
                               .block_cols = v.block_cols,
                               .block_height = v.block_height,
                               .block_width = v.block_width,
                               .k = fuzz_below(in, 70),
                               .causal = fuzz_byte(in) % 2,
                               .queries = queries,
                               .columns = take(&m, 1, sizeof(int32_t))};
  if (kind == 6) args.topk = &topk;
  const double work =
      (double)batch * (double)heads * (double)queries * (double)keys * ((double)size + (double)value_size);
  if (m.device.kind == BSRG_CUDA || (!m.too_large && work <= kMostWork))
    status = bsrg_attention(&args, error);
  give_back(&m);
  return status;
}

/* All that is done with a pattern of a GPU, on the fake one alone. */
static bsrg_status dynamic(fuzz_input *in, bsrg_structure *like, bsrg_error *error) {
  memory m = {.in = in, .device = {BSRG_CUDA, 0}};
  const bsrg_structure_view v = bsrg_structure_get(like);
  const bool wild = fuzz_byte(in) % 8 == 0;
  bsrg_structure *made;
  bsrg_status status =
      bsrg_dynamic_create(v.rows, v.cols, v.block_height, v.block_width,
                          wild ? fuzz_wild(in) : v.nnzb + fuzz_below(in, 9), 0, &made, error);
  if (status != BSRG_OK) return status;
  const bsrg_dtype dtype = read_dtype(in);
  const bsrg_dense places = take_dense(&m, v.block_rows, v.block_cols, 1, false);
  status = bsrg_dynamic_update(made, &places, NULL, error);
  const bsrg_dense scores = take_dense(&m, v.block_rows, v.block_cols, 4, false);
  if (status == BSRG_OK)
    status = bsrg_dynamic_update_topk(made, &scores, BSRG_F32, fuzz_wild(in), NULL, error);
  const bsrg_dense whole = take_dense(&m, v.rows, v.cols, bsrg_dtype_size(dtype), false);
  if (status == BSRG_OK) status = bsrg_dynamic_gather(made, &whole, dtype, take(&m, 1, 1), NULL, error);
  if (status == BSRG_OK) status = matmul(in, made, error);
  bsrg_structure_destroy(made);
  return status;
}

static bsrg_status transpose(bsrg_structure *a, bsrg_error *error) {
  const bsrg_structure_view v = bsrg_structure_get(a);
  int64_t *order = fault_plain_malloc(sizeof *order * (size_t)(v.nnzb + 1));
  bsrg_structure *turned = NULL;
  const bsrg_status status = order ? bsrg_structure_transpose(a, &turned, order, error)
                                   : bsrg_fail(error, BSRG_ERR_MEMORY, "no order");
  bsrg_structure_destroy(turned);
  fault_plain_free(order);
  return status;
}

bsrg_status fuzz_call(fuzz_input *in, fuzz_structures s, bsrg_error *error) {
  bsrg_structure *a = s.a;
  if (s.b && fuzz_byte(in) % 4 == 0) a = s.b;
  if (!a) return BSRG_OK;
  switch (fuzz_byte(in) % 16) {
    case 0:
      return transpose(a, error);
    case 1:
    case 2: {
      const bsrg_status status = read_turned(in, &a, error);
      return status == BSRG_OK ? explain(in, a, error) : status;
    }
    case 3:
    case 4:
      return s.a ? matmul_sparse(in, s, error) : BSRG_OK;
    case 5:
    case 6:
      return sampled(in, a, error);
    case 7:
      return softmax(in, a, error);
    case 8:
    case 9:
    case 10:
      return attention(in, a, error);
    case 11:
      return dynamic(in, a, error);
    default: {
      const bsrg_status status = read_turned(in, &a, error);
      return status == BSRG_OK ? matmul(in, a, error) : status;
    }
  }
}
