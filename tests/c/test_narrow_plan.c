/* The narrow family's plan: its items cover every row and block once, within what the kernel can hold. */
#include <string.h>

#include "narrow.h"
#include "structures.h"
#include "tensor_map.h"

static bsrg_structure *make(const int64_t *lengths, int64_t block_rows, int64_t block_cols, int64_t height,
                            int64_t width) {
  return make_rows(lengths, block_rows, block_cols, height, width, false);
}

/* Items find their block columns where they have places of their own, unless most of those would be empty. */
static void check_columns(const bsrg_structure_view *v, const bsrg_narrow_list *list) {
  const double room = (double)list->item_count * list->longest_item;
  CHECK((list->columns != NULL) == (room > 0 && room <= 2 * list->item_blocks));
  for (int32_t i = 0; i < list->item_count && list->columns; ++i)
    CHECK(memcmp(list->columns + (int64_t)i * list->longest_item, v->indices + list->items[i].first_block,
                 sizeof(*v->indices) * (size_t)list->items[i].block_count) == 0);
}

/* Every strip is one item that writes to Y, or the pieces of one split, in the order of their slots. */
static void check_items(const bsrg_structure_view *v, const bsrg_narrow_list *list) {
  const int64_t strips = bsrg_ceil_div(v->block_height, list->strip);
  int64_t *covered = calloc((size_t)(v->block_rows * strips), sizeof(*covered));
  const bsrg_narrow_item **by_slot = calloc((size_t)list->slot_count + 1, sizeof(*by_slot));
  int64_t whole = 0;
  for (int32_t i = 0; i < list->item_count; ++i) {
    const bsrg_narrow_item *item = &list->items[i];
    const int64_t row = item->y_row / v->block_height;
    CHECK(item->y_row % v->block_height == item->row_in_block && item->row_in_block % list->strip == 0);
    CHECK(item->rows == bsrg_min(list->strip, v->block_height - item->row_in_block));
    CHECK(item->first_block >= v->indptr[row] && item->first_block + item->block_count <= v->indptr[row + 1]);
    CHECK(item->block_count <= BSRG_NARROW_MAX_BLOCKS);
    CHECK(item->block_count <= 1 ||
          item->block_count * v->block_width <= BSRG_NARROW_MAX_CHUNKS * BSRG_NARROW_CHUNK);
    CHECK(item->block_count <= list->longest_item);
    covered[row * strips + item->row_in_block / list->strip] += item->block_count;
    if (item->slot < 0) {
      CHECK(item->block_count == v->indptr[row + 1] - v->indptr[row]);
      ++whole;
    } else {
      CHECK(item->slot < list->slot_count && by_slot[item->slot] == NULL);
      by_slot[item->slot] = item;
    }
  }
  CHECK(whole + list->split_count == v->block_rows * strips);
  for (int64_t s = 0; s < v->block_rows * strips; ++s)
    CHECK(covered[s] == v->indptr[s / strips + 1] - v->indptr[s / strips]);
  int32_t slot = 0;
  for (int32_t s = 0; s < list->split_count; ++s) {
    const bsrg_narrow_split *split = &list->splits[s];
    CHECK(split->first_slot == slot && split->slot_count > 1);
    for (int32_t p = 0; p < split->slot_count; ++p, ++slot) {
      const bsrg_narrow_item *piece = by_slot[slot];
      CHECK(piece != NULL && piece->y_row == split->y_row && piece->rows == split->rows);
      CHECK(p == 0 || piece->first_block == by_slot[slot - 1]->first_block + by_slot[slot - 1]->block_count);
    }
  }
  CHECK(slot == list->slot_count);
  free(covered);
  free(by_slot);
}

/* Every block is a bit of one stage, in its place in the order of the blocks, and nothing else is. Strips have room in the
 * kernels' shared memory. */
