// The memory behind `allocate`: sealed, fully reserved segments, large ones alone, small ones carved from slabs.
//
// Reserved means reserved: the pages are there when `allocate` answers, and what cannot be had is resource_exhausted
// then, never a SIGBUS later. Segments that peers may map are memfds sealed against shrinking; the READ class is sealed
// against new writable maps as well, so that a peer cannot write it through its mapping at all.
//
// Where huge pages are asked for, a region that has room for one gets them from the system's pool, else from the kernel's
// transparent ones, else none.
//
// A block stays mapped for as long as anybody holds it: the region, or a view that Python still has.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "hixl_aio/status.h"
#include "hixl_aio/types.h"
#include "transports/host/fd.h"

namespace hixl_aio::host {

// What a peer may do with a mapping decides which segment memory comes from.
enum class SegmentClass : std::uint8_t { local = 0, readable = 1, writable = 2 };

[[nodiscard]] constexpr SegmentClass segment_class(Access access) noexcept {
  return access == Access::local  ? SegmentClass::local
         : access == Access::read ? SegmentClass::readable
                                  : SegmentClass::writable;
}

class Segment {
 public:
  static std::shared_ptr<Segment> create(std::uint32_t id, SegmentClass kind, std::uint64_t nbytes, Status& status,
                                         std::string& error, bool huge_pages = false);
  Segment(const Segment&) = delete;
  Segment& operator=(const Segment&) = delete;
  ~Segment();

  [[nodiscard]] std::uint32_t id() const noexcept { return id_; }
  [[nodiscard]] SegmentClass kind() const noexcept { return kind_; }
  [[nodiscard]] std::byte* base() const noexcept { return base_; }
  [[nodiscard]] std::uint64_t nbytes() const noexcept { return nbytes_; }
  [[nodiscard]] int fd() const noexcept { return fd_.get(); }  // -1 for local ones
  [[nodiscard]] std::uint64_t huge_nbytes() const noexcept { return huge_nbytes_; }  // of those asked for

 private:
  Segment() = default;
  bool open_from_pool(std::uint64_t nbytes) noexcept;
  bool back(bool huge_pages);
  std::uint32_t id_ = 0;
  SegmentClass kind_ = SegmentClass::local;
  UniqueFd fd_;
  std::byte* base_ = nullptr;
  std::uint64_t nbytes_ = 0;
  std::uint64_t huge_nbytes_ = 0;
};

class SharedHeap;

class MemoryBlock {
 public:
  // `reserved` 0: the segment is this block's alone.
  MemoryBlock(std::shared_ptr<Segment> segment, std::uint64_t offset, std::uint64_t reserved,
              std::weak_ptr<SharedHeap> heap) noexcept;
  MemoryBlock(const MemoryBlock&) = delete;
  MemoryBlock& operator=(const MemoryBlock&) = delete;
  ~MemoryBlock();

  [[nodiscard]] std::byte* address() const noexcept { return segment_->base() + offset_; }
  [[nodiscard]] std::uint64_t offset() const noexcept { return offset_; }
  [[nodiscard]] const Segment& segment() const noexcept { return *segment_; }
  [[nodiscard]] std::shared_ptr<const Segment> keep_segment() const noexcept { return segment_; }
  // True when no other region shares the segment.
  [[nodiscard]] bool whole_segment() const noexcept { return reserved_ == 0; }

 private:
  std::shared_ptr<Segment> segment_;
  std::uint64_t offset_ = 0;
  std::uint64_t reserved_ = 0;
  std::weak_ptr<SharedHeap> heap_;
};

// Thread-safe: blocks are made on the jobs thread and given back wherever their last holder dies, which may be the loop
// thread. So the lock is held for a map look-up, never while pages are reserved or unmapped (INV-7).
class SharedHeap : public std::enable_shared_from_this<SharedHeap> {
 public:
  // What the heap tells its owner, from any thread, under the lock: a slab is given back to the system; a segment is to
  // be unmapped, which may take long, elsewhere than on the thread that dropped it (INV-7). Both may be empty.
  struct Owner {
    std::function<void(std::uint32_t)> segment_gone;
    std::function<void(std::shared_ptr<Segment>)> unmap;
  };
  explicit SharedHeap(Owner owner, bool huge_pages = false);

  std::shared_ptr<MemoryBlock> allocate(std::uint64_t nbytes, SegmentClass kind, Status& status, std::string& error);
  // Of what is allocated now, how much lies on huge pages. Any thread.
  [[nodiscard]] std::uint64_t huge_nbytes() const noexcept { return huge_nbytes_.load(std::memory_order_relaxed); }
  // No more news to the owner when this returns: it is going away while blocks may live on.
  void detach();

 private:
  friend class MemoryBlock;
  struct Slab {
    std::shared_ptr<Segment> segment;
    std::map<std::uint64_t, std::uint64_t> free;  // offset -> length, coalesced
    std::uint64_t free_nbytes = 0;
    std::uint64_t largest = 0;  // no hole is larger: spares the search where it would find nothing
  };

  std::shared_ptr<MemoryBlock> carve(Slab& slab, std::uint64_t reserved);
  std::shared_ptr<MemoryBlock> carve_any(SegmentClass kind, std::uint64_t reserved);
  void give_back(std::shared_ptr<Segment> segment, std::uint64_t offset, std::uint64_t reserved);
  void insert_free(Slab& slab, std::uint64_t offset, std::uint64_t length);

  std::mutex mutex_;
  std::vector<Slab> slabs_[3];
  std::uint32_t next_segment_ = 1;
  Owner owner_;
  const bool huge_pages_;
  std::atomic<std::uint64_t> huge_nbytes_{0};  // relaxed: a statistic
  // A forked child does not take the lock: its holder may not exist there.
  const std::uint32_t epoch_ = FdRegistry::epoch();
};

}  // namespace hixl_aio::host
