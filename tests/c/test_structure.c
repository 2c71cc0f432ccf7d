/* Structures: every defect is refused with a message that says where it is, and transposes are right. */
#include <inttypes.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>

#include "bsrgemm.h"
#include "check.h"

/* A copy on the heap without a byte to spare, so that the sanitizer sees any read past the end. */
static void *copy_exactly(const int64_t *numbers, int64_t count, bsrg_index_type type) {
  const size_t item = type == BSRG_I32 ? sizeof(int32_t) : sizeof(int64_t);
  char *copy = malloc(count > 0 ? (size_t)count * item : 1);
  if (copy == NULL) abort();
  for (int64_t i = 0; i < count; ++i) {
    const int32_t narrow = (int32_t)numbers[i];
    memcpy(copy + (size_t)i * item, type == BSRG_I32 ? (const void *)&narrow : (const void *)&numbers[i],
           item);
  }
  return copy;
}

typedef struct sample {
  int64_t rows, cols, block_height, block_width;
  int64_t indptr_len, nnzb;
  const int64_t *indptr, *indices;
} sample;

static bsrg_status create(const sample *s, bsrg_index_type type, int check, bsrg_structure **out,
                          bsrg_error *error) {
  void *indptr = copy_exactly(s->indptr, s->indptr_len, type);
  void *indices = copy_exactly(s->indices, s->nnzb, type);
  const bsrg_pattern pattern = {s->rows,       s->cols, s->block_height, s->block_width, s->nnzb,
                                s->indptr_len, type,    indices,         indptr};
  const bsrg_status status = bsrg_structure_create(&pattern, check, out, error);
  free(indptr);
  free(indices);
  return status;
}

#define NUMBERS(...) \
  (const int64_t[]) { __VA_ARGS__ }

/* 3 x 4 blocks of 2 x 5: [0 2] [] [1 2 3]. */
static const sample kGood = {6, 20, 2, 5, 4, 5, NUMBERS(0, 2, 2, 5), NUMBERS(0, 2, 1, 2, 3)};

static void test_good(void) {
  for (int type = BSRG_I32; type <= BSRG_I64; ++type) {
    bsrg_structure *structure;
    CHECK(create(&kGood, (bsrg_index_type)type, 1, &structure, NULL) == BSRG_OK);
    const bsrg_structure_view view = bsrg_structure_get(structure);
    CHECK(view.rows == 6 && view.cols == 20 && view.block_height == 2 && view.block_width == 5);
    CHECK(view.block_rows == 3 && view.block_cols == 4 && view.nnzb == 5 && view.longest_row == 3);
    for (int i = 0; i < 4; ++i) CHECK(view.indptr[i] == kGood.indptr[i]);
    for (int i = 0; i < 5; ++i) CHECK(view.indices[i] == kGood.indices[i]);
    bsrg_structure_destroy(structure);
  }
  bsrg_structure_destroy(NULL);
}

