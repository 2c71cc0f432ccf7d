// As kernels/ptx/wgmma*.cuh. Products are done when a thread of the warpgroup waits for them.
#pragma once

#include "ptx/convert.cuh"
#include "ptx/mma_sync.cuh"
#include "ptx/tma.cuh"

namespace bsrg::ptx {

enum class Swizzle : uint64_t { kNone = 0, k128 = 1, k64 = 2, k32 = 3 };

inline uint64_t matrix_descriptor(uint32_t address, uint32_t atom_bytes, uint32_t group_bytes,
                                  Swizzle swizzle) {
  return static_cast<uint64_t>((address & 0x3FFFF) >> 4) | (static_cast<uint64_t>(atom_bytes >> 4) << 16) |
         (static_cast<uint64_t>(group_bytes >> 4) << 32) | (static_cast<uint64_t>(swizzle) << 62);
}

inline void warpgroup_fence() {}
inline void warpgroup_commit() { emulation::commit_products(); }
template <int kPending>
void warpgroup_wait() {
  emulation::wait_for_products(kPending);
}
template <int kCount>
void hold_accumulators(float (&)[kCount]) {}

struct Tf32 {
  uint32_t bits;
};

// How an operand's elements lie, and what they are as numbers.
template <typename T>
struct Element {
  static constexpr int kBytes = sizeof(T);
  static float number(const unsigned char *at) {
    T value;
    std::memcpy(&value, at, sizeof(T));
    return static_cast<float>(value);
  }
};
template <>
struct Element<Tf32> {
  static constexpr int kBytes = 4;
  static float number(const unsigned char *at) {
    uint32_t bits;
    std::memcpy(&bits, at, 4);
    return __uint_as_float(bits & 0xffffe000u);
  }
};
template <>
struct Element<float> : Element<Tf32> {};

// Element (i, k) of the operand that a descriptor gives: i along M or N, adjacent in memory if mn_major.
inline uint32_t place_in_matrix(uint64_t descriptor, int i, int k, int bytes, bool mn_major) {
  const auto field = [&](int shift) { return static_cast<uint32_t>(descriptor >> shift & 0x3FFF) << 4; };
  const uint32_t start = field(0), atom = field(16), group = field(32);
  const int swizzle = static_cast<int>(descriptor >> 62);
  if (swizzle == 0) {
    const int unit = 16 / bytes;  // elements
    if (mn_major) return start + i / 8 * group + k / 8 * atom + k % 8 * 16 + i % unit * bytes;
    return start + i / 8 * group + i % 8 * 16 + k / unit * atom + k % unit * bytes;
  }
  const int line = 256 >> swizzle;
  const uint32_t place =
      mn_major ? start + i / (line / bytes) * atom + k / 8 * group + k % 8 * line + i % (line / bytes) * bytes
               : start + i / 8 * group + i % 8 * line + k * bytes;
  return swizzled(place, line / 16);
}

// d (+)= of the thread's rows of A, by k, and all columns of B.
template <int kN, int kK>
void add_products(float *d, int lane, const float *upper, const float *lower, const float *b,
                  bool accumulate) {
  for (int i = 0; i < kN / 2; ++i) {
    const float *const row = i / 2 % 2 ? lower : upper;
    const float *const column = b + (8 * (i / 4) + 2 * (lane % 4) + i % 2) * kK;
    float sum = accumulate ? d[i] : 0.f;
    for (int k = 0; k < kK; ++k) sum += row[k] * column[k];
    d[i] = sum;
  }
}

// The numbers of an operand that several threads share, as they are when the first of them asks. They must be the same when a
// product begins and when threads wait for it, or somebody has written to what it reads meanwhile.
template <typename T, int kK>
class Operand {
 public:
  // `first` row of so many. Threads that share it: a warp, or all of the warpgroup.
  Operand(uint64_t descriptor, int first, int rows, bool mn_major, int sharers)
      : descriptor_(descriptor),
        product_(emulation::products_begun()),
        first_(first),
        rows_(rows),
        mn_major_(mn_major),
        sharers_(sharers),
        at_begin_(read(0)) {}

  const float *numbers() const {
    const auto now = read(1);
    if (std::memcmp(now->data(), at_begin_->data(), now->size() * sizeof(float)) != 0)
      emulation::fail("an operand changes while a product is under way");
    return at_begin_->data();
  }

 private:
  std::shared_ptr<std::vector<float>> read(int when) const {
    const emulation::SharedKey key = {product_, descriptor_, first_, rows_, when};
    return std::static_pointer_cast<std::vector<float>>(emulation::once(key, sharers_, [this] {
      auto numbers = std::make_shared<std::vector<float>>(rows_ * kK);
      for (int i = 0; i < rows_; ++i)
        for (int k = 0; k < kK; ++k)
          (*numbers)[i * kK + k] = Element<T>::number(
              emulation::shared(place_in_matrix(descriptor_, first_ + i, k, Element<T>::kBytes, mn_major_)));
      return numbers;
    }));
  }

