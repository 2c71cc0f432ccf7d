#include "dynamic.h"
#include "epilogue.h"
#include "stream.h"
#include "tensor_map.h"
#include "uploads.h"

static const char *obstacle(const bsrg_structure_view *v, bsrg_dtype dtype, int sm_arch) {
  int64_t elements;
  if (!bsrg_is_half(dtype)) return "needs float16 or bfloat16";
  if (v->nnzb == 0) return "needs at least one block";
  if (v->column_order != BSRG_ASCENDING) return "needs block columns that ascend strictly";
  if (v->block_height % 8) return "needs a block height that is a multiple of 8";
  if (v->block_width % 8) return "needs a block width that is a multiple of 8";
  const bsrg_stream_shape shape = bsrg_stream_choose(v);
  if (shape.height == 0)
    return "needs a block width that is a multiple of 16, or a height that a multiple of 8 from 16 to 64 "
           "divides";
  if (!bsrg_stream_fits(shape.rows, shape.height)) return "needs blocks that fit into a tile of 384 rows";
  /* The plan counts parts of at least 8 x 16 elements in 32 bits. */
  if (bsrg_whole_rows(v) > INT32_MAX || bsrg_whole_cols(v) > INT32_MAX ||
      !bsrg_mul_ok(v->nnzb, v->block_height * v->block_width, &elements) || elements / 128 > INT32_MAX)
    return "needs fewer than 2^31 rows, columns and parts of 8 x 16 elements";
  if (sm_arch != 90) return "needs a Hopper GPU (compute capability 9.0)";
  return NULL;
}

static const char *layout_obstacle(const bsrg_matmul_args *args) {
  const bool c_suits = args->beta == 0 || bsrg_map_can_describe(&args->c);
  return bsrg_map_layout_obstacle(
      args, c_suits ? NULL : "needs c in row-major order, its rows at multiples of 16 bytes");
}

static int64_t column_tiles(const bsrg_matmul_args *args) {
  return bsrg_ceil_div(args->x.cols, BSRG_STREAM_TILE_N);
}

/* Refuses products of too many tiles, and uploads the plan. */
static bsrg_status prepare(const bsrg_matmul_args *args, const bsrg_stream_plan *stream, bsrg_gpu gpu,
                           const CUdeviceptr **uploads, bsrg_error *error) {
  if (stream->tile_count * column_tiles(args) > INT32_MAX / 2)
    return bsrg_fail(error, BSRG_ERR_VALUE,
                     "b has %lld columns: with %lld rows of a that is more than 2^30 tiles",
                     (long long)args->x.cols, (long long)args->y.rows);
  const bsrg_upload_part parts[BSRG_STREAM_UPLOADS] = {
      [BSRG_STREAM_STAGE_LIST] = {stream->stages, sizeof(*stream->stages) * (size_t)stream->stage_count},
      [BSRG_STREAM_TILE_LIST] = {stream->tiles, sizeof(*stream->tiles) * (size_t)stream->tile_count},
      [BSRG_STREAM_ROW_LIST] = {stream->rows, sizeof(*stream->rows) * (size_t)stream->row_count},
      [BSRG_STREAM_SOURCES] = {
          stream->source, sizeof(*stream->source) * (size_t)(stream->part_count + BSRG_STREAM_SOURCE_SLACK)}};
  return bsrg_uploads_get(args->a, bsrg_upload_key(BSRG_STREAM, stream->low), parts, BSRG_STREAM_UPLOADS, gpu,
                          uploads, error);
}

static bsrg_status pack(const bsrg_matmul_args *args, const bsrg_stream_plan *stream, CUdeviceptr source,
                        CUdeviceptr packed, bsrg_gpu gpu, bsrg_error *error) {
  const bsrg_stream_shape *shape = &stream->shape;
  bsrg_pack_params p = {.values = args->values,
                        .packed = (void *)(uintptr_t)packed,
                        .source = (const int32_t *)(uintptr_t)source,
                        .count = stream->part_count,
                        .blocks = args->a->dynamic ? args->a->dynamic->counts : NULL,
                        .height = shape->height,
                        .width = shape->width,
                        .rows = shape->rows,
                        .columns = shape->columns,
                        .tf32 = args->dtype == BSRG_F32};
  /* Four at a time a warp: parts or, where they have to be turned, their matrices of 8 x 8 elements. */
  const bool turned = args->a->view.order;
  const int64_t matrices = (int64_t)shape->height * shape->width / 64;
  const int64_t units = turned ? stream->part_count * matrices : stream->part_count;
  const int64_t ctas =
      bsrg_min(bsrg_ceil_div(units, 4 * BSRG_PACK_THREADS / 32), 8 * gpu.device->info.sm_count);
  return bsrg_launch(gpu.api, gpu.device,
                     turned ? BSRG_KERNEL_STREAM_PACK_TRANSPOSED : BSRG_KERNEL_STREAM_PACK, ctas, 1,
                     (CUstream)args->stream, &p, error);
}

