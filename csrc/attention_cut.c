/* Query tiles cut along the keys, where the chip would wait for one that is much longer than others, or for the last few
 * of many that are equally long. Parts are computed side by side and joined by another kernel.
 *
 * Tiles are handed out in order, each to the SM that is free first. For masks this file simulates that for some ways of
 * cutting and keeps the one that ends first. */
#include "attention_hopper.h"

#include <stdlib.h>
#include <string.h>

/* Times are counted in parts of a step: of what one key tile takes. */
enum {
  STEP = 256,
  START = STEP * 13 / 10, /* of a tile or part; fitted to uniform masks of 6 to 64 key tiles a query tile */
  STORE = STEP,           /* what a part takes more than a tile, for its sums; an estimate, as is all below */
  JOIN_NS = 4000,         /* the second kernel, and for each part that it reads: */
  JOIN_PART = STEP / 64,
  LEAST_STEPS = 4, /* of a part */
  PARTS_PER_SM = 4 /* at most, in memory of 64 KB each for heads of 128 elements */
};

/* ---- calls without masks and bounds ----------------------------------------------------------- */

static int64_t join_time(int64_t parts, int64_t step_ns) {
  return (int64_t)JOIN_NS * STEP / step_ns + parts * JOIN_PART;
}

/* The last query tiles take as long as a share of them each, since all SMs work, and joining the parts; whole ones take as
 * long as one. A share begins two items at most. */
bsrg_attention_tail bsrg_attention_make_tail(const bsrg_attention_plan_key *key) {
  const bsrg_attention_tail none = {.first = INT32_MAX};
  const bsrg_attention_bounds *bounds = &key->bounds;
  const int64_t tiles = (int64_t)key->order.heads * key->order.query_tiles, left = tiles % key->sms;
  const int64_t steps = bsrg_ceil_div(bounds->keys, key->tile_keys);
  if (!bsrg_attention_sees_all(bounds) || left == 0 || left * steps > INT32_MAX / 2) return none;
  const int64_t share = bsrg_max(bsrg_ceil_div(left * steps, key->sms), LEAST_STEPS);
  const int64_t shares = bsrg_ceil_div(left * steps, share);
  const int64_t whole = steps * STEP + START, cut = share * STEP + 2 * (START + STORE);
  const int64_t gain = whole - cut - join_time(shares + left, key->step_ns);
  if (share > steps || gain < (tiles / key->sms + 1) * whole / 100) return none;
  return (bsrg_attention_tail){.first = (int32_t)(tiles - left),
                               .tiles = (int32_t)left,
                               .steps = (int32_t)steps,
                               .share = (int32_t)share,
                               .shares = (int32_t)shares};
}

/* ---- masks ------------------------------------------------------------------------------------ */

/* When each SM is free: a heap whose first is the least. */
typedef struct chip {
  int64_t *free;
  int64_t sms;
} chip;

/* A way of cutting: the tiles and parts from some tile on. */
typedef struct scheme {
  bsrg_attention_item *tiles;
  bsrg_attention_cut *cuts;
  int64_t tile_count, cut_count, part_count;
} scheme;

typedef struct cutter {
  const bsrg_attention_plan_key *key;
  const bsrg_attention_plan *plan;
  int64_t begin;        /* the first tile that some scheme cuts */
  chip exact, jittered; /* before that tile */
  chip scratch;
  int64_t least; /* the end if all SMs were always busy */
  /* Without any cut, by two simulations: tiles that are equally long take equally long, or differ by 5% or so as by
   * chance. With exact times four tiles too many for a round would seem to cost a whole one, and with others luck can
   * look like a gain: a scheme has to be better by both. */
  int64_t exact_end, jittered_end;
  int64_t most_parts;
} cutter;

/* ---- simulation ------------------------------------------------------------------------------ */

static void reset(chip *c) { memset(c->free, 0, sizeof(*c->free) * (size_t)c->sms); }

static void copy(chip *to, const chip *from) {
  memcpy(to->free, from->free, sizeof(*to->free) * (size_t)to->sms);
}

/* The SM that is free first gets something to do; until when. */
static int64_t occupy(chip *c, int64_t time) {
  const int64_t end = c->free[0] + time;
  int64_t at = 0;
  for (int64_t child; (child = 2 * at + 1) < c->sms; at = child) {
    if (child + 1 < c->sms && c->free[child + 1] < c->free[child]) ++child;
    if (c->free[child] >= end) break;
    c->free[at] = c->free[child];
  }
  c->free[at] = end;
  return end;
}