static void check_cluster(const bsrg_structure_view *v, const bsrg_narrow_cluster *c) {
  if (!c->parts) {
    CHECK(!c->first && !c->masks && !c->by_rows && !c->by_columns);
    return;
  }
  const int64_t strips = v->block_rows;
  CHECK(v->block_height <= BSRG_NARROW_CLUSTER_STRIP && c->strips > 0 &&
        c->strips <= BSRG_NARROW_CLUSTER_STRIPS && (16 * c->strips / c->parts) % 8 == 0);
  CHECK((int64_t)c->strips * c->clusters >= strips && (int64_t)c->strips * (c->clusters - 1) < strips);
  CHECK(c->stages <= BSRG_NARROW_CLUSTER_MOST_STAGES &&
        (int64_t)c->stages * c->parts * BSRG_NARROW_CLUSTER_STAGE_K >= bsrg_whole_cols(v));
  CHECK(BSRG_NARROW_CLUSTER_REST_BYTES(c->parts, c->strips) + 2 * BSRG_NARROW_CLUSTER_STAGE_BYTES <=
        BSRG_NARROW_CLUSTER_SHARED_BYTES);
  const int64_t in_stage = BSRG_NARROW_CLUSTER_STAGE_K / v->block_width;
  int64_t block = 0, longest = 0;
  for (int64_t row = 0; row < v->block_rows; ++row)
    for (int64_t part = 0; part < c->parts; ++part) {
      const int64_t list = row * c->parts + part, begin = block;
      CHECK(c->first[list] == block);
      for (int64_t stage = 0; stage < c->stages; ++stage)
        for (int64_t bit = 0; bit < 16; ++bit) {
          if (!(c->masks[list * c->stages + stage] >> bit & 1)) continue;
          CHECK(bit < in_stage && block < v->indptr[row + 1]);
          CHECK(v->indices[block] == (part * c->stages + stage) * in_stage + bit);
          ++block;
        }
      longest = bsrg_max(longest, block - begin);
      CHECK(part < c->parts - 1 || block == v->indptr[row + 1]);
    }
  CHECK(c->first[v->block_rows * c->parts] == v->nnzb && block == v->nnzb && longest == c->longest);
}

/* A copy of X has all that X has, in rows of 32 or 64 elements that a map describes, and is counted. */
static void check_padded(const bsrg_matmul_args *args, const bsrg_matmul_args *padded,
                         const bsrg_candidate *candidate) {
  const int64_t n = args->x.cols, columns = n <= 32 ? 32 : 64;
  CHECK(n > 16 && n <= 64 && padded->x.rows == args->x.rows && padded->x.cols == columns);
  CHECK(padded->x.row_stride == columns && padded->x.col_stride == 1 && bsrg_map_can_describe(&padded->x));
  CHECK(strstr(candidate->reason, "after a copy of the dense operand") != NULL);
  const double both = 2 * 2 * (double)(args->x.rows * n);
  CHECK(candidate->hbm_bytes == bsrg_compulsory_bytes(&args->a->view, BSRG_F16, n) + both);
}

/* Which X is copied first, for strips of 64 rows and for lower ones. */
static void test_padding(void) {
  static const struct {
    bsrg_dense x;
    bool by_low, by_high;
  } cases[] = {{{NULL, 4096, 16, 17, 1}, false, false},      {{NULL, 4096, 17, 17, 1}, true, true},
               {{NULL, 4096, 20, 20, 1}, false, false},      {{NULL, 4096, 20, 21, 1}, true, true},
               {{(void *)2, 4096, 20, 20, 1}, true, true},   {{NULL, 4096, 20, 24, 1}, true, false},
               {{NULL, 4096, 24, 24, 1}, true, false},       {{NULL, 4096, 32, 32, 1}, false, false},
               {{(void *)8, 4096, 32, 32, 1}, false, false}, {{(void *)8, 4096, 64, 64, 1}, true, true},
               {{NULL, 4096, 36, 36, 1}, true, true},        {{NULL, 4096, 40, 40, 1}, true, false},
               {{NULL, 4096, 48, 48, 1}, false, false},      {{NULL, 4096, 63, 64, 1}, false, false},
               {{NULL, 4096, 64, 64, 1}, false, false},      {{NULL, 4096, 33, 1, 4096}, false, false},
               {{NULL, 4096, 33, 1, 4097}, true, true},      {{NULL, 4096, 33, 128, 2}, true, true},
               {{NULL, 4096, 65, 65, 1}, false, false}};
  int64_t lengths[64];
  for (int row = 0; row < 64; ++row) lengths[row] = 8;
  for (int64_t block = 16; block <= 64; block *= 4) {
    bsrg_structure *structure = make_rows(lengths, 64, 4096 / block, block, block, true);
    bsrg_narrow_plan *plan = bsrg_narrow_make_plan(structure);
    CHECK((plan->high.strip != 0) == (block == 64));
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); ++i) {
      bsrg_matmul_args args = {.a = structure, .dtype = BSRG_BF16, .x = cases[i].x}, padded;
      CHECK(bsrg_narrow_pads_x(&args, plan, 90, &padded) ==
            (block == 64 ? cases[i].by_high : cases[i].by_low));
      CHECK(!bsrg_narrow_pads_x(&args, plan, 80, &padded));
      args.dtype = BSRG_F32;
      CHECK(!bsrg_narrow_pads_x(&args, plan, 90, &padded));
    }
    bsrg_narrow_free_plan(plan);
    bsrg_structure_destroy(structure);
  }
}

