/* Sampled products on GPUs: the choice between Hopper's kernels and the portable ones, and their launches. */
#include "dense.h"
#include "dynamic.h"
#include "edges.h"
#include "sampled.h"
#include "tensor_map.h"
#include "uploads.h"

/* ---- what all kernels read -------------------------------------------------------------------- */

/* For the kernels of `family`. */
static bsrg_status place(const bsrg_sampled_args *args, const bsrg_sampled_plan *plan, bsrg_family family,
                         bsrg_gpu gpu, bsrg_sampled_arrays *arrays, bsrg_error *error) {
  if (args->pattern->dynamic) return bsrg_sampled_make_lists(args, plan, family, gpu, arrays, error);
  enum { TILES, PANELS, ITEMS, INDICES, UPLOADS };
  const bsrg_structure_view *v = &args->pattern->view;
  const bsrg_upload_part parts[UPLOADS] = {
      [TILES] = {plan->tiles, sizeof(*plan->tiles) * (size_t)plan->tile_count},
      [PANELS] = {plan->panels, sizeof(*plan->panels) * (size_t)plan->panel_count},
      [ITEMS] = {plan->items, sizeof(*plan->items) * (size_t)plan->item_count},
      [INDICES] = {v->indices, sizeof(*v->indices) * (size_t)v->nnzb}};
  const CUdeviceptr *uploads;
  const bsrg_status status =
      bsrg_uploads_get(args->pattern, BSRG_SAMPLED, parts, UPLOADS, gpu, &uploads, error);
  if (status != BSRG_OK) return status;
  *arrays = (bsrg_sampled_arrays){(const bsrg_sampled_tile *)(uintptr_t)uploads[TILES],
                                  (const bsrg_sampled_panel *)(uintptr_t)uploads[PANELS],
                                  (const bsrg_sampled_item *)(uintptr_t)uploads[ITEMS],
                                  (const int32_t *)(uintptr_t)uploads[INDICES], 0};
  return BSRG_OK;
}

/* After the launch. */
static bsrg_status release(const bsrg_sampled_args *args, const bsrg_sampled_arrays *arrays, bsrg_gpu gpu,
                           bsrg_status status, bsrg_error *error) {
  if (!arrays->scratch) return status;
  return bsrg_scratch_free(gpu.api, arrays->scratch, (CUstream)args->stream, status, error);
}

static bool is_aligned(const void *pointer) { return (uintptr_t)pointer % 16 == 0; }

/* Out, and values where they are read, begin at multiples of 16 bytes. */
static bool has_aligned_blocks(const bsrg_sampled_args *args) {
  return is_aligned(args->out) && (args->beta == 0 || is_aligned(args->values));
}

/* ---- Hopper ----------------------------------------------------------------------------------- */

/* A matrix as a tensor map sees it: by rows, or by columns as the rows of its transpose. */
typedef struct bsrg_order {
  bsrg_dense rows;
  bool by_columns, fits;
} bsrg_order;

static bsrg_order order_of(const bsrg_dense *dense) {
  bsrg_order order = {*dense, false, bsrg_map_can_describe(dense)};
  if (order.fits) return order;
  bsrg_dense_turn(&order.rows);
  order.by_columns = true;
  order.fits = bsrg_map_can_describe(&order.rows);
  return order;
}

const char *bsrg_sampled_obstacle(const bsrg_sampled_args *args, const bsrg_sampled_plan *plan, int sm_arch) {
  if (sm_arch != 90) return "needs a GPU of compute capability 9.0";
  if (!bsrg_is_half(args->dtype)) return "needs float16 or bfloat16";
  if (!plan->strips)
    return "needs block heights and widths that are multiples of 64, or of 32 where block columns ascend "
           "strictly, "
           "and fewer than 2^31 rows, columns and panels";
  if (args->a.cols < 1 || args->a.cols > INT32_MAX) return "needs an a of 1 to 2^31 - 1 columns";
  if (!order_of(&args->a).fits)
    return "needs a in row-major or column-major order, its rows or columns at multiples of 16 bytes";
  if (!order_of(&args->b).fits)
    return "needs b in row-major or column-major order, its rows or columns at multiples of 16 bytes";
  if (!has_aligned_blocks(args)) return "needs values that start at multiples of 16 bytes";
  return NULL;
}

