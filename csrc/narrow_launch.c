#include "copy.h"
#include "dense.h"
#include "epilogue.h"
#include "kmajor.h"
#include "narrow.h"
#include "portable.h"
#include "tensor_map.h"
#include "uploads.h"

static bool aligned(const void *pointer, uintptr_t bytes) { return (uintptr_t)pointer % bytes == 0; }

static const char *obstacle_of_8_bits(const bsrg_structure_view *v, int sm_arch) {
  int64_t rows;
  if (sm_arch != 90) return "needs a Hopper GPU (compute capability 9.0) for 8-bit floats";
  if (v->order) return "needs blocks as they are stored for 8-bit floats, not those of a transposed view";
  if (v->nnzb == 0) return "needs at least one block for 8-bit floats";
  if (v->block_width % 16) return "needs a block width that is a multiple of 16 for 8-bit floats";
  if (!bsrg_mul_ok(v->nnzb, v->block_height, &rows) || rows > INT32_MAX || bsrg_whole_cols(v) > INT32_MAX)
    return "needs fewer than 2^31 columns and stored block rows for 8-bit floats";
  return NULL;
}

/* Of float32 and float64, whose rows in a block are whole chunks of 16 bytes. */
static const char *obstacle_of_fma(const bsrg_structure_view *v, bsrg_dtype dtype, int sm_arch) {
  const int64_t words = (int64_t)bsrg_dtype_size(dtype) / 2, chunk = BSRG_NARROW_CHUNK / words;
  const bool single = dtype == BSRG_F32;
  if (sm_arch != 90) return "needs a Hopper GPU (compute capability 9.0) for float32 and float64";
  if (v->block_width % chunk)
    return single ? "needs a block width that is a multiple of 4"
                  : "needs a block width that is a multiple of 2";
  if (v->order && v->block_height % chunk)
    return single ? "needs block sides of a transposed view that are multiples of 4 for float32"
                  : "needs block sides of a transposed view that are multiples of 2 for float64";
  if (v->block_width > BSRG_NARROW_MAX_WIDTH / words)
    return single ? "needs a block width of at most 32768 for float32"
                  : "needs a block width of at most 16384 for float64";
  if (v->block_height * v->block_width > INT32_MAX / words)
    return single ? "needs fewer than 2^30 elements in a block of float32"
                  : "needs fewer than 2^29 elements in a block of float64";
  return NULL;
}

static const char *obstacle(const bsrg_structure_view *v, bsrg_dtype dtype, int sm_arch) {
  if (sm_arch < 80) return "needs a GPU of compute capability 8.0 or later";
  if (bsrg_narrow_by_fma(dtype)) {
    const char *const needed = obstacle_of_fma(v, dtype, sm_arch);
    if (needed) return needed;
  } else if (v->block_width % BSRG_NARROW_CHUNK) {
    return "needs a block width that is a multiple of 8";
  } else if (v->order && v->block_height % BSRG_NARROW_CHUNK) {
    return "needs block sides of a transposed view that are multiples of 8";
  }
  if (v->block_width > BSRG_NARROW_MAX_WIDTH) return "needs a block width of at most 65536";
  if (v->block_height * v->block_width > INT32_MAX) return "needs fewer than 2^31 elements in a block";
  if (bsrg_whole_rows(v) > INT32_MAX || v->nnzb > INT32_MAX) return "needs fewer than 2^31 rows and blocks";
  return bsrg_is_8_bit(dtype) ? obstacle_of_8_bits(v, sm_arch) : NULL;
}

static const char *columns_obstacle(int64_t n) {
  return n > BSRG_NARROW_MOST_N ? "needs at most 512 columns" : NULL;
}

static const char *layout_obstacle_of_8_bits(const bsrg_matmul_args *args) {
  if (args->x.cols > BSRG_NARROW_TMA_MAX_N) return "needs at most 256 columns of 8-bit floats";
  if (args->values_scale_count > 1 && !bsrg_narrow_tma_takes_8_bits(&args->a->view))
    return "needs one factor for all blocks of 8-bit floats, or more than 16 rows and a multiple of 32 "
           "columns";
  return NULL;
}

