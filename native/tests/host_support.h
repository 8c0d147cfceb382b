// What the tests of the host transport's parts share: two sides that see each other through real channels, in one
// process and without an engine.
#pragma once

#include <fcntl.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "check.h"
#include "transports/host/channel.h"
#include "transports/host/copy_scheduler.h"
#include "transports/host/peer.h"

namespace hixl_aio::test {

#if defined(__SANITIZE_THREAD__)
inline constexpr bool thread_sanitized = true;
#else
inline constexpr bool thread_sanitized = false;
#endif

// The thread sanitizer starts a thread of its own with the first one of ours; Leftovers shall not count it.
inline const bool warmed_up = [] {
  std::thread([] {}).join();
  return true;
}();

inline host::UniqueFd event_fd() { return host::UniqueFd(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)); }
inline host::UniqueFd copy_of(int fd) { return host::UniqueFd(::fcntl(fd, F_DUPFD_CLOEXEC, 0)); }

// One end: what its engine would own.
struct Side {
  host::UniqueFd loop = event_fd();
  host::UniqueFd progress = event_fd();
  host::UniqueFd service = event_fd();
  std::unique_ptr<host::SharedDoorbell> doorbell;
  host::Channel* owned = nullptr;  // belongs to `peer`
  host::PeerRef peer;              // the other side, as this one sees it
};

struct PairSettings {
  std::uint32_t max_regions = 1024;
  std::uint32_t signal_capacity = 64;
  host::LinkKind link = host::LinkKind::inproc;
  host::LinkKind host_link = host::LinkKind::none;  // none: the same
  int service_fd = -1;                              // b's, if it has a service of its own
};

// `a.peer` writes the channel that `b.peer` reads, and the other way round.
struct Pair {
  Side a;
  Side b;

  explicit Pair(PairSettings settings = {}) {
    std::string error;
    a.doorbell = host::SharedDoorbell::create(error);
    b.doorbell = host::SharedDoorbell::create(error);
    auto owned_a = host::Channel::create(settings.max_regions, settings.signal_capacity, error);
    auto owned_b = host::Channel::create(settings.max_regions, settings.signal_capacity, error);
    REQUIRE(a.doorbell && b.doorbell && owned_a && owned_b);
    if (settings.service_fd >= 0) {
      b.service = copy_of(settings.service_fd);
    }
    a.owned = owned_a.get();
    b.owned = owned_b.get();
    auto out_a = host::Channel::attach(copy_of(owned_b->fd()), error);
    auto out_b = host::Channel::attach(copy_of(owned_a->fd()), error);
    REQUIRE(out_a && out_b);
    a.peer = make(settings, std::move(owned_a), std::move(out_a), b, 1);
    b.peer = make(settings, std::move(owned_b), std::move(out_b), a, 2);
  }

 private:
  static host::PeerRef make(const PairSettings& settings, std::unique_ptr<host::Channel> in,
                            std::unique_ptr<host::Channel> out, const Side& other, PeerId id) {
    host::PeerParts parts;
    parts.identity.pid = ::getpid();
    parts.identity.same_process = true;
    parts.route.shared = settings.link;
    parts.route.host = settings.host_link == host::LinkKind::none && settings.link != host::LinkKind::shm
                           ? settings.link
                           : settings.host_link;
    parts.in = std::move(in);
    parts.out = std::move(out);
    std::string error;
    parts.doorbell = host::SharedDoorbell::attach(copy_of(other.doorbell->fd()), error);
    REQUIRE(parts.doorbell);
    parts.loop_fd = copy_of(other.loop.get());
    parts.progress_fd = copy_of(other.progress.get());
    parts.service_fd = copy_of(other.service.get());
    return host::PeerRef::adopt(new host::Peer(id, std::move(parts)));
  }
};

// Bytes that say where they belong.
inline std::vector<std::byte> pattern(std::size_t nbytes, std::uint64_t seed) {
  std::vector<std::byte> bytes(nbytes);
  std::uint64_t x = seed * 0x9e3779b97f4a7c15ULL + 1;
  for (std::byte& byte : bytes) {
    x = x * 6364136223846793005ULL + 1442695040888963407ULL;
    byte = static_cast<std::byte>(x >> 56U);
  }
  return bytes;
}

inline bool same(const void* left, const void* right, std::size_t nbytes) {
  return nbytes == 0 || std::memcmp(left, right, nbytes) == 0;
}

inline bool all_bytes(const std::byte* bytes, std::size_t nbytes, std::byte value) {
  return nbytes == 0 || (bytes[0] == value && std::memcmp(bytes, bytes + 1, nbytes - 1) == 0);
}

}  // namespace hixl_aio::test
