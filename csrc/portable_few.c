/* The portable family's kernels for few columns: who has what of the blocks, what that costs, and the launch. Kernels in
 * kernels/sm80/few.cuh. */
#include "kmajor.h"
#include "portable.h"

#include <math.h>

enum { WARP = 32, LINE_BYTES = 128 };

/* How the lanes of a team share the blocks of a strip, and what a lane loads. */
typedef struct layout {
  int32_t team, lanes_k, lanes_rows, lanes_blocks;
  int32_t rows;    /* of a strip */
  int32_t columns; /* of X at a time */
  bool vector;
} layout;

static bool aligned(const void *pointer, int64_t bytes) {
  return (int64_t)((uintptr_t)pointer % 16) % bytes == 0;
}

/* Lanes along what is contiguous in a block come first, up to a line of memory where a lane has rows: strips are lower then,
 * and there are more of them. */
static void place(layout *l, int64_t units_k, int64_t units_rows, bool transposed, int64_t line) {
  if (transposed) {
    l->lanes_rows = (int32_t)bsrg_min(bsrg_min(units_rows, line), l->team);
    l->lanes_k = (int32_t)bsrg_min(units_k, l->team / l->lanes_rows);
  } else {
    l->lanes_k = (int32_t)bsrg_min(units_k, l->team);
    l->lanes_rows = (int32_t)bsrg_min(units_rows, l->team / l->lanes_k);
  }
  l->lanes_blocks = l->team / (l->lanes_k * l->lanes_rows);
}

static layout layout_for(const bsrg_matmul_args *args) {
  const bsrg_structure_view *v = &args->a->view;
  const int64_t size = (int64_t)bsrg_dtype_size(args->dtype), n = args->x.cols;
  const bool transposed = v->order != NULL;
  const int64_t bytes = BSRG_FEW_VECTOR_BYTES(size);
  const int64_t along = transposed ? v->block_height : v->block_width;
  layout l = {.columns = n == 1 ? 1 : n <= 4 ? 4 : BSRG_FEW_COLUMNS};
  /* Lanes with several k each read rows of X that lie apart: of many columns and k that takes longer than more loads of A. */
  const bool apart = !transposed && l.columns == BSRG_FEW_COLUMNS && args->x.row_stride != 1 &&
                     v->block_width * size >= LINE_BYTES;
  l.vector = !apart && bytes > size && along * size % bytes == 0 && aligned(args->values, bytes);
  const int64_t elements = l.vector ? bytes / size : 1;
  const int64_t units_k = transposed ? v->block_width : v->block_width / elements;
  const int64_t units_rows = transposed ? v->block_height / elements : v->block_height;
  /* A warp suffices where its lanes would have no more than a few loads of a strip of the mean block row. */
  const double units = (double)v->nnzb / (double)bsrg_max(1, v->block_rows) * (double)units_k;
  const int64_t line = bsrg_max(1, LINE_BYTES / (size * elements));
  const double strip = (double)bsrg_min(units_rows, transposed ? line : WARP);
  l.team = units * strip <= 16 * WARP ? WARP : BSRG_FEW_THREADS;
  place(&l, units_k, units_rows, transposed, line);
  l.rows = l.lanes_rows * (int32_t)(transposed ? elements : 1);
  return l;
}

static int32_t x_layout(const bsrg_matmul_args *args, const layout *l) {
  const bsrg_dense *x = &args->x;
  const int64_t size = (int64_t)bsrg_dtype_size(args->dtype);
  const int64_t run = bsrg_min(16, l->columns * size);
  if (l->columns > 1 && x->col_stride == 1 && x->cols % l->columns == 0 && x->row_stride * size % run == 0 &&
      aligned(x->data, run))
    return BSRG_FEW_X_ROWS;
  const int64_t bytes = l->vector && !args->a->view.order ? BSRG_FEW_VECTOR_BYTES(size) : size;
  if (x->row_stride == 1 && (x->cols == 1 || x->col_stride * size % bytes == 0) && aligned(x->data, bytes))
    return BSRG_FEW_X_COLUMNS;
  return BSRG_FEW_X_ELEMENTS;
}

/* ---- cost ------------------------------------------------------------------------------------- */

/* Fitted on an H100: loads of A a second and SM, with what they need of X, by columns at a time; less where these are parts of
 * rows of X. */
