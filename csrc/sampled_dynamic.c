/* Sampled products at the blocks of a dynamic structure: a kernel makes the lists that the others read, in scratch memory,
 * since the host knows no more than how many blocks there may be. Kernels in kernels/sm80/sampled_lists.cu
 * and sampled_unions.cu. */
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

/* Rows of lists that take turns: as many as have their rows of A in a good part of L2. */
static int64_t group_of(const bsrg_sampled_args *args) {
  enum { BYTES = 16 << 20, MOST = 32 };
  const bsrg_structure_view *v = &args->pattern->view;
  const int64_t height = has_unions(v) ? BSRG_SAMPLED_STRIP : v->block_height;
  const int64_t row = height * args->a.cols * (int64_t)bsrg_dtype_size(args->dtype);
  return bsrg_max(1, bsrg_min(MOST, BYTES / bsrg_max(1, row)));
}

/* ---- lists -------------------------------------------------------------------------------------- */

/* Of what both the address and the size are multiples. */
static int32_t unit_of(const void *out, int64_t block_bytes) {
  int32_t unit = 16;
  while (((uintptr_t)out | (uintptr_t)block_bytes) % (size_t)unit) unit /= 2;
  return unit;
}

/* Panels and strips of two parts, for the lists that are made of them. */
static bsrg_status make_unions(const bsrg_structure_view *v, const struct bsrg_dynamic *d,
                               const bsrg_sampled_lists_params *lists, bsrg_sampled_union *unions,
                               bsrg_gpu gpu, CUstream stream, bsrg_error *error) {
  bsrg_sampled_unions_params p = {.bits = d->build.matrix.bits,
                                  .rank = d->build.matrix.rank,
                                  .indptr = d->build.matrix.indptr,
                                  .panels = lists->panels,
                                  .unions = unions,
                                  .rows = (int32_t)v->block_rows,
                                  .words = d->build.matrix.words,
                                  .block_height = (int32_t)v->block_height,
                                  .block_width = (int32_t)v->block_width,
                                  .parts = (int32_t)parts_of(v),
                                  .strips = lists->rows};
  return bsrg_launch(gpu.api, gpu.device, BSRG_KERNEL_SAMPLED_UNIONS, lists->list_ctas, 1, stream, &p, error);
}

bsrg_status bsrg_sampled_make_lists(const bsrg_sampled_args *args, const bsrg_sampled_plan *plan,
                                    bsrg_family family, bsrg_gpu gpu, bsrg_sampled_arrays *arrays,
                                    bsrg_error *error) {
  enum { CLEARING = 2 }; /* CTAs an SM */
  const bsrg_structure_view *v = &args->pattern->view;
  const struct bsrg_dynamic *d = args->pattern->dynamic;
  const bool tiles = family == BSRG_SAMPLED, unions = tiles && has_unions(v);
  const int64_t rows = tiles ? rows_of(v) : v->block_rows, lists = tiles && !unions ? lists_of(v) : 1;
  const CUstream stream = (CUstream)args->stream;
  const size_t panel_bytes = tiles ? sizeof(bsrg_sampled_panel) * (size_t)plan->panel_count : 0;
  const size_t tile_bytes = tiles ? sizeof(bsrg_sampled_tile) * (size_t)plan->tile_count : 0;
  const size_t bytes = tiles ? panel_bytes + tile_bytes + sizeof(bsrg_sampled_union) * (size_t)rows * unions
                             : sizeof(bsrg_sampled_item) * (size_t)plan->item_count;
  CUdeviceptr scratch;
  bsrg_status status = bsrg_scratch_alloc(gpu.api, gpu.device, bytes, stream, &scratch, error);
  if (status != BSRG_OK) return status;
  bsrg_sampled_union *strips = (bsrg_sampled_union *)(uintptr_t)(scratch + panel_bytes + tile_bytes);
  const int64_t block_bytes = v->block_height * v->block_width * (int64_t)bsrg_dtype_size(args->dtype);
  bsrg_sampled_lists_params p = {
      .indptr = d->build.matrix.indptr,
      .indices = d->build.matrix.indices,
      .counts = d->counts,
      .unions = unions ? strips : NULL,
      .tiles = tiles ? (bsrg_sampled_tile *)(uintptr_t)(scratch + panel_bytes) : NULL,
      .panels = tiles ? (bsrg_sampled_panel *)(uintptr_t)scratch : NULL,
      .items = tiles ? NULL : (bsrg_sampled_item *)(uintptr_t)scratch,
      .out = args->out,
      .block_bytes = block_bytes,
      .slots = tiles ? plan->tile_count / lists : plan->item_count,
      .capacity = (int32_t)v->nnzb,
      .unit = unit_of(args->out, block_bytes),
      .rows = (int32_t)rows,
      .block_height = (int32_t)v->block_height,
      .block_width = (int32_t)v->block_width,
      .most = tiles ? plan->tile_panels : plan->item_columns,
      .workers = tiles && chooses_width(v) ? gpu.device->info.sm_count : 0,
      .ends =
          tiles ? 2 * gpu.device->info.sm_count : INT32_MAX, /* the most from one tile of a CTA to its next */
      .strips = plan->strips,
      .lists = (int32_t)lists,
      .group = tiles ? (int32_t)group_of(args) : 1,
      .list_ctas = (int32_t)bsrg_ceil_div(rows, BSRG_SAMPLED_LISTS_THREADS / 32)};
  if (unions) status = make_unions(v, d, &p, strips, gpu, stream, error);
  if (status == BSRG_OK)
    status = bsrg_launch(gpu.api, gpu.device, BSRG_KERNEL_SAMPLED_LISTS,
                         p.list_ctas + CLEARING * gpu.device->info.sm_count, 1, stream, &p, error);
  if (status != BSRG_OK) return bsrg_scratch_free(gpu.api, scratch, stream, status, error);
  *arrays = (bsrg_sampled_arrays){p.tiles, p.panels, p.items, p.indices, scratch};
  return BSRG_OK;
}
