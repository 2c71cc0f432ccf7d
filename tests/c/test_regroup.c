/* Regrouping: the larger blocks and their pieces against a dense mask, and the kernel's arithmetic on the host. */
#include <math.h>
#include <string.h>

#include "regroup.h"
#include "stream.h"
#include "structures.h"

static void *allocate(int64_t count, size_t item) {
  void *memory = calloc(count > 0 ? (size_t)count : 1, item);
  if (memory == NULL) abort();
  return memory;
}

/* Blocks with probability share / 100, but always the last one of a random row. */
static bsrg_structure *random_structure(int64_t block_rows, int64_t block_cols, int64_t bh, int64_t bw,
                                        uint32_t share) {
  int64_t *indptr = allocate(block_rows + 1, sizeof(*indptr));
  int64_t *indices = allocate(block_rows * block_cols, sizeof(*indices));
  const int64_t sure = random_below((uint32_t)block_rows);
  for (int64_t i = 0; i < block_rows; ++i) {
    indptr[i + 1] = indptr[i];
    for (int64_t j = 0; j < block_cols; ++j)
      if (random_below(100) < share || (i == sure && j == block_cols - 1)) indices[indptr[i + 1]++] = j;
  }
  return make_structure(block_rows, block_cols, bh, bw, indptr, indices);
}

/* The kernel's way from a tile of parts to memory. */
static void store_parts(const bsrg_regrouped *r, const uint16_t *tile, int64_t count, uint16_t *out) {
  const int32_t across_log2 = BSRG_PART_ACROSS_LOG2(r->shape.width);
  for (int32_t i = 0; i < count / 8; ++i) {
    const int32_t from = BSRG_UNIT_BY_ROWS(i, across_log2);
    CHECK(from >= 0 && 8 * from < count);
    memcpy(out + 8 * i, tile + 8 * from, 8 * sizeof(*out));
  }
}

/* What the kernel does for chunks of so many elements and so many threads a piece. */
static void emulate(const bsrg_structure_view *v, const bsrg_regrouped *r, const uint16_t *values,
                    int elements, int lanes, uint16_t *regrouped) {
  const int64_t total = r->child->view.nnzb * r->shape.height * r->shape.width;
  const int32_t source_pitch = (int32_t)v->block_width / elements, target_pitch = r->shape.width / elements;
  for (int64_t t = 0; t < r->tile_count; ++t) {
    const int64_t first = t * r->tile_elements, count = bsrg_min(r->tile_elements, total - first);
    CHECK(count > 0 && 2 * count <= BSRG_REGROUP_SHARED_BYTES);
    uint16_t *tile = allocate(count, sizeof(*tile));
    for (int64_t i = r->tile_begin[t]; i < r->tile_begin[t + 1]; ++i) {
      const bsrg_regroup_piece piece = r->pieces[i];
      CHECK(piece.rows > 0 && piece.rows <= 512 && piece.cols > 0 && piece.cols <= 128);
      CHECK(piece.source % elements == 0 && piece.target % elements == 0 && piece.cols % elements == 0);
      const uint16_t *source = values + piece.block * (v->block_height * v->block_width) + piece.source;
      uint16_t *target = tile + piece.target;
      const int across = piece.cols / elements;
      const uint32_t reciprocal = BSRG_REGROUP_RECIPROCAL(across);
      for (int lane = 0; lane < lanes; ++lane)
        for (int chunk = lane; chunk < piece.rows * across; chunk += lanes) {
          const int row = (int)BSRG_REGROUP_ROW(chunk, reciprocal), column = chunk - row * across;
          for (int e = 0; e < elements; ++e) {
            uint16_t *to = target + (row * target_pitch + column) * elements + e;
            CHECK(*to == 0); /* nothing is written twice */
            *to = source[(row * source_pitch + column) * elements + e];
          }
        }
    }
    if (r->family == &bsrg_tall_family)
      memcpy(regrouped + first, tile, sizeof(*tile) * (size_t)count);
    else
      store_parts(r, tile, count, regrouped + first);
    free(tile);
  }
}

