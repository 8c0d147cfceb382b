#include "python/buffers.h"

#include <cstddef>

namespace py = pybind11;

namespace hixl_aio::python {

BufferPin::BufferPin(const py::object& object) {
  // Any contiguous order will do: a transfer moves bytes, whatever they mean.
  if (PyObject_GetBuffer(object.ptr(), &view_, PyBUF_ANY_CONTIGUOUS | PyBUF_FORMAT) != 0) {
    throw py::error_already_set();
  }
  held_ = true;
  address_ = reinterpret_cast<std::uintptr_t>(view_.buf);
  nbytes_ = static_cast<std::uint64_t>(view_.len);
  readonly_ = view_.readonly != 0;
}

void BufferPin::release() noexcept {
  if (held_) {
    held_ = false;
    PyBuffer_Release(&view_);
  }
}

void bind_buffers(py::module_& module) {
  py::class_<BufferPin>(module, "BufferPin", py::is_final())
      .def(py::init<const py::object&>())
      .def_property_readonly("address", &BufferPin::address)
      .def_property_readonly("nbytes", &BufferPin::nbytes)
      .def_property_readonly("readonly", &BufferPin::readonly)
      .def("release", &BufferPin::release);

  py::class_<ExportedMemory>(module, "ExportedMemory", py::is_final(), py::buffer_protocol())
      .def(py::init([](std::uintptr_t address, std::uint64_t nbytes, bool readonly, py::object owner) {
        return ExportedMemory{address, nbytes, readonly, std::move(owner)};
      }))
      .def_readonly("address", &ExportedMemory::address)
      .def_readonly("nbytes", &ExportedMemory::nbytes)
      .def_buffer([](ExportedMemory& memory) {
        return py::buffer_info(reinterpret_cast<std::uint8_t*>(memory.address), 1, "B", 1,
                               {static_cast<py::ssize_t>(memory.nbytes)}, {1}, memory.readonly);
      });

  py::class_<RegionHold>(module, "RegionHold", py::is_final());
}

}  // namespace hixl_aio::python
