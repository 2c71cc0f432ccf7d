#include "attention_hopper.h"
#include "attention_topk.h"
#include "tensor_map.h"

#include <float.h>
#include <math.h>

/* ---- which kernel ---------------------------------------------------------------------------- */

/* The rows of the kernel table, for both 16-bit dtypes and for 8-bit elements. Any call that has no obstacle finds one
 * that fits. */
typedef struct variant {
  int32_t size, rows, keys;
  bsrg_attention_listing listing;
  bool capped;
} variant;
#define VARIANT(size, kind, rows, keys, listing, capped) {size, rows, keys, listing, capped},
static const variant variants[] = {BSRG_ATTENTION_TILES(VARIANT)};
static const variant variants_8[] = {BSRG_ATTENTION_TILES_8(VARIANT)};
#undef VARIANT

/* All masks of a call have blocks of one shape. */
static bsrg_attention_listing choose_listing(const bsrg_attention_args *args, int64_t size) {
  if (args->sequences) return BSRG_ATTENTION_BY_SEQUENCE;
  if (!bsrg_attention_is_masked(args)) return BSRG_ATTENTION_BY_BOUNDS;
  return size <= BSRG_ATTENTION_PAIR_SIZE && bsrg_attention_suits_pairs(bsrg_attention_block_shape(args))
             ? BSRG_ATTENTION_BY_PAIRS
             : BSRG_ATTENTION_BY_LIST;
}

/* The first one that fits: larger heads come later. */
static const variant *choose_variant(const bsrg_attention_args *args) {
  const int64_t size = bsrg_max(args->q.size, args->v.size);
  const bsrg_attention_listing listing = choose_listing(args, size);
  const variant *v = args->dtype == BSRG_F8_E4M3 ? variants_8 : variants;
  while (v->size < size || v->listing != listing || v->capped != (args->softcap > 0)) ++v;
  return v;
}

static bsrg_kernel_id kernel_of(bsrg_dtype dtype, const variant *v) {
  if (dtype == BSRG_F8_E4M3) return (bsrg_kernel_id)(BSRG_KERNEL_ATTENTION_E4M3_H64_plain + (v - variants_8));
  return (bsrg_kernel_id)((dtype == BSRG_F16 ? BSRG_KERNEL_ATTENTION_F16_H64_plain
                                             : BSRG_KERNEL_ATTENTION_BF16_H64_plain) +
                          (v - variants));
}

/* ---- obstacles ------------------------------------------------------------------------------- */

/* The plan counts the query tiles of all heads, and the entries of all lists, in 32 bits. */
static bool too_many_tiles(const bsrg_attention_args *args) {
  const variant *v = choose_variant(args);
  /* Pairs: the last of either warpgroup's own may have one half only. */
  const int64_t half_pairs = v->listing == BSRG_ATTENTION_BY_PAIRS ? 2 : 0;
  const int64_t query_tiles =
      args->sequences ? bsrg_attention_slots(args, v->rows) : bsrg_ceil_div(args->q.rows, v->rows);
  const int64_t key_tiles = bsrg_ceil_div(args->k.rows, v->keys) + half_pairs;
  int64_t heads, tiles, lists, entries = 0;
  return !bsrg_mul_ok(args->q.batch, args->q.heads, &heads) || !bsrg_mul_ok(heads, query_tiles, &tiles) ||
         tiles >= (int64_t)1 << 30 ||
         (bsrg_attention_is_masked(args) &&
          (!bsrg_mul_ok(args->mask_batch * args->mask_heads, query_tiles, &lists) ||
           !bsrg_mul_ok(lists, key_tiles, &entries))) ||
         entries > INT32_MAX;
}

