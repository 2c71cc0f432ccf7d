/* The Hopper kernels for two block-sparse matrices, kernels/sm90/pairs.cuh: what they need, and how they are launched. */
#include "pairs.h"
#include "tensor_map.h"
#include "uploads.h"

enum { STRIP = BSRG_PAIRS_STRIP };

/* Of the block columns of B that a group of column tiles has: they are to stay in L2 while A passes by, together with
 * those of A in work. */
static const double group_bytes = 20e6;

static bool multiple_of_strip(const bsrg_structure_view *v) {
  return v->block_height % STRIP == 0 && v->block_width % STRIP == 0;
}

/* What the masks and the maps' coordinates count in 32 bits. */
static bool is_small(const bsrg_structure_view *v) {
  return bsrg_whole_rows(v) <= INT32_MAX && bsrg_whole_cols(v) <= INT32_MAX &&
         v->nnzb * bsrg_max(v->block_height, v->block_width) <= INT32_MAX;
}

const char *bsrg_pairs_hopper_obstacle(const bsrg_matmul_sparse_args *args, const bsrg_gpu_info *gpu) {
  const bsrg_structure_view *a = &args->a->view, *b = &args->b->view;
  if (gpu->sm_arch != 90) return "needs a GPU of compute capability 9.0";
  if (!bsrg_is_half(args->dtype)) return "needs float16 or bfloat16";
  if (!multiple_of_strip(a) || !multiple_of_strip(b)) return "needs block sides that are multiples of 64";
  if (!is_small(a) || !is_small(b))
    return "needs fewer than 2^31 rows and columns, in all and of stored blocks";
  const int64_t masks =
      bsrg_max(1, b->block_cols) * bsrg_ceil_div(b->block_rows, 32) * (int64_t)(2 * sizeof(int32_t));
  if (bsrg_pair_mask_bytes(a) > BSRG_PAIR_MASK_BYTES || masks > BSRG_PAIR_MASK_BYTES)
    return "needs masks of which blocks are stored that fit in 64 MiB for each matrix";
  if ((uintptr_t)args->a_values % 16 || (uintptr_t)args->b_values % 16)
    return "needs a.data and b.data to start at multiples of 16 bytes";
  const int64_t tiles = bsrg_ceil_div(bsrg_whole_rows(a), BSRG_PAIRS_TILE_M) *
                        bsrg_ceil_div(bsrg_whole_cols(b), BSRG_PAIRS_TILE_N);
  return tiles > INT32_MAX / 2 ? "needs at most 2^30 tiles of 128 rows x 256 columns" : NULL;
}

bool bsrg_pairs_hopper_takes(const bsrg_dense *y) { return bsrg_map_can_store(y, 2, false); }

/* Uploads the index of one operand, and says where in it the tiles lie for its side. */
static bsrg_status upload(bsrg_structure *structure, bool is_a, bsrg_gpu gpu, bsrg_pairs_operand *out,
                          bsrg_error *error) {
  const bsrg_pair_index *index;
  bsrg_status status = bsrg_pair_index_get(structure, &index, error);
  if (status != BSRG_OK) return status;
  const bsrg_structure_view *v = &structure->view;
  const size_t words = sizeof(int32_t) * (size_t)(v->block_rows * index->words);
  const size_t tiles = index->tiles ? sizeof(int32_t) * (size_t)(index->row_tiles + index->column_tiles) : 0;
  enum { BITS, FIRST, ORDER, TILES, PARTS };
  const bsrg_upload_part parts[PARTS] = {
      [BITS] = {index->bits, words},
      [FIRST] = {index->first, words},
      [ORDER] = {index->order, index->order ? sizeof(int32_t) * (size_t)v->nnzb : 0},
      [TILES] = {index->tiles, tiles}};
  const CUdeviceptr *uploads;
  status = bsrg_uploads_get(structure, BSRG_PAIRS, parts, PARTS, gpu, &uploads, error);
  if (status != BSRG_OK) return status;
  *out = (bsrg_pairs_operand){
      .bits = (const uint32_t *)(uintptr_t)uploads[BITS],
      .first = (const int32_t *)(uintptr_t)uploads[FIRST],
      .order = index->order ? (const int32_t *)(uintptr_t)uploads[ORDER] : NULL,
      .tiles =
          index->tiles ? (const int32_t *)(uintptr_t)uploads[TILES] + (is_a ? 0 : index->row_tiles) : NULL,
      .strips = (int32_t)(bsrg_whole_rows(v) / STRIP),
      .strips_per_block = (int32_t)(v->block_height / STRIP)};
  return BSRG_OK;
}