static void check_child(const bsrg_structure_view *v, const bsrg_regrouped *r, const uint16_t *dense) {
  const bsrg_structure_view *c = &r->child->view;
  CHECK(c->block_height == r->shape.height && c->block_width == r->shape.width);
  CHECK(c->rows == bsrg_ceil_div(v->rows, c->block_height) * c->block_height);
  CHECK(c->cols == bsrg_ceil_div(v->cols, c->block_width) * c->block_width);
  CHECK(c->nnzb <= bsrg_regroup_most_blocks(v, r->shape));
  int64_t at = 0, longest = 0;
  for (int64_t i = 0; i < c->block_rows; ++i) {
    for (int64_t j = 0; j < c->block_cols; ++j) {
      bool needed = false;
      for (int64_t y = i * c->block_height; y < bsrg_min((i + 1) * c->block_height, v->rows); ++y)
        for (int64_t x = j * c->block_width; x < bsrg_min((j + 1) * c->block_width, v->cols); ++x)
          needed |= dense[y * v->cols + x] != 0;
      if (needed) {
        CHECK(at < c->nnzb && c->indices[at] == j);
        ++at;
      }
    }
    CHECK(c->indptr[i + 1] == at);
    longest = bsrg_max(longest, at - c->indptr[i]);
  }
  CHECK(at == c->nnzb && c->longest_row == longest);
}

/* Where element (y, x) of the child's block b lies. */
static int64_t address(const bsrg_regrouped *r, const int32_t *place, int64_t b, int64_t y, int64_t x) {
  const int64_t height = r->shape.height, width = r->shape.width;
  if (place == NULL) return (b * height + y) * width + x;
  /* core matrices: see bsrg_pack_params */
  return place[b] * height * width + (y / 8 * (width / 8) + x / 8) * 64 + y % 8 * 8 + x % 8;
}

static void check_values(const bsrg_structure_view *v, const bsrg_regrouped *r, const uint16_t *dense,
                         const uint16_t *regrouped) {
  const bsrg_structure_view *c = &r->child->view;
  int64_t wrong = 0;
  int32_t *place = NULL;
  if (r->family == &bsrg_stream_family) {
    const bsrg_stream_plan *plan = r->child_plan;
    CHECK(plan->part_count == c->nnzb && plan->shape.rows == 1 && plan->shape.columns == 1);
    place = allocate(c->nnzb, sizeof(*place));
    for (int64_t i = 0; i < plan->part_count; ++i) place[plan->source[i]] = (int32_t)i;
  }
  for (int64_t i = 0; i < c->block_rows; ++i)
    for (int64_t b = c->indptr[i]; b < c->indptr[i + 1]; ++b)
      for (int64_t y = 0; y < c->block_height; ++y)
        for (int64_t x = 0; x < c->block_width; ++x) {
          const int64_t row = i * c->block_height + y, column = c->indices[b] * c->block_width + x;
          const bool inside = row < v->rows && column < v->cols;
          wrong += regrouped[address(r, place, b, y, x)] != (inside ? dense[row * v->cols + column] : 0);
        }
  free(place);
  CHECK(wrong == 0);
}

/* Whether tall_pieces.cuh has a kernel for these: up to eight pieces a strip, 32 columns wide or 64, or 80, or all 16 of a block's
 * columns and 16 rows or more. */
static bool has_sources(const bsrg_structure_view *v, const bsrg_regrouped *r) {
  const bool tall = r->family == &bsrg_tall_family && r->shape.height == 128;
  if (tall && r->shape.width == 80)
    return v->block_height % 8 == 0 && v->block_width % 80 == 0 && v->block_width % 64 != 0;
  const bool fits = tall && r->shape.width == 64;
  if (v->block_width == 16) return fits && v->block_height % 16 == 0;
  return fits && v->block_height % 8 == 0 && v->block_width % (v->block_height % 16 == 0 ? 32 : 64) == 0;
}

