// The fibers of tests/emulator/emulation.h, what they wait for, and the launch of a kernel.
#include "emulation.h"

#include <dlfcn.h>
#include <sys/mman.h>

#include <cstdio>
#include <cstdlib>
#include <deque>
#include <map>
#include <mutex>
#include <random>
#include <unordered_map>
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
constexpr int kNamedBarriers = 16;
// Of shared addresses: beside the offset the rank of a block of the cluster, counted from 1, or that it is a static variable.
constexpr uint32_t kOffset = (1u << 24) - 1, kStatic = 1u << 31;

struct Copy {
  unsigned char *destination;
  const void *source;
  int bytes, size;
};

// What a thread has begun and will wait for, in groups.
template <typename T>
struct Groups {
  std::vector<T> all;
  std::vector<size_t> ends;

  void clear() {
    all.clear();
    ends.clear();
  }
  void commit() { ends.push_back(all.size()); }
  // What has to be done until no more than so many groups are left.
  std::vector<T> take(int pending) {
    const int done = static_cast<int>(ends.size()) - pending;
    if (done <= 0) return {};
    const auto end = static_cast<ptrdiff_t>(ends[done - 1]);
    std::vector<T> taken(all.begin(), all.begin() + end);
    all.erase(all.begin(), all.begin() + end);
    ends.erase(ends.begin(), ends.begin() + done);
    for (size_t &group : ends) group -= end;
    return taken;
  }
};

struct Block;

