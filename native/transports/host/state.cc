#include "transports/host/state.h"

#include <unistd.h>

#include <utility>

namespace hixl_aio::host {

std::string HostConfig::complaint() const {
  if (copy_threads == 0) {
    return "copy_threads must be at least 1";
  }
  if (chunk_nbytes == 0) {
    return "chunk_nbytes must be at least 1";
  }
  if (max_regions == 0 || max_regions > kMaxRegionsLimit) {
    return "max_regions must be from 1 to " + std::to_string(kMaxRegionsLimit);
  }
  if (signal_capacity == 0 || signal_capacity > kSignalCapacityLimit) {
    return "signal_capacity must be from 1 to " + std::to_string(kSignalCapacityLimit);
  }
  return {};
}

std::uint32_t PeerTable::take_place() {
  const std::lock_guard lock(mutex_);
  for (std::uint32_t place = 0; place < kDoorbellPlaces; ++place) {
    if (!used_places_[place]) {
      used_places_[place] = true;
      return place;
    }
  }
  return kDoorbellPlaces;
}

void PeerTable::give_place(std::uint32_t place) {
  const std::lock_guard lock(mutex_);
  used_places_[place] = false;
  places_.erase(place);
}

PeerRef PeerTable::add(PeerParts parts) {
  const std::lock_guard lock(mutex_);
  const std::uint32_t place = parts.place;
  auto peer = PeerRef::adopt(new Peer(next_id_++, std::move(parts)));
  peers_.emplace(peer->id, peer);
  places_.insert_or_assign(place, peer);
  return peer;
}

PeerRef PeerTable::find(PeerId id) const {
  const std::lock_guard lock(mutex_);
  const auto it = peers_.find(id);
  return it == peers_.end() ? PeerRef() : it->second;
}

PeerRef PeerTable::at_place(std::uint32_t place) const {
  const std::lock_guard lock(mutex_);
  const auto it = places_.find(place);
  return it == places_.end() ? PeerRef() : it->second;
}

void PeerTable::remove(PeerId id) {
  PeerRef last;  // outlives the lock: its end unmaps
  {
    const std::lock_guard lock(mutex_);
    const auto it = peers_.find(id);
    if (it != peers_.end()) {
      last = std::move(it->second);
      peers_.erase(it);
    }
  }
}

std::size_t PeerTable::count() const {
  const std::lock_guard lock(mutex_);
  return peers_.size();
}

const Incarnation& process_identity() {
  static std::mutex mutex;
  static pid_t owner = 0;
  static Incarnation identity;
  const std::lock_guard lock(mutex);
  if (owner != getpid()) {
    owner = getpid();
    (void)random_bytes(identity);
  }
  return identity;
}

}  // namespace hixl_aio::host
