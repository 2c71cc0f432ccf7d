/* bsrgemm: products of block-sparse (BSR) matrices on CPUs and NVIDIA GPUs.
 *
 * The public C interface. It knows nothing of Python, NumPy or PyTorch. docs/c.md has how to build it and an example.
 *
 * Errors: every fallible function returns a bsrg_status and, on failure, writes one sentence into the caller's
 * bsrg_error that names the argument, what was given and what is accepted. A NULL error is allowed. Arguments are checked
 * before anything is written; a call that fails later, for want of memory or by an error of the driver, may leave part of
 * a result in its output. Inputs and structures are as they were then, nothing is left allocated that a structure does
 * not own, and the call can be repeated. Functions that hand out a pointer set it to NULL when they fail.
 *
 * Units: sizes and strides are int64_t and count elements, never bytes, unless a name says so. Strides may be 0 or
 * negative; no two elements of an output may share an address.
 *
 * Ownership: the caller owns all operands and the structures that it has created, and must keep them until a call
 * returns or, on a GPU, until the work that it has put on the stream is done. Nothing else has to be freed.
 *
 * Threads: all functions may be called from any thread at any time. Any number of calls may share a structure and inputs
 * while none of them writes what another one reads; only bsrg_structure_destroy needs the structure for itself. Patterns
 * of dynamic structures change in the order of the device's streams. After fork() the child may go on with the
 * CPU, not with GPUs that the parent has used.
 *
 * GPUs: calls put work on `stream` (NULL: the default one) of the device and return without waiting for it, but for what
 * is made once: the first call on a device loads kernels, the first one with a structure uploads its plan. They work in
 * the device's primary context, which other libraries use too, and leave the caller's current context as it was.
 */
#ifndef BSRGEMM_H
#define BSRGEMM_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define BSRG_VERSION "0.1.0"

typedef enum bsrg_status {
  BSRG_OK = 0,
  BSRG_ERR_VALUE,       /* an argument's value is not accepted */
  BSRG_ERR_TYPE,        /* a dtype or a device that the function does not take */
  BSRG_ERR_MEMORY,      /* host or device memory ran out */
  BSRG_ERR_UNAVAILABLE, /* no CUDA driver, no GPU, or the library was built without kernels */
  BSRG_ERR_CUDA         /* the CUDA driver reported an error */
} bsrg_status;

typedef struct bsrg_error {
  char message[1024];
} bsrg_error;

/* The 8-bit ones are for products of BSR and dense matrices, and BSRG_F8_E4M3 for attention. */
typedef enum bsrg_dtype {
  BSRG_F16 = 0,
  BSRG_BF16,
  BSRG_F32,
  BSRG_F64,
  BSRG_F8_E4M3,
  BSRG_F8_E5M2
} bsrg_dtype;
typedef enum bsrg_index_type { BSRG_I32 = 0, BSRG_I64 } bsrg_index_type;
typedef enum bsrg_device_kind { BSRG_CPU = 0, BSRG_CUDA } bsrg_device_kind;

typedef struct bsrg_device {
  bsrg_device_kind kind;
  int index; /* CUDA device ordinal; 0 for the CPU */
} bsrg_device;

/* In bytes; 0 for a number that is no dtype. */
size_t bsrg_dtype_size(bsrg_dtype dtype);
/* "float16", "bfloat16", "float32", "float64", "float8_e4m3fn", "float8_e5m2"; "unknown" for other numbers. The text is
 * static, as are those of the other names. */
const char *bsrg_dtype_name(bsrg_dtype dtype);

/* ---- Structure: which blocks a matrix stores ------------------------------------------------- */

/* What the caller has: a matrix of rows x cols elements in blocks of block_height x block_width, block row i
 * storing the block columns indices[indptr[i]] .. indices[indptr[i+1] - 1]. Pointers are host memory and are
 * only read during bsrg_structure_create.
 * Where blocks do not divide the matrix the last block row and column reach beyond it. Values have zeros there: all that is
 * written has them, and what is read must have them on a GPU; on the CPU it is not looked at. */
typedef struct bsrg_pattern {
  int64_t rows, cols;
  int64_t block_height, block_width;
  int64_t nnzb;       /* length of indices */
  int64_t indptr_len; /* length of indptr, one more than the number of block rows */
  bsrg_index_type index_type;
  const void *indices;
  const void *indptr;
} bsrg_pattern;

