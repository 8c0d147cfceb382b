// How peers and engines end: politely, at once from both sides, in the middle of a chunk, killed, stopped, forked.
//
// Other processes are this program itself, started with --role.
#include <sys/resource.h>
#include <sys/wait.h>

#include <algorithm>
#include <sstream>

#include "host_strangers.h"

namespace hixl_aio::host {
namespace {

using test::Leftovers;
using test::Node;
using test::pattern;

constexpr std::uint64_t kMiB = 1U << 20U;

std::size_t mappings(const std::string& of) {
  std::ifstream maps("/proc/self/maps");
  std::size_t count = 0;
  for (std::string line; std::getline(maps, line);) {
    count += line.find(of) != std::string::npos ? 1 : 0;
  }
  return count;
}

// What an end must not leave: descriptors and threads, and memory that is ours or a peer's.
struct NothingLeft {
  Leftovers others;
  std::size_t mapped = mappings("hixl-aio-");
  [[nodiscard]] bool holds() const { return CHECK(others.none()) && CHECK_EQ(mappings("hixl-aio-"), mapped); }
};

HostConfig one_link(LinkKind link, std::uint64_t chunk = kMiB, std::uint32_t threads = 1) {
  HostConfig out = test::config_of({link});
  out.chunk_nbytes = chunk;
  out.copy_threads = threads;
  return out;
}

// a reaches b over one link; b has memory of the kind that the link reaches.
struct Two {
  Node a;
  Node b{test::every_link};
  PeerId at_a = 0;
  PeerId at_b = 0;
  RegionInfo region;
  RegionInfo remote;
  std::shared_ptr<void> hold;
  std::vector<std::byte> source;
  explicit Two(LinkKind link, std::uint64_t nbytes, std::uint64_t chunk = kMiB)
      : a(one_link(link, chunk)), source(nbytes, std::byte{1}) {
    REQUIRE(ok(a.status));
    at_a = a.connected(b);
    at_b = b.peer_of(a);
    region = b.allocate(nbytes, Access::read_write, "memory");
    hold = b.transport().hold_region(region.region);
    remote = a.remote(at_a, "memory");
  }
  // Each of them copies everything a hundred times: nobody ends by himself while we look.
  std::vector<Token> post(int count) {
    std::vector<Token> tokens;
    const std::vector<Run> runs(100, Node::run(source.data(), remote, 0, source.size()));
    for (int i = 0; i < count; ++i) {
      const Node::Posted posted = a.post(at_a, runs);
      if (ok(posted.status)) {
        tokens.push_back(posted.token);
      }
    }
    return tokens;
  }
  void expect_down(Node& node, PeerId peer, Status status) {
    REQUIRE(Node::until([&] { return node.find_peer(EventKind::peer_down, peer) != nullptr; }));
    CHECK_EQ(node.find_peer(EventKind::peer_down, peer)->status, status);
    CHECK(!node.find_peer(EventKind::peer_down, peer)->text.empty());
  }
};

// ---- disconnecting

TEST("a disconnect with operations in flight ends them first, then both sides hear of it, and nothing is left") {
  const NothingLeft before;
  for (const LinkKind link : test::every_link) {
    for (int who = 0; who < 3; ++who) {  // the initiator, the target, both at once
      Two t(link, 4 * kMiB, 64 * 1024);
      const std::vector<Token> tokens = t.post(20);
      CHECK_EQ(tokens.size(), 20U);
      const Token at_a = t.a.token();
      const Token at_b = t.b.token();
      if (who != 1) {
        t.a.transport().disconnect(at_a, t.at_a, who == 0);
      }
      if (who != 0) {
        t.b.transport().disconnect(at_b, t.at_b, false);
      }
      t.expect_down(t.a, t.at_a, Status::peer_closed);
      t.expect_down(t.b, t.at_b, Status::peer_closed);
      int failed = 0;
      for (const Token token : tokens) {
        REQUIRE(t.a.records.contains(token));  // before the news of the end
        const CompletionRecord& record = t.a.records.at(token);
        CHECK(record.status == Status::ok || record.status == Status::peer_closed);
        CHECK(record.quiescent);
        failed += ok(record.status) ? 0 : 1;
        CHECK(t.a.position("c" + std::to_string(token)) < t.a.position(test::peer_down_entry(t.at_a)));
      }
      CHECK(failed > 0);
      if (who != 1) {
        CHECK_EQ(t.a.answer(EventKind::disconnected, at_a).status, Status::ok);
      }
      if (who != 0) {
        CHECK_EQ(t.b.answer(EventKind::disconnected, at_b).status, Status::ok);
      }
      CHECK_EQ(t.a.transfer(t.at_a, {Node::run(t.source.data(), t.remote, 0, 10)}), Status::not_connected);
      CHECK_EQ(t.a.signal(t.at_a, "x"), Status::not_connected);
      CHECK_EQ(t.a.disconnect(t.at_a), Status::ok);
      CHECK_EQ(t.b.close_region(t.region.region).status, Status::ok);
      // And once more: another life of the connection.
      const PeerId again = t.a.connected(t.b);
      CHECK(again != t.at_a);
      CHECK(ok(t.a.signal(again, "hello")));
      CHECK(t.b.arrives("hello"));
    }
  }
  CHECK(before.holds());
}

TEST("what a peer sent before it closed arrives before the news of its end, and nothing after") {
  for (int round = 0; round < 100; ++round) {
    Node a(test::every_link);
    Node b(test::every_link);
    const PeerId at_a = a.connected(b);
    const PeerId at_b = b.peer_of(a);
    for (int i = 0; i < 500; ++i) {
      CHECK(ok(a.signal(at_a, "last words")));
    }
    a.transport().disconnect(a.token(), at_a, false);
    CHECK(Node::until([&] { return b.find_peer(EventKind::peer_down, at_b) != nullptr; }));
    CHECK_EQ(b.signals_named("last words"), 500U);
    CHECK_EQ(b.log.back(), test::peer_down_entry(at_b));
  }
}

// The pins of a peer count until its last copy has ended, whoever of the two closes the connection.
void close_while_a_chunk_is_copied(LinkKind link, bool initiator_closes) {
  Two t(link, 192 * kMiB, UINT64_MAX);  // each operation is one chunk, some hundred milliseconds long
  std::vector<Run> runs(4, Node::run(t.source.data(), t.remote, 0, t.source.size()));
  const Node::Posted posted = t.a.post(t.at_a, runs);
  REQUIRE(ok(posted.status));
  // It has begun when the target's bytes change.
  CHECK(test::eventually([&] { return *const_cast<volatile std::byte*>(t.region.address + 4096) == std::byte{1}; }));
  if (initiator_closes) {
    t.a.transport().disconnect(t.a.token(), t.at_a, false);
  } else {
    t.b.transport().disconnect(t.b.token(), t.at_b, false);
  }
  // Let the other side hear whatever it hears now.
  Node::until([] { return false; }, 0.03);
  const Event closed = t.b.close_region(t.region.region, 30);
  CHECK_EQ(closed.status, Status::ok);
  std::memset(t.region.address, 0xee, t.source.size());
  const CompletionRecord record = t.a.wait(posted.token);
  CHECK(record.status != Status::internal);
  CHECK(test::all_bytes(t.region.address, t.source.size(), std::byte{0xee}));
}

TEST("a region is not free while a copy into it is under way, though either side closed the connection") {
  for (const LinkKind link : {LinkKind::inproc, LinkKind::shm, LinkKind::cma}) {
    if (link == LinkKind::inproc && test::thread_sanitized) {
      continue;  // see the pins in two mappings
    }
    close_while_a_chunk_is_copied(link, true);
    close_while_a_chunk_is_copied(link, false);
  }
}

// ---- the end of an engine

TEST("an engine ends in every state: with operations, requests and closings under way, twice, or unasked") {
  const NothingLeft before;
  for (const LinkKind link : test::every_link) {
    for (int state = 0; state < 6; ++state) {
      Two t(link, 4 * kMiB, 64 * 1024);
      std::vector<Token> requests;
      std::vector<Token> tokens;
      if (state >= 1) {
        tokens = t.post(20);
      }
      if (state >= 2) {
        for (const EventKind kind :
             {EventKind::refreshed, EventKind::allocated, EventKind::region_closed, EventKind::disconnected}) {
          requests.push_back(t.a.token());
          switch (kind) {
            case EventKind::refreshed:
              t.a.transport().refresh(requests.back(), t.at_a);
              break;
            case EventKind::allocated:
              t.a.transport().allocate(requests.back(),
                                       RegionSpec{2 * kMiB, nullptr, MemoryKind::shared, Access::read_write, {}});
              break;
            case EventKind::region_closed:
              t.a.transport().close_region(requests.back(), 4711, -1);
              break;
            default:
              t.a.transport().disconnect(requests.back(), t.at_a, false);
          }
        }
        t.b.transport().close_region(t.b.token(), t.region.region, -1);
      }
      if (state == 3) {
        t.b.engine().begin_shutdown(t.b.token());
      }
      if (state == 4) {
        t.a.destroy();  // without a word
        t.expect_down(t.b, t.at_b, Status::peer_closed);
        continue;
      }
      const Token end = t.a.token();
      const Token second = t.a.token();
      t.a.engine().begin_shutdown(end);
      if (state == 5) {
        t.a.engine().begin_shutdown(second);
      }
      const auto start = std::chrono::steady_clock::now();
      (void)t.a.answer(EventKind::shutdown, end);
      CHECK(test::seconds_since(start) < 0.9);  // nobody had to lose patience
      for (const Token token : tokens) {
        CHECK(t.a.records.contains(token));
      }
      for (const Token token : requests) {
        CHECK(std::any_of(t.a.events.begin(), t.a.events.end(),
                          [&](const Event& event) { return event.token == token; }));
      }
      CHECK(t.a.find_peer(EventKind::peer_down, t.at_a) != nullptr);
      if (state == 5) {
        (void)t.a.answer(EventKind::shutdown, second);
      }
      CHECK_EQ(t.a.post(t.at_a, {}).status, Status::closed);
      t.expect_down(t.b, t.at_b, Status::peer_closed);
      // Whatever is asked for now is answered, once.
      const Token late[] = {t.a.token(), t.a.token(), t.a.token(), t.a.token(), t.a.token(), t.a.token()};
      std::byte memory[10];
      t.a.transport().connect(late[0], t.b.address, 1);
      t.a.transport().disconnect(late[1], t.at_a, false);
      t.a.transport().refresh(late[2], t.at_a);
      t.a.transport().allocate(late[3], RegionSpec{100, nullptr, MemoryKind::shared, Access::read_write, {}});
      t.a.transport().register_memory(late[4], RegionSpec{10, memory, MemoryKind::host, Access::read, {}});
      t.a.transport().close_region(late[5], 0, 1);
      CHECK(Node::until([&] {
        return std::all_of(std::begin(late), std::end(late), [&](Token token) {
          return std::count_if(t.a.events.begin(), t.a.events.end(),
                               [&](const Event& event) { return event.token == token; }) == 1;
        });
      }));
    }
  }
  CHECK(before.holds());
}

TEST("closings that wait for a pin are answered when the engine ends, and so is an engine that was never used") {
  const NothingLeft before;
  {
    Node unused(test::every_link);
  }
  Two t(LinkKind::shm, 64 * kMiB, UINT64_MAX);
  std::vector<Run> runs(8, Node::run(t.source.data(), t.remote, 0, t.source.size()));
  const Node::Posted posted = t.a.post(t.at_a, runs);
  REQUIRE(ok(posted.status));
  CHECK(test::eventually([&] { return *const_cast<volatile std::byte*>(t.region.address + 4096) == std::byte{1}; }));
  const Token closing = t.b.token();
  t.b.transport().close_region(closing, t.region.region, -1);
  const Token end = t.b.token();
  t.b.engine().begin_shutdown(end);
  (void)t.b.answer(EventKind::shutdown, end);
  CHECK(t.b.find(EventKind::region_closed, closing) != nullptr);
  CHECK(t.a.wait(posted.token).status != Status::internal);
  t.a.destroy();
  t.b.destroy();
  t.hold.reset();
  CHECK(before.holds());
}

TEST("memory outlives its engine for as long as somebody holds it") {
  const NothingLeft before;
  {
    auto node = std::make_unique<Node>(test::every_link);
    const RegionInfo small = node->allocate(1000, Access::read_write);
    const RegionInfo large = node->allocate(3 * kMiB, Access::read);
    std::shared_ptr<void> holds[] = {node->transport().hold_region(small.region),
                                     node->transport().hold_region(large.region)};
    CHECK(node->transport().hold_region(4711) == nullptr);
    CHECK_EQ(node->close_region(small.region).status, Status::ok);
    CHECK_EQ(node->close_region(large.region).status, Status::ok);
    std::memset(small.address, 1, 1000);
    std::memset(large.address, 2, 3 * kMiB);
    // Nobody gets what is still held.
    const RegionInfo other = node->allocate(1000, Access::read_write);
    CHECK(other.address + 1000 <= small.address || other.address >= small.address + 1000);
    node.reset();
    CHECK(test::all_bytes(small.address, 1000, std::byte{1}));
    CHECK(test::all_bytes(large.address, 3 * kMiB, std::byte{2}));
  }
  CHECK(before.holds());
}

// ---- other processes

// This program in another role, with a line to it and one from it.
class Process {
 public:
  explicit Process(std::vector<std::string> role) {
    int to[2] = {-1, -1};
    int from[2] = {-1, -1};
    REQUIRE(::pipe2(to, O_CLOEXEC) == 0 && ::pipe2(from, O_CLOEXEC) == 0);
    role.insert(role.begin(), {"host_end_test", "--role"});
    std::vector<char*> arguments;
    for (std::string& each : role) {
      arguments.push_back(each.data());
    }
    arguments.push_back(nullptr);
    pid = ::fork();
    REQUIRE(pid >= 0);
    if (pid == 0) {
      ::dup2(to[0], 0);
      ::dup2(from[1], 1);
      ::execv("/proc/self/exe", arguments.data());
      ::_exit(127);
    }
    ::close(to[0]);
    ::close(from[1]);
    in_.reset(to[1]);
    out_.reset(from[0]);
  }
  ~Process() { end(SIGKILL); }
  // Never to 0 or -1, which would be everybody.
  // After SIGSTOP none of its threads runs: the kernel stops them one by one, and says when it is through.
  void signal(int number) const {
    REQUIRE(pid > 0 && ::kill(pid, number) == 0);
    int status = 0;
    REQUIRE(number != SIGSTOP || (::waitpid(pid, &status, WUNTRACED) == pid && WIFSTOPPED(status)));
  }
  void end(int number) {
    if (pid > 0) {
      ::kill(pid, SIGCONT);
      ::kill(pid, number);
      ::waitpid(pid, nullptr, 0);
      pid = 0;
    }
  }
  void say(const std::string& line) const {
    const std::string text = line + "\n";
    REQUIRE(::write(in_.get(), text.data(), text.size()) == static_cast<ssize_t>(text.size()));
  }
  // The next line; our own engines run meanwhile.
  std::string line() {
    for (;;) {
      const auto end = buffer_.find('\n');
      if (end != std::string::npos) {
        const std::string out = buffer_.substr(0, end);
        buffer_.erase(0, end + 1);
        return out;
      }
      REQUIRE(Node::until([&] { return test::readable(out_.get()); }));
      char bytes[256];
      const ssize_t got = ::read(out_.get(), bytes, sizeof(bytes));
      REQUIRE(got > 0);
      buffer_.append(bytes, static_cast<std::size_t>(got));
    }
  }
  std::string expect(const std::string& word) {
    const std::string got = line();
    if (!got.starts_with(word)) {
      test::give_up(("the other process says '" + got + "', not '" + word + "'").c_str());
    }
    return got.size() > word.size() ? got.substr(word.size() + 1) : "";
  }
  pid_t pid = 0;

