// The slots of Python classes, read and filled by their offsets: a hundredth of a microsecond each.
#pragma once

#include <pybind11/pybind11.h>

namespace hixl_aio::python {

// Where instances of `type` have the slot of that name. Throws if it is no slot.
[[nodiscard]] Py_ssize_t slot_offset(pybind11::handle type, const char* name);

[[nodiscard]] inline PyObject*& slot_at(PyObject* object, Py_ssize_t offset) noexcept {
  return *reinterpret_cast<PyObject**>(reinterpret_cast<char*>(object) + offset);
}

// Binds `maker(cls, names)`: a callable that makes an instance of `cls` from the values of its slots, in that order,
// without `__init__`. A frozen dataclass of seven fields takes 1.3 us to make itself.
void bind_maker(pybind11::module_& module);

}  // namespace hixl_aio::python
