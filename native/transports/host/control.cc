// Connections: how a peer becomes known, and the frames in and out.
#include "transports/host/control.h"

#include <sys/epoll.h>
#include <unistd.h>

#include <cstdio>
#include <limits>
#include <utility>

namespace hixl_aio::host {
namespace {

// What may wait for a peer that does not read its control socket before it is given up.
constexpr std::size_t kMaxOutboundNbytes = 64U << 20U;
// How long an introduction may lack its directory when no connect call waits for it.
constexpr double kDirectorySeconds = 5.0;
constexpr std::uint64_t kAheadStep = 64U << 20U;  // some milliseconds

std::string seconds_text(double seconds) {
  char text[32];
  std::snprintf(text, sizeof(text), "%g s", seconds);
  return text;
}

}  // namespace

Event event_of(EventKind kind, Token token, PeerId peer, Status status, std::string text) {
  Event event;
  event.kind = kind;
  event.token = token;
  event.peer = peer;
  event.status = status;
  event.text = std::move(text);
  return event;
}

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
  // Each call has its own time, however many of them wait for one attempt, and up to the moment at which the peer can be
  // used.
  const TimerId timer = state_.host->reactor().add_timer(
      timeout, [this, token, text = address.text(), timeout] { connect_timed_out(token, text, timeout); });
  connecting_.emplace(token, Connecting{address, timer});
  handshakes_.connect(token, address);
}

void ControlPlane::answer_connect(Token token, PeerId peer, Status status, const std::string& text) {
  const auto it = connecting_.find(token);
  if (it != connecting_.end()) {
    state_.host->reactor().cancel_timer(it->second.timer);
    connecting_.erase(it);
  }
  state_.host->raise(event_of(EventKind::connected, token, peer, status, text));
}

void ControlPlane::connect_timed_out(Token token, const std::string& address, double timeout) {
  connecting_.erase(token);
  if (!handshakes_.give_up(token)) {
    for (const auto& [id, connection] : connections_) {
      if (std::erase(connection->connect_tokens, token) == 0) {
        continue;
      }
      if (connection->connect_tokens.empty() && !connection->raise_accepted) {
        take_down(*connection, Status::timed_out, "nobody waits for it any longer");
      }
      break;
    }
  }
  state_.host->raise(event_of(EventKind::connected, token, 0, Status::timed_out,
                              address + " did not answer within " + seconds_text(timeout) +
                                  "; is the process stopped, or the timeout too short?"));
}

void ControlPlane::look(Token token, const Address& address, double timeout) {
  if (shutting_down_) {
    looked(token, Status::closed, "the engine is closed");
    return;
  }
  looking_[token] = state_.host->reactor().add_timer(timeout, [this, token, text = address.text(), timeout] {
    handshakes_.give_up(token);
    looked(token, Status::timed_out, text + " did not answer within " + seconds_text(timeout));
  });
  handshakes_.look(token, address);
}

void ControlPlane::looked(Token token, Status status, const std::string& text) {
  const auto it = looking_.find(token);
  if (it != looking_.end()) {
    state_.host->reactor().cancel_timer(it->second);
    looking_.erase(it);
  }
  state_.host->raise(event_of(EventKind::looked, token, 0, status, text));
}

// Calls that joined a connection which the other side had begun are not bound to its fate: perhaps the one who called
// there has only lost patience.
void ControlPlane::fail_or_retry_connects(Connection& connection, Status status, const std::string& text) {
  for (const Token token : std::exchange(connection.connect_tokens, {})) {
    const auto it = connecting_.find(token);
    if (connection.raise_accepted && !shutting_down_ && it != connecting_.end()) {
      const Address address = it->second.address;
      handshakes_.connect(token, address);
    } else {
      answer_connect(token, 0, status, "the peer went away: " + text);
    }
  }
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
  if (made.to_ourselves && outgoing) {
    // What arrives over the inner half, which was introduced before, is the public peer's.
    if (Connection* inner = find(self_hidden_)) {
      inner->peer->alias.store(id, std::memory_order_relaxed);
      connection.peer->set_inner(*inner->peer);
    }
  }
  state_.service.add_peer(connection.peer);
  watch(connection);
  await_directory(connection);
  send_directory(connection);
}

