#include "operations.h"

#include <string.h>

#include "structures.h"

/* ---- memory with numbers in it ----------------------------------------------------------------- */

static array new_array(int64_t bytes) {
  array a = {malloc((size_t)bytes + 1), (size_t)bytes};
  if (!a.data) abort();
  memset(a.data, 0, a.bytes + 1);
  return a;
}

/* 1, -0.5 and 2 by chance, the same again and again. */
static array new_numbers(bsrg_dtype dtype, int64_t count) {
  static const uint64_t kBits[][3] = {
      [BSRG_F16] = {0x3c00, 0xb800, 0x4000},
      [BSRG_BF16] = {0x3f80, 0xbf00, 0x4000},
      [BSRG_F32] = {0x3f800000, 0xbf000000, 0x40000000},
      [BSRG_F64] = {UINT64_C(0x3ff) << 52, UINT64_C(0xbfe) << 52, UINT64_C(0x400) << 52},
      [BSRG_F8_E4M3] = {0x38, 0xb0, 0x40},
      [BSRG_F8_E5M2] = {0x3c, 0xb8, 0x40}};
  enum { PERIOD = 1021 };
  const size_t size = bsrg_dtype_size(dtype), period = PERIOD * size;
  array a = new_array(count * (int64_t)size);
  for (int64_t i = 0; i < bsrg_min(count, PERIOD); ++i)
    memcpy((char *)a.data + (size_t)i * size, &kBits[dtype][random_below(3)], size);
  for (size_t at = period; at < a.bytes; at += period)
    memcpy((char *)a.data + at, a.data, a.bytes - at < period ? a.bytes - at : period);
  return a;
}

static uint64_t hash_bytes(uint64_t hash, const void *data, size_t bytes) {
  uint64_t word;
  for (size_t at = 0; at < bytes; at += sizeof word) {
    word = 0;
    memcpy(&word, (const char *)data + at, bytes - at < sizeof word ? bytes - at : sizeof word);
    hash = (hash ^ word) * UINT64_C(0x9e3779b97f4a7c15);
    hash ^= hash >> 32;
  }
  return hash;
}

/* ---- inputs ------------------------------------------------------------------------------------ */

static void fill_pattern(const operation *o, inputs *in) {
  in->indptr[0] = 0;
  for (int64_t i = 0, at = 0; i < o->block_rows; ++i) {
    const int64_t wanted =
        i == 0 && o->flags & SKEWED ? o->block_cols : 1 + random_below((uint32_t)o->longest);
    for (int64_t j = 0, left = bsrg_min(wanted, o->block_cols); j < o->block_cols && left > 0; ++j)
      if (random_below((uint32_t)(o->block_cols - j)) < left) in->indices[at++] = j, --left;
    in->indptr[i + 1] = at;
  }
}

static bsrg_pattern pattern_of(const operation *o, const inputs *in) {
  const bool partial = o->flags & PARTIAL;
  return (bsrg_pattern){.rows = o->block_rows * o->height - (partial ? o->height / 2 : 0),
                        .cols = o->block_cols * o->width - (partial ? o->width / 2 : 0),
                        .block_height = o->height,
                        .block_width = o->width,
                        .nnzb = in->indptr[o->block_rows],
                        .indptr_len = o->block_rows + 1,
                        .index_type = BSRG_I64,
                        .indices = in->indices,
                        .indptr = in->indptr};
}

inputs *make_inputs(const operation *o) {
  inputs *in = calloc(1, sizeof *in);
  if (!in) abort();
  random_state = 7;
  fill_pattern(o, in);
  const bsrg_pattern pattern = pattern_of(o, in);
  const int count = o->kind == DYNAMIC ? 0 : o->flags & MASKS ? BATCHES : 1;
  for (int i = 0; i < count; ++i)
    if (bsrg_structure_create(&pattern, 1, &in->structures[i], NULL) != BSRG_OK) abort();
  const int64_t longest = bsrg_max(pattern.rows, pattern.cols);
  const int64_t columns = bsrg_max(o->n, o->kind == MATMUL_SPARSE ? pattern.cols : 1);
  const int64_t copies = o->kind == ATTENTION || o->flags & BATCH ? BATCHES * HEADS : 1;
  const int64_t dense =
      bsrg_max(longest * columns * copies, o->kind == DYNAMIC ? pattern.rows * pattern.cols : 0);
  in->values = new_numbers(o->dtype, pattern.nnzb * o->height * o->width);
  in->x = new_numbers(o->dtype, dense);
  in->c = new_numbers(o->dtype, dense);
  in->extra = new_array((4 * longest + pattern.nnzb) * (int64_t)sizeof(float));
  for (size_t i = 0; i < in->extra.bytes / sizeof(float); ++i)
    ((float *)in->extra.data)[i] = (float)random_below(9);
  return in;
}

