/* The narrow family's launches: more columns than a kernel takes go in several, each with its columns of all operands. */
#include <string.h>

#include "fake/fake_driver.h"
#include "params.h"
#include "structures.h"

enum { ROWS = 2, MOST_HEIGHT = 128, MOST_M = ROWS * MOST_HEIGHT, K = 32, MOST = 512, PITCH = MOST + 8 };

/* 16 bits an element. X and Y are read and written in rows or in columns. */
static _Alignas(16) uint16_t values[MOST_M * K], x[PITCH * PITCH], c[PITCH * PITCH], y[PITCH * PITCH];
static uint16_t col_scale[2 * MOST], col_bias[MOST], row_bias[MOST_M];

enum { MOST_LAUNCHES = MOST / BSRG_NARROW_MAX_N };
static bsrg_narrow_params launched[MOST_LAUNCHES];
static int launches, clusters;

static bool is_of(const char *kernel, const char *prefix) {
  return strncmp(kernel, prefix, strlen(prefix)) == 0;
}

static void watch(const char *kernel, const void *parameters) {
  if (!is_of(kernel, "narrow_") || launches == MOST_LAUNCHES) return;
  const bsrg_narrow_tma_params *tma = parameters;
  const bsrg_narrow_cluster_params *cluster = parameters;
  launched[launches++] = is_of(kernel, "narrow_tma")       ? tma->narrow
                         : is_of(kernel, "narrow_cluster") ? cluster->narrow
                                                           : *(const bsrg_narrow_params *)parameters;
  if (is_of(kernel, "narrow_tma")) clusters += tma->cluster > 1;
}

static bsrg_dense dense(void *data, int64_t rows, int64_t cols, bool by_columns) {
  return by_columns ? (bsrg_dense){data, rows, cols, 1, PITCH} : (bsrg_dense){data, rows, cols, PITCH, 1};
}

/* panel: columns of a launch. in_pairs: strips of which two CTAs of a cluster may take one each. */
static void check_panels(bsrg_structure *structure, int64_t n, int64_t panel, bool by_columns,
                         bool in_pairs) {
  const int64_t m = structure->view.block_rows * structure->view.block_height;
  const bsrg_matmul_args args = {.a = structure,
                                 .values = values,
                                 .dtype = BSRG_F16,
                                 .x = dense(x, K, n, by_columns),
                                 .c = dense(c, m, n, by_columns),
                                 .y = dense(y, m, n, by_columns),
                                 .alpha = 1,
                                 .beta = 0.5,
                                 .device = {BSRG_CUDA, 0},
                                 .family = BSRG_NARROW,
                                 .epilogue = {.col_scale = {col_scale, n, 2, BSRG_F16},
                                              .row_bias = {row_bias, m, 1, BSRG_F16},
                                              .col_bias = {col_bias, n, 1, BSRG_F16}}};
  bsrg_error error = {""};
  launches = clusters = 0;
  if (bsrg_matmul(&args, &error) != BSRG_OK) {
    fprintf(stderr, "%lld columns: %s\n", (long long)n, error.message);
    ++failures;
    return;
  }
  CHECK(launches == (n + panel - 1) / panel);

  int expected_clusters = 0;
  for (int i = 0; i < launches; ++i) {
    const int64_t first = (int64_t)i * panel, at = by_columns ? first * PITCH : first;
    const bsrg_narrow_params *p = &launched[i];
    CHECK(p->n == bsrg_min(panel, n - first));
    CHECK(p->x == x + at && p->c == c + at && p->y == y + at);
    CHECK(p->output.col_bias.data == col_bias + first && p->output.col_bias.count == p->n);
    CHECK(p->output.col_scale.data == col_scale + 2 * first && p->output.col_scale.count == p->n);
    CHECK(p->output.row_bias.data == row_bias && p->output.row_bias.count == m);
    CHECK(p->output.row_scale.data == NULL);
    CHECK(p->values == values);
    /* By columns X comes by panels if these are whole. */
    expected_clusters += in_pairs && p->n > BSRG_NARROW_MAX_N && (!by_columns || p->n % 64 == 0);
  }
  CHECK(clusters == expected_clusters);
}

static void check_height(int64_t height, bool takes_panels) {
  int64_t *const indptr = malloc((ROWS + 1) * sizeof(*indptr)), *const indices =
                                                                    calloc(ROWS, sizeof(*indices));
  for (int64_t i = 0; i <= ROWS; ++i) indptr[i] = i;
  bsrg_structure *const structure = make_structure(ROWS, 1, height, K, indptr, indices);
  const int64_t columns[] = {1, 16, 64, 65, 100, 128, 136, 192, 200, 256, 300, 320, 512};
  for (size_t i = 0; i < sizeof(columns) / sizeof(*columns); ++i)
    for (int by_columns = 0; by_columns < 2; ++by_columns) {
      const int64_t n = columns[i];
      const bool whole = !by_columns || n % 64 == 0;
      const int64_t panel = !takes_panels ? BSRG_NARROW_MAX_N : whole ? MOST : BSRG_NARROW_TMA_MAX_N;
      check_panels(structure, n, panel, by_columns, height % 128 == 0);
    }
  bsrg_structure_destroy(structure);
}

int main(void) {
  fake_driver.launched = watch;
  check_height(16, false);
  check_height(32, true);
  check_height(64, true);
  check_height(128, true);
  return failures != 0;
}