/* A piece, or from its first one a run of zeros, as the loaders of tall_pieces.cuh write them: of a child's block the
 * 128 x 64 or 128 x 80 values of its pieces, one behind the other, each of which has to be written once. */
static void load_piece(const bsrg_structure_view *v, const bsrg_regrouped *r, const uint16_t *values,
                       const bsrg_tall_piece *piece, uint16_t *to, uint8_t *times) {
  const int64_t height = r->source_shape.height, width = r->source_shape.width;
  const int64_t first = piece->y * (width == 16 ? 2 : 1); /* boxes have two rows in one */
  if (piece->x >= 0)
    CHECK(piece->x + width <= v->block_width && first >= 0 && first + height <= v->nnzb * v->block_height);
  for (int64_t e = 0; e < height * width * (piece->x >= 0 ? 1 : piece->y); ++e) {
    to[e] = piece->x < 0 ? 0 : values[(first + e / width) * v->block_width + piece->x + e % width];
    ++times[e];
  }
}

/* As tall_pieces.cuh loads a strip, in the order of entries: pieces below one another, then those of the next columns. */
static void check_sources(const bsrg_structure_view *v, const bsrg_regrouped *r, const uint16_t *values,
                          const uint16_t *dense) {
  enum { STRIP = 64, HEIGHT = 2 * STRIP, MOST = HEIGHT * 80 };
  const bsrg_structure_view *c = &r->child->view;
  const int64_t height = r->source_shape.height, width = r->source_shape.width;
  CHECK((r->sources != NULL) == has_sources(v, r));
  if (r->sources == NULL) return;
  const bsrg_tall_plan *plan = r->child_plan;
  const int64_t across = r->shape.width, block = HEIGHT * across, of_block = block / (height * width);
  CHECK(r->source_count == c->nnzb * of_block && plan->entry_count == c->nnzb);
  CHECK(STRIP % height == 0 && v->block_height % height == 0 && across % width == 0 &&
        v->block_width % width == 0);
  uint16_t *loaded = allocate(block, sizeof(*loaded));
  int64_t wrong = 0, met = 0;
  for (int64_t i = 0; i < c->block_rows; ++i)
    for (int64_t b = c->indptr[i]; b < c->indptr[i + 1]; ++b) {
      int64_t entry = 0;
      while (entry < plan->entry_count && plan->entries[entry].a_block[0] != b * HEIGHT) ++entry;
      CHECK(entry < plan->entry_count && plan->entries[entry].x_row == c->indices[b] * across);
      uint8_t times[MOST] = {0};
      for (int64_t p = 0; p < of_block; ++p) {
        const int64_t at = p * height * width;
        load_piece(v, r, values, r->sources + entry * of_block + p, loaded + at, times + at);
      }
      int k16s = 0;
      for (int64_t e = 0; e < block; ++e) {
        const int64_t strip = e / (STRIP * across), of_strip = e % (STRIP * across);
        const int64_t k = of_strip / (STRIP * width) * width + of_strip % width;
        const int64_t row = i * HEIGHT + strip * STRIP + of_strip / width % STRIP,
                      column = c->indices[b] * across + k;
        const bool inside = row < v->rows && column < v->cols;
        wrong += times[e] != 1 || loaded[e] != (inside ? dense[row * v->cols + column] : 0);
        if (loaded[e] != 0) k16s |= (width == 80 ? 15 : 1 << k / 16) << 4 * strip;
      }
      CHECK(r->k16s[entry] == k16s); /* stored values are not 0 here */
      for (int bit = 0; bit < 8; ++bit) met += k16s >> bit & 1;
    }
  free(loaded);
  CHECK(wrong == 0 && fabs(r->skipped - (1 - (double)met / (8 * (double)c->nnzb))) < 1e-9);
}

