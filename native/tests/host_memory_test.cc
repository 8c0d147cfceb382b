// The heap behind allocate(): carving, reuse, seals, refusals, and blocks that outlive it.
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <mutex>
#include <random>
#include <set>
#include <thread>

#include "host_support.h"
#include "transports/host/mapping.h"
#include "transports/host/memory.h"

namespace hixl_aio::host {
namespace {

using test::Leftovers;

constexpr std::uint64_t kMiB = 1U << 20U;
constexpr SegmentClass kClasses[] = {SegmentClass::local, SegmentClass::readable, SegmentClass::writable};

struct Heap {
  std::mutex mutex;
  std::multiset<std::uint32_t> gone;
  std::vector<std::shared_ptr<Segment>> to_unmap;
  std::shared_ptr<SharedHeap> heap = std::make_shared<SharedHeap>(SharedHeap::Owner{
      .segment_gone =
          [this](std::uint32_t segment) {
            const std::lock_guard lock(mutex);
            gone.insert(segment);
          },
      .unmap =
          [this](std::shared_ptr<Segment> segment) {
            const std::lock_guard lock(mutex);
            to_unmap.push_back(std::move(segment));
          },
  });
  Status status = Status::ok;
  std::string error;

  std::shared_ptr<MemoryBlock> get(std::uint64_t nbytes, SegmentClass kind = SegmentClass::writable) {
    auto block = heap->allocate(nbytes, kind, status, error);
    if (!block) {
      CHECK_EQ(error, "no error");
    }
    return block;
  }
};

std::size_t descriptors() { return test::entries("/proc/self/fd"); }

std::uint64_t resident_nbytes() {
  std::ifstream file("/proc/self/statm");
  std::uint64_t total = 0;
  std::uint64_t resident = 0;
  file >> total >> resident;
  return resident * 4096;
}

TEST("blocks are aligned, do not overlap, and small ones of a class share a segment") {
  Heap h;
  for (const SegmentClass kind : kClasses) {
    std::mt19937_64 random(1);
    std::vector<std::pair<std::shared_ptr<MemoryBlock>, std::uint64_t>> blocks;
    for (int i = 0; i < 500; ++i) {
      const std::uint64_t nbytes = i % 7 == 0 ? i : random() % 3000;
      blocks.emplace_back(h.get(nbytes, kind), nbytes);
      auto& block = *blocks.back().first;
      CHECK_EQ(reinterpret_cast<std::uintptr_t>(block.address()) % 64, 0U);
      CHECK(test::all_bytes(block.address(), nbytes, std::byte{0}));
      std::memset(block.address(), 1 + i % 255, nbytes);
      CHECK(block.offset() + nbytes <= block.segment().nbytes());
      CHECK(!block.whole_segment());
      CHECK_EQ(block.segment().kind(), kind);
    }
    for (std::size_t i = 0; i < blocks.size(); ++i) {
      CHECK(test::all_bytes(blocks[i].first->address(), blocks[i].second, static_cast<std::byte>(1 + i % 255)));
      CHECK_EQ(blocks[i].first->segment().id(), blocks[0].first->segment().id());
    }
  }
}

TEST("the largest carved block and the smallest of its own segment have exactly their bytes") {
  Heap h;
  for (const SegmentClass kind : kClasses) {
    const auto carved = h.get(kMiB, kind);
    const auto whole = h.get(kMiB + 1, kind);
    REQUIRE(carved && whole);
    CHECK(!carved->whole_segment());
    CHECK(whole->whole_segment());
    CHECK_EQ(whole->segment().nbytes(), kMiB + 4096);
    CHECK(test::all_bytes(whole->address(), kMiB + 1, std::byte{0}));
    std::memset(carved->address(), 1, kMiB);
    std::memset(whole->address(), 2, kMiB + 1);
  }
}

TEST("what is given back coalesces, so that the whole slab can be had again, and reuse is zeroed") {
  Heap h;
  std::vector<std::shared_ptr<MemoryBlock>> blocks;
  for (int i = 0; i < 64; ++i) {
    blocks.push_back(h.get(64 * 1024));  // fills one slab exactly
    std::memset(blocks.back()->address(), 0xff, 64 * 1024);
  }
  const std::uint32_t slab = blocks.front()->segment().id();
  CHECK_EQ(blocks.back()->segment().id(), slab);
  std::mt19937_64 random(3);
  std::shuffle(blocks.begin(), blocks.end(), random);
  blocks.clear();
  for (int i = 0; i < 4; ++i) {
    blocks.push_back(h.get(kMiB));
    CHECK_EQ(blocks.back()->segment().id(), slab);
    CHECK(test::all_bytes(blocks.back()->address(), kMiB, std::byte{0}));
  }
  CHECK(h.gone.empty());  // the last empty slab of a class is kept
}

TEST("random allocation and release for a while: no overlap, always zeroed, nothing lost at the end") {
  Heap h;
  std::mt19937_64 random(5);
  struct Live {
    std::shared_ptr<MemoryBlock> block;
    std::uint64_t nbytes;
    std::byte mark;
  };
  std::vector<Live> live;
  for (int round = 0; round < (test::sanitized ? 4000 : 20'000); ++round) {
    if (live.size() < 200 && random() % 5 != 0) {
      const std::uint64_t nbytes = random() % (random() % 20 == 0 ? kMiB : 8192);
      Live made{h.get(nbytes), nbytes, static_cast<std::byte>(1 + random() % 255)};
      REQUIRE(made.block);
      if (!test::all_bytes(made.block->address(), nbytes, std::byte{0})) {
        CHECK(!"a reused range shows what was there before");
        break;
      }
      std::memset(made.block->address(), static_cast<int>(made.mark), nbytes);
      live.push_back(std::move(made));
    } else if (!live.empty()) {
      std::swap(live[random() % live.size()], live.back());
      if (!test::all_bytes(live.back().block->address(), live.back().nbytes, live.back().mark)) {
        CHECK(!"two blocks overlap");
        break;
      }
      live.pop_back();
    }
  }
  live.clear();
  h.to_unmap.clear();
  const auto all = h.get(kMiB);
  CHECK(all);
  CHECK(descriptors() < 20);
}

TEST("100000 small regions need few descriptors, little time, and give their segments back") {
  Heap h;
  const std::size_t before = descriptors();
  std::vector<std::shared_ptr<MemoryBlock>> blocks;
  blocks.reserve(100'000);
  for (int i = 0; i < 100'000; ++i) {
    blocks.push_back(h.get(1000));
    REQUIRE(blocks.back());
  }
  CHECK(descriptors() - before <= 26);  // 4096 blocks a slab
  blocks.clear();
  CHECK(h.gone.size() >= 24);
  CHECK_EQ(h.to_unmap.size(), h.gone.size());
  h.to_unmap.clear();
  CHECK_EQ(descriptors() - before, 1U);
}

TEST("the thread that drops the last block of a segment does not unmap it: that is left to the owner") {
  Heap h;
  for (const SegmentClass kind : kClasses) {
    auto block = h.get(8 * kMiB, kind);
    std::byte* at = block->address();
    block.reset();
    REQUIRE(h.to_unmap.size() == 1);
    CHECK(test::all_bytes(at, 8 * kMiB, std::byte{0}));  // still there
    h.to_unmap.clear();
  }
  CHECK(h.gone.empty());  // a segment of its own is taken back with its region
}

TEST("a peer that gets a readable segment's descriptor cannot map it writable, write it, or change its size or seals") {
  Heap h;
  const auto block = h.get(3 * kMiB, SegmentClass::readable);
  REQUIRE(block);
  const int fd = block->segment().fd();
  const std::uint64_t nbytes = block->segment().nbytes();
  CHECK_EQ(::mmap(nullptr, nbytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0), MAP_FAILED);
  // Nor with a descriptor of its own.
  const UniqueFd fresh(::open(("/proc/self/fd/" + std::to_string(fd)).c_str(), O_RDWR | O_CLOEXEC));
  REQUIRE(fresh.valid());
  CHECK_EQ(::mmap(nullptr, nbytes, PROT_READ | PROT_WRITE, MAP_SHARED, fresh.get(), 0), MAP_FAILED);
  const char byte = 1;
  CHECK_EQ(::pwrite(fresh.get(), &byte, 1, 0), -1);
  void* readable = ::mmap(nullptr, nbytes, PROT_READ, MAP_SHARED, fresh.get(), 0);
  REQUIRE(readable != MAP_FAILED);
  CHECK_EQ(::mprotect(readable, nbytes, PROT_READ | PROT_WRITE), -1);
  // The owner still writes through its own mapping, and the peer sees it.
  block->address()[0] = std::byte{42};
  CHECK(static_cast<std::byte*>(readable)[0] == std::byte{42});
  ::munmap(readable, nbytes);
  CHECK_EQ(::fallocate(fresh.get(), FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, 4096), -1);
  CHECK_EQ(::fcntl(fresh.get(), F_ADD_SEALS, F_SEAL_WRITE), -1);
  for (const SegmentClass kind : {SegmentClass::readable, SegmentClass::writable}) {
    const auto each = h.get(2 * kMiB, kind);
    CHECK_EQ(::ftruncate(each->segment().fd(), 4096), -1);
    CHECK_EQ(::ftruncate(each->segment().fd(), static_cast<off_t>(4 * kMiB)), -1);
    struct stat info{};
    CHECK_EQ(::fstat(each->segment().fd(), &info), 0);
    CHECK_EQ(static_cast<std::uint64_t>(info.st_blocks) * 512, each->segment().nbytes());  // reserved, not sparse
  }
}

TEST("sizes that cannot be had are resource_exhausted at once, name the size, and leave nothing behind") {
  const Leftovers before;
  const std::uint64_t resident = resident_nbytes();
  Heap h;
  const auto start = std::chrono::steady_clock::now();
  for (const SegmentClass kind : kClasses) {
    for (const std::uint64_t nbytes :
         {std::uint64_t{1} << 45U, std::uint64_t{1} << 60U, std::uint64_t{1} << 62U, UINT64_MAX / 2, UINT64_MAX / 2 + 1,
          UINT64_MAX - 4096, UINT64_MAX - 1, UINT64_MAX}) {
      Status status = Status::ok;
      std::string error;
      CHECK(!h.heap->allocate(nbytes, kind, status, error));
      CHECK_EQ(status, Status::resource_exhausted);
      CHECK(error.find(std::to_string(nbytes).substr(0, 6)) != std::string::npos);
    }
  }
  CHECK(std::chrono::steady_clock::now() - start < std::chrono::seconds(1));
  CHECK(h.get(100));
  h.heap.reset();
  CHECK(before.none());
  CHECK(resident_nbytes() < resident + 16 * kMiB);
}

TEST("without a descriptor left a shared block is resource_exhausted and says why; with one again it works") {
  Heap h;
  rlimit old{};
  REQUIRE(::getrlimit(RLIMIT_NOFILE, &old) == 0);
  rlimit low = old;
  low.rlim_cur = 0;
  REQUIRE(::setrlimit(RLIMIT_NOFILE, &low) == 0);
  Status small_status = Status::ok;
  Status large_status = Status::ok;
  std::string small_error;
  std::string large_error;
  const auto small = h.heap->allocate(100, SegmentClass::writable, small_status, small_error);
  const auto large = h.heap->allocate(2 * kMiB, SegmentClass::writable, large_status, large_error);
  REQUIRE(::setrlimit(RLIMIT_NOFILE, &old) == 0);
  CHECK(!small && !large);
  CHECK_EQ(small_status, Status::resource_exhausted);
  CHECK_EQ(large_status, Status::resource_exhausted);
  CHECK(small_error.find("Too many open files") != std::string::npos);
  CHECK(large_error.find("Too many open files") != std::string::npos);
  CHECK(large_error.find("raise the memory limit") == std::string::npos);  // that would not help
  CHECK(h.get(100) && h.get(2 * kMiB));
}

TEST("blocks outlive the heap, keep their bytes, and go one by one; nobody is told of segments after detach") {
  const Leftovers before;
  {
    std::vector<std::shared_ptr<MemoryBlock>> blocks;
    std::multiset<std::uint32_t> gone;
    {
      Heap h;
      for (int i = 0; i < 9000; ++i) {
        blocks.push_back(h.get(1000));
        std::memset(blocks.back()->address(), i % 251, 1000);
      }
      blocks.push_back(h.get(5 * kMiB));
      h.heap->detach();
      blocks.erase(blocks.begin(), blocks.begin() + 4200);  // empties one slab
      gone = h.gone;
      h.heap.reset();
      CHECK(h.gone.empty());
    }
    CHECK(gone.empty());
    for (std::size_t i = 0; i + 1 < blocks.size(); ++i) {
      CHECK(test::all_bytes(blocks[i]->address(), 1000, static_cast<std::byte>((i + 4200) % 251)));
    }
  }
  CHECK(before.none());
}

TEST("threads may give blocks back while others allocate and the owner detaches") {
  const Leftovers before;
  for (int round = 0; round < 20; ++round) {
    auto told = std::make_unique<std::atomic<int>>(0);
    auto heap = std::make_shared<SharedHeap>(SharedHeap::Owner{
        .segment_gone = [counter = told.get()](std::uint32_t) { counter->fetch_add(1); },
        .unmap = [counter = told.get()](const std::shared_ptr<Segment>&) { counter->fetch_add(1); },
    });
    std::vector<std::thread> threads;
    for (int who = 0; who < 3; ++who) {
      threads.emplace_back([heap] {
        std::vector<std::shared_ptr<MemoryBlock>> mine;
        for (int i = 0; i < 300; ++i) {
          Status status = Status::ok;
          std::string error;
          mine.push_back(heap->allocate(100'000, SegmentClass::writable, status, error));
          if (mine.size() > 100 || (i % 3 == 0 && !mine.empty())) {
            mine.erase(mine.begin(), mine.begin() + static_cast<std::ptrdiff_t>(mine.size() / 2 + 1));
          }
        }
      });
    }
    heap->detach();
    told.reset();  // whoever calls now is caught by the sanitizers
    heap.reset();
    for (std::thread& thread : threads) {
      thread.join();
    }
  }
  CHECK(before.none());
}

TEST("a forked child that drops its blocks closes no descriptor of its own that has the same number") {
  Heap h;
  auto block = h.get(2 * kMiB);
  const int number = block->segment().fd();
  const pid_t child = ::fork();
  if (child == 0) {
    FdRegistry::close_all();  // what the engine does in the child
    if (::fcntl(number, F_GETFD) >= 0 || ::dup2(2, number) != number) {
      ::_exit(2);
    }
    block.reset();
    ::_exit(::fcntl(number, F_GETFD) >= 0 ? 0 : 1);
  }
  int state = 0;
  REQUIRE(::waitpid(child, &state, 0) == child);
  CHECK(WIFEXITED(state) && WEXITSTATUS(state) == 0);
  CHECK(::fcntl(number, F_GETFD) >= 0);
}

TEST("with huge pages asked for: zeros of the right size, mapped when they are there, and as many huge as the kernel says") {
  std::shared_ptr<SharedHeap> heap = std::make_shared<SharedHeap>(SharedHeap::Owner{}, true);
  for (const SegmentClass kind : kClasses) {
    for (const std::uint64_t nbytes : {std::uint64_t{4096}, 2 * kMiB, 8 * kMiB + 4096}) {
      Status status = Status::ok;
      std::string error;
      const std::uint64_t before = heap->huge_nbytes();
      auto block = heap->allocate(nbytes, kind, status, error);
      REQUIRE(block != nullptr);
      CHECK(test::all_bytes(block->address(), nbytes, std::byte{0}));
      CHECK(block->segment().nbytes() >= block->offset() + nbytes);
      const std::uint64_t huge = heap->huge_nbytes() - before;
      CHECK_EQ(huge, block->whole_segment() ? huge_nbytes_of(block->segment().base(), block->segment().nbytes()) : 0);
      CHECK(huge <= block->segment().nbytes());
      std::memset(block->address(), 0x5a, nbytes);
      CHECK(test::all_bytes(block->address(), nbytes, std::byte{0x5a}));
      block.reset();
      CHECK_EQ(heap->huge_nbytes(), before);
    }
  }
}

// Page faults of this thread that needed no disk.
long faults() {
  rusage usage{};
  getrusage(RUSAGE_THREAD, &usage);
  return usage.ru_minflt;
}

TEST("what is allocated is mapped already: its first use faults no page") {
  if (test::sanitized) {
    return;  // a sanitizer's own memory is touched for the first time as well
  }
  Heap h;
  for (const SegmentClass kind : kClasses) {
    const auto block = h.get(8 * kMiB, kind);
    const long before = faults();
    std::memset(block->address(), 1, 8 * kMiB);
    CHECK(faults() - before < 16);  // of 2048 pages
  }
}

}  // namespace
}  // namespace hixl_aio::host

HIXL_TEST_MAIN
