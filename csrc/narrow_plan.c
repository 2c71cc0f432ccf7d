#include "narrow.h"

#include "dense.h"
#include "kmajor.h"
#include "tensor_map.h"

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
  bsrg_narrow_free_shares(&narrow->shares);
  free(narrow->places);
  free(narrow);
}

int32_t bsrg_narrow_columns(int64_t n) {
  int32_t columns = 8;
  while (columns < n) columns *= 2;
  return columns;
}

bool bsrg_narrow_suits_maps(const bsrg_structure_view *v) {
  int64_t rows;
  return v->block_width % 16 == 0 && v->nnzb > 0 &&
         bsrg_mul_ok(v->nnzb, v->order ? v->block_width : v->block_height, &rows) && rows <= INT32_MAX &&
         bsrg_whole_cols(v) <= INT32_MAX;
}

static bool map_has_x(const bsrg_dense *x) {
  const bsrg_dense turned = bsrg_dense_turned(*x);
  return bsrg_map_can_describe(x) || bsrg_map_can_describe(&turned);
}

/* Strips of 32 rows go by TMA where all of them have no more stages than this, since their boxes are small: TMA takes as long
 * for a row of 64 bytes as for one of 128, and longer for rows of X that share sectors of memory. Fitted on an H100; where they
 * have to become columns, on an H200: with 16384 they took 6% less time than by ring, with 32768 6% more. */
static double most_low_stages(int64_t n, bool by_columns, bool gapless) {
  if (by_columns) return 32768;
  if (gapless) return 24576;
  return n == 64 ? 24576 : n > 48 ? 8192 : n % 16 == 0 ? 6144 : 2048;
}
/* Unless there are so few of them that one's stages, one after the other, take longer than all of X through the ring. */
enum { FEW_LOW_ITEMS = 132, MOST_STAGES_OF_FEW = 40 };

static bool low_goes_by_tma(const bsrg_structure_view *v, const bsrg_narrow_list *low, int64_t n,
                            bool by_columns, bool gapless) {
  const double in_block = bsrg_narrow_stages_of_block(v, BSRG_F16);
  const double most = most_low_stages(n, by_columns, gapless);
  if (v->order || low->strip != 32 || low->item_blocks * in_block > most) return false;
  return low->item_count > FEW_LOW_ITEMS || low->longest_item * in_block <= MOST_STAGES_OF_FEW;
}

bool bsrg_narrow_x_is_aligned(const bsrg_dense *x) {
  const bool by_rows = x->col_stride == 1 && x->row_stride % BSRG_NARROW_CHUNK == 0;
  const bool by_columns = x->row_stride == 1 && x->col_stride % BSRG_NARROW_CHUNK == 0;
  return (by_rows || by_columns) && (uintptr_t)x->data % 16 == 0;
}

/* Where there are fewer items than SMs, nearly, one is the longest way: a stage of it takes .2 us to turn. */
enum { FEWEST_ITEMS_TO_TURN = BSRG_NARROW_SMS * 7 / 8 };

bool bsrg_narrow_turns_x(const bsrg_matmul_args *args, const bsrg_narrow_list *list) {
  const bsrg_dense *x = &args->x;
  if (list->item_count < FEWEST_ITEMS_TO_TURN) return false;
  return bsrg_is_half(args->dtype) && x->col_stride == 1 && x->row_stride == x->cols && x->cols % 8 == 0 &&
         x->cols <= BSRG_NARROW_TMA_GAPLESS_MAX_N && x->rows % 8 == 0 && (uintptr_t)x->data % 16 == 0;
}

bool bsrg_narrow_tma_takes_8_bits(const bsrg_structure_view *v) {
  return v->block_width % 32 == 0 && v->block_height > 16;
}

bool bsrg_narrow_packs_x(const bsrg_matmul_args *args) {
  return args->x.cols > BSRG_NARROW_FEW_COLUMNS || bsrg_kmajor_copies_for(args).x ||
         args->x.rows < bsrg_whole_cols(&args->a->view);
}

/* Blocks of more than 32 rows by TMA, but for so few columns that it takes longer and that need not be copied. Of blocks that fill
 * stages, a single column does not. */
enum { FEWEST_COLUMNS = 8, STAGE_BYTES = 128 };

static bsrg_narrow_kind kind_of_8_bits(const bsrg_matmul_args *args, const bsrg_narrow_plan *plan) {
  const int64_t n = args->x.cols;
  const bool is_fast = n > FEWEST_COLUMNS || (n == 1 && args->a->view.block_width % STAGE_BYTES == 0);
  const bool high = plan->high.strip && (is_fast || bsrg_narrow_packs_x(args));
  if (bsrg_narrow_tma_takes_8_bits(&args->a->view) &&
      (high || n > BSRG_NARROW_MAX_N || args->values_scale_count > 1))
    return BSRG_NARROW_BY_TMA;
  return n <= BSRG_NARROW_FEW_COLUMNS ? BSRG_NARROW_PLAIN : BSRG_NARROW_BY_RING;
}

