// What stands in the way of process_vm, read from a /proc that the test makes.
#include <sys/stat.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "host_support.h"
#include "transports/host/links.h"

namespace hixl_aio::host {
namespace {

struct FakeProc {
  std::filesystem::path root;
  FakeProc() {
    std::string name = (std::filesystem::temp_directory_path() / "hixl-aio-proc-XXXXXX").string();
    REQUIRE(mkdtemp(name.data()) != nullptr);
    root = name;
    write("42/status", "Name:\tpeer\n");
    write("self/status", "Name:\tus\nSeccomp:\t0\nSeccomp_filters:\t0\n");
  }
  FakeProc(const FakeProc&) = delete;
  FakeProc& operator=(const FakeProc&) = delete;
  ~FakeProc() { std::filesystem::remove_all(root); }
  void write(const char* name, const std::string& text) const {
    std::filesystem::create_directories((root / name).parent_path());
    std::ofstream(root / name) << text;
  }
  [[nodiscard]] std::string obstacle() const { return cma_obstacle(42, root.string()); }
};

TEST("where nothing shows, nothing is said: no Yama, Yama at 0, no filter, no such process") {
  const FakeProc proc;
  CHECK_EQ(proc.obstacle(), "");
  proc.write("sys/kernel/yama/ptrace_scope", "0\n");
  CHECK_EQ(proc.obstacle(), "");
  CHECK_EQ(cma_obstacle(43, proc.root.string()), "");
  CHECK_EQ(cma_obstacle(42, "/nonexistent"), "");
}

TEST("each level of Yama is named with what to do about it") {
  const FakeProc proc;
  for (const char* level : {"1", "2", "3"}) {
    proc.write("sys/kernel/yama/ptrace_scope", std::string(level) + "\n");
    const std::string said = proc.obstacle();
    CHECK(said.starts_with(std::string("kernel.yama.ptrace_scope is ") + level));
    CHECK_EQ(said.find("EngineOptions.allow_ptrace") != std::string::npos, level[0] == '1');
    CHECK_EQ(said.find("ask for 1 or 0") != std::string::npos, level[0] != '1');
  }
}

TEST("a seccomp filter is named, whatever else the line of its count says") {
  const FakeProc proc;
  proc.write("self/status", "Name:\tus\nSeccomp:\t2\nSeccomp_filters:\t1\n");
  CHECK(proc.obstacle().starts_with("a seccomp filter"));
  proc.write("self/status", "Name:\tus\nSeccomp:\t0\nSeccomp_filters:\t12\n");
  CHECK_EQ(proc.obstacle(), "");
}

TEST("a process that is not dumpable belongs to root in /proc, and that is what is said first") {
  if (geteuid() != 0) {
    return;  // only root can give a file away
  }
  const FakeProc proc;
  proc.write("sys/kernel/yama/ptrace_scope", "1\n");
  REQUIRE(chown((proc.root / "42/status").c_str(), 65534, 65534) == 0);
  CHECK(proc.obstacle().find("not dumpable") != std::string::npos);
}

}  // namespace
}  // namespace hixl_aio::host

HIXL_TEST_MAIN
