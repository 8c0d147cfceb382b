// What the parts of the host transport share: settings, identity, regions, peers.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <unordered_map>
#include <vector>

#include "hixl_aio/transport.h"
#include "transports/host/channel.h"
#include "transports/host/cooperative.h"
#include "transports/host/links.h"
#include "transports/host/memory.h"
#include "transports/host/peer.h"
#include "transports/host/regions.h"

namespace hixl_aio::host {

struct HostConfig {
  std::string name;
  LinkOrder links;
  std::uint32_t copy_threads = 1;
  std::uint64_t chunk_nbytes = 1U << 20U;
  std::uint64_t inline_nbytes = 64U << 10U;
  std::uint64_t stream_nbytes = 8U << 20U;
  std::uint32_t max_regions = 1U << 17U;
  std::uint32_t signal_capacity = 4096;
  bool allow_ptrace = true;
  bool huge_pages = false;  // for what is allocated here
  bool populate = false;    // map what peers allocated before it is first touched

  // What is out of range; empty: nothing.
  [[nodiscard]] std::string complaint() const;
};

// Peers by id and by doorbell place. The control thread adds, the loop thread looks up and forgets.
class PeerTable {
 public:
  // A free place, or kDoorbellPlaces.
  std::uint32_t take_place();
  void give_place(std::uint32_t place);
  PeerRef add(PeerParts parts);
  [[nodiscard]] PeerRef find(PeerId id) const;
  [[nodiscard]] PeerRef at_place(std::uint32_t place) const;
  void remove(PeerId id);
  [[nodiscard]] std::size_t count() const;

 private:
  mutable std::mutex mutex_;
  std::unordered_map<PeerId, PeerRef> peers_;
  std::vector<bool> used_places_ = std::vector<bool>(kDoorbellPlaces, false);
  std::unordered_map<std::uint32_t, PeerRef> places_;
  PeerId next_id_ = 1;
};

// The bytes a peer copies to learn whether process_vm works on us: 16 to read, 8 to write.
struct ProbeCell {
  Incarnation value{};
  std::array<std::uint8_t, 8> mailbox{};
};

struct HostState {
  explicit HostState(HostConfig settings)
      : config(std::move(settings)), regions(config.max_regions), service(regions) {}

  const HostConfig config;
  TransportHost* host = nullptr;
  Incarnation incarnation{};
  std::string address;  // as peers know it
  std::string host_id;
  ProbeCell probe;
  std::unique_ptr<SharedDoorbell> doorbell;
  RegionTable regions;
  std::shared_ptr<SharedHeap> heap;
  CoopService service;
  PeerTable peers;
};

// The same for all engines of this process, another in each forked child.
[[nodiscard]] const Incarnation& process_identity();

}  // namespace hixl_aio::host
