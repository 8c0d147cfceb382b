#include "transports/host/mapping.h"

#include <sys/mman.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <fstream>
#include <string>

#ifndef MADV_POPULATE_READ
#define MADV_POPULATE_READ 22
#define MADV_POPULATE_WRITE 23
#endif

namespace hixl_aio::host {

void* map_memory(int fd, std::uint64_t nbytes, int protection, int flags) noexcept {
  if (nbytes < kHugePage) {
    return mmap(nullptr, nbytes, protection, flags, fd, 0);
  }
  // Room for it wherever the next huge page begins; what is over goes back. Memory of no file is that room itself: what
  // replaces another mapping is not held against RLIMIT_DATA.
  const bool replaces = fd >= 0;
  void* room = replaces ? mmap(nullptr, nbytes + kHugePage, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0)
                        : mmap(nullptr, nbytes + kHugePage, protection, flags, -1, 0);
  if (room == MAP_FAILED) {
    return MAP_FAILED;
  }
  auto* first = static_cast<std::byte*>(room);
  std::byte* last = first + nbytes + kHugePage;
  std::byte* base = first + (kHugePage - reinterpret_cast<std::uintptr_t>(first) % kHugePage) % kHugePage;
  std::byte* end = base + (nbytes + 4095) / 4096 * 4096;
  if (replaces && mmap(base, nbytes, protection, flags | MAP_FIXED, fd, 0) == MAP_FAILED) {
    const int code = errno;
    munmap(room, nbytes + kHugePage);
    errno = code;
    return MAP_FAILED;
  }
  if (base > first) {
    munmap(first, static_cast<std::size_t>(base - first));
  }
  if (last > end) {
    munmap(end, static_cast<std::size_t>(last - end));
  }
  return base;
}

bool prefault(std::byte* base, std::uint64_t nbytes, bool writable) noexcept {
  int result = 0;
  do {
    result = madvise(base, nbytes, writable ? MADV_POPULATE_WRITE : MADV_POPULATE_READ);
  } while (result != 0 && (errno == EINTR || errno == EAGAIN));
  return result == 0;
}

std::uint64_t huge_nbytes_of(const std::byte* base, std::uint64_t nbytes) {
  const auto first = reinterpret_cast<std::uintptr_t>(base);
  std::uint64_t found = 0;
  std::uint64_t overlap = 0;  // of the mapping whose lines come now
  std::ifstream file("/proc/self/smaps");
  for (std::string line; std::getline(file, line);) {
    unsigned long begin = 0;
    unsigned long end = 0;
    unsigned long kib = 0;
    char name[32];
    if (std::sscanf(line.c_str(), "%lx-%lx ", &begin, &end) == 2) {
      const std::uint64_t low = std::max<std::uint64_t>(begin, first);
      const std::uint64_t high = std::min<std::uint64_t>(end, first + nbytes);
      overlap = high > low ? high - low : 0;
    } else if (overlap > 0 && std::sscanf(line.c_str(), "%31[^:]: %lu kB", name, &kib) == 2) {
      const std::string field(name);
      if (field == "AnonHugePages" || field == "ShmemPmdMapped" || field == "Shared_Hugetlb" ||
          field == "Private_Hugetlb") {
        found += std::min<std::uint64_t>(std::uint64_t{kib} * 1024, overlap);
      }
    }
  }
  return std::min(found, nbytes);
}

}  // namespace hixl_aio::host