static double loads_per_s(const layout *l, const bsrg_matmul_args *args) {
  const bool by_rows = !args->a->view.order && args->x.row_stride != 1;
  const double parts = by_rows && args->x.cols > l->columns ? 0.6 : 1;
  if (!l->vector || l->columns == 1) return 1.1e9 * parts;
  if (l->columns == BSRG_FEW_COLUMNS) return (by_rows ? 0.36e9 : 0.5e9) * parts;
  return by_rows ? 0.65e9 : 0.85e9;
}
/* Likewise: the share of the memory's rate, and what a lane waits for a load of A where it has few under way. */
static const double memory_share = 0.8, load_seconds = 0.3e-6;

void bsrg_few_predict(const bsrg_matmul_args *args, const bsrg_chip *chip, bsrg_candidate *c) {
  const bsrg_structure_view *v = &args->a->view;
  const layout l = layout_for(args);
  const double size = (double)bsrg_dtype_size(args->dtype);
  const double groups = (double)bsrg_ceil_div(args->x.cols, l.columns);
  const double elements = (double)v->nnzb * (double)(v->block_height * v->block_width);
  const double in_load = l.vector ? BSRG_FEW_VECTOR_BYTES((int)size) / size : 1;
  c->mma_flops = 2 * elements * groups * l.columns;
  c->l2_bytes = size * elements * groups * (1 + (double)l.columns / (double)bsrg_max(1, v->block_height));
  c->hbm_bytes = bsrg_compulsory_bytes(v, args->dtype, args->x.cols);
  const double memory = c->hbm_bytes / (memory_share * chip->hbm_bytes_per_s);
  const double loads = groups * elements / (in_load * loads_per_s(&l, args) * chip->sm_count);
  /* Of a lane in the longest block row. */
  const double along_k = v->order ? 1 : in_load;
  const double longest = load_seconds * ceil((double)v->longest_row / l.lanes_blocks) *
                         ceil((double)v->block_width / (along_k * l.lanes_k));
  c->seconds = BSRG_LAUNCH_SECONDS + fmax(fmax(memory, loads), longest);
  bsrg_set_reason(c, "%s, a few columns at a time",
                  memory > loads ? "limited by memory" : "limited by loads");
}

/* ---- launch ----------------------------------------------------------------------------------- */

static bsrg_kernel_id kernel_for(bsrg_dtype dtype, const layout *l, bool transposed) {
  const bsrg_kernel_id first = dtype == BSRG_F16       ? BSRG_KERNEL_FEW_F16_N1
                               : dtype == BSRG_BF16    ? BSRG_KERNEL_FEW_BF16_N1
                               : dtype == BSRG_F32     ? BSRG_KERNEL_FEW_F32_N1
                               : dtype == BSRG_F64     ? BSRG_KERNEL_FEW_F64_N1
                               : dtype == BSRG_F8_E4M3 ? BSRG_KERNEL_FEW_E4M3_N1
                                                       : BSRG_KERNEL_FEW_E5M2_N1;
  const int columns = l->columns == 1 ? 0 : l->columns == 4 ? 1 : 2;
  if (bsrg_is_8_bit(dtype)) return (bsrg_kernel_id)((int)first + 2 * columns + transposed);
  return (bsrg_kernel_id)((int)first + 4 * columns + 2 * transposed + l->vector);
}

bsrg_status bsrg_few_launch(const bsrg_matmul_args *args, const bsrg_portable_params *portable, bsrg_gpu gpu,
                            bsrg_error *error) {
  const bsrg_structure_view *v = &args->a->view;
  const layout l = layout_for(args);
  bsrg_few_params p = {.portable = *portable,
                       .team = l.team,
                       .lanes_k = l.lanes_k,
                       .lanes_rows = l.lanes_rows,
                       .lanes_blocks = l.lanes_blocks,
                       .x_layout = x_layout(args, &l)};
  if (bsrg_is_8_bit(args->dtype)) p.scaling = bsrg_scaling_of(args);
  const int64_t tiles = bsrg_ceil_div(v->block_height, l.rows);
  p.portable.tiles_per_block_row = (int32_t)tiles;
  p.portable.row_tiles = v->block_rows * tiles;
  const int64_t ctas = bsrg_ceil_div(p.portable.row_tiles, BSRG_FEW_THREADS / l.team);
  return bsrg_launch(gpu.api, gpu.device, kernel_for(args->dtype, &l, v->order != NULL), ctas,
                     bsrg_min(bsrg_ceil_div(args->x.cols, l.columns), 65535), (CUstream)args->stream, &p,
                     error);
}
