#include "narrow.h"

#include "dense.h"
#include "kmajor.h"
#include "tensor_map.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* ---- items ------------------------------------------------------------------------------------ */

/* A strip is cut where it has more than twice an even share of A for an H200 (a strip of 64 rows an SM, two of 32 or
 * four of 16), but never into pieces below 64 KB: the second pass costs as much time as a CTA needs for about that. */
enum { EVEN_SHARES = 264, LEAST_PIECE_BYTES = 64 << 10 };

/* Most blocks of an uncut strip. A piece gets half of them to all of them. */
static int64_t most_blocks(const bsrg_structure_view *v, int64_t strip) {
  const int64_t rows = bsrg_min(strip, v->block_height);
  const int64_t shares = EVEN_SHARES * 32 / strip;
  const int64_t even = bsrg_ceil_div(v->nnzb * bsrg_ceil_div(v->block_height, strip), shares);
  const int64_t least = bsrg_ceil_div(LEAST_PIECE_BYTES, 2 * rows * v->block_width);
  const int64_t chunks = bsrg_ceil_div(v->block_width, BSRG_NARROW_CHUNK / 4); /* of float64 */
  const int64_t fit = bsrg_min(BSRG_NARROW_MAX_BLOCKS, bsrg_max(1, BSRG_NARROW_MAX_CHUNKS / chunks));
  return bsrg_min(fit, 2 * bsrg_max(even, least));
}

static int64_t piece_count(int64_t blocks, int64_t most) {
  return blocks <= most ? 1 : bsrg_ceil_div(blocks, bsrg_max(1, most / 2));
}

/* Strips that multiply the same blocks come one behind the other. */
static void append_row(const bsrg_structure_view *v, int64_t row, int64_t most, bsrg_narrow_list *list) {
  const int64_t begin = v->indptr[row], blocks = v->indptr[row + 1] - begin, strip = list->strip;
  const int64_t pieces = piece_count(blocks, most);
  const int64_t rows = bsrg_rows_of(v, row), strips = bsrg_ceil_div(rows, strip);
  const int32_t first_slot = list->slot_count;
  for (int64_t p = 0; p < pieces; ++p) {
    const int64_t from = blocks * p / pieces, to = blocks * (p + 1) / pieces;
    for (int64_t s = 0; s < strips; ++s)
      list->items[list->item_count++] =
          (bsrg_narrow_item){.first_block = (int32_t)(begin + from),
                             .block_count = (int32_t)(to - from),
                             .y_row = (int32_t)(row * v->block_height + s * strip),
                             .row_in_block = (int32_t)(s * strip),
                             .rows = (int32_t)bsrg_min(strip, rows - s * strip),
                             .slot = pieces > 1 ? first_slot + (int32_t)(s * pieces + p) : -1};
    list->longest_item = (int32_t)bsrg_max(list->longest_item, to - from);
  }
  for (int64_t s = 0; s < strips && pieces > 1; ++s) {
    const bsrg_narrow_item *of_strip = &list->items[list->item_count - strips + s];
    list->splits[list->split_count++] =
        (bsrg_narrow_split){of_strip->y_row, of_strip->rows, list->slot_count, (int32_t)pieces};
    list->slot_count += (int32_t)pieces;
  }
  list->item_blocks += (double)(blocks * strips);
}

/* Sorting leaves items of equal length in their order. */
static bool is_paired(const bsrg_narrow_list *list) {
  for (int32_t i = 0; i < list->item_count; i += 2) {
    if (i + 1 == list->item_count) return false;
    const bsrg_narrow_item *a = &list->items[i], *b = a + 1;
    if (a->first_block != b->first_block || a->block_count != b->block_count) return false;
  }
  return true;
}

/* In the order of the items. */
static bool place_columns(const bsrg_structure_view *v, bsrg_narrow_list *list) {
  const int64_t room = (int64_t)list->item_count * list->longest_item;
  if (room == 0 || (double)room > 2 * list->item_blocks) return true;
  list->columns = calloc((size_t)room, sizeof(*list->columns));
  if (!list->columns) return false;
  for (int32_t i = 0; i < list->item_count; ++i) {
    const bsrg_narrow_item *item = &list->items[i];
    memcpy(list->columns + (int64_t)i * list->longest_item, v->indices + item->first_block,
           sizeof(*list->columns) * (size_t)item->block_count);
  }
  return true;
}

