/* Into how many parts the decode kernels split the keys, and which calls they take. */
#include <stdbool.h>
#include <string.h>

#include "attention.h"
#include "structures.h"

enum { SMS = 132 };

static int64_t splits_of(int64_t units, int64_t keys) {
  return bsrg_attention_decode_splits(units, keys, 64, 2 * SMS);
}

static void test_splits(void) {
  /* No part has fewer than 256 keys, and no keys are one part. */
  CHECK(splits_of(1, 0) == 1);
  CHECK(splits_of(1, 1) == 1);
  CHECK(splits_of(1, 511) == 1);
  CHECK(splits_of(1, 512) == 2);
  CHECK(splits_of(8, 8192) == 32);
  /* As many CTAs as fit at a time. */
  CHECK(splits_of(128, 8192) == 2);
  CHECK(splits_of(64, 8192) == 4);
  CHECK(splits_of(1, 1 << 20) > 2 * SMS - 8 && splits_of(1, 1 << 20) <= 2 * SMS);
  /* What fills the GPU by itself is not split. */
  CHECK(splits_of(2 * SMS, 8192) == 1);
  CHECK(splits_of(INT64_C(1) << 25, INT64_C(1) << 30) == 1);
  for (int64_t units = 1; units <= 1200; units += 7)
    for (int64_t keys = 0; keys <= 40000; keys = keys * 2 + 37)
      for (int64_t tile_keys = 32; tile_keys <= 64; tile_keys *= 2) {
        const int64_t splits = bsrg_attention_decode_splits(units, keys, tile_keys, 2 * SMS);
        CHECK(splits >= 1 && (splits == 1 || splits * BSRG_DECODE_SPLIT_KEYS <= keys));
        CHECK(splits == 1 || units * (splits - 1) < 2 * SMS * BSRG_DECODE_SLOT_SPLITS);
        /* The longest part is not longer for more splits than needed: fewer would make it longer. */
        CHECK(splits == 1 || keys / splits < keys / (splits - 1));
      }
}

static char memory[64];
static bsrg_tensor contiguous(int64_t batch, int64_t heads, int64_t rows, int64_t size) {
  return (bsrg_tensor){(void *)(((uintptr_t)memory + 15) / 16 * 16),
                       batch,
                       heads,
                       rows,
                       size,
                       heads * rows * size,
                       rows * size,
                       size,
                       1};
}

static bsrg_attention_args call_of(int64_t batch, int64_t heads, int64_t kv_heads, int64_t queries) {
  return (bsrg_attention_args){.q = contiguous(batch, heads, queries, 128),
                               .k = contiguous(batch, kv_heads, 8192, 128),
                               .v = contiguous(batch, kv_heads, 8192, 128),
                               .out = contiguous(batch, heads, queries, 128),
                               .dtype = BSRG_BF16};
}

static const bsrg_gpu_info gpu = {.sm_arch = 90, .sm_count = SMS};

static void judge(int line, const bsrg_attention_args *args, const char *text) {
  const char *obstacle = bsrg_attention_decode_obstacle(args, &gpu);
  if (text ? obstacle != NULL && strstr(obstacle, text) != NULL : obstacle == NULL) return;
  fprintf(stderr, "line %d: %s\n", line, obstacle ? obstacle : "no obstacle");
  ++failures;
}
#define JUDGE(change, text)                           \
  do {                                                \
    bsrg_attention_args args = call_of(16, 32, 8, 1); \
    change;                                           \
    judge(__LINE__, &args, text);                     \
  } while (0)

static void test_obstacles(void) {
  JUDGE((void)0, NULL);
  JUDGE(args.q.rows = 16, NULL);
  JUDGE(args.q.rows = 17, "at most 64 rows");
  JUDGE(args.q.rows = INT64_C(1) << 62, "at most 64 rows");
  JUDGE(args.dtype = BSRG_F8_E4M3, "float16 or bfloat16");
  JUDGE(args.q.size = 100, "multiples of 8");
  JUDGE(args.v.size = 264, "at most 256");
  JUDGE(args.v.size = 256, NULL);
  JUDGE(args.k.rows = (INT64_C(1) << 30) + 1, "2**30 keys");
  JUDGE(args.k.rows = 0, NULL);
  JUDGE(args.v.row_stride = 132, "multiples of 16 bytes");
  JUDGE(args.k.element_stride = 2, "neighbouring elements");
  JUDGE(args.out.data = memory + 1, "multiples of 16 bytes");
  JUDGE(args.k.batch = INT64_C(1) << 25, "heads of k");
}