/* Column-major X of a transposed view: from so many columns on that the ring takes longer for many low blocks. */
static void check_turned(int64_t blocks, int64_t side, int64_t fewest) {
  enum { BLOCK_ROWS = 128 };
  int64_t lengths[BLOCK_ROWS];
  for (int row = 0; row < BLOCK_ROWS; ++row) lengths[row] = blocks;
  bsrg_structure *structure = make_rows(lengths, BLOCK_ROWS, 512, side, side, true), *transposed;
  bsrg_error error;
  CHECK(bsrg_structure_transposed(structure, &transposed, &error) == BSRG_OK);
  bsrg_narrow_plan *plan = bsrg_narrow_make_plan(transposed);
  for (int64_t n = 16; n <= 65; ++n) {
    const int64_t k = BLOCK_ROWS * side;
    bsrg_matmul_args args = {.a = transposed, .dtype = BSRG_F16, .x = {NULL, k, n, 1, k}}, padded;
    CHECK(bsrg_narrow_pads_x(&args, plan, 90, &padded) == (n >= fewest && n <= 64));
  }
  bsrg_narrow_free_plan(plan);
  bsrg_structure_destroy(structure);
}

/* Strips of 64 rows are for X that Hopper's kernels can describe by a map, by rows if it has more than 16 columns or no gaps,
 * and blocks of whole k16: half as many of them read X. A column alone has no distance to another one. */
static void check_predictions(bsrg_structure *structure, const bsrg_narrow_plan *plan) {
  const int64_t k = structure->view.cols;
  const bsrg_chip hopper = bsrg_chip_h200();
  bsrg_chip ampere = hopper;
  ampere.sm_arch = 80;
  for (int64_t n = 1; n <= BSRG_NARROW_MAX_N; ++n) {
    const int64_t whole = bsrg_ceil_div(n, 8) * 8;
    const struct {
      bsrg_dense x;
      const bsrg_chip *chip;
      bool mapped, by_columns;
    } cases[] = {{{NULL, k, n, whole, 1}, &hopper, true, false},
                 {{NULL, k, n, 1, k}, &hopper, true, true},
                 {{NULL, k, n, whole + 4, 1}, &hopper, false, false},
                 {{NULL, k, n, 1, k + 4}, &hopper, false, true},
                 {{NULL, k, n, 2 * whole, 2}, &hopper, false, false},
                 {{(void *)8, k, n, whole, 1}, &hopper, false, false},
                 {{NULL, k, n, whole, 1}, &ampere, false, false}};
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); ++i) {
      bsrg_candidate candidate = {0};
      bsrg_matmul_args args = {.a = structure, .dtype = BSRG_F16, .x = cases[i].x}, padded;
      bsrg_narrow_predict(&args, plan, cases[i].chip, &candidate);
      const bool pads = bsrg_narrow_pads_x(&args, plan, cases[i].chip->sm_arch, &padded);
      if (pads) check_padded(&args, &padded, &candidate);
      if (pads) args = padded;
      CHECK(candidate.seconds > 0 && candidate.seconds < 1 && candidate.reason[0] != 0);
      const bsrg_structure_view *view = &structure->view;
      const bool mapped = cases[i].mapped || pads || (n == 1 && cases[i].by_columns), many = mapped && n > 16;
      const bool gapless = n % 8 == 0 && n <= 32 && args.x.row_stride == n && k % 8 == 0 &&
                           (plan->high.strip ? plan->high : plan->low).item_count >= 115;
      const bool high = (many || (mapped && (cases[i].by_columns || gapless))) && plan->high.strip &&
                        view->nnzb > 0 && view->block_width % 16 == 0;
      const bsrg_narrow_list *list = high ? &plan->high : &plan->low;
      const bsrg_narrow_kind kind = bsrg_narrow_kind_of(&args, plan, cases[i].chip->sm_arch);
      if (kind == BSRG_NARROW_BY_SHARES) {
        CHECK(plan->shares.clusters > 0 && mapped && candidate.l2_bytes > 0);
        continue;
      }
      CHECK(bsrg_narrow_list_of(plan, kind) == list);
      CHECK((kind == BSRG_NARROW_PLAIN) == !(many || high));
      const bool by_columns = cases[i].by_columns && !pads;
      const bool by_cluster = n > 32 ? many && (by_columns ? plan->cluster.by_columns : plan->cluster.by_rows)
                                     : many && by_columns && plan->cluster.by_few_columns;
      CHECK((kind == BSRG_NARROW_BY_CLUSTER) == by_cluster);
      if (by_cluster) continue;
      const double rows = (double)bsrg_min(list->strip, structure->view.block_height);
      CHECK(candidate.l2_bytes ==
            2 * list->item_blocks * (double)structure->view.block_width * ((double)args.x.cols + rows));
    }
  }
}

