// What a peer has announced: its regions, and the segments that they lie in.
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <string_view>
#include <utility>

#include "transports/host/mapping.h"
#include "transports/host/peer.h"

namespace hixl_aio::host {

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

}  // namespace hixl_aio::host
