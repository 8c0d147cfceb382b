// What the machine does without us: the floors that the bench compares with. Copies, wake-ups and calls, as bare as
// C++ makes them. Addresses come as numbers; whoever calls vouches for them.
#include <pybind11/pybind11.h>
#include <sys/eventfd.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstdint>
#include <cstring>
#include <functional>
#include <semaphore>
#include <stop_token>
#include <system_error>
#include <thread>
#include <vector>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace py = pybind11;

namespace {

using Address = std::uintptr_t;
using ReleaseGil = py::call_guard<py::gil_scoped_release>;

// A counter this high on an eventfd says that the other process is gone.
constexpr std::uint64_t kGone = std::uint64_t{1} << 32U;

std::byte* at(Address address) {
  return reinterpret_cast<std::byte*>(address);  // NOLINT(performance-no-int-to-ptr)
}

[[noreturn]] void fail(const char* call) { throw std::system_error(errno, std::generic_category(), call); }

void give(int fd) {
  const std::uint64_t one = 1;
  if (write(fd, &one, sizeof one) != sizeof one) {
    fail("write to an eventfd");
  }
}

// ---- copies

#if defined(__x86_64__)
constexpr bool kHasStreaming = true;

// Stores that go past the caches: they save reading the destination first, where it is in no cache.
__attribute__((target("avx2"))) void stream(std::byte* to, const std::byte* from, std::size_t nbytes) {
  constexpr std::size_t kLine = 64;
  const std::size_t head = std::min(nbytes, (kLine - reinterpret_cast<Address>(to) % kLine) % kLine);
  std::memcpy(to, from, head);
  std::size_t place = head;
  for (; place + kLine <= nbytes; place += kLine) {
    const __m256i low = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from + place));
    const __m256i high = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from + place + kLine / 2));
    _mm_prefetch(reinterpret_cast<const char*>(from + place + 8 * kLine), _MM_HINT_NTA);
    _mm256_stream_si256(reinterpret_cast<__m256i*>(to + place), low);
    _mm256_stream_si256(reinterpret_cast<__m256i*>(to + place + kLine / 2), high);
  }
  std::memcpy(to + place, from + place, nbytes - place);
  _mm_sfence();
}

bool can_stream() { return __builtin_cpu_supports("avx2") != 0; }
#else
constexpr bool kHasStreaming = false;

void stream(std::byte* to, const std::byte* from, std::size_t nbytes) { std::memcpy(to, from, nbytes); }

bool can_stream() { return false; }
#endif

// Runs `part(index)` `repetitions` times on each of `threads` threads, all of which begin each repetition together.
void in_step(unsigned threads, unsigned repetitions, const std::function<void(unsigned)>& part) {
  std::atomic<std::uint64_t> arrived{0};
  auto work = [&](unsigned index) {
    for (std::uint64_t repetition = 1; repetition <= repetitions; ++repetition) {
      part(index);
      // acq_rel: what the others have copied is there when we go on.
      arrived.fetch_add(1, std::memory_order_acq_rel);
      for (unsigned spins = 0; arrived.load(std::memory_order_acquire) < repetition * threads; ++spins) {
        if (spins % 1024 == 1023) {
          std::this_thread::yield();  // the other one may want this very core
        }
      }
    }
  };
  std::vector<std::jthread> helpers;
  for (unsigned index = 1; index < threads; ++index) {
    helpers.emplace_back(work, index);
  }
  work(0);
}

struct Share {
  std::size_t begin;
  std::size_t nbytes;
};

Share share_of(std::size_t nbytes, unsigned threads, unsigned index) {
  constexpr std::size_t kUnit = 4096;
  const std::size_t each = ((nbytes + threads - 1) / threads + kUnit - 1) / kUnit * kUnit;
  const std::size_t begin = std::min(nbytes, each * index);
  return {begin, std::min(each, nbytes - begin)};
}

void copy(Address to, Address from, std::size_t nbytes) { std::memcpy(at(to), at(from), nbytes); }