static bool sort_items(bsrg_narrow_list *list) {
  int64_t *length = malloc(sizeof(*length) * (size_t)list->item_count);
  if (!length) return false;
  for (int32_t i = 0; i < list->item_count; ++i) length[i] = list->items[i].block_count;
  const bool done =
      bsrg_sort_records(list->items, sizeof(*list->items), length, list->item_count, list->longest_item);
  free(length);
  return done;
}

static bool make_items(const bsrg_structure_view *v, int32_t strip, bsrg_narrow_list *list) {
  list->strip = strip;
  const int64_t strips = bsrg_ceil_div(v->block_height, strip), most = most_blocks(v, strip);
  int64_t items = 0, splits = 0;
  for (int64_t row = 0; row < v->block_rows; ++row) {
    const int64_t pieces = piece_count(v->indptr[row + 1] - v->indptr[row], most);
    items += strips * pieces;
    splits += pieces > 1 ? strips : 0;
  }
  list->items = malloc(sizeof(*list->items) * (size_t)bsrg_max(1, items));
  list->splits = malloc(sizeof(*list->splits) * (size_t)bsrg_max(1, splits));
  if (items > INT32_MAX || !list->items || !list->splits) return false;
  for (int64_t row = 0; row < v->block_rows; ++row) append_row(v, row, most, list);
  if (bsrg_is_skewed(list->longest_item, (int64_t)list->item_blocks, list->item_count) && !sort_items(list))
    return false;
  list->paired = is_paired(list);
  return place_columns(v, list);
}

static void free_list(bsrg_narrow_list *list) {
  free(list->items);
  free(list->splits);
  free(list->columns);
}

void bsrg_narrow_free_plan(void *plan) {
  bsrg_narrow_plan *narrow = plan;
  free_list(&narrow->low);
  free_list(&narrow->high);
  bsrg_narrow_free_cluster(&narrow->cluster);
  free(narrow->places);
  free(narrow);
}

int32_t bsrg_narrow_columns(int64_t n) {
  int32_t columns = 8;
  while (columns < n) columns *= 2;
  return columns;
}

/* Maps count rows of stored blocks with 31 bits. */
static bool suits_maps(const bsrg_structure_view *v) {
  int64_t rows;
  return v->block_width % 16 == 0 && v->nnzb > 0 &&
         bsrg_mul_ok(v->nnzb, v->order ? v->block_width : v->block_height, &rows) && rows <= INT32_MAX &&
         bsrg_whole_cols(v) <= INT32_MAX;
}

static bool map_has_x(const bsrg_dense *x) {
  bsrg_dense turned = *x;
  bsrg_dense_turn(&turned);
  return bsrg_map_can_describe(x) || bsrg_map_can_describe(&turned);
}

enum { TMA_LINE_BYTES = 128 };
static double stages_of_block(const bsrg_structure_view *v, bsrg_dtype dtype) {
  return (double)bsrg_ceil_div(v->block_width * (int64_t)bsrg_dtype_size(dtype), TMA_LINE_BYTES);
}

/* Strips of 32 rows go by TMA where all of them have no more stages than this, since their boxes are small: TMA takes as long
 * for a row of 64 bytes as for one of 128, and longer for rows of X that share sectors of memory. Fitted on an H100. */
static double most_low_stages(int64_t n, bool by_columns) {
  if (by_columns) return 32768;
  return n == 64 ? 24576 : n > 48 ? 8192 : n % 16 == 0 ? 6144 : 2048;
}
/* Unless there are so few of them that one's stages, one after the other, take longer than all of X through the ring. */
enum { FEW_LOW_ITEMS = 132, MOST_STAGES_OF_FEW = 40 };

static bool low_goes_by_tma(const bsrg_structure_view *v, const bsrg_narrow_list *low, int64_t n,
                            bool by_columns) {
  const double in_block = stages_of_block(v, BSRG_F16);
  if (v->order || low->strip != 32 || low->item_blocks * in_block > most_low_stages(n, by_columns))
    return false;
  return low->item_count > FEW_LOW_ITEMS || low->longest_item * in_block <= MOST_STAGES_OF_FEW;
}

