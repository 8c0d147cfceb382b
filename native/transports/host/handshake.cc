// The part of the handshake that both sides share, and the server's side.
#include "transports/host/handshake.h"

#include <netinet/in.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

namespace hixl_aio::host {
namespace {

constexpr double kIncomingSeconds = 3.0;
constexpr std::size_t kMaxIncoming = 1024;
constexpr double kAcceptPause = 0.1;

std::string os_error(int code, const std::string& what) { return what + ": " + std::strerror(code); }

std::string reason_for(LinkKind link, const std::string& cma_refusal) {
  switch (link) {
    case LinkKind::inproc:
      return "both engines live in this process";
    case LinkKind::shm:
      return "memory of allocate() is passed as a file descriptor";
    case LinkKind::cma:
      return "process_vm copied 24 bytes to and from the peer";
    case LinkKind::cooperative:
      return "the peer's native thread copies" +
             (cma_refusal.empty() ? ", as the order of the links says" : "; cma: " + cma_refusal);
    case LinkKind::none:
      break;
  }
  return {};
}

}  // namespace

// ---- shared

Hello Handshakes::our_hello(std::uint32_t place) const {
  Hello hello;
  hello.incarnation = state_.incarnation;
  hello.process = process_identity();
  hello.name = state_.config.name;
  hello.address = state_.address;
  hello.doorbell_place = place;
  hello.probe_address = reinterpret_cast<std::uintptr_t>(&state_.probe);
  hello.probe_value = state_.probe.value;
  return hello;
}

Status Handshakes::send_introduction(int socket, FrameType type, Channel& channel, std::uint32_t place) {
  const int fds[kHelloFds] = {channel.fd(), state_.doorbell->fd(), state_.host->loop_fd(), state_.host->progress_fd(),
                              state_.service.fd()};
  const auto bytes = our_hello(place).encode(type);
  const bool sent = send_frame(socket, bytes, fds) == SocketResult::done;
  channel.close_fd();  // the copy that is on its way is enough
  return sent ? Status::ok : Status::connect_failed;
}

// The first allowed link that reaches the memory, for each of the two kinds of memory.
Route Handshakes::choose_route(const Hello& hello, std::int64_t pid, bool same_process,
                               std::string& cma_refusal) const {
  Route route;
  cma_refusal = "not among the allowed links";
  bool cma_works = false;
  if (state_.config.links.has(LinkKind::cma)) {
    cma_refusal = cma_probe(pid, hello.probe_address, hello.probe_value);
    cma_works = cma_refusal.empty();
  }
  for (const LinkKind link : state_.config.links) {
    const bool reaches = link == LinkKind::inproc ? same_process : link == LinkKind::cma ? cma_works : true;
    if (reaches && route.shared == LinkKind::none) {
      route.shared = link;
    }
    if (reaches && route.host == LinkKind::none && link != LinkKind::shm) {
      route.host = link;
    }
  }
  for (const LinkKind link : {route.shared, route.host}) {
    if (link != LinkKind::none && (route.links.empty() || link != route.shared)) {
      route.links.push_back({std::string(link_name(link)), reason_for(link, cma_refusal)});
    }
  }
  if (route.host == LinkKind::none && !route.links.empty()) {
    route.links.back().reason += "; memory that allocate() did not make is out of reach (cma: " + cma_refusal + ")";
  }
  return route;
}

Status Handshakes::build_parts(const Hello& hello, Frame& frame, int socket, std::int64_t pid, Introduced& made,
                               std::string& text) {
  PeerParts& parts = made.parts;
  if (frame.fds_lost) {
    text = "no descriptor is left for a connection at " + state_.address +
           "; close some there or raise the limit (ulimit -n)";
    return Status::resource_exhausted;
  }
  if (frame.fds.size() != kHelloFds || hello.doorbell_place >= kDoorbellPlaces) {
    text = "the introduction is malformed";
    return Status::handshake_refused;
  }
  parts.out = Channel::attach(std::move(frame.fds[0]), text);
  if (!parts.out) {
    return Status::handshake_refused;
  }
  parts.doorbell = SharedDoorbell::attach(std::move(frame.fds[1]), text);
  if (!parts.doorbell) {
    return Status::handshake_refused;
  }
  for (std::size_t i = 2; i < kHelloFds; ++i) {
    if (!is_event_fd(frame.fds[i].get())) {
      text = "the introduction is malformed: a descriptor is no eventfd";
      return Status::handshake_refused;
    }
  }
  parts.loop_fd = std::move(frame.fds[2]);
  parts.progress_fd = std::move(frame.fds[3]);
  parts.service_fd = std::move(frame.fds[4]);
  if (const Status status = peer_pidfd(socket, pid, made.pidfd); !ok(status)) {
    text = "no descriptor is left to watch the other process at " + state_.address;
    return status;
  }
  parts.remote_place = hello.doorbell_place;
  // The kernel says who it is; the identity only tells the engines of one process from those of its forked children.
  const bool same_process = hello.process == process_identity() && pid == getpid();
  parts.identity = PeerIdentity{hello.incarnation, hello.name, hello.address, pid, same_process};
  std::string cma_refusal;
  parts.route = choose_route(hello, pid, same_process, cma_refusal);
  if (parts.route.links.empty()) {
    text = "links: the engine at " + state_.address + " allows '" + state_.config.links.text() +
           "', and none of them reaches " + (same_process ? "an engine in its own process" : "another process") +
           " (cma: " + cma_refusal + "); allow shm, cma or cooperative in EngineOptions(links=...)";
    return Status::no_link;
  }
  return Status::ok;
}

// ---- server side

Status Handshakes::listen(const std::string& address, std::string& bound, std::string& error) {
  Address parsed;
  if (const Status status = parse_address(address, parsed, error); !ok(status)) {
    return status;
  }
  if (!parsed.loopback) {
    error = "address '" + address +
            "' is not a loopback address; this engine reaches one host only: bind 127.0.0.1, [::1] or unix:NAME";
    return Status::unsupported;
  }
  sockaddr_storage control{};
  socklen_t control_length = 0;
  public_is_unix_ = parsed.unix_name;
  control_name_ = "hixl-aio/control/" + hex(state_.incarnation);
  if (parsed.unix_name) {
    control = parsed.storage;
    control_length = parsed.length;
  } else if (!abstract_address(control_name_, control, control_length)) {
    error = "internal: the control socket's name is too long";
    return Status::internal;
  }
  control_listener_.reset(socket(AF_UNIX, SOCK_SEQPACKET | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  if (!control_listener_ || bind(control_listener_.get(), reinterpret_cast<sockaddr*>(&control), control_length) != 0 ||
      ::listen(control_listener_.get(), SOMAXCONN) != 0) {
    const int code = errno;
    error = os_error(code, "binding '" + address + "'");
    return code == EADDRINUSE ? Status::address_in_use : Status::resource_exhausted;
  }
  if (parsed.unix_name) {
    bound = parsed.text();
    return Status::ok;
  }
  public_listener_.reset(socket(parsed.storage.ss_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  const int one = 1;
  if (public_listener_) {
    // A restart must not wait for the old connections' TIME_WAIT; a live listener is still refused.
    setsockopt(public_listener_.get(), SOL_SOCKET, SO_REUSEADDR, &one, sizeof(one));
  }
  socklen_t length = parsed.length;
  if (!public_listener_ || bind(public_listener_.get(), reinterpret_cast<sockaddr*>(&parsed.storage), length) != 0 ||
      ::listen(public_listener_.get(), SOMAXCONN) != 0 ||
      getsockname(public_listener_.get(), reinterpret_cast<sockaddr*>(&parsed.storage), &length) != 0) {
    const int code = errno;
    const bool taken = code == EADDRINUSE;
    error = os_error(code, "binding '" + address + "'") + (taken ? "; choose another port, or 0" : "");
    return taken ? Status::address_in_use : code == EMFILE || code == ENFILE ? Status::resource_exhausted
                                                                            : Status::connect_failed;
  }
  parsed.port = ntohs(parsed.storage.ss_family == AF_INET6
                          ? reinterpret_cast<sockaddr_in6*>(&parsed.storage)->sin6_port
                          : reinterpret_cast<sockaddr_in*>(&parsed.storage)->sin_port);
  bound = parsed.text();
  return Status::ok;
}

void Handshakes::begin() {
  if (public_listener_) {
    listen_to(public_listener_, &Handshakes::accept_public);
  }
  listen_to(control_listener_, &Handshakes::accept_control);
}

void Handshakes::listen_to(UniqueFd& listener, void (Handshakes::*accept)(UniqueFd)) {
  const Status status = state_.host->reactor().watch(
      listener.get(), EPOLLIN, [this, &listener, accept](std::uint32_t) { on_listener(listener, accept); });
  if (!ok(status)) {
    pause(listener, accept);
  }
}

void Handshakes::on_listener(UniqueFd& listener, void (Handshakes::*accept)(UniqueFd)) {
  const int fd = accept4(listener.get(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC);
  if (fd >= 0) {
    (this->*accept)(UniqueFd(fd));
  } else if (errno == EMFILE || errno == ENFILE || errno == ENOBUFS || errno == ENOMEM) {
    // The caller stays in the backlog, so the listener would go on being readable: a pause, not a busy loop.
    state_.host->reactor().unwatch(listener.get());
    pause(listener, accept);
  }
}

void Handshakes::pause(UniqueFd& listener, void (Handshakes::*accept)(UniqueFd)) {
  state_.host->reactor().add_timer(kAcceptPause, [this, &listener, accept] {
    if (listener) {
      listen_to(listener, accept);
    }
  });
}

void Handshakes::accept_public(UniqueFd socket) {
  Greeting greeting;
  greeting.incarnation = state_.incarnation;
  greeting.host_id = state_.host_id;
  greeting.control_socket = control_name_;
  const auto bytes = greeting.encode();
  // Fits a new socket's buffer whole. What the caller may have sent is never read; the connection ends here.
  (void)::send(socket.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
  ::shutdown(socket.get(), SHUT_WR);
}

void Handshakes::accept_control(UniqueFd socket) {
  const auto credentials = peer_credentials(socket.get());
  if (!credentials || credentials->uid != geteuid() || incoming_.size() >= kMaxIncoming) {
    return;  // another user learns nothing, not even a greeting
  }
  Greeting greeting;
  greeting.incarnation = state_.incarnation;
  greeting.host_id = state_.host_id;
  if (send_frame(socket.get(), greeting.encode(), {}) != SocketResult::done) {
    return;
  }
  Reactor& reactor = state_.host->reactor();
  const int fd = socket.get();
  Incoming incoming;
  incoming.socket = std::move(socket);
  incoming.credentials = *credentials;
  incoming.timer = reactor.add_timer(kIncomingSeconds, [this, fd] {
    state_.host->reactor().unwatch(fd);
    incoming_.erase(fd);
  });
  incoming_.emplace(fd, std::move(incoming));
  reactor.watch(fd, EPOLLIN, [this, fd](std::uint32_t) { on_incoming(fd); });
}

bool Handshakes::tie_break(const Incarnation& theirs) {
  for (const auto& [key, attempt] : outgoing_) {
    if (attempt->stage == Stage::welcome && attempt->greeting && attempt->greeting->incarnation == theirs &&
        state_.incarnation < theirs) {
      attempt->also_inbound = true;
      return true;
    }
  }
  return false;
}

Status Handshakes::welcome(Incoming& incoming, Frame& frame, std::string& text, Refusal& refusal) {
  Hello hello;
  if (!parse_hello(frame.bytes, FrameType::hello, hello)) {
    text = "the introduction is malformed";
    return Status::handshake_refused;
  }
  const bool to_ourselves = hello.incarnation == state_.incarnation;
  if (to_ourselves) {
    if (const Status status = check_ourselves(incoming, text); !ok(status)) {
      return status;
    }
  } else if (owner_.connected_to(hello.incarnation) != 0) {
    refusal = Refusal::already_connected;
    return Status::handshake_refused;
  } else if (tie_break(hello.incarnation)) {
    refusal = Refusal::simultaneous;
    return Status::handshake_refused;
  }
  Introduced made;
  made.to_ourselves = to_ourselves;
  if (const Status status = build_parts(hello, frame, incoming.socket.get(), incoming.credentials.pid, made, text);
      !ok(status)) {
    return status;
  }
  made.parts.in = Channel::create(state_.config.max_regions, state_.config.signal_capacity, text);
  made.parts.place = state_.peers.take_place();
  if (!made.parts.in || made.parts.place == kDoorbellPlaces) {
    if (made.parts.place != kDoorbellPlaces) {
      state_.peers.give_place(made.parts.place);
    }
    text = text.empty() ? "the other side has as many peers as it can have" : text;
    return Status::resource_exhausted;
  }
  if (!ok(send_introduction(incoming.socket.get(), FrameType::welcome, *made.parts.in, made.parts.place))) {
    state_.peers.give_place(made.parts.place);
    return Status::connect_failed;
  }
  made.socket = std::move(incoming.socket);
  // Our own attempts towards the same engine end with this connection.
  std::vector<Token> tokens;
  std::vector<Outgoing*> ended;
  for (const auto& [key, attempt] : outgoing_) {
    if (!to_ourselves && attempt->greeting && attempt->greeting->incarnation == hello.incarnation) {
      tokens.insert(tokens.end(), attempt->tokens.begin(), attempt->tokens.end());
      ended.push_back(attempt.get());
    }
  }
  for (Outgoing* attempt : ended) {
    erase(*attempt);
  }
  owner_.introduced(std::move(made), std::move(tokens), false);
  return Status::ok;
}

// Only our own attempt, under way in this process, makes us our own peer.
Status Handshakes::check_ourselves(const Incoming& incoming, std::string& text) const {
  for (const auto& [key, attempt] : outgoing_) {
    if (attempt->stage == Stage::welcome && attempt->greeting->incarnation == state_.incarnation &&
        incoming.credentials.pid == getpid()) {
      return Status::ok;
    }
  }
  text = "the introduction carries the incarnation of the engine that it was sent to";
  return Status::handshake_refused;
}

void Handshakes::on_incoming(int fd) {
  const auto it = incoming_.find(fd);
  Frame frame;
  const SocketResult result = receive_frame(fd, frame);
  if (result == SocketResult::again) {
    return;
  }
  Incoming incoming = std::move(it->second);
  incoming_.erase(it);
  state_.host->reactor().unwatch(fd);
  state_.host->reactor().cancel_timer(incoming.timer);
  if (result == SocketResult::closed) {
    return;
  }
  std::string text;
  Refusal refusal = Refusal::error;
  const Status status = welcome(incoming, frame, text, refusal);
  if (!ok(status) && incoming.socket) {
    Writer writer;
    writer.type(FrameType::refuse).put(static_cast<std::uint8_t>(refusal)).put(static_cast<std::int32_t>(status));
    writer.text(text, kMaxText);
    (void)send_frame(fd, writer.bytes(), {});
  }
}

void Handshakes::shutdown() {
  Reactor& reactor = state_.host->reactor();
  for (UniqueFd* listener : {&public_listener_, &control_listener_}) {
    if (*listener) {
      reactor.unwatch(listener->get());
      listener->reset();
    }
  }
  for (auto& [fd, incoming] : incoming_) {
    reactor.unwatch(fd);
    reactor.cancel_timer(incoming.timer);
  }
  incoming_.clear();
  while (!outgoing_.empty()) {
    fail(*outgoing_.begin()->second, Status::closed, "the engine was closed while it was connecting");
  }
}

}  // namespace hixl_aio::host
