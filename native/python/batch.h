// Turns the parts of a batch, offsets as arrays, into merged runs: no Python object per block.
#pragma once

#include <pybind11/pybind11.h>

#include <cstdint>
#include <utility>
#include <vector>

#include "hixl_aio/types.h"

namespace hixl_aio::python {

// First and last run that carry bytes of a part; `first > last` for a part without bytes.
using PartSpan = std::pair<std::uint32_t, std::uint32_t>;

// Throws NativeError (out_of_bounds, invalid_argument) naming part and index, before anything is moved.
void build_runs(const pybind11::list& parts, std::vector<Run>& runs, std::vector<PartSpan>& spans);

// The part that a run belongs to; of a run that was merged from several, the first.
std::size_t part_of(std::size_t run, const std::vector<PartSpan>& spans) noexcept;

// One RunState a part: the worst of its runs.
std::vector<std::uint8_t> part_states(const Op& op, Status status, const std::vector<PartSpan>& spans);

}  // namespace hixl_aio::python