// The same with what a caller has in hand: two buffers and where in them; checked, so that no call can crash.
void copy_between(const py::buffer& to, std::size_t to_offset, const py::buffer& from, std::size_t from_offset,
                  std::size_t nbytes) {
  const py::buffer_info target = to.request(true);
  const py::buffer_info source = from.request();
  const auto holds = [nbytes](const py::buffer_info& info, std::size_t offset) {
    const auto whole = static_cast<std::size_t>(info.size * info.itemsize);
    return offset <= whole && nbytes <= whole - offset;
  };
  if (!holds(target, to_offset) || !holds(source, from_offset)) {
    throw py::value_error("the run lies outside of a buffer");
  }
  std::memcpy(static_cast<std::byte*>(target.ptr) + to_offset, static_cast<std::byte*>(source.ptr) + from_offset,
              nbytes);
}

void copy_many(Address to, Address from, std::size_t nbytes, unsigned repetitions, unsigned threads, bool streaming) {
  in_step(threads, repetitions, [&](unsigned index) {
    const Share share = share_of(nbytes, threads, index);
    std::byte* target = at(to) + share.begin;
    const std::byte* source = at(from) + share.begin;
    if (streaming) {
      stream(target, source, share.nbytes);
    } else {
      std::memcpy(target, source, share.nbytes);
    }
  });
}

// Threads that sleep until there is something to copy, and ring an eventfd when it is done: what stands between such a
// copy and a loop that must not stand still. Whoever calls waits for the ring before the next copy.
class Crew {
 public:
  explicit Crew(unsigned threads) : fd_(eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC)) {
    if (fd_ < 0) {
      fail("eventfd");
    }
    for (unsigned index = 0; index < threads; ++index) {
      threads_.emplace_back([this, index](const std::stop_token& stop) { work(stop, index); });
    }
  }
  Crew(const Crew&) = delete;
  Crew& operator=(const Crew&) = delete;
  Crew(Crew&&) = delete;
  Crew& operator=(Crew&&) = delete;
  ~Crew() {
    for (std::jthread& thread : threads_) {
      thread.request_stop();
    }
    wake();
    threads_.clear();
    close(fd_);
  }

  [[nodiscard]] int fileno() const { return fd_; }

  void copy(Address to, Address from, std::size_t nbytes, bool streaming) {
    to_ = to;
    from_ = from;
    nbytes_ = nbytes;
    streaming_ = streaming;
    left_.store(static_cast<unsigned>(threads_.size()), std::memory_order_relaxed);
    wake();
  }

 private:
  // Releases what was written to the members before, to the threads that it wakes.
  void wake() { ready_.release(static_cast<std::ptrdiff_t>(threads_.size())); }

  void work(const std::stop_token& stop, unsigned index) {
    for (;;) {
      // Two of these may go to one thread, if the other is still on its way here: that one copies for both.
      ready_.acquire();
      if (stop.stop_requested()) {
        return;
      }
      const unsigned part = next_.fetch_add(1, std::memory_order_relaxed) % static_cast<unsigned>(threads_.size());
      const Share share = share_of(nbytes_, static_cast<unsigned>(threads_.size()), part);
      if (streaming_) {
        stream(at(to_) + share.begin, at(from_) + share.begin, share.nbytes);
      } else {
        std::memcpy(at(to_) + share.begin, at(from_) + share.begin, share.nbytes);
      }
      // acq_rel: the last one rings for what all have copied.
      if (left_.fetch_sub(1, std::memory_order_acq_rel) == 1) {
        give(fd_);
      }
    }
  }

  int fd_;
  Address to_ = 0;
  Address from_ = 0;
  std::size_t nbytes_ = 0;
  bool streaming_ = false;
  std::atomic<unsigned> left_{0};
  std::atomic<unsigned> next_{0};  // relaxed: the parts only have to be different ones
  std::counting_semaphore<> ready_{0};
  std::vector<std::jthread> threads_;  // last: they use the others
};

// The blocks at the given offsets, one after the other.
void copy_blocks(Address to, Address from, const py::buffer& to_offsets, const py::buffer& from_offsets,
                 std::size_t nbytes, unsigned repetitions) {
  const py::buffer_info targets = to_offsets.request();
  const py::buffer_info sources = from_offsets.request();
  if (targets.itemsize != sizeof(std::int64_t) || sources.itemsize != sizeof(std::int64_t) ||
      targets.size != sources.size) {
    throw py::value_error("both lists of offsets must hold the same number of int64 values");
  }
  const auto* target = static_cast<const std::int64_t*>(targets.ptr);
  const auto* source = static_cast<const std::int64_t*>(sources.ptr);
  const py::gil_scoped_release release;
  for (unsigned repetition = 0; repetition < repetitions; ++repetition) {
    for (py::ssize_t i = 0; i < targets.size; ++i) {
      std::memcpy(at(to) + target[i], at(from) + source[i], nbytes);
    }
  }
}

