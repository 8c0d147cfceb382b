// What two engines say to each other about signals that may get lost: numbers, acknowledgements, places.
//
// Frames. Signals of the inner transport; numbers are 64 bits, little endian.
//   a signal           its name    payload: its sequence, from 1 without gaps | the payload
//   acknowledgement    no name     payload: the sequence up to which all were delivered | the highest one that has a place
// No user can send a signal without a name. A frame that no engine sends ends the link (INV-12).
//
//
// Knows no transport and no time of its own; the loop thread's.
#pragma once

#include <cstdint>
#include <deque>
#include <limits>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "hixl_aio/transport.h"

namespace hixl_aio::resend {

inline constexpr double kNever = std::numeric_limits<double>::infinity();
inline constexpr std::uint32_t kHeaderNbytes = 8;

struct Config {
  std::uint32_t capacity = 4096;  // signals that each peer may leave unread with us
  double first_timeout = 0.02;    // seconds, as all times here
  double longest_timeout = 1.0;
  std::uint32_t tries = 36;  // half a minute
  double linger = 0.4;
  bool manual_clock = false;  // time goes on only by advance()
};

// One peer. Fields are read freely and changed by the functions, unless they say otherwise.
struct Link {
  struct Kept {
    std::string name;
    std::string frame;
    Status status = Status::ok;
  };

  explicit Link(const Config& configuration) noexcept
      : config(configuration), limit(configuration.capacity), timeout(configuration.first_timeout) {}

  // Out.
  void keep(std::string_view name, std::string_view payload, Status status, double time);
  // Whether a timeout is over: then everything that is kept is to be sent again.
  bool times_out(double time) noexcept;
  // The frame of an old signal, which makes the peer acknowledge again.
  [[nodiscard]] std::string old_frame() const;
  // In. False: no engine sends that.
  [[nodiscard]] bool take(const SignalRecord& record, double time);
  // True: the limit is used up, and some are left.
  [[nodiscard]] bool deliver(SignalSink& sink, std::size_t& most);
  [[nodiscard]] std::string acknowledgement() const;
  // Nothing is sent any more.
  void end(Status status) noexcept;

  const Config& config;
  std::uint64_t limit;         // the peer has places up to this sequence
  std::uint64_t reserved = 0;  // places given out so far; the owner counts
  std::uint64_t sent = 0;
  std::uint64_t acknowledged = 0;
  std::deque<Kept> kept;    // acknowledged + 1 to sent
  std::size_t on_wire = 0;  // of those, sent since the last timeout; the owner counts
  double timeout;
  double due = kNever;       // when it is over
  std::uint32_t silent = 0;  // timeouts since the peer said anything

  std::uint64_t delivered = 0;
  std::uint64_t taken = 0;                        // by the application; the owner counts
  std::map<std::uint64_t, SignalRecord> arrived;  // after `delivered`
  bool owes = false;                              // an acknowledgement; the owner takes it back

  std::vector<Token> leaving;  // disconnects that wait for acknowledgements; the owner's
  double leave_by = kNever;
  Status over = Status::ok;  // not ok: has ended

 private:
  [[nodiscard]] bool take_acknowledgement(std::string_view frame, double time);
};

}  // namespace hixl_aio::resend
