// Those an engine meets besides engines: servers that are none or misbehave, and clients that play an engine badly.
#pragma once

#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/un.h>

#include <atomic>
#include <functional>
#include <random>
#include <thread>

#include "host_engines.h"
#include "transports/host/address.h"
#include "transports/host/wire.h"

namespace hixl_aio::test {

using host::FrameType;
using host::UniqueFd;
using Bytes = std::vector<std::byte>;

inline Bytes bytes_of(const std::string& text) {
  const auto* data = reinterpret_cast<const std::byte*>(text.data());
  return Bytes(data, data + text.size());
}

inline UniqueFd listening(const std::string& where, std::string& bound, int backlog = 64) {
  host::Address address;
  std::string error;
  REQUIRE(ok(host::parse_address(where, address, error)));
  UniqueFd fd(
      ::socket(address.storage.ss_family, (address.unix_name ? SOCK_SEQPACKET : SOCK_STREAM) | SOCK_CLOEXEC, 0));
  REQUIRE(fd.valid());
  REQUIRE(::bind(fd.get(), reinterpret_cast<sockaddr*>(&address.storage), address.length) == 0);
  REQUIRE(::listen(fd.get(), backlog) == 0);
  if (!address.unix_name) {
    sockaddr_in name{};
    socklen_t length = sizeof(name);
    REQUIRE(::getsockname(fd.get(), reinterpret_cast<sockaddr*>(&name), &length) == 0);
    address.port = ntohs(name.sin_port);
  }
  bound = address.text();
  return fd;
}

// A server of our own making: `serve` gets each accepted connection, on the server's thread.
class FakeServer {
 public:
  FakeServer(const std::string& where, std::function<void(UniqueFd)> serve)
      : listener_(listening(where, address)), serve_(std::move(serve)), thread_([this] { run(); }) {}
  ~FakeServer() { stop(); }
  // Before what `serve` fills may be looked at.
  void stop() {
    stopping_.store(true);
    const std::uint64_t one = 1;
    (void)!::write(wake_.get(), &one, sizeof(one));
    if (thread_.joinable()) {
      thread_.join();
    }
  }
  std::string address;
  std::atomic<int> accepted{0};

 private:
  void run() {
    while (!stopping_.load()) {
      pollfd fds[] = {{listener_.get(), POLLIN, 0}, {wake_.get(), POLLIN, 0}};
      ::poll(fds, 2, -1);
      if ((fds[0].revents & POLLIN) != 0) {
        UniqueFd socket(::accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC));
        if (socket) {
          accepted.fetch_add(1);
          serve_(std::move(socket));
        }
      }
    }
  }
  UniqueFd listener_;
  UniqueFd wake_ = event_fd();
  std::function<void(UniqueFd)> serve_;
  std::atomic<bool> stopping_{false};
  std::thread thread_;
};

// The host id of this machine, taken from an engine's own greeting.
inline std::string this_host() { return host::read_boot_id(); }

inline host::Incarnation some_incarnation() {
  host::Incarnation out{};
  CHECK(host::random_bytes(out));
  return out;
}

// An engine played by hand: has what an introduction needs, and sends what it is told to.
struct Stranger {
  UniqueFd socket;
  host::Incarnation incarnation = some_incarnation();
  host::ProbeCell probe{some_incarnation(), {}};  // the engine reads the first part and writes the second
  std::unique_ptr<host::Channel> channel;
  std::unique_ptr<host::SharedDoorbell> doorbell;
  UniqueFd loop = event_fd();
  UniqueFd progress = event_fd();
  UniqueFd service = event_fd();
  host::Greeting greeting;  // theirs

  Stranger() {
    std::string error;
    channel = host::Channel::create(64, 64, error);
    doorbell = host::SharedDoorbell::create(error);
    REQUIRE(channel && doorbell);
  }
  // To the control socket of an engine, greeting read.
  bool dial(const std::string& engine_address) {
    host::Address address;
    std::string error;
    REQUIRE(ok(host::parse_address(engine_address, address, error)));
    sockaddr_storage control = address.storage;
    socklen_t length = address.length;
    if (!address.unix_name) {
      const UniqueFd tcp(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
      if (::connect(tcp.get(), reinterpret_cast<sockaddr*>(&address.storage), address.length) != 0) {
        return false;
      }
      Bytes bytes(512);
      std::size_t size = 0;
      for (ssize_t got = 1; got > 0 && size < bytes.size();) {
        got = ::recv(tcp.get(), bytes.data() + size, bytes.size() - size, 0);
        size += got > 0 ? static_cast<std::size_t>(got) : 0;
      }
      bytes.resize(size);
      if (!ok(host::parse_greeting(bytes, greeting, error)) ||
          !host::abstract_address(greeting.control_socket, control, length)) {
        return false;
      }
    }
    socket.reset(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0));
    if (::connect(socket.get(), reinterpret_cast<sockaddr*>(&control), length) != 0) {
      return false;
    }
    host::Frame frame;
    return receive(frame) && ok(host::parse_greeting(frame.bytes, greeting, error));
  }
  host::Hello hello() const {
    host::Hello out;
    out.incarnation = incarnation;
    out.process = incarnation;
    out.name = "stranger";
    out.address = "127.0.0.1:1";
    out.doorbell_place = 5;
    out.probe_address = reinterpret_cast<std::uintptr_t>(&probe);
    out.probe_value = probe.value;
    return out;
  }
  std::vector<int> fds() const { return {channel->fd(), doorbell->fd(), loop.get(), progress.get(), service.get()}; }
  bool send(const Bytes& bytes, const std::vector<int>& descriptors = {}) const {
    return host::send_frame(socket.get(), bytes, descriptors) == host::SocketResult::done;
  }
  bool send(const host::Writer& writer) const { return send(writer.bytes()); }
  // False: nothing came, or the end.
  bool receive(host::Frame& frame, int milliseconds = 5000) const {
    return readable(socket.get(), milliseconds) &&
           host::receive_frame(socket.get(), frame) == host::SocketResult::done && !frame.bytes.empty();
  }
  bool ended(int milliseconds = 5000) const {
    for (;;) {
      if (!readable(socket.get(), milliseconds)) {
        return false;
      }
      host::Frame frame;
      if (host::receive_frame(socket.get(), frame) == host::SocketResult::closed) {
        return true;
      }
    }
  }
  static FrameType type(const host::Frame& frame) {
    return frame.bytes.empty() ? FrameType{} : static_cast<FrameType>(frame.bytes[0]);
  }
  static host::Writer only(FrameType type) {
    host::Writer writer;
    writer.type(type);
    return writer;
  }
  // Introduced and known: the engine sees a peer.
  bool join(const std::string& engine_address) {
    host::Frame frame;
    return dial(engine_address) && send(hello().encode(FrameType::hello), fds()) && receive(frame) &&
           type(frame) == FrameType::welcome && send(only(FrameType::directory_end));
  }
};

}  // namespace hixl_aio::test
