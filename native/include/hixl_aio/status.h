// Status codes shared by the core, the transports and the Python side.
//
// Python maps each value to one exception class (hixl_aio/errors.py keeps the registry and refuses duplicates), so a
// value is never reused for another meaning.
#pragma once

#include <cstdint>

namespace hixl_aio {

enum class Status : std::int32_t {
  ok = 0,
  would_block = 1,          // not an error: the caller takes the queued path
  stopped = 2,              // ended on request: bytes undefined, settled
  failed = 3,               // the transport reported a failure
  lost = 4,                 // the transport forgot the operation (its link was reset)
  peer_lost = 5,            // the peer died or its link broke
  peer_closed = 6,          // the peer, or we, closed the connection
  not_connected = 7,        // no such peer
  stale_region = 8,         // the region was closed or registered anew
  access_denied = 9,        // the region does not grant this direction
  out_of_bounds = 10,       // offset + nbytes leaves the region
  no_link = 11,             // the allowed links cannot reach this memory
  queue_full = 12,          // no free operation slot
  signal_queue_full = 13,   // the target's signal queue has no free place
  invalid_argument = 14,
  unsupported = 15,
  closed = 16,              // the engine is closed
  resource_exhausted = 17,  // memory or descriptors
  timed_out = 18,
  handshake_refused = 19,   // versions or settings differ; the text names the field and both values
  permission_denied = 20,   // another user
  address_in_use = 21,
  connect_failed = 22,      // nobody listens there
  not_registered = 23,      // no such region
  region_busy = 24,         // somebody still holds a pin
  internal = 25,
  authentication_failed = 26,
};

[[nodiscard]] constexpr bool ok(Status status) noexcept { return status == Status::ok; }

}  // namespace hixl_aio