/* A validated, immutable copy of a pattern together with what has been planned and uploaded for it.
 * Safe to share between threads. */
typedef struct bsrg_structure bsrg_structure;

/* Copies a pattern. Block columns must ascend strictly within a row; check = 0 lets others pass: in products with dense
 * operands blocks of one position add up then, some kernel families do not take such a structure, and products of two
 * block-sparse matrices and masks of attention refuse it. Sizes, indptr and the range of indices are checked always, so that
 * nothing later reaches outside its arrays. There are at most 2^31 - 1 block rows and as many block columns, and block sides
 * are from 1 to 2^31 - 1.
 * *out belongs to the caller, who frees it with bsrg_structure_destroy.
 * BSRG_ERR_VALUE: the pattern is not valid; BSRG_ERR_TYPE: index_type; BSRG_ERR_MEMORY. */
bsrg_status bsrg_structure_create(const bsrg_pattern *pattern, int check, bsrg_structure **out,
                                  bsrg_error *error);
/* Frees a structure, its transposed one, its plans and their copies on GPUs; NULL is allowed. No call with the structure
 * may be under way on the host; work queued on a GPU is waited for. */
void bsrg_structure_destroy(bsrg_structure *structure);

/* Of the block columns within each row. */
typedef enum bsrg_column_order {
  BSRG_ASCENDING = 0, /* strictly; always so with check */
  BSRG_REPEATED,      /* or equal */
  BSRG_UNSORTED
} bsrg_column_order;

/* The copy inside, valid while the structure lives. indices are 32-bit, indptr 64-bit. */
typedef struct bsrg_structure_view {
  int64_t rows, cols, block_height, block_width, block_rows, block_cols,
      nnzb; /* block rows and columns: rounded up */
  const int32_t *indices;
  const int64_t *indptr;
  int64_t longest_row; /* blocks in the longest block row */
  /* NULL, or this is the transposed reading of another structure: block b is block order[b] of values, which hold it
   * as the other has it, [block_width][block_height]. */
  const int64_t *order;
  bsrg_column_order column_order;
} bsrg_structure_view;
/* Of any structure; it costs nothing. */
bsrg_structure_view bsrg_structure_get(const bsrg_structure *structure);

/* The transposed matrix around the same values: its view has an order. Made at the first call; it belongs to the
 * structure, lives as long as that and must not be destroyed. Transposed again, it is the structure.
 * BSRG_ERR_MEMORY. */
bsrg_status bsrg_structure_transposed(bsrg_structure *structure, bsrg_structure **out, bsrg_error *error);

/* The transposed pattern as a structure of its own, which the caller destroys, and for each of its blocks the index of the
 * block in the original, written into order, the caller's array of nnzb entries. Not for dynamic structures.
 * BSRG_ERR_MEMORY. */
bsrg_status bsrg_structure_transpose(const bsrg_structure *structure, bsrg_structure **out, int64_t *order,
                                     bsrg_error *error);

/* ---- Products -------------------------------------------------------------------------------- */

/* A dense matrix view: element (i, j) is data[i * row_stride + j * col_stride]. */
typedef struct bsrg_dense {
  void *data;
  int64_t rows, cols;
  int64_t row_stride, col_stride;
} bsrg_dense;

/* How a product or attention is computed. BSRG_AUTO lets the library choose. */
typedef enum bsrg_family {
  BSRG_AUTO = 0,
  BSRG_TALL,     /* sm_90a: TMA + WGMMA, block heights that are multiples of 64 */
  BSRG_STREAM,   /* sm_90a: TMA + WGMMA, block heights that are multiples of 8 */
  BSRG_REGROUP,  /* the tall or stream kernels on other blocks, filled up with zeros at each product */
  BSRG_ALIGN,    /* another family on aligned row-major copies of the dense operands */
  BSRG_NARROW,   /* sm_80 and up: few columns, A streamed from memory once */
  BSRG_PORTABLE, /* sm_80 and up: mma.sync for float16/bfloat16, FMA for float32/float64 */
  BSRG_HOST,     /* the CPU backend */
  BSRG_ATTENTION_HOPPER, /* attention only, sm_90a: TMA + WGMMA */
  BSRG_ATTENTION_DECODE, /* attention only, sm_80 and up: few queries, keys and values streamed from memory once */
  BSRG_SAMPLED, /* sampled products only, sm_90a: TMA + WGMMA, block heights and widths that are multiples of 32 */
  BSRG_PAIRS,   /* products of two block-sparse matrices only, sm_90a: TMA + WGMMA */
  BSRG_KMAJOR,  /* sm_90a: TMA + WGMMA of tf32 and 8-bit floats, block heights that are multiples of 64 */
  BSRG_WIDEN,   /* 8-bit floats: a family of 16-bit ones on copies of the operands */
  BSRG_KSTREAM, /* sm_90a: the stream kernels of tf32, block heights and widths that are multiples of 8 */
  BSRG_COVER, /* sampled products only: the kernels of BSRG_SAMPLED at larger blocks that cover those stored */
  BSRG_SPREAD, /* products of two block-sparse matrices only: one of them as a dense one, in scratch memory */
  BSRG_FAMILY_COUNT
} bsrg_family;
/* "auto", "tall", "stream", "regroup", "align", "narrow", "portable", "cpu", "hopper", "decode", "sampled", "pairs", "kmajor",
 * "widen", "kstream", "cover", "spread" */