/* A box has the k of a stage and a part's rows of A, or columns of B. by_k: whether k lies along the map's rows. */
static bsrg_status encode(const bsrg_order *order, bool by_k, uint32_t part, bsrg_dtype dtype, bsrg_gpu gpu,
                          bsrg_tensor_map *map, bsrg_error *error) {
  const bsrg_dense *rows = &order->rows;
  const bsrg_map_shape shape = {2,
                                {(uint64_t)rows->cols, (uint64_t)rows->rows},
                                {(uint64_t)rows->row_stride},
                                {by_k ? BSRG_SAMPLED_STAGE_K : part, by_k ? part : BSRG_SAMPLED_STAGE_K},
                                by_k || part == 64 ? CU_TENSOR_MAP_SWIZZLE_128B : CU_TENSOR_MAP_SWIZZLE_64B};
  return bsrg_encode_map(gpu.api, dtype, rows->data, &shape, map, error);
}

bsrg_status bsrg_sampled_launch_hopper(const bsrg_sampled_args *args, const bsrg_sampled_plan *plan,
                                       bsrg_gpu gpu, bsrg_error *error) {
  const bsrg_structure_view *v = &args->pattern->view;
  const bsrg_order a = order_of(&args->a), b = order_of(&args->b);
  bsrg_sampled_params p = {.values = args->values,
                           .out = args->out,
                           .tile_count = plan->tile_count,
                           .steps = (int32_t)bsrg_ceil_div(args->a.cols, BSRG_SAMPLED_STAGE_K),
                           .block_height = (int32_t)v->block_height,
                           .block_width = (int32_t)v->block_width,
                           .capacity = v->nnzb,
                           .alpha = (float)args->alpha,
                           .beta = (float)args->beta};
  const uint32_t part = (uint32_t)plan->part;
  bsrg_status status = encode(&a, !a.by_columns, part, args->dtype, gpu, &p.a, error);
  if (status == BSRG_OK) status = encode(&b, b.by_columns, part, args->dtype, gpu, &p.b, error);
  bsrg_sampled_arrays arrays;
  if (status == BSRG_OK) status = place(args, plan, BSRG_SAMPLED, gpu, &arrays, error);
  if (status != BSRG_OK) return status;
  p.tiles = arrays.tiles;
  p.panels = arrays.panels;
  if (args->pattern->dynamic) p.stored = args->pattern->dynamic->counts;
  const int first =
      args->dtype == BSRG_F16 ? BSRG_KERNEL_SAMPLED_F16_M128_KN : BSRG_KERNEL_SAMPLED_BF16_M128_KN;
  const int tile = plan->strips == 2 ? 0 : part == 64 ? 1 : 2;
  const bsrg_kernel_id kernel = (bsrg_kernel_id)(first + 4 * tile + 2 * a.by_columns + b.by_columns);
  const int64_t ctas = bsrg_min(gpu.device->info.sm_count, plan->tile_count);
  const CUstream stream = (CUstream)args->stream;
  const bool drawn = false; /* tiles take equally long */
  /* Who finds that there are no more tiles of a dynamic structure stops, where others count on every draw. */
  status = args->pattern->dynamic ? bsrg_launch(gpu.api, gpu.device, kernel, ctas, 1, stream, &p, error)
                                  : bsrg_launch_drawing(gpu.api, gpu.device, kernel, 0, ctas, stream, &p,
                                                        &p.counter, drawn, error);
  return release(args, &arrays, gpu, status, error);
}

/* ---- portable --------------------------------------------------------------------------------- */

