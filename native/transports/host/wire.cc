#include "transports/host/wire.h"

#include <fcntl.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <fstream>

#ifndef SO_PEERPIDFD
#define SO_PEERPIDFD 77
#endif

namespace hixl_aio::host {

std::string hex(const Incarnation& incarnation) {
  static constexpr char digits[] = "0123456789abcdef";
  std::string out;
  for (const std::uint8_t byte : incarnation) {
    out.push_back(digits[byte >> 4U]);
    out.push_back(digits[byte & 15U]);
  }
  return out;
}

Status status_from_wire(std::int32_t value) noexcept {
  const auto status = static_cast<Status>(value);
  switch (status) {  // complete, so that the compiler asks about a new one
    case Status::ok:
    case Status::stopped:
    case Status::failed:
    case Status::lost:
    case Status::peer_lost:
    case Status::peer_closed:
    case Status::not_connected:
    case Status::stale_region:
    case Status::access_denied:
    case Status::out_of_bounds:
    case Status::no_link:
    case Status::queue_full:
    case Status::signal_queue_full:
    case Status::invalid_argument:
    case Status::unsupported:
    case Status::closed:
    case Status::resource_exhausted:
    case Status::timed_out:
    case Status::handshake_refused:
    case Status::permission_denied:
    case Status::address_in_use:
    case Status::connect_failed:
    case Status::not_registered:
    case Status::region_busy:
    case Status::internal:
    case Status::authentication_failed:
      return status;
    case Status::would_block:
      break;
  }
  return Status::failed;
}

Writer& Writer::append(const void* data, std::size_t nbytes) {
  const std::size_t at = bytes_.size();
  bytes_.resize(at + nbytes);
  if (nbytes > 0) {
    std::memcpy(bytes_.data() + at, data, nbytes);
  }
  return *this;
}

Writer& Writer::text(std::string_view value, std::size_t cap) {
  value = value.substr(0, cap);
  return put(static_cast<std::uint16_t>(value.size())).append(value.data(), value.size());
}

Writer& Writer::raw(std::span<const std::uint8_t> value) { return append(value.data(), value.size()); }

std::string Reader::text(std::size_t cap) {
  const auto size = take<std::uint16_t>();
  if (!good_ || size > cap || bytes_.size() - at_ < size) {
    good_ = false;
    return {};
  }
  std::string out(reinterpret_cast<const char*>(bytes_.data() + at_), size);
  at_ += size;
  return out;
}

void Reader::raw(std::span<std::uint8_t> out) noexcept {
  if (!good_ || bytes_.size() - at_ < out.size()) {
    good_ = false;
    return;
  }
  std::memcpy(out.data(), bytes_.data() + at_, out.size());
  at_ += out.size();
}

std::vector<std::byte> Greeting::encode() const {
  Writer writer;
  writer.put(kWireMagic).put(version).raw(incarnation).text(host_id, 64).text(control_socket, 64);
  return writer.bytes();
}

Status parse_greeting(std::span<const std::byte> bytes, Greeting& out, std::string& error) {
  Reader reader(bytes);
  if (reader.take<std::uint64_t>() != kWireMagic || !reader.good()) {
    error = "the other end does not speak the hixl-aio protocol; check the address";
    return Status::handshake_refused;
  }
  out.version = reader.take<std::uint32_t>();
  if (!reader.good()) {
    error = "the greeting is malformed";
    return Status::handshake_refused;
  }
  if (out.version != kWireVersion) {
    error = "wire version: ours " + std::to_string(kWireVersion) + ", theirs " + std::to_string(out.version) +
            "; install the same release on both sides";
    return Status::handshake_refused;
  }
  reader.raw(out.incarnation);
  out.host_id = reader.text(64);
  out.control_socket = reader.text(64);
  if (!reader.finished()) {
    error = "the greeting is malformed";
    return Status::handshake_refused;
  }
  return Status::ok;
}

bool may_become_greeting(std::span<const std::byte> bytes) noexcept {
  const std::uint64_t magic = kWireMagic;
  const std::uint32_t version = kWireVersion;
  std::byte expected[sizeof(magic) + sizeof(version)];
  std::memcpy(expected, &magic, sizeof(magic));
  std::memcpy(expected + sizeof(magic), &version, sizeof(version));
  if (bytes.size() < sizeof(expected)) {
    // Half a version number says nothing yet.
    return std::memcmp(bytes.data(), expected, std::min(bytes.size(), sizeof(magic))) == 0;
  }
  return std::memcmp(bytes.data(), expected, sizeof(expected)) == 0;
}

std::vector<std::byte> Hello::encode(FrameType type) const {
  Writer writer;
  writer.type(type).put(kWireVersion).raw(incarnation).raw(process);
  writer.text(name, kMaxName).text(address, kMaxName).put(doorbell_place).put(probe_address).raw(probe_value);
  return writer.bytes();
}

bool parse_hello(std::span<const std::byte> bytes, FrameType type, Hello& out) {
  Reader reader(bytes);
  if (reader.take<std::uint8_t>() != static_cast<std::uint8_t>(type) || reader.take<std::uint32_t>() != kWireVersion) {
    return false;
  }
  reader.raw(out.incarnation);
  reader.raw(out.process);
  out.name = reader.text(kMaxName);
  out.address = reader.text(kMaxName);
  out.doorbell_place = reader.take<std::uint32_t>();
  out.probe_address = reader.take<std::uint64_t>();
  reader.raw(out.probe_value);
  return reader.finished();
}

void RegionFrame::encode(Writer& writer) const {
  writer.put(region).put(generation).put(static_cast<std::uint8_t>(kind)).put(static_cast<std::uint8_t>(access));
  writer.put(segment).put(segment_offset).put(nbytes).put(address).text(label, kMaxLabel);
}

bool RegionFrame::parse(Reader& reader, RegionFrame& out) {
  out.region = reader.take<std::uint32_t>();
  out.generation = reader.take<std::uint32_t>();
  const auto kind = reader.take<std::uint8_t>();
  const auto access = reader.take<std::uint8_t>();
  out.segment = reader.take<std::uint32_t>();
  out.segment_offset = reader.take<std::uint64_t>();
  out.nbytes = reader.take<std::uint64_t>();
  out.address = reader.take<std::uint64_t>();
  out.label = reader.text(kMaxLabel);
  if (!reader.good() || kind > 1 || access == 0 || access > 3 || out.generation == 0) {
    return false;
  }
  out.kind = static_cast<MemoryKind>(kind);
  out.access = static_cast<Access>(access);
  return true;
}

SocketResult send_frame(int socket, std::span<const std::byte> bytes, std::span<const int> fds) noexcept {
  iovec iov{const_cast<std::byte*>(bytes.data()), bytes.size()};
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int) * kMaxFds)] = {};
  msghdr message{};
  message.msg_iov = &iov;
  message.msg_iovlen = 1;
  if (!fds.empty()) {
    message.msg_control = control;
    message.msg_controllen = CMSG_SPACE(sizeof(int) * fds.size());
    cmsghdr* header = CMSG_FIRSTHDR(&message);
    header->cmsg_level = SOL_SOCKET;
    header->cmsg_type = SCM_RIGHTS;
    header->cmsg_len = CMSG_LEN(sizeof(int) * fds.size());
    std::memcpy(CMSG_DATA(header), fds.data(), sizeof(int) * fds.size());
  }
  for (;;) {
    if (sendmsg(socket, &message, MSG_NOSIGNAL | MSG_DONTWAIT) >= 0) {
      return SocketResult::done;
    }
    if (errno == EINTR) {
      continue;
    }
    // ETOOMANYREFS: too many descriptors are in flight to somebody who does not read; the queue will try again.
    return errno == EAGAIN || errno == ENOBUFS || errno == ENOMEM || errno == ETOOMANYREFS ? SocketResult::again
                                                                                          : SocketResult::closed;
  }
}

