// Registered memory that may be gone when it is touched, and how to copy it all the same.
//
// A page of a file mapping that lies behind the end of a truncated file, or for which its file system has no room, is
// SIGBUS for whoever touches it, which ends the process. The kernel itself only gets EFAULT. So such memory is copied by
// process_vm_readv and process_vm_writev on ourselves: the operation fails, and the process lives. Anonymous memory and
// memfds that are sealed against shrinking cannot go, and are copied by memcpy; while no other kind is registered, the
// difference costs one load.
//
// The list belongs to the process, not to an engine: on the link inproc one engine copies what the other has registered.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <string>

namespace hixl_aio::host {

// One registered range; on the list for as long as it lives.
class FragileMemory {
 public:
  // Null if nothing can take the memory away. `error` is filled if it is fragile and cannot be copied safely here.
  static std::shared_ptr<FragileMemory> look(const std::byte* address, std::uint64_t nbytes, std::string& error);
  FragileMemory(const std::byte* address, std::uint64_t nbytes);
  FragileMemory(const FragileMemory&) = delete;
  FragileMemory& operator=(const FragileMemory&) = delete;
  ~FragileMemory();

  // Whether a listed range lies anywhere in this one.
  [[nodiscard]] static bool touches(const std::byte* address, std::uint64_t nbytes) noexcept {
    return any() && listed(address, nbytes);
  }
  // Acquire: pairs with the release of who has listed a range that is reachable since.
  [[nodiscard]] static bool any() noexcept { return count_.load(std::memory_order_acquire) != 0; }
  // In a forked child, whose engines are unusable: the lock may be held by a thread that does not exist here.
  static void forget_all();

 private:
  [[nodiscard]] static bool listed(const std::byte* address, std::uint64_t nbytes) noexcept;
  static inline std::atomic<std::uint32_t> count_{0};
  const std::byte* address_;
  std::uint64_t nbytes_;
  std::uint32_t epoch_;
};

[[nodiscard]] bool copy_fragile(std::byte* to, const std::byte* from, std::uint64_t nbytes) noexcept;

// Copies registered memory of ours, or memory that a peer has given us to map. False: some of it is gone, and how much was
// copied is unknown.
[[nodiscard]] inline bool copy_bytes(std::byte* to, const std::byte* from, std::uint64_t nbytes) noexcept {
  if (FragileMemory::any()) [[unlikely]] {
    return copy_fragile(to, from, nbytes);
  }
  if (nbytes > 0) {  // the address of nothing may be null
    std::memcpy(to, from, nbytes);
  }
  return true;
}

}  // namespace hixl_aio::host
