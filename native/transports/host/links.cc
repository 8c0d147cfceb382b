#include "transports/host/links.h"

#include <sys/prctl.h>
#include <sys/stat.h>
#include <unistd.h>

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

std::string refusal(const char* name, std::int64_t pid) {
  const int error = errno;
  const std::string obstacle = error == EPERM ? cma_obstacle(pid) : std::string();
  return std::string(name) + ": " + std::strerror(error) + (obstacle.empty() ? "" : " (" + obstacle + ")");
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

std::string cma_probe(std::int64_t pid, std::uint64_t address, const Incarnation& expected) {
  if (pid <= 0) {
    return "the peer's process is not visible here (another pid namespace)";
  }
  Incarnation seen{};
  iovec local{seen.data(), seen.size()};
  iovec remote{reinterpret_cast<void*>(static_cast<std::uintptr_t>(address)), seen.size()};
  if (call(pid, Direction::get, {&local, 1}, {&remote, 1}) != static_cast<ssize_t>(seen.size())) {
    return refusal("process_vm_readv", pid);
  }
  if (seen != expected) {
    return "process_vm_readv read other bytes than the peer announced (another process has its pid here)";
  }
  std::uint64_t word = 0x6f69615f6c786968ULL;
  local = {&word, sizeof(word)};
  remote = {reinterpret_cast<void*>(static_cast<std::uintptr_t>(address) + seen.size()), sizeof(word)};
  if (call(pid, Direction::put, {&local, 1}, {&remote, 1}) != static_cast<ssize_t>(sizeof(word))) {
    return refusal("process_vm_writev", pid);
  }
  return {};
}

std::string cma_obstacle(std::int64_t pid, const std::string& proc) {
  struct stat info {};
  // Only what may be dumped belongs to its user there.
  if (stat((proc + "/" + std::to_string(pid) + "/status").c_str(), &info) == 0 && info.st_uid != geteuid()) {
    return "the peer's process is not dumpable: see PR_SET_DUMPABLE, or it has changed its user";
  }
  int scope = 0;
  if (std::ifstream(proc + "/sys/kernel/yama/ptrace_scope") >> scope && scope > 0) {
    return "kernel.yama.ptrace_scope is " + std::to_string(scope) +
           (scope == 1 ? " and the peer does not let others in: see EngineOptions.allow_ptrace" : ": ask for 1 or 0");
  }
  std::ifstream status(proc + "/self/status");
  for (std::string line; std::getline(status, line);) {
    if (line.starts_with("Seccomp:") && line.find_first_of("12") != std::string::npos) {
      return "a seccomp filter is in force here, as containers have them";
    }
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
