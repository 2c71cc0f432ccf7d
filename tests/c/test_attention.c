/* Attention on the CPU: random calls against sums in double precision, on every instruction set of the processor, in
 * memory that ends with the last element; and that calls which no backend could survive are refused. */
#define _GNU_SOURCE
#include <float.h>

#include "cpu_operands.h"

/* ---- operands ---------------------------------------------------------------------------------- */

typedef struct tensor {
  bsrg_tensor view;
  bsrg_dtype dtype;
  char *memory;
  int64_t bytes;
} tensor;

/* Dimensions in a random order in memory, some of them padded; what lies between elements is NaN. */
static tensor new_tensor(int64_t batch, int64_t heads, int64_t rows, int64_t size, bsrg_dtype dtype) {
  tensor t = {{NULL, batch, heads, rows, size, 0, 0, 0, 0}, dtype, NULL, 0};
  const int64_t shape[4] = {batch, heads, rows, size};
  int64_t *const strides[4] = {&t.view.batch_stride, &t.view.head_stride, &t.view.row_stride,
                               &t.view.element_stride};
  int order[4] = {3, 2, 1, 0};
  for (int i = 3; i > 0 && random_below(2); --i) {
    const int j = (int)random_below(i + 1), moved = order[i];
    order[i] = order[j];
    order[j] = moved;
  }
  int64_t stride = random_below(4) ? 1 : 2, reach = 0;
  for (int i = 0; i < 4; ++i) {
    *strides[order[i]] = stride;
    reach += stride * bsrg_max(shape[order[i]] - 1, 0);
    stride = stride * bsrg_max(shape[order[i]], 1) + (random_below(3) ? 0 : random_below(9));
  }
  t.bytes = batch * heads * rows * size > 0 ? (reach + 1) * (int64_t)bsrg_dtype_size(dtype) : 0;
  t.memory = allocate(t.bytes);
  memset(t.memory, 0xff, (size_t)t.bytes);
  t.view.data = t.memory;
  return t;
}

static int64_t place(const tensor *t, int64_t b, int64_t h, int64_t i, int64_t d) {
  const bsrg_tensor *v = &t->view;
  return b * v->batch_stride + h * v->head_stride + i * v->row_stride + d * v->element_stride;
}
static double at4(const tensor *t, int64_t b, int64_t h, int64_t i, int64_t d) {
  return get(t->view.data, t->dtype, place(t, b, h, i, d));
}

static void fill_tensor(tensor *t) {
  for (int64_t b = 0; b < t->view.batch; ++b)
    for (int64_t h = 0; h < t->view.heads; ++h)
      for (int64_t i = 0; i < t->view.rows; ++i)
        for (int64_t d = 0; d < t->view.size; ++d)
          set(t->view.data, t->dtype, place(t, b, h, i, d), 2 * random_real());
}

/* ---- one call against its definition ------------------------------------------------------------ */

static bool sees(const bsrg_attention_args *args, int64_t b, int64_t h, int64_t i, int64_t j) {
  if (args->left >= 0 && j < i + args->diagonal - args->left) return false;
  if (args->right >= 0 && j > i + args->diagonal + args->right) return false;
  if (args->masks == NULL) return true;
  const int64_t of_batch = args->mask_batch == 1 ? 0 : b, of_head = h / (args->q.heads / args->mask_heads);
  const bsrg_structure *structure = args->masks[of_batch * args->mask_heads + of_head];
  const bsrg_structure_view mask = bsrg_structure_get(structure);
  const int64_t row = i / mask.block_height;
  for (int64_t p = mask.indptr[row]; p < mask.indptr[row + 1]; ++p)
    if (mask.indices[p] == j / mask.block_width) return true;
  return false;
}