 private:
  UniqueFd in_;
  UniqueFd out_;
  std::string buffer_;
};

void tell(const std::string& line) {
  std::printf("%s\n", line.c_str());
  std::fflush(stdout);
}

// An engine with memory of both kinds; does nothing else until its line ends.
int be_target(const std::string& bind, std::uint64_t nbytes) {
  Node node(test::config_of(test::every_link, "target"), bind);
  if (!ok(node.status)) {
    tell("error " + node.error);
    return 1;
  }
  std::vector<std::byte> memory(nbytes);
  const RegionInfo allocated = node.allocate(nbytes, Access::read_write, "allocated");
  node.add(memory.data(), nbytes, Access::read_write, "registered");
  tell("ready " + node.address);
  for (;;) {
    Node::until([&] { return test::readable(0); }, 0.05);
    if (!test::readable(0)) {
      continue;
    }
    char command[64] = {};
    const ssize_t got = ::read(0, command, sizeof(command) - 1);
    if (got <= 0) {
      return 0;
    }
    if (std::string(command).starts_with("fork")) {
      const pid_t child = ::fork();
      if (child == 0) {
        ::pause();  // with a copy of every descriptor
        ::_exit(0);
      }
      tell("forked " + std::to_string(child));
    } else if (std::string(command).starts_with("look")) {
      tell(std::string("bytes ") + std::to_string(static_cast<int>(allocated.address[0])) + " " +
           std::to_string(static_cast<int>(memory[nbytes - 1])));
    }
  }
}

// Writes into the other engine's memory without a pause.
int be_writer(const std::string& to, const std::string& link, std::uint64_t nbytes, std::uint64_t chunk) {
  Node node(one_link(parse_link(link), chunk));
  const PeerId peer = node.connected(to);
  const RegionInfo remote = node.remote(peer, "memory");
  std::vector<std::byte> source(nbytes, std::byte{1});
  bool told = false;
  while (node.find_peer(EventKind::peer_down, peer) == nullptr) {
    while (node.engine().counters().in_flight < 4 &&
           ok(node.post(peer, {Node::run(source.data(), remote, 0, nbytes)}).status)) {
    }
    if (!told) {
      told = true;
      tell("writing");
    }
    Node::until([&] { return node.engine().counters().in_flight < 4; }, 0.05);
  }
  tell("down");
  ::pause();
  return 0;
}

// Signals without a pause until the peer is gone.
int be_chatterer(const std::string& to) {
  Node node(test::every_link);
  const PeerId peer = node.connected(to);
  std::uint64_t sent = 0;
  while (node.find_peer(EventKind::peer_down, peer) == nullptr) {
    sent += ok(node.signal(peer, "chatter")) ? 1 : 0;
    if (sent == 1000) {
      tell("chatting");
      ++sent;
    }
    Node::pump();
  }
  tell("down");
  ::pause();
  return 0;
}

int play(const std::vector<std::string>& role) {
  ::alarm(test::watchdog_seconds);  // nobody survives his test for long
  if (role[0] == "target") {
    return be_target(role[1], std::stoull(role[2]));
  }
  if (role[0] == "writer") {
    return be_writer(role[1], role[2], std::stoull(role[3]), std::stoull(role[4]));
  }
  return be_chatterer(role[1]);
}

// An engine of ours that reaches a target process over one link.
struct Reach {
  Process process;
  std::string address;
  Node node;
  PeerId peer = 0;
  RegionInfo remote;
  std::vector<std::byte> source;
  Reach(LinkKind link, std::uint64_t nbytes, const std::string& bind = "127.0.0.1:0")
      : process({"target", bind, std::to_string(nbytes)}),
        address(process.expect("ready")),
        node(one_link(link, 64 * 1024)),
        source(nbytes, std::byte{7}) {
    peer = node.connected(address);
    remote = node.remote(peer, link == LinkKind::shm ? "allocated" : "registered");
  }
  std::vector<Token> post(int count) {
    std::vector<Token> tokens;
    for (int i = 0; i < count; ++i) {
      const Node::Posted posted = node.post(peer, {Node::run(source.data(), remote, 0, source.size())});
      REQUIRE(ok(posted.status));
      tokens.push_back(posted.token);
    }
    return tokens;
  }
};

constexpr LinkKind kBetweenProcesses[] = {LinkKind::shm, LinkKind::cma, LinkKind::cooperative};

TEST("another process is written and read over every link that reaches it") {
  const NothingLeft before;
  for (const LinkKind link : kBetweenProcesses) {
    Reach r(link, 3 * kMiB + 5);
    const PeerInfo info = r.node.info(r.peer);
    CHECK_EQ(info.pid, r.process.pid);
    CHECK_EQ(info.route[0].name, link_name(link));
    r.source = pattern(r.source.size(), 1);
    CHECK_EQ(r.node.transfer(r.peer, {Node::run(r.source.data(), r.remote, 0, r.source.size())}), Status::ok);
    std::vector<std::byte> back(r.source.size());
    CHECK_EQ(r.node.transfer(r.peer, {Node::run(back.data(), r.remote, 0, back.size(), Direction::get)}), Status::ok);
    CHECK(back == r.source);
    r.process.say("look");
    const std::string expected = link == LinkKind::shm ? std::to_string(static_cast<int>(r.source[0])) + " 0"
                                                       : "0 " + std::to_string(static_cast<int>(r.source.back()));
    CHECK_EQ(r.process.expect("bytes"), expected);
  }
  CHECK(before.holds());
}

TEST("a peer killed in the middle of puts fails them within a second; others notice nothing") {
  const NothingLeft before;
  for (const LinkKind link : kBetweenProcesses) {
    Reach r(link, 16 * kMiB);
    Node other(test::every_link);
    const PeerId to_other = r.node.connected(other);
    std::vector<Token> tokens = r.post(1);
    CHECK(Node::until([&] { return r.node.records.contains(tokens[0]); }));
    // Large operations share the copy threads and end together: these are all in the middle when the signal comes.
    for (const Token token : r.post(20)) {
      tokens.push_back(token);
    }
    r.process.signal(SIGKILL);
    const auto start = std::chrono::steady_clock::now();
    CHECK(Node::until(
        [&] {  // until it is down there are always some in flight
          while (r.node.engine().counters().in_flight < 20) {
            const Node::Posted posted = r.node.post(r.peer, {Node::run(r.source.data(), r.remote, 0, r.source.size())});
            if (!ok(posted.status)) {
              break;
            }
            tokens.push_back(posted.token);
          }
          return r.node.find_peer(EventKind::peer_down, r.peer) != nullptr;
        },
        5));
    CHECK(test::seconds_since(start) < 1);
    CHECK_EQ(r.node.find_peer(EventKind::peer_down, r.peer)->status, Status::peer_lost);
    int lost = 0;
    for (const Token token : tokens) {
      REQUIRE(r.node.records.contains(token));
      const Status status = r.node.records.at(token).status;
      // The kernel may take the memory away a moment before it says that the process has ended.
      CHECK(status == Status::ok || status == Status::peer_lost || status == Status::failed);
      lost += status == Status::peer_lost ? 1 : 0;
      CHECK(r.node.position("c" + std::to_string(token)) < r.node.position(test::peer_down_entry(r.peer)));
    }
    CHECK(lost > 0);
    CHECK(ok(r.node.signal(to_other, "alive")));
    CHECK(other.arrives("alive"));
    CHECK_EQ(r.node.connect(r.address).status, Status::connect_failed);
  }
  CHECK(before.holds());
}

TEST("the death of a peer is seen although its forked child still holds the connection open") {
  Reach r(LinkKind::shm, kMiB);
  r.process.say("fork");
  const pid_t grandchild = static_cast<pid_t>(std::stol(r.process.expect("forked")));
  REQUIRE(grandchild > 0);
  r.process.signal(SIGKILL);
  const auto start = std::chrono::steady_clock::now();
  CHECK(Node::until([&] { return r.node.find_peer(EventKind::peer_down, r.peer) != nullptr; }, 5));
  CHECK(test::seconds_since(start) < 1);
  ::kill(grandchild, SIGKILL);
}

TEST("a peer that starts again at its address is another peer; the old one is down, and a look says which lives there") {
  const std::string name = "unix:hixl-aio-restart-test";
  Reach r(LinkKind::cma, kMiB, name);
  const std::string first = r.node.info(r.peer).incarnation;
  CHECK_EQ(r.node.look(name).text, first);
  r.process.end(SIGKILL);
  CHECK_EQ(r.node.look(name).status, Status::connect_failed);
  Process second({"target", name, std::to_string(kMiB)});
  second.expect("ready");
  const Event looked = r.node.look(name);
  CHECK_EQ(looked.status, Status::ok);
  CHECK(looked.text.size() == 32 && looked.text != first);
  CHECK(r.node.find(EventKind::accepted, 0) == nullptr);
  const PeerId again = r.node.connected(name);
  CHECK(again != r.peer);
  CHECK_EQ(r.node.info(again).incarnation, looked.text);
  CHECK(Node::until([&] { return r.node.find_peer(EventKind::peer_down, r.peer) != nullptr; }));
  CHECK_EQ(r.node.transfer(again, {Node::run(r.source.data(), r.node.remote(again, "registered"), 0, kMiB)}),
           Status::ok);
}

TEST("a look at nobody, at a stopped process and at nonsense is answered in its time; one that is pending ends with the engine") {
  const NothingLeft before;
  {
    Reach r(LinkKind::shm, kMiB);
    CHECK_EQ(r.node.look(r.address).text, r.node.info(r.peer).incarnation);
    for (const char* nonsense : {"8.8.8.8:80", "127.0.0.1:0", "nonsense"}) {
      CHECK(!ok(r.node.look(nonsense).status));
    }
    r.process.signal(SIGSTOP);
    const Event stopped = r.node.look(r.address, 0.05);
    CHECK_EQ(stopped.status, Status::timed_out);
    CHECK(stopped.text.find("0.05 s") != std::string::npos);
    const Token pending = r.node.token();
    r.node.host().look(pending, r.address, 30);
    r.node.shut_down();
    CHECK_EQ(r.node.answer(EventKind::looked, pending).status, Status::closed);
  }
  CHECK(before.holds());
}

TEST("a stopped peer is suspect, and connected again when it goes on; a stopped one that is killed is lost") {
  Reach r(LinkKind::shm, kMiB);
  Node same(test::every_link);
  const PeerId ours = r.node.connected(same);
  CHECK_EQ(r.node.info(r.peer).state, PeerState::connected);
  for (int round = 0; round < 3; ++round) {
    r.process.signal(SIGSTOP);
    CHECK(Node::until([&] { return r.node.info(r.peer).state == PeerState::suspect; }, 5));
    CHECK_EQ(r.node.info(ours).state, PeerState::connected);
    r.process.signal(SIGCONT);
    CHECK(Node::until([&] { return r.node.info(r.peer).state == PeerState::connected; }, 5));
  }
  r.process.signal(SIGSTOP);
  ::kill(r.process.pid, SIGKILL);
  CHECK(Node::until([&] { return r.node.find_peer(EventKind::peer_down, r.peer) != nullptr; }, 1));
  CHECK_EQ(r.node.find_peer(EventKind::peer_down, r.peer)->status, Status::peer_lost);
}

TEST("with a stopped peer operations stop, a disconnect is answered, the engine ends within two seconds") {
  const NothingLeft before;
  for (const LinkKind link : kBetweenProcesses) {
    for (const bool disconnect_first : {true, false}) {
      if (disconnect_first && link == LinkKind::cma) {
        continue;  // each of these waits for a patience of a second
      }
      Reach r(link, 8 * kMiB);
      r.process.signal(SIGSTOP);
      const std::vector<Token> tokens = r.post(10);
      const Node::Posted last = r.node.post(r.peer, {Node::run(r.source.data(), r.remote, 0, 100)});
      r.node.engine().request_stop(last.handle);
      const CompletionRecord record = r.node.wait(last.token, 5);  // it may have been done before it was to stop
      CHECK(record.status == Status::stopped || record.status == Status::ok);
      const auto start = std::chrono::steady_clock::now();
      if (disconnect_first) {
        CHECK_EQ(r.node.disconnect(r.peer), Status::ok);
        CHECK(test::seconds_since(start) < 1.5);
        CHECK(r.node.find_peer(EventKind::peer_down, r.peer) != nullptr);
      }
      const auto end = std::chrono::steady_clock::now();
      r.node.shut_down();
      CHECK(test::seconds_since(end) < 2);
      for (const Token token : tokens) {
        CHECK(r.node.records.contains(token));
      }
    }
  }
  CHECK(before.holds());
}

// False: the writer happened to stop between two chunks, where nothing is pinned.
bool stopped_writer_keeps_region_busy(bool disconnect_first) {
  Node owner(test::every_link);
  const RegionInfo region = owner.allocate(128 * kMiB, Access::read_write, "memory");
  Process writer({"writer", owner.address, "shm", std::to_string(region.nbytes), "18446744073709551615"});
  writer.expect("writing");
  const auto first_byte = [&] { return *const_cast<volatile std::byte*>(region.address); };
  CHECK(test::eventually([&] { return first_byte() == std::byte{1}; }));
  writer.signal(SIGSTOP);
  if (disconnect_first) {
    REQUIRE(owner.find(EventKind::accepted, 0) != nullptr);
    CHECK_EQ(owner.disconnect(owner.find(EventKind::accepted, 0)->peer), Status::ok);
  }
  if (ok(owner.close_region(region.region, 0.2).status)) {
    return false;
  }
  CHECK_EQ(owner.close_region(region.region, 0).status, Status::region_busy);
  writer.end(SIGKILL);
  CHECK_EQ(owner.close_region(region.region, 5).status, Status::ok);
  return true;
}

TEST("a writer stopped in the middle of a chunk keeps the region busy, through a disconnect too, until it dies") {
  const NothingLeft before;
  for (const bool disconnect_first : {false, true}) {
    int attempts = 0;
    while (attempts < 10 && !stopped_writer_keeps_region_busy(disconnect_first)) {
      ++attempts;
    }
    CHECK(attempts < 10);
  }
  CHECK(before.holds());
}

TEST("a peer that was stopped when we disconnected, and goes on signalling, is not heard any more") {
  Node node(test::every_link);
  Process chatterer({"chatterer", node.address});
  chatterer.expect("chatting");
  const PeerId peer = node.signals.empty() ? 0 : node.signals[0].peer;
  REQUIRE(peer != 0);
  chatterer.signal(SIGSTOP);
  CHECK_EQ(node.disconnect(peer), Status::ok);
  CHECK(Node::until([&] { return node.find_peer(EventKind::peer_down, peer) != nullptr; }));
  const std::size_t heard = node.signals.size();
  chatterer.signal(SIGCONT);
  chatterer.expect("down");
  Node::until([] { return false; }, 0.05);
  CHECK_EQ(node.signals.size(), heard);
  CHECK(node.log.back().starts_with("e"));
}

TEST("a forked child that gives the engine up leaves the parent's engine, peers and memory as they were") {
  const NothingLeft before;
  {
    Two t(LinkKind::shm, kMiB);
    const std::size_t open = test::entries("/proc/self/fd");
    const pid_t child = ::fork();
    if (child == 0) {
      t.a.engine().abandon_after_fork();
      t.b.engine().abandon_after_fork();
      // The engines' descriptors are closed here; standard ones and the directory stay.
      const bool closed = test::entries("/proc/self/fd") < open;
      const bool refuses = t.a.engine().acquire() == nullptr && !t.a.engine().drain(t.a, 10);
      t.hold.reset();
      t.a.destroy();
      t.b.destroy();
      ::_exit(closed && refuses ? 0 : 1);
    }
    int state = 0;
    REQUIRE(::waitpid(child, &state, 0) == child);
    CHECK(WIFEXITED(state) && WEXITSTATUS(state) == 0);
    t.source = pattern(kMiB, 3);
    CHECK_EQ(t.a.transfer(t.at_a, {Node::run(t.source.data(), t.remote, 0, kMiB)}), Status::ok);
    CHECK(test::same(t.region.address, t.source.data(), kMiB));
    CHECK(ok(t.b.signal(t.at_b, "alive")));
    CHECK(t.a.arrives("alive"));
  }
  CHECK(before.holds());
}

}  // namespace
}  // namespace hixl_aio::host

int main(int argc, char** argv) {
  if (argc > 2 && std::string(argv[1]) == "--role") {
    return hixl_aio::host::play(std::vector<std::string>(argv + 2, argv + argc));
  }
  return hixl_aio::test::run_all(argc, argv);
}