bool bsrg_narrow_x_is_aligned(const bsrg_dense *x) {
  const bool by_rows = x->col_stride == 1 && x->row_stride % BSRG_NARROW_CHUNK == 0;
  const bool by_columns = x->row_stride == 1 && x->col_stride % BSRG_NARROW_CHUNK == 0;
  return (by_rows || by_columns) && (uintptr_t)x->data % 16 == 0;
}

bool bsrg_narrow_tma_takes_8_bits(const bsrg_structure_view *v) {
  return v->block_width % 32 == 0 && v->block_height > 16;
}

/* Up to so many columns of 8-bit floats come through registers, by those kernels that do not go by TMA. */
enum { FEW_COLUMNS = 16 };

bool bsrg_narrow_packs_x(const bsrg_matmul_args *args) {
  return args->x.cols > FEW_COLUMNS || bsrg_kmajor_copies_for(args).x ||
         args->x.rows < bsrg_whole_cols(&args->a->view);
}

/* Blocks of more than 32 rows by TMA, but for so few columns that it takes longer and that need not be copied. */
enum { FEWEST_COLUMNS = 8 };

static bsrg_narrow_kind kind_of_8_bits(const bsrg_matmul_args *args, const bsrg_narrow_plan *plan) {
  const int64_t n = args->x.cols;
  const bool high = plan->high.strip && (n > FEWEST_COLUMNS || bsrg_narrow_packs_x(args));
  if (bsrg_narrow_tma_takes_8_bits(&args->a->view) &&
      (high || n > BSRG_NARROW_MAX_N || args->values_scale_count > 1))
    return BSRG_NARROW_BY_TMA;
  return n <= FEW_COLUMNS ? BSRG_NARROW_PLAIN : BSRG_NARROW_BY_RING;
}

bsrg_narrow_kind bsrg_narrow_kind_of(const bsrg_matmul_args *args, const bsrg_narrow_plan *plan,
                                     int sm_arch) {
  const bsrg_structure_view *v = &args->a->view;
  const bsrg_dense *x = &args->x;
  if (bsrg_is_8_bit(args->dtype)) return kind_of_8_bits(args, plan);
  if (bsrg_narrow_by_fma(args->dtype)) return BSRG_NARROW_BY_RING;
  if (sm_arch != 90 || !bsrg_narrow_x_is_aligned(x)) return BSRG_NARROW_PLAIN;
  if (x->cols > BSRG_NARROW_MAX_N) return BSRG_NARROW_BY_TMA;
  const bool by_columns = x->row_stride == 1;
  const bool few = x->cols <= 16;
  const bool shared = bsrg_map_can_describe(x) ? plan->cluster.by_rows : plan->cluster.by_columns;
  const bool many = x->cols > 32 || (by_columns && !few && plan->cluster.by_few_columns);
  if (shared && many && map_has_x(x)) return BSRG_NARROW_BY_CLUSTER;
  const bool suits =
      plan->high.strip ? by_columns || !few : !few && low_goes_by_tma(v, &plan->low, x->cols, by_columns);
  if (suits && suits_maps(v) && map_has_x(x)) return BSRG_NARROW_BY_TMA;
  return few ? BSRG_NARROW_PLAIN : BSRG_NARROW_BY_RING;
}

/* Strips of the list that TMA would take, whole panels of 64 columns beside one another. */
static bool takes_panels(const bsrg_structure_view *v, const bsrg_narrow_plan *plan, int sm_arch,
                         const bsrg_dense *x) {
  const bool suits = plan->high.strip || (!v->order && plan->low.strip == 32);
  return sm_arch == 90 && bsrg_narrow_x_is_aligned(x) && suits && suits_maps(v) && map_has_x(x);
}

