// The one parser of addresses.
#include <netinet/in.h>
#include <sys/un.h>

#include <random>

#include "host_support.h"
#include "transports/host/address.h"

namespace hixl_aio::host {
namespace {

using namespace std::string_literals;

struct Parsed {
  Status status = Status::internal;
  Address address;
  std::string error;
};

Parsed parse(const std::string& text) {
  Parsed out;
  out.status = parse_address(text, out.address, out.error);
  return out;
}

TEST("every accepted form is parsed into one canonical text, whichever way it was written") {
  struct Case {
    std::string text;
    std::string canonical;
    std::uint16_t port;
    bool loopback;
  };
  const Case cases[] = {
      {"127.0.0.1:0", "127.0.0.1:0", 0, true},
      {"127.0.0.1:65535", "127.0.0.1:65535", 65535, true},
      {"127.255.0.9:00080", "127.255.0.9:80", 80, true},
      {"localhost:7", "127.0.0.1:7", 7, true},
      {"0.0.0.0:7", "0.0.0.0:7", 7, false},
      {"10.0.0.1:7", "10.0.0.1:7", 7, false},
      {"128.0.0.1:7", "128.0.0.1:7", 7, false},
      {"[::1]:7", "[::1]:7", 7, true},
      {"[0:0:0:0:0:0:0:1]:7", "[::1]:7", 7, true},
      {"[0::0:1]:7", "[::1]:7", 7, true},
      {"[::]:7", "[::]:7", 7, false},
      {"[FE80::A]:7", "[fe80::a]:7", 7, false},
      {"[::ffff:127.0.0.1]:7", "[::ffff:127.0.0.1]:7", 7, false},
      {"unix:a", "unix:a", 0, true},
      {"unix:with:colons and spaces/slashes", "unix:with:colons and spaces/slashes", 0, true},
      {"unix:" + std::string(80, 'x'), "unix:" + std::string(80, 'x'), 0, true},
  };
  for (const Case& each : cases) {
    const Parsed parsed = parse(each.text);
    CHECK_EQ(parsed.status, Status::ok);
    CHECK_EQ(parsed.address.text(), each.canonical);
    CHECK_EQ(parsed.address.port, each.port);
    CHECK_EQ(parsed.address.loopback, each.loopback);
    CHECK_EQ(parsed.address.unix_name, each.text.starts_with("unix:"));
  }
  const Parsed v4 = parse("127.0.0.1:258");
  sockaddr_in in{};
  std::memcpy(&in, &v4.address.storage, sizeof(in));
  CHECK_EQ(v4.address.length, sizeof(in));
  CHECK_EQ(in.sin_family, AF_INET);
  CHECK_EQ(ntohs(in.sin_port), 258);
  const Parsed v6 = parse("[::1]:258");
  sockaddr_in6 in6{};
  std::memcpy(&in6, &v6.address.storage, sizeof(in6));
  CHECK_EQ(v6.address.length, sizeof(in6));
  CHECK_EQ(in6.sin6_family, AF_INET6);
  CHECK_EQ(ntohs(in6.sin6_port), 258);
  const Parsed name = parse("unix:abc");
  CHECK_EQ(name.address.storage.ss_family, AF_UNIX);
  CHECK(name.address.length < sizeof(sockaddr_un));
  const Parsed other = parse("unix:abcd");
  CHECK(name.address.length != other.address.length);  // the kernel compares the length too
}

TEST("every malformed form is an invalid argument whose text shows the address and the accepted forms") {
  const std::string cases[] = {
      "", ":", "::", "127.0.0.1", "127.0.0.1:", ":80", "127.0.0.1:65536", "127.0.0.1:-1", "127.0.0.1:+1",
      "127.0.0.1: 1", "127.0.0.1:1 ", "127.0.0.1:0x1", "127.0.0.1:1e3", "127.0.0.1:99999999999999999999",
      " 127.0.0.1:1", "127.0.0.1 :1",
      "127.0.0:1", "127.0.0.1.1:1", "127.0.0.256:1", "1270.0.0.1:1", "::1:80", "[::1]", "[::1", "::1]:80", "[]:80",
      "[127.0.0.1]:80", "[::1%lo]:80", "[[::1]]:80", "[::1]x:80", "[::1]80", "[:80", "]:80", "[]", "example.com:80",
      "LOCALHOST:80", "unix:", "unix", "UNIX:x", "unix:" + std::string(81, 'x'), "unix:a\0b"s, "unix:\0"s,
      "127.0.0.1\0:80"s, "127.0.0.1\0x:80"s, "localhost\0:80"s, "[::1\0]:80"s, "127.0.0.1:80\0"s, "tcp://127.0.0.1:80",
      std::string(100'000, '1'), std::string(100'000, ':'), "[" + std::string(100'000, ':') + "]:1",
  };
  for (const std::string& text : cases) {
    const Parsed parsed = parse(text);
    if (parsed.status != Status::invalid_argument) {
      CHECK_EQ(text, "an address that is refused");
    }
    CHECK(parsed.error.find("unix:NAME") != std::string::npos);
    CHECK(parsed.error.find("address '" + text + "'") != std::string::npos);
  }
}

TEST("a million random addresses are refused with a text or keep their canonical form, and never hurt the parser") {
  std::mt19937_64 random(1);
  const std::string_view pieces[] = {"127.0.0.1", "localhost", "[", "]", "::1", ":", "unix:", "0", "80", "65535", ".",
                                     "\0", "x", "255", "fe80::", "-", " ", "%lo", "::", "1"};
  std::size_t accepted = 0;
  for (int i = 0; i < 1'000'000; ++i) {
    std::string text;
    for (std::size_t n = random() % 6 + 1; n > 0; --n) {
      text += random() % 16 == 0 ? std::string(1, static_cast<char>(random()))
                                 : std::string(pieces[random() % std::size(pieces)]);
    }
    const Parsed parsed = parse(text);
    if (!ok(parsed.status)) {
      CHECK(!parsed.error.empty());
      continue;
    }
    ++accepted;
    const std::string canonical = parsed.address.text();
    const Parsed again = parse(canonical);
    if (!CHECK(ok(again.status) && again.address.text() == canonical &&
               again.address.length == parsed.address.length &&
               std::memcmp(&again.address.storage, &parsed.address.storage, parsed.address.length) == 0)) {
      CHECK_EQ(text, canonical);
      break;
    }
  }
  CHECK(accepted > 1000);
}

}  // namespace
}  // namespace hixl_aio::host

HIXL_TEST_MAIN