uint64_t hash_inputs(const inputs *in) {
  uint64_t hash = 1;
  for (int i = 0; i < MOST_STRUCTURES && in->structures[i]; ++i) {
    const bsrg_structure_view v = bsrg_structure_get(in->structures[i]);
    hash = hash_bytes(hash, v.indptr, sizeof *v.indptr * (size_t)(v.block_rows + 1));
    hash = hash_bytes(hash, v.indices, sizeof *v.indices * (size_t)v.nnzb);
  }
  hash = hash_bytes(hash, in->values.data, in->values.bytes);
  hash = hash_bytes(hash, in->x.data, in->x.bytes);
  hash = hash_bytes(hash, in->c.data, in->c.bytes);
  return hash_bytes(hash, in->extra.data, in->extra.bytes);
}

void free_inputs(inputs *in) {
  for (int i = 0; i < MOST_STRUCTURES; ++i) bsrg_structure_destroy(in->structures[i]);
  free(in->values.data);
  free(in->x.data);
  free(in->c.data);
  free(in->extra.data);
  free(in);
}

/* ---- results ----------------------------------------------------------------------------------- */

result make_result(const operation *o, const inputs *in) {
  /* Results of 8-bit operands have 16. */
  const size_t most = in->x.bytes > in->values.bytes ? in->x.bytes : in->values.bytes;
  result r = {.y = new_array((int64_t)most * (bsrg_dtype_size(o->dtype) == 1 ? 2 : 1))};
  /* And the blocks of a dense matrix. */
  r.lse =
      new_array(o->kind == DYNAMIC ? (int64_t)in->x.bytes
                                   : BATCHES * HEADS * o->block_rows * o->height * (int64_t)sizeof(float));
  r.columns = new_array(BATCHES * o->block_rows * o->block_cols * (int64_t)sizeof(int32_t));
  return r;
}

void free_result(result *r) {
  bsrg_structure_destroy(r->made);
  CHECK(bsrg_gpu_free(0, r->memory, NULL, NULL) == BSRG_OK);
  free(r->y.data);
  free(r->lse.data);
  free(r->columns.data);
}

uint64_t hash_result(const result *r) {
  uint64_t hash = hash_bytes(1, r->y.data, r->y.bytes);
  hash = hash_bytes(hash, r->lse.data, r->lse.bytes);
  hash = hash_bytes(hash, r->columns.data, r->columns.bytes);
  return hash_bytes(hash, r->numbers, sizeof r->numbers);
}

/* ---- runs -------------------------------------------------------------------------------------- */

static bsrg_device device_of(const operation *o) {
  return (bsrg_device){o->flags & ON_GPU ? BSRG_CUDA : BSRG_CPU, 0};
}

static bsrg_dense dense_of(const operation *o, void *data, int64_t rows, int64_t cols) {
  const bool by_columns = o->flags & COLUMNS;
  return (bsrg_dense){data, rows, cols, by_columns ? 1 : cols, by_columns ? rows : 1};
}

static bsrg_vector vector_of(const inputs *in, int64_t first, int64_t size) {
  return (bsrg_vector){(const float *)in->extra.data + first, size, 1, BSRG_F32};
}

static bsrg_status structure_of(const operation *o, const inputs *in, bsrg_structure **out,
                                bsrg_error *error) {
  *out = in->structures[0];
  return o->flags & TURNED ? bsrg_structure_transposed(in->structures[0], out, error) : BSRG_OK;
}

static bsrg_status run_create(const operation *o, const inputs *in, result *r, bsrg_error *error) {
  const bsrg_pattern pattern = pattern_of(o, in);
  bsrg_structure *made = in->structures[0];
  const bsrg_status status = bsrg_structure_create(&pattern, 1, &made, error);
  CHECK((status == BSRG_OK) == (made != NULL));
  if (made) r->numbers[0] = (double)bsrg_structure_get(made).longest_row;
  bsrg_structure_destroy(made);
  return status;
}

