/* bsrg_sampled_matmul refuses every call that a backend could not survive, and no other. */
#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "bsrgemm.h"
#include "check.h"

enum { M = 4, K = 5, N = 6, PITCH = 8, VALUES = 12 };

/* Two blocks of 2 x 3 on the diagonal. All operands lie in one arena, so that any overlap can be made. */
static float arena[400];
static float *const kA = arena, *const kB = arena + 100, *const kValues = arena + 200,
                    *const kOut = arena + 300;
static bsrg_structure *structure;

static bsrg_sampled_args good(void) {
  return (bsrg_sampled_args){.pattern = structure,
                             .dtype = BSRG_F32,
                             .a = {kA, M, K, PITCH, 1},
                             .b = {kB, K, N, PITCH, 1},
                             .values = kValues,
                             .out = kOut,
                             .alpha = 1,
                             .beta = 0.5,
                             .device = {BSRG_CPU, 0}};
}

static void refuse(int line, const bsrg_sampled_args *args, bsrg_status status, const char *text) {
  bsrg_error error = {""};
  const bsrg_status found = bsrg_sampled_matmul(args, &error);
  if (found == status && strstr(error.message, text) != NULL && bsrg_sampled_matmul(args, NULL) == status)
    return;
  fprintf(stderr, "line %d: status %d, \"%s\" instead of \"%s\"\n", line, (int)found, error.message, text);
  ++failures;
}

/* Changes one thing in a good call and expects a refusal. */
#define REFUSE(change, status, text)           \
  do {                                         \
    bsrg_sampled_args args = good();           \
    change;                                    \
    refuse(__LINE__, &args, (status), (text)); \
  } while (0)
#define ACCEPT(change)                                           \
  do {                                                           \
    bsrg_sampled_args args = good();                             \
    change;                                                      \
    bsrg_error error = {""};                                     \
    if (bsrg_sampled_matmul(&args, &error) != BSRG_OK) {         \
      fprintf(stderr, "line %d: %s\n", __LINE__, error.message); \
      ++failures;                                                \
    }                                                            \
  } while (0)

static void test_arguments(void) {
  REFUSE(args.pattern = NULL, BSRG_ERR_VALUE, "pattern is NULL");
  REFUSE(args.dtype = BSRG_F8_E4M3, BSRG_ERR_TYPE, "dtype is 4");
  REFUSE(args.device.kind = (bsrg_device_kind)9, BSRG_ERR_VALUE, "device is kind 9");
  REFUSE(args.family = (bsrg_family)-1, BSRG_ERR_VALUE, "'unknown' (-1)");
  REFUSE(args.family = BSRG_TALL, BSRG_ERR_VALUE, "have 'auto', 'sampled', 'cover', 'portable' and 'cpu'");
  REFUSE(args.family = BSRG_SAMPLED, BSRG_ERR_VALUE, "family is 'sampled', but the operands are on cpu");
  REFUSE((args.family = BSRG_HOST, args.device.kind = BSRG_CUDA), BSRG_ERR_VALUE,
         "family is 'cpu', but the operands are on cuda:0");
  ACCEPT(args.family = BSRG_HOST);
}

static void test_shapes(void) {
  REFUSE(args.a.rows = 5, BSRG_ERR_VALUE, "a has shape (M, K) = (5, 5), but pattern has 4 rows");
  REFUSE(args.b.cols = 3, BSRG_ERR_VALUE, "b has shape (K, N) = (5, 3), but pattern has 6 columns");
  REFUSE(args.b.rows = 4, BSRG_ERR_VALUE, "b must have as many rows as a has columns");
  REFUSE((args.a.cols = -1, args.b.rows = -1), BSRG_ERR_VALUE,
         "a has shape (4, -1), but all numbers must be at least 0");
  /* Without k, neither a nor b is read. */
  ACCEPT((args.a.cols = args.b.rows = 0, args.a.data = args.b.data = NULL));
  CHECK(kOut[0] == 0.5f * kValues[0]);
}

static void test_memory(void) {
  REFUSE(args.a.data = NULL, BSRG_ERR_VALUE, "a has elements, but its pointer is NULL");
  REFUSE(args.b.data = NULL, BSRG_ERR_VALUE, "b has elements, but its pointer is NULL");
  REFUSE(args.out = NULL, BSRG_ERR_VALUE, "out.data has elements, but its pointer is NULL");
  REFUSE(args.values = NULL, BSRG_ERR_VALUE, "pattern.data has elements, but its pointer is NULL");
  REFUSE(args.beta = NAN, BSRG_OK, "");
  REFUSE((args.values = NULL, args.beta = NAN), BSRG_ERR_VALUE, "pattern.data has elements");
  ACCEPT((args.values = NULL, args.beta = 0));
  REFUSE(args.out = (char *)kOut + 2, BSRG_ERR_VALUE, "out.data starts at address");
  REFUSE(args.a.row_stride = INT64_MAX, BSRG_ERR_VALUE, "beyond the address space");

  REFUSE(args.out = kA + PITCH, BSRG_ERR_VALUE, "out.data overlaps a in memory");
  REFUSE(args.out = kB + PITCH * (K - 1) + N - 1, BSRG_ERR_VALUE, "out.data overlaps b in memory");
  REFUSE(args.out = kValues + 1, BSRG_ERR_VALUE, "out.data overlaps pattern.data in memory without being");
  REFUSE(args.out = kValues - VALUES + 1, BSRG_ERR_VALUE, "out.data overlaps pattern.data");
  ACCEPT(args.out = kValues + VALUES);
  ACCEPT(args.out = kValues);
  ACCEPT((args.out = kValues + 1, args.beta = 0));        /* values are not read */
  ACCEPT((args.a.row_stride = 0, args.b.col_stride = 0)); /* inputs may repeat themselves */
}

