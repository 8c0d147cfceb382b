// The control protocol between two engines on one host: bounded frames over a SOCK_SEQPACKET unix socket.
//
// Nothing from the wire is trusted (INV-12): a reader never leaves its frame, strings and counts are capped, and memory
// is named by region id, generation and offset. The greeting carries the wire version first, so that any two releases can
// at least refuse each other by name.
#pragma once

#include <array>
#include <cstdint>
#include <cstring>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

#include "hixl_aio/types.h"
#include "transports/host/fd.h"
#include "transports/host/memory.h"

namespace hixl_aio::host {

inline constexpr std::uint64_t kWireMagic = 0x4f49414c58494800ULL;  // "\0HIXLAIO", little endian
inline constexpr std::uint32_t kWireVersion = 1;
inline constexpr std::size_t kMaxFrame = 32U << 10U;
inline constexpr std::size_t kMaxName = 255;
inline constexpr std::size_t kMaxLabel = 255;
inline constexpr std::size_t kMaxText = 1024;
inline constexpr std::size_t kMaxFds = 8;

using Incarnation = std::array<std::uint8_t, 16>;
[[nodiscard]] std::string hex(const Incarnation& incarnation);

// A status that another process wrote: `failed` for what is none, or none that can be an outcome.
[[nodiscard]] Status status_from_wire(std::int32_t value) noexcept;

enum class FrameType : std::uint8_t {
  hello = 1,
  welcome = 2,
  refuse = 3,
  segment = 4,
  regions = 5,
  region_gone = 6,
  segment_gone = 7,
  directory_end = 8,
  sync = 9,
  sync_ack = 10,
  bye = 11,
};

class Writer {
 public:
  template <typename T>
    requires std::is_integral_v<T>
  Writer& put(T value) {
    return append(&value, sizeof(T));
  }
  Writer& type(FrameType value) { return put(static_cast<std::uint8_t>(value)); }
  Writer& text(std::string_view value, std::size_t cap);
  Writer& raw(std::span<const std::uint8_t> value);
  [[nodiscard]] const std::vector<std::byte>& bytes() const noexcept { return bytes_; }

 private:
  Writer& append(const void* data, std::size_t nbytes);
  std::vector<std::byte> bytes_;
};

// After the first failed read everything reads as zero and `good()` is false, so a parser checks once.
class Reader {
 public:
  explicit Reader(std::span<const std::byte> bytes) noexcept : bytes_(bytes) {}
  template <typename T>
    requires std::is_integral_v<T>
  T take() noexcept {
    T value{};
    if (!good_ || bytes_.size() - at_ < sizeof(T)) {
      good_ = false;
      return value;
    }
    std::memcpy(&value, bytes_.data() + at_, sizeof(T));
    at_ += sizeof(T);
    return value;
  }
  std::string text(std::size_t cap);
  void raw(std::span<std::uint8_t> out) noexcept;
  [[nodiscard]] bool good() const noexcept { return good_; }
  [[nodiscard]] bool finished() const noexcept { return good_ && at_ == bytes_.size(); }

 private:
  std::span<const std::byte> bytes_;
  std::size_t at_ = 0;
  bool good_ = true;
};

// First words of a server, on the public socket and on the control socket.
struct Greeting {
  std::uint32_t version = kWireVersion;
  Incarnation incarnation{};
  std::string host_id;         // boot id: both ends must be on one kernel
  std::string control_socket;  // abstract name, announced here

  [[nodiscard]] std::vector<std::byte> encode() const;
};
// ok, handshake_refused with both versions, or failed for what is not ours.
[[nodiscard]] Status parse_greeting(std::span<const std::byte> bytes, Greeting& out, std::string& error);
// Whether what has arrived so far can still become a greeting of our version: whoever says something else is refused at
// its first words, also if it keeps the connection open.
[[nodiscard]] bool may_become_greeting(std::span<const std::byte> bytes) noexcept;

// What each side says of itself, with five descriptors: channel, doorbell, loop, progress and service eventfd.
inline constexpr std::size_t kHelloFds = 5;
struct Hello {
  Incarnation incarnation{};
  Incarnation process{};  // the same in all engines of one process
  std::string name;
  std::string address;
  std::uint32_t doorbell_place = 0;
  std::uint64_t probe_address = 0;  // 16 bytes to read, then 8 bytes to write, by process_vm
  Incarnation probe_value{};

  [[nodiscard]] std::vector<std::byte> encode(FrameType type) const;
};
[[nodiscard]] bool parse_hello(std::span<const std::byte> bytes, FrameType type, Hello& out);

struct SegmentFrame {
  std::uint32_t segment = 0;
  SegmentClass kind = SegmentClass::writable;
  std::uint64_t nbytes = 0;
};

struct RegionFrame {
  std::uint32_t region = 0;
  std::uint32_t generation = 0;
  MemoryKind kind = MemoryKind::host;
  Access access = Access::local;
  std::uint32_t segment = 0;  // 0: not in a segment
  std::uint64_t segment_offset = 0;
  std::uint64_t nbytes = 0;
  std::uint64_t address = 0;  // in the owner's address space, for cma and inproc
  std::string label;

  void encode(Writer& writer) const;
  static bool parse(Reader& reader, RegionFrame& out);
};

// ---- sockets

struct Frame {
  std::vector<std::byte> bytes;
  std::vector<UniqueFd> fds;
  bool fds_lost = false;  // descriptors came and found no place here; `fds` is empty then, the bytes are whole
};

enum class SocketResult : std::uint8_t { done, again, closed };
[[nodiscard]] SocketResult send_frame(int socket, std::span<const std::byte> bytes, std::span<const int> fds) noexcept;
// `bytes` empty after `done`: the frame was too long or had too many descriptors, which no engine sends.
[[nodiscard]] SocketResult receive_frame(int socket, Frame& out);

struct Credentials {
  std::int64_t pid = 0;
  std::uint32_t uid = 0;
};
[[nodiscard]] std::optional<Credentials> peer_credentials(int socket) noexcept;
// A pidfd of the process at the other end; invalid where the kernel has none for it. resource_exhausted: it has one, and
// no descriptor is left.
[[nodiscard]] Status peer_pidfd(int socket, std::int64_t pid, UniqueFd& out) noexcept;
// Nothing else is written to when a peer is to be woken: a pipe could block us, or end us with SIGPIPE.
[[nodiscard]] bool is_event_fd(int fd) noexcept;

[[nodiscard]] std::string read_boot_id();
[[nodiscard]] bool random_bytes(std::span<std::uint8_t> out) noexcept;

}  // namespace hixl_aio::host
