#include "transports/host/address.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/un.h>

#include <charconv>
#include <cstddef>
#include <cstring>

namespace hixl_aio::host {
namespace {

constexpr std::size_t kMaxUnixName = 80;  // sun_path holds 108 with our prefix

// One way to write each address, so that two spellings of one engine are one peer.
std::string canonical(int family, const void* binary) {
  char text[INET6_ADDRSTRLEN] = {};
  return inet_ntop(family, binary, text, sizeof(text)) != nullptr ? text : "";
}

bool parse_port(std::string_view text, std::uint16_t& port) noexcept {
  unsigned value = 0;
  const auto [end, code] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (text.empty() || code != std::errc{} || end != text.data() + text.size() || value > 65535) {
    return false;
  }
  port = static_cast<std::uint16_t>(value);
  return true;
}

Status refuse(std::string_view text, std::string_view why, std::string& error) {
  error = "address '" + std::string(text) + "': " + std::string(why) +
          "; write 127.0.0.1:PORT, [::1]:PORT or unix:NAME (port 0 lets the kernel choose)";
  return Status::invalid_argument;
}

Status parse_unix(std::string_view text, std::string_view name, Address& out, std::string& error) {
  if (name.empty() || name.size() > kMaxUnixName) {
    return refuse(text, "the unix name must have 1 to 80 bytes", error);
  }
  if (name.find('\0') != std::string_view::npos) {
    return refuse(text, "the unix name contains a NUL byte", error);
  }
  out.unix_name = true;
  out.host = std::string(name);
  out.loopback = true;
  if (!abstract_address("hixl-aio/name/" + out.host, out.storage, out.length)) {
    return refuse(text, "the unix name is too long", error);
  }
  return Status::ok;
}

}  // namespace

bool abstract_address(std::string_view name, sockaddr_storage& storage, socklen_t& length) noexcept {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  if (name.size() + 1 > sizeof(address.sun_path)) {
    return false;
  }
  std::memcpy(address.sun_path + 1, name.data(), name.size());  // the leading NUL makes it abstract
  std::memcpy(&storage, &address, sizeof(address));
  length = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + name.size());
  return true;
}

std::string Address::text() const {
  if (unix_name) {
    return "unix:" + host;
  }
  const bool v6 = host.find(':') != std::string::npos;
  return (v6 ? "[" + host + "]" : host) + ":" + std::to_string(port);
}

Status parse_address(std::string_view text, Address& out, std::string& error) {
  out = Address{};
  if (text.starts_with("unix:")) {
    return parse_unix(text, text.substr(5), out, error);
  }
  if (text.find('\0') != std::string_view::npos) {
    return refuse(text, "it contains a NUL byte", error);
  }
  const auto colon = text.rfind(':');
  if (colon == std::string_view::npos) {
    return refuse(text, "there is no port", error);
  }
  if (!parse_port(text.substr(colon + 1), out.port)) {
    return refuse(text, "the port must be a number from 0 to 65535", error);
  }
  std::string_view host = text.substr(0, colon);
  if (host.starts_with('[') && host.ends_with(']')) {
    out.host = std::string(host.substr(1, host.size() - 2));
    sockaddr_in6 address{};
    address.sin6_family = AF_INET6;
    address.sin6_port = htons(out.port);
    if (inet_pton(AF_INET6, out.host.c_str(), &address.sin6_addr) != 1) {
      return refuse(text, "the part in brackets is not an IPv6 literal", error);
    }
    out.host = canonical(AF_INET6, &address.sin6_addr);
    out.loopback = IN6_IS_ADDR_LOOPBACK(&address.sin6_addr) != 0;
    std::memcpy(&out.storage, &address, sizeof(address));
    out.length = sizeof(address);
    return Status::ok;
  }
  // A name would need a resolver, which blocks; only this one is known without.
  out.host = host == "localhost" ? "127.0.0.1" : std::string(host);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(out.port);
  if (inet_pton(AF_INET, out.host.c_str(), &address.sin_addr) != 1) {
    return refuse(text, "the host must be an IP literal (IPv6 in brackets) or localhost", error);
  }
  out.loopback = (ntohl(address.sin_addr.s_addr) >> 24U) == 127;
  std::memcpy(&out.storage, &address, sizeof(address));
  out.length = sizeof(address);
  return Status::ok;
}

}  // namespace hixl_aio::host