#define BSRG_STREAM_ONE_MORE(height, width) +1
enum { WIDE_SHAPES = 0 BSRG_STREAM_WIDE_SHAPES(BSRG_STREAM_ONE_MORE) };
#undef BSRG_STREAM_ONE_MORE

/* The number of a shape among those without width 8. */
static int wide_of(const bsrg_stream_shape *shape) {
#define BSRG_STREAM_PAIR(height, width) {height, width},
  static const int32_t shapes[][2] = {BSRG_STREAM_WIDE_SHAPES(BSRG_STREAM_PAIR)};
#undef BSRG_STREAM_PAIR
  int i = 0;
  while (i + 1 < WIDE_SHAPES && (shapes[i][0] != shape->height || shapes[i][1] != shape->width)) ++i;
  return i;
}

static int kernel_of(const bsrg_matmul_args *args, const bsrg_stream_shape *shape, bool transposed,
                     bool fused, bool stored) {
  const int wide = wide_of(shape);
  if (args->dtype == BSRG_F32) return BSRG_KERNEL_STREAM_TF32_8X16 + wide;
  const int group = (args->dtype == BSRG_BF16) + (transposed ? 4 : fused ? 2 : 0);
  if (stored) return BSRG_KERNEL_STREAM_STORED_F16_8X16 + group * WIDE_SHAPES + wide;
  return shape->kernel + group * BSRG_STREAM_SHAPE_COUNT;
}

/* Of stored blocks all parts, one below the other. */
static bsrg_status describe_blocks(const bsrg_matmul_args *args, const bsrg_stream_shape *shape,
                                   bsrg_tensor_map *map, bsrg_gpu gpu, bsrg_error *error) {
  const bsrg_structure_view *v = &args->a->view;
  const uint32_t together = BSRG_STREAM_TWO_ROWS(shape->height) ? BSRG_TWO_ROWS : 1;
  const uint32_t width = together * (uint32_t)shape->width;
  const bsrg_map_shape blocks = {2,
                                 {width, (uint64_t)(v->nnzb * v->block_height) / together},
                                 {width},
                                 {width, (uint32_t)shape->height / together},
                                 bsrg_map_swizzle(2 * width)};
  return bsrg_encode_map(gpu.api, args->dtype, args->values, &blocks, map, error);
}

/* packed: 0 where the kernel reads blocks as they are stored.
 *
 * The structure may have more rows than Y and more columns than X has rows, as the regroup family's have in their
 * last blocks: the bounds of the maps are those of X and Y, where TMA clips and fills with zeros. */
