// The region directory: telling peers what they may name, and taking it back.
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
    send(connection, writer, region.block->keep_segment());
  }
  Writer writer;
  writer.type(FrameType::regions).put(std::uint16_t{1});
  region_frame(region).encode(writer);
  send(connection, writer);
}

void ControlPlane::publish_region(Token token, const RegionSpec& spec, std::shared_ptr<MemoryBlock> block,
                                  std::shared_ptr<FragileMemory> fragile) {
  Event event;
  event.kind = EventKind::allocated;
  event.token = token;
  event.status = state_.regions.add(spec, std::move(block), event.region, event.text, std::move(fragile));
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
    state_.host->raise(event_of(EventKind::refreshed, token, peer,
                                connection == nullptr ? Status::not_connected : connection->peer->down_status()));
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
  OwnRegion own;
  if (!state_.regions.revoke(region, own)) {
    state_.host->raise(event_of(EventKind::region_closed, token, 0, Status::not_registered,
                                "no region " + std::to_string(region) + " is open here"));
    return;
  }
  Closing closing;
  closing.token = token;
  closing.region = region;
  closing.generation = own.info.generation;
  closing.wait = kFirstWait;
  const bool ended = shutting_down_ && connections_.empty();  // nobody would be there to look again
  closing.deadline = ended ? 0 : timeout < 0 ? -1 : now() + timeout;
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
  const std::uint64_t key = next_closing_++;
  closings_.emplace(key, closing);
  retry_close(key);
}

bool ControlPlane::pinned(std::uint32_t region) {
  if (!state_.regions.service_idle(region)) {
    return true;
  }
  for (const auto& [id, connection] : connections_) {
    // Acquire in the seq_cst load: the bytes that were copied under a pin are there before its end is seen.
    if (!connection->gone && connection->peer->in().entry(region).pins.load(std::memory_order_seq_cst) != 0) {
      return true;
    }
  }
  return false;
}

void ControlPlane::retry_close(std::uint64_t key) {
  Closing& closing = closings_.at(key);
  closing.timer = 0;
  if (!state_.regions.holds(closing.region, closing.generation)) {
    answer_close(key, Status::ok, {});  // somebody else's request closed it, and the number may have a new bearer
    return;
  }
  if (!pinned(closing.region)) {
    if (closing.segment != 0) {
      segment_gone(closing.segment);
    }
    state_.regions.free(closing.region, closing.generation);
    answer_close(key, Status::ok, {});
    return;
  }
  const double left = closing.deadline < 0 ? kLongestWait : closing.deadline - now();
  if (left <= 0) {
    answer_close(key, Status::region_busy,
                 "a peer is still copying into or out of region " + std::to_string(closing.region));
    return;
  }
  // Peers do not announce each unpin; a pin lasts for one chunk, so looking again soon is the whole wait.
  const double wait = std::min(closing.wait, left);
  closing.wait = std::min(closing.wait * 2, kLongestWait);
  closing.timer = state_.host->reactor().add_timer(wait, [this, key] { retry_close(key); });
}

void ControlPlane::answer_close(std::uint64_t key, Status status, const std::string& text) {
  const auto it = closings_.find(key);
  state_.host->raise(event_of(EventKind::region_closed, it->second.token, 0, status, text));
  closings_.erase(it);
}

// With the engine's end: no peer is left, so what is not closed now is in the service's hands for a moment.
void ControlPlane::end_closings() {
  while (!closings_.empty()) {
    const std::uint64_t key = closings_.begin()->first;
    Closing& closing = closings_.begin()->second;
    if (closing.timer != 0) {
      state_.host->reactor().cancel_timer(closing.timer);
    }
    closing.deadline = 0;
    retry_close(key);
  }
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
