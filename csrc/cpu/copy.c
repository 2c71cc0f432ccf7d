/* Copies between any strides: by lines where one axis is the closest in memory on both sides, else by squares of a cache line a
 * side, which are read along one axis and written along the other. */
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "cpu.h"
#include "isa_macros.h"

enum {
  AXES = 4,
  LINE_BYTES = 64,
  MAX_SQUARE = 64, /* elements of 1 byte */
  /* Lines or columns of squares of a unit of work. */
  UNIT_LINES = 128,
  /* Bytes that are worth waking another thread for. */
  THREAD_BYTES = 64 << 10
};

/* Strides in elements. */
typedef struct axis {
  int64_t count, from, to;
} axis;

typedef struct copy_job {
  const char *from;
  char *to;
  int64_t size;
  axis outer[AXES - 2], across,
      along; /* along: the target's closest elements; across: lines, or the source's closest */
  bool lines;
  int64_t parts, units; /* of across; of all */
  _Atomic int64_t next;
} copy_job;

/* A square, or what is there of one. The size is a constant to the compiler, and so are the sides of most. */
BSRG_INLINE void copy_square(const copy_job *job, const char *from, char *to, int64_t across, int64_t along,
                             size_t size) {
  char square[MAX_SQUARE * LINE_BYTES];
  const axis *f = &job->across, *t = &job->along;
  const int64_t side = LINE_BYTES / (int64_t)size;
  for (int64_t j = 0; j < along; j++) {
    const char *source = from + j * t->from * (int64_t)size;
    char *line = square + j * LINE_BYTES;
    if (f->from == 1 && across == side) {
      memcpy(line, source, LINE_BYTES);
    } else {
      for (int64_t i = 0; i < across; i++)
        memcpy(line + i * (int64_t)size, source + i * f->from * (int64_t)size, size);
    }
  }
  for (int64_t i = 0; i < across; i++) {
    char *target = to + i * f->to * (int64_t)size;
    const char *column = square + i * (int64_t)size;
    if (t->to == 1 && along == side) {
      for (int64_t j = 0; j < side; j++) memcpy(target + j * (int64_t)size, column + j * LINE_BYTES, size);
    } else {
      for (int64_t j = 0; j < along; j++)
        memcpy(target + j * t->to * (int64_t)size, column + j * LINE_BYTES, size);
    }
  }
}

BSRG_INLINE void copy_squares(const copy_job *job, const char *from, char *to, int64_t across, size_t size) {
  const int64_t side = LINE_BYTES / (int64_t)size;
  for (int64_t i = 0; i < across; i += side)
    for (int64_t j = 0; j < job->along.count; j += side)
      copy_square(job, from + (i * job->across.from + j * job->along.from) * (int64_t)size,
                  to + (i * job->across.to + j * job->along.to) * (int64_t)size, bsrg_min(side, across - i),
                  bsrg_min(side, job->along.count - j), size);
}

/* Whole lines of so many bytes. */
BSRG_INLINE void copy_whole(const copy_job *job, const char *from, char *to, int64_t across, size_t bytes) {
  const int64_t step_from = job->across.from * job->size, step_to = job->across.to * job->size;
  for (int64_t i = 0; i < across; i++) memcpy(to + i * step_to, from + i * step_from, bytes);
}

BSRG_INLINE void copy_elements(const copy_job *job, const char *from, char *to, size_t size) {
  const int64_t step_from = job->along.from * (int64_t)size, step_to = job->along.to * (int64_t)size;
  for (int64_t j = 0; j < job->along.count; j++) memcpy(to + j * step_to, from + j * step_from, size);
}

BSRG_INLINE void copy_lines(const copy_job *job, const char *from, char *to, int64_t across, size_t size) {
  const size_t bytes = (size_t)job->along.count * size;
  if (job->along.from != 1 || job->along.to != 1) {
    for (int64_t i = 0; i < across; i++)
      copy_elements(job, from + i * job->across.from * (int64_t)size, to + i * job->across.to * (int64_t)size,
                    size);
  } else if (bytes == 8) { /* a call of memcpy would take longer than the copy */
    copy_whole(job, from, to, across, 8);
  } else if (bytes == 16) {
    copy_whole(job, from, to, across, 16);
  } else if (bytes == 32) {
    copy_whole(job, from, to, across, 32);
  } else if (bytes == 64) {
    copy_whole(job, from, to, across, 64);
  } else {
    copy_whole(job, from, to, across, bytes);
  }
}

BSRG_INLINE void copy_part(const copy_job *job, const char *from, char *to, int64_t across, size_t size) {
  if (job->lines) {
    copy_lines(job, from, to, across, size);
  } else {
    copy_squares(job, from, to, across, size);
  }
}

