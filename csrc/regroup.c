/* Regrouping: from a structure to one of larger blocks, and the pieces of which their values consist. */
#include "regroup.h"
#include "stream.h"

#include <stdlib.h>
#include <string.h>

/* ---- which larger blocks there are ------------------------------------------------------------ */

/* Divides numbers below 2^31 by a block side; most are powers of two. */
typedef struct divisor {
  uint32_t by;
  int shift; /* -1: no power of two */
} divisor;

static divisor make_divisor(int32_t by) {
  return (divisor){(uint32_t)by, (by & (by - 1)) == 0 ? __builtin_ctz((unsigned)by) : -1};
}

static inline int32_t divide(divisor d, int64_t number) {
  const uint32_t narrow = (uint32_t)number;
  return (int32_t)(d.shift >= 0 ? narrow >> d.shift : narrow / d.by);
}

typedef struct span {
  int64_t begin, end;
} span;

/* The block rows that row `row` of the larger blocks meets. */
static span block_rows_of(const bsrg_structure_view *v, bsrg_block_shape shape, int64_t row) {
  return (span){row * shape.height / v->block_height,
                bsrg_min(bsrg_ceil_div((row + 1) * shape.height, v->block_height), v->block_rows)};
}

int64_t bsrg_regroup_most_blocks(const bsrg_structure_view *v, bsrg_block_shape shape) {
  /* A block of height bh that starts anywhere meets at most this many rows of larger blocks. */
  const int64_t down = shape.height % v->block_height == 0 ? 1 : (v->block_height - 1) / shape.height + 2;
  const int64_t across = shape.width % v->block_width == 0 ? 1 : (v->block_width - 1) / shape.width + 2;
  const int64_t grid =
      bsrg_ceil_div(bsrg_whole_rows(v), shape.height) * bsrg_ceil_div(bsrg_whole_cols(v), shape.width);
  int64_t met;
  return bsrg_mul_ok(v->nnzb, down * across, &met) ? bsrg_min(met, grid) : grid;
}

/* Marks the larger blocks of one row with the stamp and lists them, in no order, unless list is NULL. */
static int64_t distinct_blocks(const bsrg_structure_view *v, divisor width, span rows, int32_t *marks,
                               int32_t stamp, int32_t *list) {
  const int64_t bw = v->block_width;
  int64_t count = 0;
  for (int64_t b = v->indptr[rows.begin]; b < v->indptr[rows.end]; ++b) {
    const int64_t column = v->indices[b] * bw;
    const int32_t last = divide(width, column + bw - 1);
    for (int32_t j = divide(width, column); j <= last; ++j) {
      if (marks[j] == stamp) continue;
      marks[j] = stamp;
      if (list) list[count] = j;
      ++count;
    }
  }
  return count;
}

/* The nearest number from `number` down, at least 1, that shares no divisor with `other`. */
static int64_t coprime(int64_t number, int64_t other) {
  for (;; --number) {
    int64_t a = number, b = other;
    while (b) {
      const int64_t rest = a % b;
      a = b, b = rest;
    }
    if (a == 1) return number;
  }
}

double bsrg_regroup_estimate_blocks(const bsrg_structure_view *v, bsrg_block_shape shape, int64_t look_at,
                                    int32_t *marks, int32_t *stamp) {
  enum { LEAST_ROWS = 4 };
  const divisor width = make_divisor(shape.width);
  const int64_t bh = v->block_height, rows = bsrg_ceil_div(bsrg_whole_rows(v), shape.height);
  const int64_t met = v->nnzb * bsrg_ceil_div(bh, shape.height);
  int64_t stride = bsrg_max(1, bsrg_min(met / look_at, rows / LEAST_ROWS));
  for (;; stride = bsrg_max(1, stride / 8)) { /* again where the sample has missed the long rows */
    /* How larger rows lie to block rows repeats itself: no stride may hit the same case each time. */
    stride = coprime(stride, bh);
    int64_t seen = 0, covered = 0, count = 0; /* stored blocks, their rows, larger blocks */
    for (int64_t row = stride / 2; row < rows; row += stride) {
      const span from = block_rows_of(v, shape, row);
      const int64_t top = row * shape.height, bottom = top + shape.height;
      for (int64_t i = from.begin; i < from.end; ++i) {
        const int64_t blocks = v->indptr[i + 1] - v->indptr[i];
        seen += blocks;
        covered += blocks * (bsrg_min(bottom, (i + 1) * bh) - bsrg_max(top, i * bh));
      }
      count += distinct_blocks(v, width, from, marks, (*stamp)++, NULL);
    }
    if (stride == 1 || seen > look_at / 4)
      return (double)count * (double)v->nnzb * (double)bh / (double)covered;
  }
}

