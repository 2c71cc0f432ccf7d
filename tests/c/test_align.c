/* The align family: which products it takes, which family it runs inside, and what its prediction counts. */
#include <string.h>

#include "family.h"
#include "structures.h"

/* Every fourth block of each row. */
static bsrg_structure *make(int64_t rows, int64_t cols, int64_t height, int64_t width) {
  int64_t *indptr = calloc((size_t)rows + 1, sizeof(*indptr));
  int64_t *indices = malloc(sizeof(*indices) * (size_t)(rows * cols));
  for (int64_t i = 0; i < rows; ++i) {
    indptr[i + 1] = indptr[i];
    for (int64_t j = i % 4; j < cols; j += 4) indices[indptr[i + 1]++] = j;
  }
  return make_structure(rows, cols, height, width, indptr, indices);
}

/* A product of aligned row-major operands; nothing here reads them. */
static bsrg_matmul_args contiguous(bsrg_structure *a, int64_t n) {
  const bsrg_structure_view v = bsrg_structure_get(a);
  return (bsrg_matmul_args){.a = a,
                            .values = (void *)4096,
                            .dtype = BSRG_BF16,
                            .x = {(void *)4096, v.cols, n, n, 1},
                            .c = {(void *)4096, v.rows, n, n, 1},
                            .y = {(void *)4096, v.rows, n, n, 1},
                            .alpha = 1};
}

static void *after(void *data, uintptr_t bytes) { return (void *)((uintptr_t)data + bytes); }

static void by_columns(bsrg_dense *dense) {
  dense->row_stride = 1;
  dense->col_stride = dense->rows;
}

static bsrg_family chosen(bsrg_matmul_args args, bsrg_family family, bsrg_error *error) {
  const bsrg_chip chip = bsrg_chip_h200();
  const bsrg_family_ops *ops;
  const void *plan;
  args.family = family;
  return bsrg_choose_family(&args, &chip, &ops, &plan, error) == BSRG_OK ? ops->family : BSRG_AUTO;
}

static double seconds_on(int sm_arch, const bsrg_matmul_args *args, char *reason) {
  bsrg_chip chip = bsrg_chip_h200();
  chip.sm_arch = sm_arch;
  const void *plan;
  bsrg_candidate candidate = {0};
  CHECK(bsrg_align_family.layout_obstacle(args) == NULL);
  if (bsrg_plan_get(args->a, &bsrg_align_family, false, &plan, NULL) != BSRG_OK) abort();
  bsrg_align_family.predict(args, plan, &chip, &candidate);
  if (reason) strcpy(reason, candidate.reason);
  return candidate.seconds;
}

static double seconds(const bsrg_matmul_args *args, char *reason) { return seconds_on(90, args, reason); }

/* Both X and Y by columns, which the Hopper kernels take for any n, and any C. */
static void test_columns(bsrg_structure *a, bsrg_family direct) {
  bsrg_error error;
  for (int64_t n = 4095; n <= 4096; ++n) {
    bsrg_matmul_args args = contiguous(a, n);
    by_columns(&args.x);
    by_columns(&args.y);
    CHECK(chosen(args, BSRG_AUTO, &error) == direct);
    CHECK(chosen(args, BSRG_ALIGN, &error) == BSRG_ALIGN);
    args.beta = 1; /* by rows, of n elements each */
    CHECK(chosen(args, BSRG_AUTO, &error) == direct);
    args.y.data = after(args.y.data, 2);
    CHECK(chosen(args, BSRG_AUTO, &error) == BSRG_ALIGN);
    if (direct == BSRG_REGROUP) continue; /* which copies the values */
    args.y.data = after(args.y.data, 14);
    args.values = after((void *)args.values, 8);
    CHECK(chosen(args, direct, &error) == BSRG_AUTO && strstr(error.message, "a.data"));
  }
}

