/* The CPU backend's own interface: what an instruction set provides, and the threads.
 *
 * Two ways to multiply. The panel way (panel.c) takes a few vectors of columns of X at a time and
 * multiplies them by broadcast elements of A: any N. The dot way (dot.inc, driven by cpu.c) takes vectors
 * along k, for the few columns that would leave most lanes of a panel empty.
 *
 * In both, each element of Y is summed in an order that the shapes and the structure fix: not the number
 * of threads, nor who did what. "sum" is the accumulator type: double for float64, float for the others. */
#ifndef BSRG_CPU_H
#define BSRG_CPU_H

#include "../epilogue.h"
#include "../internal.h"

/* Sums run over at most this many k before they are added to a running total: it bounds the rounding error of
 * long rows to about that of a BLAS. */
enum { BSRG_SEGMENT_K = 128 };

/* Rows of A that are treated together: the unit in which work is handed out, and in which A is widened. */
enum { BSRG_UNIT_ROWS = 8, BSRG_GROUP_ROWS = 64 };

/* Beyond this many columns the dot way hardly wins. */
enum { BSRG_DOT_MAX_COLUMNS = 8 };

/* One register tile: `rows` rows (which kernel it is says how many) of consecutive blocks of a block row,
 * or of a piece of one block, times the rows of B that their block columns select, in vectors. Or several
 * such, one for each of several block rows of as many rows: blocks may be so small that a call for each
 * would cost more. */
typedef struct bsrg_tile_run {
  int64_t count;              /* block rows */
  const int64_t *begin, *end; /* [count]: their blocks */
  int64_t segment_blocks;     /* that are summed before being added to sums */
  int64_t depth;              /* k of a block */
  const void *a;              /* sum[block][rows][depth], by strides */
  int64_t a_row_stride, a_k_stride, a_block_stride;
  const void *b; /* block p meets b + (columns[p] - first_column) * b_block_stride */
  int64_t b_row_stride, b_block_stride;
  const int32_t *columns;
  int32_t first_column;
  void *sums; /* sum[count][rows][vectors * lanes], by stride between rows */
  int64_t sums_stride;
  bool add; /* to what sums holds, instead of overwriting it */
  /* An address to prefetch at each k: A comes from L3 or memory in pieces too short for the processor's own
   * prefetchers, and waiting for it would halve the rate. Strides in bytes. */
  uintptr_t ahead;
  int64_t ahead_step, ahead_block_stride;
} bsrg_tile_run;
typedef void (*bsrg_tile_kernel)(const bsrg_tile_run *run);

/* How sums become y: alpha * sums + beta * c, and what the epilogue adds to that, over `rows` <= BSRG_GROUP_ROWS rows of `columns`
 * columns, at most a panel's. */
typedef struct bsrg_finish_run {
  const void *sums;
  int64_t sums_stride;
  int64_t rows, columns;
  double alpha, beta;
  const void *c;
  int64_t c_row_stride, c_col_stride;
  void *y;
  int64_t y_row_stride, y_col_stride;
  const bsrg_epilogue *epilogue;   /* or NULL */
  int64_t first_row, first_column; /* of Y, that y points to */
} bsrg_finish_run;

/* Products with few columns, at most BSRG_DOT_MAX_COLUMNS, over a range of row units (see
 * bsrg_unit_count). */
typedef struct bsrg_dot_run {
  const bsrg_structure_view *a;
  const void *values;
  const void *x; /* sum[N][..]: each column contiguous */
  int64_t x_col_stride, columns;
  double alpha, beta;
  const bsrg_dense *c, *y;
  const bsrg_epilogue *epilogue; /* or NULL */
} bsrg_dot_run;

/* ---- Attention: a panel of queries, one a lane, meets keys and values as they lie in memory -------------- */

/* Queries of a panel, at most: a bit each in a word. */
enum { BSRG_MAX_PANEL = 64 };

/* sums[rows][width] (=, or += when add) a[rows][depth] * b[depth][width], width = vectors * lanes. */
typedef struct bsrg_product_run {
  int64_t rows, depth, vectors; /* vectors: at most tile_vectors */
  const void *a;
  int64_t a_row_stride, a_depth_stride;
  const void *b;
  void *sums;
  bool add;
} bsrg_product_run;

/* The online softmax over the keys of a panel: with each step the weights of the keys so far, exp(score - maximum), are
 * scaled down to the new maximum. */