struct Fiber : Thread {
  Block *block;
  void *stack_pointer;
  bool done;
  Groups<Copy> copies;
  Groups<std::function<void()>> stores;
  std::deque<std::function<void()>> products;
  std::deque<int64_t> product_groups;  // how many had begun when each group ended
  int64_t products_begun, products_done;
  uint64_t cluster_barrier;  // which it has arrived at
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

struct NamedBarrier {
  int arrived = 0;
  uint64_t times = 0;
};

struct Made {
  std::shared_ptr<void> what;
  int uses = 0;
};

struct Block {
  uint3 index;
  int rank, alive, at_barrier;
  uint64_t barriers;
  std::vector<Warp> warps;
  NamedBarrier named[kNamedBarriers];
  std::map<std::pair<int, SharedKey>, Made> made;  // by warpgroup
  unsigned char *memory = nullptr;
};

struct Mbarrier {
  int expected, pending, bytes;
  uint32_t phase;
};

struct State {
  std::vector<Fiber> fibers;
  std::vector<Block> blocks;
  std::vector<int> order;
  std::unordered_map<unsigned char *, Mbarrier> mbarriers;
  std::vector<std::function<void()>> under_way;
  char *stacks = nullptr;
  size_t stacks_for = 0;
  Fiber *current = nullptr;
  void *scheduler = nullptr;
  void (*kernel)(void *) = nullptr;
  void *parameter = nullptr;
  const char *name = "";
  dim3 grid, block;
  int threads = 0, alive = 0, in_cluster = 0;
  uint64_t cluster_barriers = 0;
  size_t idle = 0;
  std::mt19937 random{1};
} state;

alignas(128) unsigned char a_static;  // beside which the others lie

void progress() { state.idle = 0; }

void open_if_all(Block &block) {
  if (block.at_barrier == 0 || block.at_barrier < block.alive) return;
  block.at_barrier = 0;
  ++block.barriers;
  progress();
}

void open_cluster_if_all() {
  if (state.in_cluster == 0 || state.in_cluster < state.alive) return;
  state.in_cluster = 0;
  ++state.cluster_barriers;
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
  Fiber *const mine = state.current;
  wait_for_copies(0);
  mine->stores.commit();
  wait_for_stores(0);
  if (!mine->products.empty()) fail("a thread ends without a wait for its products");
  mine->done = true;
  progress();
  --state.alive;
  --mine->block->alive;
  open_if_all(*mine->block);
  open_cluster_if_all();
  Warp &warp = mine->block->warps[mine->warp];
  warp.alive &= ~(1u << mine->lane);
  for (auto &[mask, meeting] : warp.meetings) hold_if_all(warp, mask, meeting);
  yield();
  std::abort();
}

void prepare(Fiber &fiber, int number, Block &block) {
  char *const end = state.stacks + kStackBytes * (&fiber - state.fibers.data() + 1);
  // The switch pops six registers and returns to run_fiber as if that had been called, the stack 8 bytes off a multiple of 16.
  auto **top = reinterpret_cast<void **>(end);
  *--top = nullptr;
  *--top = reinterpret_cast<void *>(run_fiber);
  top -= 6;
  std::fill(top, top + 6, nullptr);
  fiber.stack_pointer = top;
  fiber.block = &block;
  fiber.done = false;
  fiber.copies.clear();
  fiber.stores.clear();
  fiber.products.clear();
  fiber.product_groups.clear();
  fiber.products_begun = fiber.products_done = 0;
  const unsigned x = state.block.x, y = state.block.y;
  fiber.index = {number % x, number / x % y, number / x / y};
  fiber.lane = number % 32;
  fiber.warp = number / 32;
  block.warps[fiber.warp].alive |= 1u << fiber.lane;
}

bool do_one_under_way() {
  if (state.under_way.empty()) return false;
  std::swap(state.under_way[state.random() % state.under_way.size()], state.under_way.back());
  const std::function<void()> what = std::move(state.under_way.back());
  state.under_way.pop_back();
  what();
  progress();
  return true;
}

// Blocks of one cluster, side by side.
void run_cluster(uint3 first) {
  state.mbarriers.clear();
  state.in_cluster = 0;
  state.idle = 0;
  const int blocks = static_cast<int>(state.blocks.size());
  state.alive = blocks * state.threads;
  for (int b = 0; b < blocks; ++b) {
    Block &block = state.blocks[b];
    block.index = {first.x + b, first.y, first.z};
    block.rank = b;
    block.alive = state.threads;
    block.at_barrier = 0;
    block.warps.assign((state.threads + 31) / 32, Warp());
    std::fill(std::begin(block.named), std::end(block.named), NamedBarrier());
    block.made.clear();
    std::memset(block.memory, 0xff, kSharedBytes);
    for (int i = 0; i < state.threads; ++i) prepare(state.fibers[b * state.threads + i], i, block);
  }
  std::shuffle(state.order.begin(), state.order.end(), state.random);
  while (state.alive > 0)
    for (int i : state.order) {
      Fiber &fiber = state.fibers[i];
      if (fiber.done) continue;
      if (state.random() % 16 == 0) do_one_under_way();
      // Nobody has come further since all were asked twice: each waits for another.
      if (++state.idle > 2 * state.fibers.size() + 2 && !do_one_under_way())
        fail("its threads wait for one another");
      state.current = &fiber;
      emulation_switch(&state.scheduler, fiber.stack_pointer);
    }
  state.current = nullptr;
  if (!state.under_way.empty()) fail("something is under way when its blocks have ended");
}

Mbarrier &barrier_at(uint32_t address) {
  const auto found = state.mbarriers.find(shared(address));
  if (found == state.mbarriers.end()) fail("a barrier that has not been initialised");
  return found->second;
}

void step(Mbarrier &barrier) {
  if (barrier.pending != 0 || barrier.bytes != 0) return;
  barrier.pending = barrier.expected;
  ++barrier.phase;
  progress();
}

}  // namespace

void fail(const char *why) {
  const Fiber *const f = state.current;
  std::fprintf(stderr, "emulation of %s: %s (block %u, thread %u)\n", state.name, why,
               f ? f->block->index.x : 0, f ? f->index.x : 0);
  std::abort();
}

void yield() {
  Fiber *const mine = state.current;
  emulation_switch(&mine->stack_pointer, state.scheduler);
}

