/* What the tests of the CPU backend share: random numbers, the 16-bit formats as arithmetic, matrices in
 * every layout, random block-sparse matrices and their products in double precision. */
#ifndef BSRG_TEST_CPU_OPERANDS_H
#define BSRG_TEST_CPU_OPERANDS_H

#include <inttypes.h>
#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "check.h"
#include "internal.h"

/* ---- Numbers ------------------------------------------------------------------------------------------- */

static uint64_t random_state;

static inline uint64_t random_bits(void) {
  random_state += 0x9e3779b97f4a7c15u;
  uint64_t z = random_state;
  z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
  z = (z ^ z >> 27) * 0x94d049bb133111ebu;
  return z ^ z >> 31;
}
static inline int64_t random_below(int64_t n) { return (int64_t)(random_bits() % (uint64_t)n); }
static inline int64_t random_between(int64_t low, int64_t high) { return low + random_below(high - low + 1); }
static inline double random_real(void) { return (double)random_between(-1000000, 1000000) / 1000000; }

static inline void *allocate(int64_t bytes) {
  void *memory = malloc(bytes > 0 ? (size_t)bytes : 1);
  if (memory == NULL) abort();
  return memory;
}

/* The binary formats as arithmetic, independent of the backend's bit operations. */
typedef struct format {
  int precision, least_exponent, mantissa_bits;
  double overflow; /* numbers from here on round to infinity */
} format;
static const format kFloat16 = {11, -14, 10, 65520};
static const format kBfloat16 = {8, -126, 7, 0x1.ffp127};

static inline uint16_t narrow(double value, const format *f) {
  const uint16_t sign = signbit(value) ? 0x8000 : 0;
  const double magnitude = fabs(value);
  const uint16_t infinity = (uint16_t)(0x7fff >> f->mantissa_bits << f->mantissa_bits);
  if (isnan(value)) return (uint16_t)(infinity | 1 << (f->mantissa_bits - 1));
  if (magnitude >= f->overflow) return sign | infinity;
  int exponent = magnitude > 0 ? ilogb(magnitude) : f->least_exponent;
  if (exponent < f->least_exponent) exponent = f->least_exponent;
  const double digits = rint(ldexp(magnitude, f->precision - 1 - exponent));
  /* Digits of 2^precision carry into the exponent, as they should; subnormal numbers have none. */
  const int64_t biased = (int64_t)(exponent - f->least_exponent) << f->mantissa_bits;
  return (uint16_t)(sign | (biased + (int64_t)digits));
}

static inline double widen(uint16_t bits, const format *f) {
  const int field = (bits & 0x7fff) >> f->mantissa_bits;
  const int mantissa = bits & ((1 << f->mantissa_bits) - 1);
  const double sign = bits & 0x8000 ? -1 : 1;
  if (field == 0x7fff >> f->mantissa_bits) return mantissa ? NAN : sign * INFINITY;
  const int hidden = field > 0 ? 1 << f->mantissa_bits : 0;
  return sign * ldexp(hidden + mantissa, (field > 0 ? field - 1 : 0) + f->least_exponent - f->precision + 1);
}

static inline void set(void *data, bsrg_dtype dtype, int64_t i, double value) {
  switch (dtype) {
    case BSRG_F64:
      ((double *)data)[i] = value;
      break;
    case BSRG_F32:
      ((float *)data)[i] = (float)value;
      break;
    default:
      ((uint16_t *)data)[i] = narrow(value, dtype == BSRG_F16 ? &kFloat16 : &kBfloat16);
  }
}

static inline double get(const void *data, bsrg_dtype dtype, int64_t i) {
  switch (dtype) {
    case BSRG_F64:
      return ((const double *)data)[i];
    case BSRG_F32:
      return ((const float *)data)[i];
    default:
      return widen(((const uint16_t *)data)[i], dtype == BSRG_F16 ? &kFloat16 : &kBfloat16);
  }
}

static inline double rounded(double value, bsrg_dtype dtype) {
  double item;
  set(&item, dtype, 0, value);
  return get(&item, dtype, 0);
}