using Call = ssize_t (*)(pid_t, const iovec*, unsigned long, const iovec*, unsigned long, unsigned long);

void across(Call call, const char* name, pid_t pid, Address remote, Address local, std::size_t nbytes,
            unsigned repetitions, unsigned threads) {
  std::atomic<int> error{0};  // relaxed: it is read after all threads were joined
  in_step(threads, repetitions, [&](unsigned index) {
    const Share share = share_of(nbytes, threads, index);
    for (std::size_t done = 0; done < share.nbytes;) {
      const iovec here{at(local) + share.begin + done, share.nbytes - done};
      const iovec there{at(remote) + share.begin + done, share.nbytes - done};
      const ssize_t moved = call(pid, &here, 1, &there, 1, 0);
      if (moved <= 0) {
        error.store(moved < 0 ? errno : EIO, std::memory_order_relaxed);
        return;
      }
      done += static_cast<std::size_t>(moved);
    }
  });
  if (const int number = error.load(std::memory_order_relaxed); number != 0) {
    throw std::system_error(number, std::generic_category(), name);
  }
}

void write_process(pid_t pid, Address remote, Address local, std::size_t nbytes, unsigned repetitions,
                   unsigned threads) {
  across(process_vm_writev, "process_vm_writev", pid, remote, local, nbytes, repetitions, threads);
}

void read_process(pid_t pid, Address remote, Address local, std::size_t nbytes, unsigned repetitions,
                  unsigned threads) {
  across(process_vm_readv, "process_vm_readv", pid, remote, local, nbytes, repetitions, threads);
}

// ---- wake-ups

// Blocks until the counter is not zero. Ctrl-C gets its Python handler in between.
std::uint64_t take(int fd) {
  std::uint64_t value = 0;
  while (read(fd, &value, sizeof value) != sizeof value) {
    if (errno != EINTR) {
      fail("read from an eventfd");
    }
    const py::gil_scoped_acquire acquire;
    if (PyErr_CheckSignals() != 0) {
      throw py::error_already_set();
    }
  }
  return value;
}

// `rounds` times there and back. False if the other process is gone.
bool ping(int out, int in, unsigned rounds) {
  for (unsigned round = 0; round < rounds; ++round) {
    give(out);
    if (take(in) >= kGone) {
      return false;
    }
  }
  return true;
}

// Answers every ping, until somebody says that the other process is gone.
void pong(int in, int out) {
  while (take(in) < kGone) {
    give(out);
  }
}

// As much as an engine's life costs the system: threads that are started, woken once and joined.
void start_threads(unsigned threads, unsigned repetitions) {
  for (unsigned repetition = 0; repetition < repetitions; ++repetition) {
    std::vector<std::jthread> started;
    for (unsigned index = 0; index < threads; ++index) {
      started.emplace_back([] {});
    }
  }
}

}  // namespace

PYBIND11_MODULE(_floors, m) {
  m.doc() = "What the machine does without the library, for comparison.";
  m.attr("GONE") = kGone;
  m.def("can_stream", [] { return kHasStreaming && can_stream(); });
  m.def("nothing", [] {});
  m.def("copy", &copy);
  m.def("copy_between", &copy_between);
  m.def("copy_many", &copy_many, ReleaseGil());
  py::class_<Crew>(m, "Crew")
      .def(py::init<unsigned>(), py::arg("threads"), py::pos_only())
      .def("fileno", &Crew::fileno)
      .def("copy", &Crew::copy);
  m.def("copy_blocks", &copy_blocks);
  m.def("write_process", &write_process, ReleaseGil());
  m.def("read_process", &read_process, ReleaseGil());
  m.def("ping", &ping, ReleaseGil());
  m.def("pong", &pong, ReleaseGil());
  m.def("start_threads", &start_threads, ReleaseGil());
}