/* Compares one row of the result with its definition. */
static void check_row(const bsrg_attention_args *args, const tensor *t, int64_t b, int64_t h, int64_t i) {
  const tensor *q = &t[0], *k = &t[1], *v = &t[2], *out = &t[3];
  const int64_t keys = k->view.rows, head = h / (q->view.heads / k->view.heads);
  double *weights = allocate(keys * (int64_t)sizeof *weights);
  double total = 0, largest = -INFINITY;
  for (int64_t j = 0; j < keys; ++j) {
    double score = 0;
    for (int64_t d = 0; d < q->view.size; ++d) score += at4(q, b, h, i, d) * at4(k, b, head, j, d);
    score *= args->scale;
    if (args->softcap > 0) score = args->softcap * tanh(score / args->softcap);
    weights[j] = sees(args, b, h, i, j) ? score : -INFINITY;
    largest = fmax(largest, weights[j]);
  }
  for (int64_t j = 0; j < keys; ++j) {
    weights[j] = weights[j] == -INFINITY ? 0 : exp(weights[j] - largest);
    total += weights[j];
  }
  const double unit = args->dtype == BSRG_F64   ? 0x1p-47
                      : args->dtype == BSRG_F32 ? 0x1p-20
                      : args->dtype == BSRG_F16 ? 0x1p-10
                                                : 0x1p-7;
  /* The larger a score, the more its rounding changes its weight. */
  const double limit = unit * (total == 0 ? 4 : 4 + fabs(largest) / 4);
  bool right = true;
  for (int64_t d = 0; d < v->view.size; ++d) {
    double sum = 0;
    for (int64_t j = 0; j < keys; ++j) sum += weights[j] * at4(v, b, head, j, d);
    const double expected = total == 0 ? 0 : sum / total;
    right = right && fabs(at4(out, b, h, i, d) - expected) <= limit;
  }
  CHECK(right);
  if (args->lse != NULL) {
    const double found = args->lse[(b * q->view.heads + h) * q->view.rows + i];
    CHECK(total == 0 ? found == -INFINITY : fabs(found - (largest + log(total))) <= 1e-4);
  }
  free(weights);
}

static void check_call(bsrg_dtype dtype) {
  static const double kCaps[] = {0, 0, 0, 0, 1e-3, 1.5, 1e6, 1e30};
  const int64_t batch = random_between(1, 2), kv_heads = random_between(1, 2);
  const int64_t heads = kv_heads * random_between(1, 3), queries = random_between(1, 70);
  const int64_t keys = random_between(0, 150), size = random_between(1, 40),
                value_size = random_between(1, 70);
  tensor t[4] = {new_tensor(batch, heads, queries, size, dtype),
                 new_tensor(batch, kv_heads, keys, size, dtype),
                 new_tensor(batch, kv_heads, keys, value_size, dtype),
                 new_tensor(batch, heads, queries, value_size, dtype)};
  for (int i = 0; i < 3; ++i) fill_tensor(&t[i]);
  bsrg_attention_args args = {.q = t[0].view,
                              .k = t[1].view,
                              .v = t[2].view,
                              .out = t[3].view,
                              .dtype = dtype,
                              .scale = random_real(),
                              .softcap = kCaps[random_below(8)],
                              .diagonal = random_between(-80, 80),
                              .left = random_below(2) ? -1 : random_between(0, 90),
                              .right = random_below(2) ? -1 : random_between(0, 90),
                              .mask_batch = 1,
                              .mask_heads = 1};
  if (random_below(2)) args.lse = allocate(batch * heads * queries * (int64_t)sizeof(float));
  sparse masks[12];
  bsrg_structure *structures[12];
  if (random_below(2)) {
    static const int64_t kSides[] = {1, 3, 8, 16, 33, 64, 200};
    const int64_t height = kSides[random_below(7)], width = kSides[random_below(7)];
    const int64_t block_cols = bsrg_ceil_div(keys, width);
    if (random_below(2)) args.mask_batch = batch;
    args.mask_heads = (const int64_t[]){1, kv_heads, heads}[random_below(3)];
    for (int64_t m = 0; m < args.mask_batch * args.mask_heads; ++m) {
      masks[m] = new_sparse(bsrg_ceil_div(queries, height), block_cols, height, width,
                            random_between(0, block_cols), false, BSRG_F16, true);
      structures[m] = masks[m].structure;
    }
    args.masks = structures;
  }
  bsrg_set_num_threads((int)random_between(1, 4), NULL);
  bsrg_error error = {""};
  const bsrg_status status = bsrg_attention(&args, &error);
  if (status != BSRG_OK) fprintf(stderr, "%s\n", error.message);
  CHECK(status == BSRG_OK);
  for (int64_t b = 0; b < batch && status == BSRG_OK; ++b)
    for (int64_t h = 0; h < heads; ++h)
      for (int64_t i = 0; i < queries; ++i) check_row(&args, t, b, h, i);
  /* Between its elements out is as it was. */
  const int64_t item = (int64_t)bsrg_dtype_size(dtype);
  for (int64_t b = 0; b < batch; ++b)
    for (int64_t h = 0; h < heads; ++h)
      for (int64_t i = 0; i < queries; ++i)
        for (int64_t d = 0; d < value_size; ++d)
          memset(t[3].memory + place(&t[3], b, h, i, d) * item, 0xff, (size_t)item);
  bool untouched = true;
  for (int64_t i = 0; i < t[3].bytes; ++i) untouched = untouched && (unsigned char)t[3].memory[i] == 0xff;
  CHECK(untouched);
  for (int64_t m = 0; args.masks != NULL && m < args.mask_batch * args.mask_heads; ++m)
    free_sparse(&masks[m]);
  for (int i = 0; i < 4; ++i) free(t[i].memory);
  free(args.lse);
}

