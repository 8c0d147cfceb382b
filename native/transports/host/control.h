// The control plane: connections after the handshake, the region directory, revoking, and the end of peers.
// Everything runs on the control thread; the public calls may come from any thread and are posted there.
//
// The end of a peer has steps, because memory must outlive whoever may still touch it: *down* (nothing new starts, what
// runs fails at its next chunk), *idle* (the last of our operations has ended: no pin of ours is left, so the other side
// hears BYE, our mappings go and the loop hears of it), *gone* (the other side has said BYE, has closed or died: its pins
// count no longer, the channel goes).
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "core/reactor.h"
#include "transports/host/handshake.h"
#include "transports/host/state.h"

namespace hixl_aio::host {

class ControlPlane final : public Introductions {
 public:
  explicit ControlPlane(HostState& state) : state_(state), handshakes_(state, *this) {}

  Status listen(const std::string& address, std::string& bound, std::string& error) {
    return handshakes_.listen(address, bound, error);
  }
  void begin() { handshakes_.begin(); }

  // ---- control thread
  void connect(Token token, const Address& address, double timeout);
  void look(Token token, const Address& address, double timeout);
  void disconnect(Token token, PeerId peer);
  void refresh(Token token, PeerId peer);
  void publish_region(Token token, const RegionSpec& spec, std::shared_ptr<MemoryBlock> block,
                      std::shared_ptr<FragileMemory> fragile = nullptr);
  void close_region(Token token, std::uint32_t region, double timeout);
  void segment_gone(std::uint32_t segment);
  void operations_ended(PeerId peer);  // the last operation of a peer that is down
  void fail_peer(PeerId peer, Status status, const std::string& text);
  // `done` is called once every connection is gone, or cannot be waited for any longer.
  void shutdown(std::function<void()> done);

  // ---- Introductions
  PeerId connected_to(const Incarnation& incarnation) override;
  PeerId connected_to_address(const std::string& address) override;
  void introduced(Introduced made, std::vector<Token> tokens, bool outgoing) override;
  void already_connected(PeerId peer, std::vector<Token> tokens) override;
  void connect_failed(const std::vector<Token>& tokens, Status status, const std::string& text) override;
  void looked(Token token, Status status, const std::string& text) override;

 private:
  struct Queued {
    std::vector<std::byte> bytes;
    std::shared_ptr<const Segment> segment;  // whose descriptor goes with it
  };
  struct Connection {
    PeerRef peer;
    UniqueFd socket;
    std::deque<Queued> outbound;  // what the socket did not take yet
    std::size_t outbound_nbytes = 0;
    std::unordered_set<std::uint32_t> announced;  // segments
    std::vector<Token> connect_tokens;
    std::vector<Token> disconnect_tokens;
    std::unordered_map<std::uint64_t, Token> syncs;
    std::uint64_t next_sync = 1;
    bool raise_accepted = false;
    bool hidden = false;     // the inner half of a connection to ourselves
    bool known = false;      // their directory has arrived, the loop knows the peer
    bool bye_received = false;
    bool gone = false;       // closed or dead over there
    bool retired = false;    // idle and told
    TimerId introduction = 0;  // for their directory
    TimerId patience = 0;      // for their last word
    std::string down_text;
  };
  struct Connecting {  // a connect call that is not answered yet
    Address address;
    TimerId timer = 0;
  };
  struct Ahead {  // what of a peer's segment is to be mapped before its first use
    PeerId peer = 0;
    std::uint32_t segment = 0;
    std::uint64_t offset = 0;
  };
  struct Closing {
    Token token = 0;
    std::uint32_t region = 0;
    std::uint32_t generation = 0;
    std::uint32_t segment = 0;  // to take back from peers as well; 0: none
    double deadline = 0;
    double wait = 0;
    TimerId timer = 0;
  };

  // ---- control.cc
  Connection* find(PeerId peer);
  void watch(Connection& connection);
  void await_directory(Connection& connection);
  void fail_or_retry_connects(Connection& connection, Status status, const std::string& text);
  void answer_connect(Token token, PeerId peer, Status status, const std::string& text);
  void connect_timed_out(Token token, const std::string& address, double timeout);
  void became_known(Connection& connection);
  void let_signals_through(Peer& peer);
  void on_socket(PeerId peer, std::uint32_t events);
  void on_death(PeerId peer);
  void read_frames(Connection& connection, int budget);
  bool on_frame(Connection& connection, Frame& frame);
  bool on_segment(Connection& connection, Reader& reader, Frame& frame);
  void map_ahead();
  bool on_regions(Connection& connection, Reader& reader);
  void send(Connection& connection, const Writer& writer, std::shared_ptr<const Segment> segment = nullptr);
  void flush(Connection& connection);
  // ---- directory.cc
  void send_directory(Connection& connection);
  void announce(Connection& connection, const OwnRegion& region);
  [[nodiscard]] bool pinned(std::uint32_t region);
  void retry_close(std::uint64_t key);
  void answer_close(std::uint64_t key, Status status, const std::string& text);
  void end_closings();
  // ---- farewell.cc
  void take_down(Connection& connection, Status status, const std::string& text);
  void retire(Connection& connection);
  void mark_gone(Connection& connection);
  void advance_soon(PeerId peer);
  void advance_end(Connection& connection);
  void forget(Connection& connection);
  void raise_disconnected(Connection& connection);
  void finish_shutdown_if_empty();

  HostState& state_;
  Handshakes handshakes_;
  std::unordered_map<PeerId, std::unique_ptr<Connection>> connections_;
  std::unordered_map<Token, Connecting> connecting_;
  std::unordered_map<Token, TimerId> looking_;
  std::unordered_map<std::uint64_t, Closing> closings_;
  std::uint64_t next_closing_ = 1;
  std::deque<Ahead> ahead_;
  PeerId self_peer_ = 0;    // the public half of a connection to ourselves
  PeerId self_hidden_ = 0;  // its inner half
  std::function<void()> shutdown_done_;
  bool shutting_down_ = false;
};

[[nodiscard]] Event event_of(EventKind kind, Token token, PeerId peer, Status status = Status::ok, std::string text = {});

}  // namespace hixl_aio::host