static bsrg_status run_transpose(const inputs *in, result *r, bsrg_error *error) {
  bsrg_structure *made = in->structures[0];
  const bsrg_status status = bsrg_structure_transpose(in->structures[0], &made, r->y.data, error);
  CHECK((status == BSRG_OK) == (made != NULL));
  bsrg_structure_destroy(made);
  return status;
}

static bsrg_status run_transposed(const inputs *in, result *r, bsrg_error *error) {
  bsrg_structure *made = in->structures[0];
  const bsrg_status status = bsrg_structure_transposed(in->structures[0], &made, error);
  CHECK((status == BSRG_OK) == (made != NULL));
  if (made) r->numbers[0] = (double)bsrg_structure_get(made).longest_row;
  return status;
}

static bsrg_status run_explain(const operation *o, const inputs *in, result *r, bsrg_error *error) {
  bsrg_structure *a;
  bsrg_status status = structure_of(o, in, &a, error);
  if (status != BSRG_OK) return status;
  const bsrg_chip chip = bsrg_chip_h200();
  const bsrg_precision precision = o->dtype == BSRG_F32 ? BSRG_TF32 : BSRG_IEEE;
  bsrg_plan_info info;
  status = bsrg_plan_explain(a, o->dtype, precision, o->n, &chip, &info, error);
  if (status == BSRG_OK) r->numbers[0] = info.candidates[info.chosen].seconds;
  return status;
}

static bool needs_tf32(const operation *o) {
  return o->dtype == BSRG_F32 && (o->family == BSRG_KMAJOR || o->family == BSRG_KSTREAM);
}

static bsrg_matmul_args matmul_args(const operation *o, const inputs *in, bsrg_structure *a, result *r) {
  const bsrg_structure_view v = bsrg_structure_get(a);
  const bool right = o->flags & RIGHT;
  bsrg_matmul_args args = {.a = a,
                           .values = in->values.data,
                           .dtype = o->dtype,
                           .alpha = 2,
                           .beta = 0.5,
                           .device = device_of(o),
                           .family = o->family,
                           .side = right ? BSRG_A_RIGHT : BSRG_A_LEFT,
                           .out_dtype = BSRG_BF16,
                           .precision = needs_tf32(o) ? BSRG_TF32 : BSRG_IEEE};
  const int64_t rows = right ? o->n : v.rows, cols = right ? v.cols : o->n;
  args.x = right ? dense_of(o, in->x.data, o->n, v.rows) : dense_of(o, in->x.data, v.cols, o->n);
  args.y = dense_of(o, r->y.data, rows, cols);
  args.c = dense_of(o, in->c.data, rows, cols);
  if (bsrg_dtype_size(o->dtype) == 1) args.beta = 0;
  if (o->flags & EPILOGUE)
    args.epilogue = (bsrg_epilogue){
        .row_scale = vector_of(in, 0, rows), .col_bias = vector_of(in, 3, cols), .activation = BSRG_GELU};
  if (o->flags & BATCH) {
    args.batch = (bsrg_batch){.ndim = 1, .shape = {BATCHES}};
    args.batch.x_strides[0] = args.x.rows * args.x.cols;
    args.batch.c_strides[0] = args.batch.y_strides[0] = rows * cols;
  }
  if (o->flags & SCALES) {
    args.values_scale = in->extra.data;
    args.values_scale_count = v.nnzb;
    args.x_scale = in->extra.data;
  }
  return args;
}

static bsrg_status run_matmul_sparse(const operation *o, const inputs *in, result *r, bsrg_error *error) {
  bsrg_structure *a;
  const bsrg_status status = structure_of(o, in, &a, error);
  if (status != BSRG_OK) return status;
  bsrg_structure *const b = in->structures[0];
  const int64_t rows = bsrg_structure_get(a).rows, cols = bsrg_structure_get(b).cols;
  const bsrg_matmul_sparse_args args = {.a = a,
                                        .b = b,
                                        .a_values = in->values.data,
                                        .b_values = in->values.data,
                                        .dtype = o->dtype,
                                        .c = dense_of(o, in->c.data, rows, cols),
                                        .y = dense_of(o, r->y.data, rows, cols),
                                        .alpha = 1,
                                        .beta = 0.5,
                                        .device = device_of(o),
                                        .family = o->family};
  return bsrg_matmul_sparse(&args, error);
}