static bsrg_status multiply(const bsrg_matmul_args *args, const bsrg_stream_plan *stream,
                            const CUdeviceptr *uploads, CUdeviceptr packed, bsrg_gpu gpu, bsrg_error *error) {
  const bsrg_stream_shape *shape = &stream->shape;
  const int64_t sms = gpu.device->info.sm_count;
  const int32_t cluster = bsrg_stream_cluster(args->x.cols, stream->tile_count, sms);
  const int32_t n_tiles = (int32_t)column_tiles(args) / cluster;
  const int64_t tiles = (int64_t)stream->tile_count * n_tiles,
                clusters = bsrg_min(bsrg_max(1, sms / cluster), tiles);
  const bool tf32 = args->dtype == BSRG_F32, transposed = tf32 || bsrg_map_has_transposed_x(args);
  const bool kept = bsrg_stream_keeps(stream);
  bsrg_stream_params p = {.packed = (const void *)(uintptr_t)packed,
                          .stages = (const bsrg_stream_stage *)(uintptr_t)uploads[BSRG_STREAM_STAGE_LIST],
                          .tiles = (const bsrg_stream_tile *)(uintptr_t)uploads[BSRG_STREAM_TILE_LIST],
                          .row_begin = (const int32_t *)(uintptr_t)uploads[BSRG_STREAM_ROW_LIST],
                          .c = args->c.data,
                          .c_row_stride = args->c.row_stride,
                          .cluster = cluster,
                          .tile_count = stream->tile_count,
                          .n_tile_count = n_tiles,
                          .group = bsrg_stream_group(stream, cluster, n_tiles),
                          .lead = bsrg_stream_lead(stream, cluster, n_tiles, sms),
                          .rows = (int32_t)args->y.rows,
                          .n = (int32_t)args->x.cols,
                          .alpha = (float)args->alpha,
                          .beta = (float)args->beta,
                          .output = bsrg_output_of(args),
                          .c_col_stride = args->c.col_stride,
                          .blocks_policy = kept ? BSRG_L2_EVICT_LAST : BSRG_L2_EVICT_NORMAL,
                          .x_policy = kept && !transposed ? BSRG_L2_EVICT_FIRST : BSRG_L2_EVICT_NORMAL,
                          .y_data = args->y.data,
                          .y_row_stride = args->y.row_stride,
                          .y_col_stride = args->y.col_stride};
  const uint32_t stored = (uint32_t)BSRG_STREAM_STORED_ROWS(shape->height); /* rows, at a time */
  const bsrg_map_shape y =
      transposed ? bsrg_map_columns(&args->y, args->dtype, stored, 64) : bsrg_map_panel(&args->y, stored);
  const bsrg_map_tiles x_tiles = {
      .by_columns = transposed,
      .rows = (uint32_t)shape->width / (tf32 ? 2 : 1), /* a width of tf32 counts 16 bits */
      .tile = BSRG_STREAM_TILE_N,
      .whole = args->x.cols < BSRG_STREAM_TILE_N ? 0 : BSRG_STREAM_TILE_N};
  bsrg_status status = bsrg_encode_tiles(gpu.api, args->dtype, &args->x, &x_tiles, &p.x, &p.x_rest, error);
  if (status == BSRG_OK && !tf32)
    status = bsrg_encode_map(gpu.api, args->dtype, args->y.data, &y, &p.y, error);
  if (status == BSRG_OK && packed == 0) {
    p.source = (const int32_t *)(uintptr_t)uploads[BSRG_STREAM_SOURCES];
    status = describe_blocks(args, shape, &p.blocks, gpu, error);
  }
  if (status != BSRG_OK) return status;
  const int kernel = kernel_of(args, shape, transposed, p.output.given, packed == 0);
  return bsrg_launch_drawing(gpu.api, gpu.device, (bsrg_kernel_id)kernel, cluster, clusters * cluster,
                             (CUstream)args->stream, &p, &p.counter, tiles > clusters, error);
}

bsrg_status bsrg_stream_launch_packed(const bsrg_matmul_args *args, const bsrg_stream_plan *plan,
                                      CUdeviceptr packed, bsrg_gpu gpu, bsrg_error *error) {
  const CUdeviceptr *uploads;
  const bsrg_status status = prepare(args, plan, gpu, &uploads, error);
  return status == BSRG_OK ? multiply(args, plan, uploads, packed, gpu, error) : status;
}

bsrg_status bsrg_stream_launch(const bsrg_matmul_args *args, const void *plan, bsrg_gpu gpu,
                               bsrg_error *error) {
  const bsrg_stream_plan *stream = plan;
  const CUdeviceptr *uploads;
  bsrg_status status = prepare(args, stream, gpu, &uploads, error);
  if (status != BSRG_OK) return status;
  const bsrg_chip chip = bsrg_chip_of(gpu);
  if (bsrg_stream_reads_stored(args, stream, &chip)) return multiply(args, stream, uploads, 0, gpu, error);

  const size_t bytes =
      2 * (size_t)stream->part_count * (size_t)stream->shape.height * (size_t)stream->shape.width;
  CUdeviceptr packed;
  status = bsrg_scratch_alloc(gpu.api, gpu.device, bytes, (CUstream)args->stream, &packed, error);
  if (status != BSRG_OK) return status;
  status = pack(args, stream, uploads[BSRG_STREAM_SOURCES], packed, gpu, error);
  if (status == BSRG_OK) status = multiply(args, stream, uploads, packed, gpu, error);
  return bsrg_scratch_free(gpu.api, packed, (CUstream)args->stream, status, error);
}

const bsrg_family_ops bsrg_stream_family = {.family = BSRG_STREAM,
                                            .obstacle = obstacle,
                                            .columns_obstacle = bsrg_map_count_obstacle,
                                            .layout_obstacle = layout_obstacle,
                                            .make_plan = bsrg_stream_make_plan,
                                            .wants_low = bsrg_stream_wants_low,
                                            .make_low_plan = bsrg_stream_make_low_plan,
                                            .free_plan = bsrg_stream_free_plan,
                                            .predict = bsrg_stream_predict,
                                            .clips_x = true,
                                            .clips_y = true,
                                            .launch = bsrg_stream_launch};
