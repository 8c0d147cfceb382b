// Whole engines over the host transport, driven as an event loop drives them: sleep on the fds, drain, look.
#pragma once

#include <poll.h>

#include <chrono>
#include <deque>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "core/engine.h"
#include "host_support.h"
#include "transports/host/host_transport.h"

namespace hixl_aio::test {

using host::LinkKind;

inline double seconds_since(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

inline host::HostConfig config_of(std::initializer_list<LinkKind> links, const std::string& name = "node") {
  host::HostConfig config;
  config.name = name;
  config.max_regions = 4096;
  config.inline_nbytes = 64U << 10U;
  for (const LinkKind link : links) {
    config.links.add(link);
  }
  return config;
}

inline const std::initializer_list<LinkKind> every_link = {LinkKind::inproc, LinkKind::shm, LinkKind::cma,
                                                           LinkKind::cooperative};

// One engine and everything that came out of it, in order.
class Node final : public DrainSink {
 public:
  explicit Node(host::HostConfig config, const std::string& bind = "127.0.0.1:0", std::uint32_t operations = 1024) {
    auto owned = std::make_unique<host::HostTransport>(std::move(config));
    transport_ = owned.get();
    engine_ = std::make_unique<Engine>(EngineConfig{operations}, std::move(owned));
    status = engine_->start(bind, address, error);
    nodes().push_back(this);
  }
  explicit Node(std::initializer_list<LinkKind> links) : Node(config_of(links)) { REQUIRE(ok(status)); }
  ~Node() {
    std::erase(nodes(), this);
    engine_.reset();
  }
  Node(const Node&) = delete;
  Node& operator=(const Node&) = delete;

  Status status = Status::ok;
  std::string error;
  std::string address;
  std::map<Token, CompletionRecord> records;
  std::map<Token, std::vector<RunState>> states;
  std::vector<Event> events;
  std::vector<SignalRecord> signals;
  std::vector<std::string> log;  // "c<token>", "s<peer>/<name>", "e<kind>/<peer or token>"

  Engine& engine() { return *engine_; }
  Transport& transport() { return *transport_; }
  host::HostTransport& host() { return *transport_; }
  void destroy() { engine_.reset(); }
  [[nodiscard]] Token token() { return ++tokens(); }

  // ---- waiting: every engine of this process is drained meanwhile.
  template <typename Condition>
  static bool until(Condition condition, double seconds = 10) {
    const auto start = std::chrono::steady_clock::now();
    for (;;) {
      if (condition()) {
        order();
        return true;
      }
      const double left = seconds - seconds_since(start);
      if (left <= 0) {
        return false;
      }
      std::vector<pollfd> fds;
      for (Node* node : nodes()) {
        fds.push_back({node->engine_ ? node->engine_->fd() : -1, POLLIN, 0});
      }
      // Conditions may be about what is not an engine: look again now and then.
      ::poll(fds.data(), fds.size(), static_cast<int>(std::min(left, 0.02) * 1000) + 1);
      pump();
    }
  }

  // Takes the lock of every region table: what the service threads did happens before what we do next, and the other
  // way round. Without a word to the thread sanitizer it would not know: two mappings of one memory are two memories to
  // it.
  static void order() {
    for (Node* node : nodes()) {
      if (node->engine_) {
        (void)node->host().region_count();
      }
    }
  }
  // One look at every engine.
  static void pump() {
    for (Node* node : std::vector<Node*>(nodes())) {
      if (node->engine_) {
        node->engine_->drain(*node, 256);
      }
    }
  }

  // ---- control plane
  const Event* find(EventKind kind, Token wanted) const {
    for (const Event& event : events) {
      if (event.kind == kind && event.token == wanted) {
        return &event;
      }
    }
    return nullptr;
  }
  const Event* find_peer(EventKind kind, PeerId peer) const {
    for (const Event& event : events) {
      if (event.kind == kind && event.peer == peer) {
        return &event;
      }
    }
    return nullptr;
  }
  Event answer(EventKind kind, Token wanted, double seconds = 10) {
    if (!until([&] { return find(kind, wanted) != nullptr; }, seconds)) {
      fail(__FILE__, __LINE__, "no answer to the request of kind " + std::to_string(static_cast<int>(kind)));
      Event none;
      none.status = Status::internal;
      return none;
    }
    return *find(kind, wanted);
  }
  Token begin_connect(const std::string& to, double timeout = 5) {
    const Token mine = token();
    transport().connect(mine, to, timeout);
    return mine;
  }
  Event connect(const std::string& to, double timeout = 5) {
    return answer(EventKind::connected, begin_connect(to, timeout), timeout + 5);
  }
  Event look(const std::string& at, double timeout = 5) {
    const Token mine = token();
    host().look(mine, at, timeout);
    return answer(EventKind::looked, mine, timeout + 5);
  }
  // The peer, or the end of the test.
  PeerId connected(const std::string& to) {
    const Event event = connect(to);
    if (!ok(event.status)) {
      give_up(("cannot connect: " + event.text).c_str());
    }
    return event.peer;
  }
  PeerId connected(const Node& to) { return connected(to.address); }
  // The peer that the other engine is here; waits for its announcement.
  PeerId peer_of(const Node& other) {
    PeerId found = 0;
    REQUIRE(until([&] {
      for (const Event& event : events) {
        PeerInfo info;
        if ((event.kind == EventKind::accepted || event.kind == EventKind::connected) && event.peer != 0 &&
            transport().peer_info(event.peer, info) && info.incarnation == other.transport_->incarnation() &&
            info.state == PeerState::connected) {
          found = event.peer;
        }
      }
      return found != 0;
    }));
    return found;
  }
  PeerInfo info(PeerId peer) {
    PeerInfo out;
    CHECK(transport().peer_info(peer, out));
    return out;
  }
  Status disconnect(PeerId peer) {
    const Token mine = token();
    transport().disconnect(mine, peer, false);
    return answer(EventKind::disconnected, mine).status;
  }
  RegionInfo allocate(std::uint64_t nbytes, Access access = Access::read_write, const std::string& label = {}) {
    const Token mine = token();
    transport().allocate(mine, RegionSpec{nbytes, nullptr, MemoryKind::shared, access, label});
    const Event event = answer(EventKind::allocated, mine);
    if (!ok(event.status)) {
      give_up(("cannot allocate: " + event.text).c_str());
    }
    return event.region;
  }
  RegionInfo add(std::byte* at, std::uint64_t nbytes, Access access = Access::read_write,
                 const std::string& label = {}) {
    const Token mine = token();
    transport().register_memory(mine, RegionSpec{nbytes, at, MemoryKind::host, access, label});
    const Event event = answer(EventKind::allocated, mine);
    if (!ok(event.status)) {
      give_up(("cannot register: " + event.text).c_str());
    }
    return event.region;
  }
  Event close_region(std::uint32_t region, double timeout = 5) {
    const Token mine = token();
    transport().close_region(mine, region, timeout);
    return answer(EventKind::region_closed, mine, timeout + 5);
  }
  Status refresh(PeerId peer) {
    const Token mine = token();
    transport().refresh(mine, peer);
    return answer(EventKind::refreshed, mine).status;
  }
  // Knows of the other side's region of that label.
  RegionInfo remote(PeerId peer, const std::string& label) {
    RegionInfo out;
    if (!until([&] { return transport().find_region(peer, label, out); })) {
      give_up(("no region " + label).c_str());
    }
    return out;
  }
  void shut_down() {
    const Token mine = token();
    engine_->begin_shutdown(mine);
    (void)answer(EventKind::shutdown, mine);
  }

  // ---- data plane
  static Run run(std::byte* local, const RegionInfo& remote, std::uint64_t offset, std::uint64_t nbytes,
                 Direction direction = Direction::put) {
    Run out;
    out.local = local;
    out.remote_offset = offset;
    out.nbytes = nbytes;
    out.region = remote.region;
    out.generation = remote.generation;
    out.direction = direction;
    return out;
  }
  struct Posted {
    Token token = 0;
    OpHandle handle = 0;
    Status status = Status::ok;  // of the submission
  };
  Posted post(PeerId peer, const std::vector<Run>& runs, const char* signal = nullptr) {
    Op* op = engine_->acquire();
    if (op == nullptr) {
      return {0, 0, Status::queue_full};
    }
    Posted out;
    out.token = op->token = token();
    out.handle = op->handle;
    op->peer = peer;
    op->kind = runs.size() > 1 ? OpKind::batch : static_cast<OpKind>(runs.empty() ? Direction::put : runs[0].direction);
    op->runs = runs;
    order();
    if (signal != nullptr) {
      CHECK(ok(transport().reserve_signal(peer)));
      op->signal.present = true;
      op->signal.name = signal;
      op->signal.payload = "bound";
    }
    out.status = engine_->submit(*op);
    return out;
  }
  CompletionRecord wait(Token wanted, double seconds = 20) {
    if (!until([&] { return records.contains(wanted); }, seconds)) {
      fail(__FILE__, __LINE__, "an operation does not end");
      CompletionRecord none;
      none.status = Status::internal;
      return none;
    }
    return records.at(wanted);
  }
  Status transfer(PeerId peer, const std::vector<Run>& runs, const char* signal = nullptr) {
    const Posted posted = post(peer, runs, signal);
    return ok(posted.status) ? wait(posted.token).status : posted.status;
  }
  Status signal(PeerId peer, const std::string& name, const std::string& payload = {}) {
    return transport().send_signal(peer, name, payload, Status::ok, false);
  }
  std::size_t signals_named(const std::string& name) const {
    std::size_t count = 0;
    for (const SignalRecord& each : signals) {
      count += each.name == name ? 1 : 0;
    }
    return count;
  }
  bool arrives(const std::string& name, std::size_t count = 1) {
    return until([&] { return signals_named(name) >= count; });
  }

  // ---- DrainSink
  void take(const SignalRecord& record) override {
    signals.push_back(record);
    log.push_back("s" + std::to_string(record.peer) + "/" + record.name);
    if (take_signals) {
      transport().signals_taken(record.peer, 1);
    }
  }
  void complete(const CompletionRecord& record, const Op& op) override {
    if (!records.emplace(record.token, record).second) {
      fail(__FILE__, __LINE__, "a second record of one operation");
    }
    log.push_back("c" + std::to_string(record.token));
    auto& out = states[record.token];
    for (const Run& each : op.runs) {
      out.push_back(each.state);
    }
  }
  void event(Event&& event) override {
    if (event.kind == EventKind::peer_down && forget_peers) {
      transport().forget_peer(event.peer);
    }
    log.push_back("e" + std::to_string(static_cast<int>(event.kind)) + "/" + std::to_string(event.peer));
    events.push_back(std::move(event));
  }
  [[nodiscard]] std::size_t position(const std::string& entry) const {
    for (std::size_t i = 0; i < log.size(); ++i) {
      if (log[i] == entry) {
        return i;
      }
    }
    return log.size();
  }
  bool take_signals = true;
  bool forget_peers = true;

 private:
  static std::vector<Node*>& nodes() {
    static std::vector<Node*> all;
    return all;
  }
  static Token& tokens() {
    static Token last = 0;
    return last;
  }
  std::unique_ptr<Engine> engine_;
  host::HostTransport* transport_ = nullptr;
};

inline std::string peer_down_entry(PeerId peer) {
  return "e" + std::to_string(static_cast<int>(EventKind::peer_down)) + "/" + std::to_string(peer);
}

}  // namespace hixl_aio::test
