/* The CPU backend's threads: the same bits from any number of them, calls from several at once and after a
 * fork, how many there are, and lack of memory. */
#define _GNU_SOURCE
#include <dirent.h>
#include <pthread.h>
#include <sys/resource.h>
#if defined(__x86_64__)
#include <xmmintrin.h>
#endif

#include "cpu_operands.h"

#if defined(__SANITIZE_THREAD__)
enum { UNDER_TSAN = 1 };
#else
enum { UNDER_TSAN = 0 };
#endif

/* A product of real numbers, and its bits as one thread computes them. */
typedef struct sample {
  sparse a;
  matrix x;
  bsrg_dtype dtype;
  char *bits;
  int64_t bytes;
} sample;

static bool matches(const sample *s) {
  matrix y = new_matrix(bsrg_structure_get(s->a.structure).rows, s->x.view.cols, s->dtype, ROWS);
  const bsrg_matmul_args args = arguments(&s->a, &s->x, NULL, &y, 0.7, 0);
  const bool same =
      bsrg_cpu_matmul(&args, NULL) == BSRG_OK && memcmp(y.memory, s->bits, (size_t)s->bytes) == 0;
  free(y.memory);
  return same;
}

static sample new_sample(const sizes *z, bsrg_dtype dtype) {
  sample s = {.dtype = dtype};
  s.a = new_sparse(z->block_rows, z->block_cols, z->height, z->width, z->longest, true, dtype, false);
  s.x = new_matrix(z->block_cols * z->width, z->columns, dtype, ROWS);
  fill(&s.x, false);
  matrix y = new_matrix(z->block_rows * z->height, z->columns, dtype, ROWS);
  const bsrg_matmul_args args = arguments(&s.a, &s.x, NULL, &y, 0.7, 0);
  CHECK(bsrg_set_num_threads(1, NULL) == BSRG_OK);
  CHECK(bsrg_cpu_matmul(&args, NULL) == BSRG_OK);
  s.bits = y.memory;
  s.bytes = y.bytes;
  return s;
}

static void free_sample(sample *s) {
  free(s->bits);
  free(s->x.memory);
  free_sparse(&s->a);
}

static void test_same_bits(void) {
  static const int kThreads[] = {2, 3, 7, 16};
  for (int i = 0; i < LARGE_COUNT; i++) {
    for (int dtype = BSRG_BF16; dtype <= BSRG_F64; dtype++) {
      sample s = new_sample(&kLarge[i], (bsrg_dtype)dtype);
      for (int t = 0; t < 4; t++) {
        CHECK(bsrg_set_num_threads(kThreads[t], NULL) == BSRG_OK);
        CHECK(matches(&s));
      }
      free_sample(&s);
    }
  }
}

static void *repeat_sample(void *context) {
  const sample *s = context;
  intptr_t wrong = 0;
  for (int i = 0; i < 20; i++) wrong += !matches(s);
  return (void *)wrong;
}

static const sizes kShared = {40, 60, 16, 16, 64, 30};

static void test_concurrent_calls(void) {
  sample s = new_sample(&kShared, BSRG_F32);
  CHECK(bsrg_set_num_threads(3, NULL) == BSRG_OK);
  pthread_t callers[4];
  for (int i = 0; i < 4; i++) CHECK(pthread_create(&callers[i], NULL, repeat_sample, &s) == 0);
  for (int i = 0; i < 4; i++) {
    void *wrong;
    CHECK(pthread_join(callers[i], &wrong) == 0);
    CHECK(wrong == NULL);
  }
  free_sample(&s);
}

#if defined(__x86_64__)
/* Whether subnormal numbers are flushed to zero is a setting of the calling thread, and counts for all. */
static void test_float_mode(void) {
  sample s = new_sample(&kShared, BSRG_F32);
  for (int64_t i = 0; i < s.x.view.rows; i++) {
    for (int64_t j = 0; j < s.x.view.cols; j++) put(&s.x, i, j, ldexp(at(&s.x, i, j), -130));
  }
  const unsigned before = _mm_getcsr();
  CHECK(!matches(&s));
  _mm_setcsr(before | 0x8040); /* flush results and operands */
  memset(s.bits, 0, (size_t)s.bytes);
  CHECK(bsrg_set_num_threads(3, NULL) == BSRG_OK);
  int wrong = 0;
  for (int i = 0; i < 20; i++) wrong += !matches(&s);
  CHECK(wrong == 0);
  _mm_setcsr(before);
  free_sample(&s);
}
#endif

static int threads_alive(void) {
  DIR *folder = opendir("/proc/self/task");
  if (folder == NULL) return 0;
  int count = 0;
  for (const struct dirent *entry = readdir(folder); entry != NULL; entry = readdir(folder)) {
    count += entry->d_name[0] != '.';
  }
  closedir(folder);
  return count;
}

