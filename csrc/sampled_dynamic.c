/* Sampled products at the blocks of a dynamic structure: the device makes the lists that the kernels read, since the host
 * knows no more than how many blocks there may be. Tiles of whole strips are part of the pattern; those of parts of 32 rows
 * and the portable kernels' items are made at each product, in scratch memory, by kernels/sm80/sampled_lists.cu and
 * sampled_unions.cu. */
#include "dynamic.h"
#include "sampled.h"

/* ---- sizes -------------------------------------------------------------------------------------- */

/* Slots for all block rows, see bsrg_sampled_lists_params; units: panels or columns of all blocks. */
static int64_t slots_of(const bsrg_structure_view *v, int64_t units, int64_t most) {
  return units / most + v->block_rows;
}

static int64_t lists_of(const bsrg_structure_view *v) {
  return v->block_height / (BSRG_SAMPLED_STRIP * bsrg_sampled_strips(v));
}

static int64_t panels_of(const bsrg_structure_view *v) {
  return v->nnzb * (v->block_width / BSRG_SAMPLED_STRIP);
}

/* What lists are made of: block rows, or strips of two parts of 32 rows (sampled_unions.cu). */
static bool has_unions(const bsrg_structure_view *v) {
  return v->block_height % BSRG_SAMPLED_STRIP || v->block_width % BSRG_SAMPLED_STRIP;
}

static int64_t parts_of(const bsrg_structure_view *v) { return v->block_height / BSRG_SAMPLED_UNION_PART; }

static int64_t rows_of(const bsrg_structure_view *v) {
  if (!has_unions(v)) return v->block_rows;
  return v->block_rows / 2 * parts_of(v) + v->block_rows % 2 * bsrg_ceil_div(parts_of(v), 2);
}

/* Whether the device chooses how many panels tiles have, since it knows how long rows are. */
static bool chooses_width(const bsrg_structure_view *v) { return rows_of(v) <= BSRG_SAMPLED_WIDTH_ROWS; }

/* Rows as long as one another. */
static int64_t count_tiles(const void *of, int64_t most) {
  const bsrg_structure_view *v = of;
  return v->block_rows * bsrg_ceil_div(bsrg_ceil_div(panels_of(v), v->block_rows), most) * lists_of(v);
}

/* Of parts of 32, for which there is room as if no two rows had columns in common. */
static void plan_unions(const bsrg_structure_view *v, bsrg_sampled_plan *plan) {
  const int64_t across = v->block_width / BSRG_SAMPLED_UNION_PART;
  int64_t panels;
  if (!bsrg_mul_ok(v->nnzb, across * parts_of(v), &panels) || panels > INT32_MAX / 2) return;
  panels += bsrg_ceil_div(v->block_rows, 2) * parts_of(v);
  const int64_t most = BSRG_SAMPLED_PANELS(1, BSRG_SAMPLED_STRIP);
  const int64_t tiles = bsrg_ceil_div(panels, 2) / (chooses_width(v) ? 1 : most) + rows_of(v);
  if (panels > INT32_MAX || tiles > INT32_MAX / 2) return;
  plan->strips = 1;
  plan->part = BSRG_SAMPLED_UNION_PART;
  plan->tile_panels = (int32_t)most; /* in pairs */
  plan->panel_count = panels;
  plan->tile_count = (int32_t)tiles;
}

static void plan_tiles(const bsrg_structure_view *v, bsrg_sampled_plan *plan) {
  if (v->block_height % BSRG_SAMPLED_UNION_PART || v->block_width % BSRG_SAMPLED_UNION_PART ||
      v->rows > INT32_MAX || v->cols > INT32_MAX)
    return;
  if (has_unions(v)) {
    plan_unions(v, plan);
    return;
  }
  if (panels_of(v) > INT32_MAX) return;
  const int strips = bsrg_sampled_strips(v);
  const int64_t widest = BSRG_SAMPLED_PANELS(strips, BSRG_SAMPLED_STRIP);
  const int64_t most =
      chooses_width(v) ? widest : bsrg_sampled_choose_width(count_tiles, v, widest, 1, strips == 2 ? 1 : 2);
  const int64_t tiles = slots_of(v, panels_of(v), chooses_width(v) ? 1 : most) * lists_of(v);
  if (tiles > INT32_MAX / 2) return;
  plan->strips = strips;
  plan->part = BSRG_SAMPLED_STRIP;
  plan->tile_panels = (int32_t)most;
  plan->panel_count = panels_of(v);
  plan->tile_count = (int32_t)tiles;
}

