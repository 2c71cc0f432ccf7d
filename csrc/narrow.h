/* The narrow family: up to 64 columns, or 512 of an aligned X, float16 and bfloat16 from sm_80 up, the others on
 * Hopper. Kernels in kernels/sm80/narrow.cuh. */
#ifndef BSRG_NARROW_H
#define BSRG_NARROW_H

#include "family.h"

/* What the CTAs compute. Strips of long rows are cut into pieces, whose sums a second pass adds. */
typedef struct bsrg_narrow_list {
  /* Every row of Y once, or in all pieces of its split; most blocks first if skewed. */
  bsrg_narrow_item *items;
  bsrg_narrow_split *splits; /* strips in pieces */
  /* The block columns of item i from i * longest_item on, so that a CTA need not know its item to ask for them. NULL where
   * lengths differ so much that half of it would be empty. */
  int32_t *columns;
  int32_t item_count, split_count, slot_count;
  int32_t strip;        /* rows of a strip: 16, 32 or 64 */
  int32_t longest_item; /* blocks */
  bool paired;          /* items 2 i and 2 i + 1 are strips of the same blocks */
  double item_blocks;   /* sum of block_count over the items */
} bsrg_narrow_list;

/* For BSRG_NARROW_BY_CLUSTER: block rows, strips of up to 16 rows, that share X over a cluster of CTAs, a part of k each. */
typedef struct bsrg_narrow_cluster {
  int32_t *first; /* as the kernels have them, see params.h */
  uint16_t *masks;
  int32_t parts; /* 2 or 4 CTAs; 0 where these kernels take no such blocks or gain nothing */
  /* Whether they take less time than others would with X in that order. */
  bool by_rows, by_columns;
  bool by_few_columns; /* of a column-major X of 17 to 32 columns as well */
  int32_t stages, strips, clusters;
  int32_t longest; /* blocks of a part of a row */
} bsrg_narrow_cluster;

/* SMs of an H100 or H200, and how many clusters of four CTAs, one an SM, they have room for: fewer than SMs / 4, since groups of
 * SMs have 16 or 18. */
enum { BSRG_NARROW_SMS = 132, BSRG_NARROW_CLUSTERS_OF_FOUR = 29 };
/* Whether TMA's maps describe the blocks, of which they count stored rows with 31 bits. */
bool bsrg_narrow_suits_maps(const bsrg_structure_view *view);
/* For BSRG_NARROW_BY_SHARES: strips of 64 rows, dealt out to clusters of CTAs as evenly as their blocks allow. */
typedef struct bsrg_narrow_shares {
  bsrg_narrow_share *shares; /* as the kernels have them, see params.h */
  int32_t *columns;
  int32_t clusters; /* 0 where these kernels take no such blocks or gain nothing */
  int32_t most;
  int32_t longest; /* blocks of a share */
  /* Whether they take less time than others would: of up to 8 and 16 columns of a row-major X, of up to 64, and of more. */
  bool of_8, of_16, of_64, of_128;
} bsrg_narrow_shares;

typedef struct bsrg_narrow_plan {
  bsrg_narrow_list low;  /* strips of 16 rows, 32 where blocks are higher than 16 */
  bsrg_narrow_list high; /* of 64, for BSRG_NARROW_BY_TMA; none where blocks are no higher than 32: strip 0 */
  bsrg_narrow_cluster cluster;
  bsrg_narrow_shares shares;
  int32_t *places; /* of a transposed view, which has neither: where each block lies; else NULL */
} bsrg_narrow_plan;

void *bsrg_narrow_make_plan(bsrg_structure *structure);
void bsrg_narrow_free_plan(void *plan);
void bsrg_narrow_predict(const bsrg_matmul_args *args, const void *plan, const bsrg_chip *chip,
                         bsrg_candidate *candidate);

/* The kernels that compute a product. X waits in Hopper's larger shared memory where it can be copied or described by a tensor
 * map: rows or columns of adjacent elements that begin at multiples of 16 bytes. Up to 16 columns have so few bytes that
 * loads into registers take less time, but not if blocks are higher than 32 and X is column-major or without gaps. Clusters are
 * for more than 32 columns, where L2 would be the limit of low blocks. More than 64 columns, which bsrg_narrow_panel gives no
 * other kernel, go by TMA. 8-bit floats do so as well where blocks are higher than 32 or have a scale each. Up to 128 columns of
 * 16 bits go by shares where rows differ in length. Float32 and float64 have kernels of their own, by ring. */
typedef enum bsrg_narrow_kind {
  BSRG_NARROW_PLAIN,
  BSRG_NARROW_BY_RING,
  BSRG_NARROW_BY_TMA,
  BSRG_NARROW_BY_CLUSTER,
  BSRG_NARROW_BY_SHARES
} bsrg_narrow_kind;
/* Up to so many columns come through registers, by those kernels that do not go by TMA. */
enum { BSRG_NARROW_FEW_COLUMNS = 16 };
/* Rows or columns of adjacent elements that begin at multiples of 16 bytes. */
bool bsrg_narrow_x_is_aligned(const bsrg_dense *x);
/* Rows of X that follow one another without a gap, so few columns that the kernels by TMA turn them. list: that by TMA. */
bool bsrg_narrow_turns_x(const bsrg_matmul_args *args, const bsrg_narrow_list *list);
/* narrow_predict.c: whether X is copied first, to rows of whole sectors of 32 bytes, with anything beyond `args->x.cols` in
 * them: `padded` has such an X, but no memory for it, and Y as it is. */
bool bsrg_narrow_pads_x(const bsrg_matmul_args *args, const bsrg_narrow_plan *plan, int sm_arch,
                        bsrg_matmul_args *padded);