/* 8-bit floats go by TMA where strips have 64 rows, unless columns are few and lie as they should, and where blocks have a scale
 * each, if they suit it. X by rows is copied first, which takes time. */
static void check_eight_bits(bsrg_structure *structure, const bsrg_narrow_plan *plan) {
  const bsrg_structure_view *view = &structure->view;
  const bsrg_chip hopper = bsrg_chip_h200();
  const bool suits = !view->order && view->nnzb > 0 && view->block_width % 16 == 0;
  CHECK((bsrg_narrow_family.obstacle(view, BSRG_F8_E4M3, 90) == NULL) == suits);
  CHECK(bsrg_narrow_family.obstacle(view, BSRG_F8_E5M2, 80) != NULL);
  const bool by_tma = view->block_width % 32 == 0 && view->block_height > 16;
  CHECK(bsrg_narrow_tma_takes_8_bits(view) == by_tma);
  const int64_t k = bsrg_whole_cols(view);
  for (int64_t n = 1; suits && n <= BSRG_NARROW_MAX_N; n += 9) {
    bsrg_candidate by_columns = {0}, by_rows = {0};
    bsrg_matmul_args args = {.a = structure, .dtype = BSRG_F8_E4M3, .x = {NULL, k, n, 1, k}};
    const bsrg_narrow_kind own = n <= 16 ? BSRG_NARROW_PLAIN : BSRG_NARROW_BY_RING;
    CHECK(bsrg_narrow_packs_x(&args) == (n > 16));
    const bool fast = n > 8 || (n == 1 && view->block_width % 128 == 0);
    CHECK(bsrg_narrow_kind_of(&args, plan, 90) ==
          (by_tma && plan->high.strip && fast ? BSRG_NARROW_BY_TMA : own));
    CHECK(bsrg_narrow_family.layout_obstacle(&args) == NULL);
    args.values_scale_count = view->nnzb + 1; /* more than one */
    CHECK(bsrg_narrow_kind_of(&args, plan, 90) == (by_tma ? BSRG_NARROW_BY_TMA : own));
    CHECK((bsrg_narrow_family.layout_obstacle(&args) == NULL) == by_tma);
    args.values_scale_count = 1;
    args.x.rows = k - 1;
    CHECK(bsrg_narrow_packs_x(&args) && bsrg_narrow_family.layout_obstacle(&args) == NULL);
    CHECK(bsrg_narrow_kind_of(&args, plan, 90) == (by_tma && plan->high.strip ? BSRG_NARROW_BY_TMA : own));
    args.x = (bsrg_dense){NULL, k, n, 1, k};
    const bsrg_narrow_kind kind = bsrg_narrow_kind_of(&args, plan, 90);
    bsrg_narrow_predict(&args, plan, &hopper, &by_columns);
    args.x = (bsrg_dense){NULL, k, n, n + 1, 1};
    bsrg_narrow_predict(&args, plan, &hopper, &by_rows);
    CHECK(by_columns.seconds > 0 && by_rows.seconds > 0 && by_rows.seconds < 1);
    if (kind != bsrg_narrow_kind_of(&args, plan, 90)) continue;
    const double copied = kind == BSRG_NARROW_BY_RING ? 0 : 2.0 * (double)(k * n); /* by ring always */
    CHECK(by_rows.hbm_bytes - by_columns.hbm_bytes == copied);
    CHECK(copied > 0 ? by_rows.seconds > by_columns.seconds : by_rows.seconds == by_columns.seconds);
  }
}