/* a = 1, 2, 3, ... times b's columns: the blocks have what they should, in both readings. */
static void test_values(void) {
  for (int i = 0; i < 400; ++i) arena[i] = (float)(i % 7);
  bsrg_structure *transposed;
  CHECK(bsrg_structure_transposed(structure, &transposed, NULL) == BSRG_OK);
  for (int turned = 0; turned < 2; ++turned) {
    for (int i = 0; i < VALUES; ++i) kOut[i] = NAN;
    bsrg_sampled_args args = good();
    if (turned) {
      args.pattern = transposed;
      args.a = (bsrg_dense){kB, N, K, 1, PITCH};
      args.b = (bsrg_dense){kA, K, M, 1, PITCH};
    }
    CHECK(bsrg_sampled_matmul(&args, NULL) == BSRG_OK);
    for (int i = 0; i < VALUES; ++i) {
      const int block = i / 6, row = 2 * block + i % 6 / 3, column = 3 * block + i % 3;
      float sum = 0;
      for (int k = 0; k < K; ++k) sum += kA[row * PITCH + k] * kB[k * PITCH + column];
      CHECK(kOut[i] == sum + 0.5f * kValues[i]);
    }
  }
}

static bsrg_sampled_args batch(void) {
  bsrg_sampled_args args = good();
  args.batch = (bsrg_sampled_batch){1, {2}, {M * PITCH}, {K * PITCH}, {VALUES}};
  return args;
}

#define REFUSE_BATCH(change, status, text)     \
  do {                                         \
    bsrg_sampled_args args = batch();          \
    change;                                    \
    refuse(__LINE__, &args, (status), (text)); \
  } while (0)

static void test_batches(void) {
  REFUSE_BATCH(args.batch.ndim = -1, BSRG_ERR_VALUE, "batch has -1 dimensions, but must have 0 to 6");
  REFUSE_BATCH(args.batch.ndim = 7, BSRG_ERR_VALUE, "batch has 7 dimensions");
  REFUSE_BATCH(args.out = kB + K * PITCH, BSRG_ERR_VALUE, "out.data overlaps b");
  REFUSE_BATCH(args.out = kA + M * PITCH, BSRG_ERR_VALUE, "out.data overlaps a");
  REFUSE_BATCH(args.out = kValues + VALUES, BSRG_ERR_VALUE, "out.data overlaps pattern.data");
  /* Exactly the values, but those of one matrix for all. */
  REFUSE_BATCH((args.out = kValues, args.batch.values_strides[0] = 0), BSRG_ERR_VALUE,
               "out.data overlaps pattern.data");
  REFUSE_BATCH(args.batch.shape[0] = INT64_MAX / 8, BSRG_ERR_VALUE, "out.data");
  ACCEPT((args = batch(), args.out = kValues));
  ACCEPT((args = batch(), args.batch.shape[0] = 0));
  /* Each as it is alone: in two dimensions, the outer one of the values' alone. */
  for (int i = 0; i < 400; ++i) arena[i] = (float)(i % 11);
  bsrg_sampled_args args = batch();
  args.batch = (bsrg_sampled_batch){2, {2, 2}, {0, M * PITCH}, {0, K * PITCH}, {VALUES, 0}};
  CHECK(bsrg_sampled_matmul(&args, NULL) == BSRG_OK);
  for (int i = 0; i < 4; ++i) {
    float alone[VALUES];
    bsrg_sampled_args one = good();
    one.a.data = kA + i % 2 * M * PITCH;
    one.b.data = kB + i % 2 * K * PITCH;
    one.values = kValues + i / 2 * VALUES;
    one.out = alone;
    CHECK(bsrg_sampled_matmul(&one, NULL) == BSRG_OK);
    CHECK(memcmp(alone, kOut + i * VALUES, sizeof alone) == 0);
  }
}

int main(void) {
  static const int32_t indptr[] = {0, 1, 2}, indices[] = {0, 1};
  const bsrg_pattern pattern = {M, N, 2, 3, 2, 3, BSRG_I32, indices, indptr};
  CHECK(bsrg_structure_create(&pattern, 1, &structure, NULL) == BSRG_OK);
  kValues[0] = 3;
  test_arguments();
  test_shapes();
  test_memory();
  test_values();
  test_batches();
  bsrg_structure_destroy(structure);
  if (failures > 0) fprintf(stderr, "%d failures\n", failures);
  return failures > 0;
}