static bsrg_status run_sampled(const operation *o, const inputs *in, result *r, bsrg_error *error) {
  bsrg_structure *pattern;
  const bsrg_status status = structure_of(o, in, &pattern, error);
  if (status != BSRG_OK) return status;
  const bsrg_structure_view v = bsrg_structure_get(pattern);
  const bsrg_sampled_args args = {.pattern = pattern,
                                  .dtype = o->dtype,
                                  .a = dense_of(o, in->x.data, v.rows, o->n),
                                  .b = dense_of(o, in->c.data, o->n, v.cols),
                                  .values = in->values.data,
                                  .out = r->y.data,
                                  .alpha = 1,
                                  .beta = 0.5,
                                  .device = device_of(o),
                                  .family = o->family};
  return bsrg_sampled_matmul(&args, error);
}

static bsrg_status run_softmax(const operation *o, const inputs *in, result *r, bsrg_error *error) {
  bsrg_structure *a;
  const bsrg_status status = structure_of(o, in, &a, error);
  if (status != BSRG_OK) return status;
  const bsrg_softmax_args args = {.a = a,
                                  .values = in->values.data,
                                  .out = r->y.data,
                                  .dtype = o->dtype,
                                  .scale = 0.5,
                                  .device = device_of(o)};
  return bsrg_softmax(&args, error);
}

static bsrg_tensor tensor_of(void *data, int64_t batch, int64_t heads, int64_t rows, int64_t size) {
  return (bsrg_tensor){data, batch, heads, rows, size, heads * rows * size, rows * size, size, 1};
}

static bsrg_status run_attention(const operation *o, const inputs *in, result *r, bsrg_error *error) {
  const int64_t queries = o->block_rows * o->height, keys = o->block_cols * o->width;
  const int64_t batch = o->flags & SEQUENCES ? 1 : BATCHES;
  const bsrg_factors half = {.all = 0.5};
  bsrg_attention_args args = {.q = tensor_of(in->x.data, batch, HEADS, queries, o->n),
                              .k = tensor_of(in->c.data, batch, HEADS, keys, o->n),
                              .v = tensor_of(in->c.data, batch, HEADS, keys, o->n),
                              .out = tensor_of(r->y.data, batch, HEADS, queries, o->n),
                              .lse = r->lse.data,
                              .dtype = o->dtype,
                              .q_descale = half,
                              .k_descale = half,
                              .v_descale = half,
                              .scale = 0.125,
                              .left = -1,
                              .right = -1,
                              .device = device_of(o),
                              .family = o->family};
  if (o->flags & MASKS) {
    args.masks = in->structures;
    args.mask_batch = BATCHES;
    args.mask_heads = 1;
  }
  const bsrg_topk_mask topk = {.batch = BATCHES,
                               .heads = 1,
                               .block_rows = o->block_rows,
                               .block_cols = o->block_cols,
                               .block_height = o->height,
                               .block_width = o->width,
                               .k = 2,
                               .columns = r->columns.data};
  if (o->flags & BY_TOPK) args.topk = &topk;
  const int32_t q_offsets[] = {0, (int32_t)(queries / 2), (int32_t)queries};
  const int64_t k_offsets[] = {0, keys / 3, keys};
  const bsrg_sequences sequences = {2, q_offsets, k_offsets, BSRG_I32, BSRG_I64, queries, keys, 1};
  if (o->flags & SEQUENCES) args.sequences = &sequences;
  return bsrg_attention(&args, error);
}

static bsrg_status run_topk(const operation *o, const inputs *in, result *r, bsrg_error *error) {
  const bsrg_topk_mask mask = {.batch = 1,
                               .heads = 1,
                               .block_rows = o->block_rows,
                               .block_cols = o->block_cols,
                               .block_height = o->height,
                               .block_width = o->width,
                               .k = 2,
                               .columns = r->columns.data};
  const bsrg_tensor scores = tensor_of(in->extra.data, 1, 1, o->block_rows, o->block_cols);
  return bsrg_topk_fill(&mask, &scores, BSRG_F32, device_of(o), NULL, error);
}