/* Float32 and float64: blocks of whole chunks, and X whose rows or columns can be copied 16 bytes at a time. */
static void check_wide(bsrg_structure *structure, const bsrg_narrow_plan *plan, bsrg_dtype dtype) {
  const bsrg_structure_view *view = &structure->view;
  const bsrg_chip hopper = bsrg_chip_h200();
  const int64_t size = (int64_t)bsrg_dtype_size(dtype), chunk = 16 / size;
  const bool suits = view->block_width % chunk == 0 && !(view->order && view->block_height % chunk) &&
                     view->block_width <= 131072 / size &&
                     view->block_height * view->block_width <= INT32_MAX / (size / 2);
  CHECK((bsrg_narrow_family.obstacle(view, dtype, 90) == NULL) == suits);
  CHECK(bsrg_narrow_family.obstacle(view, dtype, 80) != NULL);
  double last = 0;
  for (int64_t n = 1; suits && n <= 256; n *= 2) {
    bsrg_candidate candidate = {0};
    const int64_t k = bsrg_whole_cols(view), pitch = bsrg_ceil_div(n, 4) * 4;
    bsrg_matmul_args args = {.a = structure, .dtype = dtype, .x = {NULL, k, n, pitch, 1}};
    CHECK(bsrg_narrow_kind_of(&args, plan, 90) == BSRG_NARROW_BY_RING);
    CHECK(bsrg_narrow_panel(&args, plan, 90) == bsrg_min(n, BSRG_NARROW_MAX_N));
    CHECK(bsrg_narrow_family.layout_obstacle(&args) == NULL);
    bsrg_narrow_predict(&args, plan, &hopper, &candidate);
    CHECK(candidate.seconds >= last && candidate.seconds > 0 && candidate.seconds < 1);
    last = candidate.seconds;
    args.x.row_stride = pitch + 1;
    CHECK(bsrg_narrow_family.layout_obstacle(&args) != NULL);
    args.x = (bsrg_dense){NULL, k, n, 1, bsrg_ceil_div(k, 4) * 4};
    CHECK(bsrg_narrow_family.layout_obstacle(&args) == NULL);
    args.x.data = (void *)8;
    CHECK(bsrg_narrow_family.layout_obstacle(&args) != NULL);
  }
}

static int32_t check_plan(bsrg_structure *structure) {
  const bsrg_structure_view view = bsrg_structure_get(structure);
  const int64_t height = view.block_height;
  bsrg_narrow_plan *plan = bsrg_narrow_make_plan(structure);
  CHECK(plan != NULL && plan->low.strip == (height > 16 ? 32 : 16));
  CHECK(plan->high.strip == (height > 32 ? 64 : 0));
  const bsrg_narrow_list *lists[] = {&plan->low, &plan->high};
  for (int i = 0; i < (height > 32 ? 2 : 1); ++i) {
    check_items(&view, lists[i]);
    check_columns(&view, lists[i]);
    if (bsrg_is_skewed(lists[i]->longest_item, (int64_t)lists[i]->item_blocks, lists[i]->item_count))
      for (int32_t j = 1; j < lists[i]->item_count; ++j)
        CHECK(lists[i]->items[j - 1].block_count >= lists[i]->items[j].block_count);
  }
  check_cluster(&view, &plan->cluster);
  CHECK(!view.order || !plan->cluster.parts);
  CHECK((plan->places != NULL) == (view.order != NULL));
  for (int64_t b = 0; view.order && b < view.nnzb; ++b) CHECK(plan->places[b] == view.order[b]);
  check_predictions(structure, plan);
  check_eight_bits(structure, plan);
  check_wide(structure, plan, BSRG_F32);
  check_wide(structure, plan, BSRG_F64);
  const int32_t splits = plan->low.split_count;
  bsrg_narrow_free_plan(plan);
  return splits;
}

