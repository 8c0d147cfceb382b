// The shared memory between two engines: one channel per direction, made by the owner for one peer.
//
// The owner is the target: its channel carries the generations of its regions, the peer's pins on them, the peer's
// signals to it and the cooperative slots the peer fills. So the initiator reads and writes the *owner's* channel, and
// each ring has one producing and one consuming process: a killed producer wedges nobody.
//
// Pins (INV-2). The initiator adds a pin, then reads the generation; the owner clears the generation, then reads the
// pins. All four are seq_cst, so at least one of the two sees the other: either the initiator finds the region closed
// and takes the pin back, or the owner sees the pin and waits.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "hixl_aio/status.h"
#include "transports/host/fd.h"

namespace hixl_aio::host {

inline constexpr std::uint64_t kChannelMagic = 0x3148434f49415848ULL;  // "HXAIOCH1"
inline constexpr std::uint32_t kChannelVersion = 1;
inline constexpr std::uint32_t kMaxRegionsLimit = 1U << 20U;
inline constexpr std::uint32_t kSignalCapacityLimit = 1U << 16U;
inline constexpr std::uint32_t kMaxSignalText = 1024;  // bytes, name and payload each
inline constexpr std::uint32_t kSignalHeader = 24;
inline constexpr std::uint32_t kSignalRecordMax = kSignalHeader + 2 * kMaxSignalText;
inline constexpr std::uint32_t kCoopSlots = 8;
inline constexpr std::uint32_t kCoopSlotNbytes = 256U << 10U;
inline constexpr std::uint32_t kCoopRuns = 256;

// Whether a signal's name and payload fit a record.
[[nodiscard]] constexpr bool signal_fits(std::string_view name, std::string_view payload) noexcept {
  return name.size() <= kMaxSignalText && payload.size() <= kMaxSignalText;
}

struct RegionEntry {
  std::atomic<std::uint32_t> generation;  // 0: no live region here. The owner writes
  std::atomic<std::uint32_t> pins;        // the peer's chunks in flight. The peer writes
};

struct CoopRun {
  std::uint64_t offset;
  std::uint64_t nbytes;
  std::uint32_t region;
  std::uint32_t generation;
};

struct CoopSlot {
  std::uint32_t run_count;
  std::uint32_t direction;
  std::uint8_t run_status[kCoopRuns];  // the owner's answer: 0, or a Status
  CoopRun runs[kCoopRuns];
  alignas(64) std::byte data[kCoopSlotNbytes];
};

struct ChannelHeader {
  std::uint64_t magic;
  std::uint32_t version;
  std::uint32_t max_regions;
  std::uint32_t signal_capacity;
  std::uint32_t reserved;
  // Signals: byte positions that only grow. `head` is released by the producer after the record is written, and
  // acquired by the owner before it reads; `tail` the other way round, so that bytes are reused only after they were read.
  alignas(64) std::atomic<std::uint64_t> signal_head;
  alignas(64) std::atomic<std::uint64_t> signal_tail;
  alignas(64) std::atomic<std::uint32_t> signal_armed;
  // How many signals the application took: what gives the sender its places back.
  alignas(64) std::atomic<std::uint64_t> signals_taken;
  // Cooperative slots: counters that only grow, slot = counter % kCoopSlots.
  alignas(64) std::atomic<std::uint64_t> coop_submitted;
  alignas(64) std::atomic<std::uint64_t> coop_completed;
  alignas(64) std::atomic<std::uint32_t> coop_service_armed;
  alignas(64) std::atomic<std::uint32_t> coop_initiator_armed;
};

static_assert(std::atomic<std::uint64_t>::is_always_lock_free, "shared memory needs address-free atomics");
static_assert(std::atomic<std::uint32_t>::is_always_lock_free, "shared memory needs address-free atomics");

class Channel {
 public:
  // As owner. The memory is sparse: what is never used is never backed.
  static std::unique_ptr<Channel> create(std::uint32_t max_regions, std::uint32_t signal_capacity, std::string& error);
  // As initiator: maps what a peer sent. Refuses a descriptor that could shrink under us or whose header is out of range.
  static std::unique_ptr<Channel> attach(UniqueFd fd, std::string& error);

  Channel(const Channel&) = delete;
  Channel& operator=(const Channel&) = delete;
  ~Channel();

  [[nodiscard]] ChannelHeader& header() const noexcept { return *header_; }
  [[nodiscard]] std::uint32_t max_regions() const noexcept { return max_regions_; }
  [[nodiscard]] std::uint32_t signal_capacity() const noexcept { return signal_capacity_; }
  [[nodiscard]] std::byte* signal_bytes() const noexcept { return signal_bytes_; }
  [[nodiscard]] std::uint64_t signal_nbytes() const noexcept {
    return std::uint64_t{signal_capacity_} * kSignalRecordMax;
  }
  [[nodiscard]] RegionEntry& entry(std::uint32_t region) const noexcept { return entries_[region]; }
  [[nodiscard]] CoopSlot& coop_slot(std::uint64_t counter) const noexcept { return coop_slots_[counter % kCoopSlots]; }
  // The owner's, until the peer has it: a mapping needs none.
  [[nodiscard]] int fd() const noexcept { return fd_.get(); }
  void close_fd() noexcept { fd_.reset(); }

  // Initiator side; see the head of this file. Generation 0 names no region: it would match a closed one.
  [[nodiscard]] bool pin(std::uint32_t region, std::uint32_t generation) noexcept {
    RegionEntry& e = entries_[region];
    e.pins.fetch_add(1, std::memory_order_seq_cst);
    if (e.generation.load(std::memory_order_seq_cst) == generation && generation != 0) {
      return true;
    }
    e.pins.fetch_sub(1, std::memory_order_seq_cst);
    return false;
  }
  // Release: the bytes copied under the pin are ordered before the owner sees it gone.
  void unpin(std::uint32_t region) noexcept { entries_[region].pins.fetch_sub(1, std::memory_order_release); }

 private:
  Channel() = default;
  bool map(int fd, std::uint64_t nbytes, std::string& error);

  UniqueFd fd_;
  std::byte* base_ = nullptr;
  std::uint64_t nbytes_ = 0;
  ChannelHeader* header_ = nullptr;
  RegionEntry* entries_ = nullptr;
  std::byte* signal_bytes_ = nullptr;
  CoopSlot* coop_slots_ = nullptr;
  // Copies: the mapped header belongs to somebody else and is not read again for sizes (INV-12).
  std::uint32_t max_regions_ = 0;
  std::uint32_t signal_capacity_ = 0;
};

// One page per engine, shared with all its peers: which of them have rung. Bit = the peer's place at the owner.
inline constexpr std::uint32_t kDoorbellPlaces = 4096;

struct DoorbellPage {
  std::atomic<std::uint64_t> dirty[kDoorbellPlaces / 64];
};

class SharedDoorbell {
 public:
  static std::unique_ptr<SharedDoorbell> create(std::string& error);
  static std::unique_ptr<SharedDoorbell> attach(UniqueFd fd, std::string& error);
  SharedDoorbell(const SharedDoorbell&) = delete;
  SharedDoorbell& operator=(const SharedDoorbell&) = delete;
  ~SharedDoorbell();

  [[nodiscard]] DoorbellPage& page() const noexcept { return *page_; }
  [[nodiscard]] int fd() const noexcept { return fd_.get(); }  // the owner's, to be sent to peers

 private:
  SharedDoorbell() = default;
  static std::unique_ptr<SharedDoorbell> map(int fd, std::string& error);
  UniqueFd fd_;
  DoorbellPage* page_ = nullptr;
};

}  // namespace hixl_aio::host