void ControlPlane::already_connected(PeerId peer, std::vector<Token> tokens) {
  Connection* connection = find(peer);
  if (connection->known) {
    for (const Token token : tokens) {
      answer_connect(token, peer, Status::ok, {});
    }
  } else {
    connection->connect_tokens.insert(connection->connect_tokens.end(), tokens.begin(), tokens.end());
  }
}

void ControlPlane::connect_failed(const std::vector<Token>& tokens, Status status, const std::string& text) {
  for (const Token token : tokens) {
    answer_connect(token, 0, status, text);
  }
}

// Whoever introduces itself and says no more must not stay for ever.
void ControlPlane::await_directory(Connection& connection) {
  const PeerId id = connection.peer->id;
  connection.introduction = state_.host->reactor().add_timer(kDirectorySeconds, [this, id] {
    Connection* found = find(id);
    if (found == nullptr) {
      return;
    }
    found->introduction = 0;
    if (!found->connect_tokens.empty()) {
      await_directory(*found);  // those calls have times of their own
    } else if (!found->known) {
      take_down(*found, Status::timed_out, "it did not complete its introduction");
    }
  });
}

void ControlPlane::became_known(Connection& connection) {
  connection.known = true;
  state_.host->reactor().cancel_timer(std::exchange(connection.introduction, 0));
  if (connection.hidden) {
    return;
  }
  const PeerId id = connection.peer->id;
  if (connection.raise_accepted) {
    state_.host->raise(event_of(EventKind::accepted, 0, id));
  }
  for (const Token token : std::exchange(connection.connect_tokens, {})) {
    answer_connect(token, id, Status::ok, {});
  }
  let_signals_through(*connection.peer);
  if (Peer* inner = connection.peer->inner()) {
    let_signals_through(*inner);
  }
}

// What a peer sent before the loop was told of it is still in its ring, and its bell has been rung for nothing.
void ControlPlane::let_signals_through(Peer& peer) {
  peer.announce();
  state_.doorbell->page().dirty[peer.place / 64].fetch_or(1ULL << (peer.place % 64), std::memory_order_acq_rel);
  const std::uint64_t one = 1;
  [[maybe_unused]] const auto written = ::write(state_.host->loop_fd(), &one, sizeof(one));
}

// ---- frames

