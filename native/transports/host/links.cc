#include "transports/host/links.h"

#include <sys/prctl.h>

#include <cerrno>
#include <cstring>
#include <fstream>

namespace hixl_aio::host {
namespace {

// Drops `done` bytes from the front; returns what is left.
std::span<iovec> drop_front(std::span<iovec> vector, std::uint64_t done) noexcept {
  std::size_t first = 0;
  while (first < vector.size() && done >= vector[first].iov_len) {
    done -= vector[first].iov_len;
    ++first;
  }
  vector = vector.subspan(first);
  if (!vector.empty() && done > 0) {
    vector[0].iov_base = static_cast<std::byte*>(vector[0].iov_base) + done;
    vector[0].iov_len -= done;
  }
  return vector;
}

ssize_t call(std::int64_t pid, Direction direction, std::span<iovec> local, std::span<iovec> remote) noexcept {
  const auto target = static_cast<pid_t>(pid);
  return direction == Direction::put
             ? process_vm_writev(target, local.data(), local.size(), remote.data(), remote.size(), 0)
             : process_vm_readv(target, local.data(), local.size(), remote.data(), remote.size(), 0);
}

}  // namespace

std::string_view link_name(LinkKind kind) noexcept {
  switch (kind) {
    case LinkKind::inproc:
      return "inproc";
    case LinkKind::shm:
      return "shm";
    case LinkKind::cma:
      return "cma";
    case LinkKind::cooperative:
      return "cooperative";
    case LinkKind::none:
      break;
  }
  return "none";
}

LinkKind parse_link(std::string_view name) noexcept {
  for (const LinkKind kind : {LinkKind::inproc, LinkKind::shm, LinkKind::cma, LinkKind::cooperative}) {
    if (link_name(kind) == name) {
      return kind;
    }
  }
  return LinkKind::none;
}

std::string LinkOrder::text() const {
  std::string out;
  for (const LinkKind kind : *this) {
    out += (out.empty() ? "" : ", ") + std::string(link_name(kind));
  }
  return out;
}

Status cma_copy(std::int64_t pid, Direction direction, std::span<iovec> local, std::span<iovec> remote,
                std::uint64_t& moved) noexcept {
  local = drop_front(local, 0);  // an empty first entry would make a legal call look like one that moved nothing
  remote = drop_front(remote, 0);
  while (!local.empty() && !remote.empty()) {
    const ssize_t done = call(pid, direction, local, remote);
    if (done < 0) {
      if (errno == EINTR || errno == EAGAIN) {
        continue;
      }
      return errno == ESRCH ? Status::peer_lost : Status::failed;
    }
    if (done == 0) {
      return Status::failed;  // no progress and no reason: never call that a success
    }
    // A call stops short at 0x7ffff000 bytes, and before the first remote entry it cannot reach.
    moved += static_cast<std::uint64_t>(done);
    local = drop_front(local, static_cast<std::uint64_t>(done));
    remote = drop_front(remote, static_cast<std::uint64_t>(done));
  }
  return local.empty() && remote.empty() ? Status::ok : Status::internal;
}

std::string cma_probe(std::int64_t pid, std::uint64_t address, const Incarnation& expected) noexcept {
  if (pid <= 0) {
    return "the peer's process is not visible here (another pid namespace)";
  }
  Incarnation seen{};
  iovec local{seen.data(), seen.size()};
  iovec remote{reinterpret_cast<void*>(static_cast<std::uintptr_t>(address)), seen.size()};
  if (call(pid, Direction::get, {&local, 1}, {&remote, 1}) != static_cast<ssize_t>(seen.size())) {
    return std::string("process_vm_readv: ") + std::strerror(errno);
  }
  if (seen != expected) {
    return "process_vm_readv read other bytes than the peer announced (another process has its pid here)";
  }
  std::uint64_t word = 0x6f69615f6c786968ULL;
  local = {&word, sizeof(word)};
  remote = {reinterpret_cast<void*>(static_cast<std::uintptr_t>(address) + seen.size()), sizeof(word)};
  if (call(pid, Direction::put, {&local, 1}, {&remote, 1}) != static_cast<ssize_t>(sizeof(word))) {
    return std::string("process_vm_writev: ") + std::strerror(errno);
  }
  return {};
}

void allow_ptrace_if_yama_asks() noexcept {
  std::ifstream file("/proc/sys/kernel/yama/ptrace_scope");
  int scope = 0;
  if (file >> scope && scope == 1) {
    // One process can name only one tracer, and a peer is not known before it connects.
    prctl(PR_SET_PTRACER, PR_SET_PTRACER_ANY, 0, 0, 0);
  }
}

}  // namespace hixl_aio::host