const Thread &thread() { return *state.current; }
const uint3 &block() { return state.current->block->index; }
dim3 grid_size() { return state.grid; }
dim3 block_size() { return state.block; }

// ---- barriers -----------------------------------------------------------------------------------

void wait_for_block() {
  Block &block = *state.current->block;
  const uint64_t before = block.barriers;
  ++block.at_barrier;
  progress();
  open_if_all(block);
  while (block.barriers == before) yield();
}

void arrive_with_some(int barrier, int threads) {
  NamedBarrier &named = state.current->block->named[barrier];
  progress();
  if (++named.arrived < threads) return;
  named.arrived = 0;
  ++named.times;
}

void wait_for_some(int barrier, int threads) {
  NamedBarrier &named = state.current->block->named[barrier];
  const uint64_t before = named.times;
  arrive_with_some(barrier, threads);
  while (named.times == before) yield();
}

void arrive_in_cluster() {
  state.current->cluster_barrier = state.cluster_barriers;
  ++state.in_cluster;
  progress();
  open_cluster_if_all();
}

void wait_for_cluster() {
  while (state.cluster_barriers == state.current->cluster_barrier) yield();
}

void init_barrier(uint32_t barrier, int arrivals) {
  if (barrier % 8) fail("a barrier that is not aligned");
  state.mbarriers[shared(barrier)] = {arrivals, arrivals, 0, 0};
  progress();
}

static void arrive_now(uint32_t address, int bytes) {
  Mbarrier &barrier = barrier_at(address);
  if (barrier.pending == 0) fail("more arrivals than a barrier expects");
  barrier.bytes += bytes;
  --barrier.pending;
  progress();
  step(barrier);
}

// At another block's barrier it takes its time.
void arrive(uint32_t address, int bytes) {
  const int block = address & kStatic ? 0 : static_cast<int>(address >> 24);  // counted from one; 0: this one
  if (block == 0 || block - 1 == state.current->block->rank) {
    arrive_now(address, bytes);
    return;
  }
  progress();
  later([=] {
    if (state.blocks[block - 1].alive == 0) fail("an arrival at a barrier of a block that has ended");
    arrive_now(address, bytes);
  });
}

void complete(uint32_t address, int bytes) {
  Mbarrier &barrier = barrier_at(address);
  barrier.bytes -= bytes;
  step(barrier);
}

bool is_past(uint32_t address, uint32_t parity) { return barrier_at(address).phase % 2 != parity; }

