// Channels: what may be attached, pins against revocation, and the ring of signals.
#include <sys/mman.h>
#include <sys/resource.h>

#include <array>
#include <atomic>
#include <deque>
#include <mutex>
#include <random>
#include <thread>

#include "host_support.h"

namespace hixl_aio::host {
namespace {

using test::Leftovers;
using test::Pair;

// ---- attaching

// A memfd of that size whose first words are the ones given.
UniqueFd memory(std::uint64_t nbytes, const std::vector<std::uint32_t>& words, int seals = F_SEAL_SHRINK) {
  UniqueFd fd(::memfd_create("test", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  REQUIRE(fd.valid() && ::ftruncate(fd.get(), static_cast<off_t>(nbytes)) == 0);
  const std::size_t size = words.size() * sizeof(std::uint32_t);
  REQUIRE(::pwrite(fd.get(), words.data(), size, 0) == static_cast<ssize_t>(size));
  REQUIRE(::fcntl(fd.get(), F_ADD_SEALS, seals) == 0);
  return fd;
}

std::vector<std::uint32_t> header_words(std::uint32_t version, std::uint32_t regions, std::uint32_t signals) {
  return {static_cast<std::uint32_t>(kChannelMagic),
          static_cast<std::uint32_t>(kChannelMagic >> 32U),
          version,
          regions,
          signals,
          0};
}

constexpr std::uint64_t kBig = 64U << 20U;

TEST("a sealed channel with a sound header is attached, and both mappings see one memory") {
  std::string error;
  const Leftovers before;
  {
    const auto owner = Channel::create(100, 10, error);
    REQUIRE(owner);
    const auto other = Channel::attach(test::copy_of(owner->fd()), error);
    REQUIRE(other);
    CHECK_EQ(other->max_regions(), 100U);
    CHECK_EQ(other->signal_capacity(), 10U);
    owner->entry(99).generation.store(7);
    CHECK(other->pin(99, 7));
    CHECK_EQ(owner->entry(99).pins.load(), 1U);
    other->unpin(99);
    CHECK(!other->pin(99, 8));
    CHECK_EQ(owner->entry(99).pins.load(), 0U);
    other->coop_slot(kCoopSlots - 1).data[kCoopSlotNbytes - 1] = std::byte{9};  // the last byte of the layout
    CHECK(owner->coop_slot(kCoopSlots - 1).data[kCoopSlotNbytes - 1] == std::byte{9});
    other->signal_bytes()[other->signal_nbytes() - 1] = std::byte{1};
  }
  CHECK(before.none());
}

TEST("what could shrink, is too small, is of another version or claims absurd sizes is not attached, with a reason") {
  const Leftovers before;
  const std::uint32_t most = 0xffffffffU;
  {
    struct Case {
      const char* name;
      UniqueFd fd;
    };
    std::vector<Case> cases;
    cases.push_back({"unsealed", memory(kBig, header_words(1, 16, 16), 0)});
    cases.push_back({"sealed against growing only", memory(kBig, header_words(1, 16, 16), F_SEAL_GROW)});
    cases.push_back({"empty", memory(0, {})});
    cases.push_back({"a page", memory(4096, header_words(1, 16, 16))});
    cases.push_back(
        {"smaller than its header says", memory(kBig, header_words(1, kMaxRegionsLimit, kSignalCapacityLimit))});
    cases.push_back({"wrong magic", memory(kBig, {1, 2, 1, 16, 16, 0})});
    cases.push_back({"version 0", memory(kBig, header_words(0, 16, 16))});
    cases.push_back({"version 2", memory(kBig, header_words(2, 16, 16))});
    cases.push_back({"no regions", memory(kBig, header_words(1, 0, 16))});
    cases.push_back({"no signals", memory(kBig, header_words(1, 16, 0))});
    cases.push_back({"too many regions", memory(kBig, header_words(1, kMaxRegionsLimit + 1, 16))});
    cases.push_back({"too many signals", memory(kBig, header_words(1, 16, kSignalCapacityLimit + 1))});
    cases.push_back({"most regions and signals there are", memory(kBig, header_words(1, most, most))});
    cases.push_back({"no descriptor", UniqueFd()});
    cases.push_back({"an eventfd", test::event_fd()});
    cases.push_back({"a directory", UniqueFd(::open("/tmp", O_RDONLY | O_DIRECTORY | O_CLOEXEC))});
    const UniqueFd writable = memory(kBig, header_words(1, 16, 16));
    const std::string path = "/proc/self/fd/" + std::to_string(writable.get());
    cases.push_back({"read-only", UniqueFd(::open(path.c_str(), O_RDONLY | O_CLOEXEC))});
    for (Case& each : cases) {
      std::string error;
      if (Channel::attach(std::move(each.fd), error) || error.empty()) {
        CHECK_EQ(std::string(each.name), "refused with a reason");
      }
    }
    std::string error;
    CHECK(Channel::attach(memory(kBig, header_words(1, 16, 16)), error));  // the cases are one step away from this
    error.clear();
    CHECK(!Channel::attach(memory(kBig, header_words(7, 16, 16)), error));
    CHECK(error.find("ours 1") != std::string::npos && error.find("theirs 7") != std::string::npos);
    CHECK(!SharedDoorbell::attach(memory(4096, {}, 0), error));
    CHECK(!SharedDoorbell::attach(memory(100, {}), error));
    CHECK(!SharedDoorbell::attach(UniqueFd(), error));
  }
  CHECK(before.none());
}

TEST("an owner that has no memory or descriptor left gets a reason, not a channel") {
  rlimit old{};
  REQUIRE(::getrlimit(RLIMIT_NOFILE, &old) == 0);
  rlimit low = old;
  low.rlim_cur = 0;
  REQUIRE(::setrlimit(RLIMIT_NOFILE, &low) == 0);
  std::string error;
  std::string bell_error;
  const auto channel = Channel::create(16, 16, error);
  const auto bell = SharedDoorbell::create(bell_error);
  REQUIRE(::setrlimit(RLIMIT_NOFILE, &old) == 0);
  CHECK(!channel && !bell);
  CHECK(error.find("Too many open files") != std::string::npos);
  CHECK(bell_error.find("Too many open files") != std::string::npos);
}

// ---- pins

// The owner revokes, waits for zero pins, poisons the memory and looks whether the poison survives; then it opens the
// memory under a new generation. Writers pin, copy, unpin, whatever the owner does.
void pins_against_revocation(Channel& owner, Channel& initiator, std::uint64_t wanted) {
  constexpr std::uint32_t kRegion = 3;
  constexpr std::size_t kNbytes = 256;
  std::vector<std::byte> block(kNbytes);
  std::byte* memory = block.data();
  std::atomic<std::uint64_t> pinned{0};
  std::atomic<std::uint64_t> refused{0};
  std::atomic<bool> end{false};
  std::vector<std::thread> writers;
  for (int i = 0; i < 3; ++i) {
    writers.emplace_back([&, i] {
      std::array<std::byte, kNbytes> mine;
      std::uint64_t done = 0;
      std::uint64_t stale = 0;
      std::uint32_t generation = 1;
      while (!end.load(std::memory_order_relaxed)) {
        if (!initiator.pin(kRegion, generation)) {
          ++stale;
          // What a directory would tell; zero between two lives.
          generation = initiator.entry(kRegion).generation.load(std::memory_order_acquire);
          continue;
        }
        mine.fill(static_cast<std::byte>(generation & 0x7fU));
        // Each writer has its part: two writers into the same bytes would be the application's own race.
        const std::size_t part = kNbytes / 4;
        std::memcpy(memory + static_cast<std::size_t>(i) * part, mine.data(), part);
        initiator.unpin(kRegion);
        ++done;
        if (done % 1024 == 0) {
          pinned.fetch_add(1024, std::memory_order_relaxed);
        }
      }
      refused.fetch_add(stale, std::memory_order_relaxed);
    });
  }
  RegionEntry& entry = owner.entry(kRegion);
  std::uint32_t generation = 1;
  std::uint64_t rounds = 0;
  entry.generation.store(generation, std::memory_order_seq_cst);
  while (pinned.load(std::memory_order_relaxed) < wanted) {
    entry.generation.store(0, std::memory_order_seq_cst);
    while (entry.pins.load(std::memory_order_seq_cst) != 0) {
    }
    // From here on nobody writes: what the memory holds now is ours.
    std::memset(memory, 0xee, kNbytes);
    for (int look = 0; look < 20; ++look) {
      if (!test::all_bytes(memory, kNbytes, std::byte{0xee})) {
        CHECK(!"a writer wrote into memory that was revoked and had no pin");
        end.store(true);
        break;
      }
    }
    if (end.load()) {
      break;
    }
    ++generation;
    ++rounds;
    entry.generation.store(generation, std::memory_order_seq_cst);
    // Let some pins through before the next revocation.
    const std::uint64_t seen = pinned.load(std::memory_order_relaxed);
    for (int i = 0; i < 2000 && pinned.load(std::memory_order_relaxed) == seen; ++i) {
    }
  }
  end.store(true);
  for (std::thread& writer : writers) {
    writer.join();
  }
  CHECK_EQ(entry.pins.load(), 0U);
  CHECK(rounds > 100);
  CHECK(refused.load() > 0);
}

TEST("no byte is written after a revocation whose pins are zero, against three writers and more than a million pins") {
  Pair pair;
  // One mapping: what a race detector can follow.
  pins_against_revocation(*pair.b.owned, *pair.b.owned, 1'500'000);
}

TEST("the same over two mappings, as two processes have them") {
  if (test::thread_sanitized) {
    return;  // it does not know that two addresses are one memory
  }
  Pair pair;
  pins_against_revocation(*pair.b.owned, pair.a.peer->out(), 1'500'000);
}

// ---- signals

struct Collected final : SignalSink {
  std::vector<SignalRecord> records;
  void take(const SignalRecord& record) override { records.push_back(record); }
};

bool drain(Peer& peer, SignalSink& sink, bool& malformed, std::size_t budget = SIZE_MAX) {
  return peer.drain(sink, budget, malformed);
}

// What four producers send: who, and the how-manieth.
struct Checking final : SignalSink {
  std::array<std::uint64_t, 4> seen{};
  std::uint64_t count = 0;
  std::uint64_t sequence = 0;
  void take(const SignalRecord& record) override {
    std::uint64_t number = 0;
    REQUIRE(record.name.size() == 1 && record.payload.size() >= sizeof(number));
    const auto who = static_cast<std::size_t>(record.name[0]);
    std::memcpy(&number, record.payload.data(), sizeof(number));
    if (number != seen.at(who) || record.sequence != sequence + 1) {
      test::give_up("a signal was lost, duplicated or overtaken");
    }
    ++seen.at(who);
    ++count;
    ++sequence;
  }
};

// Four producers, one loop. `burst`: after so many signals a producer waits until all of everybody's have arrived, so
// that a wake-up that is lost is not made up for by the next signal.
void signals_from_four_threads(std::uint32_t capacity, std::uint64_t each, std::uint64_t burst) {
  Pair pair({.signal_capacity = capacity});
  Peer& sender = *pair.a.peer;
  Peer& receiver = *pair.b.peer;
  std::mutex reserving;  // stands for the loop thread, the only one that reserves
  std::atomic<std::uint64_t> arrived{0};
  std::vector<std::thread> producers;
  for (std::size_t who = 0; who < 4; ++who) {
    producers.emplace_back([&, who] {
      const std::string name(1, static_cast<char>(who));
      std::string payload(200, 'x');
      for (std::uint64_t number = 0; number < each;) {
        if (number % burst == 0) {
          while (arrived.load(std::memory_order_relaxed) < 4 * number) {
            std::this_thread::yield();
          }
        }
        {
          const std::lock_guard lock(reserving);
          if (sender.reserve_signal() == Status::signal_queue_full) {
            std::this_thread::yield();
            continue;
          }
        }
        std::memcpy(payload.data(), &number, sizeof(number));
        const auto nbytes = sizeof(number) + number % 64;
        CHECK(ok(sender.publish(name, std::string_view(payload).substr(0, nbytes), Status::ok)));
        ++number;
      }
    });
  }
  // As drain_signals does it: read the eventfd, take the bits, re-arm, look.
  Checking sink;
  std::uint64_t sleeps = 0;
  std::atomic<std::uint64_t>& dirty = pair.b.doorbell->page().dirty[0];
  while (sink.count < 4 * each) {
    if (!test::readable(pair.b.loop.get(), 10'000)) {
      test::lost_wakeup("the loop sleeps while signals wait");
    }
    ++sleeps;
    std::uint64_t rings = 0;
    CHECK_EQ(::read(pair.b.loop.get(), &rings, sizeof(rings)), static_cast<ssize_t>(sizeof(rings)));
    if (dirty.exchange(0, std::memory_order_acq_rel) == 0) {
      continue;
    }
    const std::uint64_t before = sink.count;
    bool malformed = false;
    CHECK(!drain(receiver, sink, malformed));
    CHECK(!malformed);
    receiver.taken(static_cast<std::uint32_t>(sink.count - before));
    arrived.store(sink.count, std::memory_order_relaxed);
  }
  for (std::thread& producer : producers) {
    producer.join();
  }
  for (const std::uint64_t seen : sink.seen) {
    CHECK_EQ(seen, each);
  }
  CHECK(sleeps > 10);
  Collected rest;
  bool malformed = false;
  CHECK(!drain(receiver, rest, malformed));
  CHECK(rest.records.empty() && !malformed);
}

TEST("four threads send a million signals to a loop that sleeps whenever it can: none lost, doubled or overtaken") {
  signals_from_four_threads(4096, 250'000, 250'000);
}

TEST("four threads send one signal each and wait until all have arrived: no wake-up is lost, 100000 times") {
  signals_from_four_threads(64, 100'000, 1);
}

TEST("with two places the senders wait for the loop and the loop for the senders, and nobody for ever") {
  signals_from_four_threads(2, 20'000, 20'000);
}

TEST("records of every size survive the ring's end, byte for byte") {
  Pair pair({.signal_capacity = 5});
  Peer& sender = *pair.a.peer;
  std::mt19937_64 random(1);
  std::deque<std::pair<std::string, std::string>> sent;
  Collected sink;
  std::size_t checked = 0;
  constexpr std::size_t sizes[] = {kMaxSignalText, 0, 1, 7, 8, 9, kMaxSignalText - 1, 500};
  for (std::size_t i = 0; i < 4000; ++i) {
    while (sender.reserve_signal() == Status::signal_queue_full) {
      bool malformed = false;
      (void)drain(*pair.b.peer, sink, malformed, 1 + random() % 3);
      REQUIRE(!malformed && !sink.records.empty());
      for (const SignalRecord& record : sink.records) {
        CHECK(record.name == sent.front().first && record.payload == sent.front().second);
        CHECK_EQ(record.sequence, checked + 1);
        CHECK_EQ(record.peer, pair.b.peer->id);
        CHECK_EQ(record.status, checked % 3 == 0 ? Status::peer_lost : Status::ok);
        sent.pop_front();
        ++checked;
      }
      pair.b.peer->taken(static_cast<std::uint32_t>(sink.records.size()));
      sink.records.clear();
    }
    const std::size_t name = i < 1000 ? kMaxSignalText : sizes[random() % 8];  // at first the largest ones only
    const std::size_t payload = i < 1000 ? kMaxSignalText : sizes[random() % 8];
    sent.emplace_back(std::string(name, static_cast<char>('a' + i % 26)),
                      std::string(payload, static_cast<char>('A' + i % 26)));
    CHECK(ok(sender.publish(sent.back().first, sent.back().second, i % 3 == 0 ? Status::peer_lost : Status::ok)));
  }
  CHECK(checked > 3900);
  CHECK_EQ(sender.publish(std::string(kMaxSignalText + 1, 'x'), "", Status::ok), Status::invalid_argument);
  CHECK_EQ(sender.publish("", std::string(kMaxSignalText + 1, 'x'), Status::ok), Status::invalid_argument);
}

TEST("the 4097th unread signal is refused at the sender, and possible again when the application took one") {
  Pair pair({.signal_capacity = 4096});
  Peer& sender = *pair.a.peer;
  const std::string largest(kMaxSignalText, 'x');
  for (int i = 0; i < 4096; ++i) {
    CHECK(ok(sender.reserve_signal()));
    CHECK(ok(sender.publish(largest, largest, Status::ok)));
  }
  CHECK_EQ(sender.reserve_signal(), Status::signal_queue_full);
  Collected sink;
  bool malformed = false;
  CHECK(!drain(*pair.b.peer, sink, malformed));
  CHECK_EQ(sink.records.size(), 4096U);
  CHECK_EQ(sender.reserve_signal(), Status::signal_queue_full);  // drained is not taken
  pair.b.peer->taken(1);
  CHECK_EQ(sender.reserve_signal(), Status::ok);
  CHECK_EQ(sender.reserve_signal(), Status::signal_queue_full);
  CHECK(ok(sender.publish("again", "", Status::ok)));
  sink.records.clear();
  CHECK(!drain(*pair.b.peer, sink, malformed));
  REQUIRE(sink.records.size() == 1);
  CHECK_EQ(sink.records[0].name, "again");
  CHECK(!malformed);
}

TEST("one ring of the bell serves everything that was sent before the loop re-armed") {
  Pair pair;
  for (int i = 0; i < 10; ++i) {
    CHECK(ok(pair.a.peer->reserve_signal()));
    CHECK(ok(pair.a.peer->publish("n", "", Status::ok)));
  }
  std::uint64_t rings = 0;
  CHECK_EQ(::read(pair.b.loop.get(), &rings, sizeof(rings)), 8);
  CHECK_EQ(rings, 1U);
  Collected sink;
  bool malformed = false;
  CHECK(drain(*pair.b.peer, sink, malformed, 4));  // something is left
  CHECK_EQ(sink.records.size(), 4U);
  CHECK(!drain(*pair.b.peer, sink, malformed, 6));
  CHECK(ok(pair.a.peer->publish("n", "", Status::ok)));
  CHECK(test::readable(pair.b.loop.get()));
}

TEST("a sender that is down neither reserves nor sends, and says why") {
  Pair pair;
  CHECK(pair.a.peer->mark_down(Status::peer_closed));
  CHECK(!pair.a.peer->mark_down(Status::peer_lost));
  CHECK_EQ(pair.a.peer->reserve_signal(), Status::peer_closed);
  CHECK_EQ(pair.a.peer->publish("n", "", Status::ok), Status::peer_closed);
  CHECK(!test::readable(pair.b.loop.get()));
}

// ---- what no engine writes

struct RawRecord {
  std::uint32_t nbytes = 24;
  std::int32_t status = 0;
  std::uint64_t sequence = 1;
  std::uint32_t name_nbytes = 0;
  std::uint32_t payload_nbytes = 0;
};

// Puts the record first into an empty ring and moves the head; what does the reader say?
bool refused(const RawRecord& record, std::uint64_t head) {
  Pair pair;
  std::memcpy(pair.b.owned->signal_bytes(), &record, sizeof(record));
  pair.b.owned->header().signal_head.store(head);
  Collected sink;
  bool malformed = false;
  CHECK(!drain(*pair.b.peer, sink, malformed));
  CHECK(malformed == sink.records.empty());
  bool again = false;
  CHECK(!drain(*pair.b.peer, sink, again));
  CHECK_EQ(again, malformed);  // it stays what it is
  return malformed;
}

TEST("records with sizes that do not fit, a gap in the sequence or a head beyond the ring are reported, not read") {
  CHECK(!refused({}, 24));
  CHECK(!refused({.nbytes = 32, .name_nbytes = 3, .payload_nbytes = 5}, 32));
  CHECK(refused({.nbytes = 0}, 24));
  CHECK(refused({.nbytes = 8}, 24));
  CHECK(refused({.nbytes = 24, .name_nbytes = 1}, 24));
  CHECK(refused({.nbytes = 32, .name_nbytes = 9}, 32));
  CHECK(refused({.nbytes = 0xffffffffU}, 24));
  CHECK(refused({.nbytes = 24 + 1032, .name_nbytes = 1025}, 2000));
  CHECK(refused({.nbytes = 24 + 1032, .payload_nbytes = 1025}, 2000));
  CHECK(refused({.nbytes = 24, .name_nbytes = 0xffffffffU, .payload_nbytes = 1}, 24));  // the sum wraps
  CHECK(refused({.nbytes = 16, .name_nbytes = 0xfffffff8U, .payload_nbytes = 0}, 24));
  CHECK(refused({.sequence = 0}, 24));
  CHECK(refused({.sequence = 2}, 24));
  CHECK(refused({.nbytes = 32, .name_nbytes = 8}, 24));  // reaches beyond the head
  CHECK(refused({}, 1));
  CHECK(refused({}, 64 * std::uint64_t{kSignalRecordMax} + 8));  // more than the ring holds
  CHECK(refused({}, UINT64_MAX));
  CHECK(refused({}, std::uint64_t{0} - 24));
}

TEST("a status that no engine knows becomes a failure, not a number that nobody can name") {
  for (const std::int32_t status :
       {-1, 27, 1000, INT32_MIN, INT32_MAX, static_cast<std::int32_t>(Status::would_block)}) {
    Pair pair;
    const RawRecord record{.status = status};
    std::memcpy(pair.b.owned->signal_bytes(), &record, sizeof(record));
    pair.b.owned->header().signal_head.store(24);
    Collected sink;
    bool malformed = false;
    CHECK(!drain(*pair.b.peer, sink, malformed));
    REQUIRE(sink.records.size() == 1);
    CHECK_EQ(sink.records[0].status, Status::failed);
  }
}

TEST("a ring full of noise is reported or read within its bounds, a million times") {
  Pair pair({.signal_capacity = 2});
  std::mt19937_64 random(7);
  std::byte* bytes = pair.b.owned->signal_bytes();
  const std::uint64_t size = pair.b.owned->signal_nbytes();
  std::uint64_t head = 0;
  for (int round = 0; round < 1'000'000; ++round) {
    for (int i = 0; i < 4; ++i) {
      bytes[random() % size] = static_cast<std::byte>(random());
    }
    // Now and then a record that is nearly right, at the place where the reader stands.
    if (round % 2 == 0) {
      RawRecord record;
      record.sequence = 1 + random() % 2;
      record.name_nbytes = static_cast<std::uint32_t>(random() % 1100);
      record.payload_nbytes = static_cast<std::uint32_t>(random() % 1100);
      record.nbytes = (24 + record.name_nbytes + record.payload_nbytes + 7) / 8 * 8;
      std::memcpy(bytes, &record, sizeof(record));
    }
    head = round % 3 == 0 ? random() : random() % (2 * size);
    pair.b.owned->header().signal_head.store(head);
    Collected sink;
    bool malformed = false;
    (void)drain(*pair.b.peer, sink, malformed, 4);
    for (const SignalRecord& record : sink.records) {
      CHECK(record.name.size() <= kMaxSignalText && record.payload.size() <= kMaxSignalText);
    }
  }
}

}  // namespace
}  // namespace hixl_aio::host

HIXL_TEST_MAIN
