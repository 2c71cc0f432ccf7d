/* The narrow family's launches: more columns than a kernel takes go in panels, each with its columns of all operands. */
#include <string.h>

#include "fake/fake_driver.h"
#include "params.h"
#include "structures.h"

enum { ROWS = 4, HEIGHT = 16, M = ROWS * HEIGHT, K = 32, MOST = 128, PITCH = MOST + 8 };

/* 16 bits an element. X and Y are read and written in rows or in columns. */
static _Alignas(16) uint16_t values[ROWS * HEIGHT * K], x[PITCH * PITCH], c[PITCH * PITCH], y[PITCH * PITCH];
static uint16_t col_scale[2 * MOST], col_bias[MOST], row_bias[M];

static bsrg_narrow_params launched[4];
static int launches;

static bool is_of(const char *kernel, const char *prefix) {
  return strncmp(kernel, prefix, strlen(prefix)) == 0;
}

static void watch(const char *kernel, const void *parameters) {
  if (!is_of(kernel, "narrow_") || launches == 4) return;
  const bsrg_narrow_tma_params *tma = parameters;
  const bsrg_narrow_cluster_params *cluster = parameters;
  launched[launches++] = is_of(kernel, "narrow_tma")       ? tma->narrow
                         : is_of(kernel, "narrow_cluster") ? cluster->narrow
                                                           : *(const bsrg_narrow_params *)parameters;
}

static bsrg_dense dense(void *data, int64_t rows, int64_t cols, bool by_columns) {
  return by_columns ? (bsrg_dense){data, rows, cols, 1, PITCH} : (bsrg_dense){data, rows, cols, PITCH, 1};
}

static void check_panels(bsrg_structure *structure, int64_t n, bool by_columns) {
  const bsrg_matmul_args args = {.a = structure,
                                 .values = values,
                                 .dtype = BSRG_F16,
                                 .x = dense(x, K, n, by_columns),
                                 .c = dense(c, M, n, by_columns),
                                 .y = dense(y, M, n, by_columns),
                                 .alpha = 1,
                                 .beta = 0.5,
                                 .device = {BSRG_CUDA, 0},
                                 .family = BSRG_NARROW,
                                 .epilogue = {.col_scale = {col_scale, n, 2, BSRG_F16},
                                              .row_bias = {row_bias, M, 1, BSRG_F16},
                                              .col_bias = {col_bias, n, 1, BSRG_F16}}};
  bsrg_error error = {""};
  launches = 0;
  if (bsrg_matmul(&args, &error) != BSRG_OK) {
    fprintf(stderr, "%lld columns: %s\n", (long long)n, error.message);
    ++failures;
    return;
  }
  CHECK(launches == (n + BSRG_NARROW_MAX_N - 1) / BSRG_NARROW_MAX_N);
  for (int i = 0; i < launches; ++i) {
    const int64_t first = (int64_t)i * BSRG_NARROW_MAX_N, at = by_columns ? first * PITCH : first;
    const bsrg_narrow_params *p = &launched[i];
    CHECK(p->n == bsrg_min(BSRG_NARROW_MAX_N, n - first));
    CHECK(p->x == x + at && p->c == c + at && p->y == y + at);
    CHECK(p->output.col_bias.data == col_bias + first && p->output.col_bias.count == p->n);
    CHECK(p->output.col_scale.data == col_scale + 2 * first && p->output.col_scale.count == p->n);
    CHECK(p->output.row_bias.data == row_bias && p->output.row_bias.count == M);
    CHECK(p->output.row_scale.data == NULL);
    CHECK(p->values == values);
  }
}

int main(void) {
  int64_t *const indptr = malloc((ROWS + 1) * sizeof(*indptr)), *const indices =
                                                                    calloc(ROWS, sizeof(*indices));
  for (int64_t i = 0; i <= ROWS; ++i) indptr[i] = i;
  bsrg_structure *const structure = make_structure(ROWS, 1, HEIGHT, K, indptr, indices);
  fake_driver.launched = watch;
  const int64_t columns[] = {1, 16, 64, 65, 100, 128};
  for (size_t i = 0; i < sizeof(columns) / sizeof(*columns); ++i)
    for (int by_columns = 0; by_columns < 2; ++by_columns) check_panels(structure, columns[i], by_columns);
  bsrg_structure_destroy(structure);
  return failures != 0;
}
