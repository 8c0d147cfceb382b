#include "transports/host/fragile_memory.h"

#include <dirent.h>
#include <fcntl.h>
#include <linux/magic.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <sys/uio.h>
#include <sys/vfs.h>
#include <unistd.h>

#include <cerrno>
#include <charconv>
#include <cstdio>
#include <fstream>
#include <map>
#include <mutex>
#include <shared_mutex>
#include <string_view>

#include "transports/host/fd.h"
#include "transports/host/links.h"

namespace hixl_aio::host {
namespace {

std::uintptr_t number(const std::byte* address) noexcept { return reinterpret_cast<std::uintptr_t>(address); }

// How many listed ranges cover each address: a key, and the count from there to the next key.
class Ranges {
 public:
  void change(std::uintptr_t begin, std::uintptr_t end, int by) {
    const auto first = cut(begin);
    const auto last = cut(end);
    for (auto it = first; it != last; ++it) {
      it->second += by;
    }
    for (auto it = first; it != depth_.end() && it->first <= end;) {
      const int before = it == depth_.begin() ? 0 : std::prev(it)->second;
      it = it->second == before ? depth_.erase(it) : std::next(it);
    }
  }
  [[nodiscard]] bool touch(std::uintptr_t begin, std::uintptr_t end) const noexcept {
    const auto next = depth_.upper_bound(begin);
    const bool inside = next != depth_.begin() && std::prev(next)->second > 0;
    return inside || (next != depth_.end() && next->first < end);  // outside of all, the next key begins one
  }

  std::shared_mutex mutex;

 private:
  std::map<std::uintptr_t, int>::iterator cut(std::uintptr_t at) {
    const auto next = depth_.upper_bound(at);
    return depth_.try_emplace(at, next == depth_.begin() ? 0 : std::prev(next)->second).first;
  }
  std::map<std::uintptr_t, int> depth_;
};

// Never destroyed: regions may outlive the statics of the process.
Ranges*& ranges() {
  static auto* the_ranges = new Ranges;
  return the_ranges;
}

struct Mapping {
  std::uintptr_t begin = 0;
  std::uintptr_t end = 0;
  unsigned major_number = 0;
  unsigned minor_number = 0;
  unsigned long long inode = 0;
  std::string name;

