/* Plans of masks, found again by the masks that they were made from. */
#include "attention.h"

#include <stdlib.h>
#include <string.h>

static void free_node(bsrg_mask_plan *node) {
  if (node->plan) node->free_plan(node->plan);
  free(node->ids);
  free(node);
}

void bsrg_mask_plans_destroy(bsrg_mask_plan *plans) {
  while (plans) {
    bsrg_mask_plan *next = plans->next;
    bsrg_uploads_destroy(atomic_load(&plans->uploads));
    free_node(plans);
    plans = next;
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

static bsrg_mask_plan *find(bsrg_mask_plan *node, const bsrg_attention_args *args, bsrg_family family,
                            const int64_t *options) {
  while (node && !is_for(node, args, family, options)) node = node->next;
  return node;
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
  if (node->ids) node->plan = make(args, options);
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
  _Atomic(bsrg_mask_plan *) *list = &args->masks[0]->mask_plans;
  bsrg_mask_plan *first = atomic_load(list);
  *out = find(first, args, family, options);
  if (*out) return BSRG_OK;
  bsrg_mask_plan *node = make_node(args, family, options, make, free_plan);
  if (!node)
    return bsrg_fail(error, BSRG_ERR_MEMORY, "no memory to plan block_mask, %lld masks of up to %lld blocks",
                     (long long)(args->mask_batch * args->mask_heads), (long long)args->masks[0]->view.nnzb);
  /* Threads that plan at once may each leave a node; all are equal and are freed with the mask. */
  node->next = first;
  while (!atomic_compare_exchange_weak(list, &node->next, node)) {
  }
  *out = node;
  return BSRG_OK;
}
