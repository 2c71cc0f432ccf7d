/* Few columns by TMA: what the kernels of sm90/narrow_tma.cuh and narrow_shares.cuh are told of a product. */
#include "kmajor.h"
#include "narrow.h"
#include "tensor_map.h"

/* As the blocks lie: in rows of so many elements, of k or, in a transposed view, of a strip's rows. */
static bsrg_status encode_blocks(const bsrg_matmul_args *args, int32_t elements, int32_t rows, bsrg_gpu gpu,
                                 bsrg_tensor_map *map, bsrg_error *error) {
  const bsrg_structure_view *v = &args->a->view;
  const uint64_t width = (uint64_t)(v->order ? v->block_height : v->block_width);
  const uint64_t height = (uint64_t)(v->order ? v->block_width : v->block_height);
  const bsrg_map_shape shape = {2,
                                {width, (uint64_t)v->nnzb * height, 0},
                                {width, 0},
                                {(uint32_t)elements, (uint32_t)rows, 0},
                                bsrg_map_swizzle(elements * (int64_t)bsrg_dtype_size(args->dtype))};
  return bsrg_encode_map(gpu.api, args->dtype, args->values, &shape, map, error);
}

enum { PANEL = 64 };

/* How a launch divides its work. */
typedef struct division {
  int32_t tiles; /* of columns */
  int32_t panels, strip, step_k, steps, tail_k;
  int32_t crowd;         /* 0, 1 or 2 for one, two or four CTAs that share an SM */
  int32_t boxes, of_box; /* of X, and the columns of each */
  bool gapless, by_columns, in_pairs;
} division;

/* items: of a column tile; 0 where CTAs do not share an SM. gapless: X is, and made columns of. */
static division divide(const bsrg_matmul_args *args, int32_t strip, int32_t items, int32_t sms,
                       bool gapless) {
  const bool eight = bsrg_is_8_bit(args->dtype);
  const int32_t width = (int32_t)args->a->view.block_width, n = (int32_t)args->x.cols;
  const int32_t in_line = eight ? 128 : 64;
  division d = {
      .tiles = (n + BSRG_NARROW_TMA_MAX_N - 1) / BSRG_NARROW_TMA_MAX_N, .strip = strip, .gapless = gapless};
  d.panels = (bsrg_narrow_columns(bsrg_min(n, BSRG_NARROW_TMA_MAX_N)) + PANEL - 1) / PANEL;
  const int64_t ctas = (int64_t)items * d.tiles;
  const int32_t most = BSRG_NARROW_TMA_MOST_CTAS(d.panels, bsrg_dtype_size(args->dtype));
  d.crowd = (ctas > sms && most > 1) + (ctas > 2 * sms && most > 2);
  d.step_k = 4 * width >= 3 * in_line ? in_line : width; /* the narrowest that a block fills */
  /* Else two CTAs would have two stages each, and wait for one of them all the time. */
  if (d.panels == 4 && d.crowd) d.step_k = (int32_t)bsrg_min(d.step_k, 32);
  d.steps = (width + d.step_k - 1) / d.step_k;
  d.tail_k = width - (d.steps - 1) * d.step_k;
  d.by_columns = eight || gapless || !bsrg_map_can_describe(&args->x);
  /* Where columns fill no whole panels, TMA would take its time for what lies beyond the last one. */
  const bool is_one_box = d.by_columns && n % PANEL != 0;
  d.boxes = is_one_box ? 1 : (n + PANEL - 1) / PANEL;
  d.of_box = is_one_box ? n : PANEL;
  return d;
}

static bsrg_status encode_x(const bsrg_matmul_args *args, const division *d, int32_t k, bsrg_gpu gpu,
                            bsrg_tensor_map *map, bsrg_error *error) {
  const bsrg_dense *x = &args->x;
  const uint64_t rows = (uint64_t)x->rows, n = (uint64_t)x->cols;
  const uint64_t pitch = (uint64_t)bsrg_kmajor_pitch(args);
  const bsrg_map_shape by_rows_shape = {2,
                                        {n, rows, 0},
                                        {(uint64_t)x->row_stride, 0},
                                        {(uint32_t)d->of_box, (uint32_t)k, 0},
                                        CU_TENSOR_MAP_SWIZZLE_128B};
  const bsrg_map_shape by_columns_shape = {2,
                                           {rows, n, 0},
                                           {pitch, 0},
                                           {(uint32_t)k, (uint32_t)d->of_box, 0},
                                           bsrg_map_swizzle(k * (int64_t)bsrg_dtype_size(args->dtype))};
  const bsrg_map_shape gapless_shape = {2,
                                        {PANEL, rows * n / PANEL, 0},
                                        {PANEL, 0},
                                        {PANEL, (uint32_t)(k * d->of_box / PANEL), 0},
                                        CU_TENSOR_MAP_SWIZZLE_128B};
  const bsrg_map_shape *shape = d->gapless      ? &gapless_shape
                                : d->by_columns ? &by_columns_shape
                                                : &by_rows_shape;
  return bsrg_encode_map(gpu.api, args->dtype, x->data, shape, map, error);
}

