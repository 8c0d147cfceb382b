#include "transports/host/memory.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <utility>

#include "transports/host/mapping.h"
#include "transports/host/memory_limit.h"

namespace hixl_aio::host {
namespace {

constexpr std::uint64_t kPage = 4096;
constexpr std::uint64_t kSlabNbytes = 4U << 20U;
constexpr std::uint64_t kCarveLimit = 1U << 20U;  // larger regions get a segment of their own
constexpr std::uint64_t kAlign = 64;
constexpr std::uint64_t kReserveStep = 64U << 20U;
constexpr unsigned kHuge2MiB = 21U << 26U;  // MFD_HUGE_2MB, which not every C library names

constexpr std::uint64_t round_up(std::uint64_t value, std::uint64_t unit) noexcept {
  return (value + unit - 1) / unit * unit;
}

std::string shortage(std::uint64_t nbytes, std::uint64_t available) {
  return "cannot reserve " + std::to_string(nbytes) + " bytes: " + std::to_string(available) +
         " bytes are available; allocate less, close regions, or raise the memory limit";
}

std::string system_refused(const char* call) {
  const int code = errno;
  return std::string("shared memory: ") + call + ": " + std::strerror(code) +
         (code == EMFILE || code == ENFILE ? "; close some descriptors or raise the limit (ulimit -n)" : "");
}

bool reserve(int fd, std::uint64_t nbytes) noexcept {
  for (std::uint64_t offset = 0; offset < nbytes;) {
    const std::uint64_t step = std::min(kReserveStep, nbytes - offset);
    if (fallocate(fd, 0, static_cast<off_t>(offset), static_cast<off_t>(step)) != 0) {
      if (errno == EINTR) {
        continue;
      }
      return false;
    }
    offset += step;
  }
  return true;
}

}  // namespace

// Memory for a segment that is shared, from the system's pool of huge pages. False: that has not enough of them.
bool Segment::open_from_pool(std::uint64_t nbytes) noexcept {
#ifdef MFD_HUGETLB
  // Not what is sealed against writable maps: older kernels do not keep that seal for such pages.
  if (kind_ == SegmentClass::writable && nbytes >= kHugePage) {
    const std::uint64_t rounded = round_up(nbytes, kHugePage);
    fd_.reset(memfd_create("hixl-aio-segment", MFD_CLOEXEC | MFD_ALLOW_SEALING | MFD_HUGETLB | kHuge2MiB));
    if (fd_ && ftruncate(fd_.get(), static_cast<off_t>(rounded)) == 0 && reserve(fd_.get(), rounded)) {
      nbytes_ = rounded;
      return true;
    }
    fd_.reset();
  }
#endif
  return false;
}

// Reserves and maps, page by page or by the huge page. False: errno says why.
bool Segment::back(bool huge_pages) {
  const bool shared = kind_ != SegmentClass::local;
  if (shared && ftruncate(fd_.get(), static_cast<off_t>(nbytes_)) != 0) {
    return false;
  }
  // Reserved from the file, pages are small ones: huge ones come with the first touch of a mapping that asks for them.
  if (shared && !huge_pages && !reserve(fd_.get(), nbytes_)) {
    return false;
  }
  void* base = map_memory(fd_.get(), nbytes_, PROT_READ | PROT_WRITE, shared ? MAP_SHARED : MAP_PRIVATE | MAP_ANONYMOUS);
  if (base == MAP_FAILED) {
    return false;
  }
  base_ = static_cast<std::byte*>(base);
  if (huge_pages) {
    madvise(base_, nbytes_, MADV_HUGEPAGE);
  }
  const bool ready = prefault(base_, nbytes_, true);
  if (!ready && errno != EINVAL && !shared) {
    return false;
  }
  if (shared && huge_pages && !reserve(fd_.get(), nbytes_)) {
    return false;
  }
  if (!ready) {
    std::memset(base_, 0, nbytes_);
  }
  huge_nbytes_ = huge_pages ? huge_nbytes_of(base_, nbytes_) : 0;
  return true;
}

std::shared_ptr<Segment> Segment::create(std::uint32_t id, SegmentClass kind, std::uint64_t nbytes, Status& status,
                                         std::string& error, bool huge_pages) {
  std::shared_ptr<Segment> segment(new Segment);
  segment->id_ = id;
  segment->kind_ = kind;
  segment->nbytes_ = nbytes;
  // The pool was set aside when it was filled: it is no part of what is available.
  const bool from_pool = huge_pages && segment->open_from_pool(nbytes);
  const std::uint64_t available = available_nbytes();
  if (!from_pool && nbytes > available) {
    status = Status::resource_exhausted;
    error = shortage(nbytes, available);
    return nullptr;
  }
  if (!from_pool && kind != SegmentClass::local) {
    segment->fd_.reset(memfd_create("hixl-aio-segment", MFD_CLOEXEC | MFD_ALLOW_SEALING));
    if (!segment->fd_) {
      status = Status::resource_exhausted;
      error = system_refused("memfd_create");
      return nullptr;
    }
  }
  if (!segment->back(huge_pages)) {
    const int code = errno;
    status = Status::resource_exhausted;
    error = shortage(nbytes, available) + " (" + std::strerror(code) + ")";
    return nullptr;
  }
  if (kind != SegmentClass::local) {
    int seals = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL;
    if (kind == SegmentClass::readable) {
      seals |= F_SEAL_FUTURE_WRITE;  // our own mapping above stays writable
    }
    if (fcntl(segment->fd_.get(), F_ADD_SEALS, seals) != 0) {
      status = Status::resource_exhausted;
      error = system_refused("sealing") + "; Linux 5.10 or newer is needed";
      return nullptr;
    }
  }
  return segment;
}

Segment::~Segment() {
  if (base_ != nullptr) {
    munmap(base_, nbytes_);
  }
}

MemoryBlock::MemoryBlock(std::shared_ptr<Segment> segment, std::uint64_t offset, std::uint64_t reserved,
                         std::weak_ptr<SharedHeap> heap) noexcept
    : segment_(std::move(segment)), offset_(offset), reserved_(reserved), heap_(std::move(heap)) {}

MemoryBlock::~MemoryBlock() {
  if (const auto heap = heap_.lock()) {
    heap->give_back(std::move(segment_), offset_, reserved_);
  }
}

SharedHeap::SharedHeap(Owner owner, bool huge_pages) : owner_(std::move(owner)), huge_pages_(huge_pages) {}

void SharedHeap::detach() {
  const std::lock_guard lock(mutex_);
  owner_ = {};
}

std::shared_ptr<MemoryBlock> SharedHeap::carve(Slab& slab, std::uint64_t reserved) {
  std::uint64_t largest = 0;
  for (auto it = slab.free.begin(); it != slab.free.end(); ++it) {
    const auto [offset, length] = *it;
    if (length < reserved) {
      largest = std::max(largest, length);
      continue;
    }
    slab.free.erase(it);
    if (length > reserved) {
      slab.free.emplace(offset + reserved, length - reserved);
    }
    slab.free_nbytes -= reserved;
    return std::make_shared<MemoryBlock>(slab.segment, offset, reserved, weak_from_this());
  }
  slab.largest = largest;
  return nullptr;
}

std::shared_ptr<MemoryBlock> SharedHeap::carve_any(SegmentClass kind, std::uint64_t reserved) {
  auto& slabs = slabs_[static_cast<std::size_t>(kind)];
  for (auto it = slabs.rbegin(); it != slabs.rend(); ++it) {
    if (it->free_nbytes >= reserved && it->largest >= reserved) {
      if (auto block = carve(*it, reserved)) {
        return block;
      }
    }
  }
  return nullptr;
}

std::shared_ptr<MemoryBlock> SharedHeap::allocate(std::uint64_t nbytes, SegmentClass kind, Status& status,
                                                  std::string& error) {
  if (nbytes > UINT64_MAX / 2) {
    status = Status::resource_exhausted;
    error = shortage(nbytes, available_nbytes());
    return nullptr;
  }
  const std::uint64_t wanted = std::max<std::uint64_t>(nbytes, 1);
  const bool alone = wanted > kCarveLimit;
  const std::uint64_t reserved = round_up(wanted, kAlign);
  std::shared_ptr<MemoryBlock> block;
  std::uint32_t id = 0;
  {
    const std::lock_guard lock(mutex_);
    block = alone ? nullptr : carve_any(kind, reserved);
    id = block ? 0 : next_segment_++;
  }
  if (!block) {
    const bool huge = alone && huge_pages_;
    auto segment = Segment::create(id, kind, alone ? round_up(wanted, kPage) : kSlabNbytes, status, error, huge);
    if (!segment) {
      return nullptr;
    }
    if (alone) {
      huge_nbytes_.fetch_add(segment->huge_nbytes(), std::memory_order_relaxed);
      return std::make_shared<MemoryBlock>(std::move(segment), 0, 0, weak_from_this());
    }
    Slab slab;
    slab.segment = std::move(segment);
    slab.free.emplace(0, kSlabNbytes);
    slab.free_nbytes = slab.largest = kSlabNbytes;
    const std::lock_guard lock(mutex_);
    auto& slabs = slabs_[static_cast<std::size_t>(kind)];
    slabs.push_back(std::move(slab));
    return carve(slabs.back(), reserved);  // fresh pages are zeros
  }
  std::memset(block->address(), 0, reserved);  // a reused range must not show what the last region held
  return block;
}

void SharedHeap::insert_free(Slab& slab, std::uint64_t offset, std::uint64_t length) {
  slab.free_nbytes += length;
  auto next = slab.free.lower_bound(offset);
  if (next != slab.free.begin()) {
    const auto before = std::prev(next);
    if (before->first + before->second == offset) {
      offset = before->first;
      length += before->second;
      slab.free.erase(before);
    }
  }
  if (next != slab.free.end() && offset + length == next->first) {
    length += next->second;
    slab.free.erase(next);
  }
  slab.free.emplace(offset, length);
  slab.largest = std::max(slab.largest, length);
}

void SharedHeap::give_back(std::shared_ptr<Segment> segment, std::uint64_t offset, std::uint64_t reserved) {
  if (epoch_ != FdRegistry::epoch()) {
    return;
  }
  const std::lock_guard lock(mutex_);  // left before `segment`, which may be the last reference
  huge_nbytes_.fetch_sub(segment->huge_nbytes(), std::memory_order_relaxed);  // none has a slab
  if (reserved != 0) {
    auto& slabs = slabs_[static_cast<std::size_t>(segment->kind())];
    const auto it = std::find_if(slabs.begin(), slabs.end(), [&](const Slab& slab) { return slab.segment == segment; });
    if (it == slabs.end()) {
      return;
    }
    insert_free(*it, offset, reserved);
    // One empty slab of a class is kept: allocate and close in turn would otherwise pay for the pages each time.
    if (it->free_nbytes != kSlabNbytes || slabs.size() == 1) {
      return;
    }
    slabs.erase(it);
    if (owner_.segment_gone) {
      owner_.segment_gone(segment->id());
    }
  }
  if (owner_.unmap) {
    owner_.unmap(segment);
  }
}

}  // namespace hixl_aio::host
