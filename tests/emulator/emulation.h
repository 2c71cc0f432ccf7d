// What CUDA C++ gives a kernel, on a CPU: kernels are compiled with this in front of them (tests/emulation.py),
// their PTX being replaced by tests/emulator/ptx. The threads of a block are fibers of one thread of the CPU, which leave off
// where threads wait for others, and run in another order each time, so that what needs a barrier and has none is likely to show.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_fp8.h>
#include <vector_functions.h>
#include <vector_types.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <functional>
#include <limits>
#include <memory>
#include <tuple>
#include <type_traits>
#include <vector>

namespace emulation {

struct Thread {
  uint3 index;
  int lane, warp;
};
const Thread &thread();
const uint3 &block();
dim3 grid_size();
dim3 block_size();

[[noreturn]] void fail(const char *why);
void yield();
void wait_for_block();
void wait_for_some(int barrier, int threads);     // bar.sync, and
void arrive_with_some(int barrier, int threads);  // bar.arrive
void arrive_in_cluster();
void wait_for_cluster();

// Shared memory, which kernels know by 32-bit addresses, in a cluster those of other blocks too; its dynamic part.
unsigned char *shared(uint32_t address);
uint32_t shared_address(const void *pointer);
uint32_t address_in(uint32_t address, int rank);
int rank_in_cluster();
unsigned char *dynamic_shared();

// What a lane brings to where the warp's lanes of a mask meet; `all` sees what each of them has brought, and gives its answers there.
// Lanes that are not there have none.
using Lanes = void *[32];
void meet(uint32_t mask, void *mine, void (*all)(const Lanes &));

template <typename Lane, typename All>
void meet(uint32_t mask, Lane &mine, All) {
  meet(mask, &mine, [](const Lanes &lanes) {
    Lane *typed[32];
    for (int i = 0; i < 32; ++i) typed[i] = static_cast<Lane *>(lanes[i]);
    All()(typed);
  });
}

// cp.async: `bytes` of the source and zeros up to `size`, no sooner than the thread waits for them; until then there are NaNs.
void copy_later(uint32_t destination, const void *source, int bytes, int size);
void commit_copies();
void wait_for_copies(int pending);

// mbarriers.
void init_barrier(uint32_t barrier, int arrivals);
void arrive(uint32_t barrier, int bytes);  // and expect so many
void complete(uint32_t barrier, int bytes);
bool is_past(uint32_t barrier, uint32_t parity);

// What happens at any time from now on, in any order.
void later(std::function<void()> what);
// Bulk stores: what is read, and then written, in groups of the thread.
void store_later(std::function<void()> what);
void commit_stores();
void wait_for_stores(int pending);

// What WGMMAs add to a thread's sums, done when it waits for them; and how many it has begun.
void multiply_later(std::function<void()> product);
void commit_products();
void wait_for_products(int pending);
int64_t products_begun();

// What so many threads of a warpgroup need, each once, is made by the first of them.
using SharedKey = std::tuple<int64_t, uint64_t, int, int, int>;
std::shared_ptr<void> once(const SharedKey &key, int sharers,
                           const std::function<std::shared_ptr<void>()> &make);

template <typename T>
struct Exchange {
  T value, found;
  int lane;
};
template <typename T>
T exchange(uint32_t mask, T value, int from) {
  Exchange<T> mine = {value, value, from};
  meet(mask, mine, [](Exchange<T> *const(&lanes)[32]) {
    for (auto *lane : lanes)
      if (lane && lane->lane >= 0 && lane->lane < 32 && lanes[lane->lane])
        lane->found = lanes[lane->lane]->value;
  });
  return mine.found;
}

template <typename T, T (*kJoin)(T, T)>
T reduce(uint32_t mask, T value) {
  Exchange<T> mine = {value, value, 0};
  meet(mask, mine, [](Exchange<T> *const(&lanes)[32]) {
    bool first = true;
    T total = {};
    for (auto *lane : lanes) {
      if (!lane) continue;
      total = first ? lane->value : kJoin(total, lane->value);
      first = false;
    }
    for (auto *lane : lanes)
      if (lane) lane->found = total;
  });
  return mine.found;
}

// Lanes whose values equal this one's.
template <typename T>
uint32_t match(uint32_t mask, T value) {
  struct Lane {
    T value;
    uint32_t equal;
  } mine = {value, 0};
  meet(mask, mine, [](Lane *const(&lanes)[32]) {
    for (auto *lane : lanes)
      for (int i = 0; lane && i < 32; ++i)
        if (lanes[i] && lanes[i]->value == lane->value) lane->equal |= 1u << i;
  });
  return mine.equal;
}

template <typename T>
T add(T a, T b) {
  return a + b;
}
template <typename T>
T greater(T a, T b) {
  return a < b ? b : a;
}
template <typename T>
T less(T a, T b) {
  return b < a ? b : a;
}
template <typename T>
T either(T a, T b) {
  return a | b;
}

template <typename T>
T replace(T *at, T with) {
  const T before = *at;
  *at = with;
  return before;
}

}  // namespace emulation