/* Of one panel of X: args are as for a launch. */
bsrg_narrow_kind bsrg_narrow_kind_of(const bsrg_matmul_args *args, const bsrg_narrow_plan *plan, int sm_arch);
/* Whether the kernels by TMA take 8-bit floats in such blocks: strips of 32 or 64 rows in whole instructions along k. */
bool bsrg_narrow_tma_takes_8_bits(const bsrg_structure_view *view);
/* Whether the kernels that do not go by TMA get 8-bit floats of X in chunks of 16 k of all columns, which takes a copy. */
bool bsrg_narrow_packs_x(const bsrg_matmul_args *args);
static inline const bsrg_narrow_list *bsrg_narrow_list_of(const bsrg_narrow_plan *plan,
                                                          bsrg_narrow_kind kind) {
  const bool by_tma = kind == BSRG_NARROW_BY_TMA || kind == BSRG_NARROW_BY_SHARES;
  return by_tma && plan->high.strip ? &plan->high : &plan->low;
}
/* On a GPU of so many SMs: shares are cut for one that has room for all their clusters at a time. */
static inline bsrg_narrow_kind bsrg_narrow_kind_on(bsrg_narrow_kind kind, int64_t sm_count) {
  return kind == BSRG_NARROW_BY_SHARES && sm_count < BSRG_NARROW_SMS ? BSRG_NARROW_BY_TMA : kind;
}
/* Whether two CTAs of a cluster compute strips of the same blocks, and each loads half of X, which has to be whole panels of 64
 * columns where these are adjacent in memory. */
static inline bool bsrg_narrow_in_pairs(const bsrg_narrow_list *list, bsrg_dtype dtype, int64_t n,
                                        bool by_columns) {
  return list->paired && n > BSRG_NARROW_MAX_N && !bsrg_is_8_bit(dtype) && !(by_columns && n % 64);
}
/* narrow_tma.c. narrow: all but what the kernels by TMA know alone. */
bsrg_status bsrg_narrow_launch_tma(const bsrg_matmul_args *args, const bsrg_narrow_list *list,
                                   const bsrg_narrow_params *narrow, bsrg_gpu gpu, bsrg_error *error);
bsrg_status bsrg_narrow_launch_shares(const bsrg_matmul_args *args, const bsrg_narrow_shares *shares,
                                      const bsrg_narrow_params *narrow, const CUdeviceptr *uploads,
                                      bsrg_gpu gpu, bsrg_error *error);
/* narrow_shares.c: as of clusters. columns: of X, as TMA's time counts them; slower: by how much loads of X are, and all with
 * them. */
enum { BSRG_NARROW_SHARES_MAX_N = 128 };
bool bsrg_narrow_make_shares(const bsrg_structure_view *view, bsrg_narrow_shares *shares);
void bsrg_narrow_free_shares(bsrg_narrow_shares *shares);
double bsrg_narrow_shares_time(const bsrg_structure_view *view, const bsrg_narrow_shares *shares,
                               double columns, double slower, double hbm_bytes, const bsrg_chip *chip);
double bsrg_narrow_shares_l2_bytes(const bsrg_structure_view *view, double columns);
/* narrow_cluster.c: fills a plan's, of zeros; false if memory ran out. */
bool bsrg_narrow_make_cluster(const bsrg_structure_view *view, bsrg_narrow_cluster *cluster);
void bsrg_narrow_free_cluster(bsrg_narrow_cluster *cluster);
double bsrg_narrow_cluster_seconds(const bsrg_structure_view *view, const bsrg_narrow_cluster *cluster,
                                   double hbm_bytes, const bsrg_chip *chip);
double bsrg_narrow_cluster_l2_bytes(const bsrg_structure_view *view, const bsrg_narrow_cluster *cluster);
/* uploads: of `first` and `masks`. */
bsrg_status bsrg_narrow_launch_cluster(const bsrg_matmul_args *args, const bsrg_narrow_cluster *cluster,
                                       const bsrg_narrow_params *narrow, const CUdeviceptr *uploads,
                                       bsrg_gpu gpu, bsrg_error *error);

/* narrow_predict.c: what a cluster takes for n columns, as a part of what the ring does. */
double bsrg_narrow_time_of_cluster(const bsrg_structure_view *view, const bsrg_narrow_plan *plan, int64_t n,
                                   bool by_columns);

/* Likewise what shares take for n columns of a row-major X, as a part of what strips do. */
double bsrg_narrow_time_of_shares(const bsrg_structure_view *view, const bsrg_narrow_plan *plan, int64_t n);

/* Stages of a block, where TMA loads it. */
static inline double bsrg_narrow_stages_of_block(const bsrg_structure_view *view, bsrg_dtype dtype) {
  enum { LINE_BYTES = 128 };
  return (double)bsrg_ceil_div(view->block_width * (int64_t)bsrg_dtype_size(dtype), LINE_BYTES);
}
/* The columns that a kernel is compiled for, for n of X. */
int32_t bsrg_narrow_columns(int64_t n);
/* Whether a dtype has the kernels of sm90/narrow_fma.cuh. */
static inline bool bsrg_narrow_by_fma(bsrg_dtype dtype) { return dtype == BSRG_F32 || dtype == BSRG_F64; }
/* How many columns of X a launch multiplies; the rest follows, up to BSRG_NARROW_MOST_N. */
int64_t bsrg_narrow_panel(const bsrg_matmul_args *args, const bsrg_narrow_plan *plan, int sm_arch);
enum { BSRG_NARROW_MOST_N = 2 * BSRG_NARROW_TMA_MAX_N };

#endif