typedef struct bsrg_softmax_run {
  int64_t size, vectors;
  void *scores;          /* [keys][width]; a step turns them into weights */
  void *maximum, *total; /* [width] */
  void *out;             /* [size][width]: weights times values */
} bsrg_softmax_run;

/* The same for few queries, whose scores and sums are rows, the sums' of whole vectors. */
enum { BSRG_FEW_QUERIES = 4 };
typedef struct bsrg_few_run {
  int64_t queries, keys, size;
  const void *rows; /* of K or V: element[keys][size] */
  int64_t row_stride;
  void *sums; /* sum[queries][size]: of Q, or what values times weights are added to */
  int64_t sums_stride;
  void *scores; /* sum[queries][keys]: what Q and K make, or the weights */
  int64_t scores_stride;
} bsrg_few_run;
typedef struct bsrg_few_softmax_run {
  int64_t queries;
  void *scores; /* sum[queries][keys] */
  int64_t scores_stride;
  void *out;
  int64_t out_stride;
  void *maximum, *total; /* sum[queries] */
} bsrg_few_softmax_run;

/* What one instruction set does for one element type. */
typedef struct bsrg_cpu_ops {
  int64_t element_size, sum_size;  /* of what A has side by side in a row, and of a sum */
  int64_t element_k;               /* k of such an element: 2 where pairs are multiplied, else 1 */
  int64_t lanes;                   /* sums in a vector */
  int64_t tile_rows, tile_vectors; /* largest tile */
  const bsrg_tile_kernel *tile;    /* [tile_vectors][tile_rows], each counted from 1 */
  /* destination: sum[rows][width], or pairs, zero beyond columns. source: element [rows][columns] by strides. */
  void (*pack)(void *destination, int64_t width, const void *source, int64_t row_stride, int64_t col_stride,
               int64_t rows, int64_t columns);
  /* destination: sum[count]. source: elements `stride` apart. */
  void (*pack_column)(void *destination, const void *source, int64_t stride, int64_t count);
  /* destination: sum[rows][columns]. source: element [rows][columns], rows `stride` apart. */
  void (*widen)(void *destination, const void *source, int64_t stride, int64_t rows, int64_t columns);
  void (*finish)(const bsrg_finish_run *run);
  void (*dot)(const bsrg_dot_run *run, int64_t unit_begin, int64_t unit_end);
  void (*product)(const bsrg_product_run *run);
  /* sum[count], whole vectors, become softcap * tanh(sum / softcap). */
  void (*cap)(void *scores, int64_t count, double softcap);
  /* sum[count] become -infinity, the score of a key that is not seen. */
  void (*exclude)(void *scores, int64_t count);
  void (*softmax_begin)(const bsrg_softmax_run *run);
  void (*softmax)(const bsrg_softmax_run *run, int64_t keys);
  /* Divides out by the total, 0 where no key was seen. lse, unless NULL, gets the logarithms of `count` totals. */
  void (*softmax_end)(const bsrg_softmax_run *run, float *lse, int64_t count);
  void (*few_scores)(const bsrg_few_run *run);
  void (*few_values)(const bsrg_few_run *run);
  void (*few_softmax_begin)(const bsrg_few_softmax_run *run);
  void (*few_softmax)(const bsrg_few_softmax_run *run, int64_t keys); /* whole vectors */
  void (*few_softmax_end)(const bsrg_few_softmax_run *run, float *lse);
} bsrg_cpu_ops;

/* By bsrg_dtype. */
extern const bsrg_cpu_ops bsrg_cpu_generic_ops[4];
#if defined(__x86_64__)
extern const bsrg_cpu_ops bsrg_cpu_avx2_ops[4], bsrg_cpu_avx512_ops[4];
#endif
/* Of GCC, 10 is the first that knows AVX512_BF16. */
#if defined(__x86_64__) && (defined(__clang__) || __GNUC__ >= 10)
#define BSRG_HAS_BF16_PAIRS
/* Those of bfloat16 with elements that are pairs along k; what has nothing to do with them as in ops, of AVX-512. */
bsrg_cpu_ops bsrg_cpu_bf16_pair_ops(const bsrg_cpu_ops *ops);
#endif

/* ---- Row units: BSRG_UNIT_ROWS rows of a block row, the last of each block row being shorter ----------- */

static inline int64_t bsrg_units_per_block(const bsrg_structure_view *a) {
  return bsrg_ceil_div(a->block_height, BSRG_UNIT_ROWS);
}
static inline int64_t bsrg_unit_count(const bsrg_structure_view *a) {
  return a->block_rows * bsrg_units_per_block(a);
}
/* Where range `index` of `count` begins, when units are cut into ranges of about equal work. */
int64_t bsrg_range_begin(const bsrg_structure_view *a, int64_t index, int64_t count);