SocketResult receive_frame(int socket, Frame& out) {
  out.bytes.resize(kMaxFrame);
  out.fds.clear();
  out.fds_lost = false;
  iovec iov{out.bytes.data(), out.bytes.size()};
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int) * kMaxFds)] = {};
  msghdr message{};
  message.msg_iov = &iov;
  message.msg_iovlen = 1;
  message.msg_control = control;
  message.msg_controllen = sizeof(control);
  ssize_t received = 0;
  bool reset = false;  // the other end closed with frames of ours unread: said once, before what it sent itself
  for (;;) {
    received = recvmsg(socket, &message, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
    if (received >= 0 || (errno != EINTR && (errno != ECONNRESET || reset))) {
      break;
    }
    reset |= errno == ECONNRESET;
  }
  if (received < 0) {
    out.bytes.clear();
    return errno == EAGAIN ? SocketResult::again : SocketResult::closed;
  }
  for (cmsghdr* header = CMSG_FIRSTHDR(&message); header != nullptr; header = CMSG_NXTHDR(&message, header)) {
    if (header->cmsg_level == SOL_SOCKET && header->cmsg_type == SCM_RIGHTS) {
      const std::size_t count = (header->cmsg_len - CMSG_LEN(0)) / sizeof(int);
      for (std::size_t i = 0; i < count; ++i) {
        int fd = -1;
        std::memcpy(&fd, CMSG_DATA(header) + i * sizeof(int), sizeof(int));
        out.fds.emplace_back(fd);
      }
    }
  }
  if (received == 0) {
    out.bytes.clear();
    return SocketResult::closed;
  }
  out.bytes.resize(static_cast<std::size_t>(received));
  const bool fds_cut = (message.msg_flags & MSG_CTRUNC) != 0;
  const bool too_many = fds_cut && out.fds.size() == kMaxFds;
  if (fds_cut) {
    out.fds.clear();
    out.fds_lost = !too_many;
  }
  if ((message.msg_flags & MSG_TRUNC) != 0 || too_many) {
    out.bytes.clear();
    out.fds.clear();
  }
  return SocketResult::done;
}

