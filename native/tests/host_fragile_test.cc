// Which registered memory counts as fragile, and what copying it does when it is gone.
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <cstdlib>
#include <random>
#include <thread>

#include "host_support.h"
#include "transports/host/fragile_memory.h"
#include "transports/host/memory.h"

namespace hixl_aio::host {
namespace {

using test::all_bytes;
using test::pattern;
using test::same;

constexpr std::size_t kPage = 4096;

struct Map {
  std::byte* bytes;
  std::size_t nbytes;
  Map(std::size_t size, int flags, int fd = -1, int rights = PROT_READ | PROT_WRITE) : nbytes(size) {
    void* base = mmap(nullptr, size, rights, flags, fd, 0);
    REQUIRE(base != MAP_FAILED);
    bytes = static_cast<std::byte*>(base);
  }
  Map(const Map&) = delete;
  Map& operator=(const Map&) = delete;
  ~Map() { munmap(bytes, nbytes); }
};

struct File {
  UniqueFd fd;
  explicit File(std::size_t nbytes) {
    std::string name = (std::filesystem::temp_directory_path() / "hixl-aio-fragile-XXXXXX").string();
    fd.reset(mkostemp(name.data(), O_CLOEXEC));
    REQUIRE(fd.valid() && unlink(name.c_str()) == 0);
    resize(nbytes);
  }
  void resize(std::size_t nbytes) const { REQUIRE(ftruncate(fd.get(), static_cast<off_t>(nbytes)) == 0); }
};

std::shared_ptr<FragileMemory> look(const std::byte* address, std::size_t nbytes) {
  std::string error;
  auto fragile = FragileMemory::look(address, nbytes, error);
  CHECK_EQ(error, "");
  return fragile;
}

UniqueFd memory_file(std::size_t nbytes, int seals) {
  UniqueFd fd(memfd_create("test", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  REQUIRE(ftruncate(fd.get(), static_cast<off_t>(nbytes)) == 0);
  REQUIRE(seals == 0 || fcntl(fd.get(), F_ADD_SEALS, seals) == 0);
  return fd;
}

TEST("memory that nobody can take away is copied as ever: heap, anonymous private and shared, sealed memfds, allocate") {
  const auto heap = pattern(100, 1);
  CHECK(look(heap.data(), heap.size()) == nullptr);
  const Map shared(16 * kPage, MAP_SHARED | MAP_ANONYMOUS);
  CHECK(look(shared.bytes + 1, 3 * kPage) == nullptr);
  const Map own(16 * kPage, MAP_PRIVATE | MAP_ANONYMOUS);
  REQUIRE(mprotect(own.bytes + 4 * kPage, kPage, PROT_READ) == 0);  // three mappings now
  CHECK(look(own.bytes, own.nbytes) == nullptr);
  const UniqueFd sealed = memory_file(2 * kPage, F_SEAL_SHRINK);
  const Map memory(2 * kPage, MAP_SHARED, sealed.get());
  CHECK(look(memory.bytes, memory.nbytes) == nullptr);
  Status status = Status::ok;
  std::string error;
  const auto heap_of_ours = std::make_shared<SharedHeap>(SharedHeap::Owner{});
  const auto block = heap_of_ours->allocate(kPage, SegmentClass::writable, status, error);
  REQUIRE(block);
  CHECK(look(block->address(), kPage) == nullptr);
  CHECK(!FragileMemory::any());
}

TEST("memory that may be gone is found: files mapped either way, memfds without the seal, a part of it, a hole") {
  const File file(4 * kPage);
  const Map shared(4 * kPage, MAP_SHARED, file.fd.get());
  CHECK(look(shared.bytes + kPage, 10) != nullptr);
  const Map copied(4 * kPage, MAP_PRIVATE, file.fd.get());
  copied.bytes[0] = std::byte{1};  // a page of our own by now; a truncation takes it all the same
  CHECK(look(copied.bytes, 1) != nullptr);
  const Map reading(kPage, MAP_SHARED, file.fd.get(), PROT_READ);
  CHECK(look(reading.bytes, kPage) != nullptr);
  const UniqueFd open_memory = memory_file(2 * kPage, 0);
  const Map memory(2 * kPage, MAP_SHARED, open_memory.get());
  CHECK(look(memory.bytes, memory.nbytes) != nullptr);
  const Map mixed(3 * kPage, MAP_PRIVATE | MAP_ANONYMOUS);
  REQUIRE(mmap(mixed.bytes + 2 * kPage, kPage, PROT_READ, MAP_SHARED | MAP_FIXED, file.fd.get(), 0) != MAP_FAILED);
  CHECK(look(mixed.bytes, 2 * kPage) == nullptr);
  CHECK(look(mixed.bytes, 2 * kPage + 1) != nullptr);
  const Map torn(3 * kPage, MAP_PRIVATE | MAP_ANONYMOUS);
  REQUIRE(munmap(torn.bytes + kPage, kPage) == 0);
  CHECK(look(torn.bytes, 2 * kPage) != nullptr);
  CHECK(!FragileMemory::any());  // each was let go of again
}

TEST("what the seal of a memfd says does not count when no descriptor of it is left to ask") {
  Map memory(kPage, MAP_SHARED, memory_file(kPage, F_SEAL_SHRINK).get());
  CHECK(look(memory.bytes, kPage) != nullptr);
}

TEST("fragile memory is copied exactly in both directions, also to and from other fragile memory") {
  const File file(8 * kPage);
  const Map map(8 * kPage, MAP_SHARED, file.fd.get());
  const auto fragile = look(map.bytes, map.nbytes);
  const auto from = pattern(3 * kPage, 5);
  CHECK(copy_bytes(map.bytes + 7, from.data(), from.size()));
  CHECK(same(map.bytes + 7, from.data(), from.size()));
  CHECK(copy_bytes(map.bytes + 4 * kPage, map.bytes + 7, from.size()));
  std::vector<std::byte> to(from.size());
  CHECK(copy_bytes(to.data(), map.bytes + 4 * kPage, to.size()));
  CHECK(to == from);
  CHECK(copy_bytes(to.data(), from.data(), to.size()));  // neither of the two
  CHECK(copy_bytes(nullptr, nullptr, 0));
}

TEST("a copy into, out of, or across the end of a file that was truncated fails, and the process lives") {
  const File file(8 * kPage);
  const Map map(8 * kPage, MAP_SHARED, file.fd.get());
  const Map copied(8 * kPage, MAP_PRIVATE, file.fd.get());
  const auto fragile = look(map.bytes, map.nbytes);
  const auto fragile_too = look(copied.bytes, copied.nbytes);
  std::vector<std::byte> own(8 * kPage, std::byte{3});
  CHECK(copy_bytes(copied.bytes, own.data(), own.size()));
  file.resize(kPage);
  for (std::byte* gone : {map.bytes, copied.bytes}) {
    CHECK(!copy_bytes(gone + kPage, own.data(), 1));
    CHECK(!copy_bytes(own.data(), gone + kPage, 1));
    CHECK(!copy_bytes(gone, own.data(), own.size()));
    CHECK(!copy_bytes(own.data(), gone, own.size()));
    CHECK(copy_bytes(gone, own.data(), kPage));  // what is there
    CHECK(!copy_bytes(gone + 4 * kPage, gone, kPage));
    CHECK(!copy_bytes(gone, gone + 4 * kPage, kPage));
  }
  file.resize(8 * kPage);
  CHECK(copy_bytes(map.bytes, own.data(), own.size()));
}

TEST("ten thousand random ranges come and go, overlapping as they like: a byte is listed while one covers it") {
  constexpr std::size_t kSpace = 64;
  std::vector<std::byte> space(kSpace);
  std::vector<int> depth(kSpace, 0);
  struct Range {
    std::size_t begin, end;
    std::unique_ptr<FragileMemory> listed;
  };
  std::vector<Range> ranges;
  std::mt19937 random(7);
  for (int round = 0; round < 10'000; ++round) {
    if (ranges.size() < 6 && random() % 2 == 0) {
      const std::size_t begin = random() % kSpace;
      const std::size_t end = begin + 1 + random() % (kSpace - begin);
      ranges.push_back({begin, end, std::make_unique<FragileMemory>(space.data() + begin, end - begin)});
      for (std::size_t i = begin; i < end; ++i) {
        ++depth[i];
      }
    } else if (!ranges.empty()) {
      const std::size_t which = random() % ranges.size();
      for (std::size_t i = ranges[which].begin; i < ranges[which].end; ++i) {
        --depth[i];
      }
      std::swap(ranges[which], ranges.back());
      ranges.pop_back();
    }
    const std::size_t begin = random() % kSpace;
    const std::size_t end = begin + 1 + random() % (kSpace - begin);
    const bool expected = std::any_of(depth.begin() + static_cast<std::ptrdiff_t>(begin),
                                      depth.begin() + static_cast<std::ptrdiff_t>(end), [](int n) { return n > 0; });
    REQUIRE(FragileMemory::touches(space.data() + begin, end - begin) == expected);
  }
  ranges.clear();
  CHECK(!FragileMemory::any());
}

TEST("ranges come and go on one thread while two others copy: each copy is exact") {
  const File file(64 * kPage);
  const Map map(64 * kPage, MAP_SHARED, file.fd.get());
  const auto kept = look(map.bytes, map.nbytes);
  std::atomic<bool> ended{false};
  std::vector<std::thread> threads;
  for (std::size_t half = 0; half < 2; ++half) {
    threads.emplace_back([&map, half] {
      const auto from = pattern(kPage, half);
      std::vector<std::byte> to(kPage);
      for (std::size_t i = 0; i < 2000; ++i) {
        std::byte* at = map.bytes + (half * 32 + i % 32) * kPage;
        CHECK(copy_bytes(at, from.data(), kPage) && copy_bytes(to.data(), at, kPage) && to == from);
      }
    });
  }
  std::thread changing([&] {
    while (!ended.load()) {
      const FragileMemory one(map.bytes + 5, 20 * kPage);
      const FragileMemory two(map.bytes + 9 * kPage, 30 * kPage);
    }
  });
  for (std::thread& thread : threads) {
    thread.join();
  }
  ended.store(true);
  changing.join();
}

TEST("a forked child starts with an empty list and a free lock, and what it drops of its parent's changes nothing") {
  const File file(kPage);
  const Map map(kPage, MAP_SHARED, file.fd.get());
  auto fragile = look(map.bytes, kPage);
  const pid_t child = fork();
  if (child == 0) {
    FdRegistry::close_all();
    FragileMemory::forget_all();
    fragile.reset();
    _exit(FragileMemory::any() ? 1 : 0);
  }
  int status = -1;
  REQUIRE(waitpid(child, &status, 0) == child);
  CHECK_EQ(status, 0);
  CHECK(FragileMemory::touches(map.bytes, 1));
}

}  // namespace
}  // namespace hixl_aio::host

HIXL_TEST_MAIN
