/* Every operation from several threads at once, on structures that they share and on ones of their own, while another
 * thread changes the number of threads: the results are those of one thread. Under ThreadSanitizer it says also what
 * goes well by chance only; the driver is the fake one, of which nothing is shared but what the core shares. */
#define _GNU_SOURCE /* for barriers */
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdlib.h>

#include "check.h"
#include "operations.h"

enum { CALLERS = 3 };

typedef struct call {
  const operation *operation;
  const inputs *inputs;
  result result;
  uint64_t hash;
  bsrg_status status;
} call;

static pthread_barrier_t start;
static atomic_bool over;

static void *run_call(void *context) {
  call *c = context;
  bsrg_error error;
  pthread_barrier_wait(&start); /* so that all meet a structure without plans */
  c->status = run_operation(c->operation, c->inputs, &c->result, &error);
  c->hash = hash_result(&c->result);
  return NULL;
}

static void run_calls(call *calls) {
  pthread_t threads[CALLERS];
  CHECK(pthread_barrier_init(&start, NULL, CALLERS) == 0);
  for (int i = 0; i < CALLERS; ++i) CHECK(pthread_create(&threads[i], NULL, run_call, &calls[i]) == 0);
  for (int i = 0; i < CALLERS; ++i) CHECK(pthread_join(threads[i], NULL) == 0);
  pthread_barrier_destroy(&start);
}

static void test_operation(const operation *o, int rounds) {
  inputs *own[CALLERS];
  call alone = {.operation = o};
  own[0] = make_inputs(o);
  alone.result = make_result(o, own[0]);
  CHECK(run_operation(o, own[0], &alone.result, NULL) == BSRG_OK);
  const uint64_t expected = hash_result(&alone.result);
  free_result(&alone.result);
  free_inputs(own[0]);
  for (int round = 0; round < rounds; ++round) {
    const bool shared = round % 2 == 0;
    call calls[CALLERS];
    for (int i = 0; i < CALLERS; ++i) {
      own[i] = i > 0 && shared ? own[0] : make_inputs(o);
      calls[i] = (call){.operation = o, .inputs = own[i], .result = make_result(o, own[i])};
    }
    run_calls(calls);
    for (int i = 0; i < CALLERS; ++i) {
      if (calls[i].status != BSRG_OK || calls[i].hash != expected) {
        fprintf(stderr, "%s: another result from caller %d of %s inputs\n", o->name, i,
                shared ? "shared" : "own");
        ++failures;
      }
      free_result(&calls[i].result);
      if (i == 0 || !shared) free_inputs(own[i]);
    }
  }
}

static void *change_thread_count(void *context) {
  (void)context;
  for (int i = 0; !atomic_load(&over); ++i) {
    CHECK(bsrg_set_num_threads(1 + i % 4, NULL) == BSRG_OK);
    sched_yield();
  }
  return NULL;
}

/* The argument: how many rounds, of which every other one has shared inputs. */
int main(int argc, char **argv) {
  const int rounds = argc > 1 ? atoi(argv[1]) : 2;
  pthread_t changer;
  CHECK(pthread_create(&changer, NULL, change_thread_count, NULL) == 0);
  for (int i = 0; i < kOperationCount; ++i) test_operation(&kOperations[i], rounds);
  atomic_store(&over, true);
  CHECK(pthread_join(changer, NULL) == 0);
  return failures > 0;
}
