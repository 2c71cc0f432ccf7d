#include "fault_points.h"

#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

void *__real_malloc(size_t bytes);
void *__real_calloc(size_t count, size_t bytes);
void *__real_realloc(void *memory, size_t bytes);
int __real_posix_memalign(void **out, size_t alignment, size_t bytes);
void __real_free(void *memory);
int __real_pthread_create(pthread_t *thread, const pthread_attr_t *attributes, void *(*run)(void *),
                          void *context);

/* ---- which call fails -------------------------------------------------------------------------- */

static atomic_bool armed, happened;
static fault_kind armed_kind;
static int64_t armed_number;
static const char *armed_symbol;
static _Atomic int64_t calls;

static void arm(fault_kind kind, int64_t number, const char *symbol) {
  armed_kind = kind;
  armed_number = number;
  armed_symbol = symbol;
  atomic_store(&calls, 0);
  atomic_store(&happened, false);
  atomic_store(&armed, true);
}

void fault_arm(fault_kind kind, int64_t number) { arm(kind, number, NULL); }
void fault_arm_named(const char *symbol) { arm(FAULT_DRIVER, 1, symbol); }

bool fault_disarm(void) {
  atomic_store(&armed, false);
  return atomic_exchange(&happened, false);
}

bool fault_hits(fault_kind kind, const char *symbol) {
  if (!atomic_load(&armed) || kind != armed_kind) return false;
  if (armed_symbol && (!symbol || strcmp(symbol, armed_symbol) != 0)) return false;
  const bool hit = atomic_fetch_add(&calls, 1) + 1 == armed_number;
  if (hit) atomic_store(&happened, true);
  return hit;
}

/* ---- memory and threads ------------------------------------------------------------------------ */

static _Atomic int64_t live_blocks;
int64_t fault_live_blocks(void) { return atomic_load(&live_blocks); }

static void *counted(void *memory) {
  if (memory) atomic_fetch_add(&live_blocks, 1);
  return memory;
}

void *__wrap_malloc(size_t bytes);
void *__wrap_malloc(size_t bytes) {
  return fault_hits(FAULT_MEMORY, NULL) ? NULL : counted(__real_malloc(bytes));
}

void *__wrap_calloc(size_t count, size_t bytes);
void *__wrap_calloc(size_t count, size_t bytes) {
  return fault_hits(FAULT_MEMORY, NULL) ? NULL : counted(__real_calloc(count, bytes));
}

void *__wrap_realloc(void *memory, size_t bytes);
void *__wrap_realloc(void *memory, size_t bytes) {
  if (fault_hits(FAULT_MEMORY, NULL)) return NULL;
  void *moved = __real_realloc(memory, bytes);
  return memory ? moved : counted(moved);
}

int __wrap_posix_memalign(void **out, size_t alignment, size_t bytes);
int __wrap_posix_memalign(void **out, size_t alignment, size_t bytes) {
  if (fault_hits(FAULT_MEMORY, NULL)) return ENOMEM;
  const int result = __real_posix_memalign(out, alignment, bytes);
  if (result == 0) counted(*out);
  return result;
}

void __wrap_free(void *memory);
void __wrap_free(void *memory) {
  if (memory) atomic_fetch_sub(&live_blocks, 1);
  __real_free(memory);
}

int __wrap_pthread_create(pthread_t *thread, const pthread_attr_t *attributes, void *(*run)(void *),
                          void *context);
int __wrap_pthread_create(pthread_t *thread, const pthread_attr_t *attributes, void *(*run)(void *),
                          void *context) {
  return fault_hits(FAULT_THREAD, NULL) ? EAGAIN : __real_pthread_create(thread, attributes, run, context);
}

void *fault_plain_malloc(size_t bytes) { return __real_malloc(bytes); }
void fault_plain_free(void *memory) { __real_free(memory); }
