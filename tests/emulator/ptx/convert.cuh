// As kernels/ptx/convert.cuh.
#pragma once

namespace bsrg::ptx {

template <typename T>
uint32_t bits_of(float value) {
  return std::bit_cast<uint16_t>(static_cast<T>(value));
}

template <typename T>
uint32_t pack(float low, float high) {
  return bits_of<T>(low) | bits_of<T>(high) << 16;
}

template <typename T>
uint32_t pack_relu(float low, float high) {
  return pack<T>(low < 0 ? 0.f : low, high < 0 ? 0.f : high);
}

inline uint16_t pack_e4m3(float low, float high) {
  const auto byte = [](float x) {
    return static_cast<uint16_t>(__nv_cvt_float_to_fp8(x, __NV_SATFINITE, __NV_E4M3));
  };
  return byte(low) | byte(high) << 8;
}

inline uint32_t join(uint16_t low, uint16_t high) { return low | static_cast<uint32_t>(high) << 16; }

template <typename T>
uint32_t widen(uint32_t four, bool upper) {
  const uint32_t two = upper ? four >> 16 : four & 0xffff;
  const auto half = [](uint32_t byte) {
    T value;
    value.__x = static_cast<__nv_fp8_storage_t>(byte & 255);
    return static_cast<float>(value);
  };
  return pack<__half>(half(two), half(two >> 8));
}

template <typename T>
float2 unpack(uint32_t packed) {
  const auto value = [](uint32_t bits) {
    return static_cast<float>(std::bit_cast<T>(static_cast<uint16_t>(bits)));
  };
  return make_float2(value(packed & 0xffff), value(packed >> 16));
}

}  // namespace bsrg::ptx
