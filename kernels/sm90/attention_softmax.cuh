// Masks and the online softmax of attention, on scores as they lie in WGMMA accumulators.
//
// A thread holds two rows of its warp's 16, lane / 4 and 8 below, and of each row keys 8 * j + 2 * (lane % 4) and the
// next: score 4 * j + 2 * r + e is row r, key 8 * j + 2 * (lane % 4) + e. The four lanes of a quad share their rows.
#pragma once

#include <cfloat>
#include <climits>
#include <cmath>
#include <cstdint>

#include "ptx/convert.cuh"
#include "ptx/load.cuh"
#include "ptx/math.cuh"

namespace bsrg::attention {

// ---- masks: what a row must not see becomes minus infinity --------------------------------------

// Of the scores from kBegin on, kCount of them: keys beyond limit[r], counted from this thread's first key there.
template <int kBegin, int kCount, int kScores>
__device__ __forceinline__ void mask_above(float (&s)[kScores], const int (&limit)[2]) {
#pragma unroll
  for (int i = 0; i < kCount; ++i)
    if (i / 4 * 8 + i % 2 > limit[i / 2 % 2]) s[kBegin + i] = -INFINITY;
}

template <int kBegin, int kCount, int kScores>
__device__ __forceinline__ void mask_below(float (&s)[kScores], const int (&limit)[2]) {
#pragma unroll
  for (int i = 0; i < kCount; ++i)
    if (i / 4 * 8 + i % 2 < limit[i / 2 % 2]) s[kBegin + i] = -INFINITY;
}

template <int kBegin, int kCount, int kScores>
__device__ __forceinline__ void mask_all(float (&s)[kScores]) {
#pragma unroll
  for (int i = 0; i < kCount; ++i) s[kBegin + i] = -INFINITY;
}

// Groups of 16 keys whose bit is not set; the warp's rows all lie in one group.
template <int kScores>
__device__ __forceinline__ void mask_groups(float (&s)[kScores], uint32_t groups) {
#pragma unroll
  for (int i = 0; i < kScores; ++i)
    if (!(groups >> i / 8 & 1)) s[i] = -INFINITY;
}

// tanh of scores, of which s * cap_log2 is log2(exp(2 * score)). tanh.approx would be wrong by up to 2^-11, which a
// softcap of 50 makes 2% of a probability; this is wrong by few 2^-24.
template <int kScores>
__device__ __forceinline__ void cap(float (&s)[kScores], float cap_log2) {
#pragma unroll
  for (int i = 0; i < kScores; ++i) s[i] = fmaf(-2.f, ptx::reciprocal(1.f + ptx::exp2(s[i] * cap_log2)), 1.f);
}

// ---- 8-bit probabilities ------------------------------------------------------------------------

// Of neighbours by twos: the larger part of the work, which unlike the words that WGMMA reads may be done while sums are
// under way.
template <int kScores>
using Rounded = uint16_t[kScores / 2];

template <int kScores>
__device__ __forceinline__ void round_scores(const float (&s)[kScores], Rounded<kScores> &rounded) {
#pragma unroll
  for (int i = 0; i < kScores / 2; ++i) rounded[i] = ptx::pack_e4m3(s[2 * i], s[2 * i + 1]);
}

// Word i % 4 of step i / 4: row i % 2 of 16 keys, of which the thread has four in every row.
template <int kRounded, int kSteps>
__device__ __forceinline__ void join_rounded(const uint16_t (&rounded)[kRounded],
                                             uint32_t (&words)[kSteps][4]) {
#pragma unroll
  for (int i = 0; i < kRounded / 2; ++i) {
    const uint16_t *of = rounded + i / 2 * 4 + i % 2;
    words[i / 4][i % 4] = ptx::join(of[0], of[2]);
  }
}

// The compiler moves waits for WGMMAs before exponentials, but not across branches. For 16 bits that costs nothing; for
// 8, exponentials take as long as products, and the next turn would come before they are done. Sums are never negative.
template <int kRounded>
__device__ __forceinline__ void keep_before_wait(uint16_t (&rounded)[kRounded], const float (&sum)[2]) {
#pragma unroll
  for (int i = 0; i < kRounded; ++i) ptx::settle(rounded[i]);
  if (__any_sync(~0u, sum[0] < 0.f || sum[1] < 0.f)) __nanosleep(1);
}

// ---- online softmax ------------------------------------------------------------------------------

// A row's exponentials are 2^(score * scale - shift). The exact softmax takes the largest score so far as the shift and
// rescales all sums whenever it grows. The shift cancels, so any other gives the same up to rounding, as long as nothing
// overflows or vanishes. There are two classes that use this.

// The largest of m and the first kCount scores of each row, the same in the four lanes that share it.
template <int kCount, int kScores>
__device__ __forceinline__ void row_maximum(const float (&s)[kScores], float (&m)[2]) {
  float other[2] = {m[0], m[1]};
#pragma unroll
  for (int i = 0; i < kCount; i += 4) {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      m[r] = fmaxf(m[r], s[i + 2 * r]);
      other[r] = fmaxf(other[r], s[i + 2 * r + 1]);
    }
  }
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    m[r] = fmaxf(m[r], other[r]);
    m[r] = fmaxf(m[r], __shfl_xor_sync(~0u, m[r], 1));
    m[r] = fmaxf(m[r], __shfl_xor_sync(~0u, m[r], 2));
  }
}

