/* The CPU backend's results: products of random shapes, layouts and patterns against sums in double
 * precision, on every instruction set of the processor.
 *
 * Most products are of small whole numbers, which every order of summation adds without rounding: the
 * result must be exact, or for float16 and bfloat16 the exact sum rounded once. */
#define _GNU_SOURCE
#include "cpu_operands.h"

/* ---- Random products ----------------------------------------------------------------------------------- */

static sizes random_sizes(void) {
  static const int64_t kBlocks[] = {1, 4, 9, 33, 150}, kColumns[] = {1, 4, 9, 20, 70};
  sizes s;
  s.height = random_between(1, kBlocks[random_below(5)]);
  s.width = random_between(1, kBlocks[random_below(5)]);
  s.columns = random_between(1, kColumns[random_below(5)]);
  s.block_rows = random_between(1, bsrg_max(1, random_between(1, 300) / s.height));
  s.block_cols = random_between(1, bsrg_max(1, random_between(1, 600) / s.width));
  s.longest = random_between(0, s.block_cols);
  return s;
}

/* Whether y holds the exact sums, rounded to its type, and nothing else of its memory has been written. */
static bool is_exact(const matrix *y, const matrix *old, const matrix *x, const sparse *a, double alpha,
                     double beta) {
  const int64_t rows = y->view.rows, cols = y->view.cols, size = (int64_t)bsrg_dtype_size(y->dtype);
  long double *sums = reference(a, x);
  bool right = true;
  char *touched = calloc((size_t)y->bytes + 1, 1);
  for (int64_t i = 0; i < rows; i++) {
    for (int64_t j = 0; j < cols; j++) {
      const double exact = alpha * (double)sums[i * cols + j] + (beta != 0 ? beta * at(old, i, j) : 0);
      if (at(y, i, j) != rounded(exact, y->dtype)) right = false;
      memset(touched + ((char *)y->view.data - y->memory) + offset(y, i, j) * size, 1, (size_t)size);
    }
  }
  for (int64_t b = 0; b < y->bytes; b++) {
    if (!touched[b] && (unsigned char)y->memory[b] != 0xff) right = false;
  }
  free(touched);
  free(sums);
  return right;
}

static void check_product(const sizes *s, bsrg_dtype dtype, layout x_layout, layout y_layout, layout c_layout,
                          bool skewed) {
  static const double kAlphas[] = {1, 1, -0.5, 2}, kBetas[] = {0, 0, 1, -0.5};
  sparse a = new_sparse(s->block_rows, s->block_cols, s->height, s->width, s->longest, skewed, dtype, true);
  const int64_t rows = s->block_rows * s->height, cols = s->block_cols * s->width;
  matrix x = new_matrix(cols, s->columns, dtype, x_layout);
  matrix y = new_matrix(rows, s->columns, dtype, y_layout);
  matrix c = new_matrix(rows, s->columns, dtype, c_layout);
  fill(&x, true);
  fill(&c, true);
  const double alpha = kAlphas[random_below(4)], beta = kBetas[random_below(4)];
  const bool in_place = beta != 0 && random_below(2);
  for (int64_t i = 0; in_place && i < rows; i++) {
    for (int64_t j = 0; j < s->columns; j++) put(&y, i, j, at(&c, i, j));
  }
  const int threads = (int)random_between(1, 5);
  CHECK(bsrg_set_num_threads(threads, NULL) == BSRG_OK);
  /* Without beta, c is not looked at: it holds NaN, and so does what y held before. */
  const bsrg_matmul_args args = arguments(&a, &x, beta == 0 ? NULL : in_place ? &y : &c, &y, alpha, beta);
  CHECK(bsrg_cpu_matmul(&args, NULL) == BSRG_OK);
  if (!is_exact(&y, &c, &x, &a, alpha, beta)) {
    fprintf(stderr,
            "%s on %s: wrong product of %" PRId64 "x%" PRId64 " blocks of %" PRId64 "x%" PRId64
            " (longest %" PRId64 ") by %" PRId64
            " columns, alpha %g, beta %g, layouts %d %d %d, %d threads\n",
            bsrg_dtype_name(dtype), bsrg_cpu_isa(), s->block_rows, s->block_cols, s->height, s->width,
            s->longest, s->columns, alpha, beta, x_layout, y_layout, c_layout, threads);
    ++failures;
  }
  free(c.memory);
  free(y.memory);
  free(x.memory);
  free_sparse(&a);
}

