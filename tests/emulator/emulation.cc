// The fibers of tests/emulator/emulation.h, and the launch of a kernel.
#include "emulation.h"

#include <dlfcn.h>
#include <sys/mman.h>

#include <cstdio>
#include <cstdlib>
#include <map>
#include <memory>
#include <mutex>
#include <random>
#include <vector>

// Saves what a call has to keep, and goes on where another fiber has done so.
extern "C" void emulation_switch(void **from, void *to);
asm(R"(
.text
.globl emulation_switch
.hidden emulation_switch
emulation_switch:
  pushq %rbp
  pushq %rbx
  pushq %r12
  pushq %r13
  pushq %r14
  pushq %r15
  movq %rsp, (%rdi)
  movq %rsi, %rsp
  popq %r15
  popq %r14
  popq %r13
  popq %r12
  popq %rbx
  popq %rbp
  ret
)");

namespace emulation {
namespace {

constexpr size_t kStackBytes = 256 << 10, kSharedBytes = 228 << 10;
constexpr int kMaxThreads = 1024;

alignas(1024) unsigned char dynamic_memory[kSharedBytes];

struct Copy {
  unsigned char *destination;
  const void *source;
  int bytes, size;
};

struct Fiber : Thread {
  void *stack_pointer;
  bool done;
  std::vector<Copy> copies;
  std::vector<size_t> groups;  // of committed copies, where each ends
};

// Where lanes of a mask meet.
struct Meeting {
  Lanes lanes = {};
  uint32_t arrived = 0;
  uint64_t times = 0;
  void (*all)(const Lanes &) = nullptr;
};

struct Warp {
  uint32_t alive = 0;
  std::map<uint32_t, Meeting> meetings;
};

struct State {
  std::vector<Fiber> fibers{kMaxThreads};
  std::vector<Warp> warps;
  std::vector<int> order;
  char *stacks = nullptr;
  Fiber *current = nullptr;
  void *scheduler = nullptr;
  void (*kernel)(void *) = nullptr;
  void *parameter = nullptr;
  const char *name = "";
  dim3 grid, block;
  uint3 block_index;
  int threads = 0, alive = 0, at_barrier = 0, idle = 0;
  uint64_t barriers = 0;
  std::mt19937 random{1};
} state;

[[noreturn]] void fail(const char *why) {
  std::fprintf(stderr, "emulation of %s: %s (block %u, thread %u)\n", state.name, why, state.block_index.x,
               state.current ? state.current->index.x : 0);
  std::abort();
}

void yield() {
  Fiber *const mine = state.current;
  emulation_switch(&mine->stack_pointer, state.scheduler);
}

void progress() { state.idle = 0; }

void open_barrier_if_all() {
  if (state.at_barrier == 0 || state.at_barrier < state.alive) return;
  state.at_barrier = 0;
  ++state.barriers;
  progress();
}

void hold_if_all(Warp &warp, uint32_t mask, Meeting &meeting) {
  const uint32_t wanted = mask & warp.alive;
  if (meeting.arrived == 0 || (meeting.arrived & wanted) != wanted) return;
  meeting.all(meeting.lanes);
  std::fill(std::begin(meeting.lanes), std::end(meeting.lanes), nullptr);
  meeting.arrived = 0;
  ++meeting.times;
  progress();
}

void run_fiber() {
  state.kernel(state.parameter);
  wait_for_copies(0);
  Fiber *const mine = state.current;
  mine->done = true;
  progress();
  --state.alive;
  open_barrier_if_all();
  Warp &warp = state.warps[mine->warp];
  warp.alive &= ~(1u << mine->lane);
  for (auto &[mask, meeting] : warp.meetings) hold_if_all(warp, mask, meeting);
  yield();
  std::abort();
}

void prepare(Fiber &fiber, int number) {
  char *const end = state.stacks + kStackBytes * (number + 1);
  // The switch pops six registers and returns to run_fiber as if that had been called, the stack 8 bytes off a multiple of 16.
  auto **top = reinterpret_cast<void **>(end);
  *--top = nullptr;
  *--top = reinterpret_cast<void *>(run_fiber);
  top -= 6;
  std::fill(top, top + 6, nullptr);
  fiber.stack_pointer = top;
  fiber.done = false;
  fiber.copies.clear();
  fiber.groups.clear();
  const unsigned x = state.block.x, y = state.block.y;
  fiber.index = {number % x, number / x % y, number / x / y};
  fiber.lane = number % 32;
  fiber.warp = number / 32;
}

void run_block() {
  std::memset(dynamic_memory, 0xff, sizeof dynamic_memory);
  state.alive = state.threads;
  state.at_barrier = state.idle = 0;
  state.warps.assign((state.threads + 31) / 32, Warp());
  for (int i = 0; i < state.threads; ++i) {
    prepare(state.fibers[i], i);
    state.warps[i / 32].alive |= 1u << i % 32;
  }
  std::shuffle(state.order.begin(), state.order.end(), state.random);
  while (state.alive > 0)
    for (int i : state.order) {
      Fiber &fiber = state.fibers[i];
      if (fiber.done) continue;
      // Nobody has come further since all were asked twice: each waits for another.
      if (++state.idle > 2 * state.threads + 2) fail("its threads wait for one another");
      state.current = &fiber;
      emulation_switch(&state.scheduler, fiber.stack_pointer);
    }
  state.current = nullptr;
}

}  // namespace

const Thread &thread() { return *state.current; }
const uint3 &block() { return state.block_index; }
dim3 grid_size() { return state.grid; }
dim3 block_size() { return state.block; }

void wait_for_block() {
  const uint64_t before = state.barriers;
  ++state.at_barrier;
  progress();
  open_barrier_if_all();
  while (state.barriers == before) yield();
}

void meet(uint32_t mask, void *mine, void (*all)(const Lanes &)) {
  Warp &warp = state.warps[state.current->warp];
  const uint32_t bit = 1u << state.current->lane;
  if (!(mask & bit)) fail("a lane meets others by a mask that it is not in");
  Meeting &meeting = warp.meetings[mask];
  if (meeting.arrived && meeting.all != all) fail("lanes of a warp meet for different things");
  meeting.all = all;
  meeting.lanes[state.current->lane] = mine;
  meeting.arrived |= bit;
  const uint64_t before = meeting.times;
  progress();
  hold_if_all(warp, mask, meeting);
  while (meeting.times == before) yield();
}

unsigned char *shared(uint32_t address) { return dynamic_memory + static_cast<int32_t>(address); }
uint32_t shared_address(const void *pointer) {
  return static_cast<uint32_t>(static_cast<const unsigned char *>(pointer) - dynamic_memory);
}
unsigned char *dynamic_shared() { return dynamic_memory; }

void copy_later(uint32_t destination, const void *source, int bytes, int size) {
  unsigned char *const to = shared(destination);
  if (destination % size != 0 || (bytes > 0 && reinterpret_cast<uintptr_t>(source) % size != 0))
    fail("cp.async of what is not aligned");
  std::memset(to, 0xff, size);
  state.current->copies.push_back({to, source, bytes, size});
}

void commit_copies() { state.current->groups.push_back(state.current->copies.size()); }

void wait_for_copies(int pending) {
  Fiber &fiber = *state.current;
  const int landed = static_cast<int>(fiber.groups.size()) - pending;
  if (landed <= 0) return;
  const size_t end = fiber.groups[landed - 1];
  for (size_t i = 0; i < end; ++i) {
    const Copy &copy = fiber.copies[i];
    if (copy.bytes > 0) std::memcpy(copy.destination, copy.source, copy.bytes);
    std::memset(copy.destination + copy.bytes, 0, copy.size - copy.bytes);
  }
  fiber.copies.erase(fiber.copies.begin(), fiber.copies.begin() + static_cast<ptrdiff_t>(end));
  fiber.groups.erase(fiber.groups.begin(), fiber.groups.begin() + landed);
  for (size_t &group : fiber.groups) group -= end;
}

}  // namespace emulation