/* Of a structure, which it frees. */
static void check_pair(bsrg_structure *structure, bsrg_block_shape shape, const bsrg_family_ops *family) {
  const int before = failures;
  const bsrg_structure_view *v = &structure->view;
  const int64_t bh = v->block_height, bw = v->block_width;
  uint16_t *values = allocate(v->nnzb * bh * bw, sizeof(*values));
  uint16_t *dense = allocate(v->rows * v->cols, sizeof(*dense));
  for (int64_t i = 0; i < v->block_rows; ++i)
    for (int64_t b = v->indptr[i]; b < v->indptr[i + 1]; ++b)
      for (int64_t e = 0; e < bh * bw; ++e)
        dense[(i * bh + e / bw) * v->cols + v->indices[b] * bw + e % bw] = values[b * bh * bw + e] =
            (uint16_t)(1 + random_below(65535));

  bsrg_regrouped *r = bsrg_regroup(v, shape, family, random_below(2) != 0);
  if (r == NULL) abort();
  check_child(v, r, dense);
  check_sources(v, r, values, dense);
  uint16_t *regrouped = allocate(r->child->view.nnzb * shape.height * shape.width, sizeof(*regrouped));
  for (int elements = 1; elements <= 8 && bw % elements == 0; elements *= 2) {
    memset(regrouped, 0xff, sizeof(*regrouped) * (size_t)(r->child->view.nnzb * shape.height * shape.width));
    emulate(v, r, values, elements, 1 << random_below(9), regrouped);
    check_values(v, r, dense, regrouped);
  }
  int32_t *marks = allocate(v->cols / 8 + 1, sizeof(*marks)), stamp = 1;
  const double all = bsrg_regroup_estimate_blocks(v, shape, 1 << 20, marks, &stamp);
  CHECK(fabs(all - (double)r->child->view.nnzb) < 1e-9 * all);
  const double sampled = bsrg_regroup_estimate_blocks(v, shape, 1, marks, &stamp);
  CHECK(sampled > 0 && isfinite(sampled));
  if (failures > before)
    fprintf(stderr, "  for %d of %dx%d blocks of %dx%d as %dx%d for %s\n", (int)v->nnzb, (int)v->block_rows,
            (int)v->block_cols, (int)bh, (int)bw, shape.height, shape.width,
            bsrg_family_name(family->family));
  free(marks);
  free(regrouped);
  bsrg_regrouped_free(r);
  free(values);
  free(dense);
  bsrg_structure_destroy(structure);
}

static void test_pairs(void) {
  static const int blocks[][2] = {{1, 1},    {5, 3},    {8, 8},     {16, 16},  {24, 24}, {32, 32},
                                  {40, 24},  {48, 80},  {96, 96},   {32, 64},  {64, 8},  {3, 200},
                                  {200, 2},  {17, 130}, {64, 64},   {128, 12}, {256, 7}, {300, 20},
                                  {9, 1000}, {1000, 4}, {130, 130}, {32, 16},  {96, 16}, {128, 16},
                                  {8, 64},   {16, 32},  {24, 128},  {16, 160}, {8, 240}};
  static const bsrg_block_shape tall[] = {{64, 16},  {64, 32},  {64, 64},  {64, 80},  {64, 128}, {128, 16},
                                          {128, 48}, {128, 64}, {128, 80}, {128, 96}, {192, 96}};
  static const bsrg_block_shape stream[] = {{16, 8},  {24, 8},  {64, 8},  {8, 16},  {16, 16},
                                            {24, 16}, {40, 16}, {56, 16}, {64, 16}, {16, 32},
                                            {24, 32}, {32, 32}, {48, 32}, {56, 32}, {64, 32}};
  enum { TALL = sizeof(tall) / sizeof(tall[0]), STREAM = sizeof(stream) / sizeof(stream[0]) };
  static const uint32_t shares[] = {0, 4, 30, 100};
  for (size_t b = 0; b < sizeof(blocks) / sizeof(blocks[0]); ++b)
    for (size_t s = 0; s < TALL + STREAM; ++s) {
      const int64_t bh = blocks[b][0], bw = blocks[b][1];
      const int64_t rows = 1 + random_below(1 + (uint32_t)(400 / bh)),
                    cols = 1 + random_below(1 + (uint32_t)(400 / bw));
      bsrg_structure *structure = random_structure(rows, cols, bh, bw, shares[random_below(4)]);
      if (s < TALL)
        check_pair(structure, tall[s], &bsrg_tall_family);
      else
        check_pair(structure, stream[s - TALL], &bsrg_stream_family);
    }
}