static bsrg_kernel_id kernel_for(const bsrg_matmul_args *args, const division *d) {
  /* The first of each number of panels, float16 and bfloat16; of blocks as they are stored from strips of 32 rows on. */
  static const bsrg_kernel_id stored[3][2] = {
      {BSRG_KERNEL_NARROW_TMA_F16_R32_K64, BSRG_KERNEL_NARROW_TMA_BF16_R32_K64},
      {BSRG_KERNEL_NARROW_TMA_P2_F16_R32_K64, BSRG_KERNEL_NARROW_TMA_P2_BF16_R32_K64},
      {BSRG_KERNEL_NARROW_TMA_P4_F16_R32_K64, BSRG_KERNEL_NARROW_TMA_P4_BF16_R32_K64}};
  static const bsrg_kernel_id turned[3][2] = {
      {BSRG_KERNEL_NARROW_TMA_TA_F16_R64_K64, BSRG_KERNEL_NARROW_TMA_TA_BF16_R64_K64},
      {BSRG_KERNEL_NARROW_TMA_TA_P2_F16_R64_K64, BSRG_KERNEL_NARROW_TMA_TA_P2_BF16_R64_K64},
      {BSRG_KERNEL_NARROW_TMA_TA_P4_F16_R64_K64, BSRG_KERNEL_NARROW_TMA_TA_P4_BF16_R64_K64}};
  static const bsrg_kernel_id paired[2][2][2] = {
      {{BSRG_KERNEL_NARROW_TMA_P2_F16_R64_K64_PAIR, BSRG_KERNEL_NARROW_TMA_P2_BF16_R64_K64_PAIR},
       {BSRG_KERNEL_NARROW_TMA_P4_F16_R64_K64_PAIR, BSRG_KERNEL_NARROW_TMA_P4_BF16_R64_K64_PAIR}},
      {{BSRG_KERNEL_NARROW_TMA_TA_P2_F16_R64_K64_PAIR, BSRG_KERNEL_NARROW_TMA_TA_P2_BF16_R64_K64_PAIR},
       {BSRG_KERNEL_NARROW_TMA_TA_P4_F16_R64_K64_PAIR, BSRG_KERNEL_NARROW_TMA_TA_P4_BF16_R64_K64_PAIR}}};
  static const bsrg_kernel_id eight[3][2] = {
      {BSRG_KERNEL_NARROW_TMA_E4M3_R32_K128, BSRG_KERNEL_NARROW_TMA_E5M2_R32_K128},
      {BSRG_KERNEL_NARROW_TMA_E4M3_P2_R32_K128, BSRG_KERNEL_NARROW_TMA_E5M2_P2_R32_K128},
      {BSRG_KERNEL_NARROW_TMA_E4M3_P4_R32_K128, BSRG_KERNEL_NARROW_TMA_E5M2_P4_R32_K128}};
  const bool of_view = args->a->view.order != NULL, bfloat = args->dtype == BSRG_BF16;
  const int step_bytes = d->step_k * (int)bsrg_dtype_size(args->dtype);
  const int step = step_bytes == 128 ? 0 : step_bytes == 64 ? 1 : 2;
  const int tile = 3 * (d->strip == BSRG_NARROW_TMA_STRIP && !of_view) + step;
  /* Forms of each, for one, two and four CTAs that share an SM. */
  const int most = BSRG_NARROW_TMA_MOST_CTAS(d->panels, bsrg_dtype_size(args->dtype));
  const int forms = most == 4 ? 3 : most;
  if (bsrg_is_8_bit(args->dtype))
    return (bsrg_kernel_id)((int)eight[d->panels / 2][args->dtype == BSRG_F8_E5M2] + forms * tile + d->crowd);

  static const bsrg_kernel_id gapless[2][2] = {
      {BSRG_KERNEL_NARROW_TMA_GAPLESS_F16_R32_K64, BSRG_KERNEL_NARROW_TMA_GAPLESS_BF16_R32_K64},
      {BSRG_KERNEL_NARROW_TMA_TA_GAPLESS_F16_R64_K64, BSRG_KERNEL_NARROW_TMA_TA_GAPLESS_BF16_R64_K64}};
  if (d->gapless) return (bsrg_kernel_id)((int)gapless[of_view][bfloat] + forms * tile + d->crowd);
  if (d->in_pairs)
    return (bsrg_kernel_id)((int)paired[of_view][d->panels == 4][bfloat] +
                            forms * (2 * step + d->by_columns) + d->crowd);
  const int first = (int)(of_view ? turned : stored)[d->panels / 2][bfloat];
  return (bsrg_kernel_id)(first + forms * (2 * tile + d->by_columns) + d->crowd);
}

