/* Dynamic structures: what the host knows of a pattern that a GPU makes, and the memory that it is made in. */
#include "dynamic.h"

#include "sampled.h"
#include "stream.h"
#include "tall.h"
#include "uploads.h"

#include <inttypes.h>
#include <stdlib.h>

/* ---- device memory ------------------------------------------------------------------------------ */

static void *pointer_of(CUdeviceptr address) { return (void *)(uintptr_t)address; }

static CUdeviceptr address_of(const void *pointer) { return (CUdeviceptr)(uintptr_t)pointer; }

/* The next piece of the memory; without a base, only its size is counted. */
static void *take(CUdeviceptr base, size_t *used, size_t bytes) {
  const size_t at = *used;
  *used += (bytes + BSRG_DYNAMIC_ALIGNMENT - 1) / BSRG_DYNAMIC_ALIGNMENT * BSRG_DYNAMIC_ALIGNMENT;
  return base ? pointer_of(base + at) : NULL;
}

static int64_t tiles_of(const bsrg_structure_view *v) {
  const int64_t strips = v->block_height / BSRG_TALL_STRIP;
  return v->block_rows * (strips / 2) + (strips % 2 ? bsrg_ceil_div(v->block_rows, 2) : 0);
}

/* What the tall family reads. It has its place on every GPU, so that layouts are alike, but is made only where there is
 * a plan for it. */
static void place_tall(bsrg_pattern_side *side, const bsrg_structure *structure, CUdeviceptr base,
                       size_t *used) {
  const bsrg_structure_view *v = &structure->view;
  if (bsrg_tall_family.obstacle(v, BSRG_F16, 90)) return;
  const int64_t strips = v->block_height / BSRG_TALL_STRIP;
  const size_t lists = strips % 2 && strips > 1 ? 2 : 1;
  bsrg_tall_entry *entries = take(base, used, sizeof(*entries) * lists * (size_t)v->nnzb);
  bsrg_tall_tile *tiles = take(base, used, sizeof(*tiles) * (size_t)tiles_of(v));
  if (!atomic_load(&structure->plans[BSRG_TALL])) return;
  side->entries = entries;
  side->tiles = tiles;
}

/* What the stream family reads, likewise. Wider blocks that the tall family takes have no need of it. */
static bool has_stream(const bsrg_structure_view *v, int sm_arch) {
  enum { NARROW = 32 };
  return (v->block_width <= NARROW || bsrg_tall_family.obstacle(v, BSRG_F16, sm_arch)) &&
         !bsrg_stream_family.obstacle(v, BSRG_F16, sm_arch) &&
         bsrg_stream_choose(v).columns <= BSRG_STREAM_LISTS_ACROSS;
}

static void place_stream(bsrg_pattern_side *side, const bsrg_structure *structure, CUdeviceptr base,
                         size_t *used) {
  if (!has_stream(&structure->view, 90)) return;
  bsrg_stream_lists lists;
  const bsrg_stream_list_sizes sizes =
      bsrg_stream_describe_lists(&structure->view, structure->dynamic->sm_count, &lists);
  lists.stages = take(base, used, sizeof(*lists.stages) * sizes.stages);
  lists.tiles = take(base, used, sizeof(*lists.tiles) * sizes.tiles);
  lists.row_begin = take(base, used, sizeof(*lists.row_begin) * sizes.rows);
  lists.source = take(base, used, sizeof(*lists.source) * sizes.sources);
  if (atomic_load(&structure->plans[BSRG_STREAM])) side->stream = lists;
}

/* What products of one reading need, and what only the build reads. */
static void place_side(bsrg_pattern_side *side, const bsrg_structure *structure, CUdeviceptr base,
                       size_t *used) {
  const bsrg_structure_view *v = &structure->view;
  side->rows = (int32_t)v->block_rows;
  side->words = (int32_t)bsrg_ceil_div(v->block_cols, 32);
  side->strips = (int32_t)(v->block_height / BSRG_TALL_STRIP);
  side->width = (int32_t)v->block_width;
  const size_t rows = (size_t)v->block_rows, capacity = (size_t)v->nnzb, words = rows * (size_t)side->words;
  side->indptr = take(base, used, sizeof(*side->indptr) * (rows + 1));
  side->indices = take(base, used, sizeof(*side->indices) * capacity);
  side->row_order = take(base, used, sizeof(*side->row_order) * rows);
  side->order = v->order ? take(base, used, sizeof(*side->order) * capacity) : NULL;
  place_tall(side, structure, base, used);
  place_stream(side, structure, base, used);
  side->bits = take(base, used, sizeof(*side->bits) * words);
  side->rank = take(base, used, sizeof(*side->rank) * words);
  side->count = take(base, used, sizeof(*side->count) * rows);
  side->extent = take(base, used, 2 * sizeof(*side->extent) * rows);
  side->spare_order = take(base, used, sizeof(*side->spare_order) * rows);
  side->order_begin = take(base, used, sizeof(*side->order_begin) * rows);
}

