#include "transports/host/channel.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include <cerrno>
#include <cstring>

namespace hixl_aio::host {
namespace {

constexpr std::uint64_t kPage = 4096;

constexpr std::uint64_t round_up(std::uint64_t value) noexcept { return (value + kPage - 1) / kPage * kPage; }

struct Layout {
  std::uint64_t entries = 0;
  std::uint64_t signals = 0;
  std::uint64_t coop = 0;
  std::uint64_t total = 0;
};

Layout layout_of(std::uint32_t max_regions, std::uint32_t signal_capacity) noexcept {
  Layout layout;
  layout.entries = round_up(sizeof(ChannelHeader));
  layout.signals = layout.entries + round_up(std::uint64_t{max_regions} * sizeof(RegionEntry));
  layout.coop = layout.signals + round_up(std::uint64_t{signal_capacity} * kSignalRecordMax);
  layout.total = layout.coop + round_up(std::uint64_t{kCoopSlots} * sizeof(CoopSlot));
  return layout;
}

std::string os_error(const char* what) { return std::string(what) + ": " + std::strerror(errno); }

UniqueFd sealed_memfd(const char* name, std::uint64_t nbytes, std::string& error) {
  UniqueFd fd(memfd_create(name, MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (!fd) {
    error = os_error("memfd_create");
    return fd;
  }
  if (ftruncate(fd.get(), static_cast<off_t>(nbytes)) != 0 ||
      fcntl(fd.get(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) != 0) {
    error = os_error("sizing shared memory");
    fd.reset();
  }
  return fd;
}

bool cannot_shrink(int fd, std::uint64_t nbytes) noexcept {
  const int seals = fcntl(fd, F_GET_SEALS);
  struct stat info {};
  return seals >= 0 && (seals & F_SEAL_SHRINK) != 0 && fstat(fd, &info) == 0 && info.st_size >= 0 &&
         static_cast<std::uint64_t>(info.st_size) >= nbytes;
}

}  // namespace

bool Channel::map(int fd, std::uint64_t nbytes, std::string& error) {
  void* base = mmap(nullptr, nbytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  if (base == MAP_FAILED) {
    error = os_error("mmap of a channel");
    return false;
  }
  base_ = static_cast<std::byte*>(base);
  nbytes_ = nbytes;
  const Layout layout = layout_of(max_regions_, signal_capacity_);
  header_ = reinterpret_cast<ChannelHeader*>(base_);
  entries_ = reinterpret_cast<RegionEntry*>(base_ + layout.entries);
  signal_bytes_ = base_ + layout.signals;
  coop_slots_ = reinterpret_cast<CoopSlot*>(base_ + layout.coop);
  return true;
}

std::unique_ptr<Channel> Channel::create(std::uint32_t max_regions, std::uint32_t signal_capacity,
                                         std::string& error) {
  std::unique_ptr<Channel> channel(new Channel);
  channel->max_regions_ = max_regions;
  channel->signal_capacity_ = signal_capacity;
  const Layout layout = layout_of(max_regions, signal_capacity);
  channel->fd_ = sealed_memfd("hixl-aio-channel", layout.total, error);
  if (!channel->fd_ || !channel->map(channel->fd_.get(), layout.total, error)) {
    return nullptr;
  }
  // The kernel gave zeroed pages; only what is not zero is written, before anybody else sees the memory.
  ChannelHeader& header = *channel->header_;
  header.magic = kChannelMagic;
  header.version = kChannelVersion;
  header.max_regions = max_regions;
  header.signal_capacity = signal_capacity;
  header.signal_armed.store(1, std::memory_order_relaxed);
  header.coop_service_armed.store(1, std::memory_order_relaxed);
  return channel;
}

std::unique_ptr<Channel> Channel::attach(UniqueFd fd, std::string& error) {
  if (!cannot_shrink(fd.get(), sizeof(ChannelHeader))) {
    error = "the channel is not sealed against shrinking, or too small";
    return nullptr;
  }
  ChannelHeader probe_fields{};
  if (pread(fd.get(), &probe_fields, sizeof(std::uint64_t) * 4, 0) != static_cast<ssize_t>(sizeof(std::uint64_t) * 4)) {
    error = os_error("reading the channel's header");
    return nullptr;
  }
  if (probe_fields.magic != kChannelMagic || probe_fields.version != kChannelVersion) {
    error = "channel version: ours " + std::to_string(kChannelVersion) + ", theirs " +
            std::to_string(probe_fields.version);
    return nullptr;
  }
  if (probe_fields.max_regions == 0 || probe_fields.max_regions > kMaxRegionsLimit ||
      probe_fields.signal_capacity == 0 || probe_fields.signal_capacity > kSignalCapacityLimit) {
    error = "channel sizes are out of range";
    return nullptr;
  }
  std::unique_ptr<Channel> channel(new Channel);
  channel->max_regions_ = probe_fields.max_regions;
  channel->signal_capacity_ = probe_fields.signal_capacity;
  const Layout layout = layout_of(channel->max_regions_, channel->signal_capacity_);
  if (!cannot_shrink(fd.get(), layout.total)) {
    error = "the channel is smaller than its header says";
    return nullptr;
  }
  return channel->map(fd.get(), layout.total, error) ? std::move(channel) : nullptr;
}

Channel::~Channel() {
  if (base_ != nullptr) {
    munmap(base_, nbytes_);
  }
}

std::unique_ptr<SharedDoorbell> SharedDoorbell::create(std::string& error) {
  UniqueFd fd = sealed_memfd("hixl-aio-doorbell", kPage, error);
  auto doorbell = fd ? map(fd.get(), error) : nullptr;
  if (doorbell) {
    doorbell->fd_ = std::move(fd);
  }
  return doorbell;
}

std::unique_ptr<SharedDoorbell> SharedDoorbell::attach(UniqueFd fd, std::string& error) {
  static_assert(sizeof(DoorbellPage) <= kPage);
  if (!cannot_shrink(fd.get(), kPage)) {
    error = "the doorbell page is not sealed against shrinking";
    return nullptr;
  }
  return map(fd.get(), error);
}

std::unique_ptr<SharedDoorbell> SharedDoorbell::map(int fd, std::string& error) {
  void* base = mmap(nullptr, kPage, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  if (base == MAP_FAILED) {
    error = os_error("mmap of a doorbell page");
    return nullptr;
  }
  std::unique_ptr<SharedDoorbell> doorbell(new SharedDoorbell);
  doorbell->page_ = static_cast<DoorbellPage*>(base);
  return doorbell;
}

SharedDoorbell::~SharedDoorbell() { munmap(page_, kPage); }

}  // namespace hixl_aio::host
