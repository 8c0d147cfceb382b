// How bytes are moved within memory that is mapped here.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

namespace hixl_aio::host {

// A copy that writes past the cache: a large destination would only push out what others keep there, and a line that is
// not cached would be read before it is written over. In no order with what follows, not even with a release, until
// stream_fence() has been called on the same thread.
void stream_bytes(std::byte* to, const std::byte* from, std::size_t nbytes) noexcept;
void stream_fence() noexcept;

// Says that these bytes are read next: of scattered blocks no processor guesses where the next one starts. A hint; the
// rest of a block is guessed from its start.
inline void expect_bytes(const std::byte* from, std::size_t nbytes) noexcept {
  for (std::size_t line = 0; line < std::min<std::size_t>(nbytes, 512); line += 64) {
    __builtin_prefetch(from + line, 0, 0);
  }
}

}  // namespace hixl_aio::host
