/* Structures for tests of plans. */
#ifndef BSRG_TEST_STRUCTURES_H
#define BSRG_TEST_STRUCTURES_H

#include <stdlib.h>

#include "check.h"
#include "internal.h"

static uint64_t random_state = 1;
static inline uint32_t random_below(uint32_t end) {
  random_state = random_state * 6364136223846793005u + 1442695040888963407u;
  return (uint32_t)(((random_state >> 32) * end) >> 32);
}

/* Block row i stores the columns indices[indptr[i]] .. indices[indptr[i + 1] - 1], which ascend where `check` is 1; frees both
 * arrays. */
static inline bsrg_structure *make_any_structure(int64_t block_rows, int64_t block_cols, int64_t height,
                                                 int64_t width, int64_t *indptr, int64_t *indices,
                                                 int check) {
  const bsrg_pattern pattern = {.rows = block_rows * height,
                                .cols = block_cols * width,
                                .block_height = height,
                                .block_width = width,
                                .nnzb = indptr[block_rows],
                                .indptr_len = block_rows + 1,
                                .index_type = BSRG_I64,
                                .indices = indices,
                                .indptr = indptr};
  bsrg_structure *structure = NULL;
  bsrg_error error = {""};
  if (bsrg_structure_create(&pattern, check, &structure, &error) != BSRG_OK) {
    fprintf(stderr, "%s\n", error.message);
    abort();
  }
  free(indptr);
  free(indices);
  return structure;
}

static inline bsrg_structure *make_structure(int64_t block_rows, int64_t block_cols, int64_t height,
                                             int64_t width, int64_t *indptr, int64_t *indices) {
  return make_any_structure(block_rows, block_cols, height, width, indptr, indices, 1);
}

/* Row i stores lengths[i] block columns: the first ones, or as far apart as they can be. */
static inline bsrg_structure *make_rows(const int64_t *lengths, int64_t block_rows, int64_t block_cols,
                                        int64_t height, int64_t width, bool spread) {
  int64_t *indptr = calloc((size_t)block_rows + 1, sizeof(*indptr));
  for (int64_t i = 0; i < block_rows; ++i) indptr[i + 1] = indptr[i] + lengths[i];
  int64_t *indices = malloc(sizeof(*indices) * (size_t)(indptr[block_rows] + 1));
  for (int64_t i = 0; i < block_rows; ++i)
    for (int64_t j = 0; j < lengths[i]; ++j)
      indices[indptr[i] + j] = spread ? j * block_cols / lengths[i] : j;
  return make_structure(block_rows, block_cols, height, width, indptr, indices);
}

#endif
