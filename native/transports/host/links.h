// The links of one host and the system calls behind `cma`.
#pragma once

#include <sys/uio.h>

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "hixl_aio/status.h"
#include "hixl_aio/types.h"
#include "transports/host/wire.h"

namespace hixl_aio::host {

enum class LinkKind : std::uint8_t { none = 0, inproc = 1, shm = 2, cma = 3, cooperative = 4 };

[[nodiscard]] std::string_view link_name(LinkKind kind) noexcept;
[[nodiscard]] LinkKind parse_link(std::string_view name) noexcept;

struct LinkMask {
  std::uint32_t bits = 0;
  [[nodiscard]] bool has(LinkKind kind) const noexcept { return (bits & (1U << static_cast<unsigned>(kind))) != 0; }
  void add(LinkKind kind) noexcept { bits |= 1U << static_cast<unsigned>(kind); }
  [[nodiscard]] std::string text() const;
};

// Copies all of `local` to or from the process `pid`, resuming short transfers; adds what was moved to `moved`.
// The spans are consumed (their entries change). At most IOV_MAX entries each; both describe the same number of bytes.
[[nodiscard]] Status cma_copy(std::int64_t pid, Direction direction, std::span<iovec> local, std::span<iovec> remote,
                              std::uint64_t& moved) noexcept;

// A real copy of 16 bytes in each direction. Empty: it works. Otherwise the reason it does not.
[[nodiscard]] std::string cma_probe(std::int64_t pid, std::uint64_t address, const Incarnation& expected) noexcept;

// Yama mode 1 lets only descendants attach: says that our peers, processes of this user, may.
void allow_ptrace_if_yama_asks() noexcept;

}  // namespace hixl_aio::host
