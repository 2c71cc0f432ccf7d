/* Plans of masks, found again by the masks that they were made from. */
#include "attention.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

/* Guards the lists of all masks, for as long as it takes to look through one. */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static void take_lock(void) { pthread_mutex_lock(&lock); }
static void give_lock(void) { pthread_mutex_unlock(&lock); }
/* A forked child may destroy what it has inherited, whichever thread has held the lock. */
static void watch_forks(void) { pthread_atfork(take_lock, give_lock, give_lock); }

static void free_node(bsrg_mask_plan *node) {
  bsrg_uploads_destroy(atomic_load(&node->uploads));
  if (node->plan) node->free_plan(node->plan);
  free(node->links);
  free(node->ids);
  free(node);
}

static void enter(bsrg_mask_plan *node, bsrg_structure *mask) {
  bsrg_mask_link *first = atomic_load(&mask->mask_links);
  if (first && first->plan == node) return; /* it is several of the masks */
  bsrg_mask_link *link = &node->links[node->link_count++];
  *link = (bsrg_mask_link){.next = first, .mask = mask, .plan = node};
  if (first) first->before = link;
  atomic_store(&mask->mask_links, link);
}

static void leave(bsrg_mask_link *link) {
  if (link->next) link->next->before = link->before;
  if (link->before)
    link->before->next = link->next;
  else
    atomic_store(&link->mask->mask_links, link->next);
}

/* Frees all plans that the mask has a part in: nobody can ask for them any more. */
void bsrg_mask_plans_destroy(bsrg_structure *mask) {
  bsrg_mask_plan *dead = NULL;
  if (!atomic_load(&mask->mask_links)) return;
  take_lock();
  for (bsrg_mask_link *link; (link = atomic_load(&mask->mask_links));) {
    bsrg_mask_plan *plan = link->plan;
    for (int64_t i = 0; i < plan->link_count; ++i) leave(&plan->links[i]);
    plan->next_dead = dead;
    dead = plan;
  }
  give_lock();
  while (dead) {
    bsrg_mask_plan *next = dead->next_dead;
    free_node(dead); /* waits for kernels, without the lock */
    dead = next;
  }
}

static bool is_for(const bsrg_mask_plan *node, const bsrg_attention_args *args, bsrg_family family,
                   const int64_t *options) {
  if (node->family != family || memcmp(node->options, options, sizeof(node->options)) != 0 ||
      node->mask_batch != args->mask_batch || node->mask_heads != args->mask_heads)
    return false;
  for (int64_t i = 0; i < args->mask_batch * args->mask_heads; ++i)
    if (node->ids[i] != args->masks[i]->id) return false;
  return true;
}

static bsrg_mask_plan *find(const bsrg_attention_args *args, bsrg_family family, const int64_t *options) {
  const bsrg_mask_link *link = atomic_load(&args->masks[0]->mask_links);
  while (link && !is_for(link->plan, args, family, options)) link = link->next;
  return link ? link->plan : NULL;
}

static bsrg_mask_plan *make_node(const bsrg_attention_args *args, bsrg_family family, const int64_t *options,
                                 bsrg_mask_plan_maker make, void (*free_plan)(void *plan)) {
  const int64_t count = args->mask_batch * args->mask_heads;
  bsrg_mask_plan *node = calloc(1, sizeof(*node));
  if (!node) return NULL;
  node->family = family;
  memcpy(node->options, options, sizeof(node->options));
  node->mask_batch = args->mask_batch;
  node->mask_heads = args->mask_heads;
  node->free_plan = free_plan;
  node->ids = malloc(sizeof(*node->ids) * (size_t)count);
  node->links = malloc(sizeof(*node->links) * (size_t)count);
  if (node->ids && node->links) node->plan = make(args, options);
  if (!node->plan) {
    free_node(node);
    return NULL;
  }
  for (int64_t i = 0; i < count; ++i) node->ids[i] = args->masks[i]->id;
  return node;
}

bsrg_status bsrg_mask_plan_get(const bsrg_attention_args *args, bsrg_family family, const int64_t *options,
                               bsrg_mask_plan_maker make, void (*free_plan)(void *plan), bsrg_mask_plan **out,
                               bsrg_error *error) {
  static pthread_once_t once = PTHREAD_ONCE_INIT;
  pthread_once(&once, watch_forks);
  take_lock();
  *out = find(args, family, options);
  give_lock();
  if (*out) return BSRG_OK;
  bsrg_mask_plan *node = make_node(args, family, options, make, free_plan);
  if (!node)
    return bsrg_fail(error, BSRG_ERR_MEMORY, "no memory to plan block_mask, %lld masks of up to %lld blocks",
                     (long long)(args->mask_batch * args->mask_heads), (long long)args->masks[0]->view.nnzb);
  take_lock();
  *out = find(args, family, options); /* another thread may have been faster */
  if (!*out)
    for (int64_t i = 0; i < args->mask_batch * args->mask_heads; ++i) enter(node, args->masks[i]);
  give_lock();
  if (*out)
    free_node(node);
  else
    *out = node;
  return BSRG_OK;
}
