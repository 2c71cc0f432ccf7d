/* bsrg_softmax on the CPU: against a reference in every layout, in memory of exactly its size; and what it refuses. */
#include <math.h>
#include <string.h>

#include "structures.h"

enum { MOST = 6 };

static bsrg_structure *random_structure(int64_t rows, int64_t cols, int64_t height, int64_t width) {
  int64_t *indptr = malloc(sizeof(*indptr) * (size_t)(rows + 1));
  int64_t *indices = malloc(sizeof(*indices) * (size_t)(rows * cols + 1));
  indptr[0] = 0;
  for (int64_t i = 0, n = 0; i < rows; ++i) {
    for (int64_t j = 0; j < cols; ++j)
      if (random_below(2)) indices[n++] = j;
    indptr[i + 1] = n;
  }
  return make_structure(rows, cols, height, width, indptr, indices);
}

static double get(const void *values, bsrg_dtype dtype, int64_t i) {
  return dtype == BSRG_F64 ? ((const double *)values)[i] : (double)((const float *)values)[i];
}

/* Of element (row, column) of a block of the view, within values. */
static int64_t element(const bsrg_structure_view *v, int64_t block, int64_t row, int64_t column) {
  const int64_t area = v->block_height * v->block_width;
  return v->order ? v->order[block] * area + column * v->block_height + row
                  : block * area + row * v->block_width + column;
}

static void compare(const bsrg_structure_view *v, const void *values, const void *out, bsrg_dtype dtype,
                    double scale) {
  for (int64_t i = 0; i < v->block_rows; ++i)
    for (int64_t row = 0; row < v->block_height; ++row) {
      double maximum = -INFINITY, total = 0;
      for (int64_t b = v->indptr[i]; b < v->indptr[i + 1]; ++b)
        for (int64_t c = 0; c < v->block_width; ++c)
          maximum = fmax(maximum, scale * get(values, dtype, element(v, b, row, c)));
      for (int64_t b = v->indptr[i]; b < v->indptr[i + 1]; ++b)
        for (int64_t c = 0; c < v->block_width; ++c)
          total += exp(scale * get(values, dtype, element(v, b, row, c)) - maximum);
      for (int64_t b = v->indptr[i]; b < v->indptr[i + 1]; ++b)
        for (int64_t c = 0; c < v->block_width; ++c) {
          const int64_t at = element(v, b, row, c);
          const double expected = exp(scale * get(values, dtype, at) - maximum) / total;
          CHECK(fabs(get(out, dtype, at) - expected) <= (dtype == BSRG_F64 ? 1e-13 : 2e-6) * expected);
        }
    }
}

static void test_values(void) {
  static const int64_t sides[] = {1, 2, 5, 8, 16, 17, 48, 65, 300};
  const int count = sizeof sides / sizeof sides[0];
  for (int i = 0; i < count * count; ++i)
    for (int variant = 0; variant < 8; ++variant) {
      const int64_t height = sides[i / count], width = sides[i % count];
      const bool transposed = variant & 1, in_place = variant & 2;
      const bsrg_dtype dtype = variant & 4 ? BSRG_F64 : BSRG_F32;
      const double scale = variant & 1 ? 1 : -0.5;
      bsrg_structure *own = random_structure(random_below(4), random_below(MOST), height, width), *a = own;
      if (transposed) CHECK(bsrg_structure_transposed(own, &a, NULL) == BSRG_OK);
      const bsrg_structure_view v = bsrg_structure_get(a);
      const int64_t elements = v.nnzb * height * width;
      const size_t bytes = (size_t)elements * bsrg_dtype_size(dtype);
      void *values = malloc(bytes), *before = malloc(bytes), *out = in_place ? values : malloc(bytes);
      for (int64_t k = 0; k < elements; ++k) {
        const double x = (double)random_below(20000) / 1000 - 10;
        if (dtype == BSRG_F64) ((double *)values)[k] = x;
        if (dtype == BSRG_F32) ((float *)values)[k] = (float)x;
      }
      memcpy(before, values, bytes);
      const bsrg_softmax_args args = {.a = a, .values = values, .out = out, .dtype = dtype, .scale = scale};
      bsrg_error error = {""};
      CHECK(bsrg_softmax(&args, &error) == BSRG_OK);
      compare(&v, before, out, dtype, scale);
      if (!in_place) {
        CHECK(memcmp(before, values, bytes) == 0);
        free(out);
      }
      free(values);
      free(before);
      bsrg_structure_destroy(own);
    }
}

static void refuse(int line, bsrg_softmax_args args, bsrg_status status, const char *text) {
  bsrg_error error = {""};
  if (bsrg_softmax(&args, &error) == status && strstr(error.message, text) != NULL &&
      bsrg_softmax(&args, NULL) == status)
    return;
  fprintf(stderr, "line %d: \"%s\" instead of \"%s\"\n", line, error.message, text);
  ++failures;
}

static void test_refusals(void) {
  int64_t *indptr = calloc(2, sizeof(*indptr)), *indices = calloc(1, sizeof(*indices));
  indptr[1] = 1;
  bsrg_structure *a = make_structure(1, 1, 2, 2, indptr, indices);
  float memory[8] = {0};
  const bsrg_softmax_args good = {.a = a, .values = memory, .out = memory + 4, .dtype = BSRG_F32, .scale = 1};
  CHECK(bsrg_softmax(&good, NULL) == BSRG_OK);
#define REFUSE(change, status, text)          \
  do {                                        \
    bsrg_softmax_args args = good;            \
    change;                                   \
    refuse(__LINE__, args, (status), (text)); \
  } while (0)
  REFUSE(args.a = NULL, BSRG_ERR_VALUE, "a is NULL");
  REFUSE(args.values = NULL, BSRG_ERR_VALUE, "a.data has elements, but its pointer is NULL");
  REFUSE(args.out = NULL, BSRG_ERR_VALUE, "out has elements, but its pointer is NULL");
  REFUSE(args.out = memory + 1, BSRG_ERR_VALUE, "out overlaps a.data in memory");
  REFUSE(args.out = (char *)memory + 18, BSRG_ERR_VALUE, "out starts at address");
  REFUSE(args.dtype = BSRG_F8_E4M3, BSRG_ERR_TYPE, "dtype is 4");
  REFUSE(args.device.index = -1, BSRG_ERR_VALUE, "device is kind 0, index -1");
#undef REFUSE
  bsrg_structure_destroy(a);
}

int main(void) {
  test_values();
  test_refusals();
  return failures ? EXIT_FAILURE : EXIT_SUCCESS;
}