void ControlPlane::watch(Connection& connection) {
  Reactor& reactor = state_.host->reactor();
  const PeerId id = connection.peer->id;
  Status status =
      reactor.watch(connection.socket.get(), EPOLLIN, [this, id](std::uint32_t events) { on_socket(id, events); });
  if (ok(status) && connection.peer->pidfd() >= 0 && !connection.peer->identity.same_process) {
    status = reactor.watch(connection.peer->pidfd(), EPOLLIN, [this, id](std::uint32_t) { on_death(id); });
  }
  if (!ok(status)) {
    take_down(connection, Status::peer_lost, "its connection cannot be watched here (no kernel memory is left)");
    mark_gone(connection);
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
  if ((events & (EPOLLIN | EPOLLHUP | EPOLLERR)) != 0) {
    read_frames(*connection, 64);
  }
}

void ControlPlane::on_death(PeerId peer) {
  Connection* connection = find(peer);
  if (connection == nullptr) {
    return;
  }
  // What it said before it died comes first: it may have been BYE.
  read_frames(*connection, std::numeric_limits<int>::max());
  if (!connection->gone) {
    take_down(*connection, Status::peer_lost,
              "its process (pid " + std::to_string(connection->peer->identity.pid) + ") has ended");
    mark_gone(*connection);
  }
}

void ControlPlane::read_frames(Connection& connection, int budget) {
  for (; budget > 0; --budget) {
    Frame frame;
    const SocketResult result = receive_frame(connection.socket.get(), frame);
    if (result == SocketResult::again) {
      return;
    }
    if (result == SocketResult::closed) {
      take_down(connection, connection.bye_received ? Status::peer_closed : Status::peer_lost,
                connection.bye_received ? "it closed the connection" : "its control connection broke");
      mark_gone(connection);
      return;
    }
    if (!on_frame(connection, frame)) {
      take_down(connection, Status::peer_lost, "it sent a malformed control frame; the connection was ended");
    }
  }
}

// False: no engine sends that. Nothing is done before the whole frame was read (INV-12).
bool ControlPlane::on_frame(Connection& connection, Frame& frame) {
  Reader reader(frame.bytes);
  const auto type = static_cast<FrameType>(reader.take<std::uint8_t>());
  Peer& peer = *connection.peer;
  switch (type) {
    case FrameType::segment:
      return on_segment(connection, reader, frame);
    case FrameType::regions:
      return on_regions(connection, reader);
    case FrameType::region_gone: {
      const auto region = reader.take<std::uint32_t>();
      const auto generation = reader.take<std::uint32_t>();
      if (reader.finished()) {
        peer.drop_region(region, generation);
      }
      return reader.finished();
    }
    case FrameType::segment_gone: {
      const auto segment = reader.take<std::uint32_t>();
      if (reader.finished()) {
        peer.drop_segment(segment);
      }
      return reader.finished();
    }
    case FrameType::directory_end:
      if (!reader.finished() || connection.known) {
        return false;
      }
      if (!peer.down()) {  // else too late: nobody shall hear of it
        became_known(connection);
      }
      return true;
    case FrameType::sync: {
      const auto sequence = reader.take<std::uint64_t>();
      if (reader.finished()) {
        Writer writer;
        writer.type(FrameType::sync_ack).put(sequence);
        send(connection, writer);
      }
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
      if (!reader.finished()) {
        return false;
      }
      connection.bye_received = true;
      take_down(connection, Status::peer_closed, "it closed the connection");
      advance_soon(peer.id);
      return true;
    case FrameType::hello:
    case FrameType::welcome:
    case FrameType::refuse:
      break;
  }
  return false;
}

bool ControlPlane::on_segment(Connection& connection, Reader& reader, Frame& frame) {
  SegmentFrame segment;
  segment.segment = reader.take<std::uint32_t>();
  const auto kind = reader.take<std::uint8_t>();
  segment.nbytes = reader.take<std::uint64_t>();
  if (!reader.finished() || (frame.fds.size() != 1 && !frame.fds_lost) || kind == 0 || kind > 2) {
    return false;
  }
  segment.kind = static_cast<SegmentClass>(kind);
  Peer& peer = *connection.peer;
  // A peer that is down maps nothing any more; a route without shm needs no mapping.
  if (peer.down() || peer.route.shared != LinkKind::shm) {
    return true;
  }
  if (!peer.add_segment(segment, frame.fds_lost ? UniqueFd() : std::move(frame.fds[0]))) {
    return false;
  }
  if (state_.config.populate) {
    ahead_.push_back({peer.id, segment.segment, 0});
    if (ahead_.size() == 1) {
      state_.host->reactor().post([this] { map_ahead(); });
    }
  }
  return true;
}

// One part of one segment in each turn, so that everybody else is heard in between, however many segments there are.
void ControlPlane::map_ahead() {
  Ahead& next = ahead_.front();
  Connection* connection = find(next.peer);
  const bool wanted = connection != nullptr && !connection->peer->down();
  next.offset = wanted ? connection->peer->prefault_segment(next.segment, next.offset, kAheadStep) : 0;
  if (next.offset == 0) {
    ahead_.pop_front();
  }
  if (!ahead_.empty()) {
    state_.host->reactor().post([this] { map_ahead(); });
  }
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

void ControlPlane::send(Connection& connection, const Writer& writer, std::shared_ptr<const Segment> segment) {
  if (connection.gone || connection.retired) {
    return;  // BYE is the last word
  }
  if (connection.outbound.empty()) {
    const int fd = segment ? segment->fd() : -1;
    const SocketResult result =
        send_frame(connection.socket.get(), writer.bytes(), {&fd, segment ? std::size_t{1} : std::size_t{0}});
    if (result != SocketResult::again) {
      return;  // a closed socket reports itself through the reactor
    }
    state_.host->reactor().modify(connection.socket.get(), EPOLLIN | EPOLLOUT);
  }
  connection.outbound_nbytes += writer.bytes().size();
  connection.outbound.push_back({writer.bytes(), std::move(segment)});
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
    const int fd = front.segment ? front.segment->fd() : -1;
    const SocketResult result =
        send_frame(connection.socket.get(), front.bytes, {&fd, front.segment ? std::size_t{1} : std::size_t{0}});
    if (result == SocketResult::again) {
      return;
    }
    connection.outbound_nbytes -= front.bytes.size();
    connection.outbound.pop_front();
  }
  state_.host->reactor().modify(connection.socket.get(), EPOLLIN);
}

}  // namespace hixl_aio::host
