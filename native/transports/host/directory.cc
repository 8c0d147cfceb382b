// The region directory: telling peers what they may name, and taking it back.
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <utility>

#include "transports/host/control.h"

namespace hixl_aio::host {
namespace {

constexpr double kFirstWait = 0.0002;
constexpr double kLongestWait = 0.01;

double now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

}  // namespace

void ControlPlane::send_directory(Connection& connection) {
  for (const OwnRegion& region : state_.regions.live()) {
    announce(connection, region);
  }
  Writer writer;
  writer.type(FrameType::directory_end);
  send(connection, writer);
}

void ControlPlane::announce(Connection& connection, const OwnRegion& region) {
  // seq_cst: the initiator's pin and re-check, see channel.h.
  connection.peer->in().entry(region.info.region).generation.store(region.info.generation, std::memory_order_seq_cst);
  if (region.info.kind == MemoryKind::shared && connection.announced.insert(region.block->segment().id()).second) {
    const Segment& segment = region.block->segment();
    Writer writer;
    writer.type(FrameType::segment).put(segment.id()).put(static_cast<std::uint8_t>(segment.kind()));
    writer.put(segment.nbytes());
    send(connection, writer, segment.fd());
  }
  Writer writer;
  writer.type(FrameType::regions).put(std::uint16_t{1});
  region_frame(region).encode(writer);
  send(connection, writer);
}

void ControlPlane::publish_region(Token token, const RegionSpec& spec, std::shared_ptr<MemoryBlock> block) {
  Event event;
  event.kind = EventKind::allocated;
  event.token = token;
  event.status = state_.regions.add(spec, std::move(block), event.region, event.text);
  if (ok(event.status) && spec.access != Access::local) {
    OwnRegion region;
    region.info = event.region;
    region.block = state_.regions.block(event.region.region);
    for (const auto& [id, connection] : connections_) {
      if (!connection->peer->down()) {
        announce(*connection, region);
      }
    }
  }
  state_.host->raise(std::move(event));
}

void ControlPlane::refresh(Token token, PeerId peer) {
  Connection* connection = find(peer);
  if (connection == nullptr || connection->peer->down()) {
    Event event;
    event.kind = EventKind::refreshed;
    event.token = token;
    event.peer = peer;
    event.status = connection == nullptr ? Status::not_connected : connection->peer->down_status();
    state_.host->raise(std::move(event));
    return;
  }
  // The peer answers after everything it had pushed: a barrier, whatever was on its way.
  const std::uint64_t sequence = connection->next_sync++;
  connection->syncs.emplace(sequence, token);
  Writer writer;
  writer.type(FrameType::sync).put(sequence);
  send(*connection, writer);
}

// ---- closing

void ControlPlane::close_region(Token token, std::uint32_t region, double timeout) {
  Closing closing;
  closing.token = token;
  closing.region = region;
  closing.wait = kFirstWait;
  closing.deadline = timeout < 0 ? -1 : now() + timeout;
  OwnRegion own;
  if (!state_.regions.revoke(region, own)) {
    answer_close(closing, Status::not_registered, "no region " + std::to_string(region) + " is open here");
    return;
  }
  if (own.info.kind == MemoryKind::shared && own.block->whole_segment()) {
    closing.segment = own.block->segment().id();
  }
  Writer writer;
  writer.type(FrameType::region_gone).put(region).put(own.info.generation);
  for (const auto& [id, connection] : connections_) {
    if (own.info.access == Access::local) {
      break;
    }
    // First no new pin, then a look for old ones; see channel.h.
    connection->peer->in().entry(region).generation.store(0, std::memory_order_seq_cst);
    if (!connection->peer->down()) {
      send(*connection, writer);
    }
  }
  retry_close(closing);
}

bool ControlPlane::pinned(std::uint32_t region) {
  if (!state_.regions.service_idle(region)) {
    return true;
  }
  for (const auto& [id, connection] : connections_) {
    if (!connection->gone && connection->peer->in().entry(region).pins.load(std::memory_order_seq_cst) != 0) {
      return true;
    }
  }
  return false;
}

void ControlPlane::retry_close(Closing closing) {
  if (!pinned(closing.region)) {
    if (closing.segment != 0) {
      segment_gone(closing.segment);
    }
    state_.regions.free(closing.region);
    answer_close(closing, Status::ok, {});
    return;
  }
  const double left = closing.deadline < 0 ? kLongestWait : closing.deadline - now();
  if (left <= 0) {
    answer_close(closing, Status::region_busy,
                 "a peer is still copying into or out of region " + std::to_string(closing.region));
    return;
  }
  // Peers do not announce each unpin; a pin lasts for one chunk, so looking again soon is the whole wait.
  const double wait = std::min(closing.wait, left);
  closing.wait = std::min(closing.wait * 2, kLongestWait);
  state_.host->reactor().add_timer(wait, [this, closing] { retry_close(closing); });
}

void ControlPlane::answer_close(const Closing& closing, Status status, const std::string& text) {
  Event event;
  event.kind = EventKind::region_closed;
  event.token = closing.token;
  event.status = status;
  event.text = text;
  state_.host->raise(std::move(event));
}

void ControlPlane::segment_gone(std::uint32_t segment) {
  Writer writer;
  writer.type(FrameType::segment_gone).put(segment);
  for (const auto& [id, connection] : connections_) {
    if (connection->announced.erase(segment) != 0 && !connection->peer->down()) {
      send(*connection, writer);
    }
  }
}

}  // namespace hixl_aio::host