const char *bsrg_attention_hopper_obstacle(const bsrg_attention_args *args, const bsrg_gpu_info *gpu) {
  const double scale = args->softcap > 0 ? args->softcap : args->scale;
  /* tanh is wrong by about 2^-23 here, so capped scores by that many caps: by 2^-11, as much as a weight is when it is
   * rounded to 16 bits, or by 2^-7, an eighth of what it is when it is rounded to 8. */
  const double most_16 = 0x1p12, most_8 = 0x1p16;
  if (gpu->sm_arch != 90) return "needs a Hopper GPU (compute capability 9.0)";
  if (args->dtype == BSRG_F8_E4M3 && (args->q.size % 16 || args->v.size % 16))
    return "needs head sizes that are multiples of 16 for float8_e4m3fn";
  if (args->dtype == BSRG_F8_E4M3 && args->sequences != NULL)
    return "needs a call without cu_seqlens_q for float8_e4m3fn, or operands on the CPU";
  if (args->q.size % 8 || args->v.size % 8) return "needs head sizes that are multiples of 8";
  if (bsrg_max(args->q.size, args->v.size) > BSRG_ATTENTION_MAX_SIZE)
    return "needs head sizes of at most 256";
  if (args->k.rows < 1) return "needs at least one key";
  if (args->q.rows > BSRG_ATTENTION_MAX_ROWS || args->k.rows > BSRG_ATTENTION_MAX_ROWS)
    return "needs at most 10^9 queries and as many keys";
  if (!(scale >= 1e-30 && scale <= 1e30))
    return "needs a scale, or with softcap a softcap, from 1e-30 to 1e30";
  if (args->dtype == BSRG_F8_E4M3 && args->softcap > most_8)
    return "needs a softcap of at most 65536 for float8_e4m3fn, or operands on the CPU";
  if (args->dtype != BSRG_F8_E4M3 && args->softcap > most_16) return "needs a softcap of at most 4096";
  if (!bsrg_attention_can_describe(&args->q, args->dtype) ||
      !bsrg_attention_can_describe(&args->k, args->dtype) ||
      !bsrg_attention_can_describe(&args->v, args->dtype) ||
      !bsrg_attention_can_describe(&args->out, bsrg_attention_out_dtype(args)))
    return "needs q, k, v and out with neighbouring elements, and rows, heads and batches at multiples of 16 "
           "bytes";
  if (bsrg_attention_is_masked(args) && (bsrg_attention_block_shape(args).height % BSRG_ATTENTION_GROUP ||
                                         bsrg_attention_block_shape(args).width % BSRG_ATTENTION_GROUP))
    return "needs a block_mask whose blocks have sides that are multiples of 16";
  if (too_many_tiles(args)) return "needs fewer than 2^30 tiles";
  return NULL;
}

/* ---- launch ---------------------------------------------------------------------------------- */

static bsrg_map_shape map_shape(const bsrg_tensor *t, uint32_t panel, uint32_t rows, int swizzle) {
  return (bsrg_map_shape){
      .rank = 4,
      .dims = {(uint64_t)t->size, (uint64_t)t->rows, (uint64_t)t->heads, (uint64_t)t->batch},
      .strides = {(uint64_t)t->row_stride, (uint64_t)t->head_stride, (uint64_t)t->batch_stride},
      .box = {panel, rows, 1, 1},
      .swizzle = swizzle};
}

/* single: of sequences, the map of rows one by one. */
static bsrg_status encode(const bsrg_attention_args *args, bsrg_dtype dtype, const bsrg_tensor *t,
                          int32_t span, int32_t rows, bsrg_gpu gpu, bsrg_tensor_map *map,
                          bsrg_tensor_map *single, bsrg_error *error) {
  const int swizzle = span == 64 ? CU_TENSOR_MAP_SWIZZLE_64B : CU_TENSOR_MAP_SWIZZLE_128B;
  const uint32_t panel = (uint32_t)(span / (int32_t)bsrg_dtype_size(dtype));
  bsrg_map_shape shape = map_shape(t, panel, (uint32_t)rows, swizzle);
  if (!args->sequences) return bsrg_encode_map(gpu.api, dtype, t->data, &shape, map, error);
  /* Windows, a row further on each, see bsrg_attention_map. Without rows enough for one, none is asked for. */
  shape.strides[2] = (uint64_t)t->row_stride;
  shape.dims[1] = (uint64_t)rows;
  shape.dims[3] = (uint64_t)bsrg_max(1, t->rows + 1 - rows);
  const bsrg_status status = bsrg_encode_map(gpu.api, dtype, t->data, &shape, map, error);
  if (status != BSRG_OK) return status;
  shape.dims[1] = (uint64_t)t->rows;
  shape.dims[3] = shape.box[1] = 1;
  return bsrg_encode_map(gpu.api, dtype, t->data, &shape, single, error);
}