/* Rows or columns of adjacent elements that begin at multiples of 16 bytes. A single column has no stride to another one. */
static bool suits_fma(const bsrg_matmul_args *args) {
  const bsrg_dense *x = &args->x;
  const int64_t chunk = 16 / (int64_t)bsrg_dtype_size(args->dtype);
  const bool by_columns = x->row_stride == 1 && (x->cols == 1 || x->col_stride % chunk == 0);
  return (by_columns || (x->col_stride == 1 && x->row_stride % chunk == 0)) && aligned(x->data, 16);
}

/* Of 16 bits: elements of X would come one by one, which for so many was not measured beside the align family. */
static const char *layout_obstacle(const bsrg_matmul_args *args) {
  if (!aligned(args->values, 16)) return "needs a.data to start at a multiple of 16 bytes";
  if (bsrg_is_8_bit(args->dtype)) return layout_obstacle_of_8_bits(args);
  if (bsrg_narrow_by_fma(args->dtype))
    return suits_fma(args) ? NULL : "needs rows or columns of b that begin at multiples of 16 bytes";
  if (args->x.cols > BSRG_NARROW_MAX_N && !bsrg_narrow_x_is_aligned(&args->x))
    return "needs rows or columns of b that begin at multiples of 16 bytes, for more than 64 columns";
  return NULL;
}

/* Runs of so many neighbours in a row can be read or written at once. */
static bool has_runs(const bsrg_dense *dense, int64_t run) {
  return dense->col_stride == 1 && dense->row_stride % run == 0 && aligned(dense->data, 2 * (uintptr_t)run);
}

static int32_t x_layout(const bsrg_dense *x, int64_t run) {
  if (x->row_stride == 1 && (x->cols == 1 || x->col_stride % 4 == 0) && aligned(x->data, 8))
    return BSRG_NARROW_X_COLUMNS;
  return has_runs(x, run) && x->cols % run == 0 ? BSRG_NARROW_X_ROWS : BSRG_NARROW_X_ELEMENTS;
}

/* The kernel's row in the table: tiles in their order, each with all warps, fewer and fewest. Few items keep an SM busy
 * with many warps each, many items side by side. */
static bsrg_kernel_id choose_kernel(bsrg_dtype dtype, bool transposed, int32_t columns,
                                    const bsrg_narrow_list *list, bool by_ring, int sm_count) {
  /* Of float16, bfloat16 and those of a transposed view, of e4m3 and e5m2. */
  static const bsrg_kernel_id plain[] = {BSRG_KERNEL_NARROW_F16_N8_R16,    BSRG_KERNEL_NARROW_BF16_N8_R16,
                                         BSRG_KERNEL_NARROW_TA_F16_N8_R16, BSRG_KERNEL_NARROW_TA_BF16_N8_R16,
                                         BSRG_KERNEL_NARROW_E4M3_N8_R16,   BSRG_KERNEL_NARROW_E5M2_N8_R16};
  static const bsrg_kernel_id ring[] = {
      BSRG_KERNEL_NARROW_SM90_F16_N32_R16,    BSRG_KERNEL_NARROW_SM90_BF16_N32_R16,
      BSRG_KERNEL_NARROW_SM90_TA_F16_N32_R16, BSRG_KERNEL_NARROW_SM90_TA_BF16_N32_R16,
      BSRG_KERNEL_NARROW_E4M3_N32_R16,        BSRG_KERNEL_NARROW_E5M2_N32_R16};
  const int of = bsrg_is_8_bit(dtype) ? 4 + (dtype == BSRG_F8_E5M2) : 2 * transposed + (dtype == BSRG_BF16);
  int first = (int)plain[of];
  int tile = 2 * (columns == 8 ? 0 : columns == 16 ? 1 : columns == 32 ? 2 : 3) + (list->strip == 32);
  int at_once = 2 * sm_count; /* CTAs of all warps */
  if (bsrg_narrow_by_fma(dtype)) {
    static const bsrg_kernel_id fma[2][2] = {
        {BSRG_KERNEL_NARROW_F32_N8_R16, BSRG_KERNEL_NARROW_F64_N8_R16},
        {BSRG_KERNEL_NARROW_TA_F32_N8_R16, BSRG_KERNEL_NARROW_TA_F64_N8_R16}};
    first = (int)fma[transposed][dtype == BSRG_F64];
    at_once = sm_count;
  } else if (by_ring) {
    first = (int)ring[of];
    tile = 2 * (columns == 64) + (list->strip == 32);
    at_once = sm_count;
  }
  const int items = list->item_count;
  return (bsrg_kernel_id)(first + 3 * tile + (items > at_once) + (items > 2 * at_once));
}

