/* bsrg_matmul refuses every call that a backend could not survive, and no other. */
#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "bsrgemm.h"
#include "check.h"

enum { M = 4, K = 6, N = 3, PITCH = 8 };

/* A = two blocks of 2 x 3 on the diagonal. All operands lie in one arena, so that any overlap can be made. */
static float arena[400];
static float *const kValues = arena, *const kX = arena + 100, *const kC = arena + 200,
                    *const kY = arena + 300;
static bsrg_structure *structure;

static bsrg_matmul_args good(void) {
  return (bsrg_matmul_args){
      .a = structure,
      .values = kValues,
      .dtype = BSRG_F32,
      .x = {kX, K, N, PITCH, 1},
      .c = {kC, M, N, PITCH, 1},
      .y = {kY, M, N, PITCH, 1},
      .alpha = 1,
      .beta = 0.5,
      .device = {BSRG_CPU, 0},
  };
}

static void refuse(int line, const bsrg_matmul_args *args, bsrg_status status, const char *text) {
  bsrg_error error = {""};
  const bsrg_status found = bsrg_matmul(args, &error);
  if (found == status && strstr(error.message, text) != NULL && bsrg_matmul(args, NULL) == status) return;
  fprintf(stderr, "line %d: status %d, \"%s\" instead of \"%s\"\n", line, (int)found, error.message, text);
  ++failures;
}

/* Changes one thing in a good call and expects a refusal. */
#define REFUSE(change, status, text)           \
  do {                                         \
    bsrg_matmul_args args = good();            \
    change;                                    \
    refuse(__LINE__, &args, (status), (text)); \
  } while (0)
#define ACCEPT(change)                                           \
  do {                                                           \
    bsrg_matmul_args args = good();                              \
    change;                                                      \
    bsrg_error error = {""};                                     \
    if (bsrg_matmul(&args, &error) != BSRG_OK) {                 \
      fprintf(stderr, "line %d: %s\n", __LINE__, error.message); \
      ++failures;                                                \
    }                                                            \
  } while (0)

static void test_arguments(void) {
  REFUSE(args.batch.ndim = -1, BSRG_ERR_VALUE, "batch has -1 dimensions, but must have 0 to 6");
  REFUSE(args.batch.ndim = 7, BSRG_ERR_VALUE, "batch has 7 dimensions");
  REFUSE((args.batch.ndim = 1, args.batch.shape[0] = -1), BSRG_ERR_VALUE, "a.data has shape (-1, 1, 12)");
  REFUSE((args.batch.ndim = 1, args.batch.shape[0] = 2), BSRG_ERR_VALUE, "several elements at one address");
  ACCEPT((args.batch.ndim = 1, args.batch.shape[0] = 2, args.batch.y_strides[0] = M * PITCH));
  ACCEPT((args.batch.ndim = 1, args.batch.shape[0] = 0));
  REFUSE(args.a = NULL, BSRG_ERR_VALUE, "a is NULL");
  REFUSE(args.dtype = (bsrg_dtype)9, BSRG_ERR_TYPE, "dtype is 9");
  REFUSE(args.device.kind = (bsrg_device_kind)9, BSRG_ERR_VALUE, "device is kind 9");
  REFUSE(args.device.index = -1, BSRG_ERR_VALUE, "index -1");
  REFUSE(args.family = (bsrg_family)-1, BSRG_ERR_VALUE, "family is -1");
  REFUSE(args.family = BSRG_FAMILY_COUNT, BSRG_ERR_VALUE, "families are numbered 0 to 16");
  REFUSE(args.family = BSRG_ATTENTION_HOPPER, BSRG_ERR_VALUE, "'hopper', which computes attention");
  REFUSE(args.family = BSRG_ATTENTION_DECODE, BSRG_ERR_VALUE, "'decode', which computes attention");
  REFUSE(args.family = BSRG_PAIRS, BSRG_ERR_VALUE, "'pairs', which computes products of two");
  REFUSE(args.family = BSRG_SAMPLED, BSRG_ERR_VALUE, "'sampled', which computes sampled products");
  REFUSE(args.family = BSRG_TALL, BSRG_ERR_VALUE, "family is 'tall', but the operands are on cpu");
  REFUSE(args.family = BSRG_PORTABLE, BSRG_ERR_VALUE, "where 'auto' and 'cpu' exist");
  REFUSE((args.family = BSRG_HOST, args.device.kind = BSRG_CUDA), BSRG_ERR_VALUE,
         "family is 'cpu', but the operands are on cuda:0");
  ACCEPT(args.family = BSRG_HOST);
  REFUSE(args.precision = (bsrg_precision)2, BSRG_ERR_VALUE,
         "precision is 2, but must be BSRG_IEEE or BSRG_TF32");
  REFUSE((args.dtype = BSRG_F16, args.precision = BSRG_TF32), BSRG_ERR_TYPE, "only float32 has it");
  ACCEPT(args.precision = BSRG_TF32);
  REFUSE(args.x_scale = kX, BSRG_ERR_TYPE, "b_scale is given, but a.data has dtype float32");
  REFUSE((args.values_scale = kX, args.side = BSRG_A_RIGHT), BSRG_ERR_TYPE, "b_scale is given");
  REFUSE((args.dtype = BSRG_F8_E4M3, args.out_dtype = BSRG_F64), BSRG_ERR_TYPE,
         "out has dtype float64, but must have dtype float16, bfloat16 or float32");
  REFUSE((args.dtype = BSRG_F8_E5M2, args.out_dtype = BSRG_F32, args.values_scale = kX,
          args.values_scale_count = 3),
         BSRG_ERR_VALUE, "a_scale has 3 elements, but a stores 2 blocks");
  REFUSE((args.dtype = BSRG_F8_E5M2, args.out_dtype = BSRG_F32,
          args.x_scale = (const float *)(const void *)((const char *)kX + 1)),
         BSRG_ERR_VALUE, "b_scale starts at address");
}