/* A child has none of its parent's threads, and starts its own. */
static void test_fork(void) {
  sample s = new_sample(&kShared, BSRG_F32);
  CHECK(bsrg_set_num_threads(3, NULL) == BSRG_OK);
  CHECK(matches(&s));
  /* While another thread is inside a product, too. */
  pthread_t caller;
  CHECK(pthread_create(&caller, NULL, repeat_sample, &s) == 0);
  for (int i = 0; i < 5; i++) {
    const pid_t child = fork();
    if (child == 0) {
      alarm(60);
      _exit(threads_alive() == 1 && matches(&s) && matches(&s) && threads_alive() == 3 ? 0 : 1);
    }
    int status;
    CHECK(waitpid(child, &status, 0) == child);
    CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0);
  }
  void *wrong;
  CHECK(pthread_join(caller, &wrong) == 0);
  CHECK(wrong == NULL);
  CHECK(matches(&s));
  free_sample(&s);
}

static void test_thread_count(void) {
  static const struct {
    const char *ours, *omp;
    int expected; /* 0: the processors */
  } kCases[] = {{"3", "5", 3}, {NULL, "5", 5}, {NULL, "6,2", 6},
                {"x", "5", 5}, {"0", "-1", 0}, {NULL, NULL, 0}};
  bsrg_error error;
  static const int kBad[] = {-1, 1025, -2147483647 - 1, 2147483647};
  for (int i = 0; i < 4; i++) {
    char given[32];
    snprintf(given, sizeof given, "n is %d,", kBad[i]);
    CHECK(bsrg_set_num_threads(kBad[i], &error) == BSRG_ERR_VALUE);
    CHECK(strstr(error.message, given) != NULL && strstr(error.message, "from 1 to 1024") != NULL);
  }
  CHECK(bsrg_set_num_threads(7, NULL) == BSRG_OK && bsrg_get_num_threads() == 7);
  unsetenv("BSRGEMM_NUM_THREADS");
  unsetenv("OMP_NUM_THREADS");
  CHECK(bsrg_set_num_threads(0, NULL) == BSRG_OK);
  const int processors = bsrg_get_num_threads();
  CHECK(processors >= 1);
  for (size_t i = 0; i < sizeof kCases / sizeof *kCases; i++) {
    unsetenv("BSRGEMM_NUM_THREADS");
    unsetenv("OMP_NUM_THREADS");
    if (kCases[i].ours != NULL) setenv("BSRGEMM_NUM_THREADS", kCases[i].ours, 1);
    if (kCases[i].omp != NULL) setenv("OMP_NUM_THREADS", kCases[i].omp, 1);
    CHECK(bsrg_set_num_threads(0, NULL) == BSRG_OK);
    CHECK(bsrg_get_num_threads() == (kCases[i].expected > 0 ? kCases[i].expected : processors));
  }
}

/* ---- Memory -------------------------------------------------------------------------------------------- */

enum { ENOUGH_MIB = 40 };

/* AddressSanitizer's allocator is to fail like the system's. */
const char *__asan_default_options(void);
const char *__asan_default_options(void) { return "allocator_may_return_null=1:max_allocation_size_mb=40"; }

/* Panels for some 60 threads need more than there is: refused, and nothing has been touched. */
static void test_no_memory(void) {
  static const sizes kHungry = {8, 128, 64, 64, 70, 128};
  sample s = new_sample(&kHungry, BSRG_F32);
  matrix y = new_matrix(8 * 64, 70, BSRG_F32, ROWS);
  const bsrg_matmul_args args = arguments(&s.a, &s.x, NULL, &y, 0.7, 0);
  struct rlimit before;
  CHECK(getrlimit(RLIMIT_AS, &before) == 0);
#if !defined(__SANITIZE_ADDRESS__)
  long pages = 0;
  FILE *statm = fopen("/proc/self/statm", "r");
  CHECK(statm != NULL && fscanf(statm, "%ld", &pages) == 1);
  if (statm != NULL) fclose(statm);
  const struct rlimit tight = {(rlim_t)pages * (rlim_t)sysconf(_SC_PAGESIZE) + ((rlim_t)ENOUGH_MIB << 20),
                               before.rlim_max};
  CHECK(setrlimit(RLIMIT_AS, &tight) == 0);
#endif
  bsrg_error error;
  CHECK(bsrg_set_num_threads(1024, NULL) == BSRG_OK);
  CHECK(bsrg_cpu_matmul(&args, &error) == BSRG_ERR_MEMORY);
  CHECK(strstr(error.message, "no memory for ") != NULL);
  CHECK(setrlimit(RLIMIT_AS, &before) == 0);
  for (int64_t i = 0; i < y.bytes; i++) {
    if ((unsigned char)y.memory[i] != 0xff) {
      CHECK(!"y is untouched");
      break;
    }
  }
  CHECK(bsrg_set_num_threads(2, NULL) == BSRG_OK);
  CHECK(matches(&s));
  free(y.memory);
  free_sample(&s);
}

static void tests(void) {
  test_same_bits();
  test_concurrent_calls();
#if defined(__x86_64__)
  test_float_mode();
#endif
  if (!UNDER_TSAN) {
    /* ThreadSanitizer allows no threads after a fork of several, and maps more memory than a limit would
     * leave. */
    test_fork();
    test_no_memory();
  }
  test_thread_count();
}

int main(void) { return run_on_every_isa(tests); }
