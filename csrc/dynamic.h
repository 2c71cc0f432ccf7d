/* Structures whose pattern a GPU makes (bsrg_dynamic_create): their arrays lie where the launchers find the uploads of
 * other structures, so that these need not know the difference. */
#ifndef BSRG_DYNAMIC_H
#define BSRG_DYNAMIC_H

#include "family.h"

/* What is uploaded of a structure, in the order of bsrg_uploads_get's parts: by the tall family, the portable one and the
 * streaming one. */
enum { BSRG_TALL_ENTRIES, BSRG_TALL_TILES, BSRG_TALL_PARTS, BSRG_TALL_CUTS, BSRG_TALL_UPLOADS };
enum {
  BSRG_PORTABLE_INDPTR,
  BSRG_PORTABLE_INDICES,
  BSRG_PORTABLE_ROW_ORDER,
  BSRG_PORTABLE_ORDER,
  BSRG_PORTABLE_UPLOADS
};

enum {
  BSRG_STREAM_STAGE_LIST,
  BSRG_STREAM_TILE_LIST,
  BSRG_STREAM_ROW_LIST,
  BSRG_STREAM_SOURCES,
  BSRG_STREAM_UPLOADS
};

/* Shared by a structure and its transposed. */
struct bsrg_dynamic {
  int device;                /* negative: bsrg_dynamic_describe made it, there is no memory */
  bsrg_pattern_params build; /* without a mask */
  int64_t *counts;
  int sm_count;
  bool has_sampled; /* whether the device has Hopper's sampled products */
};

/* NULL when the family reads what the GPU has made, else what it needs. */
const char *bsrg_dynamic_obstacle(const bsrg_structure *structure, bsrg_family family);
/* That a product is on the device of the structure, if that is a dynamic one. */
bsrg_status bsrg_dynamic_check_place(const bsrg_structure *structure, bsrg_device device, bsrg_error *error);

#endif