/* The values of an operand, as its lines and k: see bsrg_pairs_params. Of no blocks, a map of what there is. */
static bsrg_status encode_values(const bsrg_structure_view *v, bool k_contiguous, uint32_t strips,
                                 const bsrg_matmul_sparse_args *args, const void *values, bsrg_gpu gpu,
                                 bsrg_pairs_operand *of, bsrg_tensor_map *map, bsrg_error *error) {
  const uint64_t across = (uint64_t)(k_contiguous ? v->block_width : v->block_height);
  const uint64_t down = (uint64_t)(k_contiguous ? v->block_height : v->block_width);
  of->rows_per_block = (int32_t)down;
  const uint64_t rows = down * (uint64_t)bsrg_max(1, v->nnzb);
  const bsrg_map_shape shape = {3,
                                {STRIP, rows, across / STRIP},
                                {across, STRIP, 0},
                                {STRIP, k_contiguous ? STRIP * strips : STRIP, k_contiguous ? 1 : strips},
                                CU_TENSOR_MAP_SWIZZLE_128B};
  return bsrg_encode_map(gpu.api, args->dtype, v->nnzb > 0 ? values : args->y.data, &shape, map, error);
}

/* Column tiles that are swept together, in groups of about equal size. */
static int32_t group_of(const bsrg_structure_view *bt, int64_t column_tiles) {
  const double bytes = 2 * (double)bt->nnzb * (double)(bt->block_height * bt->block_width);
  const int64_t most =
      bytes > group_bytes ? (int64_t)((double)column_tiles * group_bytes / bytes) : column_tiles;
  const int64_t groups = bsrg_ceil_div(column_tiles, bsrg_max(1, most));
  return (int32_t)bsrg_ceil_div(column_tiles, groups);
}

static bsrg_kernel_id kernel_for(bsrg_dtype dtype, bool wide_slots, bool a_transposed, bool b_transposed) {
  const bsrg_kernel_id first = dtype == BSRG_F16 ? BSRG_KERNEL_PAIRS_F16_S2_NN : BSRG_KERNEL_PAIRS_BF16_S2_NN;
  return (bsrg_kernel_id)((int)first + (wide_slots ? 0 : 4) + (b_transposed ? 2 : 0) +
                          (a_transposed ? 1 : 0));
}

bsrg_status bsrg_pairs_hopper_launch(const bsrg_matmul_sparse_args *args, bsrg_gpu gpu, bsrg_error *error) {
  bsrg_structure *transposed;
  bsrg_status status = bsrg_structure_transposed(args->b, &transposed, error);
  if (status != BSRG_OK) return status;
  const bsrg_structure_view *a = &args->a->view, *bt = &transposed->view;
  const bool wide_slots = bt->block_height % (2 * STRIP) == 0;
  const bool c_in_pairs =
      args->c.col_stride == 1 && args->c.row_stride % 2 == 0 && (uintptr_t)args->c.data % 4 == 0;
  bsrg_pairs_params p = {.c = args->c.data,
                         .c_row_stride = args->c.row_stride,
                         .c_col_stride = args->c.col_stride,
                         .words = (int32_t)bsrg_ceil_div(a->block_cols, 32),
                         .steps = (int32_t)(a->block_width / STRIP),
                         .row_tiles = (int32_t)bsrg_ceil_div(bsrg_whole_rows(a), BSRG_PAIRS_TILE_M),
                         .column_tiles = (int32_t)bsrg_ceil_div(bsrg_whole_rows(bt), BSRG_PAIRS_TILE_N),
                         .rows = (int32_t)bsrg_whole_rows(a),
                         .columns = (int32_t)bsrg_whole_rows(bt),
                         .c_in_pairs = c_in_pairs,
                         .alpha = (float)args->alpha,
                         .beta = (float)args->beta};
  p.group = group_of(bt, p.column_tiles);
  status = upload(args->a, true, gpu, &p.of_a, error);
  if (status == BSRG_OK) status = upload(transposed, false, gpu, &p.of_b, error);
  if (status != BSRG_OK) return status;
  p.of_a.joined = p.of_a.strips_per_block % 2 == 0;

  const bsrg_map_shape y = {2,
                            {(uint64_t)args->y.cols, (uint64_t)args->y.rows, 0},
                            {(uint64_t)args->y.row_stride, 0},
                            {STRIP, 16, 0},
                            CU_TENSOR_MAP_SWIZZLE_128B};
  status = encode_values(a, a->order == NULL, p.of_a.joined ? 2 : 1, args, args->a_values, gpu, &p.of_a, &p.a,
                         error);
  if (status == BSRG_OK)
    status = encode_values(bt, bt->order == NULL, wide_slots ? 2 : 1, args, args->b_values, gpu, &p.of_b,
                           &p.b, error);
  if (status == BSRG_OK) status = bsrg_encode_map(gpu.api, args->dtype, args->y.data, &y, &p.y, error);
  if (status != BSRG_OK) return status;
  const int64_t tiles = (int64_t)p.row_tiles * p.column_tiles;
  const int64_t ctas = bsrg_min(gpu.device->info.sm_count, tiles);
  return bsrg_launch_drawing(gpu.api, gpu.device,
                             kernel_for(args->dtype, wide_slots, a->order != NULL, bt->order == NULL), 0,
                             ctas, (CUstream)args->stream, &p, &p.counter, tiles > ctas, error);
}
