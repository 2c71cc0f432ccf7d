/* Softmax over the stored elements of each row: checks, and the launch on a GPU. */
#include "portable.h"
#include "views.h"

static bsrg_status check_memory(const bsrg_softmax_args *args, const bsrg_structure_view *a,
                                bsrg_error *error) {
  /* The product fits: bsrg_structure_create has made sure. */
  bsrg_view values = {.name = "a.data",
                      .data = args->values,
                      .ndim = 2,
                      .item = (int64_t)bsrg_dtype_size(args->dtype),
                      .shape = {bsrg_max(args->count, 1), a->nnzb * a->block_height * a->block_width},
                      .strides = {a->nnzb * a->block_height * a->block_width, 1}};
  bsrg_view out = values;
  out.name = "out";
  out.data = args->out;
  bsrg_status status = bsrg_view_check(&values, error);
  if (status == BSRG_OK) status = bsrg_view_check(&out, error);
  if (status == BSRG_OK && args->out != args->values && bsrg_views_overlap(&out, &values))
    return bsrg_fail(error, BSRG_ERR_VALUE,
                     "out overlaps a.data in memory without being the same array: out must be exactly a.data "
                     "or share no memory with it");
  return status;
}

static bsrg_status answer(bsrg_question *question, bsrg_error *error) {
  const bsrg_gpu_info info = bsrg_question_gpu(question);
  question->family = BSRG_PORTABLE;
  return bsrg_check_arch(&info, error);
}

/* How the work is shared. */
typedef struct softmax_launch {
  bsrg_portable_uploads uploads;
  int32_t vector, lanes;
  int64_t tiles, warps_per_row, rows_at_once, ctas;
  bool skewed;
} softmax_launch;

/* Elements of rows that go one by one; longer ones are shared by all warps of a CTA. */
enum { ELEMENTS_OF_A_WARP = 4096 };
/* CTAs that an SM holds about. */
enum { CTAS_OF_AN_SM = 4 };

/* How many warps have a row, and how many rows a warp. Several of those that are mostly short: what a warp waits for is then
 * waited for once. Two and four warps have rows that fit into what they keep alone. */
static void share_rows(const bsrg_structure_view *v, int64_t size, int sm_count, softmax_launch *l) {
  const int64_t length = v->longest_row * v->block_width, of_warp = 32 * 16 / size * BSRG_SOFTMAX_KEPT;
  l->warps_per_row = 1;
  l->rows_at_once = 1;
  if (!l->vector) {
    if (length > ELEMENTS_OF_A_WARP) l->warps_per_row = BSRG_SOFTMAX_WARPS;
    return;
  }
  while (l->warps_per_row < BSRG_SOFTMAX_WARPS && length > l->warps_per_row * of_warp) l->warps_per_row *= 2;
  if (l->warps_per_row > 1) return;
  const double mean = (double)v->nnzb * (double)v->block_width / (double)v->block_rows;
  const int64_t rows = bsrg_whole_rows(v), least = (int64_t)sm_count * CTAS_OF_AN_SM * BSRG_SOFTMAX_WARPS;
  for (int64_t n = 2; n <= 4; n *= 2)
    if ((double)n * mean <= (double)of_warp && v->block_height % n == 0 && rows >= n * least)
      l->rows_at_once = n;
}

static bsrg_status prepare(const bsrg_softmax_args *args, bsrg_gpu gpu, softmax_launch *l,
                           bsrg_error *error) {
  const bsrg_structure_view *v = &args->a->view;
  const int64_t size = (int64_t)bsrg_dtype_size(args->dtype);
  const int64_t line = v->order ? v->block_height : v->block_width;
  /* Vectors of rows lie in shared memory, where elements beyond the matrix hide as infinities, of which 0 times is NaN. */
  const bool is_cut = !v->order && v->cols != bsrg_whole_cols(v);
  const bool hides = !is_cut || (args->dtype == BSRG_F64 ? args->scale : (float)args->scale) != 0;
  l->vector = hides && line * size % 16 == 0 && ((uintptr_t)args->values | (uintptr_t)args->out) % 16 == 0;
  const int64_t rows_of_lane = l->vector ? 16 / size : 1;
  l->lanes = 1;
  while (l->lanes * rows_of_lane < BSRG_SOFTMAX_TILE && l->lanes * rows_of_lane < v->block_height)
    l->lanes *= 2;
  l->tiles = bsrg_ceil_div(v->block_height, l->lanes * rows_of_lane);
  l->skewed = (double)v->longest_row * (double)v->block_rows > 2 * (double)v->nnzb;
  share_rows(v, size, gpu.device->info.sm_count, l);
  l->ctas = v->order
                ? v->block_rows * l->tiles
                : bsrg_ceil_div(bsrg_whole_rows(v) * l->warps_per_row, BSRG_SOFTMAX_WARPS * l->rows_at_once);
  /* The margin keeps a step behind a block's last unit in 32 bits. */
  if (l->ctas > INT32_MAX || v->block_height > INT32_MAX - 256 || v->block_width > INT32_MAX - 256)
    return bsrg_fail(
        error, BSRG_ERR_VALUE,
        "a has %lld rows in blocks of (%lld, %lld): softmax on a GPU takes fewer than 2^31 rows and "
        "block sides below 2^31 - 256",
        (long long)v->rows, (long long)v->block_height, (long long)v->block_width);
  return bsrg_portable_upload(args->a, gpu, &l->uploads, error);
}

