#include "transports/host/peer.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <string_view>
#include <utility>

#include "transports/host/fragile_memory.h"
#include "transports/host/mapping.h"
#include "transports/host/streaming.h"

namespace hixl_aio::host {
namespace {

void ring(int fd) noexcept {
  const std::uint64_t one = 1;
  // EAGAIN means the counter is at its maximum: the reader is being woken already.
  [[maybe_unused]] const auto written = ::write(fd, &one, sizeof(one));
}

}  // namespace

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

// ---- directory

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

bool Peer::find(std::string_view label, RegionInfo& out) {
  const std::lock_guard lock(directory_mutex);
  const auto it = labels_.find(std::string(label));
  if (it == labels_.end()) {
    return false;
  }
  const RemoteRegion& region = directory_[it->second];
  out.region = it->second;
  out.generation = region.generation;
  out.nbytes = region.nbytes;
  out.address = nullptr;
  out.kind = region.kind;
  out.access = region.access;
  out.label = region.label;
  return true;
}

bool Peer::add_segment(const SegmentFrame& frame, UniqueFd fd) {
  if (frame.nbytes == 0 || frame.segment == 0) {
    return false;
  }
  MappedSegment segment;
  segment.writable = frame.kind == SegmentClass::writable;
  segment.nbytes = frame.nbytes;
  if (fd) {
    struct stat info {};
    const int seals = fcntl(fd.get(), F_GET_SEALS);
    if (seals < 0 || (seals & F_SEAL_SHRINK) == 0 || fstat(fd.get(), &info) != 0 || info.st_size < 0 ||
        static_cast<std::uint64_t>(info.st_size) < frame.nbytes) {
      return false;
    }
    void* base = map_memory(fd.get(), segment.nbytes, segment.writable ? PROT_READ | PROT_WRITE : PROT_READ, MAP_SHARED);
    segment.base = base == MAP_FAILED ? nullptr : static_cast<std::byte*>(base);
  }
  bool added = false;
  {
    const std::lock_guard lock(directory_mutex);
    added = segments_.emplace(frame.segment, segment).second;
  }
  if (!added && segment.base != nullptr) {
    munmap(segment.base, segment.nbytes);
  }
  return added;
}

std::uint64_t Peer::prefault_segment(std::uint32_t id_of_segment, std::uint64_t offset, std::uint64_t limit) noexcept {
  MappedSegment segment;
  {
    const std::lock_guard lock(directory_mutex);
    const auto it = segments_.find(id_of_segment);
    if (it == segments_.end() || it->second.base == nullptr || offset >= it->second.nbytes) {
      return 0;
    }
    segment = it->second;
  }
  // Without the lock, which the loop thread takes as well: only this thread unmaps.
  const std::uint64_t nbytes = std::min(limit, segment.nbytes - offset);
  const bool done = prefault(segment.base + offset, nbytes, segment.writable);
  return done && offset + nbytes < segment.nbytes ? offset + nbytes : 0;
}

void Peer::drop_segment(std::uint32_t id_of_segment) {
  MappedSegment segment;
  {
    const std::lock_guard lock(directory_mutex);
    const auto it = segments_.find(id_of_segment);
    if (it == segments_.end()) {
      return;
    }
    segment = it->second;
    segments_.erase(it);
    for (std::size_t i = 0; i < directory_.size(); ++i) {
      if (directory_[i].segment == id_of_segment) {
        forget(directory_[i], static_cast<std::uint32_t>(i));
      }
    }
  }
  if (segment.base != nullptr) {
    // Nobody copies here any more: the owner says "gone" only after every pin on the segment's regions was given back.
    munmap(segment.base, segment.nbytes);
  }
}

bool Peer::add_region(const RegionFrame& frame) {
  if (frame.region >= out_->max_regions() || frame.nbytes > UINT64_MAX - frame.address) {
    return false;
  }
  RemoteRegion region;
  region.generation = frame.generation;
  region.access = frame.access;
  region.kind = frame.kind;
  region.nbytes = frame.nbytes;
  region.address = frame.address;
  region.label = frame.label;
  const std::lock_guard lock(directory_mutex);
  if (frame.kind == MemoryKind::shared && route.shared == LinkKind::shm) {
    const auto it = segments_.find(frame.segment);
    if (it == segments_.end()) {
      return false;
    }
    const MappedSegment& segment = it->second;
    if (frame.segment_offset > segment.nbytes || frame.nbytes > segment.nbytes - frame.segment_offset ||
        (!segment.writable && grants(frame.access, Direction::put))) {
      return false;
    }
    region.segment = frame.segment;
    region.mapped = segment.base == nullptr ? nullptr : segment.base + frame.segment_offset;
  }
  if (directory_.size() <= frame.region) {
    directory_.resize(frame.region + 1);
  }
  RemoteRegion& place_of = directory_[frame.region];
  forget(place_of, frame.region);
  place_of = std::move(region);
  if (!place_of.label.empty()) {
    labels_[place_of.label] = frame.region;
  }
  return true;
}

void Peer::drop_region(std::uint32_t region, std::uint32_t generation) {
  const std::lock_guard lock(directory_mutex);
  if (region < directory_.size() && directory_[region].generation == generation) {
    forget(directory_[region], region);
  }
}

void Peer::forget(RemoteRegion& region, std::uint32_t id_of_region) {
  const auto it = labels_.find(region.label);
  if (it != labels_.end() && it->second == id_of_region) {
    labels_.erase(it);
  }
  region = RemoteRegion{};
}

void Peer::unmap_all() {
  std::unordered_map<std::uint32_t, MappedSegment> segments;
  {
    const std::lock_guard lock(directory_mutex);
    directory_.clear();
    labels_.clear();
    segments.swap(segments_);
  }
  for (const auto& [key, segment] : segments) {
    if (segment.base != nullptr) {
      munmap(segment.base, segment.nbytes);
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

// ---- signals

Status Peer::reserve_signal() noexcept {
  if (down()) {
    return down_status_;
  }
  // Acquire: a place counts as free only after the owner really let go of it.
  const std::uint64_t taken_so_far = out_->header().signals_taken.load(std::memory_order_acquire);
  if (taken_so_far <= signals_reserved_ && signals_reserved_ - taken_so_far >= out_->signal_capacity()) {
    return Status::signal_queue_full;
  }
  ++signals_reserved_;
  return Status::ok;
}

namespace {

// The ring is addressed by positions that only grow; a record may lie across its end.
void ring_write(std::byte* ring_bytes, std::uint64_t size, std::uint64_t at, const void* data, std::size_t n) noexcept {
  const std::uint64_t start = at % size;
  const std::size_t first = static_cast<std::size_t>(n < size - start ? n : size - start);
  if (first > 0) {
    std::memcpy(ring_bytes + start, data, first);
  }
  if (n > first) {
    std::memcpy(ring_bytes, static_cast<const std::byte*>(data) + first, n - first);
  }
}

void ring_read(const std::byte* ring_bytes, std::uint64_t size, std::uint64_t at, void* data, std::size_t n) noexcept {
  const std::uint64_t start = at % size;
  const std::size_t first = static_cast<std::size_t>(n < size - start ? n : size - start);
  if (first > 0) {
    std::memcpy(data, ring_bytes + start, first);
  }
  if (n > first) {
    std::memcpy(static_cast<std::byte*>(data) + first, ring_bytes, n - first);
  }
}

struct SignalHeader {
  std::uint32_t nbytes;
  std::int32_t status;
  std::uint64_t sequence;
  std::uint32_t name_nbytes;
  std::uint32_t payload_nbytes;
};
static_assert(sizeof(SignalHeader) == kSignalHeader);

constexpr std::uint32_t record_nbytes(std::uint32_t name, std::uint32_t payload) noexcept {
  return (kSignalHeader + name + payload + 7U) / 8U * 8U;
}

}  // namespace

Status Peer::publish(std::string_view name, std::string_view payload, Status status) noexcept {
  if (!signal_fits(name, payload)) {
    return Status::invalid_argument;
  }
  {
    const std::lock_guard lock(sender_mutex_);
    if (down()) {
      return down_status_;
    }
    SignalHeader header{};
    header.name_nbytes = static_cast<std::uint32_t>(name.size());
    header.payload_nbytes = static_cast<std::uint32_t>(payload.size());
    header.nbytes = record_nbytes(header.name_nbytes, header.payload_nbytes);
    header.status = static_cast<std::int32_t>(status);
    header.sequence = ++send_sequence_;
    std::byte* bytes = out_->signal_bytes();
    const std::uint64_t size = out_->signal_nbytes();
    ring_write(bytes, size, send_head_, &header, sizeof(header));
    ring_write(bytes, size, send_head_ + sizeof(header), name.data(), name.size());
    ring_write(bytes, size, send_head_ + sizeof(header) + name.size(), payload.data(), payload.size());
    send_head_ += header.nbytes;
    // Release: the record, and every byte of the operation it is bound to, is visible to who sees the new head (INV-11).
    out_->header().signal_head.store(send_head_, std::memory_order_release);
  }
  // acq_rel against the owner's re-arm: either our exchange finds it armed and we ring, or the owner's later exchange
  // reads our 0, acquires the head above and finds the record itself. The bit goes up before the bell rings.
  if (out_->header().signal_armed.exchange(0, std::memory_order_acq_rel) == 1) {
    doorbell_->page().dirty[remote_place_ / 64].fetch_or(1ULL << (remote_place_ % 64), std::memory_order_acq_rel);
    ring(loop_fd_.get());
  }
  return Status::ok;
}

bool Peer::drain(SignalSink& sink, std::size_t& budget, bool& malformed) {
  ChannelHeader& header = in_->header();
  header.signal_armed.exchange(1, std::memory_order_acq_rel);  // re-arm first (INV-8)
  const std::uint64_t head = header.signal_head.load(std::memory_order_acquire);
  const std::uint64_t size = in_->signal_nbytes();
  if (head - receive_tail_ > size) {
    malformed = true;
    return false;
  }
  while (receive_tail_ != head && budget > 0) {
    SignalHeader record{};
    ring_read(in_->signal_bytes(), size, receive_tail_, &record, sizeof(record));
    if (record.name_nbytes > kMaxSignalText || record.payload_nbytes > kMaxSignalText ||
        record.nbytes != record_nbytes(record.name_nbytes, record.payload_nbytes) ||
        record.nbytes > head - receive_tail_ || record.sequence != receive_sequence_ + 1) {
      malformed = true;
      return false;
    }
    receive_record_.peer = alias.load(std::memory_order_relaxed);
    receive_record_.sequence = record.sequence;
    receive_record_.status = status_from_wire(record.status);
    receive_record_.name.resize(record.name_nbytes);
    receive_record_.payload.resize(record.payload_nbytes);
    ring_read(in_->signal_bytes(), size, receive_tail_ + sizeof(record), receive_record_.name.data(),
              record.name_nbytes);
    ring_read(in_->signal_bytes(), size, receive_tail_ + sizeof(record) + record.name_nbytes,
              receive_record_.payload.data(), record.payload_nbytes);
    receive_tail_ += record.nbytes;
    receive_sequence_ = record.sequence;
    header.signal_tail.store(receive_tail_, std::memory_order_release);
    sink.take(receive_record_);
    --budget;
  }
  return receive_tail_ != head;
}

void Peer::taken(std::uint32_t count) noexcept {
  in_->header().signals_taken.fetch_add(count, std::memory_order_release);
}

void Peer::ring_progress() noexcept { ring(progress_fd_.get()); }
void Peer::ring_service() noexcept { ring(service_fd_.get()); }

}  // namespace hixl_aio::host