const char *bsrg_family_name(bsrg_family family);

/* Calls whose args have one compute nothing and need no device: they check all that they always check, for operands on a
 * GPU such as `chip`, and leave in `family` which one would compute it there. Addresses count, what is there does not. */
typedef struct bsrg_chip bsrg_chip;
typedef struct bsrg_question {
  const bsrg_chip *chip;
  bsrg_family family; /* BSRG_AUTO where there is nothing to compute */
} bsrg_question;

/* On which side of the product the block-sparse matrix A stands. */
typedef enum bsrg_side { BSRG_A_LEFT = 0, BSRG_A_RIGHT } bsrg_side;

typedef enum bsrg_activation {
  BSRG_IDENTITY = 0,
  BSRG_RELU,
  BSRG_GELU,      /* x Phi(x), the standard normal distribution */
  BSRG_GELU_TANH, /* its approximation by tanh */
  BSRG_SILU,      /* x / (1 + exp(-x)) */
  BSRG_ACTIVATION_COUNT
} bsrg_activation;
/* "identity", "relu", "gelu", "gelu_tanh", "silu" */
const char *bsrg_activation_name(bsrg_activation activation);

/* Element i is data[i * stride]. Of the result's dtype or, where that has 16 bits, float32. */
typedef struct bsrg_vector {
  const void *data; /* NULL, and size 0: there is none */
  int64_t size, stride;
  bsrg_dtype dtype;
} bsrg_vector;

/* What becomes of a product before it is rounded to Y's dtype:
 *   activation(row_scale[i] * col_scale[j] * product[i][j] + row_bias[i] + col_bias[j] + beta * C[i][j])
 * Rows and columns are Y's. The vectors are of Y's dtype or, where that has 16 bits, perhaps float32. Zeros: nothing. */
typedef struct bsrg_epilogue {
  bsrg_vector row_scale, col_scale, row_bias, col_bias;
  bsrg_activation activation;
} bsrg_epilogue;

/* Several products of one structure: values, x, c and y are then the first ones of batches that are stepped through
 * along up to BSRG_BATCH_DIMS dimensions, values in steps of whole matrices. Zeros: a single product. */
enum { BSRG_BATCH_DIMS = 6 };
typedef struct bsrg_batch {
  int ndim;
  int64_t shape[BSRG_BATCH_DIMS];
  int64_t x_strides[BSRG_BATCH_DIMS], c_strides[BSRG_BATCH_DIMS], y_strides[BSRG_BATCH_DIMS];
  int64_t values_strides[BSRG_BATCH_DIMS]; /* 0: the values are shared along it */
} bsrg_batch;

/* What may be lost of float32 operands. BSRG_TF32 permits to read but 10 bits of their mantissas, which kernels do that
 * gain by it; others, and the CPU, compute as with BSRG_IEEE. */
typedef enum bsrg_precision { BSRG_IEEE = 0, BSRG_TF32 } bsrg_precision;

/* Y = alpha * A @ X + beta * C or, with A on the right, alpha * X @ A + beta * C; all operands of one dtype, float32
 * accumulation for 16-bit dtypes. 8-bit operands have C and Y of out_dtype and may have scales, with which what is stored
 * is multiplied; sums are float32 over at most 128 products of the tensor cores, but for the first
 * 768, 512 or 256 of them (C and Y of BSRG_BF16, BSRG_F16, BSRG_F32) where blocks have no factors of their own. */