/* What Hopper's sampled products read: as for the tall family, with a place everywhere. */
static void place_sampled(const bsrg_structure *structure, struct bsrg_dynamic *d, CUdeviceptr base,
                          size_t *used) {
  bsrg_sampled_lists_params lists;
  size_t panel_bytes, tile_bytes;
  if (!bsrg_sampled_place_lists(&structure->view, &d->build.matrix, d->sm_count, &lists, &panel_bytes,
                                &tile_bytes))
    return;
  lists.panels = take(base, used, panel_bytes);
  lists.tiles = take(base, used, tile_bytes);
  if (d->has_sampled) d->build.sampled = lists;
}

/* Places everything and returns how much it takes. bsrgemm.h promises what comes first. */
static size_t place(const bsrg_structure *structure, struct bsrg_dynamic *d, CUdeviceptr base) {
  size_t used = 0;
  d->counts = take(base, &used, 2 * sizeof(*d->counts));
  place_side(&d->build.matrix, structure, base, &used);
  place_side(&d->build.transposed, atomic_load(&structure->transposed), base, &used);
  d->build.block_row = take(base, &used, sizeof(*d->build.block_row) * (size_t)d->build.capacity);
  place_sampled(structure, d, base, &used);
  return used;
}

/* Lets launchers find parts of the memory as if they had been uploaded, or, with a key that none of them has, keeps
 * what the structure owns. */
static bsrg_status keep(bsrg_structure *structure, int key, const CUdeviceptr *parts, int count,
                        bool borrowed, bsrg_error *error) {
  bsrg_uploads *node = calloc(1, sizeof(*node));
  if (!node) return bsrg_fail(error, BSRG_ERR_MEMORY, "no memory to list the arrays of a structure");
  node->device = structure->dynamic->device;
  node->key = key;
  node->borrowed = borrowed;
  for (int i = 0; i < count; ++i) node->parts[i] = parts[i];
  node->next = atomic_load(&structure->uploads);
  atomic_store(&structure->uploads, node);
  return BSRG_OK;
}

static bsrg_status keep_side(bsrg_structure *structure, const bsrg_pattern_side *side, bsrg_error *error) {
  const CUdeviceptr portable[] = {[BSRG_PORTABLE_INDPTR] = address_of(side->indptr),
                                  [BSRG_PORTABLE_INDICES] = address_of(side->indices),
                                  [BSRG_PORTABLE_ROW_ORDER] = address_of(side->row_order),
                                  [BSRG_PORTABLE_ORDER] = address_of(side->order)};
  const CUdeviceptr tall[] = {[BSRG_TALL_ENTRIES] = address_of(side->entries),
                              [BSRG_TALL_TILES] = address_of(side->tiles)};
  const bsrg_stream_lists *lists = &side->stream;
  const CUdeviceptr stream[] = {[BSRG_STREAM_STAGE_LIST] = address_of(lists->stages),
                                [BSRG_STREAM_TILE_LIST] = address_of(lists->tiles),
                                [BSRG_STREAM_ROW_LIST] = address_of(lists->row_begin),
                                [BSRG_STREAM_SOURCES] = address_of(lists->source)};
  bsrg_status status = keep(structure, BSRG_PORTABLE, portable, BSRG_PORTABLE_UPLOADS, true, error);
  if (status == BSRG_OK && side->entries) status = keep(structure, BSRG_TALL, tall, 2, true, error);
  if (status == BSRG_OK && lists->stages)
    status = keep(structure, BSRG_STREAM, stream, BSRG_STREAM_UPLOADS, true, error);
  return status;
}

/* Allocates the memory where the caller gives none. The GPU is entered. */
static bsrg_status place_in(bsrg_structure *structure, void *memory, bsrg_gpu gpu, bsrg_error *error) {
  struct bsrg_dynamic *d = structure->dynamic;
  CUdeviceptr base = address_of(memory);
  bsrg_status status = BSRG_OK;
  if (!memory) {
    const size_t bytes = place(structure, d, 0);
    const CUresult result = gpu.api->memory_alloc(&base, bytes);
    if (result == CUDA_ERROR_OUT_OF_MEMORY)
      return bsrg_fail(error, BSRG_ERR_MEMORY,
                       "cuda:%d has no room for a pattern of up to %" PRId64 " blocks", gpu.device->index,
                       structure->view.nnzb);
    status = bsrg_cuda_check(gpu.api, result, "allocating a pattern", error);
    if (status != BSRG_OK) return status;
    status = keep(structure, BSRG_AUTO, &base, 1, false, error);
    if (status != BSRG_OK) {
      gpu.api->memory_free(base);
      return status;
    }
  }
  place(structure, d, base);
  status = keep_side(structure, &d->build.matrix, error);
  if (status != BSRG_OK) return status;
  return keep_side(atomic_load(&structure->transposed), &d->build.transposed, error);
}

