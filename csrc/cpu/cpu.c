/* The CPU backend's entry: chooses the instruction set, the way to multiply and the number of threads. */
#include "cpu.h"

#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#if defined(__x86_64__)
#include <cpuid.h>
#endif

enum {
  /* Multiply-adds of vectors, about one a cycle, that are worth waking another thread for. */
  THREAD_COST = 100000,
  /* Ranges that each thread gets on average, for balance. */
  DOT_RANGES = 16
};

/* ---- Instruction set ----------------------------------------------------------------------------------- */

/* From the most to the least that a processor may have. */
typedef enum isa { AVX512_BF16, AVX512, AVX2, GENERIC, ISAS } isa;
static const char *const isa_names[ISAS] = {"avx512_bf16", "avx512", "avx2", "generic"};

#if defined(__x86_64__)
/* Of a processor that has AVX-512 and leaf 7. */
static bool multiplies_pairs(void) {
#if defined(BSRG_HAS_BF16_PAIRS)
  enum { BF16 = 1 << 5 }; /* of EAX, in the second part of leaf 7 */
  unsigned a, b, c, d;
  return __get_cpuid_count(7, 0, &a, &b, &c, &d) && a >= 1 && __get_cpuid_count(7, 1, &a, &b, &c, &d) &&
         (a & BF16);
#else
  return false;
#endif
}

/* By CPUID itself: __builtin_cpu_supports knows of F16C only since GCC 11, and not every runtime library
 * fills in what it reads. */
static isa best_isa(void) {
  enum { SSE_YMM = 0x06, SSE_YMM_ZMM_MASKS = 0xe6 }; /* registers that the system must save, in XCR0 */
  const unsigned avx512_bits = bit_AVX512F | bit_AVX512DQ | bit_AVX512BW | bit_AVX512VL;
  unsigned a, b, c, d, c1;
  if (!__get_cpuid(1, &a, &b, &c1, &d) || !(c1 & bit_OSXSAVE) || !__get_cpuid_count(7, 0, &a, &b, &c, &d))
    return GENERIC;
  unsigned saved, high;
  __asm__("xgetbv" : "=a"(saved), "=d"(high) : "c"(0));
  if (!(b & bit_AVX2) || !(c1 & bit_FMA) || !(c1 & bit_F16C) || (saved & SSE_YMM) != SSE_YMM) return GENERIC;
  if ((b & avx512_bits) != avx512_bits || (saved & SSE_YMM_ZMM_MASKS) != SSE_YMM_ZMM_MASKS) return AVX2;
  return multiplies_pairs() ? AVX512_BF16 : AVX512;
}
#else
static isa best_isa(void) { return GENERIC; }
#endif

/* BSRGEMM_ISA may lower the choice, so that one machine tests all; other values are passed over. */
static isa choose_isa(void) {
  const isa best = best_isa();
  const char *limit = getenv("BSRGEMM_ISA");
  for (isa lower = best; limit && lower < ISAS; lower++)
    if (strcmp(limit, isa_names[lower]) == 0) return lower;
  return best;
}

static isa current_isa(void) {
  static _Atomic int chosen = ISAS;
  int found = atomic_load(&chosen);
  if (found == ISAS) {
    found = choose_isa(); /* threads that race here choose alike */
    atomic_store(&chosen, found);
  }
  return (isa)found;
}

const char *bsrg_cpu_isa(void) { return isa_names[current_isa()]; }

const bsrg_cpu_ops *bsrg_cpu_ops_of(bsrg_dtype dtype) {
#if defined(__x86_64__)
  const isa found = current_isa();
  if (found != GENERIC) return &(found == AVX2 ? bsrg_cpu_avx2_ops : bsrg_cpu_avx512_ops)[dtype];
#endif
  return &bsrg_cpu_generic_ops[dtype];
}

bsrg_cpu_ops bsrg_cpu_tile_ops(bsrg_dtype dtype, bool whole_pairs) {
  const bsrg_cpu_ops *ops = bsrg_cpu_ops_of(dtype);
#if defined(BSRG_HAS_BF16_PAIRS)
  if (dtype == BSRG_BF16 && whole_pairs && current_isa() == AVX512_BF16) return bsrg_cpu_bf16_pair_ops(ops);
#endif
  (void)whole_pairs;
  return *ops;
}

int bsrg_cpu_threads(double cost) {
  const int available = bsrg_get_num_threads();
  return cost / THREAD_COST < available - 1 ? 1 + (int)(cost / THREAD_COST) : available;
}

