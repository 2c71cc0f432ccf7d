/* Which batches become one product, and where the matrices of the others are. */
#include "batch.h"
#include "structures.h"

#include <stdlib.h>
#include <string.h>

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
  CHECK(!bsrg_batch_is_empty(args.batch.ndim, args.batch.shape));
  for (int64_t i = 0; i < 10; ++i) {
    const bsrg_matmul_args one = bsrg_batch_at(&args, position);
    CHECK(one.batch.ndim == 0 && (double *)one.x.data == memory + i / 5 * 400 + i % 5 * 50);
    CHECK((double *)one.y.data == (double *)one.x.data + 1000 && one.c.data == NULL);
    CHECK(bsrg_batch_next(args.batch.ndim, args.batch.shape, position) == (i < 9));
  }
  const bsrg_batch last = bsrg_batch_take_last(&args.batch);
  CHECK(args.batch.ndim == 1 && args.batch.shape[0] == 2 && args.batch.x_strides[0] == 400);
  CHECK(last.ndim == 1 && last.shape[0] == 5 && last.x_strides[0] == 50 && last.y_strides[0] == 50);
  args.batch.shape[0] = 0;
  CHECK(bsrg_batch_is_empty(args.batch.ndim, args.batch.shape));
}

/* Matrices of 2 x 3 blocks of 2 x 4, whose values follow one another. */
static void test_stacks(void) {
  enum { COUNT = 7, SIZE = 4, ROWS = 4, COLS = 12, BLOCKS = 3, AREA = 8 };
  static const int64_t begins[] = {0, 2, 3}, columns[BLOCKS] = {0, 2, 1};
  int64_t *indptr = malloc(sizeof begins), *indices = malloc(sizeof columns);
  memcpy(indptr, begins, sizeof begins);
  memcpy(indices, columns, sizeof columns);
  bsrg_structure *a = make_structure(2, 3, 2, 4, indptr, indices);
  static const double values[COUNT * BLOCKS * AREA];
  bsrg_matmul_args args = {.a = a,
                           .values = values,
                           .dtype = BSRG_F64,
                           .x = {memory, COLS, N, N, 1},
                           .y = {memory + 1000, ROWS, N, N, 1},
                           .batch = {.ndim = 1,
                                     .shape = {COUNT},
                                     .x_strides = {COLS * N},
                                     .y_strides = {ROWS * N},
                                     .values_strides = {BLOCKS * AREA}}};
  CHECK(bsrg_batch_can_stack(&args));
  bsrg_joined stack = bsrg_batch_stack(&args, 0);
  CHECK(stack.count == SIZE && stack.below && !stack.copy_x && !stack.copy_c && !stack.copy_y);
  bsrg_structure_view v = bsrg_structure_get(stack.args.a);
  CHECK(v.rows == SIZE * ROWS && v.cols == SIZE * COLS && v.nnzb == SIZE * BLOCKS);
  for (int64_t b = 0; b < v.nnzb; ++b) CHECK(v.indices[b] == b / BLOCKS * 3 + columns[b % BLOCKS]);
  for (int64_t row = 0; row <= v.block_rows; ++row)
    CHECK(v.indptr[row] == row / 2 * BLOCKS + (row % 2 ? 2 : 0));
  CHECK(stack.args.x.rows == SIZE * COLS && stack.args.y.rows == SIZE * ROWS && stack.args.batch.ndim == 0);
  /* The rest, and one of all. */
  bsrg_structure *const kept = stack.args.a;
  stack = bsrg_batch_stack(&args, SIZE);
  CHECK(stack.count == 2 && stack.args.y.rows == 2 * ROWS);
  CHECK((double *)stack.args.x.data == memory + SIZE * COLS * N);
  CHECK((const double *)stack.args.values == values + SIZE * BLOCKS * AREA);
  const bsrg_matmul_args part = bsrg_batch_part(&args, SIZE, 2);
  CHECK(part.x.data == stack.args.x.data && part.batch.ndim == 1 && part.batch.shape[0] == 2);
  stack = bsrg_batch_stack(&args, SIZE + 2);
  CHECK(stack.count == 1 && stack.args.a == a && stack.args.y.rows == ROWS);
  /* It is kept, and so is another of one X. */
  CHECK(bsrg_batch_stack(&args, 0).args.a == kept);
  args.batch.x_strides[0] = 0;
  stack = bsrg_batch_stack(&args, 0);
  CHECK(bsrg_batch_can_stack(&args) && stack.count == SIZE && stack.args.a != kept);
  CHECK(stack.args.x.rows == COLS && !stack.copy_x);
  v = bsrg_structure_get(stack.args.a);
  CHECK(v.rows == SIZE * ROWS && v.cols == COLS && v.indices[BLOCKS] == 0);

  /* Transposed views: along the diagonal alone, as their values follow one another there; one X is repeated. */
  bsrg_structure *transposed;
  CHECK(bsrg_structure_transposed(a, &transposed, NULL) == BSRG_OK);
  bsrg_matmul_args turned = args;
  turned.a = transposed;
  turned.x = (bsrg_dense){memory, ROWS, N, N, 1};
  turned.y = (bsrg_dense){memory + 1000, COLS, N, N, 1};
  turned.batch.y_strides[0] = COLS * N;
  stack = bsrg_batch_stack(&turned, 0);
  CHECK(bsrg_batch_can_stack(&turned) && stack.count == SIZE && stack.copy_x && !stack.copy_y);
  CHECK(stack.args.x.data == NULL && stack.args.x.rows == SIZE * ROWS && stack.args.x.col_stride == 1);
  turned.batch.x_strides[0] = ROWS * N;
  stack = bsrg_batch_stack(&turned, 0);
  CHECK(bsrg_batch_can_stack(&turned) && stack.count == SIZE && !stack.copy_x);
  v = bsrg_structure_get(stack.args.a);
  CHECK(v.rows == SIZE * COLS && v.cols == SIZE * ROWS && v.order != NULL);
  const bsrg_structure_view t = bsrg_structure_get(transposed);
  for (int64_t row = 0; row < v.block_rows; ++row)
    for (int64_t b = v.indptr[row]; b < v.indptr[row + 1]; ++b) {
      const int64_t matrix = row / t.block_rows, of_one = b - matrix * BLOCKS;
      CHECK(v.order[b] == matrix * BLOCKS + t.order[of_one]);
      CHECK(v.indices[b] == matrix * t.block_cols + t.indices[of_one]);
    }

  /* What does not lie so is copied, in the order in which it lies. */
  args.batch.x_strides[0] = COLS * N;
  bsrg_matmul_args other = args;
  other.y = (bsrg_dense){memory + 1000, ROWS, N, 1, ROWS};
  stack = bsrg_batch_stack(&other, 0);
  CHECK(stack.count == SIZE && !stack.copy_x && stack.copy_y && stack.args.y.data == NULL);
  CHECK(stack.args.y.rows == SIZE * ROWS && stack.args.y.cols == N && stack.args.y.row_stride == 1);
  bsrg_tensor copy = bsrg_joined_tensor(&stack.args.y, SIZE, true);
  CHECK(copy.heads == SIZE && copy.rows == ROWS && copy.size == N && copy.head_stride == ROWS);
  CHECK(copy.row_stride == 1 && copy.element_stride == stack.args.y.col_stride);
  other = args;
  other.batch.x_strides[0] += 1;
  stack = bsrg_batch_stack(&other, 0);
  CHECK(stack.copy_x && !stack.copy_y && stack.args.x.row_stride > stack.args.x.col_stride);
  other = args;
  other.beta = 1;
  other.c = other.y; /* one for all */
  stack = bsrg_batch_stack(&other, 0);
  CHECK(stack.copy_c && !stack.copy_y && stack.args.c.rows == SIZE * ROWS);
  other.batch.c_strides[0] = ROWS * N;
  stack = bsrg_batch_stack(&other, 0);
  CHECK(!stack.copy_c && stack.args.c.rows == SIZE * ROWS && stack.args.c.data == args.y.data);

  /* Values that do not follow one another, vectors of rows. */
  other = args;
  other.batch.values_strides[0] += 1;
  CHECK(!bsrg_batch_can_stack(&other));
  other = args;
  other.epilogue.row_bias.data = memory;
  CHECK(!bsrg_batch_can_stack(&other));
  bsrg_structure_destroy(a);
}

int main(void) {
  test_stacks();
  test_one_product();
  test_left_over();
  test_steps();
  return failures ? EXIT_FAILURE : EXIT_SUCCESS;
}
