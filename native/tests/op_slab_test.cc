// The slab: generations (INV-9), reuse, bounds.
#include "core/op_slab.h"

#include <set>

#include "check.h"

namespace hixl_aio {
namespace {

TEST("a handle stops matching when its slot is released, and the next user of the slot has another one") {
  OpSlab slab(4);
  Op* op = slab.acquire();
  const OpHandle first = op->handle;
  CHECK(slab.find(first) == op);
  slab.release(*op);
  CHECK(slab.find(first) == nullptr);
  Op* again = slab.acquire();
  CHECK(again == op);
  CHECK(again->handle != first);
  CHECK(slab.find(first) == nullptr);
  CHECK(slab.find(again->handle) == again);
}

TEST("no handle of a slot repeats over a million reuses") {
  OpSlab slab(1);
  OpHandle before = 0;
  for (int round = 0; round < 1'000'000; ++round) {
    Op* op = slab.acquire();
    if (op->handle <= before) {  // growing, so none can repeat
      CHECK(op->handle > before);
      break;
    }
    before = op->handle;
    slab.release(*op);
  }
  CHECK_EQ(before >> 32, 1'000'000U);
}

TEST("a generation wraps from its maximum to 1: no handle is 0, none is negative as a signed integer") {
  OpSlab slab(1, OpSlab::max_generation - 1);
  std::vector<OpHandle> generations;
  for (int round = 0; round < 4; ++round) {
    Op* op = slab.acquire();
    CHECK(static_cast<std::int64_t>(op->handle) > 0);
    generations.push_back(op->handle >> 32);
    slab.release(*op);
  }
  CHECK(generations == (std::vector<OpHandle>{OpSlab::max_generation - 1, OpSlab::max_generation, 1, 2}));
}

TEST("a full slab answers null, and has room again after one release") {
  OpSlab slab(300);  // more than one chunk, and a last one that is not full
  std::vector<Op*> ops;
  std::set<OpHandle> handles;
  while (Op* op = slab.acquire()) {
    ops.push_back(op);
    handles.insert(op->handle);
  }
  CHECK_EQ(ops.size(), 300U);
  CHECK_EQ(handles.size(), 300U);
  CHECK_EQ(slab.in_use(), 300U);
  slab.release(*ops[17]);
  CHECK_EQ(slab.in_use(), 299U);
  CHECK(slab.acquire() == ops[17]);
  CHECK(slab.acquire() == nullptr);
  for (std::size_t index = 0; index < ops.size(); ++index) {
    CHECK(slab.find(ops[index]->handle) == ops[index]);  // addresses stayed where they were while chunks were added
  }
}

TEST("malformed handles match nothing") {
  OpSlab slab(8);
  CHECK(slab.find(0) == nullptr);
  CHECK(slab.find(OpHandle{1} << 32) == nullptr);  // before any slot exists
  Op* op = slab.acquire();
  CHECK(slab.find(op->handle + (OpHandle{1} << 32)) == nullptr);  // a generation that is not here yet
  CHECK(slab.find(op->handle | 0xffffffff) == nullptr);           // no such slot
  CHECK(slab.find(op->handle & 0xffffffff) == nullptr);           // generation 0
  CHECK(slab.find(~OpHandle{0}) == nullptr);
  const OpHandle next = op->handle + (OpHandle{1} << 32);
  slab.release(*op);
  CHECK(slab.find(next) == nullptr);  // the slot's next generation, while the slot is free
}

TEST("a released slot comes back clean, with the memory of usual operations kept and that of huge ones returned") {
  OpSlab slab(1);
  Op* op = slab.acquire();
  op->token = 7;
  op->peer = 3;
  op->kind = OpKind::batch;
  op->signal.present = true;
  op->signal.name.assign(1000, 'n');
  op->runs.resize(100);
  op->nbytes = op->moved_nbytes = 9;
  op->target = op;
  op->stop_requested = true;
  op->next_run = op->next_offset = 1;
  op->outstanding = 2;
  op->status = Status::failed;
  op->queued = true;
  slab.release(*op);
  op = slab.acquire();
  CHECK_EQ(op->token, 0U);
  CHECK_EQ(op->peer, 0U);
  CHECK_EQ(op->kind, OpKind::put);
  CHECK(!op->signal.present && op->signal.name.empty() && op->signal.payload.empty());
  CHECK(op->runs.empty() && op->nbytes == 0 && op->moved_nbytes == 0);
  CHECK(op->target == nullptr && op->next == nullptr);
  CHECK(!op->stop_requested && op->next_run == 0 && op->next_offset == 0);
  CHECK(op->outstanding == 0 && op->status == Status::ok && !op->queued);
  CHECK(op->runs.capacity() >= 100);
  CHECK(op->signal.name.capacity() >= 1000);
  op->runs.resize(OpSlab::kept_runs + 1);
  slab.release(*op);
  op = slab.acquire();
  CHECK_EQ(op->runs.capacity(), 0U);
}

}  // namespace
}  // namespace hixl_aio

HIXL_TEST_MAIN