static void test_random_products(void) {
  for (int i = 0; i < 400; i++) {
    const sizes s = random_sizes();
    const layout x_layout = (layout)random_below(LAYOUT_COUNT), y_layout = (layout)random_below(LAYOUT_COUNT);
    check_product(&s, (bsrg_dtype)(i % 4), x_layout, y_layout, (layout)random_below(LAYOUT_COUNT),
                  random_below(3) == 0);
  }
}

static void test_large_products(void) {
  for (int i = 0; i < LARGE_COUNT; i++) {
    for (int dtype = BSRG_F16; dtype <= BSRG_F64; dtype++) {
      check_product(&kLarge[i], (bsrg_dtype)dtype, ROWS, random_below(2) ? ROWS : COLUMNS, ROWS, false);
    }
  }
}

static void test_empty(void) {
  static const sizes kEmpty[] = {{0, 3, 2, 2, 4, 3}, {3, 0, 2, 2, 4, 0}, {3, 3, 2, 2, 0, 3},
                                 {0, 0, 1, 1, 0, 0}, {4, 5, 3, 2, 1, 0}, {4, 5, 3, 2, 40, 0}};
  for (size_t i = 0; i < sizeof kEmpty / sizeof *kEmpty; i++) {
    for (int repeat = 0; repeat < 8; repeat++) check_product(&kEmpty[i], BSRG_F32, ROWS, ROWS, ROWS, false);
  }
}

/* Rows of thousands of random numbers, beside one running sum over each: adding up short sums errs far
 * less. */
static void test_accuracy(void) {
  static const sizes kSizes[] = {
      {1, 64, 32, 64, 40, 64}, {1, 1000, 7, 5, 30, 1000}, {1, 2000, 8, 3, 3, 2000}, {1, 3, 9, 2000, 2, 3}};
  for (size_t i = 0; i < sizeof kSizes / sizeof *kSizes; i++) {
    const sizes *s = &kSizes[i];
    for (int dtype = BSRG_F32; dtype <= BSRG_F64; dtype++) {
      sparse a =
          new_sparse(1, s->block_cols, s->height, s->width, s->longest, true, (bsrg_dtype)dtype, false);
      matrix x = new_matrix(s->block_cols * s->width, s->columns, (bsrg_dtype)dtype, ROWS);
      matrix y = new_matrix(s->height, s->columns, (bsrg_dtype)dtype, ROWS);
      fill(&x, false);
      const bsrg_matmul_args args = arguments(&a, &x, NULL, &y, 1, 0);
      CHECK(bsrg_cpu_matmul(&args, NULL) == BSRG_OK);
      long double *sums = reference(&a, &x), ours = 0, running = 0;
      for (int64_t r = 0; r < s->height; r++) {
        for (int64_t j = 0; j < s->columns; j++) {
          double sum = 0;
          for (int64_t k = 0; k < x.view.rows; k++) {
            const int64_t element = (k / s->width * s->height + r) * s->width + k % s->width;
            sum = rounded(sum + rounded(get(a.values, y.dtype, element) * at(&x, k, j), y.dtype), y.dtype);
          }
          const long double exact = sums[r * s->columns + j];
          ours += (at(&y, r, j) - exact) * (at(&y, r, j) - exact);
          running += (sum - exact) * (sum - exact);
        }
      }
      CHECK(running > 0 && ours < running / 4);
      free(sums);
      free(y.memory);
      free(x.memory);
      free_sparse(&a);
    }
  }
}

/* ---- Conversions --------------------------------------------------------------------------------------- */

/* Every 16-bit number times one, by both ways (many columns and one), and products of any two bit
 * patterns: 22 digits at most, so exact before they are rounded. */