/* Heads or batches that are all the same memory become one. */
static bsrg_tensor distinct_of(const bsrg_attention_args *args, const bsrg_tensor *t,
                               bsrg_attention_map *operand) {
  bsrg_tensor distinct = *t;
  if (t->head_stride == 0) {
    distinct.heads = 1;
    distinct.head_stride = 16;
  }
  if (t->batch_stride == 0) {
    distinct.batch = 1;
    distinct.batch_stride = 16;
  }
  operand->head_divisor = (int32_t)(args->q.heads / distinct.heads);
  operand->batch_factor = distinct.batch > 1;
  return distinct;
}

/* In panels that kernels swizzle whole: 128 bytes, or 64 where rows of the kernel's heads are no multiple of that. */
static bsrg_status describe(const bsrg_attention_args *args, const bsrg_tensor *t, const variant *v,
                            int32_t rows, bsrg_gpu gpu, bsrg_attention_map *operand, bsrg_tensor_map *single,
                            bsrg_error *error) {
  const bsrg_tensor distinct = distinct_of(args, t, operand);
  const int32_t span = v->size * (int32_t)bsrg_dtype_size(args->dtype) % 128 ? 64 : 128;
  return encode(args, args->dtype, &distinct, span, rows, gpu, &operand->map, single, error);
}

static bsrg_attention_factors factors_of(const bsrg_factors *f) {
  return (bsrg_attention_factors){f->data, f->batch_stride, f->head_stride, (float)f->all};
}

/* A key tile takes about this with all SMs busy: 1.4 us (burst) to 1.7 us (sustained) for heads of 128 elements. */
static int32_t step_ns(const bsrg_attention_args *args, const variant *v) {
  return (args->dtype == BSRG_F8_E4M3 ? 1000 : 1500) * v->size / 128 * v->keys / 128;
}

static bsrg_attention_plan_key plan_key(const bsrg_attention_args *args, const bsrg_attention_params *p,
                                        const variant *v, bsrg_gpu gpu) {
  return (bsrg_attention_plan_key){.order = p->order,
                                   .bounds = p->bounds,
                                   .heads = p->heads,
                                   .tile_keys = v->keys,
                                   .pairs = v->listing == BSRG_ATTENTION_BY_PAIRS,
                                   .sms = gpu.device->info.sm_count,
                                   .step_ns = step_ns(args, v)};
}

/* Memory for parts, if there are any. */
static bsrg_status place_parts(const bsrg_attention_args *args, int64_t count, const variant *v, bsrg_gpu gpu,
                               bsrg_attention_parts *parts, CUdeviceptr *scratch, bsrg_error *error) {
  const size_t rows = (size_t)count * BSRG_ATTENTION_LIST_ROWS;
  const size_t sums_bytes = rows * (size_t)v->size * sizeof(float);
  if (rows == 0) return BSRG_OK;
  const bsrg_status status = bsrg_scratch_alloc(gpu.api, gpu.device, sums_bytes + rows * 2 * sizeof(float),
                                                (CUstream)args->stream, scratch, error);
  if (status != BSRG_OK) return status;
  parts->sums = (float *)(uintptr_t)*scratch;
  parts->stats = (float *)(uintptr_t)(*scratch + sums_bytes);
  return BSRG_OK;
}

/* How many query tiles are cut. On the device, where a plan says so; without any, `cuts` means nothing. */
typedef struct cut_tiles {
  const bsrg_attention_cut *cuts;
  int64_t count;
  bool in_step; /* without any: see bsrg_attention_plan */
} cut_tiles;

/* The plan of the masks, on the device. With a top-k mask a kernel makes it, in scratch memory that is to be freed, and
 * so is that of parts. */