static void test_shapes(void) {
  REFUSE(args.x.rows = 5, BSRG_ERR_VALUE,
         "b has shape (K, N) = (5, 3), but a has 6 columns: b must have 6 rows");
  REFUSE(args.x.cols = -1, BSRG_ERR_VALUE, "out has shape (4, 3), but a @ b has shape (4, -1)");
  REFUSE((args.x.cols = -1, args.y.cols = -1, args.beta = 0, args.c = (bsrg_dense){0}), BSRG_ERR_VALUE,
         "b has shape (6, -1), but all numbers must be at least 0");
  REFUSE(args.y.rows = 5, BSRG_ERR_VALUE, "out has shape (5, 3), but a @ b has shape (4, 3)");
  REFUSE(args.y.cols = 2, BSRG_ERR_VALUE, "out has shape (4, 2)");
  REFUSE(args.c.cols = 2, BSRG_ERR_VALUE, "c has shape (4, 2), but a @ b has shape (4, 3)");
  REFUSE((args.c.cols = 2, args.beta = 0), BSRG_ERR_VALUE, "c has shape (4, 2)");
  REFUSE(args.c = (bsrg_dense){0}, BSRG_ERR_VALUE, "beta is 0.5, but c is not given");
  REFUSE((args.c = (bsrg_dense){0}, args.beta = NAN), BSRG_ERR_VALUE, "beta is nan, but c is not given");
  ACCEPT((args.c = (bsrg_dense){0}, args.beta = 0));
  /* No columns: nothing is read or written, whatever the pointers. */
  ACCEPT((args.x.cols = args.y.cols = args.c.cols = 0, args.x.data = args.y.data = args.c.data = NULL));
}

static void test_pointers(void) {
  REFUSE(args.values = NULL, BSRG_ERR_VALUE, "a.data has elements, but its pointer is NULL");
  REFUSE(args.x.data = NULL, BSRG_ERR_VALUE, "b has elements, but its pointer is NULL");
  REFUSE(args.y.data = NULL, BSRG_ERR_VALUE, "out has elements, but its pointer is NULL");
  REFUSE(args.c.data = NULL, BSRG_ERR_VALUE, "c has elements, but its pointer is NULL");
  REFUSE(args.values = (char *)kValues + 2, BSRG_ERR_VALUE, "a.data starts at address");
  REFUSE(args.x.data = (char *)kX + 1, BSRG_ERR_VALUE, "b starts at address");
  REFUSE(args.y.data = (char *)kY + 3, BSRG_ERR_VALUE, "out starts at address");
  REFUSE(args.c.data = (char *)kC + 2, BSRG_ERR_VALUE, "must be aligned to its item size of 4 bytes");
}

static void test_strides(void) {
  REFUSE(args.x.row_stride = INT64_MAX, BSRG_ERR_VALUE,
         "b has shape (6, 3) and strides (9223372036854775807, 1)");
  REFUSE(args.x.row_stride = INT64_MAX / 20 + 1, BSRG_ERR_VALUE, "beyond the address space");
  REFUSE(args.x.row_stride = INT64_MIN, BSRG_ERR_VALUE, "beyond the address space");
  REFUSE((args.x.data = (void *)64, args.x.row_stride = -PITCH), BSRG_ERR_VALUE, "beyond the address space");
  REFUSE(args.y.row_stride = 0, BSRG_ERR_VALUE,
         "strides (0, 1), which may put several elements at one address");
  REFUSE(args.y.row_stride = 2, BSRG_ERR_VALUE, "which may put several elements at one address");
  REFUSE((args.y.row_stride = 4, args.y.col_stride = 6), BSRG_ERR_VALUE, "which may put several elements");
  REFUSE((args.y.row_stride = 2, args.y.col_stride = -1), BSRG_ERR_VALUE, "which may put several elements");
  ACCEPT((args.y.row_stride = 5, args.y.col_stride = 7)); /* interleaved, but no two elements meet */
  ACCEPT((args.y.row_stride = 1, args.y.col_stride = M));
  ACCEPT((args.x.row_stride = 0, args.c.col_stride = 0)); /* inputs may repeat themselves */
  ACCEPT((args.x.data = kX + PITCH * (K - 1), args.x.row_stride = -PITCH));
}

