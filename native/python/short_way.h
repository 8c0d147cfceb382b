// The hot path of put and get, in one call: what is small and can be done at once is checked, copied and reported here.
#pragma once

#include <pybind11/pybind11.h>

#include "core/engine.h"

namespace hixl_aio::python {

// A callable pair `put(src, dst, signal, payload)` and `get(src, dst)` of one engine. Each answers with a done
// Completion, or with None: then nothing has happened, and the ordinary way has to decide. `native` keeps the engine alive
// until `close()`.
pybind11::object make_short_way(Engine& engine, pybind11::handle native, const pybind11::dict& parts);

void bind_short_way(pybind11::module_& module);

}  // namespace hixl_aio::python