static bsrg_status place_plan(const bsrg_attention_args *args, bsrg_attention_params *p, const variant *v,
                              bsrg_gpu gpu, cut_tiles *cut, CUdeviceptr *scratch, bsrg_error *error) {
  const bsrg_attention_plan_key key = plan_key(args, p, v, gpu);
  if (args->topk) return bsrg_topk_list_tiles(args, &key, gpu, p, scratch, error);
  int64_t options[BSRG_MASK_OPTIONS];
  bsrg_mask_plan *kept;
  bsrg_attention_key_options(&key, options);
  bsrg_status status = bsrg_mask_plan_get(args, BSRG_ATTENTION_HOPPER, options, bsrg_attention_make_plan,
                                          bsrg_attention_free_plan, &kept, error);
  if (status != BSRG_OK) return status;
  const bsrg_attention_plan *plan = kept->plan;
  enum { TILES, ENTRIES, CUTS, PARTS };
  const size_t entries = (size_t)plan->entry_count;
  const bsrg_upload_part parts[PARTS] = {
      [TILES] = {plan->tiles, sizeof(*plan->tiles) * (size_t)plan->tile_count},
      [ENTRIES] = key.pairs ? (bsrg_upload_part){plan->pairs, sizeof(*plan->pairs) * entries}
                            : (bsrg_upload_part){plan->entries, sizeof(*plan->entries) * entries},
      [CUTS] = {plan->cuts, sizeof(*plan->cuts) * (size_t)plan->cut_count}};
  const CUdeviceptr *uploads;
  status = bsrg_uploads_get_in(&kept->uploads, BSRG_ATTENTION_HOPPER, parts, PARTS, gpu, &uploads, error);
  if (status != BSRG_OK) return status;
  p->tiles = (const bsrg_attention_item *)(uintptr_t)uploads[TILES];
  p->entries = (const void *)(uintptr_t)uploads[ENTRIES];
  p->tile_count = (int32_t)plan->tile_count;
  *cut = (cut_tiles){(const bsrg_attention_cut *)(uintptr_t)uploads[CUTS], plan->cut_count, plan->in_step};
  return place_parts(args, plan->part_count, v, gpu, &p->parts, scratch, error);
}

/* Without masks. */
static bsrg_status place_tail(const bsrg_attention_args *args, bsrg_attention_params *p, const variant *v,
                              bsrg_gpu gpu, cut_tiles *cut, CUdeviceptr *scratch, bsrg_error *error) {
  if (v->listing != BSRG_ATTENTION_BY_BOUNDS || v->size != BSRG_ATTENTION_TAIL_SIZE ||
      args->dtype == BSRG_F8_E4M3)
    return BSRG_OK;
  const bsrg_attention_plan_key key = plan_key(args, p, v, gpu);
  p->tail = bsrg_attention_make_tail(&key);
  if (p->tail.tiles == 0) return BSRG_OK;
  p->tile_count = p->tail.first + p->tail.shares;
  cut->count = p->tail.tiles;
  return place_parts(args, p->tail.shares + p->tail.tiles, v, gpu, &p->parts, scratch, error);
}

/* From parts to results. */
static bsrg_status join_parts(const bsrg_attention_args *args, const bsrg_attention_params *p,
                              const variant *v, bsrg_gpu gpu, const cut_tiles *cut, bsrg_error *error) {
  if (cut->count == 0) return BSRG_OK;
  bsrg_attention_join_params join = {.cuts = cut->cuts,
                                     .tail = p->tail,
                                     .order = p->order,
                                     .parts = p->parts,
                                     .out = bsrg_tensor_operand_of(&args->out),
                                     .lse = args->lse,
                                     .heads = p->heads,
                                     .queries = p->bounds.queries,
                                     .size = v->size,
                                     .value_size = (int32_t)args->v.size};
  const int64_t warps = cut->count * (BSRG_ATTENTION_LIST_ROWS / 16) * (v->size / 32);
  return bsrg_launch(gpu.api, gpu.device,
                     bsrg_attention_out_dtype(args) == BSRG_F16 ? BSRG_KERNEL_ATTENTION_JOIN_F16
                                                                : BSRG_KERNEL_ATTENTION_JOIN_BF16,
                     warps / BSRG_ATTENTION_JOIN_WARPS, 1, (CUstream)args->stream, &join, error);
}