int64_t bsrg_narrow_panel(const bsrg_matmul_args *args, const bsrg_narrow_plan *plan, int sm_arch) {
  const bsrg_structure_view *v = &args->a->view;
  const bsrg_dense *x = &args->x;
  if (bsrg_is_8_bit(args->dtype))
    return bsrg_min(x->cols, bsrg_narrow_tma_takes_8_bits(v) ? BSRG_NARROW_TMA_MAX_N : BSRG_NARROW_MAX_N);
  if (bsrg_narrow_by_fma(args->dtype) || x->cols <= BSRG_NARROW_MAX_N || !takes_panels(v, plan, sm_arch, x))
    return bsrg_min(x->cols, BSRG_NARROW_MAX_N);
  /* Of X by columns several tiles would have to have whole panels; of transposed views, where items differ in length, they
   * took longer than tall blocks. */
  const bool in_tiles = !v->order && (bsrg_map_can_describe(x) || x->cols % 64 == 0);
  return bsrg_min(x->cols, in_tiles ? BSRG_NARROW_MOST_N : BSRG_NARROW_TMA_MAX_N);
}

/* ---- cost ------------------------------------------------------------------------------------- */

/* Fitted on an H200: a launch with the chain of an item's first loads, the second pass, what a start of more items
 * than run at a time costs, and the rate of one CTA. */
static const double launch_seconds = 4.5e-6, second_pass_seconds = 2.5e-6, item_seconds = 2e-6;
static const double cta_bytes_per_s = 25e9;
/* Shares of the memory's rate at which strips of 32 and of 16 rows stream A; where X waits in shared memory, too, those of
 * 16 are no slower. */
static const double share_32 = 0.95, share_16 = 0.87;
/* Rows of X that many SMs want at about the same time come from L2 faster than distinct ones. */
static const double shared_l2_gain = 1.1;
/* Where X waits in shared memory, too, strips of 32: the chain of the first loads is longer, but then those of A and of X
 * overlap. */
static const double ring_launch_seconds = 6e-6, ring_x_bytes_per_s = 9.5e12;
/* Of 16: what a row of X takes, whether 32 or 64 columns of it, and as 32 or 64 columns one by one; and what items take beyond
 * those that run at a time. */
static const double low_ring_launch_seconds = 4.5e-6, low_ring_row_seconds = 12.2e-12;
static const double low_ring_half_seconds = 17e-12, low_ring_column_seconds = 31e-12;
static const double low_ring_item_seconds = 6e-9;
/* By TMA: a launch, L2's rate, and those of one CTA and of an SM that has several, X included. */
static const double tma_launch_seconds = 3.4e-6, tma_l2_bytes_per_s = 9.5e12, tma_cta_bytes_per_s = 80e9;
static const double tma_wide_cta_bytes_per_s = 97e9, tma_wide_sm_bytes_per_s = 70e9;
static const double tma_short_rows_sm_bytes_per_s = 50e9;
static const double tma_tiles_l2_bytes_per_s = 8.8e12;  /* of more columns than a CTA has */
static const double tma_widest_output_seconds = 0.8e-6; /* of more than 128 columns */
static const double tma_next_seconds = 3e-6;            /* between two CTAs of an SM */
/* Likewise the least that a CTA takes for a stage. */
static double wide_stage_seconds(bsrg_dtype dtype, int64_t n, bool by_columns) {
  if (bsrg_is_8_bit(dtype)) return n <= 128 ? 0.24e-6 : 0.36e-6;
  if (n <= 128) return by_columns ? 0.21e-6 : 0.14e-6;
  return by_columns ? 0.32e-6 : 0.2e-6;
}
/* Of more than 64 columns, whose rows begin elsewhere than at lines of 128 bytes: a panel of a row lies in two. */
static const double split_lines_cost = 1.45;
/* What a CTA takes for a stage of the low strips, fitted on an H100, and what an SM does that has several. */
static const double low_stage_seconds = 0.115e-6;
static double low_stage_of_sm_seconds(int64_t n, bool by_columns) {
  if (n > BSRG_NARROW_MAX_N) { /* on an H200 */
    if (by_columns) return 40e-9 + 1.05e-9 * (double)n;
    return (15e-9 + 0.9e-9 * (double)bsrg_narrow_columns(n)) * (n % 64 ? split_lines_cost : 1);
  }
  if (by_columns) return 73e-9 + 0.7e-9 * (double)n;
  return n == 64 ? 93e-9 : n % 16 == 0 || n > 48 ? 125e-9 : 205e-9;
}
/* Items that an SM has at a time. */
enum { ITEMS_AT_ONCE = 4, WIDE_ITEMS_AT_ONCE = 2 };

