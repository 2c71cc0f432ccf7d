// As kernels/ptx/tma.cuh. Copies arrive at any time, and what they replace is NaN from the beginning.
#pragma once

#include <array>

#include "fake_tensor_map.h"
#include "params.h"
#include "ptx/mma_sync.cuh"

namespace bsrg::ptx {

inline uint64_t policy_evict_first() { return 0; }
inline uint64_t policy_evict_normal() { return 0; }
inline uint64_t policy_evict_last() { return 0; }

// The 16-byte unit of a line that swizzling exchanges it for.
inline uint32_t swizzled(uint32_t address, int units) {
  return address ^ ((address >> 7 & static_cast<uint32_t>(units - 1)) << 4);
}

using Place = std::array<int64_t, 5>;

// Calls element(address in shared memory, in memory or NULL beyond the tensor) for all of a box.
template <typename Element>
void for_box(const fake_tensor_map &map, uint32_t address, const Place &at, Element element) {
  const int units = map.swizzle_bytes / 16;
  if (map.swizzle_bytes && static_cast<int>(map.box[0] * map.item) > map.swizzle_bytes)
    emulation::fail("a box that is wider than what is swizzled");
  if (address % 128) emulation::fail("a box at an address that is not aligned");
  Place in_box = {};
  for (uint32_t offset = 0;; offset += map.item) {
    const char *from = static_cast<const char *>(map.data);
    bool inside = true;
    for (unsigned d = 0; d < map.rank; ++d) {
      const int64_t place = at[d] + in_box[d];
      inside = inside && place >= 0 && place < static_cast<int64_t>(map.dims[d]);
      from += place * static_cast<int64_t>(d == 0 ? map.item : map.strides[d - 1]);
    }
    const uint32_t to = address + offset;
    element(map.swizzle_bytes ? swizzled(to, units) : to, inside ? const_cast<char *>(from) : nullptr);
    unsigned d = 0;
    while (d < map.rank && ++in_box[d] == static_cast<int64_t>(map.box[d])) in_box[d++] = 0;
    if (d == map.rank) return;
  }
}

inline int bytes_of(const fake_tensor_map &map) {
  int bytes = static_cast<int>(map.item);
  for (unsigned d = 0; d < map.rank; ++d) bytes *= static_cast<int>(map.box[d]);
  return bytes;
}

// To the same place of every block of the mask.
inline void load_box(uint32_t destination, const bsrg_tensor_map &given, const Place &at, uint32_t barrier,
                     unsigned mask) {
  fake_tensor_map map;
  std::memcpy(&map, &given, sizeof map);
  const int bytes = bytes_of(map);
  for (int rank = 0; mask >> rank; ++rank) {
    if (!(mask >> rank & 1)) continue;
    const uint32_t to = emulation::address_in(destination, rank), done = emulation::address_in(barrier, rank);
    std::memset(emulation::shared(to), 0xff, bytes);
    emulation::later([=] {
      for_box(map, to, at, [&](uint32_t address, const char *from) {
        unsigned char *const element = emulation::shared(address);
        std::memset(element, 0, map.item);
        if (from) std::memcpy(element, from, map.item);
        if (from && map.is_tf32) {
          float x;
          std::memcpy(&x, element, 4);
          x = round_to_tf32(x);
          std::memcpy(element, &x, 4);
        }
      });
      emulation::complete(done, bytes);
    });
  }
}

// A destination of another block has its rank, which its barrier shares.
inline unsigned only_mine() { return 1u << emulation::rank_in_cluster(); }

template <typename... Policy>
void tma_load_2d(uint32_t to, const bsrg_tensor_map &map, int x, int y, uint32_t barrier, Policy...) {
  load_box(to, map, {x, y}, barrier, only_mine());
}
template <typename... Policy>
void tma_load_2d_multicast(uint32_t to, const bsrg_tensor_map &map, int x, int y, uint32_t barrier,
                           uint16_t mask, Policy...) {
  load_box(to, map, {x, y}, barrier, mask);
}
template <typename... Policy>
void tma_load_3d(uint32_t to, const bsrg_tensor_map &map, int x, int y, int z, uint32_t barrier, Policy...) {
  load_box(to, map, {x, y, z}, barrier, only_mine());
}
inline void tma_load_3d_multicast(uint32_t to, const bsrg_tensor_map &map, int x, int y, int z,
                                  uint32_t barrier, uint16_t mask) {
  load_box(to, map, {x, y, z}, barrier, mask);
}
inline void tma_load_4d(uint32_t to, const bsrg_tensor_map &map, int x, int y, int z, int w,
                        uint32_t barrier) {
  load_box(to, map, {x, y, z, w}, barrier, only_mine());
}

inline void load_bytes(uint32_t destination, const void *source, int bytes, uint32_t barrier, unsigned mask) {
  if (bytes % 16 || destination % 16 || reinterpret_cast<uintptr_t>(source) % 16)
    emulation::fail("a bulk copy of what is not aligned");
  for (int rank = 0; mask >> rank; ++rank) {
    if (!(mask >> rank & 1)) continue;
    const uint32_t to = emulation::address_in(destination, rank), done = emulation::address_in(barrier, rank);
    std::memset(emulation::shared(to), 0xff, bytes);
    emulation::later([=] {
      std::memcpy(emulation::shared(to), source, bytes);
      emulation::complete(done, bytes);
    });
  }
}
template <typename... Policy>
void bulk_load(uint32_t to, const void *source, int bytes, uint32_t barrier, Policy...) {
  load_bytes(to, source, bytes, barrier, only_mine());
}
inline void bulk_load_multicast(uint32_t to, const void *source, int bytes, uint32_t barrier, uint16_t mask,
                                uint64_t) {
  load_bytes(to, source, bytes, barrier, mask);
}
inline void bulk_send(uint32_t destination, uint32_t source, int bytes, uint32_t barrier) {
  const unsigned char *const from = emulation::shared(source);
  emulation::later([=] {
    std::memcpy(emulation::shared(destination), from, bytes);
    emulation::complete(barrier, bytes);
  });
}

// Whole units of 16 bytes are stored, of which the last may end behind the tensor's row.
inline void store_box(const bsrg_tensor_map &given, uint32_t source, const Place &at) {
  fake_tensor_map map;
  std::memcpy(&map, &given, sizeof map);
  const uint64_t of_unit = 16 / map.item;
  map.dims[0] = (map.dims[0] + of_unit - 1) / of_unit * of_unit;
  emulation::store_later([=] {
    for_box(map, source, at, [&](uint32_t address, char *to) {
      if (to) std::memcpy(to, emulation::shared(address), map.item);
    });
  });
}
inline void tma_store_2d(const bsrg_tensor_map &map, uint32_t source, int x, int y, uint64_t) {
  store_box(map, source, {x, y});
}
inline void tma_store_4d(const bsrg_tensor_map &map, uint32_t source, int x, int y, int z, int w, uint64_t) {
  store_box(map, source, {x, y, z, w});
}

inline void bulk_commit() { emulation::commit_stores(); }
template <int kPending>
void bulk_wait_read() {
  emulation::wait_for_stores(kPending);
}
template <int kPending>
void bulk_wait() {
  emulation::wait_for_stores(kPending);
}

}  // namespace bsrg::ptx
