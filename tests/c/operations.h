/* One table of what the core computes, for tests of what holds for all of it: of failures (test_faults.c) and of
 * calls from several threads (test_threads.c). Results are compared with those of another run, not with the truth. */
#ifndef BSRG_TEST_OPERATIONS_H
#define BSRG_TEST_OPERATIONS_H

#include <stddef.h>

#include "bsrgemm.h"

typedef enum operation_kind {
  CREATE,
  TRANSPOSE,
  TRANSPOSED,
  EXPLAIN,
  MATMUL,
  MATMUL_SPARSE,
  SAMPLED,
  SOFTMAX,
  ATTENTION,
  TOPK,
  DYNAMIC,
  MEMORY
} operation_kind;

enum {
  ON_GPU = 1,
  RIGHT = 2,  /* A on the right */
  TURNED = 4, /* the transposed reading of A */
  EPILOGUE = 8,
  BATCH = 16,
  SCALES = 32, /* of 8-bit operands */
  MASKS = 64,
  SEQUENCES = 128,
  BY_TOPK = 256,
  SKEWED = 512,   /* the first block row is full */
  COLUMNS = 1024, /* dense operands in column-major order */
  PARTIAL = 2048  /* half of the last block row and of the last block column is beyond the matrix */
};

typedef struct operation {
  const char *name;
  operation_kind kind;
  bsrg_family family;
  bsrg_dtype dtype;
  int flags;
  int64_t block_rows, block_cols, height, width, longest;
  int64_t n; /* columns of the dense operand, or the size of attention's heads */
} operation;

extern const operation kOperations[];
extern const int kOperationCount;

enum { MOST_STRUCTURES = 4, BATCHES = 3, HEADS = 2 };

typedef struct array {
  void *data;
  size_t bytes;
} array;

/* What any number of threads may read at once. */
typedef struct inputs {
  bsrg_structure *structures[MOST_STRUCTURES]; /* MASKS: one for each batch */
  array values, x, c, extra;                   /* extra: float32 numbers, not negative */
  int64_t indptr[512];
  int64_t indices[4096];
} inputs;
inputs *make_inputs(const operation *o);
void free_inputs(inputs *in);
uint64_t hash_inputs(const inputs *in);

/* What one call writes. */
typedef struct result {
  array y, lse, columns;
  double numbers[4];
  bsrg_structure *made; /* DYNAMIC */
  void *memory;         /* MEMORY: of a GPU */
} result;
result make_result(const operation *o, const inputs *in);
void free_result(result *r);
uint64_t hash_result(const result *r);

/* Allocates nothing but what the core does. Once for each result. */
bsrg_status run_operation(const operation *o, const inputs *in, result *r, bsrg_error *error);

#endif