/* ---- Ranges of equal work ------------------------------------------------------------------------------ */

/* Blocks in the units before `unit`, a unit's epilogue counting as the blocks that take as long. */
static int64_t work_before(const bsrg_structure_view *a, int64_t unit) {
  const int64_t per_block = bsrg_units_per_block(a);
  const int64_t block_row = unit / per_block, rest = unit % per_block;
  const int64_t epilogue = 1 + 16 / a->block_width;
  int64_t blocks = a->indptr[block_row] * per_block;
  if (rest > 0) blocks += rest * (a->indptr[block_row + 1] - a->indptr[block_row]);
  return blocks + unit * epilogue;
}

int64_t bsrg_range_begin(const bsrg_structure_view *a, int64_t index, int64_t count) {
  const int64_t units = bsrg_unit_count(a);
  if (index >= count) return units;
  const int64_t total = work_before(a, units);
  const int64_t wanted = total / count * index + total % count * index / count;
  int64_t low = 0, high = units; /* the first unit with at least the wanted work before it */
  while (low < high) {
    const int64_t middle = low + (high - low) / 2;
    if (work_before(a, middle) < wanted) {
      low = middle + 1;
    } else {
      high = middle;
    }
  }
  return low;
}

/* ---- Few columns --------------------------------------------------------------------------------------- */

typedef struct dot_job {
  bsrg_dot_run run;
  const bsrg_cpu_ops *ops;
  const bsrg_dense *x;
  char *columns; /* where X's columns are packed */
  int64_t ranges;
  _Atomic int64_t next_pack, next_range;
} dot_job;

/* X is already as the kernels read it. Several columns are copied even so: they may lie a multiple of 4096
 * bytes apart, and would drive one another out of L1. */
static bool dot_in_place(const bsrg_dense *x, const bsrg_cpu_ops *ops) {
  return ops->element_size == ops->sum_size && x->cols == 1 && x->row_stride == 1;
}

/* The distance of packed columns: whole cache lines and an odd number of them. */
static int64_t dot_col_stride(int64_t rows) { return (rows + 31) / 32 * 32 + 16; }

static void dot_pack(void *context, int slot) {
  (void)slot;
  enum { ROWS = 4096 };
  dot_job *job = context;
  const bsrg_dense *x = job->x;
  const bsrg_cpu_ops *ops = job->ops;
  int64_t begin;
  while ((begin = atomic_fetch_add(&job->next_pack, ROWS)) < x->rows) {
    const int64_t rows = bsrg_min(ROWS, x->rows - begin);
    for (int64_t j = 0; j < x->cols; j++) {
      ops->pack_column(
          job->columns + (j * job->run.x_col_stride + begin) * ops->sum_size,
          (const char *)x->data + (begin * x->row_stride + j * x->col_stride) * ops->element_size,
          x->row_stride, rows);
    }
  }
}

static void dot_multiply(void *context, int slot) {
  (void)slot;
  dot_job *job = context;
  int64_t range;
  while ((range = atomic_fetch_add(&job->next_range, 1)) < job->ranges) {
    job->ops->dot(&job->run, bsrg_range_begin(job->run.a, range, job->ranges),
                  bsrg_range_begin(job->run.a, range + 1, job->ranges));
  }
}

static bsrg_status dot_matmul(const bsrg_matmul_args *args, const bsrg_structure_view *a,
                              const bsrg_cpu_ops *ops, int threads, bsrg_error *error) {
  dot_job job = {.run = {.a = a,
                         .values = args->values,
                         .x = args->x.data,
                         .x_col_stride = args->x.col_stride,
                         .columns = args->x.cols,
                         .alpha = args->alpha,
                         .beta = args->beta,
                         .c = &args->c,
                         .y = &args->y,
                         .epilogue = bsrg_epilogue_of(args)},
                 .ops = ops,
                 .x = &args->x,
                 .ranges = threads == 1 ? 1 : bsrg_min(DOT_RANGES * threads, bsrg_unit_count(a))};
  if (dot_in_place(&args->x, ops)) {
    bsrg_run_parallel(dot_multiply, &job, threads);
    return BSRG_OK;
  }
  job.run.x_col_stride = dot_col_stride(args->x.rows);
  const size_t bytes = (size_t)(job.run.x_col_stride * args->x.cols * ops->sum_size);
  job.columns = bsrg_scratch_take(bytes);
  if (!job.columns) {
    return bsrg_fail(error, BSRG_ERR_MEMORY, "no memory for %zu bytes of scratch space", bytes);
  }
  job.run.x = job.columns;
  bsrg_run_parallel(dot_pack, &job, threads);
  bsrg_run_parallel(dot_multiply, &job, threads);
  bsrg_scratch_give(job.columns);
  return BSRG_OK;
}

