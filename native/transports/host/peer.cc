#include "transports/host/peer.h"

#include <fcntl.h>
#include <poll.h>
#include <unistd.h>

#include <cstdio>
#include <cstring>
#include <string_view>
#include <utility>

#include "transports/host/fragile_memory.h"
#include "transports/host/streaming.h"

namespace hixl_aio::host {

Peer::Peer(PeerId peer_id, PeerParts parts)
    : id(peer_id),
      identity(std::move(parts.identity)),
      route(std::move(parts.route)),
      place(parts.place),
      alias(peer_id),
      in_(std::move(parts.in)),
      out_(std::move(parts.out)),
      doorbell_(std::move(parts.doorbell)),
      loop_fd_(std::move(parts.loop_fd)),
      progress_fd_(std::move(parts.progress_fd)),
      service_fd_(std::move(parts.service_fd)),
      remote_place_(parts.remote_place) {}

Peer::~Peer() {
  unmap_all();
  if (inner_ != nullptr) {
    inner_->drop();
  }
}

// ---- transfers

Status Peer::look_up(const Run& run, const RemoteRegion*& region) noexcept {
  if (down()) {
    return down_status_;
  }
  if (run.region >= directory_.size()) {
    return Status::stale_region;
  }
  const RemoteRegion& found = directory_[run.region];
  if (found.generation == 0 || found.generation != run.generation ||
      out_->entry(run.region).generation.load(std::memory_order_acquire) != run.generation) {
    return Status::stale_region;
  }
  if (!grants(found.access, run.direction)) {
    return Status::access_denied;
  }
  region = &found;
  return Status::ok;
}

LinkKind Peer::link_to(const RemoteRegion& region) const noexcept {
  const LinkKind link = region.kind == MemoryKind::shared ? route.shared : route.host;
  return link == LinkKind::shm && region.mapped == nullptr ? route.host : link;
}

namespace {

// Of two runs next to each other, one look-up and one pin are enough.
bool same_region(const Run& one, const Run& other) noexcept {
  return one.region == other.region && one.generation == other.generation;
}

}  // namespace

Status Peer::resolve(std::span<Run> runs, std::size_t& at) noexcept {
  const RemoteRegion* region = nullptr;
  auto link = LinkKind::none;
  std::byte* base = nullptr;  // where the region is for this link; null where the other side copies
  for (at = 0; at < runs.size(); ++at) {
    Run& run = runs[at];
    if (at == 0 || !same_region(run, runs[at - 1]) || run.direction != runs[at - 1].direction) {
      if (const Status status = look_up(run, region); !ok(status)) {
        return status;
      }
      link = link_to(*region);
      base = link == LinkKind::shm           ? region->mapped
             : link == LinkKind::cooperative ? nullptr
                                             : reinterpret_cast<std::byte*>(static_cast<std::uintptr_t>(region->address));
    }
    if (run.remote_offset > region->nbytes || run.nbytes > region->nbytes - run.remote_offset) {
      return Status::out_of_bounds;
    }
    if (link == LinkKind::none) {
      return Status::no_link;
    }
    run.link = static_cast<std::uint8_t>(link);
    run.remote = base == nullptr ? nullptr : base + run.remote_offset;
  }
  return Status::ok;
}

Status Peer::copy_now(std::span<Run> runs) noexcept {
  // Held over the copy: the mapping cannot go away under it, and the copy is short.
  const std::lock_guard lock(directory_mutex);
  std::size_t at = 0;
  if (const Status status = resolve(runs, at); !ok(status)) {
    return status;
  }
  if (const Status status = pin_all(runs); !ok(status)) {
    return status;
  }
  for (std::size_t i = 0; i < runs.size(); ++i) {
    const Run& run = runs[i];
    if (i + 1 < runs.size()) {
      const Run& next = runs[i + 1];
      expect_bytes(next.direction == Direction::put ? next.local : next.remote, next.nbytes);
    }
    if (run.nbytes > 0) {  // the address of nothing may be null
      run.direction == Direction::put ? std::memcpy(run.remote, run.local, run.nbytes)
                                      : std::memcpy(run.local, run.remote, run.nbytes);
    }
  }
  unpin_all(runs);
  return Status::ok;
}

// All runs, or none.
Status Peer::pin_all(std::span<const Run> runs) noexcept {
  for (std::size_t i = 0; i < runs.size(); ++i) {
    const Run& run = runs[i];
    const auto link = static_cast<LinkKind>(run.link);
    Status status = link == LinkKind::shm || link == LinkKind::inproc ? Status::ok : Status::would_block;
    if (FragileMemory::touches(run.local, run.nbytes) || FragileMemory::touches(run.remote, run.nbytes)) {
      status = Status::would_block;  // on the kernel, or on a disk
    }
    if (ok(status) && (i == 0 || !same_region(run, runs[i - 1])) && !out_->pin(run.region, run.generation)) {
      status = Status::stale_region;
    }
    if (!ok(status)) {
      unpin_all(runs.first(i));
      return status;
    }
  }
  return Status::ok;
}

void Peer::unpin_all(std::span<const Run> runs) noexcept {
  for (std::size_t i = 0; i < runs.size(); ++i) {
    if (i == 0 || !same_region(runs[i], runs[i - 1])) {
      out_->unpin(runs[i].region);
    }
  }
}

// ---- life

bool Peer::process_gone() const noexcept {
  if (!pidfd_.valid()) {
    return false;
  }
  pollfd entry{pidfd_.get(), POLLIN, 0};
  return poll(&entry, 1, 0) == 1;
}

bool Peer::process_stopped() const noexcept {
  if (identity.same_process || !pidfd_.valid()) {
    return false;
  }
  char text[512];
  std::snprintf(text, sizeof(text), "/proc/%lld/stat", static_cast<long long>(identity.pid));
  ssize_t got = -1;
  {
    const UniqueFd stat(open(text, O_RDONLY | O_CLOEXEC));
    got = stat ? ::read(stat.get(), text, sizeof(text)) : -1;
  }
  // "pid (name) state ...", and the name may hold anything.
  const std::string_view line(text, got > 0 ? static_cast<std::size_t>(got) : 0);
  const std::size_t name_end = line.rfind(')');
  if (name_end == std::string_view::npos || name_end + 2 >= line.size()) {
    return false;
  }
  const char state = line[name_end + 2];
  // If it lives now, it lived a moment ago, so that line was not another process' with its number.
  return (state == 'T' || state == 't') && !process_gone();
}

bool Peer::mark_down(Status status) noexcept {
  const std::lock_guard lock(directory_mutex);
  if (down()) {
    return false;
  }
  down_status_ = status;
  down_.store(true, std::memory_order_seq_cst);
  return true;
}

}  // namespace hixl_aio::host