std::optional<Credentials> peer_credentials(int socket) noexcept {
  ucred credentials{};
  socklen_t length = sizeof(credentials);
  if (getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &credentials, &length) != 0) {
    return std::nullopt;
  }
  return Credentials{credentials.pid, credentials.uid};
}

Status peer_pidfd(int socket, std::int64_t pid, UniqueFd& out) noexcept {
  int fd = -1;
  socklen_t length = sizeof(fd);
  // Linux 6.5: exactly the process at the other end, whatever its number means by now.
  if (getsockopt(socket, SOL_SOCKET, SO_PEERPIDFD, &fd, &length) != 0) {
    fd = pid > 0 ? static_cast<int>(syscall(SYS_pidfd_open, static_cast<pid_t>(pid), 0)) : -1;
  }
  const bool exhausted = fd < 0 && pid > 0 && (errno == EMFILE || errno == ENFILE || errno == ENOMEM);
  out.reset(fd);
  return exhausted ? Status::resource_exhausted : Status::ok;
}

bool is_event_fd(int fd) noexcept {
  // Anonymous inodes have no type; those among them that cannot be written say so without blocking.
  struct stat info {};
  const int flags = fcntl(fd, F_GETFL);
  return fstat(fd, &info) == 0 && (info.st_mode & S_IFMT) == 0 && flags >= 0 && (flags & O_NONBLOCK) != 0;
}

std::string read_boot_id() {
  std::ifstream file("/proc/sys/kernel/random/boot_id");
  std::string id;
  file >> id;
  return id.substr(0, 64);
}

bool random_bytes(std::span<std::uint8_t> out) noexcept {
  std::size_t filled = 0;
  while (filled < out.size()) {
    const ssize_t got = getrandom(out.data() + filled, out.size() - filled, 0);
    if (got < 0 && errno != EINTR) {
      return false;
    }
    filled += got > 0 ? static_cast<std::size_t>(got) : 0;
  }
  return true;
}

}  // namespace hixl_aio::host
