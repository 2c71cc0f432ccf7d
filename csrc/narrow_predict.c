/* The narrow family: what products are predicted to take, and by that whether X is copied first. */
#include "narrow.h"

#include "dense.h"
#include "kmajor.h"
#include "tensor_map.h"

#include <math.h>

/* Fitted on an H200: a launch with the chain of an item's first loads; what of A comes before the grid before has ended, a
 * quarter at most; the second pass; what a start of more items than run at a time costs; and the rate of one CTA. */
static const double launch_seconds = 4.5e-6, ahead_seconds = 1.2e-6, second_pass_seconds = 2.5e-6;
static const double item_seconds = 2e-6;
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
static const double tma_l2_bytes_per_s = 9.5e12, tma_cta_bytes_per_s = 80e9;
static double tma_launch_seconds(int64_t n, bool by_columns) {
  if (n > BSRG_NARROW_MAX_N || !by_columns) return 3.4e-6;
  return 2.3e-6 + 0.7e-6 * (double)n / BSRG_NARROW_MAX_N;
}
static const double gapless_seconds = 0.4e-6; /* for X to become columns, beside those */
static const double tma_cta_of_several_bytes_per_s = 62e9;
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
/* Of rows of X that begin or end elsewhere than at lines of 128 bytes, what TMA takes as many times longer for: those in whole
 * sectors of 32 bytes, and others. Fitted on an H200 to 65 to 256 columns. */