#undef __shared__
#define __shared__ static
#undef __launch_bounds__
#define __launch_bounds__(...)
#undef __global__
#define __global__
#undef __device__
#define __device__
#define threadIdx (emulation::thread().index)
#define blockIdx (emulation::block())
#define gridDim (emulation::grid_size())
#define blockDim (emulation::block_size())

inline void __syncthreads() { emulation::wait_for_block(); }
inline void __syncwarp(uint32_t mask = ~0u) { emulation::exchange(mask, 0, 0); }

template <typename T>
T __shfl_sync(uint32_t mask, T value, int from, int width = 32) {
  const int lane = emulation::thread().lane;
  return emulation::exchange(mask, value, (lane & ~(width - 1)) | (from & (width - 1)));
}
template <typename T>
T __shfl_xor_sync(uint32_t mask, T value, int bits) {
  return emulation::exchange(mask, value, emulation::thread().lane ^ bits);
}
template <typename T>
T __shfl_up_sync(uint32_t mask, T value, unsigned by) {
  const int from = emulation::thread().lane - static_cast<int>(by);
  return emulation::exchange(mask, value, from < 0 ? emulation::thread().lane : from);
}
template <typename T>
T __shfl_down_sync(uint32_t mask, T value, unsigned by) {
  const int from = emulation::thread().lane + static_cast<int>(by);
  return emulation::exchange(mask, value, from > 31 ? emulation::thread().lane : from);
}
inline uint32_t __ballot_sync(uint32_t mask, bool here) {
  return emulation::reduce<uint32_t, emulation::either>(mask, here ? 1u << emulation::thread().lane : 0u);
}
inline bool __any_sync(uint32_t mask, bool here) { return __ballot_sync(mask, here) != 0; }
template <typename T>
T __reduce_add_sync(uint32_t mask, T value) {
  return emulation::reduce<T, emulation::add>(mask, value);
}
template <typename T>
T __reduce_max_sync(uint32_t mask, T value) {
  return emulation::reduce<T, emulation::greater>(mask, value);
}
template <typename T>
T __reduce_min_sync(uint32_t mask, T value) {
  return emulation::reduce<T, emulation::less>(mask, value);
}
template <typename T>
uint32_t __match_any_sync(uint32_t mask, T value) {
  return emulation::match(mask, value);
}

// One fiber at a time runs, up to where it waits.
template <typename T>
T atomicAdd(T *at, std::type_identity_t<T> value) {
  return emulation::replace(at, static_cast<T>(*at + value));
}
template <typename T>
T atomicMax(T *at, std::type_identity_t<T> value) {
  return emulation::replace(at, std::max(*at, value));
}
template <typename T>
T atomicOr(T *at, std::type_identity_t<T> value) {
  return emulation::replace(at, static_cast<T>(*at | value));
}

template <typename T>
T __ldg(const T *from) {
  return *from;
}
template <typename T>
T __ldcs(const T *from) {
  return *from;
}
template <typename T>
T __ldcg(const T *from) {
  return *from;
}
template <typename T>
void __stcs(T *to, std::type_identity_t<T> value) {
  *to = value;
}
template <typename T>
void __stcg(T *to, std::type_identity_t<T> value) {
  *to = value;
}

inline int __popc(unsigned x) { return std::popcount(x); }
inline int __clz(int x) { return std::countl_zero(static_cast<unsigned>(x)); }
inline int __ffs(int x) { return __builtin_ffs(x); }
inline unsigned __umulhi(unsigned a, unsigned b) {
  return static_cast<unsigned>(static_cast<uint64_t>(a) * b >> 32);
}
inline unsigned __funnelshift_r(unsigned low, unsigned high, unsigned by) {
  return static_cast<unsigned>(((static_cast<uint64_t>(high) << 32) | low) >> (by & 31));
}
inline unsigned __byte_perm(unsigned low, unsigned high, unsigned selector) {
  const uint64_t bytes = static_cast<uint64_t>(high) << 32 | low;
  unsigned found = 0;
  for (int i = 0; i < 4; ++i) {
    const unsigned select = selector >> 4 * i & 15;
    unsigned byte = static_cast<unsigned>(bytes >> 8 * (select & 7) & 255);
    if (select & 8) byte = byte & 128 ? 255 : 0;
    found |= byte << 8 * i;
  }
  return found;
}
inline int __vimax3_s32(int a, int b, int c) { return std::max(a, std::max(b, c)); }
inline void __nanosleep(unsigned) { emulation::yield(); }
inline float __frcp_rn(float x) { return 1.f / x; }
inline unsigned __float_as_uint(float x) { return std::bit_cast<unsigned>(x); }
inline float __uint_as_float(unsigned x) { return std::bit_cast<float>(x); }
inline int __float_as_int(float x) { return std::bit_cast<int>(x); }
inline float __int_as_float(int x) { return std::bit_cast<float>(x); }

template <typename A, typename B>
auto min(A a, B b) {
  using T = std::common_type_t<A, B>;
  return static_cast<T>(b) < static_cast<T>(a) ? static_cast<T>(b) : static_cast<T>(a);
}
template <typename A, typename B>
auto max(A a, B b) {
  using T = std::common_type_t<A, B>;
  return static_cast<T>(a) < static_cast<T>(b) ? static_cast<T>(b) : static_cast<T>(a);
}