/* ---- Operands ------------------------------------------------------------------------------------------ */

/* A matrix in memory that ends with its last element; what lies between its elements is NaN. */
typedef struct matrix {
  bsrg_dense view;
  bsrg_dtype dtype;
  char *memory;
  int64_t bytes;
} matrix;

typedef enum layout { ROWS, COLUMNS, PADDED_ROWS, PADDED_COLUMNS, SCATTERED, BACKWARDS, LAYOUT_COUNT } layout;

static inline matrix new_matrix(int64_t rows, int64_t cols, bsrg_dtype dtype, layout l) {
  int64_t row_stride = cols, col_stride = 1;
  if (l == COLUMNS) row_stride = 1, col_stride = rows;
  if (l == PADDED_ROWS) row_stride = cols + 3;
  if (l == PADDED_COLUMNS) row_stride = 1, col_stride = rows + 5;
  if (l == SCATTERED) row_stride = 3 * cols + 1, col_stride = 3;
  if (l == BACKWARDS) row_stride = -cols;
  const int64_t size = (int64_t)bsrg_dtype_size(dtype);
  const int64_t row_reach = rows > 0 ? (rows - 1) * row_stride : 0,
                col_reach = cols > 0 ? (cols - 1) * col_stride : 0;
  matrix m = {{NULL, rows, cols, row_stride, col_stride}, dtype, NULL, 0};
  m.bytes = rows > 0 && cols > 0 ? (llabs(row_reach) + col_reach + 1) * size : 0;
  m.memory = allocate(m.bytes);
  memset(m.memory, 0xff, (size_t)m.bytes);
  m.view.data = m.memory + (row_reach < 0 ? -row_reach * size : 0);
  return m;
}

static inline int64_t offset(const matrix *m, int64_t i, int64_t j) {
  return i * m->view.row_stride + j * m->view.col_stride;
}
static inline double at(const matrix *m, int64_t i, int64_t j) {
  return get(m->view.data, m->dtype, offset(m, i, j));
}
static inline void put(matrix *m, int64_t i, int64_t j, double value) {
  set(m->view.data, m->dtype, offset(m, i, j), value);
}

static inline void fill(matrix *m, bool whole) {
  for (int64_t i = 0; i < m->view.rows; i++) {
    for (int64_t j = 0; j < m->view.cols; j++)
      put(m, i, j, whole ? (double)random_between(-3, 3) : random_real());
  }
}

typedef struct sparse {
  bsrg_structure *structure;
  void *values;
  bsrg_dtype dtype;
} sparse;

/* Block rows of random lengths up to `longest`; one of them, perhaps, is full. */
static inline sparse new_sparse(int64_t block_rows, int64_t block_cols, int64_t height, int64_t width,
                                int64_t longest, bool skewed, bsrg_dtype dtype, bool whole) {
  int64_t *indptr = allocate((block_rows + 1) * (int64_t)sizeof *indptr);
  int64_t *lengths = allocate(block_rows * (int64_t)sizeof *lengths);
  indptr[0] = 0;
  const int64_t full = skewed && block_rows > 0 ? random_below(block_rows) : -1;
  for (int64_t i = 0; i < block_rows; i++) {
    lengths[i] = i == full ? block_cols : random_between(0, bsrg_min(longest, block_cols));
    indptr[i + 1] = indptr[i] + lengths[i];
  }
  const int64_t nnzb = indptr[block_rows];
  int64_t *indices = allocate(nnzb * (int64_t)sizeof *indices);
  for (int64_t i = 0, p = 0; i < block_rows; i++) {
    int64_t wanted = lengths[i];
    for (int64_t j = 0; j < block_cols && wanted > 0; j++) {
      if (random_below(block_cols - j) < wanted) {
        indices[p++] = j;
        wanted--;
      }
    }
  }
  const bsrg_pattern pattern = {block_rows * height, block_cols * width, height,  width, nnzb,
                                block_rows + 1,      BSRG_I64,           indices, indptr};
  sparse a = {NULL, NULL, dtype};
  bsrg_error error;
  if (bsrg_structure_create(&pattern, 1, &a.structure, &error) != BSRG_OK) {
    fprintf(stderr, "%s\n", error.message);
    abort();
  }
  const int64_t count = nnzb * height * width;
  a.values = allocate(count * (int64_t)bsrg_dtype_size(dtype));
  for (int64_t i = 0; i < count; i++) {
    set(a.values, dtype, i, whole ? (double)random_between(-3, 3) : random_real());
  }
  free(indices);
  free(lengths);
  free(indptr);
  return a;
}

