// See completion_channel.h.
#include "core/completion_channel.h"

#include <cstdio>
#include <cstdlib>

namespace hixl_aio {

void CompletionChannel::push(const CompletionRecord& record) noexcept {
  if (!ring_.try_push(record)) {
    std::fputs("hixl-aio: completion ring full: a transport completed an operation twice (INV-1)\n", stderr);
    std::abort();
  }
  bell_.ring();  // after the record is published, never before
}

std::size_t CompletionChannel::pop(CompletionRecord* records, std::size_t limit) noexcept {
  std::size_t count = 0;
  while (count < limit && ring_.try_pop(records[count])) {
    ++count;
  }
  return count;
}

}  // namespace hixl_aio
