// What peers tell each other beside the bytes: signals, and the bells that wake threads and loops.
#include <unistd.h>

#include <cstring>
#include <string_view>

#include "transports/host/peer.h"

namespace hixl_aio::host {
namespace {

void ring(int fd) noexcept {
  const std::uint64_t one = 1;
  // EAGAIN means the counter is at its maximum: the reader is being woken already.
  [[maybe_unused]] const auto written = ::write(fd, &one, sizeof(one));
}

// The ring is addressed by positions that only grow; a record may lie across its end.
void ring_write(std::byte* ring_bytes, std::uint64_t size, std::uint64_t at, const void* data, std::size_t n) noexcept {
  const std::uint64_t start = at % size;
  const std::size_t first = static_cast<std::size_t>(n < size - start ? n : size - start);
  if (first > 0) {
    std::memcpy(ring_bytes + start, data, first);
  }
  if (n > first) {
    std::memcpy(ring_bytes, static_cast<const std::byte*>(data) + first, n - first);
  }
}

void ring_read(const std::byte* ring_bytes, std::uint64_t size, std::uint64_t at, void* data, std::size_t n) noexcept {
  const std::uint64_t start = at % size;
  const std::size_t first = static_cast<std::size_t>(n < size - start ? n : size - start);
  if (first > 0) {
    std::memcpy(data, ring_bytes + start, first);
  }
  if (n > first) {
    std::memcpy(static_cast<std::byte*>(data) + first, ring_bytes, n - first);
  }
}

struct SignalHeader {
  std::uint32_t nbytes;
  std::int32_t status;
  std::uint64_t sequence;
  std::uint32_t name_nbytes;
  std::uint32_t payload_nbytes;
};
static_assert(sizeof(SignalHeader) == kSignalHeader);

constexpr std::uint32_t record_nbytes(std::uint32_t name, std::uint32_t payload) noexcept {
  return (kSignalHeader + name + payload + 7U) / 8U * 8U;
}

}  // namespace

Status Peer::reserve_signal() noexcept {
  if (down()) {
    return down_status_;
  }
  // Acquire: a place counts as free only after the owner really let go of it.
  const std::uint64_t taken_so_far = out_->header().signals_taken.load(std::memory_order_acquire);
  if (taken_so_far <= signals_reserved_ && signals_reserved_ - taken_so_far >= out_->signal_capacity()) {
    return Status::signal_queue_full;
  }
  ++signals_reserved_;
  return Status::ok;
}

Status Peer::publish(std::string_view name, std::string_view payload, Status status) noexcept {
  if (!signal_fits(name, payload)) {
    return Status::invalid_argument;
  }
  {
    const std::lock_guard lock(sender_mutex_);
    if (down()) {
      return down_status_;
    }
    SignalHeader header{};
    header.name_nbytes = static_cast<std::uint32_t>(name.size());
    header.payload_nbytes = static_cast<std::uint32_t>(payload.size());
    header.nbytes = record_nbytes(header.name_nbytes, header.payload_nbytes);
    header.status = static_cast<std::int32_t>(status);
    header.sequence = ++send_sequence_;
    std::byte* bytes = out_->signal_bytes();
    const std::uint64_t size = out_->signal_nbytes();
    ring_write(bytes, size, send_head_, &header, sizeof(header));
    ring_write(bytes, size, send_head_ + sizeof(header), name.data(), name.size());
    ring_write(bytes, size, send_head_ + sizeof(header) + name.size(), payload.data(), payload.size());
    send_head_ += header.nbytes;
    // Release: the record, and every byte of the operation it is bound to, is visible to who sees the new head (INV-11).
    out_->header().signal_head.store(send_head_, std::memory_order_release);
  }
  // acq_rel against the owner's re-arm: either our exchange finds it armed and we ring, or the owner's later exchange
  // reads our 0, acquires the head above and finds the record itself. The bit goes up before the bell rings.
  if (out_->header().signal_armed.exchange(0, std::memory_order_acq_rel) == 1) {
    doorbell_->page().dirty[remote_place_ / 64].fetch_or(1ULL << (remote_place_ % 64), std::memory_order_acq_rel);
    ring(loop_fd_.get());
  }
  return Status::ok;
}

bool Peer::drain(SignalSink& sink, std::size_t& budget, bool& malformed) {
  ChannelHeader& header = in_->header();
  header.signal_armed.exchange(1, std::memory_order_acq_rel);  // re-arm first (INV-8)
  const std::uint64_t head = header.signal_head.load(std::memory_order_acquire);
  const std::uint64_t size = in_->signal_nbytes();
  if (head - receive_tail_ > size) {
    malformed = true;
    return false;
  }
  while (receive_tail_ != head && budget > 0) {
    SignalHeader record{};
    ring_read(in_->signal_bytes(), size, receive_tail_, &record, sizeof(record));
    if (record.name_nbytes > kMaxSignalText || record.payload_nbytes > kMaxSignalText ||
        record.nbytes != record_nbytes(record.name_nbytes, record.payload_nbytes) ||
        record.nbytes > head - receive_tail_ || record.sequence != receive_sequence_ + 1) {
      malformed = true;
      return false;
    }
    receive_record_.peer = alias.load(std::memory_order_relaxed);
    receive_record_.sequence = record.sequence;
    receive_record_.status = status_from_wire(record.status);
    receive_record_.name.resize(record.name_nbytes);
    receive_record_.payload.resize(record.payload_nbytes);
    ring_read(in_->signal_bytes(), size, receive_tail_ + sizeof(record), receive_record_.name.data(),
              record.name_nbytes);
    ring_read(in_->signal_bytes(), size, receive_tail_ + sizeof(record) + record.name_nbytes,
              receive_record_.payload.data(), record.payload_nbytes);
    receive_tail_ += record.nbytes;
    receive_sequence_ = record.sequence;
    header.signal_tail.store(receive_tail_, std::memory_order_release);
    sink.take(receive_record_);
    --budget;
  }
  return receive_tail_ != head;
}

void Peer::taken(std::uint32_t count) noexcept {
  in_->header().signals_taken.fetch_add(count, std::memory_order_release);
}

void Peer::ring_progress() noexcept { ring(progress_fd_.get()); }
void Peer::ring_service() noexcept { ring(service_fd_.get()); }

}  // namespace hixl_aio::host
