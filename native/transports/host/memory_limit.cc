#include "transports/host/memory_limit.h"

#include <algorithm>
#include <fstream>
#include <string_view>

namespace hixl_aio::host {
namespace {

// How one version of control groups calls things.
struct Names {
  const char* mount;
  const char* limit;
  const char* used;
  const char* cache;  // in memory.stat: pages of files that are given back before anybody is killed
};

constexpr Names kVersion2{"/sys/fs/cgroup", "memory.max", "memory.current", "inactive_file"};
constexpr Names kVersion2BesideVersion1{"/sys/fs/cgroup/unified", "memory.max", "memory.current", "inactive_file"};
constexpr Names kVersion1{"/sys/fs/cgroup/memory", "memory.limit_in_bytes", "memory.usage_in_bytes",
                          "total_inactive_file"};

std::uint64_t read_number(const std::string& path) {
  std::ifstream file(path);
  std::uint64_t value = 0;
  return (file >> value) ? value : UINT64_MAX;  // "max" reads as no number: no limit
}

// The number beside a key, in lines of a key and a number.
std::uint64_t read_field(const std::string& path, std::string_view key, std::uint64_t otherwise) {
  std::ifstream file(path);
  std::string found;
  std::uint64_t value = 0;
  while (file >> found >> value) {
    if (found == key) {
      return value;
    }
    file.ignore(64, '\n');
  }
  return otherwise;
}

std::uint64_t left_in(const std::string& group, const Names& names) {
  const std::uint64_t limit = read_number(group + "/" + names.limit);
  std::uint64_t used = read_number(group + "/" + names.used);
  if (limit == UINT64_MAX || used == UINT64_MAX) {
    return UINT64_MAX;
  }
  used -= std::min(used, read_field(group + "/memory.stat", names.cache, 0));
  return limit > used ? limit - used : 0;
}

// A group and all above it. Inside of a container the path may be the host's and lead nowhere; the mount itself is the
// container's group then.
std::uint64_t left_in_all(const std::string& root, std::string path, const Names& names) {
  std::uint64_t left = UINT64_MAX;
  while (!path.empty() && path != "/") {
    left = std::min(left, left_in(root + names.mount + path, names));
    path.resize(path.rfind('/'));
  }
  return std::min(left, left_in(root + names.mount, names));
}

bool lists_memory(std::string_view controllers) {
  while (!controllers.empty()) {
    const std::size_t end = std::min(controllers.find(','), controllers.size());
    if (controllers.substr(0, end) == "memory") {
      return true;
    }
    controllers.remove_prefix(std::min(end + 1, controllers.size()));
  }
  return false;
}

}  // namespace

std::uint64_t available_nbytes(const std::string& root) {
  const std::uint64_t kib = read_field(root + "/proc/meminfo", "MemAvailable:", UINT64_MAX / 1024);
  std::uint64_t available = kib * 1024;
  std::ifstream groups(root + "/proc/self/cgroup");
  std::string line;  // number:controllers:path
  while (std::getline(groups, line)) {
    const std::size_t first = line.find(':');
    const std::size_t second = first == std::string::npos ? first : line.find(':', first + 1);
    if (second == std::string::npos || second + 1 >= line.size() || line[second + 1] != '/') {
      continue;
    }
    const std::string path = line.substr(second + 1);
    if (second == first + 1) {
      available = std::min(available, left_in_all(root, path, kVersion2));
      available = std::min(available, left_in_all(root, path, kVersion2BesideVersion1));
    } else if (lists_memory(std::string_view(line).substr(first + 1, second - first - 1))) {
      available = std::min(available, left_in_all(root, path, kVersion1));
    }
  }
  return available;
}

}  // namespace hixl_aio::host