void meet(uint32_t mask, void *mine, void (*all)(const Lanes &)) {
  Warp &warp = state.current->block->warps[state.current->warp];
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

// ---- shared memory ------------------------------------------------------------------------------

unsigned char *shared(uint32_t address) {
  if (address & kStatic) return &a_static + static_cast<int32_t>(address << 1) / 2;
  const uint32_t rank = address >> 24;
  return (rank ? state.blocks[rank - 1].memory : state.current->block->memory) + (address & kOffset);
}

uint32_t shared_address(const void *pointer) {
  const auto *const byte = static_cast<const unsigned char *>(pointer);
  const unsigned char *const memory = state.current->block->memory;
  if (byte >= memory && byte < memory + kSharedBytes) return static_cast<uint32_t>(byte - memory);
  return kStatic | (static_cast<uint32_t>(byte - &a_static) & ~kStatic);
}

uint32_t address_in(uint32_t address, int rank) {
  return (address & kOffset) | static_cast<uint32_t>(rank + 1) << 24;
}
int rank_in_cluster() { return state.current->block->rank; }
unsigned char *dynamic_shared() { return state.current->block->memory; }

// ---- what takes its time ------------------------------------------------------------------------

void copy_later(uint32_t destination, const void *source, int bytes, int size) {
  unsigned char *const to = shared(destination);
  if (destination % size != 0 || (bytes > 0 && reinterpret_cast<uintptr_t>(source) % size != 0))
    fail("cp.async of what is not aligned");
  std::memset(to, 0xff, size);
  state.current->copies.all.push_back({to, source, bytes, size});
}
void commit_copies() { state.current->copies.commit(); }
void wait_for_copies(int pending) {
  for (const Copy &copy : state.current->copies.take(pending)) {
    if (copy.bytes > 0) std::memcpy(copy.destination, copy.source, copy.bytes);
    std::memset(copy.destination + copy.bytes, 0, copy.size - copy.bytes);
  }
}

void later(std::function<void()> what) { state.under_way.push_back(std::move(what)); }

void store_later(std::function<void()> what) { state.current->stores.all.push_back(std::move(what)); }
void commit_stores() { state.current->stores.commit(); }
void wait_for_stores(int pending) {
  for (const auto &store : state.current->stores.take(pending)) store();
}

void multiply_later(std::function<void()> product) {
  state.current->products.push_back(std::move(product));
  ++state.current->products_begun;
}
void commit_products() { state.current->product_groups.push_back(state.current->products_begun); }

// The four warps of a warpgroup begin and end its products together.
void wait_for_products(int pending) {
  Fiber &mine = *state.current;
  int64_t target = 0;
  for (; static_cast<int>(mine.product_groups.size()) > pending; mine.product_groups.pop_front())
    target = mine.product_groups.front();
  Fiber *const first = &state.fibers[mine.block->rank * state.threads + mine.warp / 4 * 128];
  for (Fiber *other = first; other < first + 128; ++other)
    while (other->products_begun < target) yield();
  for (Fiber *other = first; other < first + 128; ++other)
    for (; other->products_done < target; ++other->products_done) {
      other->products.front()();
      other->products.pop_front();
    }
  progress();
}
int64_t products_begun() { return state.current->products_begun; }

std::shared_ptr<void> once(const SharedKey &key, int sharers,
                           const std::function<std::shared_ptr<void>()> &make) {
  auto &all = state.current->block->made;
  const std::pair<int, SharedKey> of_warpgroup = {state.current->warp / 4, key};
  Made &made = all[of_warpgroup];
  if (!made.what) made.what = make();
  const std::shared_ptr<void> what = made.what;
  if (++made.uses == sharers) all.erase(of_warpgroup);
  return what;
}

}  // namespace emulation

// Runs a kernel, which has one parameter, with clusters of so many blocks along x. false: there is none of that name.
extern "C" bool emulation_launch(const char *name, const unsigned *grid, const unsigned *block,
                                 unsigned cluster, void *parameter) {
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
  state.name = name;
  state.parameter = parameter;
  state.grid = {grid[0], grid[1], grid[2]};
  state.block = {block[0], block[1], block[2]};
  state.threads = static_cast<int>(block[0] * block[1] * block[2]);
  while (state.blocks.size() > cluster) {
    std::free(state.blocks.back().memory);
    state.blocks.pop_back();
  }
  while (state.blocks.size() < cluster) {
    state.blocks.emplace_back();
    state.blocks.back().memory = static_cast<unsigned char *>(std::aligned_alloc(1024, kSharedBytes));
  }
  state.fibers.resize(cluster * state.threads);
  if (state.stacks_for < state.fibers.size()) {
    if (state.stacks) munmap(state.stacks, kStackBytes * state.stacks_for);
    state.stacks_for = state.fibers.size();
    state.stacks = static_cast<char *>(mmap(nullptr, kStackBytes * state.stacks_for, PROT_READ | PROT_WRITE,
                                            MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0));
  }
  state.order.resize(state.fibers.size());
  for (size_t i = 0; i < state.order.size(); ++i) state.order[i] = static_cast<int>(i);
  for (unsigned z = 0; z < grid[2]; ++z)
    for (unsigned y = 0; y < grid[1]; ++y)
      for (unsigned x = 0; x < grid[0]; x += cluster) run_cluster({x, y, z});
  return true;
}