void bsrg_sampled_plan_dynamic(const bsrg_structure_view *v, bsrg_sampled_plan *plan) {
  plan_tiles(v, plan);
  const int64_t columns = v->nnzb * v->block_width, of_row = bsrg_ceil_div(columns, v->block_rows);
  /* As for other patterns: items of many columns are worth up to half of their columns left empty. */
  const int64_t many = bsrg_ceil_div(of_row, BSRG_SAMPLED_MANY) * BSRG_SAMPLED_MANY;
  const int64_t few = bsrg_ceil_div(of_row, BSRG_SAMPLED_FEW) * BSRG_SAMPLED_FEW;
  plan->item_columns = 2 * few < many ? BSRG_SAMPLED_FEW : BSRG_SAMPLED_MANY;
  plan->item_count = slots_of(v, columns, plan->item_columns);
}

/* ---- lists that the pattern has --------------------------------------------------------------------- */

/* Rows of lists that take turns: so many rows of A stay in L2 for K up to some 4096. */
static int32_t group_of(const bsrg_structure_view *v) {
  enum { ROWS = 2048, MOST = 32 };
  const int64_t height = has_unions(v) ? BSRG_SAMPLED_STRIP : v->block_height;
  return (int32_t)bsrg_max(1, bsrg_min(MOST, ROWS / height));
}

/* Lists of tiles, without their memory. */
static bsrg_sampled_lists_params describe_tiles(const bsrg_structure_view *v, const bsrg_sampled_plan *plan,
                                                const bsrg_pattern_side *matrix, int64_t sm_count) {
  const int64_t rows = rows_of(v), lists = has_unions(v) ? 1 : lists_of(v);
  return (bsrg_sampled_lists_params){
      .indptr = matrix->indptr,
      .indices = matrix->indices,
      .slots = plan->tile_count / lists,
      .rows = (int32_t)rows,
      .block_height = (int32_t)v->block_height,
      .block_width = (int32_t)v->block_width,
      .most = plan->tile_panels,
      .workers = chooses_width(v) ? (int32_t)sm_count : 0,
      .ends = (int32_t)(2 * sm_count), /* the most from one tile of a CTA to its next */
      .strips = plan->strips,
      .lists = (int32_t)lists,
      .group = group_of(v),
      .list_ctas = (int32_t)bsrg_ceil_div(rows, BSRG_SAMPLED_LISTS_THREADS / 32)};
}

bool bsrg_sampled_place_lists(const bsrg_structure_view *v, const bsrg_pattern_side *matrix, int64_t sm_count,
                              bsrg_sampled_lists_params *out, size_t *panel_bytes, size_t *tile_bytes) {
  bsrg_sampled_plan plan = {0};
  plan_tiles(v, &plan);
  if (!plan.strips || has_unions(v)) return false;
  *out = describe_tiles(v, &plan, matrix, sm_count);
  *panel_bytes = sizeof(bsrg_sampled_panel) * (size_t)plan.panel_count;
  *tile_bytes = sizeof(bsrg_sampled_tile) * (size_t)plan.tile_count;
  return true;
}

/* ---- lists of a product ----------------------------------------------------------------------------- */

/* Of what both the address and the size are multiples. */
static int32_t unit_of(const void *out, int64_t block_bytes) {
  int32_t unit = 16;
  while (((uintptr_t)out | (uintptr_t)block_bytes) % (size_t)unit) unit /= 2;
  return unit;
}