typedef struct bsrg_matmul_args {
  bsrg_structure *a; /* or the transposed of one: values are the same */
  const void
      *values; /* [nnzb][block_height][block_width] of the structure that is no transposed one, contiguous */
  bsrg_dtype dtype;
  bsrg_dense x; /* A.cols x N; A on the right: N x A.rows */
  bsrg_dense
      c; /* A.rows x N; A on the right: N x A.cols; data may be NULL, and is not read, when beta == 0 */
  bsrg_dense y; /* of c's shape; may be exactly c, must not overlap any other operand */
  /* Where rows of y, or columns, are contiguous, what follows each up to a multiple of 16 bytes may be written to. */
  bool y_padded;
  double alpha, beta;
  bsrg_device device; /* where every pointer lives */
  void *stream;       /* CUstream; ignored on the CPU */
  bsrg_family family;
  bsrg_side side;
  bsrg_epilogue epilogue;
  bsrg_batch batch;
  bsrg_precision precision; /* BSRG_TF32 is for BSRG_F32 alone */
  /* For 8-bit operands alone: of C and Y, BSRG_F16, BSRG_BF16 or BSRG_F32. */
  bsrg_dtype out_dtype;
  /* Likewise: NULL, or factors on the device, of values one or one for each block, in their order, and of x one. */
  const float *values_scale, *x_scale;
  int64_t values_scale_count; /* 1 or nnzb */
  bsrg_question *question;    /* or NULL; device is any BSRG_CUDA then, here and below */
} bsrg_matmul_args;

/* BSRG_ERR_VALUE: shapes, strides, alignment, overlap, or a family that cannot compute it (the message says what it needs);
 * BSRG_ERR_TYPE: dtypes and devices; BSRG_ERR_MEMORY: plans, or scratch memory of the host or the GPU;
 * BSRG_ERR_UNAVAILABLE, BSRG_ERR_CUDA: see bsrg_status. The same holds for the other products, softmax and attention. */
bsrg_status bsrg_matmul(const bsrg_matmul_args *args, bsrg_error *error);

/* Y = alpha * A @ B + beta * C with A and B block-sparse and Y dense; all operands of one dtype, float32 accumulation for
 * 16-bit dtypes. A's blocks must be as wide as B's are high. */
typedef struct bsrg_matmul_sparse_args {
  bsrg_structure *a,
      *b; /* or the transposed of one, and both may be the same: values as in bsrg_matmul_args */
  const void *a_values, *b_values;
  bsrg_dtype dtype;
  bsrg_dense c; /* A.rows x B.cols; data may be NULL, and is not read, when beta == 0 */
  bsrg_dense y; /* of c's shape; may be exactly c, must not overlap any other operand */
  double alpha, beta;
  bsrg_device device; /* where every pointer lives */
  void *stream;       /* CUstream; ignored on the CPU */
  bsrg_family family; /* BSRG_AUTO, BSRG_PAIRS, BSRG_SPREAD, BSRG_PORTABLE or BSRG_HOST */
  bsrg_question *question;
} bsrg_matmul_sparse_args;

bsrg_status bsrg_matmul_sparse(const bsrg_matmul_sparse_args *args, bsrg_error *error);

/* Several products at the blocks of one pattern: a, b and values are then the first ones of batches, and out has the blocks of
 * all matrices, one after the other in the order of the batch. Not of a dynamic structure. Zeros: a single product. */
typedef struct bsrg_sampled_batch {
  int ndim;
  int64_t shape[BSRG_BATCH_DIMS];
  int64_t a_strides[BSRG_BATCH_DIMS], b_strides[BSRG_BATCH_DIMS], values_strides[BSRG_BATCH_DIMS];
} bsrg_sampled_batch;

/* out = alpha * (A @ B at the stored blocks of the pattern) + beta * values, blocks laid out as those of any matrix of the
 * pattern: of a transposed one as its original has them. One dtype, float32 accumulation for 16-bit dtypes. Of a dynamic
 * structure, whose nnzb is its capacity, zeros are written behind the last block. */