/* ---- the tall family's plan --------------------------------------------------------------------- */

/* As for a structure whose capacity is spread evenly, without its lists. Tiles come in the order that the GPU finds;
 * which of them are long is not known here, so none is cut and none goes first. */
static bsrg_tall_plan *make_tall_plan(const bsrg_structure_view *v) {
  bsrg_tall_plan *plan = calloc(1, sizeof(*plan));
  if (!plan) return NULL;
  const int64_t strips = v->block_height / BSRG_TALL_STRIP;
  /* Two rows have so many different columns, on average. */
  const double cells = (double)v->block_rows * (double)v->block_cols, density = (double)v->nnzb / cells;
  const double joined = strips % 2 ? (double)v->nnzb * (1 - density / 2) : 0;
  plan->tile_count = (int32_t)tiles_of(v);
  plan->tile_entries = bsrg_max(1, (int64_t)((double)v->nnzb * (double)(strips / 2) + joined));
  plan->longest_tile = (int32_t)bsrg_ceil_div(plan->tile_entries, plan->tile_count);
  plan->row_pairs = strips % 4 == 0; /* an even number of tiles for every block row */
  return plan;
}

/* ---- structures --------------------------------------------------------------------------------- */

/* What the host knows of one reading. */
static bsrg_status add_plans(bsrg_structure *structure, int sm_arch, bsrg_error *error) {
  const bsrg_structure_view *v = &structure->view;
  const bool tall_suits = !bsrg_tall_family.obstacle(v, BSRG_F16, sm_arch);
  const bool stream_suits = has_stream(v, sm_arch);
  /* The portable family's order of rows is not the host's to know. */
  void *portable = calloc(1, 1), *tall = tall_suits ? make_tall_plan(v) : NULL;
  void *stream = stream_suits ? bsrg_stream_make_dynamic_plan(v) : NULL;
  atomic_store(&structure->plans[BSRG_PORTABLE], portable);
  atomic_store(&structure->plans[BSRG_TALL], tall);
  /* Tiles are as high for few columns. */
  atomic_store(&structure->plans[BSRG_STREAM], stream);
  atomic_store(&structure->low_plans[BSRG_STREAM], stream);
  if (portable && (tall || !tall_suits) && (stream || !stream_suits)) return BSRG_OK;
  return bsrg_fail(error, BSRG_ERR_MEMORY, "no memory to plan a structure");
}

static bsrg_status check_capacity(const bsrg_structure_view *v, bsrg_error *error) {
  int64_t cells, elements;
  if (v->block_rows == 0 || v->block_cols == 0)
    return bsrg_fail(error, BSRG_ERR_VALUE,
                     "shape is (%" PRId64 ", %" PRId64 "), but a dynamic pattern needs at least one block",
                     v->rows, v->cols);
  if (!bsrg_mul_ok(v->block_rows, v->block_cols, &cells) || cells > INT64_C(1) << 30)
    return bsrg_fail(error, BSRG_ERR_VALUE,
                     "shape is (%" PRId64 ", %" PRId64 ") in blocks of (%" PRId64 ", %" PRId64
                     "), but a dynamic pattern takes at most 2^30 places of blocks",
                     v->rows, v->cols, v->block_height, v->block_width);
  if (!bsrg_mul_ok(v->block_height, v->block_width, &elements) || elements > INT32_MAX)
    return bsrg_fail(error, BSRG_ERR_VALUE,
                     "blocksize is (%" PRId64 ", %" PRId64
                     "), but a dynamic pattern takes blocks of fewer than 2^31 elements",
                     v->block_height, v->block_width);
  if (v->nnzb < 1 || v->nnzb > cells)
    return bsrg_fail(error, BSRG_ERR_VALUE,
                     "capacity is %" PRId64 ", but must be from 1 to the %" PRId64 " places of blocks",
                     v->nnzb, cells);
  return BSRG_OK;
}

