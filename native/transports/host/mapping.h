// Mappings of large memory: where they lie, which pages they have, and when those are mapped.
#pragma once

#include <cstddef>
#include <cstdint>

namespace hixl_aio::host {

inline constexpr std::uint64_t kHugePage = 2U << 20U;

// mmap, at an address that huge pages fit if the memory is large enough for one.
[[nodiscard]] void* map_memory(int fd, std::uint64_t nbytes, int protection, int flags) noexcept;

// Has the pages mapped now instead of one by one at their first touch; changes no byte. False: not all of them, and errno
// says why (EINVAL: Linux before 5.14 cannot).
bool prefault(std::byte* base, std::uint64_t nbytes, bool writable) noexcept;

// How much of this memory lies on huge pages, as the kernel says.
[[nodiscard]] std::uint64_t huge_nbytes_of(const std::byte* base, std::uint64_t nbytes);

}  // namespace hixl_aio::host