static bsrg_status launch(const bsrg_softmax_args *args, bsrg_gpu gpu, bsrg_error *error) {
  const bsrg_structure_view *v = &args->a->view;
  softmax_launch l;
  const bsrg_status status = prepare(args, gpu, &l, error);
  if (status != BSRG_OK) return status;
  const bool columns = v->order != NULL, is_cut = v->cols != bsrg_whole_cols(v);
  const int64_t last_row = v->block_rows - 1, last_column = v->block_cols - 1;
  bsrg_softmax_params p = {.values = args->values,
                           .out = args->out,
                           .indptr = l.uploads.indptr,
                           .row_order = l.skewed ? l.uploads.row_order : NULL,
                           .indices = l.uploads.indices,
                           .order = l.uploads.order,
                           .rows = bsrg_whole_rows(v),
                           .block_area = v->block_height * v->block_width,
                           .block_height = (int32_t)v->block_height,
                           .block_width = (int32_t)v->block_width,
                           .last_column = is_cut ? (int32_t)last_column : -1,
                           .last_cols = (int32_t)bsrg_cols_of(v, last_column),
                           .last_row = (int32_t)last_row,
                           .last_rows = (int32_t)bsrg_rows_of(v, last_row),
                           .warps_per_row = (int32_t)l.warps_per_row,
                           .rows_at_once = (int32_t)l.rows_at_once,
                           .vector = l.vector,
                           .lanes = l.lanes,
                           .tiles = (int32_t)l.tiles,
                           .scale = args->scale};
  const int first = columns ? BSRG_KERNEL_SOFTMAX_COLUMNS_F16 : BSRG_KERNEL_SOFTMAX_ROWS_F16;
  return bsrg_launch(gpu.api, gpu.device, (bsrg_kernel_id)(first + (int)args->dtype), l.ctas, 1,
                     (CUstream)args->stream, &p, error);
}

/* Matrices from `first` on, which are one of pattern a. */
static bsrg_softmax_args part_of(const bsrg_softmax_args *args, bsrg_structure *a, int64_t first) {
  const bsrg_structure_view v = bsrg_structure_get(args->a);
  const int64_t bytes =
      first * v.nnzb * v.block_height * v.block_width * (int64_t)bsrg_dtype_size(args->dtype);
  bsrg_softmax_args part = *args;
  part.a = a;
  part.values = (const char *)args->values + bytes;
  part.out = (char *)args->out + bytes;
  part.count = 1;
  return part;
}

/* Several matrices as one that has the rows of all. */
static bsrg_status launch_all(const bsrg_softmax_args *args, bsrg_gpu gpu, bsrg_error *error) {
  const bsrg_structure_view v = bsrg_structure_get(args->a);
  const bool whole = v.rows == bsrg_whole_rows(&v) && v.cols == bsrg_whole_cols(&v);
  const int64_t all = bsrg_max(args->count, 1);
  bsrg_status status = BSRG_OK;
  for (int64_t first = 0, count; status == BSRG_OK && first < all; first += count) {
    bsrg_structure *a = bsrg_structure_stack(args->a, whole ? all - first : 1, v.order != NULL, &count);
    const bsrg_softmax_args part = part_of(args, a, first);
    status = launch(&part, gpu, error);
  }
  return status;
}

static bsrg_status on_cpu(const bsrg_softmax_args *args, bsrg_error *error) {
  bsrg_status status = BSRG_OK;
  for (int64_t i = 0; status == BSRG_OK && i < bsrg_max(args->count, 1); ++i) {
    const bsrg_softmax_args part = part_of(args, args->a, i);
    status = bsrg_cpu_softmax(&part, error);
  }
  return status;
}

static bsrg_status on_gpu(const bsrg_softmax_args *args, bsrg_error *error) {
  const bsrg_cuda_api *api;
  bsrg_device_state *device;
  bool pushed;
  bsrg_status status = bsrg_open_device(args->device.index, &api, &device, error);
  if (status == BSRG_OK) status = bsrg_enter(api, device, &pushed, error);
  if (status != BSRG_OK) return status;
  status = bsrg_check_arch(&device->info, error);
  if (status == BSRG_OK) status = launch_all(args, (bsrg_gpu){api, device}, error);
  bsrg_leave(api, pushed);
  return status;
}

bsrg_status bsrg_softmax(const bsrg_softmax_args *args, bsrg_error *error) {
  if (args->question) args->question->family = BSRG_AUTO;
  if (args->a == NULL) return bsrg_fail(error, BSRG_ERR_VALUE, "a is NULL, but must be a structure");
  if (args->count < 0)
    return bsrg_fail(error, BSRG_ERR_VALUE, "count is %lld, but must be 0 or more", (long long)args->count);
  const bsrg_structure_view a = bsrg_structure_get(args->a);
  bsrg_status status = bsrg_check_fixed(args->a, "a", error);
  if (status == BSRG_OK) status = bsrg_check_place(args->dtype, BSRG_TAKES_NONE, args->device, error);
  if (status == BSRG_OK) status = bsrg_check_factor(args->scale, "scale", args->dtype, error);
  /* A partial block column is looked for at the ends of rows. */
  if (status == BSRG_OK && a.column_order == BSRG_UNSORTED && a.cols != bsrg_whole_cols(&a))
    status = bsrg_check_ascending(args->a, "a", error);
  if (status == BSRG_OK) status = check_memory(args, &a, error);
  if (status != BSRG_OK || a.nnzb == 0) return status;
  if (args->question) return answer(args->question, error);
  return args->device.kind == BSRG_CPU ? on_cpu(args, error) : on_gpu(args, error);
}
