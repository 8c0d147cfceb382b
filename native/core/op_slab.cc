// See op_slab.h.
#include "core/op_slab.h"

#include <algorithm>
#include <new>
#include <string>

namespace hixl_aio {

namespace {

template <typename Container>
void clear_but_keep(Container& container, std::size_t kept) noexcept {
  container.clear();
  if (container.capacity() > kept) {
    Container().swap(container);
  }
}

}  // namespace

OpSlab::OpSlab(std::uint32_t capacity, std::uint32_t first_generation)
    : capacity_(std::max<std::uint32_t>(capacity, 1)), first_generation_(first_generation) {
  chunks_.reserve((capacity_ + std::size_t{chunk_slots} - 1) / chunk_slots);  // so that grow() never reallocates
}

Op* OpSlab::acquire() noexcept {
  if (free_ == nullptr && !grow()) {
    return nullptr;
  }
  auto& slot = static_cast<Slot&>(*free_);
  free_ = slot.next;
  slot.next = nullptr;
  slot.taken = true;
  slot.handle = (OpHandle{slot.generation} << 32) | slot.index;
  ++in_use_;
  return &slot;
}

void OpSlab::release(Op& op) noexcept {
  auto& slot = static_cast<Slot&>(op);
  slot.taken = false;
  slot.generation = slot.generation >= max_generation ? 1 : slot.generation + 1;  // 0 is skipped: no handle is 0

  slot.handle = 0;
  slot.token = 0;
  slot.peer = 0;
  slot.kind = OpKind::put;
  slot.signal.present = false;
  clear_but_keep(slot.signal.name, 4096);
  clear_but_keep(slot.signal.payload, 4096);
  clear_but_keep(slot.runs, kept_runs);
  slot.target = nullptr;
  slot.nbytes = 0;
  // Relaxed: the next user of the slot gets it through a ring, which orders everything here.
  slot.stop_requested.store(false, std::memory_order_relaxed);
  slot.next_run = 0;
  slot.next_offset = 0;
  slot.cut_nbytes = 0;
  slot.moved_nbytes = 0;
  slot.outstanding = 0;
  slot.status = Status::ok;
  slot.queued = false;

  slot.next = free_;
  free_ = &slot;
  --in_use_;
}

Op* OpSlab::find(OpHandle handle) noexcept {
  const auto index = static_cast<std::uint32_t>(handle);
  if (index >= created_) {
    return nullptr;
  }
  Slot& slot = chunks_[index / chunk_slots][index % chunk_slots];
  return slot.taken && slot.handle == handle ? &slot : nullptr;
}

bool OpSlab::grow() noexcept {
  const std::uint32_t count = std::min(chunk_slots, capacity_ - created_);
  if (count == 0) {
    return false;
  }
  // The one allocation on this path: once per 256 operations that are in flight at the same time, never again.
  std::unique_ptr<Slot[]> chunk(new (std::nothrow) Slot[count]);
  if (chunk == nullptr) {
    return false;
  }
  for (std::uint32_t position = count; position-- > 0;) {
    Slot& slot = chunk[position];
    slot.index = created_ + position;
    slot.generation = first_generation_;
    slot.next = free_;
    free_ = &slot;
  }
  created_ += count;
  chunks_.push_back(std::move(chunk));
  return true;
}

}  // namespace hixl_aio
