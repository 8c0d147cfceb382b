// Connections: frames in and out, and how a peer ends.
#include "transports/host/control.h"

#include <sys/epoll.h>
#include <unistd.h>

#include <utility>

namespace hixl_aio::host {
namespace {

// What may wait for a peer that does not read its control socket before it is given up.
constexpr std::size_t kMaxOutboundNbytes = 64U << 20U;
constexpr double kGoneSeconds = 1.0;  // patience for the other side's last word

Event event_of(EventKind kind, Token token, PeerId peer, Status status = Status::ok, std::string text = {}) {
  Event event;
  event.kind = kind;
  event.token = token;
  event.peer = peer;
  event.status = status;
  event.text = std::move(text);
  return event;
}

}  // namespace

ControlPlane::Connection* ControlPlane::find(PeerId peer) {
  const auto it = connections_.find(peer);
  return it == connections_.end() ? nullptr : it->second.get();
}

// ---- connecting

void ControlPlane::connect(Token token, const Address& address, double timeout) {
  if (shutting_down_) {
    connect_failed({token}, Status::closed, "the engine is closed");
    return;
  }
  handshakes_.connect(token, address, timeout);
}

PeerId ControlPlane::connected_to(const Incarnation& incarnation) {
  for (const auto& [id, connection] : connections_) {
    if (!connection->hidden && !connection->peer->down() && connection->peer->identity.incarnation == incarnation) {
      return id;
    }
  }
  return 0;
}

PeerId ControlPlane::connected_to_address(const std::string& address) {
  for (const auto& [id, connection] : connections_) {
    if (!connection->hidden && !connection->peer->down() && connection->peer->identity.address == address) {
      return id;
    }
  }
  return 0;
}

void ControlPlane::introduced(Introduced made, std::vector<Token> tokens, bool outgoing) {
  auto owned = std::make_unique<Connection>();
  Connection& connection = *owned;
  connection.peer = state_.peers.add(std::move(made.parts));
  connection.peer->set_pidfd(std::move(made.pidfd));
  connection.socket = std::move(made.socket);
  connection.connect_tokens = std::move(tokens);
  connection.raise_accepted = !outgoing;
  const PeerId id = connection.peer->id;
  if (made.to_ourselves && !outgoing) {
    connection.hidden = true;
    self_hidden_ = id;
  } else if (made.to_ourselves) {
    self_peer_ = id;
  }
  connections_.emplace(id, std::move(owned));
  if (self_peer_ != 0 && self_hidden_ != 0) {
    // What arrives over the inner half is the public peer's.
    if (Connection* inner = find(self_hidden_)) {
      inner->peer->alias.store(self_peer_, std::memory_order_relaxed);
    }
  }
  state_.service.add_peer(connection.peer);
  watch(connection);
  send_directory(connection);
}

void ControlPlane::already_connected(PeerId peer, std::vector<Token> tokens) {
  Connection* connection = find(peer);
  if (connection->known) {
    for (const Token token : tokens) {
      state_.host->raise(event_of(EventKind::connected, token, peer));
    }
  } else {
    connection->connect_tokens.insert(connection->connect_tokens.end(), tokens.begin(), tokens.end());
  }
}

void ControlPlane::connect_failed(const std::vector<Token>& tokens, Status status, const std::string& text) {
  for (const Token token : tokens) {
    state_.host->raise(event_of(EventKind::connected, token, 0, status, text));
  }
}

void ControlPlane::became_known(Connection& connection) {
  connection.known = true;
  if (connection.hidden) {
    return;
  }
  const PeerId id = connection.peer->id;
  if (connection.raise_accepted) {
    state_.host->raise(event_of(EventKind::accepted, 0, id));
  }
  for (const Token token : std::exchange(connection.connect_tokens, {})) {
    state_.host->raise(event_of(EventKind::connected, token, id));
  }
}

// ---- frames

void ControlPlane::watch(Connection& connection) {
  Reactor& reactor = state_.host->reactor();
  const PeerId id = connection.peer->id;
  reactor.watch(connection.socket.get(), EPOLLIN, [this, id](std::uint32_t events) { on_socket(id, events); });
  if (connection.peer->pidfd() >= 0 && !connection.peer->identity.same_process) {
    reactor.watch(connection.peer->pidfd(), EPOLLIN, [this, id](std::uint32_t) {
      if (Connection* found = find(id)) {
        take_down(*found, Status::peer_lost, "its process (pid " + std::to_string(found->peer->identity.pid) + ") has ended");
        mark_gone(*found);
      }
    });
  }
}

void ControlPlane::on_socket(PeerId peer, std::uint32_t events) {
  Connection* connection = find(peer);
  if (connection == nullptr) {
    return;
  }
  if ((events & EPOLLOUT) != 0) {
    flush(*connection);
  }
  if ((events & (EPOLLIN | EPOLLHUP | EPOLLERR)) == 0) {
    return;
  }
  for (int budget = 64; budget > 0; --budget) {
    Frame frame;
    const SocketResult result = receive_frame(connection->socket.get(), frame);
    if (result == SocketResult::again) {
      return;
    }
    if (result == SocketResult::closed) {
      take_down(*connection, connection->bye_received ? Status::peer_closed : Status::peer_lost,
                connection->bye_received ? "it closed the connection" : "its control connection broke");
      mark_gone(*connection);
      return;
    }
    if (!on_frame(*connection, frame)) {
      take_down(*connection, Status::peer_lost, "it sent a malformed control frame; the connection was ended");
      return;
    }
  }
}

bool ControlPlane::on_frame(Connection& connection, Frame& frame) {
  Reader reader(frame.bytes);
  const auto type = static_cast<FrameType>(reader.take<std::uint8_t>());
  Peer& peer = *connection.peer;
  switch (type) {
    case FrameType::segment: {
      SegmentFrame segment;
      segment.segment = reader.take<std::uint32_t>();
      const auto kind = reader.take<std::uint8_t>();
      segment.nbytes = reader.take<std::uint64_t>();
      if (!reader.finished() || frame.fds.size() != 1 || kind == 0 || kind > 2) {
        return false;
      }
      segment.kind = static_cast<SegmentClass>(kind);
      // A peer that is down maps nothing any more; a route without shm needs no mapping.
      return peer.down() || peer.route.shared != LinkKind::shm || peer.add_segment(segment, std::move(frame.fds[0]));
    }
    case FrameType::regions:
      return on_regions(connection, reader);
    case FrameType::region_gone: {
      const auto region = reader.take<std::uint32_t>();
      const auto generation = reader.take<std::uint32_t>();
      peer.drop_region(region, generation);
      return reader.finished();
    }
    case FrameType::segment_gone: {
      const auto segment = reader.take<std::uint32_t>();
      peer.drop_segment(segment);
      return reader.finished();
    }
    case FrameType::directory_end:
      if (!reader.finished() || connection.known) {
        return false;
      }
      became_known(connection);
      return true;
    case FrameType::sync: {
      const auto sequence = reader.take<std::uint64_t>();
      Writer writer;
      writer.type(FrameType::sync_ack).put(sequence);
      send(connection, writer);
      return reader.finished();
    }
    case FrameType::sync_ack: {
      const auto it = connection.syncs.find(reader.take<std::uint64_t>());
      if (!reader.finished() || it == connection.syncs.end()) {
        return false;
      }
      state_.host->raise(event_of(EventKind::refreshed, it->second, peer.id));
      connection.syncs.erase(it);
      return true;
    }
    case FrameType::bye:
      connection.bye_received = true;
      take_down(connection, Status::peer_closed, "it closed the connection");
      return reader.finished();
    case FrameType::hello:
    case FrameType::welcome:
    case FrameType::refuse:
      break;
  }
  return false;
}

bool ControlPlane::on_regions(Connection& connection, Reader& reader) {
  const auto count = reader.take<std::uint16_t>();
  for (std::uint16_t i = 0; i < count; ++i) {
    RegionFrame region;
    if (!RegionFrame::parse(reader, region)) {
      return false;
    }
    if (!connection.peer->down() && !connection.peer->add_region(region)) {
      return false;
    }
  }
  return reader.finished();
}

void ControlPlane::send(Connection& connection, const Writer& writer, int fd) {
  if (!connection.socket || connection.gone) {
    return;
  }
  if (connection.outbound.empty()) {
    const SocketResult result =
        send_frame(connection.socket.get(), writer.bytes(), {&fd, fd >= 0 ? std::size_t{1} : std::size_t{0}});
    if (result != SocketResult::again) {
      return;  // a closed socket reports itself through the reactor
    }
    state_.host->reactor().modify(connection.socket.get(), EPOLLIN | EPOLLOUT);
  }
  connection.outbound_nbytes += writer.bytes().size();
  connection.outbound.push_back({writer.bytes(), fd >= 0 ? UniqueFd(dup(fd)) : UniqueFd()});
  if (connection.outbound_nbytes > kMaxOutboundNbytes) {
    connection.outbound.clear();
    connection.outbound_nbytes = 0;
    take_down(connection, Status::peer_lost,
              "it does not read its control connection (" + std::to_string(kMaxOutboundNbytes) + " bytes are waiting)");
  }
}

void ControlPlane::flush(Connection& connection) {
  while (!connection.outbound.empty()) {
    const Queued& front = connection.outbound.front();
    const int fd = front.fd.get();
    const SocketResult result =
        send_frame(connection.socket.get(), front.bytes, {&fd, fd >= 0 ? std::size_t{1} : std::size_t{0}});
    if (result == SocketResult::again) {
      return;
    }
    connection.outbound_nbytes -= front.bytes.size();
    connection.outbound.pop_front();
  }
  state_.host->reactor().modify(connection.socket.get(), EPOLLIN);
}

// ---- the end of a peer

void ControlPlane::disconnect(Token token, PeerId peer) {
  Connection* connection = find(peer);
  if (connection == nullptr) {
    state_.host->raise(event_of(EventKind::disconnected, token, peer));
    return;
  }
  connection->disconnect_tokens.push_back(token);
  take_down(*connection, Status::peer_closed, "this side closed the connection");
  advance_end(*connection);
}

void ControlPlane::fail_peer(PeerId peer, Status status, const std::string& text) {
  if (Connection* connection = find(peer)) {
    take_down(*connection, status, text);
  }
}

void ControlPlane::take_down(Connection& connection, Status status, const std::string& text) {
  if (!connection.peer->mark_down(status)) {
    return;
  }
  connection.down_text = text;
  Writer writer;
  writer.type(FrameType::bye);
  send(connection, writer);
  for (const Token token : std::exchange(connection.connect_tokens, {})) {
    state_.host->raise(event_of(EventKind::connected, token, 0, status, "the peer went away: " + text));
  }
  for (const auto& [sequence, token] : std::exchange(connection.syncs, {})) {
    state_.host->raise(event_of(EventKind::refreshed, token, connection.peer->id, status, text));
  }
  state_.host->wake_progress();  // cooperative operations end there
  const PeerId id = connection.peer->id;
  connection.patience = state_.host->reactor().add_timer(kGoneSeconds, [this, id] {
    if (Connection* found = find(id)) {
      found->patience = 0;
      raise_disconnected(*found);
      advance_end(*found);
    }
  });
  // Not at once: the caller still holds the connection.
  state_.host->reactor().post([this, id] {
    if (Connection* found = find(id)) {
      advance_end(*found);
    }
  });
}

void ControlPlane::mark_gone(Connection& connection) {
  Reactor& reactor = state_.host->reactor();
  connection.gone = true;
  if (connection.socket) {
    reactor.unwatch(connection.socket.get());
  }
  if (connection.peer->pidfd() >= 0) {
    reactor.unwatch(connection.peer->pidfd());
  }
  const PeerId id = connection.peer->id;
  reactor.post([this, id] {
    if (Connection* found = find(id)) {
      advance_end(*found);
    }
  });
}

void ControlPlane::operations_ended(PeerId peer) {
  if (Connection* connection = find(peer)) {
    advance_end(*connection);
  }
}

void ControlPlane::raise_disconnected(Connection& connection) {
  if (!connection.retired) {
    return;
  }
  for (const Token token : std::exchange(connection.disconnect_tokens, {})) {
    state_.host->raise(event_of(EventKind::disconnected, token, connection.peer->id));
  }
}

// Takes whatever steps of the end are possible now; may destroy the connection.
void ControlPlane::advance_end(Connection& connection) {
  Peer& peer = *connection.peer;
  if (!peer.down() || !peer.idle()) {
    return;
  }
  const PeerId id = peer.id;
  if (!connection.retired) {
    connection.retired = true;
    peer.unmap_all();
    state_.service.remove_peer(id);
    if (connection.hidden) {
      state_.peers.remove(id);
    } else if (connection.known) {
      state_.host->raise(event_of(EventKind::peer_down, 0, id, peer.down_status(), connection.down_text));
    } else {
      state_.peers.remove(id);  // the loop never heard of it
    }
  }
  // With their BYE in hand, closing our end is the answer that lets them forget us. Without it we wait for the
  // hang-up: their pins on our regions count until then.
  if (!connection.gone && !connection.bye_received) {
    if (connection.patience == 0) {
      raise_disconnected(connection);
    }
    return;
  }
  raise_disconnected(connection);
  Reactor& reactor = state_.host->reactor();
  if (!connection.gone) {
    mark_gone(connection);
  }
  if (connection.patience != 0) {
    reactor.cancel_timer(connection.patience);
  }
  if (id == self_peer_) {
    self_peer_ = 0;
  } else if (id == self_hidden_) {
    self_hidden_ = 0;
  }
  state_.peers.give_place(peer.place);
  connections_.erase(id);
  finish_shutdown_if_empty();
}

void ControlPlane::shutdown(std::function<void()> done) {
  shutting_down_ = true;
  shutdown_done_ = std::move(done);
  handshakes_.shutdown();
  std::vector<PeerId> ids;
  for (const auto& [id, connection] : connections_) {
    ids.push_back(id);
  }
  for (const PeerId id : ids) {
    if (Connection* connection = find(id)) {
      take_down(*connection, Status::peer_closed, "this engine was closed");
    }
  }
  state_.host->reactor().add_timer(kGoneSeconds, [this] {
    // A stopped process says no last word. Our own operations have ended; its pins are the caller's concern.
    std::vector<PeerId> left;
    for (const auto& [id, connection] : connections_) {
      left.push_back(id);
    }
    for (const PeerId id : left) {
      if (Connection* connection = find(id)) {
        connection->gone = true;
        advance_end(*connection);
      }
    }
    finish_shutdown_if_empty();
  });
  finish_shutdown_if_empty();
}

void ControlPlane::finish_shutdown_if_empty() {
  if (shutting_down_ && connections_.empty() && shutdown_done_) {
    std::exchange(shutdown_done_, nullptr)();
  }
}

}  // namespace hixl_aio::host
