/* bsrg_matmul_sparse refuses every call that a backend could not survive, and no other; the masks of structures. */
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "bsrgemm.h"
#include "check.h"
#include "cpu/cpu.h"
#include "pairs.h"
#include "structures.h"

enum { M = 4, K = 6, N = 10, PITCH = 12 };

/* A = two blocks of 2 x 3 on the diagonal, B = two of 3 x 5. All operands lie in one arena, so that any overlap can be
 * made. */
static float arena[400];
static float *const kA = arena, *const kB = arena + 50, *const kC = arena + 100, *const kY = arena + 200;
static bsrg_structure *a_structure, *b_structure;

static bsrg_structure *diagonal(int64_t rows, int64_t cols, int64_t height, int64_t width) {
  const int32_t indices[] = {0, 1}, indptr[] = {0, 1, 2};
  const bsrg_pattern pattern = {rows, cols, height, width, 2, 3, BSRG_I32, indices, indptr};
  bsrg_structure *made;
  if (bsrg_structure_create(&pattern, 1, &made, NULL) != BSRG_OK) abort();
  return made;
}

static bsrg_matmul_sparse_args good(void) {
  return (bsrg_matmul_sparse_args){
      .a = a_structure,
      .b = b_structure,
      .a_values = kA,
      .b_values = kB,
      .dtype = BSRG_F32,
      .c = {kC, M, N, PITCH, 1},
      .y = {kY, M, N, PITCH, 1},
      .alpha = 1,
      .beta = 0.5,
      .device = {BSRG_CPU, 0},
  };
}

static void refuse(int line, const bsrg_matmul_sparse_args *args, bsrg_status status, const char *text) {
  bsrg_error error = {""};
  const bsrg_status found = bsrg_matmul_sparse(args, &error);
  if (found == status && strstr(error.message, text) != NULL && bsrg_matmul_sparse(args, NULL) == status)
    return;
  fprintf(stderr, "line %d: status %d, \"%s\" instead of \"%s\"\n", line, (int)found, error.message, text);
  ++failures;
}

/* Changes one thing in a good call and expects a refusal. */
#define REFUSE(change, status, text)           \
  do {                                         \
    bsrg_matmul_sparse_args args = good();     \
    change;                                    \
    refuse(__LINE__, &args, (status), (text)); \
  } while (0)
#define ACCEPT(change)                                           \
  do {                                                           \
    bsrg_matmul_sparse_args args = good();                       \
    change;                                                      \
    bsrg_error error = {""};                                     \
    if (bsrg_matmul_sparse(&args, &error) != BSRG_OK) {          \
      fprintf(stderr, "line %d: %s\n", __LINE__, error.message); \
      ++failures;                                                \
    }                                                            \
  } while (0)

static void test_arguments(void) {
  REFUSE(args.a = NULL, BSRG_ERR_VALUE, "a is NULL");
  REFUSE(args.b = NULL, BSRG_ERR_VALUE, "b is NULL");
  REFUSE(args.dtype = BSRG_F8_E4M3, BSRG_ERR_TYPE, "dtype is 4");
  REFUSE(args.device.kind = (bsrg_device_kind)9, BSRG_ERR_VALUE, "device is kind 9");
  REFUSE(args.family = BSRG_TALL, BSRG_ERR_VALUE, "'tall', but products of two block-sparse matrices");
  REFUSE(args.family = BSRG_PAIRS, BSRG_ERR_VALUE, "'pairs', but the operands are on cpu");
  REFUSE((args.family = BSRG_HOST, args.device.kind = BSRG_CUDA), BSRG_ERR_VALUE, "on cuda:0");
  ACCEPT(args.family = BSRG_HOST);
}

static void test_shapes(void) {
  REFUSE(args.b = a_structure, BSRG_ERR_VALUE, "b has shape (K, N) = (4, 6), but a has 6 columns");
  bsrg_structure *other = diagonal(6, 10, 3, 5), *halves;
  const int32_t indices[] = {0}, indptr[] = {0, 1, 1, 1};
  const bsrg_pattern pattern = {6, 10, 2, 5, 1, 4, BSRG_I32, indices, indptr};
  if (bsrg_structure_create(&pattern, 1, &halves, NULL) != BSRG_OK) abort();
  REFUSE(args.b = halves, BSRG_ERR_VALUE, "b has blocksize (2, 5), but the blocks of b must be as high");
  ACCEPT(args.b = other);
  bsrg_structure_destroy(halves);
  bsrg_structure_destroy(other);
  REFUSE(args.y.rows = 3, BSRG_ERR_VALUE, "out has shape (3, 10), but a @ b has shape (4, 10)");
  REFUSE(args.c.cols = 9, BSRG_ERR_VALUE, "c has shape (4, 9)");
  REFUSE((args.c = (bsrg_dense){NULL, 0, 0, 0, 0}), BSRG_ERR_VALUE, "c is not given");
  ACCEPT((args.c = (bsrg_dense){NULL, 0, 0, 0, 0}, args.beta = 0));
}

static void test_memory(void) {
  REFUSE(args.a_values = NULL, BSRG_ERR_VALUE, "a.data has elements, but its pointer is NULL");
  REFUSE(args.b_values = (char *)kB + 2, BSRG_ERR_VALUE, "b.data starts at address");
  REFUSE(args.y.data = kA, BSRG_ERR_VALUE, "out overlaps a.data");
  REFUSE(args.y.data = kB + 29, BSRG_ERR_VALUE, "out overlaps b.data");
  REFUSE(args.y.data = kC + 1, BSRG_ERR_VALUE, "out overlaps c");
  REFUSE(args.y.row_stride = 0, BSRG_ERR_VALUE, "out has shape (4, 10) and strides (0, 1)");
  ACCEPT(args.y.data = kC);
  ACCEPT((args.y.data = kC + 1, args.beta = 0));
  ACCEPT(args.b_values = kA + 2);
}