static void random_calls(void) {
  static const bsrg_dtype kTypes[] = {BSRG_F16, BSRG_BF16, BSRG_F32, BSRG_F64};
  for (int i = 0; i < 240; ++i) check_call(kTypes[i % 4]);
}

/* ---- refusals ---------------------------------------------------------------------------------- */

/* All operands in one arena, so that any overlap can be made. */
enum { BATCH = 2, HEADS = 4, KV_HEADS = 2, QUERIES = 5, KEYS = 6, SIZE = 3, VALUES = 2 };
static float arena[1000];
static bsrg_structure *mask, *unsorted;
static bsrg_structure *mask_list[BATCH * HEADS];

static bsrg_tensor contiguous(float *data, int64_t heads, int64_t rows, int64_t size) {
  return (bsrg_tensor){data, BATCH, heads, rows, size, heads * rows * size, rows * size, size, 1};
}

static bsrg_attention_args good(void) {
  for (int i = 0; i < BATCH * HEADS; ++i) mask_list[i] = mask;
  return (bsrg_attention_args){.q = contiguous(arena, HEADS, QUERIES, SIZE),
                               .k = contiguous(arena + 200, KV_HEADS, KEYS, SIZE),
                               .v = contiguous(arena + 400, KV_HEADS, KEYS, VALUES),
                               .out = contiguous(arena + 600, HEADS, QUERIES, VALUES),
                               .lse = arena + 800,
                               .dtype = BSRG_F32,
                               .scale = 1,
                               .left = -1,
                               .right = -1,
                               .masks = mask_list,
                               .mask_batch = BATCH,
                               .mask_heads = HEADS};
}

static void judge(int line, const bsrg_attention_args *args, bsrg_status status, const char *text) {
  bsrg_error error = {""};
  const bsrg_status found = bsrg_attention(args, &error);
  if (found == status && strstr(error.message, text) != NULL && bsrg_attention(args, NULL) == status) return;
  fprintf(stderr, "line %d: status %d, \"%s\" instead of \"%s\"\n", line, (int)found, error.message, text);
  ++failures;
}

#define REFUSE_AS(change, status, text)       \
  do {                                        \
    bsrg_attention_args args = good();        \
    change;                                   \
    judge(__LINE__, &args, (status), (text)); \
  } while (0)
#define REFUSE(change, text) REFUSE_AS(change, BSRG_ERR_VALUE, text)
#define ACCEPT(change) REFUSE_AS(change, BSRG_OK, "")