static int32_t check(const int64_t *lengths, int64_t block_rows, int64_t block_cols, int64_t height,
                     int64_t width) {
  bsrg_structure *structure = make(lengths, block_rows, block_cols, height, width), *transposed;
  bsrg_error error;
  const int32_t splits = check_plan(structure);
  if (height % BSRG_NARROW_CHUNK == 0 && width < BSRG_NARROW_MAX_WIDTH) {
    CHECK(bsrg_structure_transposed(structure, &transposed, &error) == BSRG_OK);
    check_plan(transposed);
  }
  bsrg_structure_destroy(structure);
  return splits;
}

static const int64_t shapes[][2] = {{1, 8},   {5, 24},   {8, 8},     {16, 16},  {17, 16},   {24, 40},
                                    {48, 80}, {64, 128}, {130, 112}, {512, 16}, {16, 65536}};
enum { SHAPES = sizeof(shapes) / sizeof(shapes[0]), ROWS = 40 };

static void test_patterns(void) {
  int64_t even[ROWS], falling[ROWS], empty[ROWS] = {0}, one_long[ROWS];
  for (int64_t i = 0; i < ROWS; ++i) {
    even[i] = 7;
    falling[i] = 900 / (i + 1);
    one_long[i] = i % 3;
  }
  one_long[ROWS / 2] = 3000;
  for (int s = 0; s < SHAPES; ++s) {
    const int64_t height = shapes[s][0], width = shapes[s][1];
    CHECK(check(empty, ROWS, 9, height, width) == 0);
    check(even, ROWS, 9, height, width);
    check(falling, ROWS, 1000, height, width);
    CHECK(check(one_long, ROWS, 3000, height, width) == bsrg_ceil_div(height, height > 16 ? 32 : 16));
    check(&one_long[ROWS / 2], 1, 3000, height, width);
    check(empty, 1, 1, height, width);
  }
}

static void test_even_rows_stay_whole(void) {
  int64_t lengths[512];
  for (int i = 0; i < 512; ++i) lengths[i] = 128;
  CHECK(check(lengths, 512, 512, 16, 16) == 0);
  for (int i = 0; i < 64; ++i) lengths[i] = 32;
  CHECK(check(lengths, 64, 64, 128, 128) == 0);
}

/* Where X would come from L2 four times as often as A does, low blocks share it, in as many parts as suit the rows; not where
 * there is little of A, but for a column-major X, or next to nothing, nor where one row has most of the blocks, nor higher blocks. */
static void test_clusters(void) {
  static const struct {
    int64_t rows, columns, height, width, blocks, longest;
    int32_t parts, strips;
    bool by_rows, by_few_columns;
  } cases[] = {
      {512, 512, 16, 16, 128, 0, 4, 18, true, true},  {512, 512, 16, 16, 256, 0, 4, 18, true, true},
      {896, 256, 16, 16, 32, 0, 2, 14, true, true},   {512, 256, 16, 32, 64, 0, 4, 18, true, true},
      {256, 688, 16, 16, 172, 0, 4, 10, true, true},  {1792, 512, 16, 16, 128, 0, 2, 14, true, true},
      {512, 512, 16, 16, 26, 0, 4, 18, false, false}, {512, 512, 16, 16, 64, 512, 0, 0, false, false},
      {1792, 512, 16, 16, 1, 0, 0, 0, false, false},  {256, 256, 32, 32, 64, 0, 0, 0, false, false},
      {512, 512, 16, 48, 128, 0, 0, 0, false, false}};
  for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); ++i) {
    int64_t lengths[1792];
    for (int64_t row = 0; row < cases[i].rows; ++row) lengths[row] = cases[i].longest ? 1 : cases[i].blocks;
    if (cases[i].longest) lengths[7] = cases[i].longest;
    bsrg_structure *structure =
        make_rows(lengths, cases[i].rows, cases[i].columns, cases[i].height, cases[i].width, true);
    const bsrg_structure_view view = bsrg_structure_get(structure);
    bsrg_narrow_plan *plan = bsrg_narrow_make_plan(structure);
    const bsrg_narrow_cluster *c = &plan->cluster;
    check_cluster(&view, c);
    CHECK(c->parts == cases[i].parts && c->strips == cases[i].strips);
    CHECK(c->by_rows == cases[i].by_rows && c->by_columns == (c->parts > 0));
    CHECK(c->by_few_columns == cases[i].by_few_columns);
    bsrg_narrow_free_plan(plan);
    bsrg_structure_destroy(structure);
  }
}