/* What is wrong with the good sample, and what the message must say. */
static const struct defect {
  sample sample;
  const char *message;
  bool content; /* check = 0 lets it pass */
} kDefects[] = {
    {{6, 20, 0, 5, 4, 5, NUMBERS(0, 2, 2, 5), NUMBERS(0, 2, 1, 2, 3)}, "blocksize is (0, 5)", false},
    {{6, 20, 2, -5, 4, 5, NUMBERS(0, 2, 2, 5), NUMBERS(0, 2, 1, 2, 3)}, "blocksize is (2, -5)", false},
    {{6, 20, 2, INT64_MAX, 4, 5, NUMBERS(0, 2, 2, 5), NUMBERS(0, 2, 1, 2, 3)}, "from 1 to 2147483647", false},
    {{-6, 20, 2, 5, 4, 5, NUMBERS(0, 2, 2, 5), NUMBERS(0, 2, 1, 2, 3)}, "shape is (-6, 20)", false},
    {{6, INT64_MIN, 2, 5, 4, 5, NUMBERS(0, 2, 2, 5), NUMBERS(0, 2, 1, 2, 3)}, "must be at least 0", false},
    {{7, 20, 2, 5, 4, 5, NUMBERS(0, 2, 2, 5), NUMBERS(0, 2, 1, 2, 3)},
     "indptr has length 4, but 7 rows in blocks of height 2 are 4 block rows: indptr must have length 5",
     false},
    {{6, 15, 2, 5, 4, 5, NUMBERS(0, 2, 2, 5), NUMBERS(0, 2, 1, 2, 3)},
     "indices[4] is 3, but block columns of a matrix of 15 columns in blocks of width 5 are 0 to 2",
     false},
    {{8, 20, 2, 5, 4, 5, NUMBERS(0, 2, 2, 5), NUMBERS(0, 2, 1, 2, 3)},
     "indptr has length 4, but 8 rows in blocks of height 2 are 4 block rows: indptr must have length 5",
     false},
    {{0, 20, 2, 5, 0, 0, NUMBERS(0), NUMBERS(0)}, "indptr must have length 1", false},
    {{INT64_MAX - 1, 20, 2, 5, 4, 5, NUMBERS(0, 2, 2, 5), NUMBERS(0, 2, 1, 2, 3)},
     "at most 2147483647",
     false},
    {{6, INT64_MAX - 2, 2, 5, 4, 5, NUMBERS(0, 2, 2, 5), NUMBERS(0, 2, 1, 2, 3)},
     "at most 2147483647",
     false},
    {{2147483647, 2 * (int64_t)2147483647, 2147483647, 2147483647, 2, 2, NUMBERS(0, 2), NUMBERS(0, 1)},
     "exceed the 2**63 - 1 bytes",
     false},
    {{6, 20, 2, 5, 4, 5, NUMBERS(1, 2, 2, 5), NUMBERS(0, 2, 1, 2, 3)},
     "indptr[0] is 1, but must be 0",
     false},
    {{6, 20, 2, 5, 4, 5, NUMBERS(0, -2, 2, 5), NUMBERS(0, 2, 1, 2, 3)},
     "indptr[1] is -2, less than indptr[0] = 0",
     false},
    {{6, 20, 2, 5, 4, 5, NUMBERS(0, 900, 2, 5), NUMBERS(0, 2, 1, 2, 3)},
     "indptr[2] is 2, less than indptr[1] = 900",
     false},
    {{6, 20, 2, 5, 4, 5, NUMBERS(0, 2, 2, 6), NUMBERS(0, 2, 1, 2, 3)},
     "indptr[3] is 6, but indices has 5 entries",
     false},
    {{6, 20, 2, 5, 4, 5, NUMBERS(0, 2, 2, 4), NUMBERS(0, 2, 1, 2, 3)},
     "indptr[3] is 4, but indices has 5 entries",
     false},
    {{6, 20, 2, 5, 4, 5, NUMBERS(0, 2, 2, 5), NUMBERS(0, 2, 1, 2, 4)},
     "indices[4] is 4, but block columns of a matrix of 20 columns in blocks of width 5 are 0 to 3",
     false},
    {{6, 20, 2, 5, 4, 5, NUMBERS(0, 2, 2, 5), NUMBERS(4, 2, 1, 2, 3)},
     "indices[0] is 4, but block columns",
     false},
    {{6, 20, 2, 5, 4, 5, NUMBERS(0, 2, 2, 5), NUMBERS(0, 2, -1, 2, 3)}, "indices[2] is -1", false},
    {{6, 0, 2, 5, 4, 1, NUMBERS(0, 1, 1, 1), NUMBERS(0)},
     "a matrix of 0 columns has no block columns",
     false},
    {{6, 20, 2, 5, 4, 5, NUMBERS(0, 2, 2, 5), NUMBERS(2, 0, 1, 2, 3)},
     "indices[1] is 0 after indices[0] = 2 in block row 0, unsorted",
     true},
    {{6, 20, 2, 5, 4, 5, NUMBERS(0, 2, 2, 5), NUMBERS(0, 2, 1, 3, 2)},
     "indices[4] is 2 after indices[3] = 3 in block row 2, unsorted",
     true},
    {{6, 20, 2, 5, 4, 5, NUMBERS(0, 2, 2, 5), NUMBERS(0, 2, 1, 2, 2)},
     "indices[3] and indices[4] are both 2 in block row 2, a duplicate",
     true},
};

