// The links of one host and the system calls behind `cma`.
#pragma once

#include <sys/uio.h>

#include <algorithm>
#include <array>
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

// The links that may be used, in order of preference.
class LinkOrder {
 public:
  [[nodiscard]] bool has(LinkKind kind) const noexcept { return std::find(begin(), end(), kind) != end(); }
  // What is there already stays in its place.
  void add(LinkKind kind) noexcept {
    if (!has(kind)) {
      kinds_[count_++] = kind;
    }
  }
  [[nodiscard]] const LinkKind* begin() const noexcept { return kinds_.data(); }
  [[nodiscard]] const LinkKind* end() const noexcept { return kinds_.data() + count_; }
  [[nodiscard]] std::string text() const;

 private:
  std::array<LinkKind, 4> kinds_{};
  std::size_t count_ = 0;
};

// Copies all of `local` to or from the process `pid`, resuming short transfers; adds what was moved to `moved`.
// The spans are consumed (their entries change). At most IOV_MAX entries each; both describe the same number of bytes.
[[nodiscard]] Status cma_copy(std::int64_t pid, Direction direction, std::span<iovec> local, std::span<iovec> remote,
                              std::uint64_t& moved) noexcept;

// A real copy of 16 bytes in each direction. Empty: it works. Otherwise the reason it does not.
[[nodiscard]] std::string cma_probe(std::int64_t pid, std::uint64_t address, const Incarnation& expected);

// What keeps us from reaching into that process of our user, as far as it shows in `proc`; empty: nothing shows.
[[nodiscard]] std::string cma_obstacle(std::int64_t pid, const std::string& proc = "/proc");

// Yama mode 1 lets only descendants attach: says that our peers, processes of this user, may.
void allow_ptrace_if_yama_asks() noexcept;

}  // namespace hixl_aio::host
