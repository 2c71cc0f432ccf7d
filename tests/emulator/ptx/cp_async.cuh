// As kernels/ptx/cp_async.cuh.
#pragma once

namespace bsrg::ptx {

template <int kBytes>
void cp_async(uint32_t destination, const void *source, bool read) {
  emulation::copy_later(destination, source, read ? kBytes : 0, kBytes);
}
inline void cp_async_stream(uint32_t destination, const void *source, bool read) {
  cp_async<16>(destination, source, read);
}
inline void cp_async_evict_first(uint32_t destination, const void *source, bool read) {
  cp_async<16>(destination, source, read);
}
inline void cp_async_part(uint32_t destination, const void *source, int bytes) {
  emulation::copy_later(destination, source, bytes, 16);
}
inline void cp_async_commit() { emulation::commit_copies(); }
template <int kPending>
void cp_async_wait() {
  emulation::wait_for_copies(kPending);
}

}  // namespace bsrg::ptx