static void test_defects(void) {
  for (size_t i = 0; i < sizeof kDefects / sizeof kDefects[0]; ++i) {
    const struct defect *defect = &kDefects[i];
    for (int variant = 0; variant < 4; ++variant) {
      const bsrg_index_type type = variant & 1 ? BSRG_I64 : BSRG_I32;
      const int check = variant < 2;
      bsrg_structure *structure = NULL;
      bsrg_error error = {""};
      const bsrg_status status = create(&defect->sample, type, check, &structure, &error);
      if (defect->content && !check) {
        CHECK(status == BSRG_OK);
        bsrg_structure_destroy(structure);
        continue;
      }
      CHECK(status == BSRG_ERR_VALUE);
      CHECK(structure == NULL);
      CHECK(create(&defect->sample, type, check, &structure, NULL) == status);
      if (strstr(error.message, defect->message) == NULL) {
        fprintf(stderr, "defect %zu: \"%s\" does not say \"%s\"\n", i, error.message, defect->message);
        ++failures;
      }
    }
  }
}

/* Values that only 64 bits hold must not be taken for what their low half says. */
static void test_wide_values(void) {
  const int64_t wide = (int64_t)1 << 32;
  bsrg_structure *structure;
  bsrg_error error;
  sample s = kGood;
  s.indices = NUMBERS(0, 2, 1, 2, wide + 3);
  CHECK(create(&s, BSRG_I64, 1, &structure, &error) == BSRG_ERR_VALUE);
  CHECK(strstr(error.message, "indices[4] is 4294967299") != NULL);
  CHECK(create(&s, BSRG_I64, 0, &structure, &error) == BSRG_ERR_VALUE);
  s = kGood;
  s.indptr = NUMBERS(0, 2, wide + 2, wide + 5);
  CHECK(create(&s, BSRG_I64, 1, &structure, &error) == BSRG_ERR_VALUE);
  CHECK(strstr(error.message, "indptr[3] is 4294967301, but indices has 5 entries") != NULL);
}

static void test_pointers(void) {
  static const int64_t indptr[] = {0, 2, 2, 5}, indices[] = {0, 2, 1, 2, 3, 0};
  const bsrg_pattern good = {6, 20, 2, 5, 5, 4, BSRG_I64, indices, indptr};
  bsrg_structure *structure;
  bsrg_error error;
  bsrg_pattern bad = good;
  bad.indices = NULL;
  CHECK(bsrg_structure_create(&bad, 1, &structure, &error) == BSRG_ERR_VALUE);
  CHECK(strstr(error.message, "indices has length 5, but its pointer is NULL") != NULL);
  bad = good;
  bad.indptr = NULL;
  CHECK(bsrg_structure_create(&bad, 1, &structure, &error) == BSRG_ERR_VALUE);
  CHECK(strstr(error.message, "indptr has length 4, but its pointer is NULL") != NULL);
  bad = good;
  bad.indices = (const char *)indices + 4;
  CHECK(bsrg_structure_create(&bad, 1, &structure, &error) == BSRG_ERR_VALUE);
  CHECK(strstr(error.message, "indices starts at address") != NULL);
  bad = good;
  bad.indptr = (const char *)indptr + 1;
  CHECK(bsrg_structure_create(&bad, 1, &structure, &error) == BSRG_ERR_VALUE);
  CHECK(strstr(error.message, "no multiple of its item size 8") != NULL);
  bad = good;
  bad.nnzb = -1;
  CHECK(bsrg_structure_create(&bad, 1, &structure, &error) == BSRG_ERR_VALUE);
  CHECK(strstr(error.message, "indices has length -1") != NULL);
  bad = good;
  bad.index_type = (bsrg_index_type)7;
  CHECK(bsrg_structure_create(&bad, 1, &structure, &error) == BSRG_ERR_TYPE);
  CHECK(structure == NULL);
}