  // A line of /proc/self/maps: "begin-end rights offset major:minor inode      name".
  static bool parse(const std::string& line, Mapping& out) {
    unsigned long long begin = 0;
    unsigned long long end = 0;
    int name_at = 0;
    if (std::sscanf(line.c_str(), "%llx-%llx %*4s %*x %x:%x %llu %n", &begin, &end, &out.major_number,
                    &out.minor_number, &out.inode, &name_at) < 5) {
      return false;
    }
    out.begin = static_cast<std::uintptr_t>(begin);
    out.end = static_cast<std::uintptr_t>(end);
    out.name = line.substr(static_cast<std::size_t>(name_at));
    return true;
  }
};

// A memfd that nobody can shrink. What says so is a descriptor of it, and whoever has mapped it usually kept one.
bool sealed_memfd(const Mapping& mapping) {
  if (!mapping.name.starts_with("/memfd:")) {
    return false;
  }
  DIR* directory = opendir("/proc/self/fd");
  if (directory == nullptr) {
    return false;
  }
  const auto is_it = [&mapping](int fd) {
    struct stat info {};
    return fstat(fd, &info) == 0 && info.st_ino == mapping.inode && major(info.st_dev) == mapping.major_number &&
           minor(info.st_dev) == mapping.minor_number;
  };
  bool sealed = false;
  while (const dirent* entry = readdir(directory)) {
    const std::string_view text(entry->d_name);
    int fd = -1;
    if (std::from_chars(text.data(), text.data() + text.size(), fd).ec != std::errc() || !is_it(fd)) {
      continue;
    }
    struct statfs system {};
    const int seals = fcntl(fd, F_GET_SEALS);
    // Huge pages may be missing when they are touched, seal or not.
    sealed = seals >= 0 && (seals & F_SEAL_SHRINK) != 0 && fstatfs(fd, &system) == 0 && system.f_type == TMPFS_MAGIC &&
             is_it(fd);  // still: another thread may have closed it meanwhile
    break;
  }
  closedir(directory);
  return sealed;
}

// "/dev/zero (deleted)" is how the kernel names shared anonymous memory, which has no file that could shrink.
bool stays(const Mapping& mapping) {
  return mapping.inode == 0 || mapping.name == "/dev/zero (deleted)" || sealed_memfd(mapping);
}

// The name of what may go; empty: nothing may.
std::string fragile_part(std::uintptr_t begin, std::uintptr_t end) {
  std::ifstream maps("/proc/self/maps");
  std::string line;
  Mapping mapping;
  while (begin < end && std::getline(maps, line)) {
    if (!Mapping::parse(line, mapping) || mapping.end <= begin) {
      continue;
    }
    if (mapping.begin > begin || !stays(mapping)) {
      break;
    }
    begin = mapping.end;
  }
  if (begin >= end) {
    return {};
  }
  return mapping.begin <= begin && begin < mapping.end ? mapping.name : "unknown";
}

// Empty: it works. Else the reason.
std::string kernel_refusal() {
  std::uint64_t from = 1;
  std::uint64_t to = 0;
  iovec local{&to, sizeof(to)};
  iovec remote{&from, sizeof(from)};
  for (const auto call : {process_vm_readv, process_vm_writev}) {
    if (call(getpid(), &local, 1, &remote, 1, 0) != static_cast<ssize_t>(sizeof(to))) {
      return std::strerror(errno);
    }
  }
  return {};
}

}  // namespace

std::shared_ptr<FragileMemory> FragileMemory::look(const std::byte* address, std::uint64_t nbytes, std::string& error) {
  const std::string name = fragile_part(number(address), number(address) + nbytes);
  if (name.empty()) {
    return nullptr;
  }
  if (const std::string reason = kernel_refusal(); !reason.empty()) {
    error = "memory that maps the file " + name + ", which may be truncated: copying it safely needs process_vm_readv and " +
            "process_vm_writev on the own process, and here they are refused (" + reason +
            "); copy it into memory of your own, use allocate(), or allow these calls (seccomp)";
    return nullptr;
  }
  return std::make_shared<FragileMemory>(address, nbytes);
}

FragileMemory::FragileMemory(const std::byte* address, std::uint64_t nbytes)
    : address_(address), nbytes_(nbytes), epoch_(FdRegistry::epoch()) {
  Ranges& all = *ranges();
  const std::lock_guard lock(all.mutex);
  all.change(number(address_), number(address_) + nbytes_, 1);
  count_.fetch_add(1, std::memory_order_release);
}

FragileMemory::~FragileMemory() {
  if (epoch_ != FdRegistry::epoch()) {
    return;  // forgotten with all others
  }
  Ranges& all = *ranges();
  const std::lock_guard lock(all.mutex);
  all.change(number(address_), number(address_) + nbytes_, -1);
  count_.fetch_sub(1, std::memory_order_release);
}

void FragileMemory::forget_all() {
  ranges() = new Ranges;  // the old one is left as it is, locked or not
  count_.store(0, std::memory_order_relaxed);
}

bool FragileMemory::listed(const std::byte* address, std::uint64_t nbytes) noexcept {
  Ranges& all = *ranges();
  const std::shared_lock lock(all.mutex);
  return all.touch(number(address), number(address) + nbytes);
}

bool copy_fragile(std::byte* to, const std::byte* from, std::uint64_t nbytes) noexcept {
  if (nbytes == 0) {
    return true;
  }
  auto* source = const_cast<std::byte*>(from);  // iovec has no const; nothing writes there
  const bool fragile_source = FragileMemory::touches(from, nbytes);
  if (!fragile_source && !FragileMemory::touches(to, nbytes)) {
    std::memcpy(to, from, nbytes);
    return true;
  }
  // The fragile end is the local one: that takes memory of every kind, also what a driver has mapped.
  iovec local{fragile_source ? source : to, nbytes};
  iovec remote{fragile_source ? to : source, nbytes};
  std::uint64_t moved = 0;
  return ok(cma_copy(getpid(), fragile_source ? Direction::put : Direction::get, {&local, 1}, {&remote, 1}, moved));
}

}  // namespace hixl_aio::host