typedef struct bsrg_sampled_args {
  bsrg_structure *pattern;
  bsrg_dtype dtype;
  bsrg_dense a;       /* pattern.rows x K */
  bsrg_dense b;       /* K x pattern.cols */
  const void *values; /* as out; may be NULL, and is not read, when beta == 0 */
  void *out; /* [nnzb][block_height][block_width], contiguous; may be exactly values, overlaps no operand */
  double alpha, beta;
  bsrg_device device; /* where every pointer lives */
  void *stream;       /* CUstream; ignored on the CPU */
  bsrg_family family; /* BSRG_AUTO, BSRG_SAMPLED, BSRG_COVER, BSRG_PORTABLE or BSRG_HOST */
  bsrg_sampled_batch batch;
  bsrg_question *question;
} bsrg_sampled_args;

bsrg_status bsrg_sampled_matmul(const bsrg_sampled_args *args, bsrg_error *error);

/* ---- Softmax --------------------------------------------------------------------------------- */

/* out = softmax(scale * A) row by row, over the elements that are stored; others count as -infinity, and rows without
 * any have no result. Rows of -infinity alone, and such with a NaN or with +infinity, become NaN. Sums are float32 for
 * 16-bit dtypes, and taken in an order that the structure fixes. */
typedef struct bsrg_softmax_args {
  bsrg_structure *a;  /* or the transposed of one, whose rows are meant then */
  const void *values; /* as in bsrg_matmul_args */
  void *out;          /* of values' shape and order; exactly values, or no memory of it */
  int64_t count;      /* of matrices of that pattern, whose values follow one another; 0: of one */
  bsrg_dtype dtype;
  double scale;
  bsrg_device device; /* where every pointer lives */
  void *stream;       /* CUstream; ignored on the CPU */
  bsrg_question *question;
} bsrg_softmax_args;

bsrg_status bsrg_softmax(const bsrg_softmax_args *args, bsrg_error *error);

/* ---- Patterns that a GPU makes --------------------------------------------------------------- */

/* A structure whose pattern lies on a GPU, where bsrg_dynamic_update makes it anew, and the plans of products with it,
 * while the host waits for nothing; all that can be captured in a graph, which then makes the pattern of the mask that
 * it finds when it is replayed. Blocks divide the matrix. It has room for `capacity` blocks, and none at first.
 * bsrg_matmul and bsrg_sampled_matmul take it and its transposed, with values [capacity][block_height][block_width] on its
 * GPU, of which only those of stored blocks are read.
 * bsrg_structure_get has nothing but sizes, with nnzb = capacity; no other function takes it. Waits for the GPU once.
 * rows and cols are in elements and multiples of the block sides; capacity is from 1 to the number of places of blocks,
 * below 2^31; device is the GPU's ordinal. *out belongs to the caller, who frees it with bsrg_structure_destroy. */
bsrg_status bsrg_dynamic_create(int64_t rows, int64_t cols, int64_t block_height, int64_t block_width,
                                int64_t capacity, int device, bsrg_structure **out, bsrg_error *error);

/* A structure that keeps all of its pattern in `memory` on the device, bsrg_dynamic_bytes at a multiple of
 * BSRG_DYNAMIC_ALIGNMENT: first counts, indptr and indices as in bsrg_dynamic_arrays, each at such a multiple. The memory
 * stays the caller's, must live as long as work with it, and may be given to several structures of the same arguments,
 * which then have one pattern. There is none before the first update. Neither waits nor touches the memory. */
enum { BSRG_DYNAMIC_ALIGNMENT = 256 };
bsrg_status bsrg_dynamic_create_in(int64_t rows, int64_t cols, int64_t block_height, int64_t block_width,
                                   int64_t capacity, int device, void *memory, bsrg_structure **out,
                                   bsrg_error *error);
/* The memory that a dynamic structure takes, the same on every GPU; 0 of other structures. */
size_t bsrg_dynamic_bytes(const bsrg_structure *structure);
/* One as far as it can be had without a device, for questions about products on such a chip. What fills it or its
 * values checks its arguments and does nothing else. */
bsrg_status bsrg_dynamic_describe(int64_t rows, int64_t cols, int64_t block_height, int64_t block_width,
                                  int64_t capacity, const bsrg_chip *chip, bsrg_structure **out,
                                  bsrg_error *error);

/* Stores the blocks of which mask, [block rows][block columns] bytes in any strides on the structure's GPU, is not 0.
 * Beyond the capacity they are dropped, the last ones by rows, then columns. Products that are queued behind it see the
 * new pattern; ones on other streams must be over before. */
