#include "transports/host/streaming.h"

#include <cstring>

#ifdef __SSE2__
#include <emmintrin.h>
#endif

namespace hixl_aio::host {

#ifdef __SSE2__
namespace {

constexpr std::size_t kLine = 64;
constexpr std::size_t kAhead = 512;  // how far the source is asked for in advance

void stream_line(std::byte* to, const std::byte* from) noexcept {
  const auto* source = reinterpret_cast<const __m128i*>(from);
  auto* target = reinterpret_cast<__m128i*>(to);
  const __m128i a = _mm_loadu_si128(source);
  const __m128i b = _mm_loadu_si128(source + 1);
  const __m128i c = _mm_loadu_si128(source + 2);
  const __m128i d = _mm_loadu_si128(source + 3);
  _mm_stream_si128(target, a);
  _mm_stream_si128(target + 1, b);
  _mm_stream_si128(target + 2, c);
  _mm_stream_si128(target + 3, d);
}

}  // namespace

void stream_bytes(std::byte* to, const std::byte* from, std::size_t nbytes) noexcept {
  // Whole lines of the destination only: half a line that bypasses the cache costs more than one that does not.
  const std::size_t head = std::min(nbytes, (kLine - reinterpret_cast<std::uintptr_t>(to) % kLine) % kLine);
  const std::size_t body = (nbytes - head) / kLine * kLine;
  const std::size_t tail = nbytes - head - body;
  if (head > 0) {
    std::memcpy(to, from, head);
  }
  for (std::size_t at = head; at < head + body; at += kLine) {
    _mm_prefetch(reinterpret_cast<const char*>(from) + at + kAhead, _MM_HINT_NTA);
    stream_line(to + at, from + at);
  }
  if (tail > 0) {
    std::memcpy(to + head + body, from + head + body, tail);
  }
#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
  std::memcpy(to, from, nbytes);  // the sanitizers look at this one: they do not see through the instructions above
#endif
}

void stream_fence() noexcept { _mm_sfence(); }
#else
// Elsewhere the C library's own copy does this where it pays, and keeps its promises of order.
void stream_bytes(std::byte* to, const std::byte* from, std::size_t nbytes) noexcept { std::memcpy(to, from, nbytes); }
void stream_fence() noexcept {}
#endif

}  // namespace hixl_aio::host