static void test_empty(void) {
  static const struct {
    int64_t rows, cols, indptr_len;
  } shapes[] = {{0, 0, 1}, {0, 20, 1}, {6, 0, 4}, {6, 20, 4}};
  for (size_t i = 0; i < sizeof shapes / sizeof shapes[0]; ++i) {
    static const int32_t zeros[4];
    const bsrg_pattern pattern = {shapes[i].rows,       shapes[i].cols, 2,    5,    0,
                                  shapes[i].indptr_len, BSRG_I32,       NULL, zeros};
    bsrg_structure *structure, *transposed;
    CHECK(bsrg_structure_create(&pattern, 1, &structure, NULL) == BSRG_OK);
    CHECK(bsrg_structure_get(structure).longest_row == 0);
    CHECK(bsrg_structure_transpose(structure, &transposed, NULL, NULL) == BSRG_OK);
    const bsrg_structure_view view = bsrg_structure_get(transposed);
    CHECK(view.rows == shapes[i].cols && view.cols == shapes[i].rows && view.nnzb == 0);
    CHECK(view.block_rows == shapes[i].cols / 5 && view.indptr[view.block_rows] == 0);
    bsrg_structure_destroy(transposed);
    bsrg_structure_destroy(structure);
  }
}

static uint32_t next_random(uint32_t *state) {
  *state = *state * 1664525u + 1013904223u;
  return *state >> 8;
}

/* A random pattern of block_rows x block_cols whose density is one of eight, 0 and 1 included. */
static bsrg_structure *random_structure(uint32_t *seed, int64_t block_rows, int64_t block_cols) {
  int64_t *indptr = calloc((size_t)block_rows + 1, sizeof *indptr);
  int64_t *indices = malloc((size_t)(block_rows * block_cols) * sizeof *indices + 1);
  if (indptr == NULL || indices == NULL) abort();
  const uint32_t density = next_random(seed) % 8;
  int64_t count = 0;
  for (int64_t i = 0; i < block_rows; ++i) {
    for (int64_t j = 0; j < block_cols; ++j) {
      if (next_random(seed) % 7 < density) indices[count++] = j;
    }
    indptr[i + 1] = count;
  }
  const sample s = {3 * block_rows, 2 * block_cols, 3, 2, block_rows + 1, count, indptr, indices};
  bsrg_structure *structure = NULL;
  CHECK(create(&s, next_random(seed) % 2 ? BSRG_I32 : BSRG_I64, 1, &structure, NULL) == BSRG_OK);
  free(indptr);
  free(indices);
  return structure;
}

static int64_t row_of(const bsrg_structure_view *view, int64_t block) {
  int64_t row = 0;
  while (view->indptr[row + 1] <= block) ++row;
  return row;
}