/* Panels and strips of two parts, and the tiles that are made of them. */
static bsrg_status make_unions(const bsrg_sampled_args *args, const bsrg_sampled_plan *plan, bsrg_gpu gpu,
                               bsrg_sampled_arrays *arrays, bsrg_error *error) {
  const bsrg_structure_view *v = &args->pattern->view;
  const bsrg_pattern_side *matrix = &args->pattern->dynamic->build.matrix;
  const CUstream stream = (CUstream)args->stream;
  bsrg_sampled_lists_params lists = describe_tiles(v, plan, matrix, gpu.device->info.sm_count);
  const size_t panel_bytes = sizeof(bsrg_sampled_panel) * (size_t)plan->panel_count;
  const size_t tile_bytes = sizeof(bsrg_sampled_tile) * (size_t)plan->tile_count;
  const size_t bytes = panel_bytes + tile_bytes + sizeof(bsrg_sampled_union) * (size_t)lists.rows;
  CUdeviceptr scratch;
  bsrg_status status = bsrg_scratch_alloc(gpu.api, gpu.device, bytes, stream, &scratch, error);
  if (status != BSRG_OK) return status;
  bsrg_sampled_union *unions = (bsrg_sampled_union *)(uintptr_t)(scratch + panel_bytes + tile_bytes);
  lists.panels = (bsrg_sampled_panel *)(uintptr_t)scratch;
  lists.tiles = (bsrg_sampled_tile *)(uintptr_t)(scratch + panel_bytes);
  lists.unions = unions;
  bsrg_sampled_unions_params p = {.bits = matrix->bits,
                                  .rank = matrix->rank,
                                  .indptr = matrix->indptr,
                                  .panels = lists.panels,
                                  .unions = unions,
                                  .rows = (int32_t)v->block_rows,
                                  .words = matrix->words,
                                  .block_height = (int32_t)v->block_height,
                                  .block_width = (int32_t)v->block_width,
                                  .parts = (int32_t)parts_of(v),
                                  .strips = lists.rows};
  const int64_t ctas = lists.list_ctas;
  status = bsrg_launch(gpu.api, gpu.device, BSRG_KERNEL_SAMPLED_UNIONS, ctas, 1, stream, &p, error);
  if (status == BSRG_OK)
    status = bsrg_launch(gpu.api, gpu.device, BSRG_KERNEL_SAMPLED_LISTS, ctas, 1, stream, &lists, error);
  if (status != BSRG_OK) return bsrg_scratch_free(gpu.api, scratch, stream, status, error);
  *arrays = (bsrg_sampled_arrays){.tiles = lists.tiles, .panels = lists.panels, .scratch = scratch};
  return BSRG_OK;
}

/* Items, and zeros behind the last block. */
static bsrg_status make_items(const bsrg_sampled_args *args, const bsrg_sampled_plan *plan, bsrg_gpu gpu,
                              bsrg_sampled_arrays *arrays, bsrg_error *error) {
  enum { CLEARING = 2 }; /* CTAs an SM */
  const bsrg_structure_view *v = &args->pattern->view;
  const struct bsrg_dynamic *d = args->pattern->dynamic;
  const CUstream stream = (CUstream)args->stream;
  CUdeviceptr scratch;
  bsrg_status status = bsrg_scratch_alloc(
      gpu.api, gpu.device, sizeof(bsrg_sampled_item) * (size_t)plan->item_count, stream, &scratch, error);
  if (status != BSRG_OK) return status;
  const int64_t block_bytes = v->block_height * v->block_width * (int64_t)bsrg_dtype_size(args->dtype);
  bsrg_sampled_lists_params p = {
      .indptr = d->build.matrix.indptr,
      .indices = d->build.matrix.indices,
      .counts = d->counts,
      .items = (bsrg_sampled_item *)(uintptr_t)scratch,
      .out = args->out,
      .block_bytes = block_bytes,
      .slots = plan->item_count,
      .capacity = (int32_t)v->nnzb,
      .unit = unit_of(args->out, block_bytes),
      .rows = (int32_t)v->block_rows,
      .block_height = (int32_t)v->block_height,
      .block_width = (int32_t)v->block_width,
      .most = plan->item_columns,
      .ends = INT32_MAX,
      .group = 1,
      .list_ctas = (int32_t)bsrg_ceil_div(v->block_rows, BSRG_SAMPLED_LISTS_THREADS / 32)};
  status = bsrg_launch(gpu.api, gpu.device, BSRG_KERNEL_SAMPLED_LISTS,
                       p.list_ctas + CLEARING * gpu.device->info.sm_count, 1, stream, &p, error);
  if (status != BSRG_OK) return bsrg_scratch_free(gpu.api, scratch, stream, status, error);
  *arrays = (bsrg_sampled_arrays){.items = p.items, .indices = p.indices, .scratch = scratch};
  return BSRG_OK;
}

bsrg_status bsrg_sampled_make_lists(const bsrg_sampled_args *args, const bsrg_sampled_plan *plan,
                                    bsrg_family family, bsrg_gpu gpu, bsrg_sampled_arrays *arrays,
                                    bsrg_error *error) {
  if (family != BSRG_SAMPLED) return make_items(args, plan, gpu, arrays, error);
  if (plan->part == BSRG_SAMPLED_UNION_PART) return make_unions(args, plan, gpu, arrays, error);
  const bsrg_sampled_lists_params *lists = &args->pattern->dynamic->build.sampled;
  *arrays = (bsrg_sampled_arrays){.tiles = lists->tiles, .panels = lists->panels};
  return BSRG_OK;
}