/* The structure of the larger blocks. Their order in a row comes from two transpositions, which sort in linear
 * time. */
static bsrg_structure *make_child(const bsrg_structure_view *v, bsrg_block_shape shape) {
  const int64_t rows = bsrg_ceil_div(bsrg_whole_rows(v), shape.height),
                cols = bsrg_ceil_div(bsrg_whole_cols(v), shape.width);
  const int64_t most = bsrg_regroup_most_blocks(v, shape);
  int32_t *indptr = malloc(sizeof(*indptr) * (size_t)(rows + 1));
  int32_t *indices = malloc(sizeof(*indices) * (size_t)most);
  int32_t *marks = calloc((size_t)cols, sizeof(*marks));
  int64_t *order = NULL;
  bsrg_structure *unsorted = NULL, *transposed = NULL, *child = NULL;
  if (indptr && indices && marks) {
    const divisor width = make_divisor(shape.width);
    indptr[0] = 0;
    for (int64_t row = 0; row < rows; ++row)
      indptr[row + 1] = indptr[row] + (int32_t)distinct_blocks(v, width, block_rows_of(v, shape, row), marks,
                                                               (int32_t)row + 1, indices + indptr[row]);
    const bsrg_pattern pattern = {.rows = rows * shape.height,
                                  .cols = cols * shape.width,
                                  .block_height = shape.height,
                                  .block_width = shape.width,
                                  .nnzb = indptr[rows],
                                  .indptr_len = rows + 1,
                                  .index_type = BSRG_I32,
                                  .indices = indices,
                                  .indptr = indptr};
    order = malloc(sizeof(*order) * (size_t)(pattern.nnzb + 1));
    if (order && bsrg_structure_create(&pattern, 0, &unsorted, NULL) == BSRG_OK &&
        bsrg_structure_transpose(unsorted, &transposed, order, NULL) == BSRG_OK &&
        bsrg_structure_transpose(transposed, &child, order, NULL) != BSRG_OK)
      child = NULL;
    /* The sorting has kept in mind that columns came in no order; each is there once. */
    if (child) child->view.column_order = BSRG_ASCENDING;
  }
  bsrg_structure_destroy(unsorted);
  bsrg_structure_destroy(transposed);
  free(indptr);
  free(indices);
  free(marks);
  free(order);
  return child;
}

/* ---- of which pieces their values consist ------------------------------------------------------ */

/* A tile holds 2^units_log2 units; a unit is a block of the child, or one of its strips where the block is larger
 * than a tile. */
typedef struct tiling {
  int32_t unit_height, units_per_block, units_log2;
} tiling;

static tiling make_tiling(bsrg_block_shape shape) {
  const bool whole = shape.height * shape.width <= BSRG_REGROUP_TILE;
  tiling t = {whole ? shape.height : 64, whole ? 1 : shape.height / 64, 0};
  if (whole)
    while ((shape.height * shape.width) << (t.units_log2 + 1) <= BSRG_REGROUP_TILE) ++t.units_log2;
  return t;
}

/* Walks over the pieces of one row of the child. slot[j] is the place of the child's block in column j. Counts the pieces of
 * tile t in next[t] or, where pieces is given, writes them at next[t]. */
static inline void walk_row(const bsrg_structure_view *v, bsrg_block_shape shape, tiling units, int64_t row,
                            const int32_t *slot, int64_t *next, bsrg_regroup_piece *pieces) {
  const divisor width = make_divisor(shape.width);
  const int64_t bh = v->block_height, bw = v->block_width, first_row = row * shape.height;
  const span from = block_rows_of(v, shape, row);
  for (int64_t i = from.begin; i < from.end; ++i) {
    const int64_t top = bsrg_max(i * bh, first_row);
    const int64_t bottom = bsrg_min((i + 1) * bh, first_row + shape.height);
    for (int64_t y = top, y_end; y < bottom; y = y_end) {
      const int64_t unit_in_block = (y - first_row) / units.unit_height;
      const int64_t unit_row = first_row + unit_in_block * units.unit_height;
      y_end = bsrg_min(bottom, unit_row + units.unit_height);
      for (int64_t b = v->indptr[i]; b < v->indptr[i + 1]; ++b) {
        const int64_t column = v->indices[b] * bw, end = column + bw;
        const int32_t last = divide(width, end - 1);
        for (int32_t j = divide(width, column); j <= last; ++j) {
          const int64_t unit = (int64_t)slot[j] * units.units_per_block + unit_in_block;
          int64_t *const at = &next[unit >> units.units_log2];
          if (pieces) {
            const int64_t left = (int64_t)j * shape.width, x = bsrg_max(column, left);
            const int64_t x_end = bsrg_min(end, left + shape.width);
            const int64_t unit_in_tile = unit & (((int64_t)1 << units.units_log2) - 1);
            const int64_t target_row = unit_in_tile * units.unit_height + y - unit_row;
            pieces[*at] = (bsrg_regroup_piece){(int32_t)b, (int32_t)((y - i * bh) * bw + x - column),
                                               (int32_t)(target_row * shape.width + x - left),
                                               (uint16_t)(y_end - y), (uint16_t)(x_end - x)};
          }
          ++*at;
        }
      }
    }
  }
}