enum { TILE_FEW, TILE_LOW, TILE_HIGH };
enum { TILE_COUNT = BSRG_SAMPLED_TILES };
#define SHAPE(rows, columns, warps_m, warps_n, k, stages, ctas) {rows, ctas},
static const int64_t mma_tiles[][2] = {BSRG_SAMPLED_MMA_TILES(SHAPE)};
static const int64_t f32_tiles[][2] = {BSRG_SAMPLED_F32_TILES(SHAPE)};
static const int64_t f64_tiles[][2] = {BSRG_SAMPLED_F64_TILES(SHAPE)};
#undef SHAPE
_Static_assert(sizeof(mma_tiles) == TILE_COUNT * sizeof(*mma_tiles) &&
                   sizeof(f32_tiles) == sizeof(mma_tiles) && sizeof(f64_tiles) == sizeof(mma_tiles),
               "lists of one order");

bsrg_sampled_shape bsrg_sampled_choose_tile(const bsrg_structure_view *v, bsrg_dtype dtype,
                                            const bsrg_sampled_plan *plan) {
  const int64_t (*tiles)[2] = bsrg_is_half(dtype) ? mma_tiles : dtype == BSRG_F32 ? f32_tiles : f64_tiles;
  const int64_t high = bsrg_ceil_div(v->block_height, tiles[TILE_HIGH][0]) * tiles[TILE_HIGH][0];
  const int64_t low = bsrg_ceil_div(v->block_height, tiles[TILE_LOW][0]) * tiles[TILE_LOW][0];
  /* High tiles read B less often, and are worth up to half of their rows left empty. */
  const int index = plan->item_columns == BSRG_SAMPLED_FEW ? TILE_FEW
                    : 2 * high <= 3 * low                  ? TILE_HIGH
                                                           : TILE_LOW;
  return (bsrg_sampled_shape){index, tiles[index][0], tiles[index][1]};
}

/* The operand's rows, or columns, begin at multiples of 16 bytes; `stride` leads from one to the next. */
static bool has_aligned_lines(const bsrg_dense *dense, int64_t stride, int64_t size) {
  return is_aligned(dense->data) && stride * size % 16 == 0;
}

bsrg_sampled_loads bsrg_sampled_choose_loads(const bsrg_sampled_args *args) {
  const bsrg_structure_view *v = &args->pattern->view;
  const bsrg_dense *a = &args->a, *b = &args->b;
  const int64_t size = (int64_t)bsrg_dtype_size(args->dtype), chunk = 16 / size;
  const bool half = bsrg_is_half(args->dtype);
  bsrg_sampled_loads loads = {.along_m = half && a->col_stride != 1 && a->row_stride == 1,
                              .along_k = half && b->col_stride != 1 && b->row_stride == 1};
  loads.vector_a = loads.along_m ? has_aligned_lines(a, a->col_stride, size) && v->block_height % chunk == 0
                                 : a->col_stride == 1 && has_aligned_lines(a, a->row_stride, size);
  loads.vector_b = loads.along_k ? has_aligned_lines(b, b->col_stride, size)
                                 : b->col_stride == 1 && has_aligned_lines(b, b->row_stride, size) &&
                                       v->block_width % chunk == 0;
  return loads;
}

