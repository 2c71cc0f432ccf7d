/* The keys that a panel of queries sees, by its mask and band, in runs. */
#include "attention_panel.h"

void bsrg_begin_keys(bsrg_attention_panel *p) {
  const bsrg_band band = p->of.band;
  p->key = bsrg_max(0, p->first + band.first);
  p->key_end = bsrg_min(p->of.keys, p->first + p->queries + band.last);
  p->row_count = 0;
  if (p->mask == NULL) return;
  const int64_t height = p->mask->block_height;
  for (int64_t query = p->first; query < p->first + p->queries;) {
    const int64_t block_row = query / height;
    const int64_t end = bsrg_min((block_row + 1) * height, p->first + p->queries);
    p->rows[p->row_count++] = (bsrg_mask_row){query - p->first, end - p->first, p->mask->indptr[block_row],
                                              p->mask->indptr[block_row + 1]};
    query = end;
  }
}

/* The next keys that some query of the panel may see, at most `most`; count is 0 when there are no more. */
static bsrg_key_run next_keys(bsrg_attention_panel *p, int64_t most) {
  while (p->key < p->key_end) {
    bsrg_key_run run = {.begin = p->key, .count = p->key_end - p->key};
    if (p->mask != NULL) {
      const int64_t width = p->mask->block_width, block = p->key / width;
      const int32_t *indices = p->mask->indices;
      int64_t next = INT64_MAX; /* the first block that a row has from here on */
      for (int64_t r = 0; r < p->row_count; ++r) {
        bsrg_mask_row *row = &p->rows[r];
        while (row->at < row->end && indices[row->at] < block) row->at++;
        const int64_t has = row->at < row->end ? indices[row->at] : INT64_MAX;
        if (has != block) run.blind |= UINT64_C(1) << r;
        next = bsrg_min(next, has);
      }
      if (next == INT64_MAX) break;
      if (next > block) {
        p->key = next * width;
        continue;
      }
      run.count = bsrg_min(run.count, (block + 1) * width - p->key);
    }
    run.count = bsrg_min(run.count, most);
    p->key += run.count;
    return run;
  }
  return (bsrg_key_run){0};
}

int64_t bsrg_next_chunk(bsrg_attention_panel *p) {
  int64_t keys = 0;
  for (p->run_count = 0; keys < BSRG_CHUNK_KEYS; ++p->run_count) {
    bsrg_key_run *run = &p->runs[p->run_count];
    *run = next_keys(p, BSRG_CHUNK_KEYS - keys);
    if (run->count == 0) break;
    run->row = keys;
    keys += run->count;
  }
  return keys;
}

int64_t bsrg_adjacent_runs(const bsrg_attention_panel *p, int64_t first, int64_t *keys) {
  const bsrg_key_run *run = &p->runs[first];
  int64_t count = 1;
  *keys = run->count;
  while (first + count < p->run_count && run[count].begin == run->begin + *keys) *keys += run[count++].count;
  return count;
}