bsrg_status bsrg_dynamic_update(bsrg_structure *structure, const bsrg_dense *mask, void *stream,
                                bsrg_error *error);
/* The same with the k blocks of each row that have the highest scores, as bsrg_topk_fill chooses them. */
bsrg_status bsrg_dynamic_update_topk(bsrg_structure *structure, const bsrg_dense *scores, bsrg_dtype dtype,
                                     int64_t k, void *stream, bsrg_error *error);

/* values[b] = block b of a dense matrix of the structure's shape, any strides, and zeros behind the last block. values:
 * [capacity][block_height][block_width], overlapping nothing. */
bsrg_status bsrg_dynamic_gather(bsrg_structure *structure, const bsrg_dense *dense, bsrg_dtype dtype,
                                void *values, void *stream, bsrg_error *error);

/* Device memory of the structure, to be read behind an update. It belongs to the structure and lives as long as that. */
typedef struct bsrg_dynamic_arrays {
  int device;
  const int64_t *indptr;  /* [block rows + 1] */
  const int32_t *indices; /* [capacity]; undefined behind the last block */
  const int64_t *counts;  /* blocks that are stored, and that were dropped */
} bsrg_dynamic_arrays;
/* BSRG_ERR_VALUE: the structure is not dynamic. */
bsrg_status bsrg_dynamic_get(const bsrg_structure *structure, bsrg_dynamic_arrays *out, bsrg_error *error);

/* ---- Attention ------------------------------------------------------------------------------- */

/* A batch of matrices [batch][head][row][element] in any memory order. Strides count elements. */
typedef struct bsrg_tensor {
  void *data;
  int64_t batch, heads, rows, size;
  int64_t batch_stride, head_stride, row_stride, element_stride;
} bsrg_tensor;

/* Factors of 8-bit operands, one for each batch and head of k: data[batch * batch_stride + head * head_stride], on the
 * device of the operands, or `all` where data is NULL. Not negative. */
typedef struct bsrg_factors {
  const float *data;
  int64_t batch_stride, head_stride;
  double all;
} bsrg_factors;

/* A mask whose block rows each have the blocks with the highest scores: of `candidates` blocks min(k, candidates).
 * Candidates are all blocks of the row or, if causal, those that hold a key no later than one of the row's queries:
 * block (r, c) where c * block_width <= min((r + 1) * block_height, queries) - 1 + diagonal.
 * How many blocks a row has does not depend on the scores, only which ones: so a GPU can choose them, and attention can
 * be put on its stream behind that, while the host waits for nothing. */
typedef struct bsrg_topk_mask {
  int64_t batch, heads; /* of patterns, as mask_batch and mask_heads of bsrg_attention_args */
  int64_t block_rows, block_cols, block_height, block_width;
  int64_t k;
  int causal;
  int64_t queries, diagonal; /* where causal; diagonal as in bsrg_attention_args */
  /* Device memory, [batch][heads][block_rows][min(k, block_cols)]: a row's block columns, ascending. What is behind the
   * last one of a row is undefined. */
  int32_t *columns;
} bsrg_topk_mask;

/* Chooses mask->columns by scores, [batch][heads][block_rows][block_cols] in any strides, on a GPU: of equal scores
 * those of lower columns count as higher, and NaN as lower than everything else. Allocates nothing and does not wait.
 * dtype: float16, bfloat16 or float32. */
bsrg_status bsrg_topk_fill(const bsrg_topk_mask *mask, const bsrg_tensor *scores, bsrg_dtype dtype,
                           bsrg_device device, void *stream, bsrg_error *error);

/* Sequences of different lengths, one behind the other in tensors of one batch: sequence s is the rows q_offsets[s] ..
 * q_offsets[s + 1] - 1 of q and out, and those from k_offsets[s] on of k and v. Rows of no sequence are not written.
 * Offsets ascend and stay within the rows that there are. On the CPU that is checked; on a GPU nobody looks before the
 * kernels do, which cut every sequence to those rows. */
typedef struct bsrg_sequences {
  int64_t count; /* there are count + 1 offsets */
  const void *q_offsets, *k_offsets;
  bsrg_index_type q_type, k_type;
  int64_t max_queries, max_keys; /* no sequence has more: checked on the CPU, of no use on a GPU */
  int align_last; /* add a sequence's keys - queries to the diagonal, which aligns its last query and key */
} bsrg_sequences;

