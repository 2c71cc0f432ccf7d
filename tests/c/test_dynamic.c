/* What dynamic structures refuse before a GPU is asked. */
#include <string.h>

#include "bsrgemm.h"
#include "check.h"

static void refuse(int line, const int64_t sizes[5], const char *text) {
  bsrg_error error = {""};
  bsrg_structure *structure = (bsrg_structure *)&error; /* must become NULL */
  const bsrg_status status =
      bsrg_dynamic_create(sizes[0], sizes[1], sizes[2], sizes[3], sizes[4], 0, &structure, &error);
  if (status == BSRG_ERR_VALUE && structure == NULL && strstr(error.message, text)) return;
  fprintf(stderr, "line %d: status %d, \"%s\" instead of \"%s\"\n", line, (int)status, error.message, text);
  ++failures;
}

#define REFUSE(rows, cols, height, width, capacity, text) \
  refuse(__LINE__, (const int64_t[]){rows, cols, height, width, capacity}, text)

static void test_sizes(void) {
  REFUSE(8, 12, 2, 3, 0, "capacity is 0, but must be from 1 to the 16 places");
  REFUSE(8, 12, 2, 3, 17, "capacity is 17, but must be from 1 to the 16 places");
  REFUSE(8, 12, 2, 3, -1, "capacity is -1");
  REFUSE(8, 12, 2, 3, INT64_MAX, "indices has length");
  REFUSE(0, 12, 2, 3, 1, "at least one block");
  REFUSE(8, 0, 2, 3, 1, "at least one block");
  REFUSE(8, 12, 0, 3, 1, "blocksize is (0, 3)");
  REFUSE(8, 12, 2, -3, 1, "blocksize is (2, -3)");
  REFUSE(-8, 12, 2, 3, 1, "shape is (-8, 12)");
  REFUSE(9, 12, 2, 3, 1, "multiple of the block height");
  REFUSE(8, 12, 2, 5, 1, "multiple of the block width");
  REFUSE(65536, 65536, 1, 1, 1, "at most 2^30 places");
  REFUSE(65536, 65536, 65536, 65536, 1, "fewer than 2^31 elements");
}

/* How much memory there has to be is known without a device; where it lies is checked before one is asked. */
static void test_memory(void) {
  const bsrg_chip chip = bsrg_chip_h200();
  size_t before = 0;
  for (int64_t capacity = 1; capacity <= 4096; capacity *= 8) {
    bsrg_structure *structure, *transposed;
    CHECK(bsrg_dynamic_describe(4096, 4096, 64, 64, capacity, &chip, &structure, NULL) == BSRG_OK);
    const size_t bytes = bsrg_dynamic_bytes(structure);
    /* At least counts, both readings' arrays and the lists of tall and sampled products. */
    CHECK(bytes >= before && bytes % BSRG_DYNAMIC_ALIGNMENT == 0);
    CHECK(bytes >= 16 + 2 * 8 * 65 + (size_t)capacity * (2 * 4 + 8 + 16));
    CHECK(bsrg_structure_transposed(structure, &transposed, NULL) == BSRG_OK);
    CHECK(bsrg_dynamic_bytes(transposed) == bytes);
    before = bytes;
    bsrg_structure_destroy(structure);
  }
  bsrg_error error = {""};
  bsrg_structure *structure = (bsrg_structure *)&error;
  CHECK(bsrg_dynamic_create_in(64, 64, 64, 64, 1, 0, (void *)264, &structure, &error) == BSRG_ERR_VALUE);
  CHECK(structure == NULL && strstr(error.message, "must be at a multiple of 256 bytes"));
}

static void test_fixed_patterns(void) {
  const int32_t indices[] = {0}, indptr[] = {0, 1};
  const bsrg_pattern pattern = {.rows = 2,
                                .cols = 2,
                                .block_height = 2,
                                .block_width = 2,
                                .nnzb = 1,
                                .indptr_len = 2,
                                .index_type = BSRG_I32,
                                .indices = indices,
                                .indptr = indptr};
  bsrg_structure *fixed;
  CHECK(bsrg_structure_create(&pattern, 1, &fixed, NULL) == BSRG_OK);
  uint8_t mask = 1;
  float values[4] = {0};
  const bsrg_dense places = {&mask, 1, 1, 1, 1}, dense = {values, 2, 2, 2, 1};
  bsrg_dynamic_arrays arrays;
  CHECK(bsrg_dynamic_update(fixed, &places, NULL, NULL) == BSRG_ERR_VALUE);
  CHECK(bsrg_dynamic_update(NULL, &places, NULL, NULL) == BSRG_ERR_VALUE);
  CHECK(bsrg_dynamic_update_topk(fixed, &dense, BSRG_F32, 1, NULL, NULL) == BSRG_ERR_VALUE);
  CHECK(bsrg_dynamic_gather(fixed, &dense, BSRG_F32, values, NULL, NULL) == BSRG_ERR_VALUE);
  CHECK(bsrg_dynamic_get(fixed, &arrays, NULL) == BSRG_ERR_VALUE);
  CHECK(bsrg_dynamic_bytes(fixed) == 0);
  bsrg_structure_destroy(fixed);
}

/* Calls that read a pattern on the host do not take them. */
static void test_what_takes_no_dynamic_pattern(void) {
  bsrg_structure *dynamic;
  const bsrg_chip chip = bsrg_chip_h200();
  float values[4] = {0}, out[4];
  const float *const data = values;
  CHECK(bsrg_dynamic_describe(64, 64, 64, 64, 1, &chip, &dynamic, NULL) == BSRG_OK);
  bsrg_error error = {""};
  const bsrg_softmax_args softmax = {.a = dynamic, .values = data, .out = out, .dtype = BSRG_F32};
  CHECK(bsrg_softmax(&softmax, &error) == BSRG_ERR_VALUE && strstr(error.message, "a is a dynamic"));
  const bsrg_matmul_sparse_args product = {
      .a = dynamic, .b = dynamic, .a_values = data, .b_values = data, .dtype = BSRG_F32};
  CHECK(bsrg_matmul_sparse(&product, &error) == BSRG_ERR_VALUE && strstr(error.message, "a is a dynamic"));
  bsrg_structure_destroy(dynamic);
}

int main(void) {
  test_what_takes_no_dynamic_pattern();
  test_sizes();
  test_memory();
  test_fixed_patterns();
  return failures != 0;
}
