// What a fault plan is made of: rules that pick operations or signals, and what happens to those that they pick.
//
// Rules are matched on the loop thread, when an operation is submitted or a signal is drained: so the order of the calls
// alone decides which one is hit, whatever the native threads do.
#pragma once

#include <cstdint>
#include <limits>
#include <string>

#include "hixl_aio/status.h"
#include "hixl_aio/types.h"

namespace hixl_aio::fault {

using RuleId = std::uint32_t;

inline constexpr std::uint32_t kEvery = std::numeric_limits<std::uint32_t>::max();

enum class Action : std::uint8_t {
  hold = 0,              // until released, at the point that the rule names
  delay = 1,             // post it so many seconds later
  fail = 2,              // nothing moves, the record says so
  lie = 3,               // the record says failed and not quiescent; the bytes land when released
  lose = 4,              // the bytes land, the record does not come until the link is torn down
  duplicate = 5,         // the record comes twice
  reorder = 6,           // a window of operations is posted in reverse
  refuse = 7,            // at submit
  latch = 8,             // this one fails, and every later one to the same peer, until the peer is gone
  drop_signal = 9,       // an arriving signal vanishes
  duplicate_signal = 10  // an arriving signal is given twice
};

// Where a held operation waits.
enum class HoldPoint : std::uint8_t {
  posted = 0,   // with the transport, nothing has moved
  half = 1,     // half of its first run has moved
  landed = 2,   // the bytes are there, the signal and the record are not
  signalled = 3 // the signal has been sent too, the record has not come
};

struct Rule {
  RuleId id = 0;
  Action action = Action::hold;
  HoldPoint at = HoldPoint::posted;
  int kind = -1;             // an OpKind; -1: any
  PeerId peer = 0;           // 0: any
  std::uint64_t min_nbytes = 0;
  std::string signal = {};   // of a signal rule; empty: any name
  std::uint32_t skip = 0;    // let so many pass first
  std::uint32_t count = 1;   // then pick so many; kEvery: all
  Status status = Status::failed;
  bool quiescent = true;
  bool can_stop = true;      // a held operation ends when it is asked to stop
  double seconds = 0.0;
  std::uint32_t window = 0;
  // Working state.
  std::uint64_t hits = 0;

  [[nodiscard]] bool is_for_signals() const noexcept {
    return action == Action::drop_signal || action == Action::duplicate_signal;
  }
  // Whether it picks this one, which fits otherwise; counts.
  [[nodiscard]] bool picks() noexcept {
    if (count == 0) {
      return false;
    }
    if (skip > 0) {
      --skip;
      return false;
    }
    if (count != kEvery) {
      --count;
    }
    ++hits;
    return true;
  }
};

}  // namespace hixl_aio::fault