static void copy_unit(const copy_job *job, int64_t unit) {
  const int64_t first = unit % job->parts * UNIT_LINES;
  int64_t rest = unit / job->parts, read = first * job->across.from, write = first * job->across.to;
  for (int i = 0; i < AXES - 2; i++) {
    read += rest % job->outer[i].count * job->outer[i].from;
    write += rest % job->outer[i].count * job->outer[i].to;
    rest /= job->outer[i].count;
  }
  const char *from = job->from + read * job->size;
  char *to = job->to + write * job->size;
  const int64_t across = bsrg_min(UNIT_LINES, job->across.count - first);
  switch (job->size) {
    case 8:
      copy_part(job, from, to, across, 8);
      break;
    case 4:
      copy_part(job, from, to, across, 4);
      break;
    case 2:
      copy_part(job, from, to, across, 2);
      break;
    default:
      copy_part(job, from, to, across, 1);
      break;
  }
}

static void copy_task(void *context, int slot) {
  (void)slot;
  copy_job *job = context;
  int64_t unit;
  while ((unit = atomic_fetch_add(&job->next, 1)) < job->units) copy_unit(job, unit);
}

/* Axes of one element come last in any order: they have no neighbours. */
static bool is_closer(const axis *a, const axis *b, bool in_target) {
  if (a->count == 1 || b->count == 1) return b->count == 1 && a->count != 1;
  return in_target ? llabs(a->to) < llabs(b->to) : llabs(a->from) < llabs(b->from);
}

static void sort(axis *axes) {
  for (int i = 1; i < AXES; i++)
    for (int j = i; j > 0 && is_closer(&axes[j], &axes[j - 1], true); j--) {
      const axis closer = axes[j];
      axes[j] = axes[j - 1];
      axes[j - 1] = closer;
    }
}

void bsrg_cpu_copy(const bsrg_tensor *from, const bsrg_tensor *to, int64_t size) {
  axis axes[AXES] = {{from->size, from->element_stride, to->element_stride},
                     {from->rows, from->row_stride, to->row_stride},
                     {from->heads, from->head_stride, to->head_stride},
                     {from->batch, from->batch_stride, to->batch_stride}};
  sort(axes);
  copy_job job = {.from = from->data, .to = to->data, .size = size, .along = axes[0]};
  int across = 1; /* or the one that is closest in the source */
  for (int i = 2; i < AXES; i++)
    if (is_closer(&axes[i], &axes[across], false)) across = i;
  job.lines = !is_closer(&axes[across], &axes[0], false);
  if (job.lines) across = 1;
  job.across = axes[across];
  for (int i = 1, outer = 0; i < AXES; i++)
    if (i != across) job.outer[outer++] = axes[i];
  job.parts = bsrg_ceil_div(job.across.count, UNIT_LINES);
  job.units = job.parts * job.outer[0].count * job.outer[1].count;
  const int64_t bytes = job.units * bsrg_min(UNIT_LINES, job.across.count) * job.along.count * size;
  const int64_t threads = bsrg_min(bsrg_get_num_threads(), 1 + bytes / THREAD_BYTES);
  bsrg_run_parallel(copy_task, &job, (int)bsrg_min(threads, job.units));
}

/* ---- Rows ---------------------------------------------------------------------------------------------- */

bsrg_tensor bsrg_cpu_in_rows(const bsrg_tensor *t) {
  const int64_t head = bsrg_mul_saturated(t->rows, t->size), heads = t->head_stride == 0 ? 1 : t->heads;
  return (bsrg_tensor){.batch = t->batch,
                       .heads = t->heads,
                       .rows = t->rows,
                       .size = t->size,
                       .batch_stride = t->batch_stride == 0 ? 0 : bsrg_mul_saturated(heads, head),
                       .head_stride = t->head_stride == 0 ? 0 : head,
                       .row_stride = t->size,
                       .element_stride = 1};
}

static bsrg_tensor distinct(bsrg_tensor t) {
  if (t.head_stride == 0) t.heads = 1;
  if (t.batch_stride == 0) t.batch = 1;
  return t;
}

size_t bsrg_cpu_rows_bytes(const bsrg_tensor *rows, int64_t size) {
  const bsrg_tensor t = distinct(*rows);
  size_t bytes = 0;
  const int64_t vectors = bsrg_mul_saturated(bsrg_mul_saturated(t.batch, t.heads), t.rows);
  const int64_t wanted = bsrg_mul_saturated(bsrg_mul_saturated(vectors, t.size), size);
  if (wanted == INT64_MAX) return SIZE_MAX / 4; /* which is never there, and callers add others */
  bsrg_reserve(&bytes, wanted);
  return bytes;
}

void bsrg_cpu_copy_rows(const bsrg_tensor *t, bsrg_tensor *rows, void *memory, int64_t size) {
  rows->data = memory;
  const bsrg_tensor from = distinct(*t), to = distinct(*rows);
  bsrg_cpu_copy(&from, &to, size);
}
