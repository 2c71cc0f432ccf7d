/* Which batches become one product, and where the matrices of the others are. */
#include "batch.h"
#include "check.h"

#include <stdlib.h>

enum { K = 6, M = 4, N = 3 };

static double memory[2000];

/* A batch of 2 x 5 matrices; the data of an operand starts where the strides' step is told apart from it. */
static bsrg_matmul_args batch_of(int64_t row_stride, int64_t col_stride, int64_t inner, int64_t outer,
                                 int64_t n) {
  return (bsrg_matmul_args){
      .dtype = BSRG_F64,
      .x = {memory, K, n, row_stride, col_stride},
      .y = {memory + 1000, M, n, row_stride, col_stride},
      .batch = {.ndim = 2, .shape = {2, 5}, .x_strides = {outer, inner}, .y_strides = {outer, inner}}};
}

static void test_one_product(void) {
  /* [row][outer][inner][column] */
  bsrg_matmul_args args = batch_of(10 * N, 1, N, 5 * N, N);
  bsrg_batch_fold(&args);
  CHECK(args.batch.ndim == 0 && args.x.cols == 10 * N && args.y.cols == 10 * N);
  CHECK(args.x.col_stride == 1 && args.x.row_stride == 10 * N && args.x.rows == K);
  /* The matrices of one column each: the batch gives its stride. */
  args = batch_of(1, 77, K, 5 * K, 1);
  bsrg_batch_fold(&args);
  CHECK(args.batch.ndim == 0 && args.x.cols == 10 && args.x.col_stride == K && args.y.col_stride == K);
  /* The outer dimension continues the columns first. */
  args = batch_of(10 * N, 1, 2 * N, N, N);
  bsrg_batch_fold(&args);
  CHECK(args.batch.ndim == 0 && args.x.cols == 10 * N);
}

static void test_left_over(void) {
  /* [outer][row][inner][column] */
  bsrg_matmul_args args = batch_of(5 * N, 1, N, 100, N);
  bsrg_batch_fold(&args);
  CHECK(args.batch.ndim == 1 && args.batch.shape[0] == 2 && args.batch.x_strides[0] == 100);
  CHECK(args.x.cols == 5 * N);
  /* C counts where it is read, and only there. */
  args = batch_of(10 * N, 1, N, 5 * N, N);
  args.c = args.x;
  bsrg_batch_fold(&args);
  CHECK(args.batch.ndim == 0);
  args = batch_of(10 * N, 1, N, 5 * N, N);
  args.c = args.x;
  args.beta = 1;
  bsrg_batch_fold(&args);
  CHECK(args.x.cols == N && args.c.cols == N);
  /* Both dimensions are steps of one. */
  CHECK(args.batch.ndim == 1 && args.batch.shape[0] == 10 && args.batch.x_strides[0] == N);
  /* Not so where one operand has them further apart. */
  args = batch_of(10 * N, 1, N, 5 * N, N);
  args.c = args.x;
  args.beta = 1;
  args.batch.c_strides[0] = 1;
  bsrg_batch_fold(&args);
  CHECK(args.batch.ndim == 2 && args.x.cols == N && args.c.cols == N);
  /* Dimensions of one element vanish, whatever their strides. */
  args.batch.shape[0] = 1;
  bsrg_batch_fold(&args);
  CHECK(args.batch.ndim == 1 && args.batch.shape[0] == 5 && args.batch.y_strides[0] == N);
}

static void test_steps(void) {
  bsrg_matmul_args args = batch_of(N, 1, 50, 400, N);
  int64_t position[BSRG_BATCH_DIMS] = {0};
  CHECK(!bsrg_batch_is_empty(&args.batch));
  for (int64_t i = 0; i < 10; ++i) {
    const bsrg_matmul_args one = bsrg_batch_at(&args, position);
    CHECK(one.batch.ndim == 0 && (double *)one.x.data == memory + i / 5 * 400 + i % 5 * 50);
    CHECK((double *)one.y.data == (double *)one.x.data + 1000 && one.c.data == NULL);
    CHECK(bsrg_batch_next(&args.batch, position) == (i < 9));
  }
  const bsrg_batch last = bsrg_batch_take_last(&args.batch);
  CHECK(args.batch.ndim == 1 && args.batch.shape[0] == 2 && args.batch.x_strides[0] == 400);
  CHECK(last.ndim == 1 && last.shape[0] == 5 && last.x_strides[0] == 50 && last.y_strides[0] == 50);
  args.batch.shape[0] = 0;
  CHECK(bsrg_batch_is_empty(&args.batch));
}

int main(void) {
  test_one_product();
  test_left_over();
  test_steps();
  return failures ? EXIT_FAILURE : EXIT_SUCCESS;
}