/* room: stages that shared memory has. at_once: that a producer asks for together. */
static bsrg_status describe(const bsrg_matmul_args *args, const division *d, int32_t room, int32_t at_once,
                            const bsrg_narrow_params *narrow, bsrg_gpu gpu, bsrg_narrow_tma_params *p,
                            bsrg_error *error) {
  const int32_t item = (int32_t)bsrg_dtype_size(args->dtype), strip = d->strip;
  const int32_t most = BSRG_NARROW_TMA_MOST_STAGES / (d->gapless ? 2 : 1);
  *p = (bsrg_narrow_tma_params){.narrow = *narrow,
                                .stages = (int32_t)bsrg_min(room, most),
                                .steps = d->steps,
                                .tail_steps = d->tail_k * item / 32,
                                .blocks_at_once = (int32_t)bsrg_max(1, at_once / d->steps),
                                .steps_at_once = at_once < d->steps ? 1 : d->steps,
                                .tail_rows = narrow->block_height % strip,
                                .x_columns = d->boxes * d->of_box,
                                .x_boxes = d->boxes,
                                .cluster = d->in_pairs ? 2 : 1};
  if (args->values_scale_count > 1) p->block_scales = args->values_scale;
  const bool turned = args->a->view.order != NULL;
  bsrg_status status = turned ? encode_blocks(args, strip, d->step_k, gpu, &p->a, error)
                              : encode_blocks(args, d->step_k, strip, gpu, &p->a, error);
  if (status == BSRG_OK && turned)
    status = encode_blocks(args, strip, d->tail_k, gpu, &p->a_tail, error);
  else if (status == BSRG_OK && p->tail_rows)
    status = encode_blocks(args, d->step_k, p->tail_rows, gpu, &p->a_tail, error);
  if (status == BSRG_OK) status = encode_x(args, d, d->step_k, gpu, &p->x, error);
  p->x_tail = p->x;
  if (status == BSRG_OK && !d->by_columns && d->tail_k != d->step_k)
    status = encode_x(args, d, d->tail_k, gpu, &p->x_tail, error);
  return status;
}

bsrg_status bsrg_narrow_launch_tma(const bsrg_matmul_args *args, const bsrg_narrow_list *list,
                                   const bsrg_narrow_params *narrow, bsrg_gpu gpu, bsrg_error *error) {
  division d =
      divide(args, list->strip, list->item_count, gpu.device->info.sm_count, bsrg_narrow_turns_x(args, list));
  d.in_pairs = bsrg_narrow_in_pairs(list, args->dtype, args->x.cols, d.by_columns);
  const int32_t row_bytes = d.step_k * (int32_t)bsrg_dtype_size(args->dtype);
  const int32_t room = BSRG_NARROW_TMA_RING_BYTES(d.panels, 1 << d.crowd) /
                       BSRG_NARROW_TMA_STAGE_BYTES(d.panels, d.strip, row_bytes);
  /* No more than a quarter of the ring, as it waits for their slots together. */
  const int32_t at_once = room >= 32 ? 8 : room >= 16 ? 4 : room >= 8 ? 2 : 1;
  bsrg_narrow_tma_params p;
  const bsrg_status status = describe(args, &d, room, at_once, narrow, gpu, &p, error);
  if (status != BSRG_OK) return status;
  return bsrg_launch(gpu.api, gpu.device, kernel_for(args, &d), list->item_count, d.tiles,
                     (CUstream)args->stream, &p, error);
}

bsrg_status bsrg_narrow_launch_shares(const bsrg_matmul_args *args, const bsrg_narrow_shares *shares,
                                      const bsrg_narrow_params *narrow, const CUdeviceptr *uploads,
                                      bsrg_gpu gpu, bsrg_error *error) {
  enum { AT_ONCE = 2 };
  const division d = divide(args, BSRG_NARROW_TMA_STRIP, 0, gpu.device->info.sm_count, false);
  bsrg_narrow_shares_params p = {.shares = (const bsrg_narrow_share *)(uintptr_t)uploads[0],
                                 .most_shares = shares->most};
  const bsrg_status status =
      describe(args, &d, BSRG_NARROW_SHARES_STAGES(d.panels), AT_ONCE, narrow, gpu, &p.tma, error);
  if (status != BSRG_OK) return status;
  p.tma.narrow.columns = (const int32_t *)(uintptr_t)uploads[1];
  p.tma.narrow.columns_stride = 1 + shares->longest;
  const int first = args->dtype == BSRG_F16 ? BSRG_KERNEL_NARROW_SHARES_F16 : BSRG_KERNEL_NARROW_SHARES_BF16;
  return bsrg_launch(gpu.api, gpu.device, (bsrg_kernel_id)(first + 2 * (d.panels - 1) + d.by_columns),
                     (int64_t)shares->clusters * BSRG_NARROW_SHARES_CTAS, 1, (CUstream)args->stream, &p,
                     error);
}