/* place: of each block of the child; NULL where they lie in their order. */
static bool make_pieces(const bsrg_structure_view *v, const int32_t *place, bsrg_regrouped *r) {
  const bsrg_structure_view *child = &r->child->view;
  const tiling units = make_tiling(r->shape);
  r->tile_elements = (units.unit_height * r->shape.width) << units.units_log2;
  r->tile_count = bsrg_ceil_div(child->nnzb * units.units_per_block, (int64_t)1 << units.units_log2);
  int32_t *slot = malloc(sizeof(*slot) * (size_t)child->block_cols);
  r->tile_begin = calloc((size_t)r->tile_count + 2, sizeof(*r->tile_begin));
  bool done = slot && r->tile_begin;
  /* Counts stand two places further along, so that after the sums next[t] is where tile t begins and, once its
   * pieces are written, where tile t + 1 does. */
  int64_t *const next = done ? r->tile_begin + 1 : NULL;
  for (int pass = 0; pass < 2 && done; ++pass) {
    for (int64_t row = 0; row < child->block_rows; ++row) {
      for (int64_t s = child->indptr[row]; s < child->indptr[row + 1]; ++s)
        slot[child->indices[s]] = place ? place[s] : (int32_t)s;
      if (pass == 0)
        walk_row(v, r->shape, units, row, slot, next + 1, NULL);
      else
        walk_row(v, r->shape, units, row, slot, next, r->pieces);
    }
    if (pass == 1) break;
    for (int64_t t = 0; t < r->tile_count; ++t) next[t + 1] += next[t];
    r->pieces = malloc(sizeof(*r->pieces) * (size_t)next[r->tile_count]);
    done = r->pieces != NULL;
  }
  free(slot);
  return done;
}

/* A block for the stream family is one part, so that this copy is its packing too. */
static bool make_pieces_for_stream(const bsrg_structure_view *v, bsrg_regrouped *r) {
  const bsrg_stream_plan *plan = r->child_plan;
  int32_t *place = malloc(sizeof(*place) * (size_t)plan->part_count);
  if (!place) return false;
  for (int64_t i = 0; i < plan->part_count; ++i) place[plan->source[i]] = (int32_t)i;
  const bool done = make_pieces(v, place, r);
  free(place);
  return done;
}

/* ---- where the parts of blocks of 128 x 64 or 128 x 80 are stored -------------------------------- */

/* The largest power of two up to 64 that divides a block side. */
static int32_t common_part(int64_t side) {
  int32_t part = 64;
  while (side % part) part /= 2;
  return part;
}

bsrg_block_shape bsrg_regroup_source_shape(const bsrg_structure_view *v, bsrg_block_shape shape,
                                           const bsrg_family_ops *family) {
  const bool wide = bsrg_regroup_is_wide(v) && shape.width == BSRG_TALL_WIDE_PIECE;
  const bsrg_block_shape part = {common_part(v->block_height),
                                 wide ? BSRG_TALL_WIDE_PIECE : common_part(v->block_width)};
  const bool has_kernel = family == &bsrg_tall_family && shape.height == BSRG_TALL_PIECED_HEIGHT &&
                          (wide || shape.width == BSRG_TALL_PIECED_WIDTH);
  int64_t rows;
  const bool counted = bsrg_mul_ok(v->nnzb, v->block_height, &rows) && rows <= INT32_MAX - 64;
  /* Smaller parts (8 x 32) gain nothing. Of 16 columns where these are all of a block, since a box has two rows in one then:
   * 48 x 80 in parts of 16 x 16, a box of 16 rows each, took up to 8% longer than a copy before. */
  const bool suits =
      (part.width >= 32 && part.height * part.width >= 512) || (v->block_width == 16 && part.height >= 16);
  return has_kernel && suits && counted ? part : (bsrg_block_shape){0, 0};
}

