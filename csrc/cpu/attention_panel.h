/* What the parts of the CPU's attention share: a panel of queries, the keys that it sees, and the job that it belongs to. */
#ifndef BSRG_CPU_ATTENTION_PANEL_H
#define BSRG_CPU_ATTENTION_PANEL_H

#include "../attention.h"
#include "cpu.h"

enum { BSRG_CHUNK_KEYS = 64 }; /* of one step, whose scores wait in L1 */

typedef struct bsrg_attention_job {
  const bsrg_attention_args *args;
  const bsrg_cpu_ops *ops; /* of the result's type */
  bool eight_bits;
  int64_t item; /* bytes of an element of q, k and v */
  int64_t panel_width;
  int64_t *panels_before; /* [sequences + 1]: of one head; NULL: batches, all of them with as many */
  int64_t tasks;          /* panels of all heads */
  bool k_in_place, v_in_place;
  char *slots; /* scratch memory, one slot a thread */
  size_t slot_bytes, q_at, scores_at, out_at, lanes_at, k_at, v_at;
  _Atomic int64_t next;
} bsrg_attention_job;

/* One block row of the mask within a panel. */
typedef struct bsrg_mask_row {
  int64_t lane_begin, lane_end; /* its queries */
  int64_t at, end;              /* its blocks from the present key on */
} bsrg_mask_row;

/* Keys begin .. begin + count - 1, of one block column of the mask. */
typedef struct bsrg_key_run {
  int64_t begin, count;
  int64_t row;    /* of the chunk's scores, where they begin */
  uint64_t blind; /* bit r: mask row r of the panel does not see them */
} bsrg_key_run;

/* A batch, or a sequence. Queries and keys are counted within it. */
typedef struct bsrg_attention_piece {
  int64_t batch, first_query, queries, first_key, keys;
  bsrg_band band;
} bsrg_attention_piece;

typedef struct bsrg_attention_panel {
  const bsrg_attention_job *job;
  bsrg_attention_piece of;
  int64_t head;
  const bsrg_structure_view *mask; /* or NULL */
  int64_t first, queries;          /* queries first .. first + queries - 1 */
  int64_t vectors, width;
  int64_t key, key_end; /* the next key, and the end of those that the band allows to some query */
  bsrg_mask_row rows[BSRG_MAX_PANEL];
  int64_t row_count;
  const char *k, *v; /* the head's first key and value */
  char *slot;
  bsrg_key_run runs[BSRG_CHUNK_KEYS];
  int64_t run_count;
} bsrg_attention_panel;

/* ---- attention_keys.c: which keys ---------------------------------------------------------------------- */

void bsrg_begin_keys(bsrg_attention_panel *p);
/* Collects the keys of the next step in p->runs; how many there are. */
int64_t bsrg_next_chunk(bsrg_attention_panel *p);
/* How many runs from `first` on lie one behind the other in memory; their keys are added up in *keys. */
int64_t bsrg_adjacent_runs(const bsrg_attention_panel *p, int64_t first, int64_t *keys);

/* ---- One panel: attention_tile.c with a query a lane, attention_few.c with lanes along keys and elements of a head -- */

void bsrg_attend_tile(bsrg_attention_panel *p);
void bsrg_attend_few(bsrg_attention_panel *p);

static inline char *bsrg_element_of(const bsrg_tensor *t, int64_t batch, int64_t head, int64_t row,
                                    int64_t size) {
  return (char *)t->data + (batch * t->batch_stride + head * t->head_stride + row * t->row_stride) * size;
}

static inline int64_t bsrg_whole_vectors(const bsrg_cpu_ops *ops, int64_t count) {
  return bsrg_ceil_div(count, ops->lanes) * ops->lanes;
}

/* Where the panel's first logarithm goes, or NULL. */
static inline float *bsrg_panel_lse(const bsrg_attention_panel *p) {
  const bsrg_attention_args *args = p->job->args;
  if (args->lse == NULL) return NULL;
  return args->lse + (p->of.batch * args->q.heads + p->head) * args->q.rows + p->of.first_query + p->first;
}

static inline void bsrg_scale_sums(void *sums, int64_t count, double factor, int64_t sum_size) {
  if (sum_size == (int64_t)sizeof(float)) {
    for (int64_t i = 0; i < count; ++i) ((float *)sums)[i] *= (float)factor;
  } else {
    for (int64_t i = 0; i < count; ++i) ((double *)sums)[i] *= factor;
  }
}

#endif
