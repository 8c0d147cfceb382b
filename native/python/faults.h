// The fault transport for Python: rules as plain values.
#pragma once

#include <pybind11/pybind11.h>

#include "transports/fault/fault_transport.h"

namespace hixl_aio::python {

void bind_faults(pybind11::module_& module);

}  // namespace hixl_aio::python