static void test_conversions(void) {
  for (int dtype = BSRG_F16; dtype <= BSRG_BF16; dtype++) {
    sparse one = new_sparse(1, 1, 1, 1, 1, true, (bsrg_dtype)dtype, true);
    matrix x = new_matrix(1, 65536, (bsrg_dtype)dtype, ROWS),
           y = new_matrix(1, 65536, (bsrg_dtype)dtype, ROWS);
    for (int round = 0; round < 8; round++) {
      const double value =
          round == 0 ? 1 : rounded(ldexp(random_real(), (int)random_between(-20, 8)), (bsrg_dtype)dtype);
      set(one.values, (bsrg_dtype)dtype, 0, value);
      for (int64_t j = 0; j < 65536; j++) ((uint16_t *)x.view.data)[j] = (uint16_t)j;
      const bsrg_matmul_args args = arguments(&one, &x, NULL, &y, 1, 0);
      CHECK(bsrg_cpu_matmul(&args, NULL) == BSRG_OK);
      int wrong = 0;
      for (int64_t j = 0; j < 65536; j++) {
        const double exact = value * get(x.view.data, x.dtype, j), expected = rounded(exact, y.dtype);
        const double result = get(y.view.data, y.dtype, j);
        wrong += isnan(expected) ? !isnan(result) : result != expected;
      }
      CHECK(wrong == 0);
      /* One column is another way through the backend, and reads and writes single elements. */
      for (int64_t j = 0; j < 65536; j += 17) {
        bsrg_matmul_args single = args;
        single.x.cols = single.y.cols = 1;
        single.x.data = (uint16_t *)x.view.data + j;
        uint16_t result;
        single.y.data = &result;
        CHECK(bsrg_cpu_matmul(&single, NULL) == BSRG_OK);
        CHECK(result == ((uint16_t *)y.view.data)[j]);
      }
    }
    free(y.memory);
    free(x.memory);
    free_sparse(&one);
  }
}

/* Rounding must not carry the digits of a NaN over into its sign: a factor that is NaN with all digits
 * set. */
static void test_nan_digits(void) {
  const uint64_t bits = UINT64_MAX >> 1;
  double alpha;
  memcpy(&alpha, &bits, sizeof alpha);
  for (int dtype = BSRG_F16; dtype <= BSRG_F64; dtype++) {
    sparse a = new_sparse(1, 1, 1, 1, 1, true, (bsrg_dtype)dtype, true);
    matrix x = new_matrix(1, 35, (bsrg_dtype)dtype, ROWS), y = new_matrix(1, 35, (bsrg_dtype)dtype, ROWS);
    fill(&x, true);
    memset(y.memory, 0, (size_t)y.bytes);
    const bsrg_matmul_args args = arguments(&a, &x, NULL, &y, alpha, 0);
    CHECK(bsrg_cpu_matmul(&args, NULL) == BSRG_OK);
    for (int64_t j = 0; j < 35; j++) CHECK(isnan(at(&y, 0, j)));
    free(y.memory);
    free(x.memory);
    free_sparse(&a);
  }
}

/* A NaN in X reaches the rows that use it, in its own column. */
static void test_nan(void) {
  for (int64_t columns = 1; columns < 40; columns += 6) {
    for (int dtype = BSRG_F16; dtype <= BSRG_F64; dtype++) {
      sparse a = new_sparse(4, 4, 5, 3, 4, true, (bsrg_dtype)dtype, true);
      const bsrg_structure_view s = bsrg_structure_get(a.structure);
      matrix x = new_matrix(12, columns, (bsrg_dtype)dtype, PADDED_ROWS);
      matrix y = new_matrix(20, columns, (bsrg_dtype)dtype, ROWS);
      fill(&x, true);
      put(&x, 7, columns / 2, NAN);
      const bsrg_matmul_args args = arguments(&a, &x, NULL, &y, 1, 0);
      CHECK(bsrg_cpu_matmul(&args, NULL) == BSRG_OK);
      for (int64_t i = 0; i < 20; i++) {
        bool used = false;
        for (int64_t p = s.indptr[i / 5]; p < s.indptr[i / 5 + 1]; p++) used |= s.indices[p] == 2;
        for (int64_t j = 0; j < columns; j++) CHECK(isnan(at(&y, i, j)) == (used && j == columns / 2));
      }
      free(y.memory);
      free(x.memory);
      free_sparse(&a);
    }
  }
}

static void tests(void) {
  test_random_products();
  test_large_products();
  test_empty();
  test_accuracy();
  test_conversions();
  test_nan();
  test_nan_digits();
}

int main(void) { return run_on_every_isa(tests); }