static bsrg_status launch_portable(const bsrg_sampled_args *args, const bsrg_sampled_plan *plan, bsrg_gpu gpu,
                                   bsrg_error *error) {
  const bsrg_structure_view *v = &args->pattern->view;
  const bsrg_dense *a = &args->a, *b = &args->b;
  const bsrg_sampled_shape tile = bsrg_sampled_choose_tile(v, args->dtype, plan);
  const int64_t row_tiles = bsrg_ceil_div(v->block_height, tile.rows);
  int64_t ctas;
  /* The margin keeps rounding up to a tile in range. */
  if (!bsrg_mul_ok(row_tiles, plan->item_count, &ctas) || ctas > INT32_MAX ||
      v->block_height > INT32_MAX - 256 || v->block_width > INT32_MAX - 256)
    return bsrg_fail(
        error, BSRG_ERR_VALUE,
        "pattern has %lld blocks of (%lld, %lld): the GPU kernels take fewer than 2^31 tiles and "
        "block sides below 2^31 - 256",
        (long long)v->nnzb, (long long)v->block_height, (long long)v->block_width);
  if (args->pattern->dynamic && bsrg_whole_cols(v) > INT32_MAX)
    return bsrg_fail(error, BSRG_ERR_VALUE,
                     "pattern has %lld columns: the GPU kernels take fewer than 2^31 of a dynamic pattern",
                     (long long)v->cols);
  bsrg_sampled_arrays arrays;
  bsrg_status status = place(args, plan, BSRG_PORTABLE, gpu, &arrays, error);
  if (status != BSRG_OK) return status;

  const bsrg_sampled_loads loads = bsrg_sampled_choose_loads(args);
  const int64_t size = (int64_t)bsrg_dtype_size(args->dtype);
  bsrg_sampled_portable_params p = {.items = arrays.items,
                                    .indices = arrays.indices,
                                    .a = a->data,
                                    .b = b->data,
                                    .values = args->values,
                                    .out = args->out,
                                    .a_row_stride = a->row_stride,
                                    .a_col_stride = a->col_stride,
                                    .b_row_stride = b->row_stride,
                                    .b_col_stride = b->col_stride,
                                    .k = a->cols,
                                    .block_height = (int32_t)v->block_height,
                                    .block_width = (int32_t)v->block_width,
                                    .row_tiles = (int32_t)row_tiles,
                                    .vector_a = loads.vector_a,
                                    .vector_b = loads.vector_b,
                                    .vector_out = has_aligned_blocks(args) && v->block_width * size % 16 == 0,
                                    .alpha = args->alpha,
                                    .beta = args->beta};
  const int first = args->dtype == BSRG_F16    ? BSRG_KERNEL_SAMPLED_PORTABLE_F16_M16N32_KN
                    : args->dtype == BSRG_BF16 ? BSRG_KERNEL_SAMPLED_PORTABLE_BF16_M16N32_KN
                    : args->dtype == BSRG_F32  ? BSRG_KERNEL_SAMPLED_F32_M16N32
                                               : BSRG_KERNEL_SAMPLED_F64_M16N32;
  const int order = 2 * loads.along_m + loads.along_k;
  const bsrg_kernel_id kernel = (bsrg_kernel_id)(first + order * TILE_COUNT + tile.index);
  status = bsrg_launch(gpu.api, gpu.device, kernel, ctas, 1, (CUstream)args->stream, &p, error);
  return release(args, &arrays, gpu, status, error);
}

/* With copies of A and B that go on with zeros where partial blocks do. */
static bsrg_status launch_whole(const bsrg_sampled_args *args, const bsrg_sampled_plan *plan, bsrg_gpu gpu,
                                bsrg_error *error) {
  const bsrg_structure_view *v = &args->pattern->view;
  const int64_t size = (int64_t)bsrg_dtype_size(args->dtype), k = args->a.cols;
  const int64_t rows = bsrg_whole_rows(v), cols = bsrg_whole_cols(v);
  const bool copy_a = k > 0 && rows != v->rows, copy_b = k > 0 && cols != v->cols;
  if (!copy_a && !copy_b) return launch_portable(args, plan, gpu, error);
  const CUstream stream = (CUstream)args->stream;
  bsrg_dense a = bsrg_whole_dense(&args->a, rows, k, size), b = bsrg_whole_dense(&args->b, k, cols, size);
  const size_t a_bytes = copy_a ? bsrg_lines_bytes(&a, size) : 0;
  const size_t b_bytes = copy_b ? bsrg_lines_bytes(&b, size) : 0;
  CUdeviceptr scratch;
  bsrg_status status = bsrg_scratch_alloc(gpu.api, gpu.device, a_bytes + b_bytes, stream, &scratch, error);
  if (status != BSRG_OK) return status;
  a.data = (void *)(uintptr_t)scratch;
  b.data = (void *)(uintptr_t)(scratch + a_bytes);
  bsrg_sampled_args whole = *args;
  if (copy_a) {
    whole.a = a;
    status = bsrg_copy_to_whole(&args->a, &a, size, gpu, stream, error);
  }
  if (copy_b && status == BSRG_OK) {
    whole.b = b;
    status = bsrg_copy_to_whole(&args->b, &b, size, gpu, stream, error);
  }
  if (status == BSRG_OK) status = launch_portable(&whole, plan, gpu, error);
  return bsrg_scratch_free(gpu.api, scratch, stream, status, error);
}

