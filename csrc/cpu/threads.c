/* The thread pool, the number of threads, and the scratch buffer that is kept between products.
 *
 * One job runs on the pool at a time; a caller that finds it taken works alone, so that nothing waits for
 * another product. Workers join an open job, find work by the task's own counters, and leave; the caller
 * closes the job when its own share has run dry and waits only for those who did join, never for one that
 * is slow to wake. */
#define _GNU_SOURCE
#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <unistd.h>
#if defined(__x86_64__)
#include <xmmintrin.h>
#endif

#include "cpu.h"

enum {
  MAX_THREADS = 1024,
  /* Rounds of looking for a job, or for the end of one, before sleeping: some 20 us. */
  SPIN_ROUNDS = 1000,
  /* Of scratch memory that is kept, per thread. */
  SCRATCH_KEPT = 4 << 20
};

static inline void relax(void) {
#if defined(__x86_64__)
  _mm_pause();
#elif defined(__aarch64__)
  __asm__ volatile("yield");
#endif
}

/* The modes of floating-point arithmetic (rounding, flushing of subnormal numbers) are a thread's own:
 * workers take the caller's, or the result would tell who computed it. */
static inline unsigned get_float_mode(void) {
#if defined(__x86_64__)
  return _mm_getcsr();
#else
  return 0;
#endif
}
static inline void set_float_mode(unsigned mode) {
#if defined(__x86_64__)
  _mm_setcsr(mode);
#else
  (void)mode;
#endif
}

/* ---- Number of threads --------------------------------------------------------------------------------- */

static atomic_int chosen_threads;  /* 0: the default */
static atomic_int default_threads; /* 0: not yet found */

/* A positive number at the start of a variable: OMP_NUM_THREADS may be a list, one entry a nesting level. */
static int number_in(const char *variable) {
  const char *text = getenv(variable);
  if (!text) return 0;
  char *end;
  errno = 0;
  const long number = strtol(text, &end, 10);
  while (*end == ' ') end++;
  if (end == text || (*end != '\0' && *end != ',') || errno || number < 1) return 0;
  return number < MAX_THREADS ? (int)number : MAX_THREADS;
}

static int processors(void) {
  long count = 0;
#if defined(__linux__)
  /* The kernel refuses a set smaller than its own, which no call tells the size of. */
  for (int size = 1024; count == 0 && size <= 1 << 20; size *= 4) {
    cpu_set_t *set = CPU_ALLOC((size_t)size);
    if (!set) break;
    const size_t bytes = CPU_ALLOC_SIZE((size_t)size);
    if (sched_getaffinity(0, bytes, set) == 0) count = CPU_COUNT_S(bytes, set);
    CPU_FREE(set);
  }
#endif
  if (count < 1) count = sysconf(_SC_NPROCESSORS_ONLN);
  if (count < 1) return 1;
  return count < MAX_THREADS ? (int)count : MAX_THREADS;
}

int bsrg_get_num_threads(void) {
  int count = atomic_load(&chosen_threads);
  if (count == 0) count = atomic_load(&default_threads);
  if (count == 0) {
    count = number_in("BSRGEMM_NUM_THREADS");
    if (count == 0) count = number_in("OMP_NUM_THREADS");
    if (count == 0) count = processors();
    atomic_store(&default_threads, count);
  }
  return count;
}

bsrg_status bsrg_set_num_threads(int count, bsrg_error *error) {
  if (count < 0 || count > MAX_THREADS) {
    return bsrg_fail(error, BSRG_ERR_VALUE,
                     "n is %d, but must be a number of threads from 1 to %d, or 0 for the default", count,
                     MAX_THREADS);
  }
  atomic_store(&chosen_threads, count);
  if (count == 0) atomic_store(&default_threads, 0);
  return BSRG_OK;
}

/* ---- Pool ---------------------------------------------------------------------------------------------- */

static struct pool {
  pthread_mutex_t busy; /* held by the caller whose job it is */
  pthread_mutex_t lock; /* guards what follows */
  pthread_cond_t wake, done;
  int workers, sleeping;
  bsrg_task task;
  void *context;
  unsigned float_mode;
  int next_slot;
  /* Written under the lock, read without it by those who spin. */
  atomic_int open_slots; /* workers that may still join the job */
  atomic_int active;     /* workers that have joined it and not left */
} pool = {.busy = PTHREAD_MUTEX_INITIALIZER,
          .lock = PTHREAD_MUTEX_INITIALIZER,
          .wake = PTHREAD_COND_INITIALIZER,
          .done = PTHREAD_COND_INITIALIZER};

/* A forked child has the memory of its parent but none of its threads. */
static void reset_in_child(void) {
  pthread_mutex_init(&pool.busy, NULL);
  pthread_mutex_init(&pool.lock, NULL);
  pthread_cond_init(&pool.wake, NULL);
  pthread_cond_init(&pool.done, NULL);
  pool.workers = pool.sleeping = 0;
  atomic_store(&pool.open_slots, 0);
  atomic_store(&pool.active, 0);
}

