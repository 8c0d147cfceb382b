// The side that connects.
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "transports/host/handshake.h"

namespace hixl_aio::host {
namespace {

constexpr double kRetrySeconds = 0.01;
// How long the loser of a tie leaves the floor to the winner before it tries again: the winner may have given up.
constexpr double kInboundSeconds = 0.05;
constexpr std::size_t kMaxGreeting = 512;

}  // namespace

void Handshakes::connect(Token token, const Address& address) {
  if (const PeerId peer = owner_.connected_to_address(address.text()); peer != 0) {
    owner_.already_connected(peer, {token});
    return;
  }
  for (const auto& [key, attempt] : outgoing_) {
    if (attempt->address.text() == address.text() && !attempt->only_look) {
      attempt->tokens.push_back(token);
      return;
    }
  }
  start(begin_attempt(token, address));
}

void Handshakes::look(Token token, const Address& address) {
  Outgoing& attempt = begin_attempt(token, address);
  attempt.only_look = true;
  start(attempt);
}

Handshakes::Outgoing& Handshakes::begin_attempt(Token token, const Address& address) {
  auto made = std::make_unique<Outgoing>();
  Outgoing& attempt = *made;
  attempt.key = next_key_++;
  attempt.tokens.push_back(token);
  attempt.address = address;
  outgoing_.emplace(attempt.key, std::move(made));
  return attempt;
}

bool Handshakes::give_up(Token token) {
  for (const auto& [key, attempt] : outgoing_) {
    if (std::erase(attempt->tokens, token) != 0) {
      if (attempt->tokens.empty()) {
        erase(*attempt);
      }
      return true;
    }
  }
  return false;
}

void Handshakes::start(Outgoing& attempt) {
  attempt.greeting.reset();
  attempt.received.clear();
  const int family = attempt.address.storage.ss_family;
  const int type = attempt.address.unix_name ? SOCK_SEQPACKET : SOCK_STREAM;
  attempt.socket.reset(socket(family, type | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  if (!attempt.socket) {
    const int code = errno;
    fail(attempt, Status::resource_exhausted, attempt.address.text() + ": socket: " + std::strerror(code));
    return;
  }
  attempt.stage = attempt.address.unix_name ? Stage::greeting_control : Stage::tcp;
  const int fd = attempt.socket.get();
  if (::connect(fd, reinterpret_cast<const sockaddr*>(&attempt.address.storage), attempt.address.length) != 0 &&
      errno != EINPROGRESS) {
    if (errno == EAGAIN) {  // a full backlog
      retry_after(attempt, kRetrySeconds, Stage::retry);
      return;
    }
    fail(attempt, Status::connect_failed,
         attempt.address.text() + ": " + std::strerror(errno) + "; is an engine running there?");
    return;
  }
  if (attempt.address.unix_name && !same_user(attempt)) {
    return;
  }
  state_.host->reactor().watch(fd, attempt.stage == Stage::tcp ? EPOLLOUT : EPOLLIN,
                               [this, key = attempt.key](std::uint32_t) { on_outgoing(key); });
}

void Handshakes::start_control(Outgoing& attempt) {
  sockaddr_storage storage{};
  socklen_t length = 0;
  close_socket(attempt);
  attempt.socket.reset(socket(AF_UNIX, SOCK_SEQPACKET | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  if (!attempt.socket) {
    const int code = errno;
    fail(attempt, Status::resource_exhausted, attempt.address.text() + ": socket: " + std::strerror(code));
    return;
  }
  if (!abstract_address(attempt.greeting->control_socket, storage, length)) {
    fail(attempt, Status::handshake_refused,
         attempt.address.text() + ": it announces a control socket that cannot exist");
    return;
  }
  attempt.stage = Stage::greeting_control;
  const int fd = attempt.socket.get();
  if (::connect(fd, reinterpret_cast<const sockaddr*>(&storage), length) != 0) {
    const int code = errno;
    if (code == EAGAIN) {
      retry_after(attempt, kRetrySeconds, Stage::retry);
    } else {
      fail(attempt, Status::connect_failed,
           attempt.address.text() + ": control socket: " + std::strerror(code) +
               "; both engines must be in one network namespace");
    }
    return;
  }
  if (same_user(attempt)) {
    state_.host->reactor().watch(fd, EPOLLIN, [this, key = attempt.key](std::uint32_t) { on_outgoing(key); });
  }
}

// Before a word is exchanged. False: the attempt has failed.
bool Handshakes::same_user(Outgoing& attempt) {
  const auto credentials = peer_credentials(attempt.socket.get());
  if (credentials && credentials->uid == geteuid()) {
    return true;
  }
  fail(attempt, Status::permission_denied,
       attempt.address.text() + " runs as uid " + (credentials ? std::to_string(credentials->uid) : "unknown") +
           ", this process as uid " + std::to_string(geteuid()) + "; engines connect only within one user");
  return false;
}

void Handshakes::on_outgoing(std::uint64_t key) {
  const auto it = outgoing_.find(key);
  if (it == outgoing_.end()) {
    return;
  }
  Outgoing& attempt = *it->second;
  const int fd = attempt.socket.get();
  if (attempt.stage == Stage::tcp) {
    int error = 0;
    socklen_t length = sizeof(error);
    getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &length);
    if (error != 0) {
      fail(attempt, Status::connect_failed,
           attempt.address.text() + ": " + std::strerror(error) + "; is an engine running there?");
      return;
    }
    attempt.stage = Stage::greeting_tcp;
    state_.host->reactor().modify(fd, EPOLLIN);
    return;
  }
  if (attempt.stage == Stage::greeting_tcp) {
    read_public_greeting(attempt);
    return;
  }
  Frame frame;
  const SocketResult result = receive_frame(fd, frame);
  if (result == SocketResult::again) {
    return;
  }
  if (result == SocketResult::closed) {
    fail(attempt, Status::connect_failed,
         attempt.address.text() + " closed the connection during the handshake; does it run as this user?");
    return;
  }
  if (attempt.stage == Stage::greeting_control) {
    on_greeting(attempt, frame.bytes, true);
  } else {
    on_answer(attempt, frame);
  }
}

void Handshakes::read_public_greeting(Outgoing& attempt) {
  std::byte buffer[kMaxGreeting];
  const ssize_t got = ::recv(attempt.socket.get(), buffer, sizeof(buffer), MSG_DONTWAIT);
  if (got < 0) {
    const int code = errno;
    if (code != EAGAIN && code != EINTR) {
      fail(attempt, Status::connect_failed, attempt.address.text() + ": " + std::strerror(code));
    }
    return;
  }
  attempt.received.insert(attempt.received.end(), buffer, buffer + got);
  if (got == 0 || attempt.received.size() > kMaxGreeting || !may_become_greeting(attempt.received)) {
    const std::vector<std::byte> bytes = std::move(attempt.received);
    on_greeting(attempt, bytes, false);
  }
}

void Handshakes::on_greeting(Outgoing& attempt, std::span<const std::byte> bytes, bool control) {
  Greeting greeting;
  std::string text;
  if (const Status status = parse_greeting(bytes, greeting, text); !ok(status)) {
    fail(attempt, status, attempt.address.text() + ": " + text);
    return;
  }
  if (greeting.host_id != state_.host_id) {
    fail(attempt, Status::unsupported,
         attempt.address.text() + " is on another host (boot id: ours " + state_.host_id + ", theirs " +
             greeting.host_id + "); this engine reaches one host only");
    return;
  }
  if (control && attempt.greeting && attempt.greeting->incarnation != greeting.incarnation) {
    fail(attempt, Status::connect_failed, attempt.address.text() + " restarted during the handshake; connect again");
    return;
  }
  if (attempt.only_look) {
    const Token token = attempt.tokens.front();
    erase(attempt);
    owner_.looked(token, Status::ok, hex(greeting.incarnation));
    return;
  }
  const std::string control_socket = attempt.greeting ? attempt.greeting->control_socket : greeting.control_socket;
  attempt.greeting = greeting;
  attempt.greeting->control_socket = control_socket;
  if (const PeerId peer = owner_.connected_to(greeting.incarnation); peer != 0) {
    attach(attempt, peer);
    return;
  }
  if (control) {
    send_hello(attempt);
  } else {
    start_control(attempt);
  }
}

void Handshakes::send_hello(Outgoing& attempt) {
  std::string text;
  attempt.channel = Channel::create(state_.config.max_regions, state_.config.signal_capacity, text);
  attempt.place = state_.peers.take_place();
  if (!attempt.channel || attempt.place == kDoorbellPlaces) {
    fail(attempt, Status::resource_exhausted,
         text.empty() ? "this engine has as many peers as it can have; close some" : text);
    return;
  }
  attempt.stage = Stage::welcome;
  if (!ok(send_introduction(attempt.socket.get(), FrameType::hello, *attempt.channel, attempt.place))) {
    fail(attempt, Status::connect_failed, attempt.address.text() + " closed the connection during the handshake");
  }
}

void Handshakes::on_answer(Outgoing& attempt, Frame& frame) {
  Reader reader(frame.bytes);
  if (reader.take<std::uint8_t>() == static_cast<std::uint8_t>(FrameType::refuse)) {
    const auto refusal = static_cast<Refusal>(reader.take<std::uint8_t>());
    const Status status = status_from_wire(reader.take<std::int32_t>());
    const std::string text = reader.text(kMaxText);
    if (!reader.finished() || ok(status)) {
      fail(attempt, Status::handshake_refused, attempt.address.text() + " sent a malformed refusal");
    } else if (refusal == Refusal::already_connected) {
      // Either the other side's connection to us is just becoming known here, or an old one is just ending there.
      const PeerId peer = owner_.connected_to(attempt.greeting->incarnation);
      peer != 0 ? attach(attempt, peer) : retry_after(attempt, kRetrySeconds, Stage::retry);
    } else if (refusal == Refusal::simultaneous) {
      retry_after(attempt, kInboundSeconds, Stage::wait_inbound);  // usually their attempt reaches us first
    } else {
      fail(attempt, status, attempt.address.text() + " refused: " + text);
    }
    return;
  }
  Hello hello;
  Introduced made;
  std::string text;
  const auto credentials = peer_credentials(attempt.socket.get());
  if (!credentials || !parse_hello(frame.bytes, FrameType::welcome, hello) ||
      hello.incarnation != attempt.greeting->incarnation) {
    fail(attempt, Status::handshake_refused, attempt.address.text() + ": the answer is malformed");
    return;
  }
  if (const Status status = build_parts(hello, frame, attempt.socket.get(), credentials->pid, made, text); !ok(status)) {
    fail(attempt, status, attempt.address.text() + ": " + text);
    return;
  }
  state_.host->reactor().unwatch(attempt.socket.get());
  made.to_ourselves = hello.incarnation == state_.incarnation;
  made.parts.in = std::move(attempt.channel);
  made.parts.place = std::exchange(attempt.place, kDoorbellPlaces);
  made.socket = std::move(attempt.socket);
  std::vector<Token> tokens = std::move(attempt.tokens);
  const bool also_inbound = attempt.also_inbound;
  erase(attempt);
  owner_.introduced(std::move(made), std::move(tokens), !also_inbound);
}

void Handshakes::attach(Outgoing& attempt, PeerId peer) {
  std::vector<Token> tokens = std::move(attempt.tokens);
  erase(attempt);
  owner_.already_connected(peer, std::move(tokens));
}

void Handshakes::retry_after(Outgoing& attempt, double seconds, Stage meanwhile) {
  close_socket(attempt);
  attempt.stage = meanwhile;
  attempt.retry = state_.host->reactor().add_timer(seconds, [this, key = attempt.key] {
    const auto it = outgoing_.find(key);
    if (it != outgoing_.end()) {
      it->second->retry = 0;
      start(*it->second);
    }
  });
}

void Handshakes::fail(Outgoing& attempt, Status status, const std::string& text) {
  std::vector<Token> tokens = std::move(attempt.tokens);
  const bool only_look = attempt.only_look;
  erase(attempt);
  if (only_look) {
    owner_.looked(tokens.front(), status, text);
  } else {
    owner_.connect_failed(tokens, status, text);
  }
}

void Handshakes::close_socket(Outgoing& attempt) {
  if (attempt.socket) {
    state_.host->reactor().unwatch(attempt.socket.get());
    attempt.socket.reset();
  }
  attempt.channel.reset();
  if (attempt.place != kDoorbellPlaces) {
    state_.peers.give_place(std::exchange(attempt.place, kDoorbellPlaces));
  }
}

void Handshakes::erase(Outgoing& attempt) {
  close_socket(attempt);
  if (attempt.retry != 0) {
    state_.host->reactor().cancel_timer(attempt.retry);
  }
  const std::uint64_t key = attempt.key;  // not a reference into what is erased
  outgoing_.erase(key);
}

}  // namespace hixl_aio::host