static double split_lines_cost(int64_t n) { return n % 64 == 0 ? 1 : n % 16 == 0 ? 1.15 : 1.7; }
/* The same of a whole product of up to 64 columns but its launch; by strips of 32 rows and more. */
static const double shares_split_sectors_cost = 1.3; /* by shares, at most, of 8 columns */
static double split_sectors_cost(int64_t n) { return n % 16 != 8 ? 1 : n < 48 ? 1.45 : 1.2; }
/* What a CTA takes for a stage of the low strips, fitted on an H100, and what an SM does that has several. */
static const double low_stage_seconds = 0.115e-6;
static double low_stage_of_sm_seconds(int64_t n, bool by_columns) {
  if (n > BSRG_NARROW_MAX_N) { /* on an H200 */
    if (by_columns) return 40e-9 + 1.05e-9 * (double)n;
    return (15e-9 + 0.9e-9 * (double)bsrg_narrow_columns(n)) * split_lines_cost(n);
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
  return (double)(bsrg_ceil_div(n, 64) * 64) * split_lines_cost(n);
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
  const double ctas = list->item_count * column_tiles(n), waves = ctas / (WIDE_ITEMS_AT_ONCE * sms);
  const double longest = of_block * list->longest_item /
                         (wide         ? tma_wide_cta_bytes_per_s
                          : ctas > sms ? tma_cta_of_several_bytes_per_s
                                       : tma_cta_bytes_per_s);
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
    boxes =
        bsrg_narrow_stages_of_block(v, dtype) *
        fmax(low_stage_seconds * list->longest_item, low_stages_of_sm_seconds(n, by_columns) * blocks_of_sm);
  else if (wide)
    boxes = bsrg_narrow_stages_of_block(v, dtype) * list->longest_item *
            wide_stage_seconds(dtype, of_tile, by_columns);
  const double output = n > 128 ? tma_widest_output_seconds : 0;
  double work = fmax(fmax(longest, of_sm), boxes);
  /* Where an SM has one CTA at a time, as registers allow no more. */
  if (n > 128 && list->strip == BSRG_NARROW_TMA_STRIP &&
      BSRG_NARROW_TMA_MOST_CTAS(4, bsrg_dtype_size(dtype)) == 1)
    work += (ceil(ctas / sms) - 1) * (fmax(longest, boxes) + tma_next_seconds);
  const bool by_lines = !by_columns && !wide && list->strip >= 32;
  return tma_launch_seconds(n, by_columns) + output +
         fmax(fmax(memory, l2), work) * (by_lines ? split_sectors_cost(n) : 1);
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

/* Of items beyond those that run at a time. */
static double later_items_seconds(const bsrg_narrow_list *list, const bsrg_chip *chip) {
  return fmax(0, list->item_count - (double)(ITEMS_AT_ONCE * chip->sm_count)) * low_ring_item_seconds;
}

/* By multiply-adds, fitted on an H100: a launch, those of float32 of an SM, of 64 columns of strips of 32 rows more, and what a
 * row of X takes. k: rows of X that all items meet, and the longest one; starts: of items. */
static const double fma_launch_seconds = 5e-6, fmas_per_s = 128 * 0.92e9, wide_fmas_per_s = 128 * 1.12e9;
static const double fma_row_seconds = 20e-12;
/* Blocks of 12 and 20 columns took 1.15 to 1.6 times as long as others, about as if each filled its last round, of 64 bytes of a
 * row, for itself. Why is not known: chunks of the next block follow, and those of 8 columns took no longer. */
enum { FMA_ROUND_BYTES = 64 };
static double fma_width(int64_t block_width, double item) {
  const double bytes = (double)block_width * item;
  if (fmod(FMA_ROUND_BYTES, bytes) == 0) return (double)block_width;
  return ceil(bytes / FMA_ROUND_BYTES) * FMA_ROUND_BYTES / item;
}
static double fma_seconds(const bsrg_narrow_list *list, bsrg_dtype dtype, double k, double longest, int64_t n,
                          const bsrg_chip *chip, double work, double starts) {
  const bool wide = list->strip == 32 && n > 32;
  const double of_float32 = (double)bsrg_dtype_size(dtype) / 4;
  const double of_row =
      list->strip * (double)bsrg_narrow_columns(n) * of_float32 / (wide ? wide_fmas_per_s : fmas_per_s);
  /* All items, and the longest one, of which one SM does all: neither hides the other. */
  const double multiply = hypot(k * of_row / chip->sm_count, longest * of_row);
  const double output = starts * (double)n / BSRG_NARROW_MAX_N; /* of items, as of 64 columns on an H200 */
  return fma_launch_seconds + output + later_items_seconds(list, chip) +
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
  if (kind == BSRG_NARROW_BY_SHARES) {
    /* Of few columns TMA takes as long for a row of X as for one of 64. */
    const bool by_lines = !by_columns && n <= BSRG_NARROW_MAX_N;
    const double columns = by_lines ? BSRG_NARROW_MAX_N : loaded_columns(n, by_columns);
    c->l2_bytes = bsrg_narrow_shares_l2_bytes(v, loaded_columns(n, by_columns));
    const double slower = by_lines ? fmin(split_sectors_cost(n), shares_split_sectors_cost) : 1;
    c->seconds = bsrg_narrow_shares_time(v, &plan->shares, columns, slower, c->hbm_bytes, chip);
    return false;
  }
  const bool plain = kind == BSRG_NARROW_PLAIN;
  const double share = plain && list->strip == 16 ? share_16 : share_32;
  const double memory = c->hbm_bytes / (chip->hbm_bytes_per_s * share);
  const double x = plain ? item * k * (double)n / (chip->l2_bytes_per_s * shared_l2_gain)
                         : ring_x_seconds(list, item * k / 2, n, by_columns, item < 2);
  const double starts = item_seconds * list->item_count / (double)(ITEMS_AT_ONCE * chip->sm_count);
  /* The longest item goes on when others have ended. */
  const double of_block = item * (double)v->block_width * rows;
  const double even = list->item_blocks / fmax(1, list->item_count);
  const double alone = of_block * fmax(0, list->longest_item - even) / cta_bytes_per_s;
  const double longest = of_block * list->longest_item / cta_bytes_per_s;
  const double work = fmax(longest, fmax(memory, starts) + alone);
  const double width = fma_width(v->block_width, item);
  if (bsrg_narrow_by_fma(dtype))
    c->seconds = fma_seconds(list, dtype, list->item_blocks * width, list->longest_item * width, n, chip,
                             work, starts);
  else if (kind == BSRG_NARROW_BY_TMA)
    c->seconds = tma_seconds(v, list, dtype, n, by_columns, chip, c);
  else if (plain)
    c->seconds = launch_seconds + hypot(work, x) - (v->order ? 0 : fmin(ahead_seconds, work / 4));
  else
    c->seconds = ring_launch(list, chip) + hypot(work, x);
  if (list->split_count) c->seconds += second_pass_seconds;
  return x > memory;
}

/* The columns of a copy of X: those that a kernel is compiled for, or of more than one panel whole sectors of 32 bytes. */
static int64_t columns_of_copy(int64_t n) {
  return n <= BSRG_NARROW_MAX_N ? bsrg_narrow_columns(n) : bsrg_ceil_div(n, 16) * 16;
}

/* Rows of X that TMA can load and that end within a sector. */
static bool gains_as_sectors(const bsrg_matmul_args *args, const bsrg_narrow_plan *plan, int sm_arch) {
  const int64_t n = args->x.cols;
  const bsrg_narrow_kind kind = bsrg_narrow_kind_of(args, plan, sm_arch);
  if (n % 16 != 8 || (kind != BSRG_NARROW_BY_TMA && kind != BSRG_NARROW_BY_SHARES)) return false;
  const bsrg_structure_view *v = &args->a->view;
  const bsrg_chip chip = bsrg_chip_h200();
  bsrg_candidate as_is, copied;
  cost(v, plan, kind, args->dtype, n, false, &chip, &as_is);
  cost(v, plan, kind, args->dtype, columns_of_copy(n), false, &chip, &copied);
  return as_is.seconds > copied.seconds + copy_of_x_seconds(args, n, &chip);
}

/* Rows of X that begin anywhere come element by element. Of those that TMA can load, up to 24 and odd eights of columns take
 * low strips longer than a copy does, and odd eights also others. Up to 16 columns a copy takes longer than all this, up
 * to 32 also than X by fours; of more than 64 that TMA cannot load, the align family has one. */
bool bsrg_narrow_pads_x(const bsrg_matmul_args *args, const bsrg_narrow_plan *plan, int sm_arch,
                        bsrg_matmul_args *padded) {
  const bsrg_dense *x = &args->x;
  const bsrg_narrow_list *by_tma = bsrg_narrow_list_of(plan, BSRG_NARROW_BY_TMA);
  const bool is_16_bit = bsrg_is_half(args->dtype);
  if (!is_16_bit || sm_arch != 90 || x->cols <= 16) return false;
  if (bsrg_map_can_describe(x)) {
    if (bsrg_narrow_turns_x(args, by_tma) && bsrg_narrow_kind_of(args, plan, sm_arch) == BSRG_NARROW_BY_TMA)
      return false;
    const bool low = !plan->high.strip && x->cols <= BSRG_NARROW_MAX_N;
    const bool is_slow = low && (x->cols <= 24 || x->cols % 16 == 8);
    if (!is_slow && !gains_as_sectors(args, plan, sm_arch)) return false;
  } else {
    if (x->cols > BSRG_NARROW_MAX_N) return false;
    const bool by_fours = x->col_stride == 1 && x->row_stride % 4 == 0 && (uintptr_t)x->data % 8 == 0;
    if (by_fours && x->cols % 4 == 0 && x->cols <= 32) return false;
    if (bsrg_narrow_x_is_aligned(x) && !gains_as_rows(args, plan)) return false;
  }
  const int64_t columns = columns_of_copy(x->cols);
  const int64_t pitch = columns <= BSRG_NARROW_MAX_N ? columns : bsrg_ceil_div(columns, 64) * 64;
  *padded = *args;
  padded->x = (bsrg_dense){NULL, x->rows, columns, pitch, 1};
  return true;
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
  bool by_l2 = false, shared_out = false;
  int64_t copied = 0; /* columns */
  double copy_seconds = 0;
  bsrg_matmul_args panel = *args;
  for (int64_t first = 0; first < args->x.cols; first += panel.x.cols) {
    panel.x.cols = args->x.cols - first;
    panel.x.cols = bsrg_narrow_panel(&panel, plan, chip->sm_arch);
    bsrg_matmul_args padded;
    const bool pads = bsrg_narrow_pads_x(&panel, plan, chip->sm_arch, &padded);
    const bsrg_matmul_args *of = pads ? &padded : &panel;
    const bsrg_narrow_kind kind =
        bsrg_narrow_kind_on(bsrg_narrow_kind_of(of, plan, chip->sm_arch), chip->sm_count);
    const bool gapless =
        kind == BSRG_NARROW_BY_TMA && bsrg_narrow_turns_x(of, bsrg_narrow_list_of(plan, kind));
    const bool by_columns = gapless || bsrg_is_8_bit(args->dtype) || !bsrg_map_can_describe(&of->x);
    by_l2 |= cost(v, plan, kind, args->dtype, of->x.cols, by_columns, chip, c);
    if (gapless) c->seconds += gapless_seconds;
    shared_out |= kind == BSRG_NARROW_BY_SHARES;
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
  bsrg_set_reason(c, "%s%s%s", by_l2 ? "limited by L2 traffic" : "limited by memory",
                  shared_out ? ", rows shared out evenly" : "",
                  copied ? ", after a copy of the dense operand" : "");
}

double bsrg_narrow_time_of_cluster(const bsrg_structure_view *v, const bsrg_narrow_plan *plan, int64_t n,
                                   bool by_columns) {
  const bsrg_chip chip = bsrg_chip_h200();
  bsrg_candidate shared, own;
  cost(v, plan, BSRG_NARROW_BY_CLUSTER, BSRG_F16, n, by_columns, &chip, &shared);
  cost(v, plan, BSRG_NARROW_BY_RING, BSRG_F16, n, by_columns, &chip, &own);
  return shared.seconds / own.seconds;
}

/* What strips in pieces took longer than predicted, of 128 columns and Zipf rows: 4.0 us with blocks of 64 and of 128. */
static const double wide_pieces_seconds = 3.5e-6;

double bsrg_narrow_time_of_shares(const bsrg_structure_view *v, const bsrg_narrow_plan *plan, int64_t n) {
  const bsrg_chip chip = bsrg_chip_h200();
  const bsrg_narrow_kind kind = n <= BSRG_NARROW_FEW_COLUMNS ? BSRG_NARROW_PLAIN : BSRG_NARROW_BY_TMA;
  bsrg_candidate shared, own;
  cost(v, plan, BSRG_NARROW_BY_SHARES, BSRG_F16, n, false, &chip, &shared);
  cost(v, plan, kind, BSRG_F16, n, false, &chip, &own);
  const bool in_pieces = n > BSRG_NARROW_MAX_N && plan->high.split_count;
  return shared.seconds / (own.seconds + (in_pieces ? wide_pieces_seconds : 0));
}
