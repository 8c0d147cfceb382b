// From an address, or an accepted socket, to the parts of a peer. Control thread only.
//
// A TCP connection to the public address yields nothing but the greeting: wire version, incarnation, and the name of the
// control socket, an abstract unix socket where both sides check the other's uid before a descriptor is passed. A
// `unix:NAME` address is such a socket itself.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "core/reactor.h"
#include "transports/host/address.h"
#include "transports/host/state.h"
#include "transports/host/wire.h"

namespace hixl_aio::host {

enum class Refusal : std::uint8_t { error = 0, already_connected = 1, simultaneous = 2 };

// Result of a completed handshake: a connected control socket and everything the data plane needs.
struct Introduced {
  UniqueFd socket;
  UniqueFd pidfd;
  PeerParts parts;
  bool to_ourselves = false;
};

// What the handshakes ask of the owner of the connections.
class Introductions {
 public:
  // The live connection to this incarnation, 0 if none.
  virtual PeerId connected_to(const Incarnation& incarnation) = 0;
  virtual PeerId connected_to_address(const std::string& address) = 0;
  // `tokens`: connect calls that end with this connection; `outgoing`: we began it.
  virtual void introduced(Introduced made, std::vector<Token> tokens, bool outgoing) = 0;
  virtual void already_connected(PeerId peer, std::vector<Token> tokens) = 0;
  virtual void connect_failed(const std::vector<Token>& tokens, Status status, const std::string& text) = 0;
  // ok: `text` is the incarnation of who answered.
  virtual void looked(Token token, Status status, const std::string& text) = 0;

 protected:
  ~Introductions() = default;
};

class Handshakes {
 public:
  Handshakes(HostState& state, Introductions& owner) noexcept : state_(state), owner_(owner) {}

  // Binds the public address and the control socket. Any thread, before the reactor sees anything.
  Status listen(const std::string& address, std::string& bound, std::string& error);
  void begin();  // watch the sockets
  // Tries until it succeeds, is refused, or the last token has given up.
  void connect(Token token, const Address& address);
  // The same way as far as the greeting, and nothing after it.
  void look(Token token, const Address& address);
  bool give_up(Token token);  // false: no attempt has it
  void shutdown();

 private:
  struct Incoming {
    UniqueFd socket;
    Credentials credentials;
    TimerId timer = 0;
  };
  enum class Stage : std::uint8_t { tcp, greeting_tcp, greeting_control, welcome, wait_inbound, retry };
  struct Outgoing {
    std::uint64_t key = 0;
    std::vector<Token> tokens;
    Address address;
    Stage stage = Stage::tcp;
    UniqueFd socket;
    std::vector<std::byte> received;
    std::optional<Greeting> greeting;
    std::unique_ptr<Channel> channel;  // made for the HELLO, ours
    std::uint32_t place = kDoorbellPlaces;
    TimerId retry = 0;
    bool also_inbound = false;
    bool only_look = false;  // has one token, and nobody joins it
  };

  // ---- server side
  void listen_to(UniqueFd& listener, void (Handshakes::*accept)(UniqueFd));
  void on_listener(UniqueFd& listener, void (Handshakes::*accept)(UniqueFd));
  void pause(UniqueFd& listener, void (Handshakes::*accept)(UniqueFd));
  void accept_public(UniqueFd socket);
  void accept_control(UniqueFd socket);
  void on_incoming(int fd);
  Status welcome(Incoming& incoming, Frame& frame, std::string& text, Refusal& refusal);
  Status check_ourselves(const Incoming& incoming, std::string& text) const;
  bool tie_break(const Incarnation& theirs);  // true: our own attempt wins, theirs is refused
  // ---- client side
  Outgoing& begin_attempt(Token token, const Address& address);
  void start(Outgoing& attempt);
  void start_control(Outgoing& attempt);
  bool same_user(Outgoing& attempt);
  void on_outgoing(std::uint64_t key);
  void read_public_greeting(Outgoing& attempt);
  void on_greeting(Outgoing& attempt, std::span<const std::byte> bytes, bool control);
  void send_hello(Outgoing& attempt);
  void on_answer(Outgoing& attempt, Frame& frame);
  void fail(Outgoing& attempt, Status status, const std::string& text);
  void retry_after(Outgoing& attempt, double seconds, Stage meanwhile);
  void attach(Outgoing& attempt, PeerId peer);
  void close_socket(Outgoing& attempt);
  void erase(Outgoing& attempt);
  // ---- both
  [[nodiscard]] Hello our_hello(std::uint32_t place) const;
  Status send_introduction(int socket, FrameType type, Channel& channel, std::uint32_t place);
  Status build_parts(const Hello& hello, Frame& frame, int socket, std::int64_t pid, Introduced& made,
                     std::string& text);
  [[nodiscard]] Route choose_route(const Hello& hello, std::int64_t pid, bool same_process,
                                   std::string& cma_refusal) const;

  HostState& state_;
  Introductions& owner_;
  UniqueFd public_listener_;   // TCP, or none for unix:NAME
  UniqueFd control_listener_;
  std::string control_name_;
  bool public_is_unix_ = false;
  std::unordered_map<int, Incoming> incoming_;
  std::unordered_map<std::uint64_t, std::unique_ptr<Outgoing>> outgoing_;
  std::uint64_t next_key_ = 1;
};

}  // namespace hixl_aio::host