static double column_tiles(int64_t n) { return (double)bsrg_ceil_div(n, BSRG_NARROW_TMA_MAX_N); }

/* Of a block, over all tiles of columns. */
static double low_stages_of_sm_seconds(int64_t n, bool by_columns) {
  const int64_t most = BSRG_NARROW_TMA_MAX_N;
  if (n <= most) return low_stage_of_sm_seconds(n, by_columns);
  return 1.05 * (low_stage_of_sm_seconds(most, by_columns) + low_stage_of_sm_seconds(n - most, by_columns));
}

/* Columns of X that TMA loads, as its time counts them. */
static double loaded_columns(int64_t n, bool by_columns) {
  if (by_columns || n <= BSRG_NARROW_MAX_N) return (double)n;
  return (double)(bsrg_ceil_div(n, 64) * 64) * (n % 64 ? split_lines_cost : 1);
}

static double tma_seconds(const bsrg_structure_view *v, const bsrg_narrow_list *list, bsrg_dtype dtype,
                          int64_t n, bool by_columns, const bsrg_chip *chip, const bsrg_candidate *c) {
  const bool wide = n > BSRG_NARROW_MAX_N;
  const int64_t of_tile = bsrg_min(n, BSRG_NARROW_TMA_MAX_N);
  const double rows = (double)bsrg_min(list->strip, v->block_height), sms = (double)chip->sm_count;
  const double memory = c->hbm_bytes / (chip->hbm_bytes_per_s * share_32);
  const double l2 = c->l2_bytes / (n > of_tile ? tma_tiles_l2_bytes_per_s : tma_l2_bytes_per_s);
  /* Of what a CTA gets for a block: pairs of them get the same X. */
  const double of_block =
      (double)bsrg_dtype_size(dtype) * (double)v->block_width * (loaded_columns(of_tile, by_columns) + rows);
  const double longest =
      of_block * list->longest_item / (wide ? tma_wide_cta_bytes_per_s : tma_cta_bytes_per_s);
  const double ctas = list->item_count * column_tiles(n), waves = ctas / (WIDE_ITEMS_AT_ONCE * sms);
  /* SMs that have several, and more than these at last. */
  const double rounds = wide && waves > 1 ? ceil(waves) / waves : 1;
  const double blocks_of_sm = list->item_blocks / sms * rounds;
  /* Rows of 64 bytes of both operands, where stages have 32 k. */
  const bool short_rows = by_columns && !list->paired && of_tile > 128;
  const double of_sm = wide && ctas > sms && list->strip == BSRG_NARROW_TMA_STRIP
                           ? of_block * blocks_of_sm * column_tiles(n) /
                                 (short_rows ? tma_short_rows_sm_bytes_per_s : tma_wide_sm_bytes_per_s)
                           : 0;
  double boxes = 0;
  if (list->strip < BSRG_NARROW_TMA_STRIP)
    boxes = stages_of_block(v, dtype) * fmax(low_stage_seconds * list->longest_item,
                                             low_stages_of_sm_seconds(n, by_columns) * blocks_of_sm);
  else if (wide)
    boxes = stages_of_block(v, dtype) * list->longest_item * wide_stage_seconds(dtype, of_tile, by_columns);
  const double output = n > 128 ? tma_widest_output_seconds : 0;
  double work = fmax(fmax(longest, of_sm), boxes);
  /* Where an SM has one CTA at a time, as registers allow no more. */
  if (n > 128 && list->strip == BSRG_NARROW_TMA_STRIP &&
      BSRG_NARROW_TMA_MOST_CTAS(4, bsrg_dtype_size(dtype)) == 1)
    work += (ceil(ctas / sms) - 1) * (fmax(longest, boxes) + tma_next_seconds);
  return tma_launch_seconds + output + fmax(fmax(memory, l2), work);
}

/* X through L2 and the rings, of k rows of it in all of two bytes a column, and what comes before and beside. packed: of 8
 * bits. */
static double ring_x_seconds(const bsrg_narrow_list *list, double k, int64_t n, bool by_columns,
                             bool packed) {
  if (list->strip > 16) return 2 * k * (double)n / ring_x_bytes_per_s;
  if (packed) return k * (n > 32 ? low_ring_half_seconds : low_ring_row_seconds);
  return k * (!by_columns ? low_ring_row_seconds : n > 32 ? low_ring_column_seconds : low_ring_half_seconds);
}

