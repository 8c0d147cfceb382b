// How a peer ends, and how all of them end with the engine. See control.h for the steps.
#include <utility>

#include "transports/host/control.h"

namespace hixl_aio::host {
namespace {

constexpr double kGoneSeconds = 1.0;  // patience for the other side's last word

}  // namespace

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
  state_.host->peer_ending(connection.peer->id, status);
  fail_or_retry_connects(connection, status, text);
  for (const auto& [sequence, token] : std::exchange(connection.syncs, {})) {
    state_.host->raise(event_of(EventKind::refreshed, token, connection.peer->id, status, text));
  }
  state_.host->wake_progress();  // cooperative operations end there
  const PeerId id = connection.peer->id;
  connection.patience = state_.host->reactor().add_timer(kGoneSeconds, [this, id] {
    if (Connection* found = find(id)) {
      found->patience = 0;
      advance_end(*found);
    }
  });
  advance_soon(id);
}

// Not at once: the caller still holds the connection.
void ControlPlane::advance_soon(PeerId peer) {
  state_.host->reactor().post([this, peer] { operations_ended(peer); });
}

void ControlPlane::operations_ended(PeerId peer) {
  if (Connection* connection = find(peer)) {
    advance_end(*connection);
  }
}

void ControlPlane::mark_gone(Connection& connection) {
  if (connection.gone) {
    return;
  }
  connection.gone = true;
  Reactor& reactor = state_.host->reactor();
  reactor.unwatch(connection.socket.get());
  if (connection.peer->pidfd() >= 0) {
    reactor.unwatch(connection.peer->pidfd());
  }
  advance_soon(connection.peer->id);
}

void ControlPlane::raise_disconnected(Connection& connection) {
  for (const Token token : std::exchange(connection.disconnect_tokens, {})) {
    state_.host->raise(event_of(EventKind::disconnected, token, connection.peer->id));
  }
}

// The last of our operations has ended. BYE promises that: the other side takes it as the end of our pins, and may give
// the memory under them to somebody else.
void ControlPlane::retire(Connection& connection) {
  Writer writer;
  writer.type(FrameType::bye);
  send(connection, writer);
  connection.retired = true;
  Peer& peer = *connection.peer;
  peer.unmap_all();
  state_.service.remove_peer(peer.id);
  if (!connection.hidden && connection.known) {
    state_.host->raise(event_of(EventKind::peer_down, 0, peer.id, peer.down_status(), connection.down_text));
  } else {
    state_.peers.remove(peer.id);  // the loop never heard of it
  }
}

// Takes whatever steps of the end are possible now; may destroy the connection.
void ControlPlane::advance_end(Connection& connection) {
  if (!connection.peer->down() || !connection.peer->idle()) {
    return;
  }
  if (!connection.retired) {
    retire(connection);
  }
  // With their BYE in hand, closing our end is the answer that lets them forget us. Without it we wait for the hang-up:
  // their pins on our regions count until then.
  const bool over = connection.gone || connection.bye_received;
  if (over || connection.patience == 0) {
    raise_disconnected(connection);
  }
  if (over) {
    forget(connection);
  }
}

void ControlPlane::forget(Connection& connection) {
  mark_gone(connection);
  Reactor& reactor = state_.host->reactor();
  for (const TimerId timer : {connection.patience, connection.introduction}) {
    if (timer != 0) {
      reactor.cancel_timer(timer);
    }
  }
  const PeerId id = connection.peer->id;
  if (id == self_peer_) {
    self_peer_ = 0;
  } else if (id == self_hidden_) {
    self_hidden_ = 0;
  }
  state_.peers.give_place(connection.peer->place);
  connections_.erase(id);
  finish_shutdown_if_empty();
}

// ---- the end of the engine

void ControlPlane::shutdown(std::function<void()> done) {
  shutting_down_ = true;
  shutdown_done_ = std::move(done);
  handshakes_.shutdown();
  for (const auto& [id, connection] : connections_) {
    take_down(*connection, Status::peer_closed, "this engine was closed");
  }
  state_.host->reactor().add_timer(kGoneSeconds, [this] {
    // A stopped process says no last word. Our own operations have ended; its pins are the caller's concern.
    std::vector<PeerId> left;
    for (const auto& [id, connection] : connections_) {
      left.push_back(id);
    }
    for (const PeerId id : left) {
      if (Connection* connection = find(id)) {
        mark_gone(*connection);
        advance_end(*connection);
      }
    }
  });
  finish_shutdown_if_empty();
}

void ControlPlane::finish_shutdown_if_empty() {
  if (shutting_down_ && connections_.empty() && shutdown_done_) {
    end_closings();
    std::exchange(shutdown_done_, nullptr)();
  }
}

}  // namespace hixl_aio::host