/* Enters one row of parts, `part` of those of the child's row. slot[j]: the entry of the child's block in column j. */
static void enter_sources(const bsrg_structure_view *v, int64_t row, int32_t part, const int32_t *slot,
                          bsrg_regrouped *r) {
  const bsrg_block_shape shape = r->source_shape;
  const int32_t down = BSRG_TALL_STRIP / shape.height, across = r->shape.width / shape.width;
  const int32_t together = BSRG_TALL_TWO_ROWS(shape.width) ? BSRG_TWO_ROWS : 1;
  const int64_t bh = v->block_height, bw = v->block_width;
  const int64_t y = row * BSRG_TALL_PIECED_HEIGHT + part * shape.height, block_row = y / bh;
  if (block_row >= v->block_rows) return;
  for (int64_t b = v->indptr[block_row]; b < v->indptr[block_row + 1]; ++b)
    for (int64_t x = 0; x < bw; x += shape.width) {
      const int64_t column = v->indices[b] * bw + x, entry = slot[column / r->shape.width];
      const int64_t panel = column % r->shape.width / shape.width;
      /* Four bits a strip: of a wide piece the fifth sixteen goes with the others. */
      for (int64_t k = panel * shape.width / 16; k < bsrg_min((panel + 1) * shape.width / 16, 4); ++k)
        r->k16s[entry] |= (uint8_t)(1 << (part / down * 4 + k));
      r->sources[((entry * 2 + part / down) * across + panel) * down + part % down] =
          (bsrg_tall_piece){(int32_t)x, (int32_t)((b * bh + y % bh) / together)};
    }
}

/* Of pieces one below the other, those that no block has: the first of a run gets its length. */
static void join_zeros(bsrg_tall_piece *column, int32_t count) {
  int32_t run = 0;
  for (int32_t i = count - 1; i >= 0; --i) {
    run = column[i].x < 0 ? run + 1 : 0;
    if (run > 0 && (i == 0 || column[i - 1].x >= 0)) column[i].y = run;
  }
}

static bool make_sources(const bsrg_structure_view *v, bsrg_regrouped *r) {
  const bsrg_structure_view *child = &r->child->view;
  r->source_shape = bsrg_regroup_source_shape(v, r->shape, r->family);
  if (r->source_shape.height == 0) return true;
  const bsrg_tall_plan *plan = r->child_plan; /* with an entry for every block */
  const int32_t rows = BSRG_TALL_PIECED_HEIGHT / r->source_shape.height;
  r->source_count = child->nnzb * rows * (r->shape.width / r->source_shape.width);
  int32_t *entry_of = malloc(sizeof(*entry_of) * (size_t)child->nnzb);
  int32_t *slot = malloc(sizeof(*slot) * (size_t)child->block_cols);
  r->sources = malloc(sizeof(*r->sources) * (size_t)r->source_count);
  r->k16s = calloc((size_t)child->nnzb, 1);
  const bool done = entry_of && slot && r->sources && r->k16s;
  for (int64_t e = 0; done && e < child->nnzb; ++e)
    entry_of[plan->entries[e].a_block[0] / BSRG_TALL_PIECED_HEIGHT] = (int32_t)e;
  for (int64_t i = 0; done && i < r->source_count; ++i) r->sources[i] = (bsrg_tall_piece){-1, 0};
  for (int64_t row = 0; done && row < child->block_rows; ++row) {
    for (int64_t s = child->indptr[row]; s < child->indptr[row + 1]; ++s)
      slot[child->indices[s]] = entry_of[s];
    for (int32_t part = 0; part < rows; ++part) enter_sources(v, row, part, slot, r);
  }
  const int32_t down = BSRG_TALL_STRIP / r->source_shape.height;
  for (int64_t i = 0; done && i < r->source_count; i += down) join_zeros(r->sources + i, down);
  int64_t met = 0;
  for (int64_t e = 0; done && e < child->nnzb; ++e)
    for (int bit = 0; bit < 8; ++bit) met += r->k16s[e] >> bit & 1;
  r->skipped = 1 - (double)met / (8 * (double)child->nnzb);
  free(entry_of);
  free(slot);
  return done;
}

/* ---- all of it -------------------------------------------------------------------------------- */

bsrg_regrouped *bsrg_regroup(const bsrg_structure_view *v, bsrg_block_shape shape,
                             const bsrg_family_ops *family, bool low) {
  bsrg_regrouped *r = calloc(1, sizeof(*r));
  if (!r) return NULL;
  r->shape = shape;
  r->family = family;
  r->low = low;
  r->child = make_child(v, shape);
  if (r->child && bsrg_plan_get(r->child, family, low, &r->child_plan, NULL) == BSRG_OK &&
      (family == &bsrg_stream_family ? make_pieces_for_stream(v, r) : make_pieces(v, NULL, r)) &&
      make_sources(v, r))
    return r;
  bsrg_regrouped_free(r);
  return NULL;
}

void bsrg_regrouped_free(void *regrouped) {
  bsrg_regrouped *r = regrouped;
  bsrg_structure_destroy(r->child);
  free(r->pieces);
  free(r->tile_begin);
  free(r->sources);
  free(r->k16s);
  free(r);
}