/* Eight neighbours can be written at once, of the rows of Y or of its columns. */
static bool writes_runs(const bsrg_matmul_args *args) {
  bsrg_dense y = args->y, c = args->c;
  bsrg_dense_pitch_column(&y);
  bsrg_dense_pitch_column(&c);
  if (y.row_stride == 1) {
    bsrg_dense_turn(&y);
    bsrg_dense_turn(&c);
  } else if (y.cols % 8) {
    return false;
  }
  return has_runs(&y, 8) && (args->beta == 0 || has_runs(&c, 8));
}

/* What is uploaded of a list. */
enum { ITEMS, SPLITS, COLUMNS, UPLOADS_OF_LIST };
static void describe_uploads(const bsrg_narrow_list *list, bsrg_upload_part *parts) {
  const size_t columns = list->columns ? (size_t)list->item_count * (size_t)list->longest_item : 0;
  parts[ITEMS] = (bsrg_upload_part){list->items, sizeof(*list->items) * (size_t)list->item_count};
  parts[SPLITS] = (bsrg_upload_part){list->splits, sizeof(*list->splits) * (size_t)list->split_count};
  parts[COLUMNS] = (bsrg_upload_part){list->columns, sizeof(*list->columns) * columns};
}

static bsrg_kernel_id pieces_kernel(bsrg_dtype out) {
  return out == BSRG_F16    ? BSRG_KERNEL_PIECES_F16
         : out == BSRG_BF16 ? BSRG_KERNEL_PIECES_BF16
         : out == BSRG_F64  ? BSRG_KERNEL_PIECES_F64
                            : BSRG_KERNEL_PIECES_F32;
}

/* What CTAs ask memory for while the grid before them ends. More would be in the way of what they need first, X among it. */
enum { AHEAD_BYTES_OF_SM = 16 << 10, AHEAD_PART = 8, LINE_BYTES = 128 };
static void ask_ahead(const bsrg_structure_view *v, bsrg_dtype dtype, int64_t ctas, int sm_count,
                      bsrg_narrow_params *p) {
  const int64_t bytes = v->nnzb * v->block_height * v->block_width * (int64_t)bsrg_dtype_size(dtype);
  const int64_t ahead = bsrg_min((int64_t)AHEAD_BYTES_OF_SM * sm_count, bytes / AHEAD_PART);
  p->share_bytes = bytes / bsrg_max(1, ctas) / LINE_BYTES * LINE_BYTES;
  p->ahead_bytes = (int32_t)bsrg_min(p->share_bytes, ahead / bsrg_max(1, ctas));
}

static void describe_8_bits(const bsrg_matmul_args *args, bsrg_narrow_params *p) {
  p->out = bsrg_kmajor_out(args);
  p->a_scale = args->values_scale_count > 1 ? NULL : args->values_scale;
  p->x_scale = args->x_scale;
}

/* For kernels that see all blocks as those of 16-bit floats. */
static void describe_as_16_bits(const bsrg_matmul_args *args, bool packed, bsrg_narrow_params *p) {
  const int64_t size = (int64_t)bsrg_dtype_size(args->dtype), width = args->a->view.block_width * size / 2;
  const int64_t chunk = 8, tiles = p->padded_n / 8;
  p->block_width = (int32_t)width;
  p->chunks_reciprocal = (uint32_t)(((uint64_t)1 << 32) / (uint64_t)(2 * width / BSRG_NARROW_CHUNK)) + 1;
  if (size > 1) return;
  /* Packed, the columns that lanes read together are neighbours. */
  p->x_col_stride = packed ? 8 * chunk : p->x_col_stride / 2;
  p->x_group_stride = packed ? chunk : tiles * p->x_col_stride;
  p->x_chunk_stride = packed ? p->padded_n * chunk : chunk;
}

