// The engine, for Python.
#pragma once

#include <pybind11/pybind11.h>

namespace hixl_aio::python {

void bind_engine(pybind11::module_& module);

}  // namespace hixl_aio::python
