/* A product by panels: what panel.c does and panel_plan.c decides. */
#ifndef BSRG_PANEL_H
#define BSRG_PANEL_H

#include "cpu.h"

/* Where a panel's rows of X are read: see panel.c. */
typedef enum bsrg_panel_source {
  BSRG_PANEL_PACKED,
  BSRG_PANEL_GATHERED,
  BSRG_PANEL_DIRECT
} bsrg_panel_source;

typedef struct bsrg_panel_job {
  const bsrg_matmul_args *args;
  const bsrg_cpu_ops *ops;
  bsrg_structure_view a; /* with k in elements of ops, which may be pairs */
  int64_t item_size;     /* of X, C and Y */
  bsrg_panel_source source;
  bool widen_a, in_place;                /* in_place: elements are those in memory, whichever way A lies */
  int64_t vectors, panels;               /* vectors of columns, and the panels they are dealt to */
  int64_t max_width;                     /* sums in a row of the widest panel */
  int64_t chunks, chunk_cols;            /* block columns of a packed chunk */
  int64_t whole_cols;                    /* block columns without the last one where that is partial */
  int64_t ranges;                        /* of row units, in each panel */
  int64_t pass_units;                    /* units whose sums wait between chunks */
  int64_t segment_blocks, segment_depth; /* a segment: so many blocks, and k of each */
  bool small;                            /* block rows are of one tile and may be multiplied together */
  char *slots;                           /* scratch memory, one slot a thread */
  size_t slot_bytes, sums_at, a_at, cursors_at;
  int32_t identity[BSRG_SEGMENT_K]; /* 0, 1, 2, ...: the block columns of gathered blocks */
  _Atomic int64_t next;             /* panel, or range of a panel */
  _Atomic int64_t *next_range;      /* [panels]: of packed ones */
} bsrg_panel_job;

/* Decides all that depends on args and ops, which the job has already. */
void bsrg_panel_plan(bsrg_panel_job *job, int threads);

#endif