/* Makes the transposed one, and the plans of both. What is missing after a failure is not there to be freed. */
static bsrg_status plan(bsrg_structure *structure, int device, int sm_arch, int sm_count, bsrg_error *error) {
  const bsrg_structure_view *v = &structure->view;
  struct bsrg_dynamic *d = calloc(1, sizeof(*d));
  bsrg_structure *transposed = calloc(1, sizeof(*transposed));
  /* Says that it is transposed; what it is of is on the device. */
  int64_t *order = calloc(1, sizeof(*order));
  if (!d || !transposed || !order) {
    free(d);
    free(transposed);
    free(order);
    return bsrg_fail(error, BSRG_ERR_MEMORY, "no host memory for a structure");
  }
  structure->dynamic = transposed->dynamic = d;
  transposed->original = structure;
  transposed->view = (bsrg_structure_view){.rows = v->cols,
                                           .cols = v->rows,
                                           .block_height = v->block_width,
                                           .block_width = v->block_height,
                                           .block_rows = v->block_cols,
                                           .block_cols = v->block_rows,
                                           .nnzb = v->nnzb,
                                           .longest_row = bsrg_ceil_div(v->nnzb, v->block_cols),
                                           .order = order};
  atomic_store(&structure->transposed, transposed);
  d->device = device;
  d->sm_count = sm_count;
  d->has_sampled = sm_arch == 90;
  d->build.capacity = (int32_t)v->nnzb;
  d->build.block_height = (int32_t)v->block_height;
  const bsrg_status status = add_plans(structure, sm_arch, error);
  return status == BSRG_OK ? add_plans(transposed, sm_arch, error) : status;
}

static bsrg_status check_view(int64_t rows, int64_t cols, int64_t block_height, int64_t block_width,
                              int64_t capacity, bsrg_structure_view *out, bsrg_error *error) {
  const bsrg_pattern sizes = {
      .rows = rows,
      .cols = cols,
      .block_height = block_height,
      .block_width = block_width,
      .nnzb = bsrg_max(capacity, 0),
      .indptr_len = block_height > 0 && rows < INT64_MAX ? bsrg_ceil_div(rows, block_height) + 1 : 0};
  bsrg_status status = bsrg_check_sizes(&sizes, error);
  if (status != BSRG_OK) return status;
  if (rows % block_height != 0 || cols % block_width != 0)
    return bsrg_fail(
        error, BSRG_ERR_VALUE,
        "shape is (%" PRId64 ", %" PRId64 ") and blocksize (%" PRId64 ", %" PRId64
        "), but a dynamic pattern takes whole blocks alone: the number of %s must be a multiple of "
        "the block %s",
        rows, cols, block_height, block_width, rows % block_height ? "rows" : "columns",
        rows % block_height ? "height" : "width");
  *out = (bsrg_structure_view){.rows = rows,
                               .cols = cols,
                               .block_height = block_height,
                               .block_width = block_width,
                               .block_rows = rows / block_height,
                               .block_cols = cols / block_width,
                               .nnzb = capacity};
  status = check_capacity(out, error);
  if (status == BSRG_OK) out->longest_row = bsrg_ceil_div(capacity, out->block_rows);
  return status;
}

bsrg_status bsrg_dynamic_describe(int64_t rows, int64_t cols, int64_t block_height, int64_t block_width,
                                  int64_t capacity, const bsrg_chip *chip, bsrg_structure **out,
                                  bsrg_error *error) {
  *out = NULL;
  bsrg_structure_view view;
  bsrg_status status = check_view(rows, cols, block_height, block_width, capacity, &view, error);
  if (status != BSRG_OK) return status;
  bsrg_structure *structure = calloc(1, sizeof(*structure));
  if (!structure) return bsrg_fail(error, BSRG_ERR_MEMORY, "no host memory for a structure");
  structure->view = view;
  status = plan(structure, -1, chip->sm_arch, chip->sm_count, error);
  if (status == BSRG_OK)
    *out = structure;
  else
    bsrg_structure_destroy(structure);
  return status;
}

/* A pattern of no blocks, once the GPU has made it. */
static bsrg_status begin_empty(bsrg_structure *structure, bsrg_gpu gpu, bsrg_error *error) {
  const bsrg_structure_view *v = &structure->view;
  int64_t *counts = structure->dynamic->counts;
  CUstream stream = gpu.device->upload;
  bsrg_status status = bsrg_cuda_check(
      gpu.api, gpu.api->set_32(address_of(counts), 0, 2 * sizeof(*counts) / 4, stream), "clearing", error);
  /* A mask of one zero, again and again. */
  const bsrg_dense empty = {counts, v->block_rows, v->block_cols, 0, 0};
  if (status == BSRG_OK) status = bsrg_dynamic_update(structure, &empty, stream, error);
  if (status != BSRG_OK) return status;
  return bsrg_cuda_check(gpu.api, gpu.api->stream_synchronize(stream), "preparing a pattern", error);
}

