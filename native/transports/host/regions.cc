#include "transports/host/regions.h"

#include <utility>

namespace hixl_aio::host {

Status RegionTable::add(const RegionSpec& spec, std::shared_ptr<MemoryBlock> block, RegionInfo& out, std::string& error,
                        std::shared_ptr<FragileMemory> fragile) {
  const std::lock_guard lock(mutex_);
  if (spec.label.size() > kMaxLabel) {
    error = "label of " + std::to_string(spec.label.size()) + " bytes; at most " + std::to_string(kMaxLabel) +
            " are possible";
    return Status::invalid_argument;
  }
  if (!spec.label.empty() && labels_.contains(spec.label)) {
    error = "label '" + spec.label + "' names a region that is still open; close it or choose another label";
    return Status::invalid_argument;
  }
  std::uint32_t id = 0;
  if (!free_ids_.empty()) {
    id = free_ids_.back();
    free_ids_.pop_back();
  } else if (generations_.size() < max_regions_) {
    id = static_cast<std::uint32_t>(generations_.size());
    generations_.push_back(0);
  } else {
    error = "all " + std::to_string(max_regions_) + " regions are in use; close some or raise max_regions";
    return Status::resource_exhausted;
  }
  std::uint32_t& generation = generations_[id];
  generation = generation == UINT32_MAX ? 1 : generation + 1;  // 0 means closed
  OwnRegion region;
  region.info.region = id;
  region.info.generation = generation;
  region.info.nbytes = spec.nbytes;
  region.info.address = block ? block->address() : spec.address;
  region.info.kind = block && spec.access != Access::local ? MemoryKind::shared : MemoryKind::host;
  region.info.access = spec.access;
  region.info.label = spec.label;
  region.block = std::move(block);
  region.fragile = std::move(fragile);
  if (!spec.label.empty()) {
    labels_.insert(spec.label);
  }
  out = region.info;
  regions_.emplace(id, std::move(region));
  return Status::ok;
}

bool RegionTable::revoke(std::uint32_t region, OwnRegion& out) {
  const std::lock_guard lock(mutex_);
  const auto it = regions_.find(region);
  if (it == regions_.end()) {
    return false;
  }
  it->second.revoked = true;
  labels_.erase(it->second.info.label);
  out = it->second;
  return true;
}

bool RegionTable::holds(std::uint32_t region, std::uint32_t generation) const {
  const std::lock_guard lock(mutex_);
  const auto it = regions_.find(region);
  return it != regions_.end() && it->second.info.generation == generation;
}

bool RegionTable::service_idle(std::uint32_t region) const {
  const std::lock_guard lock(mutex_);
  const auto it = regions_.find(region);
  return it == regions_.end() || it->second.service_pins == 0;
}

void RegionTable::free(std::uint32_t region, std::uint32_t generation) {
  std::shared_ptr<MemoryBlock> block;  // outlives the lock: its end takes another one
  const std::lock_guard lock(mutex_);
  const auto it = regions_.find(region);
  if (it == regions_.end() || it->second.info.generation != generation) {
    return;
  }
  block = std::move(it->second.block);
  regions_.erase(it);
  free_ids_.push_back(region);
}

std::vector<OwnRegion> RegionTable::live() const {
  const std::lock_guard lock(mutex_);
  std::vector<OwnRegion> out;
  for (const auto& [id, region] : regions_) {
    if (!region.revoked && region.info.access != Access::local) {
      out.push_back(region);
    }
  }
  return out;
}

std::shared_ptr<MemoryBlock> RegionTable::block(std::uint32_t region) const {
  const std::lock_guard lock(mutex_);
  const auto it = regions_.find(region);
  return it == regions_.end() ? nullptr : it->second.block;
}

std::shared_ptr<void> RegionTable::hold(std::uint32_t region) const {
  const std::lock_guard lock(mutex_);
  const auto it = regions_.find(region);
  if (it == regions_.end()) {
    return nullptr;
  }
  return it->second.block ? std::shared_ptr<void>(it->second.block) : it->second.fragile;
}

std::uint32_t RegionTable::count() const {
  const std::lock_guard lock(mutex_);
  return static_cast<std::uint32_t>(regions_.size());
}

Status RegionTable::service_pin(std::uint32_t region, std::uint32_t generation, std::uint64_t offset,
                                std::uint64_t nbytes, Direction direction, std::byte*& address) {
  const std::lock_guard lock(mutex_);
  const auto it = regions_.find(region);
  if (it == regions_.end() || it->second.revoked || it->second.info.generation != generation) {
    return Status::stale_region;
  }
  const RegionInfo& info = it->second.info;
  if (!grants(info.access, direction)) {
    return Status::access_denied;
  }
  if (offset > info.nbytes || nbytes > info.nbytes - offset) {
    return Status::out_of_bounds;
  }
  ++it->second.service_pins;
  address = info.address + offset;
  return Status::ok;
}

void RegionTable::service_unpin(std::uint32_t region) {
  const std::lock_guard lock(mutex_);
  --regions_.at(region).service_pins;
}

RegionFrame region_frame(const OwnRegion& region) {
  RegionFrame frame;
  frame.region = region.info.region;
  frame.generation = region.info.generation;
  frame.kind = region.info.kind;
  frame.access = region.info.access;
  frame.segment = region.block ? region.block->segment().id() : 0;
  frame.segment_offset = region.block ? region.block->offset() : 0;
  frame.nbytes = region.info.nbytes;
  frame.address = reinterpret_cast<std::uintptr_t>(region.info.address);
  frame.label = region.info.label;
  return frame;
}

}  // namespace hixl_aio::host