static int64_t time_of(const bsrg_attention_item *tile) {
  return (int64_t)tile->steps * STEP + START + (tile->slot >= 0 ? STORE : 0);
}

/* The tile's place in the order stands for chance. */
static int64_t jitter(int64_t time, int64_t place) {
  uint32_t hash = (uint32_t)place * 0x9e3779b1u;
  hash = (hash ^ hash >> 15) * 0x85ebca6bu;
  hash = (hash ^ hash >> 13) * 0xc2b2ae35u;
  return time + time * ((int64_t)(hash >> 22) - 512) * 89 / (1024 * 512);
}

/* Until when `count` tiles take. place: of the first one in the order, or -1 for exact times. */
static int64_t run(chip *c, const bsrg_attention_item *tiles, int64_t count, int64_t place) {
  int64_t last = 0;
  for (int64_t t = 0; t < count; ++t) {
    const int64_t time = time_of(&tiles[t]);
    last = bsrg_max(last, occupy(c, place < 0 ? time : jitter(time, place + t)));
  }
  return last;
}

/* Of all tiles, where these are those from c->begin on. */
static int64_t run_exact(cutter *c, const bsrg_attention_item *tiles, int64_t count) {
  copy(&c->scratch, &c->exact);
  return run(&c->scratch, tiles, count, -1);
}
static int64_t run_jittered(cutter *c, const bsrg_attention_item *tiles, int64_t count) {
  copy(&c->scratch, &c->jittered);
  return run(&c->scratch, tiles, count, c->begin);
}

/* Of what an SM has left until the target, a tile or part takes at most 2 / share: if all took all of it, there would
 * be nothing left to even out what takes longer than it should. */
enum { LEAST_SHARE = 2, MOST_SHARE = 3 };
static int64_t room_of(int64_t start, int64_t target, int share) { return (target - start) * 2 / share; }

/* What all schemes have in common. */
static void begin(cutter *c) {
  const bsrg_attention_plan *plan = c->plan;
  int64_t sum = 0;
  for (int64_t t = 0; t < plan->tile_count; ++t) sum += time_of(&plan->tiles[t]);
  c->least = sum / c->exact.sms;
  reset(&c->exact);
  while (c->begin < plan->tile_count) {
    const int64_t time = time_of(&plan->tiles[c->begin]);
    if (time > room_of(c->exact.free[0], c->least, MOST_SHARE)) break;
    occupy(&c->exact, time);
    ++c->begin;
  }
  reset(&c->jittered);
  run(&c->jittered, plan->tiles, c->begin, 0);
  c->exact_end = run_exact(c, plan->tiles + c->begin, plan->tile_count - c->begin);
  c->jittered_end = run_jittered(c, plan->tiles + c->begin, plan->tile_count - c->begin);
}

/* ---- schemes --------------------------------------------------------------------------------- */

/* As few parts as take up to `room`; false if these are too many. */
static bool append_parts(const cutter *c, scheme *s, const bsrg_attention_item *tile, int64_t room) {
  const int64_t steps = tile->steps, most = bsrg_max(LEAST_STEPS, (room - START - STORE) / STEP);
  const int64_t parts = bsrg_ceil_div(steps, most);
  if (s->part_count + parts > c->most_parts) return false;
  s->cuts[s->cut_count++] = (bsrg_attention_cut){.first_row = tile->first_row[0],
                                                 .head = tile->head,
                                                 .first_slot = (int32_t)s->part_count,
                                                 .slot_count = (int32_t)parts};
  for (int64_t i = 0; i < parts; ++i) {
    const int64_t from = steps * i / parts, to = steps * (i + 1) / parts;
    bsrg_attention_item part = *tile;
    part.entry_begin += (int32_t)from;
    part.entry_count = part.steps = (int32_t)(to - from);
    part.slot = (int32_t)s->part_count++;
    s->tiles[s->tile_count++] = part;
  }
  return true;
}

static bool sort_longest_first(bsrg_attention_item *tiles, int64_t count) {
  int64_t *length = malloc(sizeof(*length) * (size_t)count), longest = 0;
  if (!length) return false;
  for (int64_t t = 0; t < count; ++t) {
    length[t] = tiles[t].steps + (tiles[t].slot >= 0); /* STORE is a step */
    longest = bsrg_max(longest, length[t]);
  }
  const bool done = bsrg_sort_records(tiles, sizeof(*tiles), length, count, longest);
  free(length);
  return done;
}

