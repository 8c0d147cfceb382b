// The one parser of engine addresses: `host:port`, `[v6]:port`, `unix:NAME`.
#pragma once

#include <sys/socket.h>

#include <cstdint>
#include <string>
#include <string_view>

#include "hixl_aio/status.h"

namespace hixl_aio::host {

struct Address {
  bool unix_name = false;
  std::string host;  // IP literal without brackets, or the unix name
  std::uint16_t port = 0;
  sockaddr_storage storage{};
  socklen_t length = 0;
  bool loopback = false;

  [[nodiscard]] std::string text() const;
};

// On failure `error` says what is wrong and shows the accepted forms.
[[nodiscard]] Status parse_address(std::string_view text, Address& out, std::string& error);

// The abstract unix name of a public `unix:NAME` engine, or of a control socket.
[[nodiscard]] bool abstract_address(std::string_view name, sockaddr_storage& storage, socklen_t& length) noexcept;

}  // namespace hixl_aio::host