/* A band of larger blocks, which takes its columns in another order than theirs. */
static void test_band(void) {
  enum { ROWS = 6, COLS = 24, WIDTH = 18 };
  const bsrg_block_shape larger = {BSRG_TALL_PIECED_HEIGHT, BSRG_TALL_PIECED_WIDTH};
  static const int blocks[][2] = {{32, 32}, {16, 64}};
  for (size_t b = 0; b < sizeof(blocks) / sizeof(blocks[0]); ++b) {
    const int64_t down = larger.height / blocks[b][0], across = larger.width / blocks[b][1];
    int64_t *indptr = allocate(ROWS * down + 1, sizeof(*indptr));
    int64_t *indices = allocate(ROWS * down * COLS * across, sizeof(*indices));
    for (int64_t i = 0; i < ROWS * down; ++i) {
      indptr[i + 1] = indptr[i];
      for (int64_t j = 0; j < COLS * across; ++j)
        if ((j / across + COLS - i / down) % COLS < WIDTH) indices[indptr[i + 1]++] = j;
    }
    check_pair(make_structure(ROWS * down, COLS * across, blocks[b][0], blocks[b][1], indptr, indices),
               larger, &bsrg_tall_family);
  }
}

static void test_row_of_chunk(void) {
  for (uint32_t across = 1; across <= 128; ++across) {
    const uint32_t reciprocal = BSRG_REGROUP_RECIPROCAL(across);
    for (uint32_t chunk = 0; chunk < BSRG_REGROUP_TILE && chunk < 512 * across; ++chunk)
      if (BSRG_REGROUP_ROW(chunk, reciprocal) != chunk / across) {
        CHECK(BSRG_REGROUP_ROW(chunk, reciprocal) == chunk / across);
        return;
      }
  }
}

/* A sample of one row in many says about the same as all of them. */
static void test_sample(void) {
  bsrg_structure *structure = random_structure(1024, 256, 16, 16, 10);
  int32_t *marks = allocate(structure->view.cols / 8 + 1, sizeof(*marks)), stamp = 1;
  const bsrg_block_shape shape = {64, 32};
  const double all = bsrg_regroup_estimate_blocks(&structure->view, shape, 1 << 20, marks, &stamp);
  const double some = bsrg_regroup_estimate_blocks(&structure->view, shape, 2048, marks, &stamp);
  CHECK(fabs(some - all) < 0.05 * all);
  free(marks);
  bsrg_structure_destroy(structure);
}

static const bsrg_candidate *candidate(const bsrg_plan_info *info) {
  for (int i = 0; i < info->count; ++i)
    if (info->candidates[i].family == BSRG_REGROUP) return &info->candidates[i];
  abort();
}

