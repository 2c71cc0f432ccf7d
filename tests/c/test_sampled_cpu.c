/* Sampled products on the CPU, on whole numbers, whose sums are exact: every instruction set, dtype and layout, memory that
 * ends with the operands' last elements, and values that are NaN where they must not be read. */
#define _GNU_SOURCE
#include "cpu_operands.h"

static void compare(const sparse *p, const matrix *a, const matrix *b, const void *out, double alpha,
                    double beta) {
  const bsrg_structure_view s = bsrg_structure_get(p->structure);
  for (int64_t row = 0; row < s.block_rows; row++) {
    for (int64_t block = s.indptr[row]; block < s.indptr[row + 1]; block++) {
      for (int64_t i = 0; i < s.block_height * s.block_width; i++) {
        const int64_t r = row * s.block_height + i / s.block_width;
        const int64_t c = s.indices[block] * s.block_width + i % s.block_width;
        const int64_t element = block * s.block_height * s.block_width + i;
        double sum = 0;
        for (int64_t k = 0; k < a->view.cols; k++) sum += at(a, r, k) * at(b, k, c);
        const double old = beta != 0 ? get(p->values, p->dtype, element) : 0;
        if (get(out, p->dtype, element) == rounded(alpha * sum + beta * old, p->dtype)) continue;
        fprintf(stderr, "%s, blocks of %" PRId64 " x %" PRId64 ", K = %" PRId64 ": element %" PRId64 "\n",
                bsrg_dtype_name(p->dtype), s.block_height, s.block_width, a->view.cols, element);
        ++failures;
        return;
      }
    }
  }
}

/* Into new memory, then the same with threads into the values themselves. */
static void check(const sizes *size, int64_t inner, bsrg_dtype dtype, layout a_layout, layout b_layout,
                  double beta) {
  sparse p = new_sparse(size->block_rows, size->block_cols, size->height, size->width, size->longest, true,
                        dtype, true);
  const bsrg_structure_view s = bsrg_structure_get(p.structure);
  matrix a = new_matrix(s.rows, inner, dtype, a_layout), b = new_matrix(inner, s.cols, dtype, b_layout);
  fill(&a, true);
  fill(&b, true);
  const int64_t bytes = s.nnzb * s.block_height * s.block_width * (int64_t)bsrg_dtype_size(dtype);
  void *out = allocate(bytes);
  memset(out, 0xff, (size_t)bytes);
  if (beta == 0) memset(p.values, 0xff, (size_t)bytes);
  bsrg_sampled_args args = {.pattern = p.structure,
                            .dtype = dtype,
                            .a = a.view,
                            .b = b.view,
                            .values = beta == 0 ? NULL : p.values,
                            .out = out,
                            .alpha = 0.5,
                            .beta = beta};
  bsrg_set_num_threads(1, NULL);
  CHECK(bsrg_sampled_matmul(&args, NULL) == BSRG_OK);
  compare(&p, &a, &b, out, 0.5, beta);
  bsrg_set_num_threads(3, NULL);
  args.out = p.values;
  CHECK(bsrg_sampled_matmul(&args, NULL) == BSRG_OK);
  CHECK(bytes == 0 || memcmp(out, p.values, (size_t)bytes) == 0);
  free(out);
  free(a.memory);
  free(b.memory);
  free_sparse(&p);
}

static void tests(void) {
  static const int64_t inner[] = {0, 1, 5, 127, 128, 129, 300};
  for (int i = 0; i < 400; i++) {
    const sizes size = {
        random_between(0, 5), random_between(0, 6), random_between(1, 40), random_between(1, 70), 0,
        random_between(0, 6)};
    check(&size, inner[random_below(7)], (bsrg_dtype)random_below(4), (layout)random_below(LAYOUT_COUNT),
          (layout)random_below(LAYOUT_COUNT), i % 2 ? 0 : -2);
  }
  static const sizes kTall = {2, 2, 300, 17, 0, 2}, kWide = {2, 2, 9, 400, 0, 2},
                     kSmall = {60, 90, 1, 2, 0, 70};
  for (int dtype = 0; dtype < 4; dtype++) {
    check(&kTall, 140, (bsrg_dtype)dtype, ROWS, ROWS, 1);
    check(&kWide, 140, (bsrg_dtype)dtype, COLUMNS, COLUMNS, 1);
    check(&kSmall, 260, (bsrg_dtype)dtype, ROWS, ROWS, 0);
  }
}

int main(void) { return run_on_every_isa(tests); }