static void test_transpose(void) {
  uint32_t seed = 1;
  for (int round = 0; round < 200; ++round) {
    const int64_t block_rows = next_random(&seed) % 12, block_cols = next_random(&seed) % 12;
    bsrg_structure *structure = random_structure(&seed, block_rows, block_cols);
    const bsrg_structure_view a = bsrg_structure_get(structure);
    int64_t *order = malloc((size_t)a.nnzb * sizeof *order + 1);
    bsrg_structure *transposed = NULL;
    if (order == NULL) abort();
    CHECK(bsrg_structure_transpose(structure, &transposed, order, NULL) == BSRG_OK);
    const bsrg_structure_view t = bsrg_structure_get(transposed);
    CHECK(t.rows == a.cols && t.cols == a.rows && t.block_height == 2 && t.block_width == 3);
    CHECK(t.block_rows == block_cols && t.block_cols == block_rows && t.nnzb == a.nnzb);
    int64_t longest = 0;
    for (int64_t row = 0; row < t.block_rows; ++row) {
      const int64_t length = t.indptr[row + 1] - t.indptr[row];
      if (length > longest) longest = length;
      for (int64_t k = t.indptr[row]; k < t.indptr[row + 1]; ++k) {
        CHECK(a.indices[order[k]] == row);
        CHECK(row_of(&a, order[k]) == t.indices[k]);
        CHECK(k == t.indptr[row] || t.indices[k] > t.indices[k - 1]);
      }
    }
    CHECK(t.indptr[0] == 0 && t.indptr[t.block_rows] == a.nnzb && t.longest_row == longest);
    free(order);
    bsrg_structure_destroy(transposed);
    bsrg_structure_destroy(structure);
  }
}

/* The transposed one belongs to the structure, which it gives back. */
static void test_transposed(void) {
  uint32_t seed = 5;
  for (int round = 0; round < 100; ++round) {
    bsrg_structure *structure = random_structure(&seed, next_random(&seed) % 12, next_random(&seed) % 12);
    const bsrg_structure_view a = bsrg_structure_get(structure);
    CHECK(a.order == NULL);
    bsrg_structure *transposed = NULL, *again = NULL;
    CHECK(bsrg_structure_transposed(structure, &transposed, NULL) == BSRG_OK);
    CHECK(bsrg_structure_transposed(structure, &again, NULL) == BSRG_OK && again == transposed);
    CHECK(bsrg_structure_transposed(transposed, &again, NULL) == BSRG_OK && again == structure);
    const bsrg_structure_view t = bsrg_structure_get(transposed);
    CHECK(t.rows == a.cols && t.block_rows == a.block_cols && t.nnzb == a.nnzb && t.order != NULL);
    for (int64_t row = 0; row < t.block_rows; ++row)
      for (int64_t k = t.indptr[row]; k < t.indptr[row + 1]; ++k)
        CHECK(a.indices[t.order[k]] == row && row_of(&a, t.order[k]) == t.indices[k]);
    bsrg_structure_destroy(structure);
  }
}

/* A transpose that needs 2 GiB for its indptr fails cleanly where there is none. */
static void test_memory(void) {
#ifndef __SANITIZE_ADDRESS__ /* the sanitizer itself maps more than any limit */
  static const int64_t indptr[] = {0, 1}, indices[] = {5};
  const bsrg_pattern pattern = {1, (int64_t)1 << 28, 1, 1, 1, 2, BSRG_I64, indices, indptr};
  bsrg_structure *structure, *transposed;
  bsrg_error error;
  int64_t order[1];
  CHECK(bsrg_structure_create(&pattern, 1, &structure, NULL) == BSRG_OK);
  struct rlimit before;
  getrlimit(RLIMIT_AS, &before);
  const struct rlimit tight = {(rlim_t)1 << 29, before.rlim_max};
  setrlimit(RLIMIT_AS, &tight);
  CHECK(bsrg_structure_transpose(structure, &transposed, order, &error) == BSRG_ERR_MEMORY);
  CHECK(transposed == NULL);
  CHECK(strstr(error.message, "no host memory for a structure of 268435456 block rows") != NULL);
  setrlimit(RLIMIT_AS, &before);
  bsrg_structure_destroy(structure);
#endif
}

int main(void) {
  test_good();
  test_defects();
  test_wide_values();
  test_pointers();
  test_empty();
  test_transpose();
  test_transposed();
  test_memory();
  if (failures > 0) fprintf(stderr, "%d failures\n", failures);
  return failures > 0;
}