bsrg_status bsrg_attention_hopper_launch(const bsrg_attention_args *args, bsrg_gpu gpu, bsrg_error *error) {
  const double log2_e = 1.4426950408889634;
  const CUstream stream = (CUstream)args->stream;
  const variant *v = choose_variant(args);
  const bool masked = bsrg_attention_is_masked(args);
  bsrg_attention_params p = {
      .lse = args->lse,
      .order = args->sequences
                   ? (bsrg_attention_order){.heads = (int32_t)args->q.heads,
                                            .query_tiles = (int32_t)bsrg_attention_slots(args, v->rows)}
                   : bsrg_attention_make_order(args, v->rows),
      .bounds = bsrg_attention_make_bounds(args),
      .heads = (int32_t)args->q.heads,
      .scale_log2 = (float)((v->capped ? args->softcap : args->scale) * log2_e),
      .q_factors = factors_of(&args->q_descale),
      .k_factors = factors_of(&args->k_descale),
      .v_factors = factors_of(&args->v_descale),
      .group = (int32_t)(args->q.heads / args->k.heads),
      .tail = {.first = INT32_MAX}};
  p.tile_count = p.order.heads * p.order.query_tiles;
  if (args->sequences) p.sequences = bsrg_attention_sequences_of(args);
  const int64_t sms = gpu.device->info.sm_count;
  if (v->capped) p.cap_log2 = (float)fmax(-FLT_MAX, fmin(FLT_MAX, 2 * log2_e * args->scale / args->softcap));

  bsrg_status status = BSRG_OK;
  const bool pairs = v->listing == BSRG_ATTENTION_BY_PAIRS, packs = args->dtype == BSRG_F8_E4M3;
  const int32_t query_box = pairs ? BSRG_ATTENTION_PAIR_ROWS : v->rows;
  const int32_t key_box = pairs ? BSRG_ATTENTION_PAIR_ROWS : v->keys;
  if (status == BSRG_OK) status = describe(args, &args->q, v, query_box, gpu, &p.q, &p.q_rows, error);
  if (status == BSRG_OK) status = describe(args, &args->k, v, key_box, gpu, &p.k, &p.k_rows, error);
  if (status == BSRG_OK && !packs) status = describe(args, &args->v, v, key_box, gpu, &p.v, &p.v_rows, error);
  if (status == BSRG_OK)
    status = encode(args, bsrg_attention_out_dtype(args), &args->out, 128, BSRG_ATTENTION_PIECE_ROWS, gpu,
                    &p.out, &p.out_rows, error);
  CUdeviceptr scratch = 0, values = 0;
  cut_tiles cut = {0};
  if (status == BSRG_OK) status = (masked ? place_plan : place_tail)(args, &p, v, gpu, &cut, &scratch, error);
  if (status == BSRG_OK && packs) {
    const bsrg_tensor distinct = distinct_of(args, &args->v, &p.v);
    status = bsrg_attention_pack_values(args, &distinct, v->size, key_box, gpu, &p.values, &values, error);
  }
  const bool even = masked ? cut.in_step : !args->sequences && bsrg_attention_sees_all(&p.bounds);
  const int64_t ctas = cut.in_step ? bsrg_workers_in_step(p.tile_count, sms) : bsrg_min(sms, p.tile_count);
  if (status == BSRG_OK)
    status = bsrg_launch_drawing(gpu.api, gpu.device, kernel_of(args->dtype, v), 0, ctas, stream, &p,
                                 &p.counter, !even && p.tile_count > ctas, error);
  if (status == BSRG_OK) status = join_parts(args, &p, v, gpu, &cut, error);
  if (scratch) status = bsrg_scratch_free(gpu.api, scratch, stream, status, error);
  return values ? bsrg_scratch_free(gpu.api, values, stream, status, error) : status;
}