/* Every block shape has a plan or an obstacle, and the planner chooses regrouping where it wins. */
static void test_family(void) {
  static const struct {
    int bh, bw, size;
    uint32_t share;
    bool chosen;
    const char *reason;
  } cases[] = {
      {16, 16, 2000, 100, true, "as 128x64 blocks for tall in place, 3% zeros"},
      {12, 16, 2000, 100, true, "as 128x64 blocks for tall, "},
      {32, 32, 2000, 100, true, "as 128x64 blocks for tall in place, 3% zeros"},
      {32, 32, 2000, 95, true, "zeros; limited by"},
      {48, 80, 2000, 100, true, "as 128x80 blocks for tall in place, "},
      {16, 160, 2000, 95, true, "as 128x80 blocks for tall in place, "},
      {16, 16, 2000, 2, false, "as 64x32 blocks"},
      {96, 96, 4000, 30, false, "as 64x96 blocks"}, /* stream takes their parts of 48x32 */
      {1, 1, 2000, 10, true, "zeros; limited by"},
      {5, 3, 2000, 50, true, "zeros; limited by"},
      {64, 64, 2000, 50, false, "needs blocks that gain"},
      {128, 48, 2000, 50, false, "needs blocks that gain"},
      {128, 16, 2000, 95, true, "as 128x64 blocks for tall in place"},
      {1000, 3, 2000, 95, true, "zeros; limited by"},
      {8, 8, 2000, 12, true, "blocks for stream, "},
      {20, 20, 4000, 12, true, "blocks for stream, "},
      {8, 24, 2000, 12, true, "blocks for stream, "},
      {24, 24, 2000, 30, false, "blocks for tall, "},   /* stream takes their parts of 24x8 */
      {296, 16, 4000, 20, true, "blocks for stream, "}, /* which stream takes in parts of 8 rows */
      {16, 16, 2000, 12, false, "blocks for tall, "},   /* no other parts for stream gain */
      {8, 16, 2000, 4, false, " blocks for stream, "},
  };
  const bsrg_chip chip = bsrg_chip_h200();
  for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); ++i) {
    const int64_t bh = cases[i].bh, bw = cases[i].bw;
    bsrg_structure *structure =
        random_structure(1 + cases[i].size / bh, 1 + cases[i].size / bw, bh, bw, cases[i].share);
    bsrg_plan_info info;
    CHECK(bsrg_plan_explain(structure, BSRG_BF16, BSRG_IEEE, 4096, &chip, &info, NULL) == BSRG_OK);
    const bsrg_candidate *c = candidate(&info);
    CHECK(strstr(c->reason, cases[i].reason) != NULL);
    CHECK((info.candidates[info.chosen].family == BSRG_REGROUP) == cases[i].chosen);
    CHECK(!c->supported || (c->seconds > 0 && c->mma_flops >= info.useful_flops && c->hbm_bytes > 0));
    if (failures > 0) fprintf(stderr, "%dx%d: %s\n", cases[i].bh, cases[i].bw, c->reason);
    CHECK(bsrg_plan_explain(structure, BSRG_BF16, BSRG_IEEE, 4095, &chip, &info, NULL) == BSRG_OK);
    CHECK(!candidate(&info)->supported);
    CHECK(bsrg_plan_explain(structure, BSRG_F32, BSRG_IEEE, 4096, &chip, &info, NULL) == BSRG_OK);
    CHECK(strcmp(candidate(&info)->reason, "needs float16 or bfloat16") == 0);
    bsrg_structure_destroy(structure);
  }
}

/* For few columns streams have a plan of lower tiles, and the tall kernels the same. */
static void test_low_plans(void) {
  static const struct {
    int side;
    uint32_t share;
    bool same;
  } cases[] = {{16, 100, true}, {20, 12, false}};
  for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); ++i) {
    const int64_t side = cases[i].side;
    bsrg_structure *structure =
        random_structure(1 + 2000 / side, 1 + 2000 / side, side, side, cases[i].share);
    const void *low = NULL, *plan = NULL;
    CHECK(bsrg_plan_get(structure, &bsrg_regroup_family, true, &low, NULL) == BSRG_OK);
    CHECK(bsrg_plan_get(structure, &bsrg_regroup_family, false, &plan, NULL) == BSRG_OK);
    CHECK((low == plan) == cases[i].same);
    CHECK(((const bsrg_regrouped *)low)->low == !cases[i].same && !((const bsrg_regrouped *)plan)->low);
    bsrg_structure_destroy(structure);
  }
}

int main(void) {
  test_low_plans();
  test_row_of_chunk();
  test_pairs();
  test_sample();
  test_family();
  test_band();
  if (failures > 0) fprintf(stderr, "%d checks failed\n", failures);
  return failures > 0;
}