// Scores become exponentials, which are also added to this thread's share of the sums; the shares of a quad are added at
// the end. exponent(score, r): of 2, in row r.
template <int kScores, typename Exponent>
__device__ __forceinline__ void exponentials(float (&s)[kScores], float (&sum)[2], const Exponent &exponent) {
  float partial[4] = {};
#pragma unroll
  for (int i = 0; i < kScores; ++i) {
    s[i] = ptx::exp2(exponent(s[i], i / 2 % 2));
    partial[i % 4] += s[i];
  }
  sum[0] += partial[0] + partial[1];
  sum[1] += partial[2] + partial[3];
}

// A shift is rounded, a score times scale is not. What that changes cancels, too, but where the shift is some 2^27 it may be a
// factor that overflows or leaves nothing. So a score itself is the shift where it is far from 0, and the difference is
// scaled, which takes an instruction more.

// Of a row's shift, scaled: what float32 has of it, which is what others see, and the rest.
struct ScaledShift {
  float shift, rest;
};
__device__ __forceinline__ ScaledShift scaled_shift(float score, float scale) {
  const float shift = score * scale;
  return {shift, fmaf(score, scale, -shift)};
}

// For 16 bits: the shift is the largest score among the first keys that the row meets, and stays until a thread's sum
// exceeds kLimit. To look at two sums after the exponentials takes less than to look for the maximum before them, which
// everything would wait for.
//
// kWide, bfloat16: exponentials are limited by float32 alone, so nobody looks in runs of plain key tiles, only between
// them. Those of float16 have to be looked at before they are rounded: who finds too large ones leaves the run.
//
// Where exponentials grow by more than 2^100 from one key tile to the next, or by 2^67 in a run of plain ones, they may
// overflow before anybody has looked. A sum is infinite or no number then, and the query tile must be computed again,
// exactly, and so it must where a shift is far from 0.
//
// kCapped: no shift is far from 0, as the host sees to.
template <int kScores, bool kWide, bool kCapped>
class KeptShift {
 public:
  using Scores = float[kScores];

  float sum[2];

  __device__ explicit KeptShift(float scale_log2) : scale(scale_log2) {}

  // Of a query tile that is stored while the next one may have begun.
  using Shifts = float[2];
  __device__ void get_shifts(Shifts &shifts) const { shifts[0] = shift[0], shifts[1] = shift[1]; }
  __device__ ScaledShift scaled(const Shifts &shifts, int r, bool is_exact) const {
    if (kCapped || !is_exact) return {shifts[r], 0.f};
    return scaled_shift(shifts[r], scale);
  }