static void test_overlap(void) {
  REFUSE(args.y.data = kX, BSRG_ERR_VALUE, "out overlaps b in memory");
  REFUSE(args.y.data = kX + PITCH * (K - 1) + N - 1, BSRG_ERR_VALUE, "out overlaps b in memory");
  REFUSE(args.y.data = kX - PITCH * (M - 1) - N + 1, BSRG_ERR_VALUE, "out overlaps b in memory");
  ACCEPT(args.y.data = kX + PITCH * (K - 1) + N);
  ACCEPT(args.y.data = kX - PITCH * (M - 1) - N);
  /* Two windows of one larger matrix, side by side. */
  ACCEPT(args.y.data = kX + N);
  ACCEPT(args.y.data = kX + PITCH + N);
  ACCEPT(args.y.data = kX - N);
  REFUSE(args.y.data = kX + N - 1, BSRG_ERR_VALUE, "out overlaps b in memory");
  REFUSE(args.y.data = kX - N + 1, BSRG_ERR_VALUE, "out overlaps b in memory");
  REFUSE(args.y.data = kX + PITCH - 1, BSRG_ERR_VALUE, "out overlaps b in memory");
  REFUSE((args.y.data = kX + N, args.y.row_stride = PITCH + 1), BSRG_ERR_VALUE, "out overlaps b in memory");

  REFUSE(args.y.data = kValues + 11, BSRG_ERR_VALUE, "out overlaps a.data in memory");
  ACCEPT(args.y.data = kValues + 12);

  ACCEPT(args.y = args.c);
  REFUSE(args.y.data = kC + 1, BSRG_ERR_VALUE, "out overlaps c in memory without being the same view");
  REFUSE((args.y = args.c, args.y.row_stride = PITCH - 1), BSRG_ERR_VALUE, "out overlaps c in memory");
  ACCEPT((args.y.data = kC + 1, args.beta = 0)); /* c is not read */
}

static void test_epilogue(void) {
  static float vector[8];
  const bsrg_vector rows = {vector, M, 1, BSRG_F32}, columns = {vector, N, 2, BSRG_F32};
  ACCEPT((args.epilogue.row_scale = args.epilogue.row_bias = rows,
          args.epilogue.col_scale = args.epilogue.col_bias = columns, args.epilogue.activation = BSRG_SILU));
  REFUSE(args.epilogue.activation = BSRG_ACTIVATION_COUNT, BSRG_ERR_VALUE,
         "activation is 5, but activations are numbered 0 to 4");
  REFUSE(args.epilogue.row_scale = columns, BSRG_ERR_VALUE,
         "row_scale has 3 elements, but a @ b has 4 rows, for each of which it must have one");
  REFUSE(args.epilogue.col_bias = rows, BSRG_ERR_VALUE, "bias has 4 elements, but a @ b has 3 columns");
  REFUSE((args.epilogue.row_bias = rows, args.epilogue.row_bias.dtype = BSRG_F64), BSRG_ERR_TYPE,
         "bias has dtype float64, but must have dtype float32, as the operands are float32");
  REFUSE((args.epilogue.row_bias = rows, args.epilogue.row_bias.data = NULL), BSRG_ERR_VALUE,
         "bias has elements, but its pointer is NULL");
  REFUSE((args.epilogue.col_scale = columns, args.epilogue.col_scale.data = kY), BSRG_ERR_VALUE,
         "out overlaps col_scale in memory");
}

int main(void) {
  static const int32_t indptr[] = {0, 1, 2}, indices[] = {0, 1};
  const bsrg_pattern pattern = {M, K, 2, 3, 2, 3, BSRG_I32, indices, indptr};
  CHECK(bsrg_structure_create(&pattern, 1, &structure, NULL) == BSRG_OK);
  test_arguments();
  test_shapes();
  test_pointers();
  test_strides();
  test_overlap();
  test_epilogue();
  bsrg_structure_destroy(structure);
  if (failures > 0) fprintf(stderr, "%d failures\n", failures);
  return failures > 0;
}