/* Cuts what would end behind the target, from c->begin on. Parts stay in the section of their tile. A scheme with too
 * many parts gets none. false: no memory. */
static bool make_scheme(cutter *c, int64_t target, int share, scheme *s) {
  const bsrg_attention_order *order = &c->key->order;
  s->tile_count = s->cut_count = s->part_count = 0;
  copy(&c->scratch, &c->exact);
  for (int64_t first = 0, end; first < order->heads; first = end) {
    end = bsrg_attention_section_end(order, first);
    const int64_t section = s->tile_count;
    for (int64_t t = bsrg_max(first * order->query_tiles, c->begin); t < end * order->query_tiles; ++t) {
      const bsrg_attention_item *tile = &c->plan->tiles[t];
      const int64_t room = room_of(c->scratch.free[0], target, share), had = s->tile_count;
      if (time_of(tile) <= room || tile->steps < 2 * LEAST_STEPS) {
        s->tiles[s->tile_count++] = *tile;
      } else if (!append_parts(c, s, tile, room)) {
        s->part_count = 0;
        return true;
      }
      for (int64_t i = had; i < s->tile_count; ++i) occupy(&c->scratch, time_of(&s->tiles[i]));
    }
    if (s->tile_count > section && !sort_longest_first(s->tiles + section, s->tile_count - section))
      return false;
  }
  return true;
}

/* The best scheme, if it gains a hundredth; otherwise one without parts. false: no memory. */
static bool choose(cutter *c, scheme *best, scheme *other) {
  int64_t best_end = c->jittered_end - c->jittered_end / 100;
  for (int share = LEAST_SHARE; share <= MOST_SHARE; ++share)
    for (int64_t eighth = 0; eighth < 4; ++eighth) {
      const int64_t target = c->least + (c->jittered_end - c->least) * eighth / 8;
      if (!make_scheme(c, target, share, other)) return false;
      if (other->part_count == 0) continue;
      const int64_t join = join_time(other->part_count, c->key->step_ns);
      const int64_t end = run_jittered(c, other->tiles, other->tile_count) + join;
      if (end >= best_end) continue;
      if (run_exact(c, other->tiles, other->tile_count) + join >= c->exact_end) continue;
      best_end = end;
      const scheme better = *other;
      *other = *best;
      *best = better;
    }
  return true;
}

static bool make_room(const cutter *c, scheme *s) {
  s->tiles = malloc(sizeof(*s->tiles) * (size_t)(c->plan->tile_count - c->begin + c->most_parts));
  s->cuts = malloc(sizeof(*s->cuts) * (size_t)c->most_parts);
  return s->tiles && s->cuts;
}

/* Puts the scheme in place of the plan's tiles from `begin` on. */
static bool apply(bsrg_attention_plan *plan, int64_t begin, scheme *s) {
  const int64_t count = begin + s->tile_count;
  bsrg_attention_item *tiles = realloc(plan->tiles, sizeof(*tiles) * (size_t)count);
  if (!tiles) return false;
  memcpy(tiles + begin, s->tiles, sizeof(*tiles) * (size_t)s->tile_count);
  plan->tiles = tiles;
  plan->tile_count = count;
  plan->cuts = s->cuts;
  plan->cut_count = s->cut_count;
  plan->part_count = s->part_count;
  s->cuts = NULL;
  return true;
}

bool bsrg_attention_cut_tiles(const bsrg_attention_plan_key *key, bsrg_attention_plan *plan) {
  const int64_t sms = key->sms;
  int64_t *memory = malloc(sizeof(*memory) * 3 * (size_t)sms);
  if (!memory) return false;
  cutter c = {.key = key,
              .plan = plan,
              .exact = {memory, sms},
              .jittered = {memory + sms, sms},
              .scratch = {memory + 2 * sms, sms},
              .most_parts = PARTS_PER_SM * sms};
  begin(&c);
  bool done = true;
  if (c.jittered_end - c.least > c.jittered_end / 100) {
    scheme best = {0}, other = {0};
    done = make_room(&c, &best) && make_room(&c, &other) && choose(&c, &best, &other) &&
           (best.part_count == 0 || apply(plan, c.begin, &best));
    free(best.tiles);
    free(best.cuts);
    free(other.tiles);
    free(other.cuts);
  }
  free(memory);
  return done;
}