/* A copy of n columns of X: what it reads and writes, and the time. */
static double copy_of_x_bytes(const bsrg_matmul_args *args, int64_t n) {
  return 2 * (double)bsrg_dtype_size(args->dtype) * (double)args->x.rows * (double)n;
}

static double copy_of_x_seconds(const bsrg_matmul_args *args, int64_t n, const bsrg_chip *chip) {
  return bsrg_kmajor_copy_seconds((bsrg_kmajor_copies){.x = true}, copy_of_x_bytes(args, n), chip);
}

/* Column-major X of a transposed view of low blocks, which comes through the ring, 16 bytes of each column at a time. */
static bool gains_as_rows(const bsrg_matmul_args *args, const bsrg_narrow_plan *plan) {
  const bsrg_structure_view *v = &args->a->view;
  const bsrg_narrow_list *low = &plan->low;
  if (!v->order || low->strip > 16 || args->x.row_stride != 1 || args->x.cols <= 24) return false;
  const bsrg_chip chip = bsrg_chip_h200();
  const double k = low->item_blocks * (double)v->block_width;
  return ring_x_seconds(low, k, args->x.cols, true, false) >
         ring_x_seconds(low, k, args->x.cols, false, false) + copy_of_x_seconds(args, args->x.cols, &chip);
}

/* Rows of X that begin anywhere come element by element. Of those that TMA can load, up to 24 and odd eights of columns take
 * low strips longer than a copy does. Up to 16 columns a copy takes longer than all this, up to 32 also than X by fours. */
bool bsrg_narrow_pads_x(const bsrg_matmul_args *args, const bsrg_narrow_plan *plan, int sm_arch,
                        bsrg_matmul_args *padded) {
  const bsrg_dense *x = &args->x;
  const bool is_16_bit = args->dtype == BSRG_F16 || args->dtype == BSRG_BF16;
  if (!is_16_bit || sm_arch != 90 || x->cols <= 16 || x->cols > BSRG_NARROW_MAX_N) return false;
  if (bsrg_map_can_describe(x)) {
    if (plan->high.strip || (x->cols > 24 && x->cols % 16 != 8)) return false;
  } else {
    const bool by_fours = x->col_stride == 1 && x->row_stride % 4 == 0 && (uintptr_t)x->data % 8 == 0;
    if (by_fours && x->cols % 4 == 0 && x->cols <= 32) return false;
    if (bsrg_narrow_x_is_aligned(x) && !gains_as_rows(args, plan)) return false;
  }
  const int64_t columns = bsrg_narrow_columns(x->cols);
  *padded = *args;
  padded->x = (bsrg_dense){NULL, x->rows, columns, columns, 1};
  return true;
}

/* Of items beyond those that run at a time. */
static double later_items_seconds(const bsrg_narrow_list *list, const bsrg_chip *chip) {
  return fmax(0, list->item_count - (double)(ITEMS_AT_ONCE * chip->sm_count)) * low_ring_item_seconds;
}

/* By multiply-adds, fitted on an H100: a launch, those of float32 of an SM, of 64 columns of strips of 32 rows more, and what a
 * row of X takes. */
static const double fma_launch_seconds = 5e-6, fmas_per_s = 128 * 0.92e9, wide_fmas_per_s = 128 * 1.12e9;
static const double fma_row_seconds = 20e-12;
static double fma_seconds(const bsrg_narrow_list *list, bsrg_dtype dtype, double k, int64_t n,
                          const bsrg_chip *chip, double work) {
  const bool wide = list->strip == 32 && n > 32;
  const double of_float32 = (double)bsrg_dtype_size(dtype) / 4;
  const double fmas = k * list->strip * (double)bsrg_narrow_columns(n) * of_float32;
  const double multiply = fmas / ((wide ? wide_fmas_per_s : fmas_per_s) * chip->sm_count);
  return fma_launch_seconds + later_items_seconds(list, chip) +
         fmax(work, fmax(multiply, k * of_float32 * fma_row_seconds));
}