/* ---- cpu.c --------------------------------------------------------------------------------------------- */

const bsrg_cpu_ops *bsrg_cpu_ops_of(bsrg_dtype dtype);
/* Those for register tiles: by pairs along k if that can be dealt into such, and if the processor multiplies them. */
bsrg_cpu_ops bsrg_cpu_tile_ops(bsrg_dtype dtype, bool whole_pairs);
static inline bool bsrg_has_whole_pairs(const bsrg_structure_view *a) {
  return a->block_width % 2 == 0 && a->cols % 2 == 0;
}
/* One product of the batch's, and what it takes about, in multiply-adds of vectors. */
bsrg_status bsrg_cpu_multiply(const bsrg_matmul_args *args, bsrg_error *error);
double bsrg_cpu_product_cost(const bsrg_matmul_args *args);
/* Threads for so many multiply-adds of vectors. */
int bsrg_cpu_threads(double cost);

/* From one k to the next of a copied block of a transposed view, of so many rows: pairs are put together a vector at a time. */
static inline int64_t bsrg_transposed_stride(const bsrg_cpu_ops *ops, int64_t rows) {
  return ops->element_k == 1 ? rows : bsrg_ceil_div(rows, ops->lanes) * ops->lanes;
}
/* Copies such a block, as tiles read it: the rows of each k are adjacent, `stride` behind those of the k before. */
static inline void bsrg_copy_transposed(const bsrg_cpu_ops *ops, void *destination, const void *source,
                                        int64_t stride, int64_t depth, int64_t rows) {
  if (ops->element_k > 1) {
    ops->pack(destination, bsrg_transposed_stride(ops, rows), source, stride, 1, depth, rows);
  } else {
    ops->widen(destination, source, stride, depth, rows);
  }
}

/* ---- panel.c ------------------------------------------------------------------------------------------- */

bsrg_status bsrg_panel_matmul(const bsrg_matmul_args *args, const bsrg_cpu_ops *ops, int threads,
                              bsrg_error *error);

/* ---- spread.c ------------------------------------------------------------------------------------------ */

/* Whether a product of two block-sparse matrices takes less time with B written out, and has the same result. */
bool bsrg_cpu_spread_pays(const bsrg_matmul_sparse_args *args);
/* *begun: Y has been written to. */
bsrg_status bsrg_cpu_spread(const bsrg_matmul_sparse_args *args, bool *begun, bsrg_error *error);

/* ---- copy.c -------------------------------------------------------------------------------------------- */

/* Copies all elements, of `size` bytes, to a tensor of the same shape elsewhere. */
void bsrg_cpu_copy(const bsrg_tensor *from, const bsrg_tensor *to, int64_t size);
/* The same tensor in rows of adjacent elements, whose memory is missing; how many bytes that takes, whole cache lines; and its copy
 * there. Heads or batches that are one in memory stay so. */
bsrg_tensor bsrg_cpu_in_rows(const bsrg_tensor *t);
size_t bsrg_cpu_rows_bytes(const bsrg_tensor *rows, int64_t size);
void bsrg_cpu_copy_rows(const bsrg_tensor *t, bsrg_tensor *rows, void *memory, int64_t size);

/* ---- eight_bits.c -------------------------------------------------------------------------------------- */

bsrg_status bsrg_eight_bit_matmul(const bsrg_matmul_args *args, bsrg_error *error);

/* ---- threads.c ----------------------------------------------------------------------------------------- */

typedef void (*bsrg_task)(void *context, int slot);
/* Calls task(context, slot) on up to `threads` threads at once, slots counted from 0, the caller's thread
 * being slot 0; returns when all have returned. There may be fewer, and only the caller's when another
 * thread is using the pool: tasks take their work from a shared counter. */
void bsrg_run_parallel(bsrg_task task, void *context, int threads);

/* Scratch memory, 64-byte aligned, contents undefined. One buffer is kept between products, since fresh pages
 * cost more than many a product. NULL when memory ran out. */
void *bsrg_scratch_take(size_t bytes);
void bsrg_scratch_give(void *scratch);
/* Reserves `bytes` of a slot that ends there, a whole number of cache lines, and returns where they begin. */
static inline size_t bsrg_reserve(size_t *end, int64_t bytes) {
  const size_t begin = *end;
  *end += ((size_t)bytes + 63) / 64 * 64;
  return begin;
}

#endif