/* out = softmax(scale * q @ k^T, over allowed keys) @ v. Query i may see key j if
 *   i + diagonal - left <= j <= i + diagonal + right   (left, right < 0: no bound on that side)
 * and, with masks, if the mask of its batch and head stores the block that holds (i, j). A query that sees no key
 * gets zeros and lse -inf. Causal: right = 0; diagonal = keys - queries aligns the last query with the last key, 0
 * the first ones. With sequences, queries and keys are counted within each of them, and it sees itself only. scale and
 * softcap are within the range of float32 unless dtype is BSRG_F64. */
typedef struct bsrg_attention_args {
  bsrg_tensor q, k,
      v;           /* one batch; the heads of k and v divide q's (GQA); one size of q and k, v's may differ */
  bsrg_tensor out; /* batch, heads and rows of q, size of v; overlaps no operand */
  float *lse; /* NULL, or [batch][q.heads][q.rows], contiguous: log of the sum of exponentials, natural */
  bsrg_dtype dtype; /* of all but out, which is BSRG_BF16 where this is BSRG_F8_E4M3 */
  bsrg_factors q_descale, k_descale, v_descale; /* BSRG_F8_E4M3: what is stored times these is meant */
  double scale, softcap; /* softcap > 0: scores become softcap * tanh(score / softcap) before the mask */
  int64_t diagonal, left, right;
  /* NULL, or mask_batch x mask_heads patterns of q.rows x k.rows, rounded up to whole blocks of the pattern. Head i of
   * q has those of head i / (q.heads / mask_heads): one for all, one for all that share a head of k, or its own. */
  bsrg_structure *const *masks;
  int64_t mask_batch, mask_heads; /* 1 or q's; 1, k's or q's */
  /* NULL, or in place of masks one on the device. Its patterns are of q.rows x k.rows, rounded up likewise. */
  const bsrg_topk_mask *topk;
  const bsrg_sequences *sequences; /* or NULL; not together with masks of either kind */
  bsrg_device device;              /* where every pointer lives */
  void *stream;                    /* CUstream; ignored on the CPU */
  bsrg_family
      family; /* BSRG_AUTO, BSRG_ATTENTION_HOPPER, BSRG_ATTENTION_DECODE, BSRG_PORTABLE or BSRG_HOST */
  bsrg_question *question;
} bsrg_attention_args;

bsrg_status bsrg_attention(const bsrg_attention_args *args, bsrg_error *error);

/* ---- Planning, without a device -------------------------------------------------------------- */

/* What the cost model knows of a chip. */
struct bsrg_chip {
  char name[64];
  int sm_arch; /* 90 for Hopper */
  int sm_count;
  double hbm_bytes_per_s, l2_bytes_per_s, l2_bytes;
  double mma_flops_per_s; /* dense float16 rate that a good kernel sustains */
};
/* An NVIDIA H200, for which the cost model has been fitted. */
bsrg_chip bsrg_chip_h200(void);

typedef struct bsrg_candidate {
  bsrg_family family;
  int supported;
  double seconds;   /* predicted; 0 when not supported */
  double hbm_bytes; /* predicted traffic from device memory */
  double l2_bytes;  /* predicted traffic from L2 to the SMs */
  double mma_flops; /* issued, including padding */
  char reason[160]; /* why it is not supported, or what limits it */
} bsrg_candidate;

typedef struct bsrg_plan_info {
  double useful_flops; /* 2 * elements of stored blocks within the matrix * n */
  int count;
  int chosen; /* index into candidates */
  bsrg_candidate candidates[BSRG_FAMILY_COUNT];
} bsrg_plan_info;

/* What the families would take for a product with n columns of a row-major dense operand and, of 8-bit dtypes, a result of
 * BSRG_BF16, on a chip that need not be there. Makes the plans that such a product would, which stay with the structure.
 * BSRG_ERR_VALUE: n is not from 1 to 2^56, or no family computes it on this chip; BSRG_ERR_MEMORY. */
bsrg_status bsrg_plan_explain(bsrg_structure *structure, bsrg_dtype dtype, bsrg_precision precision,
                              int64_t n, const bsrg_chip *chip, bsrg_plan_info *out, bsrg_error *error);
/* Of the product that args describe, with A on the left and without a batch. Nothing is read through their pointers, which
 * may be NULL: addresses count as aligned. */
