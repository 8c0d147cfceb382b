// Our own regions: what peers are told of, and what the cooperative service may touch.
//
// Written on the control thread only; looked up from the loop thread and the service thread under the lock. A region is
// *revoked* (no new pin succeeds) before it is *freed* (no old pin is left).
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "hixl_aio/transport.h"
#include "transports/host/fragile_memory.h"
#include "transports/host/memory.h"
#include "transports/host/wire.h"

namespace hixl_aio::host {

struct OwnRegion {
  RegionInfo info;
  std::shared_ptr<MemoryBlock> block;      // null for memory the caller brought
  std::shared_ptr<FragileMemory> fragile;  // of what the caller brought, if it may be gone when it is touched
  bool revoked = false;
  // Copies that the service thread is making into or out of this region now. Guarded by the table's lock.
  std::uint32_t service_pins = 0;
};

class RegionTable {
 public:
  explicit RegionTable(std::uint32_t max_regions) : max_regions_(max_regions) {}

  // Control thread.
  Status add(const RegionSpec& spec, std::shared_ptr<MemoryBlock> block, RegionInfo& out, std::string& error,
             std::shared_ptr<FragileMemory> fragile = nullptr);
  bool revoke(std::uint32_t region, OwnRegion& out);  // false: no such region; may be called again
  // A region is named with its generation: its number may have been given out again.
  [[nodiscard]] bool holds(std::uint32_t region, std::uint32_t generation) const;
  [[nodiscard]] bool service_idle(std::uint32_t region) const;
  void free(std::uint32_t region, std::uint32_t generation);
  [[nodiscard]] std::vector<OwnRegion> live() const;

  // Any thread.
  [[nodiscard]] std::shared_ptr<MemoryBlock> block(std::uint32_t region) const;
  // What must live for as long as the memory is copied; null if nothing must.
  [[nodiscard]] std::shared_ptr<void> hold(std::uint32_t region) const;
  [[nodiscard]] std::uint32_t count() const;
  // Service thread: checks everything a peer claims (INV-12) and pins; `address` is where the run lies in our memory.
  Status service_pin(std::uint32_t region, std::uint32_t generation, std::uint64_t offset, std::uint64_t nbytes,
                     Direction direction, std::byte*& address);
  void service_unpin(std::uint32_t region);

 private:
  mutable std::mutex mutex_;
  std::uint32_t max_regions_;
  std::unordered_map<std::uint32_t, OwnRegion> regions_;
  std::unordered_set<std::string> labels_;
  std::vector<std::uint32_t> generations_;  // last one given out, by region id; ids are reused, pairs are not (INV-9)
  std::vector<std::uint32_t> free_ids_;
};

[[nodiscard]] RegionFrame region_frame(const OwnRegion& region);

}  // namespace hixl_aio::host