  // Of a query tile's first key tile: scores become exponentials.
  __device__ void first(Scores &s, bool is_exact) {
    exact = careful = is_exact;
    float m[2] = {-INFINITY, -INFINITY};
    row_maximum<kScores / 4>(s, m);
    if (exact || some_unseen(m)) {
      row_maximum<kScores>(s, m);
      careful = exact || some_unseen(m);
    }
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      shift[r] = m[r] == -INFINITY ? kUnseen : shift_of(m[r]);
      sum[r] = 0.f;
    }
    exponentiate(s);
    float factor[2];
    if constexpr (!kWide) rescale(s, factor);
  }

  // Whether the next few key tiles may be plain: scores become exponentials, and that is all.
  __device__ bool allows_plain() const { return !careful && !exceeds(); }
  __device__ void plain(Scores &s) {
    exponentials(s, sum, [&](float score, int r) { return fmaf(score, scale, -shift[r]); });
  }

  // Of the next ones. True if earlier sums, those here excepted, must be multiplied by factor[r].
  __device__ bool next(Scores &s, float (&factor)[2]) {
    factor[0] = factor[1] = 1.f;
    bool changed = careful;
    if (careful) {
      float m[2] = {-INFINITY, -INFINITY};
      row_maximum<kScores>(s, m);
#pragma unroll
      for (int r = 0; r < 2; ++r) move(r, fmaxf(shift[r], shift_of(m[r])), factor[r]);
      careful = exact || __any_sync(~0u, shift[0] == kUnseen || shift[1] == kUnseen);
    }
    exponentiate(s);
    float grown[2];
    if (rescale(s, grown)) {
      factor[0] *= grown[0];
      factor[1] *= grown[1];
      changed = true;
    }
    return changed;
  }

  __device__ bool exceeds() const { return __any_sync(~0u, sum[0] > kLimit || sum[1] > kLimit); }

  // Of exponentials that are too large: them, their sums, and with those the shifts. Exact ones never are.
  __device__ bool rescale(Scores &s, float (&factor)[2]) {
    if (exact || !exceeds()) return false;
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      float most = fmaxf(sum[r], __shfl_xor_sync(~0u, sum[r], 1));
      most = fmaxf(most, __shfl_xor_sync(~0u, most, 2));
      move(r, most > kLimit ? shift[r] + ptx::log2(most) : shift[r], factor[r]);
      if (most > kOverflow) sum[r] = INFINITY;  // its factor may have become 0
    }
#pragma unroll
    for (int i = 0; i < kScores; ++i) s[i] *= factor[i / 2 % 2];
    return true;
  }

  // Of sums of whole rows, and of what this thread has summed of exponentials times values: with sums of up to kSafe only
  // values beyond 2^107 could exceed float32, which 1000 keys of them do in the exact softmax, too. Sums beyond kOverflow may be
  // finite, but the reciprocal of one beyond 2^126 is 0, and so is that of what parts of a row add up to. shift: scaled.
  template <int kSums>
  static __device__ bool overflowed(const float (&sum)[2], const float (&shift)[2],
                                    const float (&sums)[kSums]) {
    const float most = fmaxf(fabsf(shift[0]), fabsf(shift[1]));
    if (!__any_sync(~0u, !(sum[0] <= kSafe) || !(sum[1] <= kSafe) || most > kFar)) return false;
    float zero[4] = {};  // no number where one of them is infinite or none
#pragma unroll
    for (int i = 0; i < kSums; ++i) zero[i % 4] = fmaf(sums[i], 0.f, zero[i % 4]);
    const bool usable = sum[0] <= kOverflow && sum[1] <= kOverflow && is_near(shift[0]) && is_near(shift[1]);
    return __any_sync(~0u, !usable || zero[0] + zero[1] + (zero[2] + zero[3]) != 0.f);
  }

 private:
  static constexpr float kLimit = kWide ? 0x1p60f : 0x1p14f, kOverflow = 0x1p100f, kSafe = 0x1p20f,
                         kUnseen = -FLT_MAX, kFar = 0x1p24f;

  const float scale;
  bool exact;      // take the largest score so far as the shift, in every key tile
  bool careful;    // look for the maximum in the next one
  float shift[2];  // kUnseen while the row has seen no key: exponentials of what is masked are 0 all the same

  static __device__ bool is_near(float shift) { return fabsf(shift) <= kFar || shift == kUnseen; }

  // Whether shifts are scores as they are, which makes exact ones right wherever they are.
  __device__ bool unscaled() const { return !kCapped && exact; }

  __device__ float shift_of(float score) const { return unscaled() ? score : score * scale; }

  __device__ void exponentiate(Scores &s) {
    if (unscaled())
      exponentials(s, sum, [&](float score, int r) { return (score - shift[r]) * scale; });
    else
      plain(s);
  }

  static __device__ bool some_unseen(const float (&m)[2]) {
    return __any_sync(~0u, m[0] == -INFINITY || m[1] == -INFINITY);
  }

  __device__ void move(int r, float to, float &factor) {
    const float less = shift[r] - to;
    factor = ptx::exp2(unscaled() ? less * scale : less);  // 0 while the row had seen no key
    shift[r] = to;
    sum[r] *= factor;
  }
};

// The shift follows the largest score once its exponential has grown by a factor of 2^kSlack.
//
// kEight: exponentials will be rounded to float8_e4m3fn, whose normal numbers go from 2^-6 to 448. That of the maximum
// becomes 2^kRaise and may grow to 2^8.75, which rounds to 448. Weights below 2^-12 of the largest lose bits, those
// below 2^-16 of it vanish. More slack would leave less below; with so much, few rows of random scores ever use it up.
template <int kScores, bool kEight>
class LazyShift {
 public:
  using Scores = float[kScores];