/* A mask of one block, larger than all. */
static bsrg_structure *whole_mask(void) {
  int64_t *indptr = calloc(2, sizeof *indptr), *indices = calloc(1, sizeof *indices);
  indptr[1] = 1;
  return make_structure(1, 1, 8192, 8192, indptr, indices);
}

/* Heads of q are together where they share their masks, and one by one else, up to 64 queries. */
static void test_masks(void) {
  enum { HEADS = 32 };
  bsrg_structure *one = whole_mask(), *other = whole_mask(), *masks[HEADS];
  for (int i = 0; i < HEADS; ++i) masks[i] = one;
  const bsrg_topk_mask topk = {.batch = 1, .heads = HEADS, .block_height = 64, .block_width = 64};
#define SUITS(change, expected)                                   \
  do {                                                            \
    bsrg_attention_args args = call_of(16, HEADS, 8, 1);          \
    args.masks = masks, args.mask_batch = 1, args.mask_heads = 1; \
    change;                                                       \
    CHECK(bsrg_attention_decode_obstacle(&args, &gpu) == NULL);   \
    CHECK(bsrg_attention_decode_suits(&args, &gpu) == expected);  \
  } while (0)
  SUITS((void)0, true);
  SUITS(args.mask_heads = HEADS, true);
  /* 128 units of 32 rows, or 512 of as many rows as there are queries. */
  SUITS(args.q.rows = 16, true);
  SUITS((args.q.rows = 16, args.mask_heads = HEADS), true);
  SUITS(args.q.rows = 17, false);
  SUITS((args.topk = &topk, args.masks = NULL, args.mask_heads = HEADS, args.q.rows = 16), true);
  SUITS((args.topk = &topk, args.masks = NULL, args.mask_heads = HEADS, args.q.rows = 17), false);
  SUITS((args.topk = &topk, args.masks = NULL, args.q.rows = 16), true);
  /* One for each head of k: 128 units of 64 rows, or 512 of 17. */
  SUITS((args.mask_heads = 8, args.q.rows = 16), true);
  SUITS((args.mask_heads = 8, args.q.rows = 17), false);
  SUITS((args.topk = &topk, args.masks = NULL, args.mask_heads = 8, args.q.rows = 16), true);
  /* More units than SMs, of 20 or of 20 x 4 rows, or of each head. */
  SUITS((args.q.batch = args.k.batch = 17, args.q.rows = 5), true);
  SUITS((args.q.batch = args.k.batch = 17, args.q.rows = 20), false);
  SUITS((args.q.batch = args.k.batch = 17, args.q.rows = 5, args.mask_heads = HEADS), true);
  masks[HEADS - 1] = other;
  SUITS((args.q.batch = args.k.batch = 17, args.q.rows = 5, args.mask_heads = HEADS), true);
#undef SUITS
#define MASKED (args.masks = masks, args.mask_batch = 1, args.mask_heads = 1)
  JUDGE((MASKED, args.q.rows = 64), NULL);
  JUDGE((MASKED, args.q.rows = 65), "at most 64 queries");
  JUDGE((MASKED, args.k.rows = 0), NULL);
  JUDGE((MASKED, args.q.size = 100), "multiples of 8");
  JUDGE((MASKED, args.k.batch = INT64_C(1) << 25), "heads of q");
#undef MASKED
  bsrg_structure_destroy(one);
  bsrg_structure_destroy(other);
}

/* Few rows always; more of them only where heads do not fill the GPU. */
static void test_suits(void) {
  static const struct {
    int64_t batch, heads, kv_heads, queries;
    bool suits;
  } calls[] = {{1, 32, 8, 1, true},  {16, 32, 8, 1, true},   {64, 32, 8, 1, true},   {64, 64, 64, 16, true},
               {1, 32, 8, 16, true}, {16, 32, 8, 16, true},  {17, 32, 8, 16, false}, {33, 32, 4, 2, true},
               {1, 64, 1, 1, true},  {132, 64, 1, 1, false}, {128, 17, 1, 1, true},  {132, 17, 1, 1, false}};
  for (size_t i = 0; i < sizeof(calls) / sizeof(calls[0]); ++i) {
    const bsrg_attention_args args =
        call_of(calls[i].batch, calls[i].heads, calls[i].kv_heads, calls[i].queries);
    CHECK(bsrg_attention_decode_suits(&args, &gpu) == calls[i].suits);
  }
}

int main(void) {
  test_splits();
  test_obstacles();
  test_suits();
  test_masks();
  if (failures > 0) fprintf(stderr, "%d failures\n", failures);
  return failures > 0;
}