/* args: of 8 bits with X by columns, or packed. */
static bsrg_status multiply(const bsrg_matmul_args *args, const bsrg_narrow_plan *narrow, bool packed,
                            bsrg_gpu gpu, bsrg_error *error) {
  const bsrg_structure_view *v = &args->a->view;
  const bsrg_narrow_kind kind = bsrg_narrow_kind_on(
      bsrg_narrow_kind_of(args, narrow, gpu.device->info.sm_arch), gpu.device->info.sm_count);
  const bsrg_narrow_list *low = &narrow->low, *high = &narrow->high,
                         *list = bsrg_narrow_list_of(narrow, kind);
  const int32_t columns = bsrg_narrow_columns(args->x.cols), run = columns / 8;
  const CUstream stream = (CUstream)args->stream;
  enum {
    LOW,
    HIGH = LOW + UPLOADS_OF_LIST,
    INDICES = HIGH + UPLOADS_OF_LIST,
    FIRST,
    MASKS,
    PLACES,
    SHARES,
    SHARE_COLUMNS,
    PARTS
  };
  _Static_assert((int)PARTS <= (int)BSRG_UPLOAD_PARTS, "room for all");
  const bool indices = !low->columns || (high->strip && !high->columns);
  const bsrg_narrow_cluster *cluster = &narrow->cluster;
  const bsrg_narrow_shares *shares = &narrow->shares;
  const size_t lists = (size_t)v->block_rows * (size_t)cluster->parts;
  const size_t ctas_of_shares = (size_t)shares->clusters * BSRG_NARROW_SHARES_CTAS;
  bsrg_upload_part parts[PARTS] = {
      [INDICES] = {v->indices, indices ? sizeof(*v->indices) * (size_t)v->nnzb : 0},
      [FIRST] = {cluster->first, cluster->parts ? sizeof(*cluster->first) * (lists + 1) : 0},
      [MASKS] = {cluster->masks, sizeof(*cluster->masks) * lists * (size_t)cluster->stages},
      [PLACES] = {narrow->places, narrow->places ? sizeof(*narrow->places) * (size_t)v->nnzb : 0},
      [SHARES] = {shares->shares, sizeof(*shares->shares) * ctas_of_shares * (size_t)shares->most},
      [SHARE_COLUMNS] = {shares->columns,
                         sizeof(*shares->columns) * ctas_of_shares * (size_t)(1 + shares->longest)}};
  describe_uploads(low, parts + LOW);
  describe_uploads(high, parts + HIGH);
  const CUdeviceptr *uploads;
  bsrg_status status = bsrg_uploads_get(args->a, BSRG_NARROW, parts, PARTS, gpu, &uploads, error);
  if (status != BSRG_OK) return status;

  const CUdeviceptr *const of_list = uploads + (list == low ? LOW : HIGH);
  const bool in_pieces =
      list->slot_count > 0 && kind != BSRG_NARROW_BY_CLUSTER && kind != BSRG_NARROW_BY_SHARES;
  CUdeviceptr partial = 0;
  if (in_pieces) {
    const size_t of_sum = args->dtype == BSRG_F64 ? sizeof(double) : sizeof(float);
    const size_t bytes = of_sum * (size_t)list->slot_count * (size_t)(list->strip * columns);
    status = bsrg_scratch_alloc(gpu.api, gpu.device, bytes, stream, &partial, error);
    if (status != BSRG_OK) return status;
  }
  bsrg_narrow_params p = {
      .values = args->values,
      .columns = (const int32_t *)(uintptr_t)(list->columns ? of_list[COLUMNS] : uploads[INDICES]),
      .columns_stride = list->columns ? list->longest_item : 0,
      .places = (const int32_t *)(uintptr_t)uploads[PLACES],
      .items = (const bsrg_narrow_item *)(uintptr_t)of_list[ITEMS],
      .splits = (const bsrg_narrow_split *)(uintptr_t)of_list[SPLITS],
      .x = args->x.data,
      .c = args->c.data,
      .y = args->y.data,
      .partial = (void *)(uintptr_t)partial,
      .x_row_stride = args->x.row_stride,
      .x_col_stride = args->x.col_stride,
      .c_row_stride = args->c.row_stride,
      .c_col_stride = args->c.col_stride,
      .y_row_stride = args->y.row_stride,
      .y_col_stride = args->y.col_stride,
      .x_columns = (int32_t)args->x.cols,
      .n = (int32_t)args->y.cols,
      .padded_n = columns,
      .strip = list->strip,
      .block_height = (int32_t)v->block_height,
      .block_width = (int32_t)v->block_width,
      .x_layout = kind == BSRG_NARROW_PLAIN ? x_layout(&args->x, run)
                  : args->x.row_stride == 1 ? BSRG_NARROW_X_COLUMNS
                                            : BSRG_NARROW_X_ROWS,
      .vector_y = has_runs(&args->y, run) && (args->beta == 0 || has_runs(&args->c, run)),
      .alpha = (float)args->alpha,
      .beta = (float)args->beta,
      .alpha_f64 = args->alpha,
      .beta_f64 = args->beta,
      .output = bsrg_output_of(args),
  };
  if (bsrg_is_8_bit(args->dtype)) describe_8_bits(args, &p);
  if (kind == BSRG_NARROW_PLAIN || kind == BSRG_NARROW_BY_RING) describe_as_16_bits(args, packed, &p);
  const int64_t ctas = kind == BSRG_NARROW_BY_CLUSTER  ? (int64_t)cluster->clusters * cluster->parts
                       : kind == BSRG_NARROW_BY_SHARES ? (int64_t)ctas_of_shares
                                                       : list->item_count;
  ask_ahead(v, args->dtype, ctas, gpu.device->info.sm_count, &p);
  if (kind == BSRG_NARROW_BY_TMA) {
    p.vector_y = writes_runs(args);
    status = bsrg_narrow_launch_tma(args, list, &p, gpu, error);
  } else if (kind == BSRG_NARROW_BY_CLUSTER) {
    p.vector_y = writes_runs(args);
    status = bsrg_narrow_launch_cluster(args, cluster, &p, uploads + FIRST, gpu, error);
  } else if (kind == BSRG_NARROW_BY_SHARES) {
    p.vector_y = writes_runs(args);
    status = bsrg_narrow_launch_shares(args, shares, &p, uploads + SHARES, gpu, error);
  } else {
    const bsrg_kernel_id kernel = choose_kernel(args->dtype, v->order != NULL, columns, list,
                                                kind == BSRG_NARROW_BY_RING, gpu.device->info.sm_count);
    status = bsrg_launch(gpu.api, gpu.device, kernel, list->item_count, 1, stream, &p, error);
  }
  if (status == BSRG_OK && in_pieces) {
    const int64_t across = bsrg_ceil_div((int64_t)list->strip * args->y.cols, BSRG_PIECES_THREADS);
    status = bsrg_launch(gpu.api, gpu.device, pieces_kernel(bsrg_out_dtype(args)), list->split_count, across,
                         stream, &p, error);
  }
  return partial ? bsrg_scratch_free(gpu.api, partial, stream, status, error) : status;
}

