// How much memory may still be used, read from files that the test makes.
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "host_support.h"
#include "transports/host/memory_limit.h"

namespace hixl_aio::host {
namespace {

constexpr std::uint64_t kMiB = 1U << 20U;

struct Machine {
  std::filesystem::path root = std::filesystem::temp_directory_path() / ("hixl-aio-limit-" + std::to_string(getpid()));
  Machine() {
    std::filesystem::create_directories(root);
    write("proc/meminfo", "MemTotal:       2048000 kB\nMemFree:  1 kB\nMemAvailable:    1024000 kB\n");
  }
  Machine(const Machine&) = delete;
  Machine& operator=(const Machine&) = delete;
  ~Machine() { std::filesystem::remove_all(root); }
  void write(const std::string& name, const std::string& text) const {
    std::filesystem::create_directories((root / name).parent_path());
    std::ofstream(root / name) << text;
  }
  void limit(const std::string& group, std::uint64_t most, std::uint64_t used) const {
    write(group + "/memory.max", std::to_string(most * kMiB) + "\n");
    write(group + "/memory.current", std::to_string(used * kMiB) + "\n");
  }
  [[nodiscard]] std::uint64_t available() const { return available_nbytes(root.string()); }
};

TEST("without control groups it is what the machine has, and without a /proc there is no limit") {
  const Machine machine;
  CHECK_EQ(machine.available(), 1000 * kMiB);
  CHECK(available_nbytes("/nonexistent") > (1ULL << 60U));
}

TEST("the tightest of the groups above us counts, whatever our own one says") {
  const Machine machine;
  machine.write("proc/self/cgroup", "0::/system.slice/our.service\n");
  machine.write("sys/fs/cgroup/system.slice/our.service/memory.max", "max\n");
  machine.write("sys/fs/cgroup/system.slice/our.service/memory.current", "1000\n");
  CHECK_EQ(machine.available(), 1000 * kMiB);
  machine.limit("sys/fs/cgroup/system.slice", 300, 100);
  CHECK_EQ(machine.available(), 200 * kMiB);
  machine.limit("sys/fs/cgroup/system.slice/our.service", 150, 100);
  CHECK_EQ(machine.available(), 50 * kMiB);
  machine.limit("sys/fs/cgroup/system.slice/our.service", 100, 150);
  CHECK_EQ(machine.available(), 0U);
}

TEST("in a container the path leads nowhere, and the mount is our group") {
  const Machine machine;
  machine.write("proc/self/cgroup", "0::/../../docker/1234\n");
  machine.limit("sys/fs/cgroup", 500, 100);
  CHECK_EQ(machine.available(), 400 * kMiB);
}

TEST("pages of files that can be given back count as available") {
  const Machine machine;
  machine.write("proc/self/cgroup", "0::/a\n");
  machine.limit("sys/fs/cgroup/a", 500, 400);
  machine.write("sys/fs/cgroup/a/memory.stat", "anon 1\nfile 2\ninactive_file " + std::to_string(150 * kMiB) + "\n");
  CHECK_EQ(machine.available(), 250 * kMiB);
}

TEST("groups of version 1 have names of their own, and only the line of memory counts") {
  const Machine machine;
  machine.write("proc/self/cgroup", "5:cpu,memory:/a/b\n3:memorial:/c\n1:name=systemd:/d\nnonsense\n");
  for (const auto& [group, most] : {std::pair{"a", 700}, std::pair{"a/b", 900}, std::pair{"c", 1}, std::pair{"d", 1}}) {
    const std::string path = std::string("sys/fs/cgroup/memory/") + group;
    machine.write(path + "/memory.limit_in_bytes", std::to_string(most * kMiB) + "\n");
    machine.write(path + "/memory.usage_in_bytes", std::to_string(100 * kMiB) + "\n");
    machine.write(path + "/memory.stat", "total_inactive_file " + std::to_string(40 * kMiB) + "\n");
  }
  CHECK_EQ(machine.available(), 640 * kMiB);
}

}  // namespace
}  // namespace hixl_aio::host

HIXL_TEST_MAIN