/* Bits, counts before a word and the stored order of a view, against the structure itself. */
static void check_index(bsrg_structure *structure) {
  const bsrg_structure_view *v = &structure->view;
  const bsrg_pair_index *index;
  CHECK(bsrg_pair_index_get(structure, &index, NULL) == BSRG_OK);
  const bsrg_pair_index *again;
  CHECK(bsrg_pair_index_get(structure, &again, NULL) == BSRG_OK && again == index);
  CHECK(bsrg_pair_mask_bytes(v) == 8 * v->block_rows * index->words);
  int64_t counted = 0;
  for (int64_t i = 0; i < v->block_rows; ++i) {
    int64_t p = v->indptr[i];
    for (int64_t k = 0; k < 32 * index->words; ++k) {
      const int64_t word = i * index->words + k / 32;
      if (k % 32 == 0) CHECK(index->first[word] == p);
      if (!(index->bits[word] >> k % 32 & 1)) continue;
      CHECK(k < v->block_cols && v->indices[p] == k);
      if (v->order) CHECK(index->order[p] == v->order[p]);
      ++p;
      ++counted;
    }
  }
  CHECK(counted == v->nnzb && (index->order == NULL) == (v->order == NULL));
  if (!index->tiles) return;
  char *seen = calloc((size_t)index->row_tiles, 1);
  for (int64_t t = 0; t < index->row_tiles; ++t) seen[index->tiles[t]] = 1;
  for (int64_t t = 0; t < index->row_tiles; ++t) CHECK(seen[t]);
  free(seen);
}

static void test_index(void) {
  enum { ROWS = 9, COLS = 70 };
  for (int skewed = 0; skewed < 2; ++skewed) {
    int32_t indices[ROWS * COLS], indptr[ROWS + 1] = {0};
    int64_t nnzb = 0;
    for (int i = 0; i < ROWS; ++i) {
      for (int j = 0; j < COLS; ++j)
        if (skewed ? i == 4 || (i + j) % 35 == 0 : (i * 7 + j * 5) % 3 == 0) indices[nnzb++] = j;
      indptr[i + 1] = (int32_t)nnzb;
    }
    const bsrg_pattern pattern = {ROWS * 192, COLS * 64, 192, 64, nnzb, ROWS + 1, BSRG_I32, indices, indptr};
    bsrg_structure *made, *transposed;
    if (bsrg_structure_create(&pattern, 1, &made, NULL) != BSRG_OK) abort();
    if (bsrg_structure_transposed(made, &transposed, NULL) != BSRG_OK) abort();
    check_index(made);
    check_index(transposed);
    const bsrg_pair_index *index;
    CHECK(bsrg_pair_index_get(made, &index, NULL) == BSRG_OK);
    /* Strips 12 to 14 are the long block row's: tiles 6 and 7 of two strips. */
    CHECK((index->tiles != NULL) == (skewed == 1));
    if (index->tiles) CHECK(index->tiles[0] == 6 && index->tiles[1] == 7);
    bsrg_structure_destroy(made);
  }
}

/* Of small blocks B is written out, unless A has what zeros would turn into NaN. */
static void test_spread(void) {
  static const int64_t sides[] = {1, 4, 64, 128};
  for (size_t i = 0; i < sizeof(sides) / sizeof(sides[0]); ++i) {
    const int64_t side = sides[i], blocks = 1024 / side, of_row = bsrg_max(1, blocks / 8);
    int64_t *indptr = malloc(sizeof(*indptr) * (size_t)(blocks + 1));
    int64_t *indices = malloc(sizeof(*indices) * (size_t)(blocks * of_row));
    for (int64_t row = 0; row <= blocks; ++row) indptr[row] = row * of_row;
    for (int64_t b = 0; b < blocks * of_row; ++b) indices[b] = b % of_row * (blocks / of_row);
    bsrg_structure *made = make_structure(blocks, blocks, side, side, indptr, indices);
    const int64_t count = blocks * of_row * side * side;
    const bsrg_dtype dtypes[] = {BSRG_F32, BSRG_F64, BSRG_F16, BSRG_BF16};
    const uint64_t infinities[] = {0x7f800000, 0x7ff0000000000000, 0x7c00, 0x7f80};
    for (size_t d = 0; d < sizeof(dtypes) / sizeof(dtypes[0]); ++d) {
      const size_t item = bsrg_dtype_size(dtypes[d]);
      char *values = calloc((size_t)count, item);
      const bsrg_matmul_sparse_args args = {
          .a = made, .b = made, .a_values = values, .b_values = values, .dtype = dtypes[d]};
      CHECK(bsrg_cpu_spread_pays(&args) == (side <= 4));
      memcpy(values + (size_t)(count - 1) * item, &infinities[d], item); /* little-endian */
      CHECK(!bsrg_cpu_spread_pays(&args));
      free(values);
    }
    bsrg_structure_destroy(made);
  }
}

int main(void) {
  a_structure = diagonal(M, K, 2, 3);
  b_structure = diagonal(K, N, 3, 5);
  test_arguments();
  test_shapes();
  test_memory();
  test_index();
  test_spread();
  bsrg_structure_destroy(a_structure);
  bsrg_structure_destroy(b_structure);
  return failures != 0;
}