static double ring_launch(const bsrg_narrow_list *list, const bsrg_chip *chip) {
  if (list->strip > 16) return ring_launch_seconds;
  return low_ring_launch_seconds + later_items_seconds(list, chip);
}

/* All of a candidate but its reason, for n columns of X. Returns whether L2 limits it. */
static bool cost(const bsrg_structure_view *v, const bsrg_narrow_plan *plan, bsrg_narrow_kind kind,
                 bsrg_dtype dtype, int64_t n, bool by_columns, const bsrg_chip *chip, bsrg_candidate *c) {
  const bsrg_narrow_list *list = bsrg_narrow_list_of(plan, kind);
  const double item = (double)bsrg_dtype_size(dtype);
  const double k = list->item_blocks * (double)v->block_width; /* over all items */
  const double rows = (double)bsrg_min(list->strip, v->block_height);
  c->mma_flops = 2 * k * list->strip * (double)bsrg_narrow_columns(n);
  c->hbm_bytes = bsrg_compulsory_bytes(v, dtype, n);
  const double of_x = kind == BSRG_NARROW_BY_TMA ? loaded_columns(n, by_columns) : (double)n;
  const bool in_pairs = bsrg_narrow_in_pairs(list, dtype, n, by_columns);
  c->l2_bytes = item * k * (of_x / (in_pairs ? 2 : 1) + rows * column_tiles(n));
  if (kind == BSRG_NARROW_BY_CLUSTER) {
    c->l2_bytes = bsrg_narrow_cluster_l2_bytes(v, &plan->cluster);
    c->seconds = bsrg_narrow_cluster_seconds(v, &plan->cluster, c->hbm_bytes, chip);
    return false;
  }
  const bool plain = kind == BSRG_NARROW_PLAIN;
  const double share = plain && list->strip == 16 ? share_16 : share_32;
  const double memory = c->hbm_bytes / (chip->hbm_bytes_per_s * share);
  const double x = plain ? item * k * (double)n / (chip->l2_bytes_per_s * shared_l2_gain)
                         : ring_x_seconds(list, item * k / 2, n, by_columns, item < 2);
  const double starts = item_seconds * list->item_count / (double)(ITEMS_AT_ONCE * chip->sm_count);
  const double longest = item * list->longest_item * (double)v->block_width * rows / cta_bytes_per_s;
  const double work = fmax(memory, fmax(starts, longest));
  if (bsrg_narrow_by_fma(dtype))
    c->seconds = fma_seconds(list, dtype, k, n, chip, work);
  else
    c->seconds = kind == BSRG_NARROW_BY_TMA
                     ? tma_seconds(v, list, dtype, n, by_columns, chip, c)
                     : (plain ? launch_seconds : ring_launch(list, chip)) + hypot(work, x);
  if (list->split_count) c->seconds += second_pass_seconds;
  return x > memory;
}

/* What transposed views take beside blocks as they are stored: 1.0 to 1.4 on an H200. */
static const double turned_cost = 1.12;

/* The first panel of X. */
static bool copies_x(const bsrg_matmul_args *args, const bsrg_narrow_plan *plan, int sm_arch) {
  if (!bsrg_is_8_bit(args->dtype)) return false;
  bsrg_matmul_args panel = *args;
  panel.x.cols = bsrg_narrow_panel(args, plan, sm_arch);
  return bsrg_narrow_kind_of(&panel, plan, sm_arch) == BSRG_NARROW_BY_TMA ? bsrg_kmajor_copies_for(args).x
                                                                          : bsrg_narrow_packs_x(&panel);
}