static void watch_forks(void) { pthread_atfork(NULL, NULL, reset_in_child); }

static void *work(void *unused) {
  (void)unused;
  pthread_mutex_lock(&pool.lock);
  for (;;) {
    if (atomic_load(&pool.open_slots) == 0) {
      pthread_mutex_unlock(&pool.lock);
      for (int i = 0; i < SPIN_ROUNDS && atomic_load_explicit(&pool.open_slots, memory_order_relaxed) == 0;
           i++) {
        relax();
      }
      pthread_mutex_lock(&pool.lock);
    }
    while (atomic_load(&pool.open_slots) == 0) {
      pool.sleeping++;
      pthread_cond_wait(&pool.wake, &pool.lock);
      pool.sleeping--;
    }
    const bsrg_task task = pool.task;
    void *const context = pool.context;
    const unsigned mode = pool.float_mode;
    const int slot = pool.next_slot++;
    atomic_fetch_sub(&pool.open_slots, 1);
    atomic_fetch_add(&pool.active, 1);
    pthread_mutex_unlock(&pool.lock);

    set_float_mode(mode);
    task(context, slot);

    pthread_mutex_lock(&pool.lock);
    /* This one found nothing more to do, so neither would another. */
    atomic_store(&pool.open_slots, 0);
    if (atomic_fetch_sub(&pool.active, 1) == 1) pthread_cond_signal(&pool.done);
  }
  return NULL;
}

/* Starts workers until there are `count`, or as many as the system grants. Under pool.lock. */
static void grow(int count) {
  if (pool.workers >= count) return;
  sigset_t all, before;
  sigfillset(&all); /* signals are for the program's own threads */
  pthread_sigmask(SIG_SETMASK, &all, &before);
  pthread_attr_t attributes;
  pthread_attr_init(&attributes);
  pthread_attr_setdetachstate(&attributes, PTHREAD_CREATE_DETACHED);
  while (pool.workers < count) {
    pthread_t thread;
    if (pthread_create(&thread, &attributes, work, NULL) != 0) break;
    pool.workers++;
  }
  pthread_attr_destroy(&attributes);
  pthread_sigmask(SIG_SETMASK, &before, NULL);
}

void bsrg_run_parallel(bsrg_task task, void *context, int threads) {
  static pthread_once_t once = PTHREAD_ONCE_INIT;
  if (threads <= 1 || pthread_once(&once, watch_forks) != 0 || pthread_mutex_trylock(&pool.busy) != 0) {
    task(context, 0);
    return;
  }
  pthread_mutex_lock(&pool.lock);
  grow(threads - 1);
  pool.task = task;
  pool.context = context;
  pool.float_mode = get_float_mode();
  pool.next_slot = 1;
  atomic_store(&pool.open_slots, threads - 1);
  for (int i = 0; i < threads - 1 && i < pool.sleeping; i++) pthread_cond_signal(&pool.wake);
  pthread_mutex_unlock(&pool.lock);

  task(context, 0);

  pthread_mutex_lock(&pool.lock);
  atomic_store(&pool.open_slots, 0);
  pthread_mutex_unlock(&pool.lock);
  for (int i = 0; i < SPIN_ROUNDS && atomic_load(&pool.active) > 0; i++) relax();
  pthread_mutex_lock(&pool.lock);
  while (atomic_load(&pool.active) > 0) pthread_cond_wait(&pool.done, &pool.lock);
  pthread_mutex_unlock(&pool.lock);
  pthread_mutex_unlock(&pool.busy);
}

/* ---- Scratch memory ------------------------------------------------------------------------------------ */

/* Ahead of the memory handed out, on a cache line of its own. */
typedef struct scratch {
  size_t bytes;
  char pad[64 - sizeof(size_t)];
} scratch;

static _Atomic(scratch *) kept;

void *bsrg_scratch_take(size_t bytes) {
  scratch *buffer = atomic_exchange(&kept, NULL);
  if (buffer && buffer->bytes >= bytes) return buffer + 1;
  free(buffer);
  void *memory;
  if (bytes > SIZE_MAX - sizeof *buffer || posix_memalign(&memory, 64, sizeof *buffer + bytes) != 0)
    return NULL;
  buffer = memory;
  buffer->bytes = bytes;
  return buffer + 1;
}

void bsrg_scratch_give(void *memory) {
  scratch *buffer = (scratch *)memory - 1;
  if (buffer->bytes > (size_t)bsrg_get_num_threads() * SCRATCH_KEPT) {
    free(buffer);
    return;
  }
  free(atomic_exchange(&kept, buffer));
}
