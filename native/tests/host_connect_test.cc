// Connecting: every address that answers well, badly or not at all, both sides at once, ourselves, and strangers at the
// door.
#include <sys/resource.h>
#include <sys/wait.h>

#include "host_strangers.h"

namespace hixl_aio::host {
namespace {

using test::Bytes;
using test::FakeServer;
using test::Leftovers;
using test::Node;
using test::Stranger;

std::string link_names(const PeerInfo& info) {
  std::string out;
  for (const LinkInfo& link : info.route) {
    out += (out.empty() ? "" : "+") + link.name;
    CHECK(!link.reason.empty());
  }
  return out;
}

bool contains(const std::string& text, const std::string& part) {
  if (text.find(part) != std::string::npos) {
    return true;
  }
  std::fprintf(stderr, "    '%s' has no '%s'\n", text.c_str(), part.c_str());
  return false;
}

std::size_t connected_peers(Node& node) {
  std::size_t count = 0;
  for (PeerId peer = 1; peer < 2000; ++peer) {
    PeerInfo info;
    count += node.transport().peer_info(peer, info) && info.state == PeerState::connected ? 1 : 0;
  }
  return count;
}

// A signal there and back.
bool usable(Node& a, PeerId at_a, Node& b, PeerId at_b) {
  static int number = 0;
  const std::string name = "ping" + std::to_string(++number);
  return ok(a.signal(at_a, name)) && ok(b.signal(at_b, name)) && a.arrives(name) && b.arrives(name);
}

// ---- the ordinary case

TEST("a connection is one peer on each side, with name, address, incarnation, pid and route of the other") {
  const Leftovers before;
  for (const char* where : {"127.0.0.1:0", "[::1]:0", "unix:hixl-aio-connect-test"}) {
    Node a(test::config_of(test::every_link, "a"), where);
    if (!ok(a.status)) {
      CHECK(std::string(where).find("::1") != std::string::npos);  // a machine without IPv6
      continue;
    }
    Node b(test::config_of(test::every_link, "b"));
    const PeerId at_b = b.connected(a);
    const PeerId at_a = a.peer_of(b);
    const PeerInfo of_a = b.info(at_b);
    const PeerInfo of_b = a.info(at_a);
    CHECK_EQ(of_a.name, "a");
    CHECK_EQ(of_b.name, "b");
    CHECK_EQ(of_a.address, a.address);
    CHECK_EQ(of_b.address, b.address);
    CHECK_EQ(of_a.incarnation, a.host().incarnation());
    CHECK_EQ(of_a.pid, ::getpid());
    CHECK_EQ(link_names(of_a), "inproc");
    CHECK_EQ(link_names(of_b), "inproc");
    CHECK_EQ(a.events.size(), 1U);
    CHECK(usable(a, at_a, b, at_b));
  }
  CHECK(before.none());
}

TEST("a connection costs five descriptors on each side, however much memory is announced over it") {
  Node a(test::every_link);
  Node b({LinkKind::cma});
  for (int i = 0; i < 100; ++i) {
    a.allocate(1000);
  }
  const std::size_t before = test::entries("/proc/self/fd");
  (void)b.connected(a);
  (void)a.peer_of(b);
  CHECK_EQ(test::entries("/proc/self/fd") - before, 10U);
}

TEST("an engine with 100000 regions is connected to, and knows each of them by its label") {
  HostConfig config = test::config_of(test::every_link);
  config.max_regions = 1U << 17U;
  Node a(config);
  Node b({LinkKind::shm});
  REQUIRE(ok(a.status));
  const int count = test::sanitized ? 10'000 : 100'000;
  for (int i = 0; i < count; ++i) {
    const RegionSpec spec{100, nullptr, MemoryKind::shared, Access::read_write, "r" + std::to_string(i)};
    a.transport().allocate(a.token(), spec);
  }
  CHECK(Node::until([&] { return a.events.size() == static_cast<std::size_t>(count); }, 30));
  CHECK(ok(a.events.back().status));
  const PeerId peer = b.connected(a);
  for (const int i : {0, count / 2, count - 1}) {
    RegionInfo region;
    CHECK(b.transport().find_region(peer, "r" + std::to_string(i), region));
    std::vector<std::byte> mine(100, std::byte{1});
    CHECK_EQ(b.transfer(peer, {Node::run(mine.data(), region, 0, 100)}), Status::ok);
  }
}

TEST("the allowed links decide the route, and where none reaches the refusal names both sides' links") {
  struct Case {
    std::initializer_list<LinkKind> links;
    const char* route;
  };
  const Case cases[] = {{{LinkKind::inproc}, "inproc"},
                        {{LinkKind::shm}, "shm"},
                        {{LinkKind::cma}, "cma"},
                        {{LinkKind::cooperative}, "cooperative"},
                        {{LinkKind::shm, LinkKind::cma, LinkKind::cooperative}, "shm+cma"},
                        {{LinkKind::shm, LinkKind::cooperative}, "shm+cooperative"}};
  for (const Case& each : cases) {
    Node a(test::every_link);
    Node b(each.links);
    CHECK_EQ(link_names(b.info(b.connected(a))), each.route);
    CHECK_EQ(link_names(a.info(a.peer_of(b))), "inproc");  // each side chooses how it reaches the other
  }
  Node nothing(test::config_of({}, "nothing"));
  Node a(test::every_link);
  const Event event = nothing.connect(a.address);
  CHECK_EQ(event.status, Status::no_link);
  CHECK(contains(event.text, a.address));
  CHECK(contains(event.text, "links"));
}

TEST("a second connect, one to another spelling, and ten at once all give the same peer") {
  Node a(test::every_link);
  Node b(test::every_link);
  std::vector<Token> tokens;
  const std::string port = a.address.substr(a.address.find(':'));
  for (int i = 0; i < 10; ++i) {
    tokens.push_back(b.begin_connect(i % 2 == 0 ? a.address : "localhost" + port));
  }
  const PeerId first = b.answer(EventKind::connected, tokens[0]).peer;
  for (const Token token : tokens) {
    CHECK_EQ(b.answer(EventKind::connected, token).peer, first);
  }
  CHECK_EQ(b.connect(a.address).peer, first);
  CHECK_EQ(a.connect(b.address).peer, a.peer_of(b));  // the connection is symmetric
  CHECK_EQ(connected_peers(a), 1U);
  CHECK_EQ(connected_peers(b), 1U);
}

TEST("both sides connect at once, 300 rounds at every distance in time: one peer on each side, usable both ways") {
  Node a(test::every_link);
  Node b(test::every_link);
  for (int round = 0; round < 300; ++round) {
    // From 400 microseconds apart to none, either side first.
    const int distance = (round % 30) * 14;
    Node& first = round % 2 == 0 ? a : b;
    Node& second = round % 2 == 0 ? b : a;
    const Token one = first.begin_connect(second.address);
    for (const auto start = std::chrono::steady_clock::now();
         std::chrono::steady_clock::now() - start < std::chrono::microseconds(distance);) {
    }
    const Token two = second.begin_connect(first.address);
    const Event at_first = first.answer(EventKind::connected, one);
    const Event at_second = second.answer(EventKind::connected, two);
    if (!CHECK_EQ(at_first.status, Status::ok) || !CHECK_EQ(at_second.status, Status::ok)) {
      std::fprintf(stderr, "    round %d: %s / %s\n", round, at_first.text.c_str(), at_second.text.c_str());
      break;
    }
    CHECK_EQ(connected_peers(a), 1U);
    CHECK_EQ(connected_peers(b), 1U);
    CHECK(usable(first, at_first.peer, second, at_second.peer));
    CHECK(ok((round % 3 == 0 ? second : first).disconnect(round % 3 == 0 ? at_second.peer : at_first.peer)));
    const bool down = Node::until([&] {
      return first.find_peer(EventKind::peer_down, at_first.peer) != nullptr &&
             second.find_peer(EventKind::peer_down, at_second.peer) != nullptr;
    });
    if (!CHECK(down)) {
      break;
    }
    for (Node* node : {&a, &b}) {
      node->events.clear();
      node->signals.clear();
      node->log.clear();
    }
  }
}

TEST("three new engines that all connect to each other at once have two peers each, 30 times") {
  for (int round = 0; round < 30; ++round) {
    Node nodes[] = {Node(test::every_link), Node(test::every_link), Node(test::every_link)};
    std::vector<std::pair<Node*, Token>> tokens;
    for (Node& from : nodes) {
      for (Node& to : nodes) {
        if (&from != &to) {
          tokens.emplace_back(&from, from.begin_connect(to.address));
        }
      }
    }
    for (const auto& [node, token] : tokens) {
      CHECK_EQ(node->answer(EventKind::connected, token).status, Status::ok);
    }
    for (Node& node : nodes) {
      CHECK_EQ(connected_peers(node), 2U);
    }
  }
}

TEST("the loser of a tie does not wait for a winner who gave up") {
  for (int round = 0; round < 20; ++round) {
    Node a(test::every_link);
    Node b(test::every_link);
    // One of them is the winner whatever their incarnations are; its attempt ends before it can succeed, or does not.
    Node& hasty = round % 2 == 0 ? a : b;
    Node& patient = round % 2 == 0 ? b : a;
    const Token short_one = hasty.begin_connect(patient.address, 0.0004);
    const Token long_one = patient.begin_connect(hasty.address, 5);
    CHECK_EQ(patient.answer(EventKind::connected, long_one).status, Status::ok);
    const Status status = hasty.answer(EventKind::connected, short_one).status;
    CHECK(status == Status::ok || status == Status::timed_out);
    // Whoever gave up may have taken the new connection down; the next one stands.
    const PeerId peer = patient.connected(hasty);
    CHECK(peer != 0);
    CHECK(connected_peers(patient) == 1 || Node::until([&] { return patient.find_peer(EventKind::peer_down, peer); }));
  }
}

// ---- ourselves

TEST("an engine connects to itself over each link, signals itself, and has one peer for it") {
  const Leftovers before;
  for (const LinkKind link : test::every_link) {
    Node a(test::config_of({link}), link == LinkKind::cma ? "unix:to-itself" : "127.0.0.1:0");
    REQUIRE(ok(a.status));
    std::vector<std::byte> memory(1000);
    a.add(memory.data(), memory.size(), Access::read_write, "own");
    const RegionInfo shared = a.allocate(1000, Access::read_write, "shared");
    const Token one = a.begin_connect(a.address);
    const Token two = a.begin_connect(a.address);
    const Event event = a.answer(EventKind::connected, one);
    CHECK_EQ(event.status, Status::ok);
    CHECK_EQ(a.answer(EventKind::connected, two).peer, event.peer);
    CHECK_EQ(a.connect(a.address).peer, event.peer);
    CHECK_EQ(connected_peers(a), 2U);  // the inner half is known by number, not by name
    CHECK(ok(a.signal(event.peer, "to myself")));
    CHECK(a.arrives("to myself"));
    REQUIRE(!a.signals.empty());
    CHECK_EQ(a.signals[0].peer, event.peer);
    for (const char* label : {"own", "shared"}) {
      if (link == LinkKind::shm && label[0] == 'o') {
        continue;
      }
      auto from = test::pattern(1000, static_cast<std::uint64_t>(link));
      std::vector<std::byte> back(1000);
      const RegionInfo remote = a.remote(event.peer, label);
      CHECK_EQ(a.transfer(event.peer, {Node::run(from.data(), remote, 0, 1000)}), Status::ok);
      CHECK_EQ(a.transfer(event.peer, {Node::run(back.data(), remote, 0, 1000, Direction::get)}), Status::ok);
      CHECK(test::same(label[0] == 'o' ? memory.data() : shared.address, from.data(), 1000));
      CHECK(back == from);
    }
    CHECK_EQ(a.events.size(), 5U);  // no announcement of the inner half
    CHECK(ok(a.disconnect(event.peer)));
    CHECK(Node::until([&] { return a.find_peer(EventKind::peer_down, event.peer) != nullptr; }));
    CHECK(Node::until([&] { return a.host().peer_count() == 0; }));
    const Event again = a.connect(a.address);
    CHECK_EQ(again.status, Status::ok);
    CHECK(again.peer != event.peer);
    CHECK(ok(a.signal(again.peer, "again")));
    CHECK(a.arrives("again"));
  }
  CHECK(before.none());
}

TEST("signals to ourselves that were sent before the end arrive before the news of the end, and none after") {
  Node a({LinkKind::inproc});
  for (int round = 0; round < 50; ++round) {
    a.log.clear();
    a.events.clear();
    a.signals.clear();
    const PeerId self = a.connected(a.address);
    for (int i = 0; i < 20; ++i) {
      CHECK(ok(a.signal(self, "last words")));
    }
    a.transport().disconnect(a.token(), self, false);
    CHECK(Node::until([&] { return a.find_peer(EventKind::peer_down, self) != nullptr; }));
    CHECK_EQ(a.signals_named("last words"), 20U);
    CHECK_EQ(a.position(test::peer_down_entry(self)) > a.position("s" + std::to_string(self) + "/last words"), true);
    Node::until([] { return false; }, 0.002);
    CHECK_EQ(a.signals_named("last words"), 20U);
  }
}

// ---- nobody, or somebody else, answers

TEST("where nobody listens the failure is immediate, names the address and asks the right question") {
  const Leftovers before;
  {
    Node a(test::every_link);
    std::string dead;
    test::listening("127.0.0.1:0", dead).reset();
    for (const std::string& address : {dead, std::string("unix:nobody-is-here")}) {
      const auto start = std::chrono::steady_clock::now();
      const Event event = a.connect(address);
      CHECK_EQ(event.status, Status::connect_failed);
      CHECK(contains(event.text, address));
      CHECK(contains(event.text, "is an engine running there?"));
      CHECK(test::seconds_since(start) < 1);
    }
    CHECK_EQ(a.connect("127.0.0.1:0").status, Status::invalid_argument);
    CHECK_EQ(a.connect("10.0.0.1:5").status, Status::unsupported);
    CHECK_EQ(a.connect("nonsense").status, Status::invalid_argument);
    CHECK_EQ(a.connect("").status, Status::invalid_argument);
  }
  CHECK(before.none());
}

TEST("a server of another kind is refused at its first words, though it keeps the connection open") {
  for (const std::string& words : {std::string("SSH-2.0-OpenSSH_9.2p1 Debian\r\n"), std::string("220 mail\r\n"),
                                   std::string(4096, 'x'), std::string("\0HIXLAIX garbage", 16)}) {
    std::vector<UniqueFd> open;
    FakeServer server("127.0.0.1:0", [&](UniqueFd socket) {
      (void)!::send(socket.get(), words.data(), words.size(), MSG_NOSIGNAL);
      open.push_back(std::move(socket));
    });
    Node a(test::every_link);
    const auto start = std::chrono::steady_clock::now();
    const Event event = a.connect(server.address, 5);
    CHECK_EQ(event.status, Status::handshake_refused);
    CHECK(contains(event.text, server.address));
    CHECK(contains(event.text, "does not speak the hixl-aio protocol"));
    CHECK(test::seconds_since(start) < 1);
  }
}

TEST("a server of another wire version is refused with both versions, over TCP and over a unix name") {
  Greeting greeting;
  greeting.version = 77;
  greeting.host_id = test::this_host();
  greeting.control_socket = "nowhere";
  for (const char* where : {"127.0.0.1:0", "unix:another-version"}) {
    std::vector<UniqueFd> open;
    FakeServer server(where, [&](UniqueFd socket) {
      (void)send_frame(socket.get(), greeting.encode(), {});
      open.push_back(std::move(socket));
    });
    Node a(test::every_link);
    const auto start = std::chrono::steady_clock::now();
    const Event event = a.connect(server.address, 5);
    CHECK_EQ(event.status, Status::handshake_refused);
    CHECK(contains(event.text, server.address + ": wire version: ours 1, theirs 77"));
    CHECK(test::seconds_since(start) < 1);
  }
}

TEST("a server on another host is refused with both boot ids") {
  Greeting greeting;
  greeting.host_id = "another-boot";
  greeting.control_socket = "nowhere";
  FakeServer server("127.0.0.1:0", [&](UniqueFd socket) { (void)send_frame(socket.get(), greeting.encode(), {}); });
  Node a(test::every_link);
  const Event event = a.connect(server.address, 5);
  CHECK_EQ(event.status, Status::unsupported);
  CHECK(contains(event.text, "another-boot"));
  CHECK(contains(event.text, test::this_host()));
}

TEST("a greeting that comes byte by byte is understood, one that ends early is refused") {
  Node real(test::every_link);
  Stranger probe;
  REQUIRE(probe.dial(real.address));
  Greeting greeting = probe.greeting;
  greeting.control_socket = "hixl-aio/control/" + real.host().incarnation();
  const Bytes whole = greeting.encode();
  for (const std::size_t size :
       {whole.size(), whole.size() - 1, std::size_t{12}, std::size_t{11}, std::size_t{3}, std::size_t{0}}) {
    FakeServer server("127.0.0.1:0", [&](UniqueFd socket) {
      for (std::size_t i = 0; i < size; ++i) {
        (void)!::send(socket.get(), &whole[i], 1, MSG_NOSIGNAL);
        if (i % 8 == 0) {
          std::this_thread::yield();
        }
      }
    });
    Node a(test::every_link);
    const Event event = a.connect(server.address, 5);
    CHECK_EQ(event.status, size == whole.size() ? Status::ok : Status::handshake_refused);
  }
}

// Each of several connects ends by its own clock.
void expect_timeouts(Node& a, const std::string& address) {
  const auto start = std::chrono::steady_clock::now();
  const Token slow = a.begin_connect(address, 0.8);
  const Token quick = a.begin_connect(address, 0.15);
  const Event first = a.answer(EventKind::connected, quick);
  CHECK_EQ(first.status, Status::timed_out);
  CHECK(contains(first.text, address));
  CHECK(contains(first.text, "0.15"));
  CHECK(test::seconds_since(start) > 0.14);
  CHECK(a.find(EventKind::connected, slow) == nullptr);
  const Event second = a.answer(EventKind::connected, slow);
  CHECK_EQ(second.status, Status::timed_out);
  const double later = test::seconds_since(start);
  CHECK(later > 0.79 && later < 2);
}

TEST("a listener that never accepts, or accepts and is silent, times out, each call after its own time") {
  const Leftovers before;
  {
    Node a(test::every_link);
    std::string address;
    UniqueFd silent = test::listening("127.0.0.1:0", address);
    expect_timeouts(a, address);
    UniqueFd unix_silent = test::listening("unix:silent", address);
    expect_timeouts(a, address);
    UniqueFd full = test::listening("unix:full", address, 0);  // connect says EAGAIN when the backlog is full
    Stranger filler[3];
    for (Stranger& each : filler) {
      each.socket.reset(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
      Address parsed;
      std::string error;
      REQUIRE(ok(parse_address(address, parsed, error)));
      (void)!::connect(each.socket.get(), reinterpret_cast<sockaddr*>(&parsed.storage), parsed.length);
    }
    expect_timeouts(a, address);
  }
  CHECK(before.none());
}

TEST("an engine that stops in the middle of the handshake times out at every step of it") {
  const Leftovers before;
  for (const int steps : {0, 1, 2}) {  // nothing, the greeting, the greeting and the welcome
    std::vector<std::unique_ptr<Stranger>> strangers;
    FakeServer server("unix:stops-in-the-middle", [&](UniqueFd socket) {
      strangers.push_back(std::make_unique<Stranger>());
      Stranger& us = *strangers.back();
      us.socket = std::move(socket);
      Greeting greeting;
      greeting.incarnation = us.incarnation;
      greeting.host_id = test::this_host();
      if (steps > 0) {
        us.send(greeting.encode());
      }
      Frame frame;
      if (steps > 1 && us.receive(frame)) {
        us.send(us.hello().encode(FrameType::welcome), us.fds());
      }
    });
    Node a(test::every_link);
    expect_timeouts(a, server.address);
    CHECK(Node::until([&] { return connected_peers(a) == 0; }));
    CHECK_EQ(a.events.size(), 2U);
    // And if the rest comes late, it is too late.
    server.stop();
    for (const auto& each : strangers) {
      each->send(Stranger::only(FrameType::directory_end));
    }
    Node::until([] { return false; }, 0.05);
    CHECK_EQ(a.events.size(), 2U);
  }
  CHECK(before.none());
}

TEST("answers that no engine gives end the attempt at once, and leave nothing behind") {
  const Leftovers before;
  struct Case {
    const char* name;
    std::function<void(Stranger&)> answer;
    Status status;
  };
  const auto refuse = [](std::uint8_t kind, std::int32_t status, const std::string& text) {
    Writer writer;
    writer.type(FrameType::refuse).put(kind).put(status).text(text, kMaxText);
    return writer;
  };
  const Case cases[] = {
      {"the end", [](Stranger& s) { s.socket.reset(); }, Status::connect_failed},
      {"noise", [](Stranger& s) { s.send(test::bytes_of("noise")); }, Status::handshake_refused},
      {"a hello instead of a welcome", [](Stranger& s) { s.send(s.hello().encode(FrameType::hello), s.fds()); },
       Status::handshake_refused},
      {"another incarnation than it greeted with",
       [](Stranger& s) {
         Hello hello = s.hello();
         hello.incarnation[0] = static_cast<std::uint8_t>(hello.incarnation[0] + 1);
         s.send(hello.encode(FrameType::welcome), s.fds());
       },
       Status::handshake_refused},
      {"no descriptors", [](Stranger& s) { s.send(s.hello().encode(FrameType::welcome)); }, Status::handshake_refused},
      {"one descriptor too few",
       [](Stranger& s) {
         auto fds = s.fds();
         fds.pop_back();
         s.send(s.hello().encode(FrameType::welcome), fds);
       },
       Status::handshake_refused},
      {"the descriptors in another order",
       [](Stranger& s) {
         auto fds = s.fds();
         std::swap(fds[0], fds[1]);
         s.send(s.hello().encode(FrameType::welcome), fds);
       },
       Status::handshake_refused},
      {"a pipe instead of an eventfd",
       [](Stranger& s) {
         int ends[2] = {-1, -1};
         REQUIRE(::pipe2(ends, O_CLOEXEC) == 0);
         auto fds = s.fds();
         fds[2] = ends[1];
         s.send(s.hello().encode(FrameType::welcome), fds);
         ::close(ends[0]);
         ::close(ends[1]);
       },
       Status::handshake_refused},
      {"an eventfd that blocks",
       [](Stranger& s) {
         const UniqueFd blocking(::eventfd(0, EFD_CLOEXEC));
         auto fds = s.fds();
         fds[4] = blocking.get();
         s.send(s.hello().encode(FrameType::welcome), fds);
       },
       Status::handshake_refused},
      {"a place beyond the doorbell page",
       [](Stranger& s) {
         Hello hello = s.hello();
         hello.doorbell_place = kDoorbellPlaces;
         s.send(hello.encode(FrameType::welcome), s.fds());
       },
       Status::handshake_refused},
      {"a refusal with a reason",
       [&](Stranger& s) { s.send(refuse(0, static_cast<std::int32_t>(Status::resource_exhausted), "full")); },
       Status::resource_exhausted},
      {"a refusal that says ok", [&](Stranger& s) { s.send(refuse(0, 0, "")); }, Status::handshake_refused},
      {"a refusal with a status that nobody knows", [&](Stranger& s) { s.send(refuse(0, 4711, "odd")); },
       Status::failed},
      {"a refusal that is too short", [](Stranger& s) { s.send(Stranger::only(FrameType::refuse)); },
       Status::handshake_refused},
  };
  for (const Case& each : cases) {
    std::vector<std::unique_ptr<Stranger>> strangers;
    FakeServer server("unix:answers-oddly", [&](UniqueFd socket) {
      strangers.push_back(std::make_unique<Stranger>());
      Stranger& us = *strangers.back();
      us.socket = std::move(socket);
      Greeting greeting;
      greeting.incarnation = us.incarnation;
      greeting.host_id = test::this_host();
      us.send(greeting.encode());
      Frame frame;
      if (us.receive(frame)) {
        each.answer(us);
      }
    });
    Node a(test::every_link);
    const auto start = std::chrono::steady_clock::now();
    const Event event = a.connect(server.address, 5);
    if (!CHECK_EQ(event.status, each.status)) {
      std::fprintf(stderr, "    %s: %s\n", each.name, event.text.c_str());
    }
    CHECK(contains(event.text, server.address));
    CHECK(test::seconds_since(start) < 2);
  }
  CHECK(before.none());
}

// ---- binding

TEST("an address that is taken, not ours to bind or malformed is refused at the start, and leaves nothing") {
  const Leftovers before;
  {
    Node a(test::every_link);
    CHECK(!a.address.ends_with(":0"));
    Node same(test::config_of(test::every_link), a.address);
    CHECK_EQ(same.status, Status::address_in_use);
    CHECK(contains(same.error, a.address));
    Node name(test::config_of(test::every_link), "unix:taken");
    CHECK(ok(name.status));
    Node again(test::config_of(test::every_link), "unix:taken");
    CHECK_EQ(again.status, Status::address_in_use);
    Node wide(test::config_of(test::every_link), "0.0.0.0:0");
    CHECK_EQ(wide.status, Status::unsupported);
    Node nonsense(test::config_of(test::every_link), "nonsense");
    CHECK_EQ(nonsense.status, Status::invalid_argument);
    for (Node* failed : {&same, &again, &wide, &nonsense}) {
      CHECK(!failed->engine().drain(*failed, 10));  // a start that failed leaves an object that may still be asked
    }
  }
  Node reused(test::config_of(test::every_link), "unix:taken");
  CHECK(ok(reused.status));
  reused.destroy();
  CHECK(before.none());
}

TEST("with no descriptor left at any point of the start it fails with a reason and leaves nothing") {
  const Leftovers before;
  rlimit old{};
  REQUIRE(::getrlimit(RLIMIT_NOFILE, &old) == 0);
  bool started = false;
  for (rlim_t more = 0; more < 20 && !started; ++more) {
    rlimit low = old;
    low.rlim_cur = before.fds - 3 + more;  // entries count ".", ".." and the directory itself
    REQUIRE(::setrlimit(RLIMIT_NOFILE, &low) == 0);
    {
      Node a(test::config_of({LinkKind::shm}));
      REQUIRE(::setrlimit(RLIMIT_NOFILE, &old) == 0);
      started = ok(a.status);
      CHECK(started || !a.error.empty());
      CHECK(started || a.status == Status::resource_exhausted || a.status == Status::connect_failed);
      a.engine().drain(a, 10);
    }
    CHECK(before.none());
  }
  CHECK(started);
}

// ---- strangers at the door

// Engine a has a good peer b throughout.
struct Door {
  Node a{test::every_link};
  Node b{{LinkKind::shm, LinkKind::cma}};
  PeerId at_b = 0;
  PeerId at_a = 0;
  std::vector<std::byte> memory = std::vector<std::byte>(4096);
  RegionInfo remote;
  Door() {
    at_b = b.connected(a);
    at_a = a.peer_of(b);
    a.add(memory.data(), memory.size(), Access::read_write, "door");
    remote = b.remote(at_b, "door");
  }
  bool unaffected() {
    auto from = test::pattern(4096, static_cast<std::uint64_t>(memory[0]) + 1);
    return CHECK_EQ(b.transfer(at_b, {Node::run(from.data(), remote, 0, 4096)}), Status::ok) && CHECK(memory == from) &&
           CHECK(usable(a, at_a, b, at_b));
  }
};

TEST("noise on the TCP port and on the control socket leaves the engine and its peers as they were") {
  const Leftovers before;
  {
    Door door;
    std::mt19937_64 random(1);
    Address parsed;
    std::string error;
    REQUIRE(ok(parse_address(door.a.address, parsed, error)));
    for (int i = 0; i < 200; ++i) {
      const UniqueFd tcp(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
      if (::connect(tcp.get(), reinterpret_cast<sockaddr*>(&parsed.storage), parsed.length) == 0) {
        const std::string noise(random() % 5000, static_cast<char>(random()));
        (void)!::send(tcp.get(), noise.data(), noise.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
      }
    }
    for (int i = 0; i < 300; ++i) {
      Stranger s;
      REQUIRE(s.dial(door.a.address));
      Bytes noise(random() % 3000 + 1);
      for (std::byte& byte : noise) {
        byte = static_cast<std::byte>(random());
      }
      s.send(noise, random() % 2 == 0 ? s.fds() : std::vector<int>{});
      if (i % 3 == 0) {
        CHECK(s.ended());
      }
    }
    CHECK(door.unaffected());
    CHECK_EQ(connected_peers(door.a), 1U);
  }
  CHECK(before.none());
}

TEST("introductions that are nearly right are refused with a reason, or give an ordinary peer") {
  const Leftovers before;
  {
    Door door;
    std::mt19937_64 random(2);
    int welcomed = 0;
    for (int i = 0; i < 500; ++i) {
      Stranger s;
      REQUIRE(s.dial(door.a.address));
      Bytes hello = s.hello().encode(FrameType::hello);
      for (std::size_t n = 1 + random() % 2; n > 0; --n) {
        const std::size_t at = random() % hello.size();
        random() % 4 == 0 ? hello.resize(at + 1) : void(hello[at] = static_cast<std::byte>(random()));
      }
      auto fds = s.fds();
      if (random() % 4 == 0) {
        std::swap(fds[random() % fds.size()], fds[random() % fds.size()]);
      }
      s.send(hello, fds);
      Frame frame;
      if (CHECK(s.receive(frame))) {
        welcomed += Stranger::type(frame) == FrameType::welcome ? 1 : 0;
        CHECK(Stranger::type(frame) == FrameType::welcome || Stranger::type(frame) == FrameType::refuse);
      }
    }
    CHECK(welcomed > 0);
    CHECK(door.unaffected());
    CHECK(Node::until([&] { return connected_peers(door.a) == 1; }));
  }
  CHECK(before.none());
}

// One random frame, of a kind that a peer may send, often nearly right.
Bytes random_frame(std::mt19937_64& random) {
  Writer writer;
  switch (random() % 8) {
    case 0: {
      RegionFrame region;
      region.region = static_cast<std::uint32_t>(random() % 70);
      region.generation = static_cast<std::uint32_t>(random() % 3);
      region.kind = static_cast<MemoryKind>(random() % 3);
      region.access = static_cast<Access>(random() % 4);
      region.segment = static_cast<std::uint32_t>(random() % 3);
      region.segment_offset = random() % 3 == 0 ? random() : random() % 8192;
      region.nbytes = random() % 3 == 0 ? random() : random() % 8192;
      region.address = random();
      region.label = std::string(random() % 3, 'x');
      writer.type(FrameType::regions).put(static_cast<std::uint16_t>(random() % 3));
      region.encode(writer);
      break;
    }
    case 1:
      writer.type(FrameType::segment)
          .put(static_cast<std::uint32_t>(random() % 3))
          .put(static_cast<std::uint8_t>(random() % 4));
      writer.put(random() % 2 == 0 ? random() : std::uint64_t{8192});
      break;
    case 2:
      writer.type(FrameType::region_gone)
          .put(static_cast<std::uint32_t>(random() % 70))
          .put(static_cast<std::uint32_t>(random() % 3));
      break;
    case 3:
      writer.type(FrameType::segment_gone).put(static_cast<std::uint32_t>(random() % 3));
      break;
    case 4:
      writer.type(FrameType::sync).put(random());
      break;
    case 5:
      writer.type(FrameType::sync_ack).put(random() % 3);
      break;
    case 6:
      writer.type(static_cast<FrameType>(random() % 14));
      break;
    default:
      for (std::size_t n = random() % 50 + 1; n > 0; --n) {
        writer.put(static_cast<std::uint8_t>(random()));
      }
  }
  Bytes bytes = writer.bytes();
  if (random() % 10 == 0) {
    bytes.resize(random() % bytes.size() + 1);
  }
  return bytes;
}

TEST("a peer that introduces itself well and goes on with random frames is ended; the engine and the others live") {
  const Leftovers before;
  {
    Door door;
    std::mt19937_64 random(3);
    for (int i = 0; i < 200; ++i) {
      Stranger s;
      REQUIRE(s.dial(door.a.address));
      REQUIRE(s.send(s.hello().encode(FrameType::hello), s.fds()));
      Frame frame;
      REQUIRE(s.receive(frame) && Stranger::type(frame) == FrameType::welcome);
      if (i % 2 == 0) {
        s.send(Stranger::only(FrameType::directory_end));
      }
      Status status = Status::ok;
      std::string error;
      const auto segment = Segment::create(1, SegmentClass::writable, 8192, status, error);
      for (int n = 0; n < 100; ++n) {
        if (!s.send(random_frame(random), random() % 3 == 0 ? std::vector<int>{segment->fd()} : std::vector<int>{})) {
          break;
        }
      }
      Node::pump();
    }
    CHECK(door.unaffected());
    CHECK(Node::until([&] { return connected_peers(door.a) == 1; }));
    // Every peer that was announced is taken back.
    std::size_t accepted = 0;
    std::size_t down = 0;
    CHECK(Node::until([&] {
      accepted = down = 0;
      for (const Event& event : door.a.events) {
        accepted += event.kind == EventKind::accepted ? 1 : 0;
        down += event.kind == EventKind::peer_down ? 1 : 0;
      }
      return accepted == down + 1;
    }));
    CHECK(accepted >= 50);
  }
  CHECK(before.none());
}

TEST("a thousand half-open connections are turned away or time out, and a good one gets through meanwhile") {
  const Leftovers before;
  {
    Door door;
    std::vector<std::unique_ptr<Stranger>> strangers;
    for (int i = 0; i < 900; ++i) {
      strangers.push_back(std::make_unique<Stranger>());
      strangers.back()->channel.reset();
      strangers.back()->doorbell.reset();
      strangers.back()->loop.reset();
      strangers.back()->progress.reset();
      strangers.back()->service.reset();
      REQUIRE(strangers.back()->dial(door.a.address));
    }
    CHECK(door.unaffected());
    Node late(test::every_link);
    CHECK(late.connected(door.a) != 0);
    // Three seconds of silence are enough.
    CHECK(strangers.front()->ended(6000));
    CHECK(strangers.back()->ended(6000));
  }
  CHECK(before.none());
}

TEST("another user learns nothing from us, not even a greeting, and we tell nothing to his server") {
  if (::geteuid() != 0) {
    return;  // nobody else to be
  }
  Node a(test::every_link);
  Address control;
  REQUIRE(abstract_address("hixl-aio/control/" + a.host().incarnation(), control.storage, control.length));
  int ready[2] = {-1, -1};
  REQUIRE(::pipe2(ready, O_CLOEXEC) == 0);
  const pid_t child = ::fork();
  REQUIRE(child >= 0);
  if (child == 0) {
    if (::setresuid(65534, 65534, 65534) != 0) {
      ::_exit(2);
    }
    Stranger s;
    Frame frame;
    s.socket.reset(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0));
    char learned = 'n';
    if (::connect(s.socket.get(), reinterpret_cast<sockaddr*>(&control.storage), control.length) == 0) {
      learned = s.receive(frame, 1000) ? 'y' : 'n';
    }
    // And now a server of his, under a name that anybody may take.
    std::string address;
    const UniqueFd listener = test::listening("unix:of-another-user", address);
    (void)!::write(ready[1], &learned, 1);
    s.socket.reset(::accept4(listener.get(), nullptr, nullptr, SOCK_CLOEXEC));
    Greeting greeting;
    greeting.incarnation = s.incarnation;
    greeting.host_id = test::this_host();
    s.send(greeting.encode());
    learned = s.receive(frame, 1000) ? 'y' : 'n';  // our introduction, with descriptors
    (void)!::write(ready[1], &learned, 1);
    ::_exit(0);
  }
  ::close(ready[1]);
  char learned = '?';
  CHECK(Node::until([&] { return test::readable(ready[0]); }));
  CHECK_EQ(::read(ready[0], &learned, 1), 1);
  CHECK_EQ(learned, 'n');
  const Event event = a.connect("unix:of-another-user");
  CHECK_EQ(event.status, Status::permission_denied);
  CHECK(contains(event.text, "65534") && contains(event.text, "uid 0"));
  CHECK(Node::until([&] { return test::readable(ready[0]); }));
  CHECK_EQ(::read(ready[0], &learned, 1), 1);
  CHECK_EQ(learned, 'n');
  ::close(ready[0]);
  ::waitpid(child, nullptr, 0);
}

TEST("nobody becomes an engine of this process, or this engine itself, by saying so") {
  Door door;
  Stranger spy;
  Frame frame;
  REQUIRE(spy.dial(door.a.address));
  REQUIRE(spy.send(spy.hello().encode(FrameType::hello), spy.fds()));
  REQUIRE(spy.receive(frame) && Stranger::type(frame) == FrameType::welcome);
  Hello theirs;
  REQUIRE(parse_hello(frame.bytes, FrameType::welcome, theirs));

  // We are in the engine's process, so what gives a liar away is tested from another one.
  int tell[2] = {-1, -1};
  REQUIRE(::pipe2(tell, O_CLOEXEC) == 0);
  const pid_t child = ::fork();
  REQUIRE(child >= 0);
  if (child == 0) {
    char answers[2] = {'?', '?'};
    Stranger liar;
    Frame got;
    Hello hello = liar.hello();
    hello.process = theirs.process;  // learned from its own welcome
    if (liar.dial(door.a.address) && liar.send(hello.encode(FrameType::hello), liar.fds()) && liar.receive(got)) {
      answers[0] = Stranger::type(got) == FrameType::welcome ? 'w' : 'r';
      liar.send(Stranger::only(FrameType::directory_end));
    }
    Stranger double_ganger;
    hello = double_ganger.hello();
    hello.incarnation = theirs.incarnation;
    hello.process = theirs.process;
    if (double_ganger.dial(door.a.address) && double_ganger.send(hello.encode(FrameType::hello), double_ganger.fds()) &&
        double_ganger.receive(got)) {
      answers[1] = Stranger::type(got) == FrameType::welcome ? 'w' : 'r';
    }
    (void)!::write(tell[1], answers, 2);
    ::pause();
    ::_exit(0);
  }
  ::close(tell[1]);
  char answers[2] = {'?', '?'};
  CHECK(Node::until([&] { return test::readable(tell[0]); }));
  CHECK_EQ(::read(tell[0], answers, 2), 2);
  ::close(tell[0]);
  CHECK_EQ(answers[0], 'w');
  CHECK_EQ(answers[1], 'r');
  // The liar is a peer, of another process: nothing of what it says is an address of ours.
  bool found = false;
  CHECK(Node::until([&] {
    for (const Event& event : door.a.events) {
      PeerInfo info;
      if (event.kind == EventKind::accepted && door.a.transport().peer_info(event.peer, info) && info.pid == child) {
        found = true;
        CHECK_EQ(link_names(info).find("inproc"), std::string::npos);
      }
    }
    return found;
  }));
  ::kill(child, SIGKILL);
  ::waitpid(child, nullptr, 0);
  CHECK(door.unaffected());
}

TEST("a process without free descriptors refuses connections, burns no time over them, and takes them up again after") {
  Node a(test::every_link);
  const auto control_thread_seconds = [] {
    double seconds = -1;
    DIR* tasks = ::opendir("/proc/self/task");
    while (const dirent* entry = tasks == nullptr ? nullptr : ::readdir(tasks)) {
      const std::string base = std::string("/proc/self/task/") + entry->d_name;
      std::string name;
      std::uint64_t nanoseconds = 0;
      std::ifstream(base + "/comm") >> name;
      if (name == "hixl-control" && (std::ifstream(base + "/schedstat") >> nanoseconds)) {
        seconds = static_cast<double>(nanoseconds) / 1e9;
      }
    }
    ::closedir(tasks);
    return seconds;
  };
  // Sockets that exist before the limit, so that only the engine is short of descriptors.
  Address parsed;
  std::string error;
  REQUIRE(ok(parse_address(a.address, parsed, error)));
  std::vector<UniqueFd> sockets;
  for (int i = 0; i < 5; ++i) {
    sockets.emplace_back(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  }
  CHECK(test::eventually([&] { return control_thread_seconds() >= 0; }));  // it names itself
  const double before = control_thread_seconds();
  rlimit old{};
  REQUIRE(::getrlimit(RLIMIT_NOFILE, &old) == 0);
  rlimit low = old;
  low.rlim_cur = 3;
  REQUIRE(::setrlimit(RLIMIT_NOFILE, &low) == 0);
  for (const UniqueFd& socket : sockets) {
    (void)!::connect(socket.get(), reinterpret_cast<sockaddr*>(&parsed.storage), parsed.length);
  }
  Node::until([] { return false; }, 0.5);
  REQUIRE(::setrlimit(RLIMIT_NOFILE, &old) == 0);
  const double spent = control_thread_seconds() - before;
  CHECK(before >= 0 && spent < 0.1);
  Node b(test::every_link);
  CHECK(b.connected(a) != 0);
  char byte = 0;
  CHECK(test::eventually([&] { return ::recv(sockets[0].get(), &byte, 1, MSG_DONTWAIT) == 1; }));  // its greeting
}

TEST("an introduction whose descriptors find no place is refused for that reason") {
  Node a(test::every_link);
  Stranger s;
  REQUIRE(s.dial(a.address));
  rlimit old{};
  REQUIRE(::getrlimit(RLIMIT_NOFILE, &old) == 0);
  rlimit low = old;
  low.rlim_cur = 3;
  REQUIRE(::setrlimit(RLIMIT_NOFILE, &low) == 0);
  s.send(s.hello().encode(FrameType::hello), s.fds());
  Frame frame;
  const bool got = s.receive(frame);
  REQUIRE(::setrlimit(RLIMIT_NOFILE, &old) == 0);
  REQUIRE(got && Stranger::type(frame) == FrameType::refuse);
  Reader reader(frame.bytes);
  CHECK_EQ(reader.take<std::uint8_t>(), static_cast<std::uint8_t>(FrameType::refuse));
  CHECK_EQ(reader.take<std::uint8_t>(), 0);
  CHECK_EQ(static_cast<Status>(reader.take<std::int32_t>()), Status::resource_exhausted);
  CHECK(contains(reader.text(kMaxText), "descriptor"));
}

TEST("a signal that overtakes the announcement of its sender is given after it, or with it") {
  Node a(test::every_link);
  for (int round = 0; round < 100; ++round) {
    // A stranger signals before its directory is complete, which makes it a peer.
    Stranger s;
    Frame frame;
    REQUIRE(s.dial(a.address));
    REQUIRE(s.send(s.hello().encode(FrameType::hello), s.fds()));
    REQUIRE(s.receive(frame) && Stranger::type(frame) == FrameType::welcome && frame.fds.size() == kHelloFds);
    Hello theirs;
    REQUIRE(parse_hello(frame.bytes, FrameType::welcome, theirs));
    std::string error;
    PeerParts parts;
    parts.out = Channel::attach(std::move(frame.fds[0]), error);
    parts.doorbell = SharedDoorbell::attach(std::move(frame.fds[1]), error);
    parts.loop_fd = std::move(frame.fds[2]);
    parts.remote_place = theirs.doorbell_place;
    REQUIRE(parts.out && parts.doorbell);
    const PeerRef sender = PeerRef::adopt(new Peer(1, std::move(parts)));
    CHECK(ok(sender->publish("early", "", Status::ok)));
    Node::until([] { return false; }, 0.001);
    CHECK_EQ(a.signals_named("early"), 0U);
    s.send(Stranger::only(FrameType::directory_end));
    if (!CHECK(a.arrives("early"))) {
      break;
    }
    CHECK(a.find_peer(EventKind::accepted, a.signals.front().peer) != nullptr);
    a.signals.clear();
  }
}

// ---- the end of connecting

TEST("connects that are pending when the engine ends are answered before the news of its end, whatever their stage") {
  const Leftovers before;
  for (int round = 0; round < 20; ++round) {
    std::string silent_address;
    UniqueFd silent = test::listening("127.0.0.1:0", silent_address);
    std::string silent_unix;
    UniqueFd unix_silent = test::listening("unix:silent-at-the-end", silent_unix);
    Node a(test::every_link);
    Node b(test::every_link);
    const Token tokens[] = {a.begin_connect(silent_address), a.begin_connect(silent_unix), a.begin_connect(b.address),
                            a.begin_connect(a.address), a.begin_connect("nonsense")};
    if (round % 2 == 0) {
      Node::until([] { return false; }, 0.0002 * round);
    }
    const Token end = a.token();
    a.engine().begin_shutdown(end);
    (void)a.answer(EventKind::shutdown, end);
    for (const Token token : tokens) {
      CHECK(a.find(EventKind::connected, token) != nullptr);
    }
    CHECK_EQ(a.find(EventKind::connected, tokens[0])->status, Status::closed);
    CHECK_EQ(a.find(EventKind::connected, tokens[1])->status, Status::closed);
    CHECK_EQ(a.events.back().kind, EventKind::shutdown);
    CHECK_EQ(a.connect(b.address).status, Status::closed);
  }
  CHECK(before.none());
}

}  // namespace
}  // namespace hixl_aio::host

HIXL_TEST_MAIN