/* Blocks that reach beyond the matrix: each of its rows is in one strip, none of the others is in any. */
static void check_rows(const bsrg_narrow_list *list, int64_t rows) {
  int *seen = calloc((size_t)rows, sizeof(*seen));
  for (int32_t i = 0; i < list->item_count + list->split_count; ++i) {
    const bool split = i >= list->item_count;
    const bsrg_narrow_split *s = split ? &list->splits[i - list->item_count] : NULL;
    const bsrg_narrow_item *item = split ? NULL : &list->items[i];
    const int32_t from = split ? s->y_row : item->y_row, count = split ? s->rows : item->rows;
    CHECK(count > 0 && from >= 0 && from + count <= rows);
    if (!split && item->slot >= 0) continue;
    for (int32_t row = from; row < from + count && row < rows; ++row) ++seen[row];
  }
  for (int64_t row = 0; row < rows; ++row) CHECK(seen[row] == 1);
  free(seen);
}

static void test_partial_rows(void) {
  enum { COLUMNS = 2000 };
  static const int64_t heights[] = {16, 40, 64, 96, 130};
  int64_t indices[3 + COLUMNS] = {1, 5, 9};
  for (int64_t i = 0; i < COLUMNS; ++i) indices[3 + i] = i;
  const int64_t indptr[] = {0, 3, 3, 3 + COLUMNS};
  for (size_t i = 0; i < sizeof(heights) / sizeof(heights[0]); ++i) {
    const int64_t height = heights[i], cuts[] = {1, height / 2 + 1, height - 1};
    for (int c = 0; c < 3; ++c) {
      const bsrg_pattern pattern = {.rows = 3 * height - cuts[c],
                                    .cols = COLUMNS * 8,
                                    .block_height = height,
                                    .block_width = 8,
                                    .nnzb = 3 + COLUMNS,
                                    .indptr_len = 4,
                                    .index_type = BSRG_I64,
                                    .indices = indices,
                                    .indptr = indptr};
      bsrg_structure *structure = NULL;
      CHECK(bsrg_structure_create(&pattern, 1, &structure, NULL) == BSRG_OK);
      bsrg_narrow_plan *plan = bsrg_narrow_make_plan(structure);
      check_rows(&plan->low, pattern.rows);
      CHECK(plan->low.split_count > 0);
      if (height > 32) check_rows(&plan->high, pattern.rows);
      bsrg_narrow_free_plan(plan);
      bsrg_structure_destroy(structure);
    }
  }
}

/* What the kernels count on and nobody checks at a launch. */
static void test_tiles(void) {
#define TILE(columns, strip, ...) {columns, strip, BSRG_NARROW_SM90_WARP_BYTES(columns, strip), __VA_ARGS__},
  static const int tiles[][6] = {BSRG_NARROW_SM90_TILES(TILE)};
#undef TILE
  enum { HOPPER_SHARED_BYTES = 227 << 10, MOST_BARRIERS = 15 };
  for (size_t i = 0; i < sizeof(tiles) / sizeof(tiles[0]); ++i) {
    const int *warps = tiles[i] + 3;
    for (int w = 0; w < 3; ++w) {
      CHECK(warps[w] * tiles[i][2] + 4 * BSRG_NARROW_MAX_BLOCKS <= HOPPER_SHARED_BYTES);
      /* Those that take a turn together meet at a barrier of their own. */
      CHECK(tiles[i][1] < 64 || (warps[w] % 2 == 0 && warps[w] / 2 <= MOST_BARRIERS));
      CHECK(warps[w] > 0 && warps[w] <= (w > 0 ? warps[w - 1] : 32));
    }
  }
}

static void test_columns(void) {
  static const int32_t expected[][2] = {{1, 8},   {8, 8},   {9, 16},  {16, 16},
                                        {17, 32}, {32, 32}, {33, 64}, {64, 64}};
  for (size_t i = 0; i < sizeof(expected) / sizeof(expected[0]); ++i)
    CHECK(bsrg_narrow_columns(expected[i][0]) == expected[i][1]);
}

int main(void) {
  test_patterns();
  test_even_rows_stay_whole();
  test_clusters();
  test_partial_rows();
  test_columns();
  test_padding();
  check_turned(400, 16, 25);
  check_turned(100, 16, 33);
  check_turned(8, 16, 65);
  check_turned(400, 64, 65);
  test_tiles();
  if (failures) fprintf(stderr, "%d checks failed\n", failures);
  return failures != 0;
}
