// How much memory this process may still use.
#pragma once

#include <cstdint>
#include <string>

namespace hixl_aio::host {

// What may still be reserved without inviting the out-of-memory killer, which answers a reservation with a dead process
// instead of an error: the least of what the machine has and what the control groups of this process leave, of version 2
// and of version 1, each with all of its ancestors. `root` is put before every path, for tests.
std::uint64_t available_nbytes(const std::string& root = "");

}  // namespace hixl_aio::host