/* ---- entry ------------------------------------------------------------------------------------ */

static bsrg_status launch_portable_plan(const bsrg_sampled_args *args, bsrg_gpu gpu, bsrg_error *error) {
  const void *plan;
  const bsrg_status status = bsrg_plan_get(args->pattern, &bsrg_sampled_lists, false, &plan, error);
  return status == BSRG_OK ? launch_whole(args, plan, gpu, error) : status;
}

static bsrg_status multiply(const bsrg_sampled_args *args, bsrg_gpu gpu, bsrg_error *error) {
  const bsrg_chip chip = bsrg_chip_of(gpu);
  bsrg_sampled_way way;
  bsrg_status status = bsrg_sampled_choose(args, &chip, &way, error);
  if (status != BSRG_OK) return status;
  if (way.family == BSRG_SAMPLED)
    status = bsrg_sampled_launch_hopper(args, way.plan, gpu, error);
  else if (way.family == BSRG_COVER)
    status = bsrg_sampled_launch_cover(args, way.plan, gpu, error);
  else
    status = launch_portable_plan(args, gpu, error);
  /* Nothing is written to out before the larger blocks have had their memory. */
  if (status == BSRG_ERR_MEMORY && way.family == BSRG_COVER && args->family == BSRG_AUTO)
    status = launch_portable_plan(args, gpu, error);
  /* Zeros have met an infinity or NaN there. */
  if (status != BSRG_OK) return status;
  return bsrg_gpu_clear_edges(args->pattern, args->out, args->dtype, gpu, (CUstream)args->stream, error);
}

static bsrg_status multiply_or_copy(const bsrg_sampled_args *args, bsrg_gpu gpu, bsrg_error *error) {
  bsrg_sampled_copies copies = bsrg_sampled_describe_copies(args);
  return copies.a || copies.b ? bsrg_sampled_launch_copies(args, &copies, multiply, gpu, error)
                              : multiply(args, gpu, error);
}

static bsrg_status answer(const bsrg_sampled_args *args, bsrg_error *error) {
  const bsrg_gpu_info info = bsrg_question_gpu(args->question);
  const bsrg_sampled_copies copies = bsrg_sampled_describe_copies(args);
  bsrg_sampled_way way;
  bsrg_status status = bsrg_check_arch(&info, error);
  if (status == BSRG_OK) status = bsrg_sampled_choose(&copies.args, args->question->chip, &way, error);
  if (status == BSRG_OK) args->question->family = way.family;
  return status;
}

bsrg_status bsrg_gpu_sampled(const bsrg_sampled_args *args, bsrg_error *error) {
  if (args->question) return answer(args, error);
  const bsrg_cuda_api *api;
  bsrg_device_state *device;
  bool pushed;
  bsrg_status status = bsrg_open_device(args->device.index, &api, &device, error);
  if (status == BSRG_OK) status = bsrg_enter(api, device, &pushed, error);
  if (status != BSRG_OK) return status;
  const bsrg_gpu gpu = {api, device};
  status = bsrg_check_arch(&device->info, error);
  if (status == BSRG_OK)
    status = args->batch.ndim > 0 ? bsrg_sampled_launch_batch(args, multiply_or_copy, gpu, error)
                                  : multiply_or_copy(args, gpu, error);
  bsrg_leave(api, pushed);
  return status;
}
