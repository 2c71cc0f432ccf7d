/* Plans that are asked for without a product: what is no dtype, number, chip or pattern is refused. */
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "bsrgemm.h"
#include "check.h"
#include "structures.h"

static bsrg_structure *make(int check) {
  int64_t *indptr = malloc(3 * sizeof(*indptr)), *indices = malloc(3 * sizeof(*indices));
  const int64_t begins[] = {0, 2, 3}, columns[] = {check ? 0 : 1, check ? 1 : 0, 1};
  memcpy(indptr, begins, sizeof(begins));
  memcpy(indices, columns, sizeof(columns));
  return make_any_structure(2, 2, 64, 64, indptr, indices, check);
}

static void expect(int line, bsrg_status status, const bsrg_error *error, const char *text) {
  const bool holds = text ? status != BSRG_OK && strstr(error->message, text) : status == BSRG_OK;
  if (holds) return;
  fprintf(stderr, "line %d: status %d, %s\n", line, (int)status, error->message);
  ++failures;
}

/* Of all three, on a chip that has been changed. */
#define EXPLAIN(change, the_dtype, text)                                                   \
  do {                                                                                     \
    bsrg_chip chip = bsrg_chip_h200();                                                     \
    bsrg_error error = {""};                                                               \
    bsrg_plan_info info;                                                                   \
    change;                                                                                \
    const bsrg_dtype dtype = (the_dtype);                                                  \
    bsrg_status status = bsrg_plan_explain(a, dtype, BSRG_IEEE, 64, &chip, &info, &error); \
    expect(__LINE__, status, &error, text);                                                \
    status = bsrg_sampled_explain(a, dtype, 64, &chip, &info, &error);                     \
    expect(__LINE__, status, &error, text);                                                \
    status = bsrg_matmul_sparse_explain(a, a, dtype, &chip, &info, &error);                \
    expect(__LINE__, status, &error, text);                                                \
  } while (0)

int main(void) {
  bsrg_structure *a = make(1), *unsorted = make(0);
  EXPLAIN(, BSRG_F16, NULL);
  EXPLAIN(, (bsrg_dtype)99, "dtype is 99");
  EXPLAIN(chip.sm_count = 0, BSRG_F16, "sm_count 0");
  EXPLAIN(chip.sm_count = INT32_MAX, BSRG_F16, "from 1 to 10000");
  EXPLAIN(chip.hbm_bytes_per_s = 0, BSRG_F16, "rate");
  EXPLAIN(chip.mma_flops_per_s = -1, BSRG_F16, "rate");

  const bsrg_chip chip = bsrg_chip_h200();
  bsrg_plan_info info;
  bsrg_error error = {""};
  bsrg_status status = bsrg_plan_explain(a, BSRG_F32, (bsrg_precision)7, 64, &chip, &info, &error);
  expect(__LINE__, status, &error, "precision is 7");
  status = bsrg_sampled_explain(a, BSRG_F16, INT64_MAX, &chip, &info, &error);
  expect(__LINE__, status, &error, "at most 2**56");
  status = bsrg_matmul_sparse_explain(unsorted, a, BSRG_F16, &chip, &info, &error);
  expect(__LINE__, status, &error, "a has block columns that are unsorted");

  /* The transposed pattern is sorted, whatever the order of the one that it views, by which b is read. */
  bsrg_structure *turned;
  CHECK(bsrg_structure_transposed(unsorted, &turned, NULL) == BSRG_OK);
  status = bsrg_matmul_sparse_explain(turned, a, BSRG_F16, &chip, &info, &error);
  expect(__LINE__, status, &error, NULL);
  status = bsrg_matmul_sparse_explain(a, turned, BSRG_F16, &chip, &info, &error);
  expect(__LINE__, status, &error, "b has block columns that are unsorted");
  bsrg_structure_destroy(unsorted);
  bsrg_structure_destroy(a);
  return failures != 0;
}