/* Not fitted: panels behind the first find A in L2, if it fits there, but take as long here. */
void bsrg_narrow_predict(const bsrg_matmul_args *args, const void *plan, const bsrg_chip *chip,
                         bsrg_candidate *c) {
  const bsrg_structure_view *v = &args->a->view;
  bsrg_candidate sum = *c;
  sum.mma_flops = sum.l2_bytes = sum.seconds = 0;
  bool by_l2 = false;
  int64_t copied = 0; /* columns */
  double copy_seconds = 0;
  bsrg_matmul_args panel = *args;
  for (int64_t first = 0; first < args->x.cols; first += panel.x.cols) {
    panel.x.cols = args->x.cols - first;
    panel.x.cols = bsrg_narrow_panel(&panel, plan, chip->sm_arch);
    bsrg_matmul_args padded;
    const bool pads = bsrg_narrow_pads_x(&panel, plan, chip->sm_arch, &padded);
    const bsrg_matmul_args *of = pads ? &padded : &panel;
    const bool by_columns = bsrg_is_8_bit(args->dtype) || !bsrg_map_can_describe(&of->x);
    const bsrg_narrow_kind kind = bsrg_narrow_kind_of(of, plan, chip->sm_arch);
    by_l2 |= cost(v, plan, kind, args->dtype, of->x.cols, by_columns, chip, c);
    if (pads) {
      copied += panel.x.cols;
      copy_seconds += copy_of_x_seconds(args, panel.x.cols, chip);
    }
    sum.mma_flops += c->mma_flops;
    sum.l2_bytes += c->l2_bytes;
    sum.seconds += c->seconds;
  }
  sum.hbm_bytes = bsrg_compulsory_bytes(v, args->dtype, args->x.cols);
  *c = sum;
  if (v->order) c->seconds *= turned_cost;
  if (copies_x(args, plan, chip->sm_arch)) {
    copied = args->x.cols;
    copy_seconds = copy_of_x_seconds(args, copied, chip);
  }
  c->hbm_bytes += copy_of_x_bytes(args, copied);
  c->seconds += copy_seconds;
  bsrg_set_reason(c, "%s%s", by_l2 ? "limited by L2 traffic" : "limited by memory",
                  copied ? ", after a copy of the dense operand" : "");
}

/* ---- plan ------------------------------------------------------------------------------------- */

/* What a cluster takes, as a part of what the ring does. */
static double time_of_cluster(const bsrg_structure_view *v, const bsrg_narrow_plan *plan, int64_t n,
                              bool by_columns) {
  const bsrg_chip chip = bsrg_chip_h200();
  bsrg_candidate shared, own;
  cost(v, plan, BSRG_NARROW_BY_CLUSTER, BSRG_F16, n, by_columns, &chip, &shared);
  cost(v, plan, BSRG_NARROW_BY_RING, BSRG_F16, n, by_columns, &chip, &own);
  return shared.seconds / own.seconds;
}

static void compare_cluster(const bsrg_structure_view *v, bsrg_narrow_plan *plan) {
  bsrg_narrow_cluster *cluster = &plan->cluster;
  if (!cluster->parts) return;
  cluster->by_rows = time_of_cluster(v, plan, BSRG_NARROW_MAX_N, false) < 1;
  cluster->by_columns = time_of_cluster(v, plan, BSRG_NARROW_MAX_N, true) < 1;
  /* Predictions of the ring are for 32 columns; 17 of a column-major X take up to a quarter less. */
  cluster->by_few_columns = cluster->by_columns && time_of_cluster(v, plan, 32, true) < 0.75;
  if (!cluster->by_rows && !cluster->by_columns) bsrg_narrow_free_cluster(cluster);
}

/* Of fewer than 2^31 blocks. */
static bool copy_places(const bsrg_structure_view *v, bsrg_narrow_plan *plan) {
  plan->places = malloc(sizeof(*plan->places) * (size_t)bsrg_max(1, v->nnzb));
  if (!plan->places) return false;
  for (int64_t b = 0; b < v->nnzb; ++b) plan->places[b] = (int32_t)v->order[b];
  return true;
}

void *bsrg_narrow_make_plan(bsrg_structure *structure) {
  const bsrg_structure_view *v = &structure->view;
  bsrg_narrow_plan *plan = calloc(1, sizeof(*plan));
  if (!plan) return NULL;
  /* Two fragments of rows share what a warp fetches of X. */
  const int64_t height = v->block_height;
  if (make_items(v, height > 16 ? 32 : 16, &plan->low) &&
      (height <= 32 || make_items(v, BSRG_NARROW_TMA_STRIP, &plan->high)) &&
      (v->order ? copy_places(v, plan) : bsrg_narrow_make_cluster(v, &plan->cluster))) {
    compare_cluster(v, plan);
    return plan;
  }
  bsrg_narrow_free_plan(plan);
  return NULL;
}