static void test_choice(int64_t block, bsrg_family direct) {
  bsrg_structure *a = make(4096 / block, 4096 / block, block, block);
  bsrg_error error;
  bsrg_matmul_args args = contiguous(a, 4096);
  CHECK(chosen(args, BSRG_AUTO, &error) == direct);
  CHECK(chosen(args, BSRG_ALIGN, &error) == BSRG_AUTO && strstr(error.message, "cannot read by vectors"));
  CHECK(chosen(contiguous(a, 4095), BSRG_AUTO, &error) == BSRG_ALIGN);
  by_columns(&args.x);
  CHECK(chosen(args, BSRG_AUTO, &error) == BSRG_ALIGN);
  CHECK(chosen(args, direct, &error) == BSRG_AUTO && strstr(error.message, "row-major"));
  test_columns(a, direct);
  args = contiguous(a, 4096);
  args.y.data = after(args.y.data, 2);
  CHECK(chosen(args, BSRG_AUTO, &error) == BSRG_ALIGN);
  args = contiguous(a, 4096);
  args.x.row_stride = -args.x.row_stride; /* TMA has neither negative strides nor rows that are all one */
  CHECK(chosen(args, direct, &error) == BSRG_AUTO && chosen(args, BSRG_ALIGN, &error) == BSRG_ALIGN);
  args.x.row_stride = 0;
  CHECK(chosen(args, direct, &error) == BSRG_AUTO && chosen(args, BSRG_ALIGN, &error) == BSRG_ALIGN);
  args = contiguous(a, 4096);
  by_columns(&args.c); /* not read */
  CHECK(chosen(args, BSRG_AUTO, &error) == direct);
  args.beta = 1;
  CHECK(chosen(args, BSRG_AUTO, &error) == BSRG_ALIGN);
  args.values = after((void *)args.values, 8); /* which other kernels take on the copies */
  CHECK(chosen(args, BSRG_ALIGN, &error) == BSRG_ALIGN);
  bsrg_structure_destroy(a);
}

/* Every copy costs something, and only what needs one gets it. */
static void test_prediction(void) {
  bsrg_structure *a = make(16, 32, 128, 128);
  bsrg_matmul_args x_only = contiguous(a, 1024), both = contiguous(a, 1024), all;
  by_columns(&x_only.x);
  by_columns(&both.x);
  by_columns(&both.y);
  all = both;
  all.beta = 1;
  by_columns(&all.c);
  CHECK(seconds(&x_only, NULL) < seconds(&both, NULL));
  CHECK(seconds(&both, NULL) < seconds(&all, NULL));
  const bsrg_matmul_args ragged = contiguous(a, 1017);
  char reason[160];
  const double more = seconds(&ragged, reason) / seconds(&both, NULL);
  CHECK(more > 0.9 && more < 1.1);
  CHECK(strncmp(reason, "as tall on aligned copies; limited by", 37) == 0);
  /* Of operands by columns that maps describe but for Y, Y alone is copied: but not before Hopper, by rows. */
  bsrg_matmul_args y_only = both;
  y_only.y.data = after(y_only.y.data, 2);
  CHECK(seconds(&y_only, NULL) < seconds(&both, NULL) - 1e-6);
  CHECK(seconds_on(80, &y_only, NULL) == seconds_on(80, &both, NULL));
  bsrg_structure_destroy(a);
}

/* On GPUs before Hopper. */
static void test_portable(void) {
  char reason[160];
  for (int64_t block = 12; block <= 128; block += 116) {
    bsrg_structure *a = make(4096 / block, 4096 / block, block, block);
    bsrg_matmul_args args = contiguous(a, 1024);
    by_columns(&args.x);
    by_columns(&args.y);
    bsrg_chip chip = bsrg_chip_h200();
    chip.sm_arch = 80;
    const bsrg_family_ops *ops;
    const void *plan;
    CHECK(bsrg_choose_family(&args, &chip, &ops, &plan, NULL) == BSRG_OK && ops->family == BSRG_ALIGN);
    seconds_on(chip.sm_arch, &args, reason);
    CHECK(strncmp(reason, "as portable on aligned copies; ", 31) == 0);
    bsrg_structure_destroy(a);
  }
}

int main(void) {
  test_choice(128, BSRG_TALL);
  test_choice(16, BSRG_STREAM);
  test_choice(8, BSRG_REGROUP);
  test_prediction();
  test_portable();
  return failures != 0;
}