/* With X copied first, if need be. */
static bsrg_status launch_8_bits(const bsrg_matmul_args *args, const bsrg_narrow_plan *plan, bsrg_gpu gpu,
                                 bsrg_error *error) {
  const bool by_tma = bsrg_narrow_kind_of(args, plan, gpu.device->info.sm_arch) == BSRG_NARROW_BY_TMA;
  const bool copies = by_tma ? bsrg_kmajor_copies_for(args).x : bsrg_narrow_packs_x(args);
  if (!copies) return multiply(args, plan, false, gpu, error);
  const CUstream stream = (CUstream)args->stream;
  const int32_t columns = bsrg_narrow_columns(args->x.cols);
  const size_t bytes = by_tma ? bsrg_kmajor_x_bytes(args) : (size_t)bsrg_eight_x_bytes(args, columns);
  bsrg_matmul_args copied = *args;
  CUdeviceptr scratch;
  bsrg_status status = bsrg_scratch_alloc(gpu.api, gpu.device, bytes, stream, &scratch, error);
  if (status != BSRG_OK) return status;
  if (by_tma) {
    status = bsrg_kmajor_copy_x(args, scratch, gpu, &copied.x, error);
  } else {
    int32_t tile_bits = 0;
    while (8 << tile_bits < columns) ++tile_bits;
    status = bsrg_eight_copy_x(args, columns, tile_bits, scratch, gpu, error);
    copied.x.data = (void *)(uintptr_t)scratch;
    copied.x.row_stride = 1;
  }
  if (status == BSRG_OK) status = multiply(&copied, plan, !by_tma, gpu, error);
  return bsrg_scratch_free(gpu.api, scratch, stream, status, error);
}