/* ---- Entry --------------------------------------------------------------------------------------------- */

/* Whether a product with few columns takes less time by dot products than by panels, and how many multiply-adds of vectors
 * either is: along k for each column, or along the columns for each k. Dot products read A in order, and 16-bit elements as they
 * are, which panels widen first unless they multiply pairs; but they need a load or more for each multiply-add, register tiles of
 * a panel hardly any. Of these each sum is a chain of multiply-adds that wait for one another, so that few at a time are slow.
 * Fitted on Zen 5 with AVX-512 and with AVX2: the wider a vector, the longer it waits for loads. */
typedef struct few_costs {
  double dot, panel, least; /* least: of both, in what a multiply-add of panels takes */
  bool favours_dot;
} few_costs;

static few_costs costs_of(const bsrg_structure_view *a, const bsrg_cpu_ops *ops, int64_t element_k,
                          int64_t n) {
  enum { SLOW_PART = 10, FULL_BYTES = 64, LATENCY = 4 };
  const bool halves = ops->element_size < ops->sum_size;
  const int64_t vector_bytes = ops->lanes * ops->sum_size;
  const double rows = (double)a->nnzb * (double)a->block_height;
  /* Parts of vectors are put together one by one where there are no masks, which AVX2 has for wider elements alone. */
  const bool slow = vector_bytes < (int64_t)(halves ? FULL_BYTES : FULL_BYTES / 2);
  const double part = a->block_width % ops->lanes == 0 ? 0 : slow ? SLOW_PART : 1;
  const double of_row = (double)(a->block_width / ops->lanes) + part;
  const int64_t vectors = bsrg_ceil_div(n, ops->lanes);
  const double waits = LATENCY / (double)bsrg_min(LATENCY, a->block_height * vectors);
  few_costs c = {
      .dot = (rows * of_row + (double)a->rows) * (double)n,
      .panel = (rows * (double)(a->block_width / element_k) * waits + (double)a->rows) * (double)vectors};
  const double favour = (halves ? 34 : 20) / (double)vector_bytes;
  c.favours_dot = n <= BSRG_DOT_MAX_COLUMNS && c.dot <= favour * c.panel;
  c.least = c.favours_dot ? c.dot / favour : c.panel;
  return c;
}

double bsrg_cpu_product_cost(const bsrg_matmul_args *args) {
  const bsrg_structure_view a = bsrg_structure_get(args->a);
  const bool eight_bits = bsrg_is_8_bit(args->dtype);
  const bsrg_dtype dtype = eight_bits ? BSRG_F32 : args->dtype;
  const bsrg_cpu_ops of_panels = bsrg_cpu_tile_ops(dtype, bsrg_has_whole_pairs(&a));
  const double widened = eight_bits ? (double)a.nnzb * (double)(a.block_height * a.block_width) : 0;
  return widened + costs_of(&a, bsrg_cpu_ops_of(dtype), of_panels.element_k, args->x.cols).least;
}

bsrg_status bsrg_cpu_multiply(const bsrg_matmul_args *args, bsrg_error *error) {
  if (bsrg_is_8_bit(args->dtype)) return bsrg_eight_bit_matmul(args, error);
  const bsrg_structure_view a = bsrg_structure_get(args->a);
  const bsrg_cpu_ops *ops = bsrg_cpu_ops_of(args->dtype);
  const int64_t n = args->x.cols;
  if (a.rows == 0 || n == 0) return BSRG_OK;

  const bsrg_cpu_ops of_panels = bsrg_cpu_tile_ops(args->dtype, bsrg_has_whole_pairs(&a));
  const few_costs c = costs_of(&a, ops, of_panels.element_k, n);
  /* Packed columns of X are the one thing here that grows with K: they must be small beside A. */
  const double pack_bytes =
      dot_in_place(&args->x, ops) ? 0 : (double)a.cols * (double)n * (double)ops->sum_size;
  const double a_bytes = (double)a.nnzb * ((double)(a.block_height * a.block_width * ops->element_size) + 4);
  const bool dot = a.nnzb > 0 && !a.order && c.favours_dot && pack_bytes <= a_bytes / 8;

  const int threads = bsrg_cpu_threads(dot ? c.dot : c.panel);
  return dot ? dot_matmul(args, &a, ops, threads, error)
             : bsrg_panel_matmul(args, &of_panels, threads, error);
}
