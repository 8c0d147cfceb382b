// See slots.h.
#include "python/slots.h"

#include <structmember.h>

#include <array>
#include <cstddef>
#include <string>

#include "python/native_error.h"

namespace py = pybind11;

namespace hixl_aio::python {
namespace {

constexpr std::size_t kMostSlots = 16;

struct Maker {
  PyObject_HEAD
  vectorcallfunc call;
  PyTypeObject* type;
  Py_ssize_t count;
  std::array<Py_ssize_t, kMostSlots> offsets;
};

PyTypeObject* maker_type = nullptr;  // made once, with the module

PyObject* make(PyObject* object, PyObject* const* args, std::size_t flags, PyObject* names) {
  const auto* self = reinterpret_cast<Maker*>(object);
  if (PyVectorcall_NARGS(flags) != self->count || (names != nullptr && PyTuple_GET_SIZE(names) != 0)) {
    PyErr_Format(PyExc_TypeError, "%zd values are needed, by their places", self->count);
    return nullptr;
  }
  PyObject* made = self->type->tp_alloc(self->type, 0);
  for (Py_ssize_t i = 0; made != nullptr && i < self->count; ++i) {
    slot_at(made, self->offsets[static_cast<std::size_t>(i)]) = Py_NewRef(args[i]);
  }
  return made;
}

int traverse(PyObject* object, visitproc visit, void* arg) {
  Py_VISIT(Py_TYPE(object));
  Py_VISIT(reinterpret_cast<Maker*>(object)->type);
  return 0;
}

int clear(PyObject* object) {
  Py_CLEAR(reinterpret_cast<Maker*>(object)->type);
  return 0;
}

void dealloc(PyObject* object) {
  PyTypeObject* type = Py_TYPE(object);
  PyObject_GC_UnTrack(object);
  clear(object);
  type->tp_free(object);
  Py_DECREF(type);
}

py::object new_maker(const py::type& type, const py::tuple& names) {
  if (names.size() > kMostSlots) {
    throw NativeError(Status::invalid_argument, "more slots than a maker fills");
  }
  auto made = py::reinterpret_steal<py::object>(maker_type->tp_alloc(maker_type, 0));
  if (!made) {
    throw py::error_already_set();
  }
  auto* self = reinterpret_cast<Maker*>(made.ptr());
  self->call = make;
  self->type = reinterpret_cast<PyTypeObject*>(Py_NewRef(type.ptr()));
  for (const py::handle name : names) {
    self->offsets[static_cast<std::size_t>(self->count++)] = slot_offset(type, name.cast<std::string>().c_str());
  }
  return made;
}

}  // namespace

Py_ssize_t slot_offset(py::handle type, const char* name) {
  const py::object descriptor = py::object(type.attr(name));
  if (Py_TYPE(descriptor.ptr()) == &PyMemberDescr_Type) {
    const PyMemberDef* member = reinterpret_cast<PyMemberDescrObject*>(descriptor.ptr())->d_member;
    if (member->type == T_OBJECT_EX) {
      return member->offset;
    }
  }
  throw NativeError(Status::internal, py::str(type.attr("__name__")).cast<std::string>() + "." + name + " is no slot");
}

void bind_maker(py::module_& module) {
  static PyMemberDef members[] = {
      {"__vectorcalloffset__", T_PYSSIZET, offsetof(Maker, call), READONLY, nullptr},
      {nullptr, 0, 0, 0, nullptr},
  };
  static PyType_Slot slots[] = {
      {Py_tp_call, reinterpret_cast<void*>(PyVectorcall_Call)},
      {Py_tp_members, members},
      {Py_tp_traverse, reinterpret_cast<void*>(traverse)},
      {Py_tp_clear, reinterpret_cast<void*>(clear)},
      {Py_tp_dealloc, reinterpret_cast<void*>(dealloc)},
      {0, nullptr},
  };
  static PyType_Spec spec{
      "hixl_aio._native.Maker", sizeof(Maker), 0,
      Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_HAVE_VECTORCALL | Py_TPFLAGS_DISALLOW_INSTANTIATION, slots};
  PyObject* type = PyType_FromSpec(&spec);
  if (type == nullptr) {
    throw py::error_already_set();
  }
  maker_type = reinterpret_cast<PyTypeObject*>(type);
  module.def("maker", &new_maker, py::arg("cls"), py::arg("names"), py::pos_only());
}

}  // namespace hixl_aio::python