  uint64_t descriptor_;
  int64_t product_;
  int first_, rows_;
  bool mn_major_;
  int sharers_;
  std::shared_ptr<std::vector<float>> at_begin_;
};

template <typename T, int kN, int kK>
void multiply_in_shared(float *d, uint64_t a, uint64_t b, bool accumulate, bool transpose_a,
                        bool transpose_b) {
  const emulation::Thread &thread = emulation::thread();
  const Operand<T, kK> rows(a, thread.warp % 4 * 16, 16, transpose_a, 32),
      columns(b, 0, kN, transpose_b, 128);
  const int lane = thread.lane;
  emulation::multiply_later([=] {
    const float *const upper = rows.numbers() + lane / 4 * kK;
    add_products<kN, kK>(d, lane, upper, upper + 8 * kK, columns.numbers(), accumulate);
  });
}

template <typename T>
constexpr int kOfInstruction = 32 / Element<T>::kBytes;  // k

template <typename T, int kN, int kTransposeA, int kTransposeB>
struct Wgmma {
  static void run(float (&d)[kN / 2], uint64_t a, uint64_t b, int accumulate) {
    multiply_in_shared<T, kN, kOfInstruction<T>>(d, a, b, accumulate, kTransposeA, kTransposeB);
  }
};
template <typename T, int kN>
struct WgmmaKMajor : Wgmma<T, kN, 0, 0> {};
template <typename T, int kN, int kTransposeA>
struct WgmmaSmall {
  static void run(float (&d)[kN / 2], uint64_t a, uint64_t b) {
    Wgmma<T, kN, kTransposeA, 0>::run(d, a, b, 1);
  }
};

// A in registers: of rows lane / 4 and 8 below neighbours along k, 4 bytes a register, and the same 16 bytes further along k.
template <typename T, int kN>
struct WgmmaRegisters {
  static constexpr int kK = kOfInstruction<T>;
  struct Rows {
    float upper[kK], lower[kK];
  };
  struct Lane {
    uint32_t a[4];
    Rows rows;
  };

  static void gather(Lane *const (&lanes)[32]) {
    constexpr int kIn = 4 / Element<T>::kBytes;
    for (int lane = 0; lane < 32; ++lane)
      for (int k = 0; k < kK; ++k) {
        const int half = k / (kK / 2), q = k % (kK / 2) / kIn;
        const uint32_t (&from)[4] = lanes[lane / 4 * 4 + q]->a;
        const auto number = [&](uint32_t word) {
          unsigned char bytes[4];
          std::memcpy(bytes, &word, 4);
          return Element<T>::number(bytes + k % kIn * Element<T>::kBytes);
        };
        lanes[lane]->rows.upper[k] = number(from[2 * half]);
        lanes[lane]->rows.lower[k] = number(from[2 * half + 1]);
      }
  }

  static void run(float (&given)[kN / 2], const uint32_t (&a)[4], uint64_t b, int accumulate) {
    Lane mine = {{a[0], a[1], a[2], a[3]}, {}};
    emulation::meet(~0u, mine, [](Lane *const(&lanes)[32]) { gather(lanes); });
    float *const d = given;
    const Rows rows = mine.rows;
    const int lane = emulation::thread().lane;
    const Operand<T, kK> columns(b, 0, kN, Element<T>::kBytes == 2, 128);
    emulation::multiply_later(
        [=] { add_products<kN, kK>(d, lane, rows.upper, rows.lower, columns.numbers(), accumulate); });
  }
};

// ---- registers to shared memory, and back -------------------------------------------------------

inline void load_matrix_x4_transposed(uint32_t (&r)[4], uint32_t address) {
  load_matrix_x4_trans(r, address);
}

template <int kCount>
struct StoredLane {
  uint32_t address, r[kCount];
};
template <int kCount, bool kTransposed>
void store_matrices(uint32_t address, const uint32_t (&r)[kCount]) {
  StoredLane<kCount> mine = {address, {}};
  std::copy(r, r + kCount, mine.r);
  emulation::meet(~0u, mine, [](StoredLane<kCount> *const(&lanes)[32]) {
    for (int lane = 0; lane < 32; ++lane)
      for (int m = 0; m < kCount; ++m)
        for (int i = 0; i < 2; ++i) {
          const int g = lane / 4, q = lane % 4 * 2 + i;
          const int row = kTransposed ? q : g, column = kTransposed ? g : q;
          const auto bits = static_cast<uint16_t>(lanes[lane]->r[m] >> 16 * i);
          std::memcpy(emulation::shared(lanes[8 * m + row]->address) + 2 * column, &bits, 2);
        }
  });
}
inline void store_matrix_x4(uint32_t address, uint32_t r0, uint32_t r1, uint32_t r2, uint32_t r3) {
  store_matrices<4, false>(address, {r0, r1, r2, r3});
}
inline void store_matrix_x2(uint32_t address, uint32_t r0, uint32_t r1) {
  store_matrices<2, false>(address, {r0, r1});
}
inline void store_matrix_x4_transposed(uint32_t address, uint32_t r0, uint32_t r1, uint32_t r2, uint32_t r3) {
  store_matrices<4, true>(address, {r0, r1, r2, r3});
}
inline void store_matrix_x2_transposed(uint32_t address, uint32_t r0, uint32_t r1) {
  store_matrices<2, true>(address, {r0, r1});
}

}  // namespace bsrg::ptx