static inline void free_sparse(sparse *a) {
  bsrg_structure_destroy(a->structure);
  free(a->values);
}

static inline bsrg_matmul_args arguments(const sparse *a, const matrix *x, const matrix *c, const matrix *y,
                                         double alpha, double beta) {
  bsrg_matmul_args args = {.a = a->structure, .values = a->values, .dtype = a->dtype};
  args.x = x->view;
  if (c != NULL) args.c = c->view;
  args.y = y->view;
  args.alpha = alpha;
  args.beta = beta;
  return args;
}

/* A @ X in double precision, or better for the accuracy of float64: [rows][cols]. */
static inline long double *reference(const sparse *a, const matrix *x) {
  const bsrg_structure_view s = bsrg_structure_get(a->structure);
  const int64_t n = x->view.cols;
  double *b = allocate(s.cols * n * (int64_t)sizeof *b);
  for (int64_t i = 0; i < s.cols * n; i++) b[i] = at(x, i / n, i % n);
  long double *sums = allocate(s.rows * n * (int64_t)sizeof *sums);
  for (int64_t i = 0; i < s.rows * n; i++) sums[i] = 0;
  for (int64_t i = 0; i < s.block_rows; i++) {
    for (int64_t p = s.indptr[i]; p < s.indptr[i + 1]; p++) {
      for (int64_t r = 0; r < s.block_height; r++) {
        for (int64_t k = 0; k < s.block_width; k++) {
          const long double value = get(a->values, a->dtype, (p * s.block_height + r) * s.block_width + k);
          const double *row = b + (s.indices[p] * s.block_width + k) * n;
          for (int64_t j = 0; j < n; j++) sums[(i * s.block_height + r) * n + j] += value * row[j];
        }
      }
    }
  }
  free(b);
  return sums;
}

/* ---- Shapes -------------------------------------------------------------------------------------------- */

typedef struct sizes {
  int64_t block_rows, block_cols, height, width, columns, longest;
} sizes;

/* One for each way through the backend, too large for the random ones: X packed in several chunks,
 * gathered, read in place; long rows of small blocks; wide and tall blocks; few columns of long rows. */
enum { LARGE_COUNT = 10 };
static const sizes kLarge[LARGE_COUNT] = {
    {3, 130, 66, 70, 33, 130}, {40, 2300, 4, 4, 49, 900}, {3, 3000, 20, 5, 33, 20}, {700, 700, 3, 3, 20, 9},
    {9, 3000, 2, 1, 17, 3000}, {2, 3, 70, 1500, 19, 3},   {3, 2, 400, 300, 3, 2},   {600, 500, 2, 3, 4, 400},
    {2, 30, 9, 300, 7, 30},    {1, 2, 10, 6000, 1, 2},
};

/* The instruction set is chosen once in a process, so each gets a process of its own. */
static inline int run_on_every_isa(void (*tests)(void)) {
  static const char *const kIsas[] = {"generic", "avx2", "avx512"};
  int failed = 0;
  for (int i = 0; i < 3; i++) {
    const pid_t child = fork();
    if (child == 0) {
      setenv("BSRGEMM_ISA", kIsas[i], 1);
      random_state = 1;
      tests();
      if (failures > 0) fprintf(stderr, "%d failures on %s\n", failures, bsrg_cpu_isa());
      exit(failures > 0);
    }
    int status = 0;
    if (child < 0 || waitpid(child, &status, 0) != child || !WIFEXITED(status) || WEXITSTATUS(status) != 0) {
      fprintf(stderr, "%s failed\n", kIsas[i]);
      failed = 1;
    }
  }
  return failed;
}

#endif
