// Plain values that cross the layers: operations, records, events, regions, peers.
//
// Nothing here owns a thread or a file descriptor, and nothing here knows Python.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "hixl_aio/status.h"

namespace hixl_aio {

using Token = std::uint64_t;     // the caller's name for an operation or a request; comes back in its record
using PeerId = std::uint32_t;    // never reused within an engine
using OpHandle = std::uint64_t;  // generation << 32 | slot; a late handle never matches a reused slot (INV-9)

enum class OpKind : std::uint8_t { put = 0, get = 1, batch = 2, signal = 3 };
enum class Direction : std::uint8_t { put = 0, get = 1 };
enum class MemoryKind : std::uint8_t { shared = 0, host = 1, device = 2 };

// What peers may do with a region. `local` regions are invisible to peers.
enum class Access : std::uint8_t { local = 0, read = 1, write = 2, read_write = 3 };

[[nodiscard]] constexpr bool grants(Access access, Direction direction) noexcept {
  const auto bits = static_cast<std::uint8_t>(access);
  return direction == Direction::get ? (bits & 1U) != 0 : (bits & 2U) != 0;
}

enum class RunState : std::uint8_t { pending = 0, done = 1, stopped = 2, failed = 3, stale = 4 };

// One contiguous piece of an operation. `remote` and `link` are resolved by the transport when it admits the operation.
struct Run {
  std::byte* local = nullptr;
  std::uint64_t remote_offset = 0;
  std::uint64_t nbytes = 0;
  std::uint32_t region = 0;
  std::uint32_t generation = 0;
  Direction direction = Direction::put;
  RunState state = RunState::pending;
  std::uint8_t link = 0;
  std::byte* remote = nullptr;  // an address in our mapping, or in the peer's address space (cma)
};

// A signal bound to an operation, or alone. Its place in the target's queue is reserved before data moves.
struct SignalText {
  bool present = false;
  std::string name;     // <= 1024 bytes; keeps its capacity when the slot is reused
  std::string payload;  // <= 1024 bytes
};

// One operation in the slab. The loop thread fills it, the progress thread and the transport work on it, and the loop
// thread releases it when it takes the record: so at each moment exactly one side owns the plain fields.
struct Op {
  Op() = default;
  Op(const Op&) = delete;
  Op& operator=(const Op&) = delete;

  OpHandle handle = 0;
  Token token = 0;
  PeerId peer = 0;
  OpKind kind = OpKind::put;
  SignalText signal;
  std::vector<Run> runs;           // keeps its capacity: a put allocates nothing in the steady state
  void* target = nullptr;          // the transport's own peer, referenced from admit() to release()
  std::uint64_t nbytes = 0;

  // Set by the loop thread, read by whoever moves bytes, at each chunk. Relaxed is enough: it carries no data.
  std::atomic<bool> stop_requested{false};

  // Working state of the transport that owns the posted operation.
  std::size_t next_run = 0;
  std::uint64_t next_offset = 0;
  std::uint64_t cut_nbytes = 0;  // given out in chunks
  std::uint64_t moved_nbytes = 0;
  std::uint32_t outstanding = 0;  // chunks that are being copied now
  Status status = Status::ok;
  bool posted = false;
  bool queued = false;
  Op* next = nullptr;  // intrusive queues
};

// What comes up for each accepted operation, exactly once (INV-1).
struct CompletionRecord {
  OpHandle handle = 0;
  Token token = 0;
  std::uint64_t nbytes = 0;
  Status status = Status::ok;
  // The transport has let go of the memory (INV-2). False only for transports that cannot know.
  bool quiescent = true;
  bool repeats = false;  // from TransportHost::complete_again
};

struct RegionInfo {
  std::uint32_t region = 0;
  std::uint32_t generation = 0;
  std::uint64_t nbytes = 0;
  std::byte* address = nullptr;
  MemoryKind kind = MemoryKind::host;
  Access access = Access::local;
  std::string label;
};

struct LinkInfo {
  std::string name;    // "inproc", "shm", "cma", "cooperative"
  std::string reason;  // why it was chosen, or why a better one was not
};

// suspect: connected, its process is alive, and stopped (SIGSTOP, a debugger).
enum class PeerState : std::uint8_t { connected = 0, closed = 1, lost = 2, suspect = 3 };

struct PeerInfo {
  PeerId peer = 0;
  std::string name;
  std::string address;
  std::string incarnation;  // 32 hex digits
  std::int64_t pid = 0;
  PeerState state = PeerState::connected;
  std::vector<LinkInfo> route;
};

struct SignalRecord {
  PeerId peer = 0;
  std::uint64_t sequence = 0;
  Status status = Status::ok;  // not ok: the negative form
  std::string name;
  std::string payload;
};

enum class EventKind : std::uint8_t {
  connected = 0,      // token, peer or status + text
  accepted = 1,       // peer
  peer_down = 2,      // peer, status (peer_lost, peer_closed), text
  disconnected = 3,   // token, peer, status
  refreshed = 4,      // token, peer, status
  allocated = 5,      // token, status + text, region
  region_closed = 6,  // token, status
  shutdown = 7,       // token
  fault = 8,          // peer: the rule of a fault plan that has caught an operation
  looked = 9,         // token, ok + incarnation of who answers there, or status + text
};

// Control-plane news: rare, so strings are welcome.
struct Event {
  EventKind kind = EventKind::connected;
  Token token = 0;
  PeerId peer = 0;
  Status status = Status::ok;
  std::string text;
  RegionInfo region;
};

}  // namespace hixl_aio
