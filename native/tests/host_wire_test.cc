// Frames: what is written is read, and nothing that is read leaves its frame.
#include <sys/resource.h>
#include <sys/socket.h>

#include <random>

#include "host_support.h"
#include "transports/host/wire.h"

namespace hixl_aio::host {
namespace {

using test::Leftovers;
using Bytes = std::vector<std::byte>;

Incarnation incarnation(std::uint8_t first) {
  Incarnation out{};
  for (std::uint8_t& byte : out) {
    byte = first++;
  }
  return out;
}

Greeting greeting() {
  Greeting out;
  out.incarnation = incarnation(1);
  out.host_id = "3f0e0c9c-7f3c-4f7e-9a51-8e7d2f0b6a11";
  out.control_socket = "hixl-aio/control/0102";
  return out;
}

Hello hello() {
  Hello out;
  out.incarnation = incarnation(3);
  out.process = incarnation(40);
  out.name = "decode";
  out.address = "127.0.0.1:4000";
  out.doorbell_place = 77;
  out.probe_address = 0x7fff12345678;
  out.probe_value = incarnation(90);
  return out;
}

RegionFrame region() {
  RegionFrame out;
  out.region = 5;
  out.generation = 6;
  out.kind = MemoryKind::shared;
  out.access = Access::read_write;
  out.segment = 9;
  out.segment_offset = 4096;
  out.nbytes = std::uint64_t{5} << 30U;
  out.address = 0x7f0000000000;
  out.label = "kv";
  return out;
}

Bytes region_bytes() {
  Writer writer;
  region().encode(writer);
  return writer.bytes();
}

// On the heap with exactly its size, so that the sanitizer sees a read beyond it.
Bytes exact(const Bytes& bytes) { return Bytes(bytes.begin(), bytes.end()); }

bool reads_greeting(const Bytes& bytes) {
  Greeting out;
  std::string error;
  const Status status = parse_greeting(exact(bytes), out, error);
  CHECK(ok(status) == error.empty());
  return ok(status);
}
bool reads_hello(const Bytes& bytes) {
  Hello out;
  return parse_hello(exact(bytes), FrameType::hello, out);
}
bool reads_region(const Bytes& bytes) {
  const Bytes copy = exact(bytes);
  Reader reader(copy);
  RegionFrame out;
  return RegionFrame::parse(reader, out) && reader.finished();
}

TEST("greeting, introduction and region come back as they were written") {
  Greeting g;
  std::string error;
  CHECK(ok(parse_greeting(greeting().encode(), g, error)));
  CHECK(g.incarnation == greeting().incarnation && g.host_id == greeting().host_id);
  CHECK_EQ(g.control_socket, greeting().control_socket);
  Hello h;
  CHECK(parse_hello(hello().encode(FrameType::welcome), FrameType::welcome, h));
  CHECK(h.incarnation == hello().incarnation && h.process == hello().process && h.probe_value == hello().probe_value);
  CHECK(h.name == hello().name && h.address == hello().address);
  CHECK_EQ(h.doorbell_place, 77U);
  CHECK_EQ(h.probe_address, hello().probe_address);
  CHECK(!parse_hello(hello().encode(FrameType::welcome), FrameType::hello, h));
  const Bytes bytes = region_bytes();
  Reader reader(bytes);
  RegionFrame r;
  CHECK(RegionFrame::parse(reader, r) && reader.finished());
  CHECK(r.region == 5 && r.generation == 6 && r.segment == 9 && r.segment_offset == 4096);
  CHECK(r.kind == MemoryKind::shared && r.access == Access::read_write && r.label == "kv");
  CHECK(r.nbytes == region().nbytes && r.address == region().address);
}

TEST("every shorter and every longer frame is refused") {
  const std::pair<Bytes, bool (*)(const Bytes&)> all[] = {{greeting().encode(), reads_greeting},
                                                          {hello().encode(FrameType::hello), reads_hello},
                                                          {region_bytes(), reads_region}};
  for (const auto& [bytes, reads] : all) {
    CHECK(reads(bytes));
    for (std::size_t size = 0; size < bytes.size(); ++size) {
      if (reads(Bytes(bytes.begin(), bytes.begin() + static_cast<std::ptrdiff_t>(size)))) {
        CHECK_EQ(size, bytes.size());
      }
    }
    Bytes longer = bytes;
    longer.push_back(std::byte{0});
    CHECK(!reads(longer));
  }
}

TEST("another wire version is refused with both numbers, before anything behind it is looked at") {
  Greeting g = greeting();
  g.version = 99;
  Bytes bytes = g.encode();
  bytes.resize(12);  // magic and version only: what comes next is for that version to say
  Greeting out;
  std::string error;
  CHECK_EQ(parse_greeting(bytes, out, error), Status::handshake_refused);
  CHECK(error.find("wire version: ours 1, theirs 99") != std::string::npos);
  bytes.resize(11);
  error.clear();
  CHECK_EQ(parse_greeting(bytes, out, error), Status::handshake_refused);
  CHECK(error.find("theirs") == std::string::npos);  // half a number is none
  bytes[0] = std::byte{'H'};
  CHECK_EQ(parse_greeting(bytes, out, error), Status::handshake_refused);
  CHECK(error.find("hixl-aio protocol") != std::string::npos);
}

TEST("regions without a generation, of an unknown kind or without a right to grant are refused") {
  const auto changed = [](void (*change)(RegionFrame&)) {
    RegionFrame frame = region();
    change(frame);
    Writer writer;
    frame.encode(writer);
    return writer.bytes();
  };
  CHECK(!reads_region(changed([](RegionFrame& f) { f.generation = 0; })));
  CHECK(!reads_region(changed([](RegionFrame& f) { f.kind = MemoryKind::device; })));
  CHECK(!reads_region(changed([](RegionFrame& f) { f.kind = static_cast<MemoryKind>(255); })));
  CHECK(!reads_region(changed([](RegionFrame& f) { f.access = Access::local; })));
  CHECK(!reads_region(changed([](RegionFrame& f) { f.access = static_cast<Access>(4); })));
  CHECK(reads_region(changed([](RegionFrame& f) { f.label = std::string(kMaxLabel, 'x'); })));
}

TEST("a text is cut at its cap by the writer and refused beyond it by the reader") {
  Writer writer;
  writer.text(std::string(300, 'x'), 255);
  CHECK_EQ(writer.bytes().size(), 257U);
  Reader fits(writer.bytes());
  CHECK_EQ(fits.text(255).size(), 255U);
  CHECK(fits.finished());
  Reader strict(writer.bytes());
  CHECK(strict.text(254).empty());
  CHECK(!strict.good());
}

TEST("after the first read that failed everything reads as nothing") {
  Writer writer;
  writer.put(std::uint16_t{0xffff}).put(std::uint32_t{0x01010101});
  Reader reader(writer.bytes());
  CHECK_EQ(reader.take<std::uint64_t>(), 0U);
  CHECK_EQ(reader.take<std::uint8_t>(), 0U);
  CHECK_EQ(reader.take<std::uint32_t>(), 0U);
  CHECK(reader.text(1024).empty());
  Incarnation raw = incarnation(1);
  reader.raw(std::span<std::uint8_t>(raw).first(1));
  CHECK_EQ(raw[0], 1);
  CHECK(!reader.good() && !reader.finished());
}

TEST("three million mutated frames are read within their bounds, or refused") {
  std::mt19937_64 random(11);
  const Bytes seeds[] = {greeting().encode(), hello().encode(FrameType::hello), region_bytes()};
  bool (*const readers[])(const Bytes&) = {reads_greeting, reads_hello, reads_region};
  std::size_t accepted = 0;
  for (int i = 0; i < 1'000'000; ++i) {
    Bytes bytes = seeds[random() % 3];
    for (std::size_t n = random() % 4 + 1; n > 0 && !bytes.empty(); --n) {
      const std::size_t at = random() % bytes.size();
      switch (random() % 5) {
        case 0:
          bytes[at] = static_cast<std::byte>(random());
          break;
        case 1:
          bytes[at] = random() % 2 == 0 ? std::byte{0xff} : std::byte{0};
          break;
        case 2:
          bytes.resize(at);
          break;
        case 3:
          bytes.insert(bytes.begin() + static_cast<std::ptrdiff_t>(at), random() % 40,
                       static_cast<std::byte>(random()));
          break;
        default:
          bytes.erase(bytes.begin() + static_cast<std::ptrdiff_t>(at));
      }
    }
    for (const auto reads : readers) {  // each frame also to the readers it is not for
      accepted += reads(bytes) ? 1 : 0;
    }
  }
  CHECK(accepted > 1000);
}

// ---- sockets

struct Sockets {
  UniqueFd left;
  UniqueFd right;
  Sockets() {
    int fds[2] = {-1, -1};
    REQUIRE(::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, fds) == 0);
    left.reset(fds[0]);
    right.reset(fds[1]);
  }
};

TEST("a frame arrives whole with its descriptors; then there is nothing; then the end") {
  const Leftovers before;
  {
    Sockets s;
    const UniqueFd event = test::event_fd();
    const int fds[] = {event.get(), event.get()};
    const Bytes bytes(kMaxFrame, std::byte{7});
    CHECK_EQ(send_frame(s.left.get(), bytes, fds), SocketResult::done);
    Frame frame;
    CHECK_EQ(receive_frame(s.right.get(), frame), SocketResult::done);
    CHECK(frame.bytes == bytes);
    CHECK(frame.fds.size() == 2 && !frame.fds_lost);
    for (const UniqueFd& fd : frame.fds) {
      CHECK((::fcntl(fd.get(), F_GETFD) & FD_CLOEXEC) != 0);
    }
    CHECK_EQ(receive_frame(s.right.get(), frame), SocketResult::again);
    s.left.reset();
    CHECK_EQ(receive_frame(s.right.get(), frame), SocketResult::closed);
    CHECK_EQ(send_frame(s.right.get(), bytes, {}), SocketResult::closed);
  }
  CHECK(before.none());
}

TEST("a frame that is too long or carries too many descriptors is marked, and its descriptors are closed") {
  const Leftovers before;
  {
    Sockets s;
    const UniqueFd event = test::event_fd();
    const Bytes too_long(kMaxFrame + 1, std::byte{7});
    const int one[] = {event.get()};
    CHECK_EQ(send_frame(s.left.get(), too_long, one), SocketResult::done);
    Frame frame;
    CHECK_EQ(receive_frame(s.right.get(), frame), SocketResult::done);
    CHECK(frame.bytes.empty() && frame.fds.empty());

    char control[CMSG_SPACE(sizeof(int) * 20)] = {};
    char byte = 1;
    iovec iov{&byte, 1};
    msghdr message{};
    message.msg_iov = &iov;
    message.msg_iovlen = 1;
    message.msg_control = control;
    message.msg_controllen = sizeof(control);
    cmsghdr* header = CMSG_FIRSTHDR(&message);
    header->cmsg_level = SOL_SOCKET;
    header->cmsg_type = SCM_RIGHTS;
    header->cmsg_len = CMSG_LEN(sizeof(int) * 20);
    for (std::size_t i = 0; i < 20; ++i) {
      const int fd = event.get();
      std::memcpy(CMSG_DATA(header) + i * sizeof(int), &fd, sizeof(fd));
    }
    REQUIRE(::sendmsg(s.left.get(), &message, 0) == 1);
    CHECK_EQ(receive_frame(s.right.get(), frame), SocketResult::done);
    CHECK(frame.bytes.empty() && frame.fds.empty() && !frame.fds_lost);
  }
  CHECK(before.none());
}

TEST("descriptors that find no place here are reported as lost, not as a malformed frame") {
  const Leftovers before;
  {
    Sockets s;
    const UniqueFd event = test::event_fd();
    const int fds[] = {event.get(), event.get(), event.get()};
    const Bytes bytes(10, std::byte{7});
    CHECK_EQ(send_frame(s.left.get(), bytes, fds), SocketResult::done);
    rlimit old{};
    REQUIRE(::getrlimit(RLIMIT_NOFILE, &old) == 0);
    rlimit low = old;
    low.rlim_cur = static_cast<rlim_t>(event.get()) + 2;  // one more fits
    REQUIRE(::setrlimit(RLIMIT_NOFILE, &low) == 0);
    Frame frame;
    const SocketResult result = receive_frame(s.right.get(), frame);
    REQUIRE(::setrlimit(RLIMIT_NOFILE, &old) == 0);
    CHECK_EQ(result, SocketResult::done);
    CHECK(frame.fds_lost && frame.fds.empty());
    CHECK(frame.bytes == bytes);
  }
  CHECK(before.none());
}

TEST("a socket whose other end does not read says again, not closed, and loses nothing") {
  Sockets s;
  const Bytes bytes(1000, std::byte{7});
  std::size_t sent = 0;
  while (send_frame(s.left.get(), bytes, {}) == SocketResult::done) {
    ++sent;
  }
  CHECK_EQ(send_frame(s.left.get(), bytes, {}), SocketResult::again);
  Frame frame;
  std::size_t received = 0;
  while (receive_frame(s.right.get(), frame) == SocketResult::done) {
    CHECK_EQ(frame.bytes.size(), 1000U);
    ++received;
  }
  CHECK_EQ(received, sent);
}

TEST("credentials and pidfd name the process at the other end") {
  Sockets s;
  const auto credentials = peer_credentials(s.left.get());
  REQUIRE(credentials.has_value());
  CHECK_EQ(credentials->pid, ::getpid());
  CHECK_EQ(credentials->uid, ::geteuid());
  UniqueFd pidfd;
  CHECK(ok(peer_pidfd(s.left.get(), credentials->pid, pidfd)));
  CHECK(pidfd.valid());
  CHECK(!test::readable(pidfd.get()));  // we live
  CHECK(!peer_credentials(-1).has_value());
}

}  // namespace
}  // namespace hixl_aio::host

HIXL_TEST_MAIN
