/* Each allocation, each thread and each call of the driver that an operation asks for fails in turn: the operation says
 * so or does without, leaves its inputs as they were and nothing behind, and the next call on the same structures gives
 * what it gives without any failure. */
#include <string.h>

#include "check.h"
#include "fake/fake_driver.h"
#include "fake/fault_points.h"
#include "operations.h"

/* What is alive: memory of the core, and of the driver. Some of either is kept for later calls (scratch memory, states of
 * devices), so it is compared after calls that all succeeded. */
typedef struct alive {
  int64_t blocks, allocations;
} alive;
static alive count_alive(void) { return (alive){fault_live_blocks(), atomic_load(&fake_driver.allocations)}; }

static void check_alive(const char *name, alive before) {
  const alive now = count_alive();
  if (now.blocks == before.blocks && now.allocations == before.allocations && fake_driver_contexts() == 0)
    return;
  fprintf(stderr, "%s: leaves %lld blocks, %lld of the driver's and %lld contexts behind\n", name,
          (long long)(now.blocks - before.blocks), (long long)(now.allocations - before.allocations),
          (long long)fake_driver_contexts());
  ++failures;
}

static void complain(const operation *o, const char *kind, int64_t number, const char *what) {
  fprintf(stderr, "%s: failure %lld of kind %s: %s\n", o->name, (long long)number, kind, what);
  ++failures;
}

/* Which statuses a failure of a kind may have. */
static bool is_expected(fault_kind kind, bsrg_status status, const char *message) {
  if (kind == FAULT_THREAD) return status == BSRG_OK;
  if (status == BSRG_OK) return true; /* something else did: the result is compared */
  if (message[0] == '\0' || strlen(message) < 10) return false;
  return status == BSRG_ERR_MEMORY || (kind == FAULT_DRIVER && status == BSRG_ERR_CUDA);
}

/* Runs the operation with the failure that is armed, then without. false: there was nothing to fail any more. */
static bool run_once(const operation *o, fault_kind kind, const char *name, int64_t number,
                     uint64_t expected) {
  inputs *in = make_inputs(o);
  result r = make_result(o, in);
  const uint64_t before = hash_inputs(in);
  bsrg_error error = {""};
  if (kind == FAULT_DRIVER && number == 0)
    fault_arm_named(name);
  else
    fault_arm(kind, number);
  bsrg_status status = run_operation(o, in, &r, &error);
  const bool happened = fault_disarm();
  if (happened && !is_expected(kind, status, error.message)) complain(o, name, number, error.message);
  if (happened && status == BSRG_OK && hash_result(&r) != expected)
    complain(o, name, number, "a wrong result");
  if (!happened && status != BSRG_OK) complain(o, name, number, error.message);
  if (hash_inputs(in) != before) complain(o, name, number, "changes its inputs");
  free_result(&r);
  r = make_result(o, in);
  status = run_operation(o, in, &r, &error);
  if (status != BSRG_OK) complain(o, name, number, error.message);
  if (hash_result(&r) != expected) complain(o, name, number, "a wrong result afterwards");
  free_result(&r);
  free_inputs(in);
  return happened;
}

static uint64_t run_without(const operation *o) {
  inputs *in = make_inputs(o);
  result r = make_result(o, in);
  bsrg_error error = {""};
  if (run_operation(o, in, &r, &error) != BSRG_OK) complain(o, "none", 0, error.message);
  const uint64_t hash = hash_result(&r);
  free_result(&r);
  free_inputs(in);
  return hash;
}

static int64_t points[FAULT_KINDS];

static void test_operation(const operation *o) {
  static const char *const kNames[FAULT_KINDS] = {"memory", "thread", "driver"};
  const uint64_t expected = run_without(o);
  const alive before = count_alive();
  for (int kind = 0; kind < FAULT_KINDS; ++kind)
    for (int64_t number = 1; run_once(o, (fault_kind)kind, kNames[kind], number, expected); ++number)
      ++points[kind];
  check_alive(o->name, before);
}

/* The driver's functions that a device's state is made with; uploads and launches come behind them. */
enum { kFallibleAtOpening = 10 };

/* What is made once and kept (threads, the state of a GPU, kernels): a failure meets it the first time only. */
static void test_first_calls(void) {
  const operation cpu = {"first threads", MATMUL, BSRG_AUTO, BSRG_F32, 0, 90, 90, 16, 16, 40, 64};
  CHECK(bsrg_set_num_threads(1, NULL) == BSRG_OK);
  const uint64_t alone = run_without(&cpu);
  CHECK(bsrg_set_num_threads(4, NULL) == BSRG_OK);
  for (int64_t number = 1; number <= 3; ++number)
    CHECK(run_once(&cpu, FAULT_THREAD, "thread", 1, alone) == (number < 2));

  const operation gpu = {"first launch", MATMUL, BSRG_TALL, BSRG_F16, ON_GPU, 9, 12, 64, 64, 6, 64};
  inputs *in = make_inputs(&gpu);
  result r = make_result(&gpu, in);
  bsrg_error error;
  const int64_t before = atomic_load(&fake_driver.allocations);
  /* The state of the device itself is the host's first allocation. */
  fault_arm(FAULT_MEMORY, 1);
  CHECK(bsrg_gpu_synchronize(0, NULL, &error) == BSRG_ERR_MEMORY);
  CHECK(fault_disarm());
  for (int i = 0; fake_driver_fallible[i]; ++i) {
    fault_arm_named(fake_driver_fallible[i]);
    const bsrg_status status = run_operation(&gpu, in, &r, &error);
    if (!fault_disarm()) complain(&gpu, fake_driver_fallible[i], 1, "is not called");
    if (status != BSRG_ERR_CUDA && status != BSRG_ERR_MEMORY)
      complain(&gpu, fake_driver_fallible[i], 1, "is not reported");
    if (i < kFallibleAtOpening && atomic_load(&fake_driver.allocations) != before)
      complain(&gpu, fake_driver_fallible[i], 1, "leaves memory of the driver behind");
  }
  CHECK(run_operation(&gpu, in, &r, &error) == BSRG_OK);
  free_result(&r);
  free_inputs(in);
}

int main(void) {
  test_first_calls();
  CHECK(bsrg_set_num_threads(3, NULL) == BSRG_OK);
  for (int i = 0; i < kOperationCount; ++i) test_operation(&kOperations[i]);
  printf("%lld allocations and %lld calls of the driver failed\n", (long long)points[FAULT_MEMORY],
         (long long)points[FAULT_DRIVER]);
  /* So that a table or a wrapper that lost its effect does not pass. */
  CHECK(points[FAULT_MEMORY] > 500 && points[FAULT_DRIVER] > 500);
  CHECK(fake_driver.refused[0] == '\0');
  if (failures > 0) fprintf(stderr, "%d failures, driver refused: \"%s\"\n", failures, fake_driver.refused);
  return failures > 0;
}