static bsrg_status use_dynamic(const operation *o, const inputs *in, bsrg_structure *made, result *r,
                               bsrg_error *error) {
  const bsrg_dense places = {in->extra.data, o->block_rows, o->block_cols, o->block_cols, 1};
  const bsrg_dense whole = {in->x.data, o->block_rows * o->height, o->block_cols * o->width,
                            o->block_cols * o->width, 1};
  bsrg_dynamic_arrays arrays;
  bsrg_status status = bsrg_dynamic_update(made, &places, NULL, error);
  if (status == BSRG_OK) status = bsrg_dynamic_update_topk(made, &places, BSRG_F32, 2, NULL, error);
  if (status == BSRG_OK) status = bsrg_dynamic_gather(made, &whole, o->dtype, r->lse.data, NULL, error);
  if (status == BSRG_OK) status = bsrg_dynamic_get(made, &arrays, error);
  for (int side = 0; side < 2 && status == BSRG_OK; ++side) {
    operation product = *o;
    product.flags |= side ? RIGHT : 0;
    const bsrg_matmul_args args = matmul_args(&product, in, made, r);
    status = bsrg_matmul(&args, error);
  }
  return status;
}

static bsrg_status run_dynamic(const operation *o, const inputs *in, result *r, bsrg_error *error) {
  bsrg_structure *made = (bsrg_structure *)r;
  const bsrg_status status =
      bsrg_dynamic_create(o->block_rows * o->height, o->block_cols * o->width, o->height, o->width,
                          in->indptr[o->block_rows], 0, &made, error);
  CHECK((status == BSRG_OK) == (made != NULL));
  r->made = made;
  return status == BSRG_OK ? use_dynamic(o, in, made, r, error) : status;
}

static bsrg_status use_memory(const inputs *in, void *memory, result *r, bsrg_error *error) {
  bsrg_gpu_info info;
  int count, index;
  const bsrg_wgmma_probe probe = {
      .dtype = BSRG_F16, .image_a = in->x.data, .image_b = in->x.data, .image_bytes = 16, .d = r->y.data};
  bsrg_status status = bsrg_gpu_copy(0, memory, in->x.data, 64, 0, NULL, error);
  if (status == BSRG_OK) status = bsrg_gpu_order_streams(0, NULL, memory, error);
  if (status == BSRG_OK) status = bsrg_gpu_copy(0, r->lse.data, memory, 4, 1, NULL, error);
  if (status == BSRG_OK) status = bsrg_gpu_synchronize(0, NULL, error);
  if (status == BSRG_OK) status = bsrg_gpu_pointer_device(memory, &index, error);
  if (status == BSRG_OK) status = bsrg_gpu_count(&count, error);
  if (status == BSRG_OK) status = bsrg_gpu_get_info(0, &info, error);
  return status == BSRG_OK ? bsrg_gpu_probe_wgmma(0, &probe, error) : status;
}

static bsrg_status run_memory(const inputs *in, result *r, bsrg_error *error) {
  void *memory = r;
  const bsrg_status status = bsrg_gpu_alloc(0, 64, NULL, &memory, error);
  CHECK((status == BSRG_OK) == (memory != NULL));
  r->memory = memory;
  return status == BSRG_OK ? use_memory(in, memory, r, error) : status;
}

bsrg_status run_operation(const operation *o, const inputs *in, result *r, bsrg_error *error) {
  switch (o->kind) {
    case CREATE:
      return run_create(o, in, r, error);
    case TRANSPOSE:
      return run_transpose(in, r, error);
    case TRANSPOSED:
      return run_transposed(in, r, error);
    case EXPLAIN:
      return run_explain(o, in, r, error);
    case MATMUL: {
      const bsrg_matmul_args args = matmul_args(o, in, in->structures[0], r);
      return bsrg_matmul(&args, error);
    }
    case MATMUL_SPARSE:
      return run_matmul_sparse(o, in, r, error);
    case SAMPLED:
      return run_sampled(o, in, r, error);
    case SOFTMAX:
      return run_softmax(o, in, r, error);
    case ATTENTION:
      return run_attention(o, in, r, error);
    case TOPK:
      return run_topk(o, in, r, error);
    case DYNAMIC:
      return run_dynamic(o, in, r, error);
    case MEMORY:
      return run_memory(in, r, error);
  }
  return BSRG_ERR_VALUE;
}