bsrg_status bsrg_plan_explain_product(const bsrg_matmul_args *args, const bsrg_chip *chip,
                                      bsrg_plan_info *out, bsrg_error *error);
/* Of a sampled product of row-major matrices with k columns and k rows at the blocks of a pattern. No 8-bit dtypes, as
 * in the next. */
bsrg_status bsrg_sampled_explain(bsrg_structure *pattern, bsrg_dtype dtype, int64_t k, const bsrg_chip *chip,
                                 bsrg_plan_info *out, bsrg_error *error);
/* Of a product of two block-sparse matrices with a row-major result. a's blocks are as wide as b's are high. */
bsrg_status bsrg_matmul_sparse_explain(bsrg_structure *a, bsrg_structure *b, bsrg_dtype dtype,
                                       const bsrg_chip *chip, bsrg_plan_info *out, bsrg_error *error);

/* ---- CPU threads ----------------------------------------------------------------------------- */

/* How many threads a call on the CPU may use, the caller's included, from 1 to 1024; of all threads' calls to come. 0
 * restores the default: BSRGEMM_NUM_THREADS, else OMP_NUM_THREADS, else the processors this process may run on. Results
 * have the same bits with any number. BSRG_ERR_VALUE: count. */
bsrg_status bsrg_set_num_threads(int count, bsrg_error *error);
/* The number in force, at least 1. */
int bsrg_get_num_threads(void);
/* "avx512_bf16", "avx512", "avx2" or "generic": what the CPU backend chose for this processor. */
const char *bsrg_cpu_isa(void);

/* ---- GPU ------------------------------------------------------------------------------------- */

typedef struct bsrg_gpu_info {
  char name[256];
  int index, sm_arch, sm_count, driver_version; /* driver_version as CUDA encodes it: 13000 */
  int64_t memory_bytes;
  double hbm_bytes_per_s; /* that large reads are taken to reach, by the clock and the width of the memory */
} bsrg_gpu_info;

/* Number of CUDA devices. BSRG_ERR_UNAVAILABLE says why there is none. */
bsrg_status bsrg_gpu_count(int *count, bsrg_error *error);
/* BSRG_ERR_VALUE: there is no GPU of that ordinal. The same holds for the functions below. */
bsrg_status bsrg_gpu_get_info(int index, bsrg_gpu_info *out, bsrg_error *error);
/* Plain device memory, allocated and freed in stream order on the device's default pool: who works on another stream
 * orders the two first. Any number of bytes, 0 included, gives an address of its own, aligned to 256 bytes;
 * BSRG_ERR_MEMORY: there is no room. Freeing NULL does nothing. */
bsrg_status bsrg_gpu_alloc(int index, size_t bytes, void *stream, void **out, bsrg_error *error);
bsrg_status bsrg_gpu_free(int index, void *pointer, void *stream, bsrg_error *error);
/* Copies that return when the copy, and what is before it on the stream, is done. direction: 0 host to device, 1 device to
 * host. */
bsrg_status bsrg_gpu_copy(int index, void *destination, const void *source, size_t bytes, int direction,
                          void *stream, bsrg_error *error);
/* Makes work later put on consumer wait for what producer holds now. Never blocks the host. */
bsrg_status bsrg_gpu_order_streams(int index, void *producer, void *consumer, bsrg_error *error);
/* Waits for all that is on the stream, and reports its errors. */
bsrg_status bsrg_gpu_synchronize(int index, void *stream, bsrg_error *error);
/* The ordinal of the device that holds a pointer. BSRG_ERR_CUDA: CUDA does not know its memory. */
bsrg_status bsrg_gpu_pointer_device(const void *pointer, int *index, bsrg_error *error);
/* One m64n64k16 WGMMA on shared-memory images given byte for byte; see kernels/sm90/probe.cu. The descriptor
 * words are those of PTX without the address. d receives 64 x 64 floats. Pointers are host memory. */
typedef struct bsrg_wgmma_probe {
  bsrg_dtype dtype;
  int transpose_a, transpose_b; /* 1: the operand is MN-major */
  uint64_t descriptor_a, descriptor_b;
  const void *image_a, *image_b;
  size_t image_bytes; /* of each image, at most 16384 */
  float *d;
} bsrg_wgmma_probe;
bsrg_status bsrg_gpu_probe_wgmma(int index, const bsrg_wgmma_probe *probe, bsrg_error *error);

#ifdef __cplusplus
}
#endif
#endif