static void refusals(void) {
  ACCEPT((void)0);
  REFUSE_AS(args.dtype = (bsrg_dtype)9, BSRG_ERR_TYPE, "dtype is 9");
  REFUSE(args.device.kind = (bsrg_device_kind)9, "device is kind 9");
  REFUSE(args.family = BSRG_TALL, "attention has 'auto', 'hopper', 'decode', 'portable' and 'cpu'");
  REFUSE(args.family = (bsrg_family)-1, "family is -1");
  REFUSE(args.family = BSRG_ATTENTION_HOPPER, "family is 'hopper', but the operands are on cpu");
  REFUSE(args.family = BSRG_ATTENTION_DECODE, "family is 'decode', but the operands are on cpu");
  REFUSE((args.family = BSRG_HOST, args.device.kind = BSRG_CUDA),
         "family is 'cpu', but the operands are on cuda");
  ACCEPT(args.family = BSRG_HOST);

  REFUSE(args.q.size = 0, "q has shape (batch, heads, rows, size) = (2, 4, 5, 0), but the size must be");
  REFUSE(args.v.size = -1, "v has shape");
  REFUSE(args.k.size = 2, "k has shape (batch, heads, keys, size) = (2, 2, 6, 2) and q (2, 4, 5, 3)");
  REFUSE(args.k.batch = 1, "both must have one batch and one size");
  REFUSE(args.v.rows = 5, "one number of heads and one of keys");
  REFUSE(args.v.heads = 1, "one number of heads and one of keys");
  REFUSE((args.k.heads = 3, args.v.heads = 3), "q has 4 heads and k 3");
  REFUSE((args.k.heads = 0, args.v.heads = 0), "q has 4 heads and k 0");
  REFUSE(args.out.rows = 6, "out has shape (2, 4, 6, 2), but the result has shape (2, 4, 5, 2)");
  REFUSE((args.q.rows = -1, args.out.rows = -1), "all numbers must be at least 0");
  REFUSE((args.k.rows = (INT64_C(1) << 40) + 1, args.k.row_stride = 0, args.v.rows = args.k.rows),
         "at most 2**40");
  REFUSE((args.v.size = args.out.size = (1 << 20) + 1), "a size of at most 2**20");

  REFUSE(args.scale = NAN, "scale is nan");
  REFUSE(args.scale = INFINITY, "scale is inf");
  REFUSE(args.softcap = -1, "softcap is -1");
  REFUSE(args.softcap = NAN, "softcap is nan");
  REFUSE(args.softcap = 3.41e38, "softcap is 3.41e+38, but must be from 1.4013e-45 to 3.40282e+38");
  REFUSE(args.softcap = 1e-46, "softcap is 1e-46, but must be from");
  ACCEPT(args.softcap = FLT_MAX);
  ACCEPT(args.softcap = FLT_TRUE_MIN);

  REFUSE(args.mask_heads = 3,
         "block_mask has leading dimensions (2, 3), but must have (1 or 2, 1 or 2 or 4), "
         "the batch of q and the heads of k or q");
  REFUSE(
      (args.mask_heads = 3, args.k.heads = 1, args.v.heads = 1),
      "block_mask has leading dimensions (2, 3), but must have (1 or 2, 1 or 4), the batch and heads of q");
  REFUSE((args.mask_heads = 2, args.k.heads = 1, args.v.heads = 1), "leading dimensions (2, 2)");
  ACCEPT(args.mask_heads = KV_HEADS);
  REFUSE((args.mask_heads = 3,
          args.mask_batch = args.q.batch = args.k.batch = args.v.batch = args.out.batch = 1),
         "block_mask has leading dimensions (1, 3), but must have (1, 1 or 2 or 4), the batch");
  REFUSE(args.mask_batch = 0, "leading dimensions (0, 4)");
  REFUSE(mask_list[3] = NULL, "block_mask 3 is NULL");
  REFUSE(mask_list[3] = unsorted, "block_mask has block columns that are unsorted within a block row");
  REFUSE((args.q.rows = 4, args.out.rows = 4),
         "block_mask has (3, 2) blocks of (2, 3), but 4 queries and 6 keys");
  ACCEPT((args.k.rows = 5, args.v.rows = 5)); /* rounded up, as many blocks */
  ACCEPT((args.mask_batch = 1, args.mask_heads = 1));
  ACCEPT(args.masks = NULL);

  static const int32_t offsets[] = {0, QUERIES};
  static const bsrg_sequences one = {
      .count = 1, .q_offsets = offsets, .k_offsets = offsets, .max_queries = QUERIES, .max_keys = QUERIES};
  static const bsrg_sequences no_offsets = {.count = 1, .q_offsets = offsets};
  static const bsrg_topk_mask topk;
  REFUSE(args.sequences = &one, "block_mask and cu_seqlens_q are both given");
  REFUSE((args.masks = NULL, args.topk = &topk, args.sequences = &one),
         "block_mask and cu_seqlens_q are both given");
  REFUSE((args.masks = NULL, args.sequences = &one), "there are 1 sequences in 2 batches");
  REFUSE((args.masks = NULL, args.sequences = &no_offsets),
         "cu_seqlens_k has elements, but its pointer is NULL");

  REFUSE(args.q.data = NULL, "q has elements, but its pointer is NULL");
  REFUSE(args.k.data = (char *)arena + 2, "k starts at address");
  REFUSE(args.v.row_stride = INT64_MAX, "v has shape (2, 2, 6, 2) and strides");
  REFUSE(args.lse = (float *)((char *)arena + 2), "lse starts at address");
  REFUSE(args.out.row_stride = 1, "which may put several elements at one address");
  REFUSE(args.out.head_stride = 0, "which may put several elements at one address");
  REFUSE(args.out.data = arena, "out overlaps q in memory");
  REFUSE(args.out.data = arena + 200 + 71, "out overlaps k in memory");
  REFUSE(args.out.data = args.lse, "out overlaps lse in memory");
  REFUSE(args.lse = arena + 400, "lse overlaps v in memory");
  ACCEPT(args.k.row_stride = 0);
  ACCEPT(args.left = INT64_MAX);
  ACCEPT((args.diagonal = INT64_MIN, args.left = args.right = INT64_MAX));
  ACCEPT((args.diagonal = INT64_MAX, args.left = args.right = INT64_MAX));
  ACCEPT((args.diagonal = INT64_MIN, args.left = args.right = 0));
  /* q, k, v and out beside one another in rows of one larger tensor: (batch, rows, 4, heads, size). */
  ACCEPT((args.k = args.v = args.q = args.out = (bsrg_tensor){arena, 2, 4, 5, 2, 160, 2, 32, 1},
          args.k.data = arena + 8, args.v.data = arena + 16, args.out.data = arena + 24, args.masks = NULL));
  REFUSE((args.k = args.v = args.q = args.out = (bsrg_tensor){arena, 2, 4, 5, 2, 160, 2, 32, 1},
          args.k.data = arena + 8, args.v.data = arena + 16, args.out.data = arena + 23, args.masks = NULL),
         "out overlaps v in memory");
}

int main(void) {
  static const int32_t indptr[] = {0, 1, 2, 3}, indices[] = {0, 1, 0};
  const bsrg_pattern pattern = {6, 6, 2, 3, 3, 4, BSRG_I32, indices, indptr};
  const int failed = run_on_every_isa(random_calls); /* first: calls in this process would choose for all */
  static const int32_t descending_indptr[] = {0, 2, 3, 3}, descending[] = {1, 0, 0};
  const bsrg_pattern other = {6, 6, 2, 3, 3, 4, BSRG_I32, descending, descending_indptr};
  CHECK(bsrg_structure_create(&pattern, 1, &mask, NULL) == BSRG_OK);
  CHECK(bsrg_structure_create(&other, 0, &unsorted, NULL) == BSRG_OK);
  refusals();
  bsrg_structure_destroy(mask);
  bsrg_structure_destroy(unsorted);
  if (failures > 0) fprintf(stderr, "%d failures\n", failures);
  return failed || failures > 0;
}