/* The same of 16 bits and more. */
static bsrg_status launch_others(const bsrg_matmul_args *args, const bsrg_narrow_plan *plan, bsrg_gpu gpu,
                                 bsrg_error *error) {
  bsrg_matmul_args padded;
  if (!bsrg_narrow_pads_x(args, plan, gpu.device->info.sm_arch, &padded))
    return multiply(args, plan, false, gpu, error);
  const CUstream stream = (CUstream)args->stream;
  const size_t bytes = 2 * (size_t)padded.x.rows * (size_t)padded.x.row_stride;
  CUdeviceptr scratch;
  bsrg_status status = bsrg_scratch_alloc(gpu.api, gpu.device, bytes, stream, &scratch, error);
  if (status != BSRG_OK) return status;
  padded.x.data = (void *)(uintptr_t)scratch;
  status = bsrg_copy_to_vectors(&args->x, &padded.x, gpu, stream, error);
  if (status == BSRG_OK) status = multiply(&padded, plan, false, gpu, error);
  return bsrg_scratch_free(gpu.api, scratch, stream, status, error);
}

static bsrg_status launch_panel(const bsrg_matmul_args *args, const void *plan, bsrg_gpu gpu,
                                bsrg_error *error) {
  return bsrg_is_8_bit(args->dtype) ? launch_8_bits(args, plan, gpu, error)
                                    : launch_others(args, plan, gpu, error);
}

/* Of copies that are wider than the product they may have none. */
static void take_elements(bsrg_vector *vector, int64_t first, int64_t count) {
  if (!vector->data) return;
  vector->data =
      (const char *)vector->data + first * vector->stride * (int64_t)bsrg_dtype_size(vector->dtype);
  vector->size = bsrg_max(0, bsrg_min(count, vector->size - first));
}

/* Panels of as many columns as a kernel takes, one after the other: all but the first find A in L2. */
static bsrg_status launch(const bsrg_matmul_args *args, const void *plan, bsrg_gpu gpu, bsrg_error *error) {
  bsrg_status status = BSRG_OK;
  int64_t count;
  for (int64_t first = 0; first < args->x.cols && status == BSRG_OK; first += count) {
    bsrg_matmul_args panel = *args;
    panel.x.cols = args->x.cols - first;
    count = bsrg_narrow_panel(&panel, plan, gpu.device->info.sm_arch);
    bsrg_dense_take_columns(&panel.x, args->dtype, first, count);
    bsrg_dense_take_columns(&panel.c, bsrg_out_dtype(args), first, count);
    bsrg_dense_take_columns(&panel.y, bsrg_out_dtype(args), first, count);
    take_elements(&panel.epilogue.col_scale, first, count);
    take_elements(&panel.epilogue.col_bias, first, count);
    status = launch_panel(&panel, plan, gpu, error);
  }
  return status;
}

const bsrg_family_ops bsrg_narrow_family = {.family = BSRG_NARROW,
                                            .obstacle = obstacle,
                                            .columns_obstacle = columns_obstacle,
                                            .layout_obstacle = layout_obstacle,
                                            .make_plan = bsrg_narrow_make_plan,
                                            .free_plan = bsrg_narrow_free_plan,
                                            .predict = bsrg_narrow_predict,
                                            .clips_y = true,
                                            .launch = launch};
