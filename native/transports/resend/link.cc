// See link.h.
#include "transports/resend/link.h"

#include <algorithm>
#include <cstddef>

namespace hixl_aio::resend {
namespace {

constexpr std::size_t kNumber = 8;
constexpr std::uint64_t kMostPlaces = 1U << 16U;  // that a peer may promise (INV-12)

void append(std::string& out, std::uint64_t number) {
  for (unsigned shift = 0; shift < 64; shift += 8) {
    out.push_back(static_cast<char>(number >> shift & 0xFFU));
  }
}

std::uint64_t number_at(std::string_view in, std::size_t at) noexcept {
  std::uint64_t number = 0;
  for (std::size_t i = kNumber; i > 0; --i) {
    number = number << 8U | static_cast<unsigned char>(in[at + i - 1]);
  }
  return number;
}

}  // namespace

void Link::keep(std::string_view name, std::string_view payload, Status status, double time) {
  Kept& one = kept.emplace_back();
  one.name = name;
  one.frame.reserve(kNumber + payload.size());
  append(one.frame, ++sent);
  one.frame += payload;
  one.status = status;
  if (due == kNever) {
    due = time + timeout;
  }
}

bool Link::times_out(double time) noexcept {
  if (kept.empty() || time < due) {
    return false;
  }
  timeout = std::min(2 * timeout, config.longest_timeout);
  due = time + timeout;
  on_wire = 0;
  ++silent;
  return true;
}

std::string Link::old_frame() const {
  std::string frame;
  append(frame, acknowledged);
  return frame;
}

std::string Link::acknowledgement() const {
  std::string frame;
  append(frame, delivered);
  append(frame, taken + config.capacity);
  return frame;
}

void Link::end(Status status) noexcept {
  over = ok(over) ? status : over;
  kept.clear();
  on_wire = 0;
  due = kNever;
}

bool Link::take(const SignalRecord& record, double time) {
  if (record.name.empty()) {
    return take_acknowledgement(record.payload, time);
  }
  const std::uint64_t sequence = record.payload.size() < kNumber ? 0 : number_at(record.payload, 0);
  if (sequence == 0) {
    return false;
  }
  owes = true;
  // What has no place is sent again when the sender has heard of one.
  if (sequence > delivered && sequence <= taken + config.capacity) {
    const auto [found, is_new] = arrived.try_emplace(sequence, record);
    if (is_new) {
      found->second.sequence = sequence;
      found->second.payload.erase(0, kNumber);
    }
  }
  return true;
}

bool Link::take_acknowledgement(std::string_view frame, double time) {
  if (frame.size() != 2 * kNumber) {
    return false;
  }
  const std::uint64_t number = number_at(frame, 0);
  const std::uint64_t places = number_at(frame, kNumber);
  if (number > sent || places > number + kMostPlaces) {
    return false;
  }
  silent = 0;
  limit = std::max(limit, places);
  if (number > acknowledged) {  // an older one may come later
    const std::size_t count = std::min(static_cast<std::size_t>(number - acknowledged), kept.size());
    kept.erase(kept.begin(), kept.begin() + static_cast<std::ptrdiff_t>(count));
    on_wire -= std::min(on_wire, count);
    acknowledged = number;
    timeout = config.first_timeout;
    due = kept.empty() ? kNever : time + timeout;
  }
  return true;
}

bool Link::deliver(SignalSink& sink, std::size_t& most) {
  while (!arrived.empty() && arrived.begin()->first == delivered + 1) {
    if (most == 0) {
      return true;
    }
    const auto next = arrived.extract(arrived.begin());
    ++delivered;
    --most;
    owes = true;
    sink.take(next.mapped());
  }
  return false;
}

}  // namespace hixl_aio::resend