bsrg_status bsrg_dynamic_create_in(int64_t rows, int64_t cols, int64_t block_height, int64_t block_width,
                                   int64_t capacity, int device, void *memory, bsrg_structure **out,
                                   bsrg_error *error) {
  *out = NULL;
  bsrg_structure_view view;
  bsrg_status status = check_view(rows, cols, block_height, block_width, capacity, &view, error);
  if (status != BSRG_OK) return status;
  if ((uintptr_t)memory % BSRG_DYNAMIC_ALIGNMENT)
    return bsrg_fail(error, BSRG_ERR_VALUE, "memory is at %p, but must be at a multiple of %d bytes", memory,
                     BSRG_DYNAMIC_ALIGNMENT);

  bsrg_gpu gpu;
  bool pushed;
  status = bsrg_open_device(device, &gpu.api, &gpu.device, error);
  if (status != BSRG_OK) return status;
  status = bsrg_check_arch(&gpu.device->info, error);
  if (status != BSRG_OK) return status;
  bsrg_structure *structure = calloc(1, sizeof(*structure));
  if (!structure) return bsrg_fail(error, BSRG_ERR_MEMORY, "no host memory for a structure");
  structure->view = view;
  status = bsrg_enter(gpu.api, gpu.device, &pushed, error);
  if (status == BSRG_OK) {
    /* Relaxed, as for uploads: the caller may be capturing a graph. */
    int mode = CU_STREAM_CAPTURE_MODE_RELAXED;
    gpu.api->exchange_capture_mode(&mode);
    const bsrg_gpu_info *info = &gpu.device->info;
    status = plan(structure, gpu.device->index, info->sm_arch, info->sm_count, error);
    if (status == BSRG_OK) status = place_in(structure, memory, gpu, error);
    if (status == BSRG_OK && !memory) status = begin_empty(structure, gpu, error);
    gpu.api->exchange_capture_mode(&mode);
    bsrg_leave(gpu.api, pushed);
  }
  if (status == BSRG_OK)
    *out = structure;
  else
    bsrg_structure_destroy(structure);
  return status;
}

bsrg_status bsrg_dynamic_create(int64_t rows, int64_t cols, int64_t block_height, int64_t block_width,
                                int64_t capacity, int device, bsrg_structure **out, bsrg_error *error) {
  return bsrg_dynamic_create_in(rows, cols, block_height, block_width, capacity, device, NULL, out, error);
}

size_t bsrg_dynamic_bytes(const bsrg_structure *structure) {
  if (!structure->dynamic) return 0;
  struct bsrg_dynamic d = *structure->dynamic;
  return place(structure->original ? structure->original : structure, &d, 0);
}

/* ---- what the rest of the core asks ------------------------------------------------------------- */

const char *bsrg_dynamic_obstacle(const bsrg_structure *structure, bsrg_family family) {
  if (!structure->dynamic || family == BSRG_PORTABLE || family == BSRG_ALIGN) return NULL;
  const bool reads = (family == BSRG_TALL || family == BSRG_STREAM) && atomic_load(&structure->plans[family]);
  return reads ? NULL : "needs a pattern that the host knows";
}

bsrg_status bsrg_dynamic_check_place(const bsrg_structure *structure, bsrg_device device, bsrg_error *error) {
  const struct bsrg_dynamic *d = structure->dynamic;
  if (!d || (device.kind == BSRG_CUDA && device.index == d->device)) return BSRG_OK;
  if (d->device < 0)
    return bsrg_fail(error, BSRG_ERR_VALUE, "the pattern has no memory: it takes calls with a question only");
  if (device.kind == BSRG_CPU)
    return bsrg_fail(error, BSRG_ERR_TYPE, "the operands are on cpu, but the pattern is on cuda:%d",
                     d->device);
  return bsrg_fail(error, BSRG_ERR_TYPE, "the operands are on cuda:%d, but the pattern is on cuda:%d",
                   device.index, d->device);
}

bsrg_status bsrg_dynamic_get(const bsrg_structure *structure, bsrg_dynamic_arrays *out, bsrg_error *error) {
  const struct bsrg_dynamic *d = structure->dynamic;
  if (!d) return bsrg_fail(error, BSRG_ERR_VALUE, "structure is not dynamic: its arrays are on the host");
  *out = (bsrg_dynamic_arrays){d->device, d->build.matrix.indptr, d->build.matrix.indices, d->counts};
  return BSRG_OK;
}