  float sum[2];

  __device__ explicit LazyShift(float scale_log2) { set_scale(scale_log2); }

  __device__ bool allows_plain() const { return true; }

  using Shifts = ScaledShift[2];
  __device__ void get_shifts(Shifts &shifts) const {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      shifts[r] = {shift[r], 0.f};
      if (far_from_0(maximum[r]) != 0.f) {
        const ScaledShift largest = scaled_shift(maximum[r], scale);
        const float raised = largest.shift - kRaise;
        shifts[r] = {raised, largest.shift - raised - kRaise + largest.rest};
      }
    }
  }
  __device__ ScaledShift scaled(const Shifts &shifts, int r, bool) const { return shifts[r]; }

  // Only before first().
  __device__ void set_scale(float scale_log2) {
    scale = scale_log2;
    slack = kSlack * ptx::reciprocal(scale_log2);
  }

  // Of a query tile's first key tile: scores become exponentials.
  __device__ void first(Scores &s) {
    float m[2] = {-INFINITY, -INFINITY};
    row_maximum<kScores>(s, m);
    set_maximum(m, s);
    sum[0] = sum[1] = 0.f;
    exponentiate(s);
  }

  // Of the next ones. True if earlier sums, those here excepted, must be multiplied by factor[r].
  __device__ bool next(Scores &s, float (&factor)[2]) {
    factor[0] = factor[1] = 1.f;
    const bool grown = __any_sync(~0u, grows(s));
    if (grown) {
      float m[2] = {maximum[0], maximum[1]}, less[2];
      row_maximum<kScores>(s, m);
#pragma unroll
      for (int r = 0; r < 2; ++r) less[r] = fmaf(far_from_0(maximum[r]) - far_from_0(m[r]), scale, shift[r]);
#pragma unroll
      for (int r = 0; r < 2; ++r) factor[r] = maximum[r] == -INFINITY ? 0.f : 1.f;
      set_maximum(m, s);
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        if (factor[r] != 0.f) factor[r] = ptx::exp2(less[r] - shift[r]);
        sum[r] *= factor[r];
      }
    }
    exponentiate(s);
    return grown;
  }

 private:
  static constexpr float kSlack = kEight ? 2.75f : 8.f, kRaise = kEight ? 6.f : 0.f, kFar = 0x1p20f;

  float scale, slack;
  float maximum[2];
  float shift[2];
  int threshold[2];  // bits of maximum + slack, or INT_MIN

  __device__ void exponentiate(Scores &s) {
    exponentials(s, sum, [&](float score, int r) { return fmaf(score, scale, -shift[r]); });
  }

  // A maximum that is subtracted from its row's scores before these are scaled, and 0 where it is scaled with them.
  __device__ float far_from_0(float m) const { return m != -INFINITY && fabsf(m * scale) > kFar ? m : 0.f; }

  __device__ void set_maximum(const float (&m)[2], Scores &s) {
    const float far[2] = {far_from_0(m[0]), far_from_0(m[1])};
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      maximum[r] = m[r];
      // A row that has seen no key yet: any finite shift makes its exponentials 0.
      shift[r] = m[r] == -INFINITY ? 0.f : (m[r] - far[r]) * scale - kRaise;
      const float limit = m[r] + slack;
      threshold[r] = limit >= 0.f && far[r] == 0.f ? __float_as_int(limit) : INT_MIN;
    }
    if (far[0] != 0.f || far[1] != 0.f) {
#pragma unroll
      for (int i = 0; i < kScores; ++i) s[i] -= far[i / 2 % 2];
    }
  }

  // Whether some score may exceed its row's limit. The bits of floats compare like integers where the limit is not
  // negative; for other rows, and for those far from 0, the answer is always yes. That takes a third of the instructions
  // of a float maximum.
  __device__ bool grows(const Scores &s) const {
    int a[2] = {INT_MIN, INT_MIN}, b[2] = {INT_MIN, INT_MIN};  // two chains a row
#pragma unroll
    for (int i = 0; i < kScores; i += 8) {
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        a[r] = __vimax3_s32(a[r], __float_as_int(s[i + 2 * r]), __float_as_int(s[i + 2 * r + 1]));
        b[r] = __vimax3_s32(b[r], __float_as_int(s[i + 2 * r + 4]), __float_as_int(s[i + 2 * r + 5]));
      }
    }
    return max(a[0], b[0]) >= threshold[0] || max(a[1], b[1]) >= threshold[1];
  }
};

}  // namespace bsrg::attention
