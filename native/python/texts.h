// Texts from elsewhere, for Python.
#pragma once

#include <pybind11/pybind11.h>

#include <string>
#include <string_view>

namespace hixl_aio::python {

// The sender may be anybody of our user: a name that is no UTF-8 is shown, not trusted (INV-12).
inline pybind11::str signal_name(std::string_view name) {
  PyObject* text = PyUnicode_DecodeUTF8(name.data(), static_cast<pybind11::ssize_t>(name.size()), "backslashreplace");
  if (text == nullptr) {
    throw pybind11::error_already_set();
  }
  return pybind11::reinterpret_steal<pybind11::str>(text);
}

// Texts from the wire may hold any bytes; an event must still arrive.
inline pybind11::str lenient(const std::string& text) {
  return pybind11::reinterpret_steal<pybind11::str>(
      PyUnicode_DecodeUTF8(text.data(), static_cast<pybind11::ssize_t>(text.size()), "replace"));
}

}  // namespace hixl_aio::python
