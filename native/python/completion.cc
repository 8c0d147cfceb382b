// See completion.h.
#include "python/completion.h"

#include <structmember.h>

#include <array>
#include <cstdint>
#include <ctime>

namespace py = pybind11;

namespace hixl_aio::python {
namespace {

// Made once, with the module.
PyTypeObject* pace_type = nullptr;
PyObject* at_end = nullptr;     // an iterator that has ended: awaiting it does not suspend
PyObject* join_name = nullptr;  // "_join_it"
PyObject* pace_name = nullptr;  // "pace"

// False: others have to run first.
bool step(Pace* pace) noexcept {
  if (pace->awaits >= pace->free_awaits || pace->nbytes >= pace->free_nbytes) {
    return false;
  }
  ++pace->awaits;
  return true;
}

PyObject* pace_step(PyObject* self, PyObject*) { return PyBool_FromLong(step(reinterpret_cast<Pace*>(self)) ? 1 : 0); }

PyObject* pace_rest(PyObject* self, PyObject*) {
  auto* pace = reinterpret_cast<Pace*>(self);
  pace->awaits = 0;
  pace->nbytes = 0;
  Py_RETURN_NONE;
}

PyObject* pace_count(PyObject* self, PyObject* nbytes) {
  const std::size_t more = PyLong_AsSize_t(nbytes);
  if (more == static_cast<std::size_t>(-1) && PyErr_Occurred() != nullptr) {
    return nullptr;
  }
  reinterpret_cast<Pace*>(self)->nbytes += more;
  Py_RETURN_NONE;
}

PyObject* new_pace(PyTypeObject* type, PyObject* args, PyObject* names) {
  static std::array<const char*, 3> keywords{"free_awaits", "free_nbytes", nullptr};
  unsigned awaits = 0;
  Py_ssize_t nbytes = 0;
  if (PyArg_ParseTupleAndKeywords(args, names, "In", const_cast<char**>(keywords.data()), &awaits, &nbytes) == 0) {
    return nullptr;
  }
  PyObject* made = type->tp_alloc(type, 0);
  if (made != nullptr) {
    reinterpret_cast<Pace*>(made)->free_awaits = awaits;
    reinterpret_cast<Pace*>(made)->free_nbytes = static_cast<std::size_t>(nbytes);
  }
  return made;
}

void delete_pace(PyObject* self) {
  PyTypeObject* type = Py_TYPE(self);
  type->tp_free(self);
  Py_DECREF(type);
}

// ---- CompletionBase

template <typename Visit>
int each_held(PyObject* object, Visit visit) {
  auto* self = reinterpret_cast<CompletionBase*>(object);
  for (PyObject** held : {&self->runtime, &self->pace, &self->kind, &self->peer, &self->nbytes, &self->user_data, &self->failure,
                          &self->operation}) {
    if (const int status = visit(*held)) {
      return status;
    }
  }
  return 0;
}

int traverse(PyObject* object, visitproc visit, void* arg) {
  Py_VISIT(Py_TYPE(object));
  return each_held(object, [&](PyObject* held) { return held == nullptr ? 0 : visit(held, arg); });
}

int clear(PyObject* object) {
  return each_held(object, [](PyObject*& held) {
    Py_CLEAR(held);
    return 0;
  });
}

void dealloc(PyObject* object) {
  PyTypeObject* type = Py_TYPE(object);
  PyObject_GC_UnTrack(object);
  clear(object);
  type->tp_free(object);
  Py_DECREF(type);
}

int init(PyObject* object, PyObject* args, PyObject* names) {
  static std::array<const char*, 7> keywords{"runtime", "kind", "peer", "nbytes", "started", "ended", nullptr};
  PyObject* runtime = nullptr;
  PyObject* kind = nullptr;
  PyObject* peer = nullptr;
  PyObject* nbytes = nullptr;
  double started = 0.0;
  double ended = 0.0;
  if (PyArg_ParseTupleAndKeywords(args, names, "OOOOdd", const_cast<char**>(keywords.data()), &runtime, &kind, &peer, &nbytes,
                                  &started, &ended) == 0) {
    return -1;
  }
  PyObject* pace = PyObject_GetAttr(runtime, pace_name);
  if (pace == nullptr) {
    return -1;
  }
  if (!is_pace(pace)) {
    Py_DECREF(pace);
    PyErr_SetString(PyExc_TypeError, "runtime.pace is no Pace");
    return -1;
  }
  auto* self = reinterpret_cast<CompletionBase*>(object);
  Py_XSETREF(self->pace, pace);
  Py_XSETREF(self->runtime, Py_NewRef(runtime));
  Py_XSETREF(self->kind, Py_NewRef(kind));
  Py_XSETREF(self->peer, Py_NewRef(peer));
  Py_XSETREF(self->nbytes, Py_NewRef(nbytes));
  self->started = started;
  self->ended = ended;
  return 0;
}

// What is done, and well, does not suspend; everything else is joined by Python code.
PyObject* await(PyObject* object) {
  auto* self = reinterpret_cast<CompletionBase*>(object);
  const bool failed = self->failure != nullptr && self->failure != Py_None;
  if (self->ended != 0.0 && !failed && self->pace != nullptr && step(reinterpret_cast<Pace*>(self->pace))) {
    return Py_NewRef(at_end);
  }
  return PyObject_CallMethodNoArgs(object, join_name);
}

PyTypeObject* make_type(PyType_Spec& spec, py::module_& module, const char* name) {
  PyObject* type = PyType_FromSpec(&spec);
  if (type == nullptr) {
    throw py::error_already_set();
  }
  module.attr(name) = py::reinterpret_borrow<py::object>(type);
  return reinterpret_cast<PyTypeObject*>(type);  // our reference is kept for good
}

PyObject* owned(PyObject* object) {
  if (object == nullptr) {
    throw py::error_already_set();
  }
  return object;
}

void bind_pace(py::module_& module) {
  static PyMethodDef methods[] = {
      {"step", pace_step, METH_NOARGS, nullptr},
      {"rest", pace_rest, METH_NOARGS, nullptr},
      {"count", pace_count, METH_O, nullptr},
      {nullptr, nullptr, 0, nullptr},
  };
  static PyMemberDef members[] = {
      {"free_awaits", T_UINT, offsetof(Pace, free_awaits), READONLY, nullptr},
      {"free_nbytes", T_PYSSIZET, offsetof(Pace, free_nbytes), READONLY, nullptr},
      {nullptr, 0, 0, 0, nullptr},
  };
  static PyType_Slot slots[] = {
      {Py_tp_new, reinterpret_cast<void*>(new_pace)},
      {Py_tp_dealloc, reinterpret_cast<void*>(delete_pace)},
      {Py_tp_methods, methods},
      {Py_tp_members, members},
      {0, nullptr},
  };
  static PyType_Spec spec{"hixl_aio._native.Pace", sizeof(Pace), 0, Py_TPFLAGS_DEFAULT, slots};
  pace_type = make_type(spec, module, "Pace");
}

void bind_base(py::module_& module) {
  static PyMemberDef members[] = {
      {"_runtime", T_OBJECT, offsetof(CompletionBase, runtime), READONLY, nullptr},
      {"_pace", T_OBJECT, offsetof(CompletionBase, pace), READONLY, nullptr},
      {"kind", T_OBJECT, offsetof(CompletionBase, kind), READONLY, nullptr},
      {"peer", T_OBJECT, offsetof(CompletionBase, peer), 0, nullptr},
      {"nbytes", T_OBJECT, offsetof(CompletionBase, nbytes), READONLY, nullptr},
      {"user_data", T_OBJECT, offsetof(CompletionBase, user_data), 0, nullptr},
      {"_failure", T_OBJECT, offsetof(CompletionBase, failure), 0, nullptr},
      {"_operation", T_OBJECT, offsetof(CompletionBase, operation), 0, nullptr},
      {"_started", T_DOUBLE, offsetof(CompletionBase, started), READONLY, nullptr},
      {"_ended", T_DOUBLE, offsetof(CompletionBase, ended), 0, nullptr},
      {nullptr, 0, 0, 0, nullptr},
  };
  static PyType_Slot slots[] = {
      {Py_tp_new, reinterpret_cast<void*>(PyType_GenericNew)},
      {Py_tp_init, reinterpret_cast<void*>(init)},
      {Py_tp_traverse, reinterpret_cast<void*>(traverse)},
      {Py_tp_clear, reinterpret_cast<void*>(clear)},
      {Py_tp_dealloc, reinterpret_cast<void*>(dealloc)},
      {Py_tp_members, members},
      {Py_am_await, reinterpret_cast<void*>(await)},
      {0, nullptr},
  };
  static PyType_Spec spec{"hixl_aio._native.CompletionBase", sizeof(CompletionBase), 0,
                          Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_BASETYPE, slots};
  make_type(spec, module, "CompletionBase");
}

}  // namespace

bool is_pace(PyObject* object) noexcept { return object != nullptr && Py_TYPE(object) == pace_type; }

// Nanoseconds first: the double is then the one that Python makes of them.
double monotonic() noexcept {
  timespec now{};
  clock_gettime(CLOCK_MONOTONIC, &now);
  return static_cast<double>(static_cast<std::int64_t>(now.tv_sec) * 1'000'000'000 + now.tv_nsec) / 1e9;
}

CompletionBase* new_completion(PyObject* type) noexcept {
  auto* wanted = reinterpret_cast<PyTypeObject*>(type);
  return reinterpret_cast<CompletionBase*>(wanted->tp_alloc(wanted, 0));
}

void bind_completion(py::module_& module) {
  at_end = owned(PyObject_GetIter(owned(PyTuple_New(0))));
  PyObject* nothing = PyIter_Next(at_end);
  Py_XDECREF(nothing);
  join_name = owned(PyUnicode_InternFromString("_join_it"));
  pace_name = owned(PyUnicode_InternFromString("pace"));
  bind_pace(module);
  bind_base(module);
}

}  // namespace hixl_aio::python