// Runs a kernel, which has one parameter. false: there is none of that name.
extern "C" bool emulation_launch(const char *name, const unsigned *grid, const unsigned *block,
                                 void *parameter) {
  using namespace emulation;
  static std::mutex mutex;
  const std::lock_guard lock(mutex);
  static void *const kernels = [] {
    Dl_info info;
    dladdr(reinterpret_cast<void *>(emulation_launch), &info);
    return dlopen(info.dli_fname, RTLD_NOW | RTLD_NOLOAD);
  }();
  state.kernel = reinterpret_cast<void (*)(void *)>(dlsym(kernels, name));
  if (!state.kernel) return false;
  if (!state.stacks)
    state.stacks =
        static_cast<char *>(mmap(nullptr, kStackBytes * kMaxThreads, PROT_READ | PROT_WRITE,
                                 MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0));
  state.name = name;
  state.parameter = parameter;
  state.grid = {grid[0], grid[1], grid[2]};
  state.block = {block[0], block[1], block[2]};
  state.threads = static_cast<int>(block[0] * block[1] * block[2]);
  state.order.resize(state.threads);
  for (int i = 0; i < state.threads; ++i) state.order[i] = i;
  for (unsigned z = 0; z < grid[2]; ++z)
    for (unsigned y = 0; y < grid[1]; ++y)
      for (unsigned x = 0; x < grid[0]; ++x) {
        state.block_index = {x, y, z};
        run_block();
      }
  return true;
}