static bool goes_by_shares(const bsrg_narrow_shares *shares, int64_t n, bool of_columns) {
  if (n <= BSRG_NARROW_FEW_COLUMNS && !of_columns) return n <= FEWEST_COLUMNS ? shares->of_8 : shares->of_16;
  if (n <= BSRG_NARROW_MAX_N) return shares->of_64;
  return n <= BSRG_NARROW_SHARES_MAX_N && shares->of_128;
}

bsrg_narrow_kind bsrg_narrow_kind_of(const bsrg_matmul_args *args, const bsrg_narrow_plan *plan,
                                     int sm_arch) {
  const bsrg_structure_view *v = &args->a->view;
  bsrg_dense pitched = args->x;
  bsrg_dense_pitch_column(&pitched);
  const bsrg_dense *x = &pitched;
  if (bsrg_is_8_bit(args->dtype)) return kind_of_8_bits(args, plan);
  if (bsrg_narrow_by_fma(args->dtype)) return BSRG_NARROW_BY_RING;
  if (sm_arch != 90 || !bsrg_narrow_x_is_aligned(x)) return BSRG_NARROW_PLAIN;
  const bool by_columns = x->row_stride == 1,
             gapless = bsrg_narrow_turns_x(args, bsrg_narrow_list_of(plan, BSRG_NARROW_BY_TMA));
  const bool of_columns = by_columns || gapless; /* when they are multiplied */
  const bool few = x->cols <= BSRG_NARROW_FEW_COLUMNS;
  if (goes_by_shares(&plan->shares, x->cols, of_columns) && map_has_x(x)) return BSRG_NARROW_BY_SHARES;
  if (x->cols > BSRG_NARROW_MAX_N) return BSRG_NARROW_BY_TMA;
  const bool shared = bsrg_map_can_describe(x) ? plan->cluster.by_rows : plan->cluster.by_columns;
  const bool many = x->cols > 32 || (by_columns && !few && plan->cluster.by_few_columns);
  if (shared && many && map_has_x(x)) return BSRG_NARROW_BY_CLUSTER;
  const bool suits = plan->high.strip ? of_columns || !few
                                      : !few && low_goes_by_tma(v, &plan->low, x->cols, by_columns, gapless);
  if (suits && bsrg_narrow_suits_maps(v) && map_has_x(x)) return BSRG_NARROW_BY_TMA;
  return few ? BSRG_NARROW_PLAIN : BSRG_NARROW_BY_RING;
}

/* Strips of the list that TMA would take, whole panels of 64 columns beside one another. */
static bool takes_panels(const bsrg_structure_view *v, const bsrg_narrow_plan *plan, int sm_arch,
                         const bsrg_dense *x) {
  const bool suits = plan->high.strip || (!v->order && plan->low.strip == 32);
  return sm_arch == 90 && bsrg_narrow_x_is_aligned(x) && suits && bsrg_narrow_suits_maps(v) && map_has_x(x);
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

/* ---- plan ------------------------------------------------------------------------------------- */

static void compare_cluster(const bsrg_structure_view *v, bsrg_narrow_plan *plan) {
  bsrg_narrow_cluster *cluster = &plan->cluster;
  if (!cluster->parts) return;
  cluster->by_rows = bsrg_narrow_time_of_cluster(v, plan, BSRG_NARROW_MAX_N, false) < 1;
  cluster->by_columns = bsrg_narrow_time_of_cluster(v, plan, BSRG_NARROW_MAX_N, true) < 1;
  /* Predictions of the ring are for 32 columns; 17 of a column-major X take up to a quarter less. */
  cluster->by_few_columns = cluster->by_columns && bsrg_narrow_time_of_cluster(v, plan, 32, true) < 0.75;
  if (!cluster->by_rows && !cluster->by_columns) bsrg_narrow_free_cluster(cluster);
}

static void compare_shares(const bsrg_structure_view *v, bsrg_narrow_plan *plan) {
  bsrg_narrow_shares *shares = &plan->shares;
  if (!shares->clusters) return;
  shares->of_8 = bsrg_narrow_time_of_shares(v, plan, FEWEST_COLUMNS) < 1;
  shares->of_16 = bsrg_narrow_time_of_shares(v, plan, BSRG_NARROW_FEW_COLUMNS) < 1;
  shares->of_64 = bsrg_narrow_time_of_shares(v, plan, BSRG_NARROW_MAX_N) < 1;
  shares->of_128 = bsrg_narrow_time_of_shares(v, plan, BSRG_NARROW_SHARES_MAX_N) < 1;
  if (!shares->of_8 && !shares->of_16 && !shares->of_64 && !shares->of_128) bsrg_narrow_free_shares(shares);
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
      (v->order ? copy_places(v, plan) : bsrg_narrow_make_cluster(v, &plan->cluster)) &&
      bsrg_narrow_make_shares(v, &plan->shares)) {
    compare_cluster(v, plan);
    compare_shares(v, plan);
    return plan;
  }
  bsrg_narrow_free_plan(plan);
  return NULL;
}
