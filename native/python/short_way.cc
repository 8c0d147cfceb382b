// See short_way.h.
//
// Plain CPython calls and the offsets of slots: a hundredth of a microsecond each, where an attribute, a call of a bound
// method or an argument list would be the larger part of the whole.
#include "python/short_way.h"

#include <array>
#include <cstdint>
#include <string_view>

#include "python/completion.h"
#include "python/native_error.h"
#include "python/slots.h"

namespace py = pybind11;

namespace hixl_aio::python {
namespace {

constexpr Py_ssize_t kMaxName = 1024;

// What Python gives us, by name; each is a reference that we own.
enum Held : std::size_t {
  kNative,
  kRuntime,
  kLife,
  kCurrent,
  kPeers,
  kPace,
  kLocalView,
  kRegionRecord,
  kRemoteView,
  kRemoteRegion,
  kPeer,
  kLine,
  kCompletion,
  kPutKind,
  kGetKind,
  kReadAccess,
  kWriteAccess,
  kBothAccess,
  kHeld,
};
constexpr std::array<const char*, kHeld> kHeldNames{
    "native",       "runtime",    "life",         "current", "peers",    "pace",       "LocalView",
    "RegionRecord", "RemoteView", "RemoteRegion", "Peer",    "PeerLine", "Completion", "put",
    "get",          "READ",       "WRITE",        "READ_WRITE",
};

// Slots, by class and name.
enum Slot : std::size_t {
  kLocalAddress,
  kLocalNbytes,
  kLocalRecord,
  kRecordOwner,
  kRecordReadonly,
  kRemoteRegionOf,
  kRemoteOffset,
  kRemoteNbytes,
  kIncarnation,
  kRegionId,
  kGeneration,
  kAccess,
  kPeerId,
  kPeerLine,
  kIdle,
  kHome,
  kSlots,
};
struct SlotName {
  const char* owner;
  const char* name;
};
constexpr std::array<SlotName, kSlots> kSlotNames{{
    {"LocalView", "_address"},
    {"LocalView", "_nbytes"},
    {"LocalView", "_record"},
    {"RegionRecord", "owner"},
    {"RegionRecord", "readonly"},
    {"RemoteView", "_region"},
    {"RemoteView", "_offset"},
    {"RemoteView", "_nbytes"},
    {"RemoteRegion", "incarnation"},
    {"RemoteRegion", "id"},
    {"RemoteRegion", "generation"},
    {"RemoteRegion", "access"},
    {"Peer", "_id"},
    {"Peer", "_line"},
    {"PeerLine", "idle"},
    {"Lifecycle", "home"},
}};

#if PY_VERSION_HEX < 0x030C0000
PyObject* record_name = nullptr;      // made once, with the module
PyObject* asyncio_current = nullptr;  // found once
#endif

struct ShortWay {
  PyObject_HEAD
  Engine* engine;  // null once it is closed
  std::array<PyObject*, kHeld> held;
  std::array<Py_ssize_t, kSlots> slots;
  Py_ssize_t max_payload;
  PyObject* running;  // see is_known_to_run
  PyObject* loop;
  std::uint64_t count;
  std::uint64_t nbytes;
};

PyObject* slot_of(const ShortWay* self, PyObject* object, Slot slot) noexcept {
  return slot_at(object, self->slots[slot]);
}

bool is_a(const ShortWay* self, PyObject* object, Held type) noexcept {
  return object != nullptr && reinterpret_cast<PyObject*>(Py_TYPE(object)) == self->held[type];
}

// False, without an exception: no int, or none that fits.
bool read_number(PyObject* object, std::uint64_t& out) noexcept {
  if (object == nullptr || !PyLong_CheckExact(object)) {
    return false;
  }
  out = PyLong_AsUnsignedLongLong(object);
  if (out == static_cast<std::uint64_t>(-1) && PyErr_Occurred() != nullptr) {
    PyErr_Clear();
    return false;
  }
  return true;
}

PyObject* nothing() noexcept { Py_RETURN_NONE; }

// A Completion without an end; null with an exception if there is no memory.
CompletionBase* new_one(const ShortWay* self, Held kind, PyObject* peer, PyObject* nbytes, double started) noexcept {
  Py_INCREF(peer);  // an allocation may run finalizers, which may drop it
  CompletionBase* made = new_completion(self->held[kCompletion]);
  if (made == nullptr) {
    Py_DECREF(peer);
    return nullptr;
  }
  made->runtime = Py_NewRef(self->held[kRuntime]);
  made->pace = Py_NewRef(self->held[kPace]);
  made->kind = Py_NewRef(self->held[kind]);
  made->peer = peer;
  made->nbytes = Py_NewRef(nbytes);
  made->started = started;
  return made;
}

#if PY_VERSION_HEX < 0x030C0000
// asyncio of CPython 3.11 asks the system for the process's number whenever it is asked for the running loop, a fifth of the
// whole. What it keeps for the thread is a new object each time a loop begins or ends to run in it, so that the same object
// means the same loop. (That the process is another one shows in the engine's life.)
PyObject* record_of_running() noexcept {
  PyObject* of_thread = PyThreadState_GetDict();
  return of_thread == nullptr ? nullptr : PyDict_GetItem(of_thread, record_name);
}

bool is_known_to_run(const ShortWay* self) noexcept { return self->running != nullptr && self->running == record_of_running(); }

// asyncio's own function, which the first engine on one of its loops finds loaded. To import it from here would be wrong: the
// extension must be loaded by the package, in the middle of which it is.
void find_asyncio() {
  const py::dict modules = py::module_::import("sys").attr("modules");
  if (asyncio_current == nullptr && modules.contains("asyncio") && modules.contains("_asyncio")) {
    asyncio_current = py::object(modules["_asyncio"].attr("_get_running_loop")).release().ptr();
  }
}

void know_to_run(ShortWay* self, PyObject* loop) noexcept {
  PyObject* record = self->held[kCurrent] == asyncio_current ? record_of_running() : nullptr;
  Py_XSETREF(self->running, Py_XNewRef(record));
  Py_XSETREF(self->loop, Py_NewRef(loop));
}
#else
bool is_known_to_run(const ShortWay*) noexcept { return false; }
void find_asyncio() {}
void know_to_run(ShortWay*, PyObject*) noexcept {}
#endif

// 1: the open engine's own loop runs here. 0: it does not. -1: an exception.
int at_home(ShortWay* self) noexcept {
  if (is_known_to_run(self)) {
    return self->loop == slot_of(self, self->held[kLife], kHome) ? 1 : 0;
  }
  PyObject* current = PyObject_CallNoArgs(self->held[kCurrent]);
  if (current == nullptr) {
    return -1;
  }
  const int here = current == slot_of(self, self->held[kLife], kHome) ? 1 : 0;
  if (here == 1) {
    know_to_run(self, current);
  }
  Py_DECREF(current);
  return here;
}

// A signal's name and payload, if they are what can be taken as it is.
bool read_signal(const ShortWay* self, PyObject* name, PyObject* payload, SignalText& out) {
  if (!PyUnicode_CheckExact(name) || !PyUnicode_IS_COMPACT_ASCII(name) || !PyBytes_CheckExact(payload)) {
    return false;
  }
  const Py_ssize_t length = PyUnicode_GET_LENGTH(name);
  if (length == 0 || length > kMaxName || PyBytes_GET_SIZE(payload) > self->max_payload) {
    return false;
  }
  out.name = std::string_view(static_cast<const char*>(PyUnicode_DATA(name)), static_cast<std::size_t>(length));
  out.payload = std::string_view(PyBytes_AS_STRING(payload), static_cast<std::size_t>(PyBytes_GET_SIZE(payload)));
  return true;
}

PyObject* transfer(ShortWay* self, bool is_get, PyObject* local, PyObject* remote, PyObject* name, PyObject* payload) {
  if (!is_a(self, local, kLocalView) || !is_a(self, remote, kRemoteView)) {
    return nothing();
  }
  const int here = at_home(self);
  if (here != 1 || self->engine == nullptr) {
    return here < 0 ? nullptr : nothing();
  }
  const double started = monotonic();
  PyObject* record = slot_of(self, local, kLocalRecord);
  PyObject* region = slot_of(self, remote, kRemoteRegionOf);
  if (!is_a(self, record, kRegionRecord) || !is_a(self, region, kRemoteRegion) ||
      slot_of(self, record, kRecordOwner) != self->held[kRuntime] ||
      (is_get && slot_of(self, record, kRecordReadonly) != Py_False)) {
    return nothing();
  }
  PyObject* access = slot_of(self, region, kAccess);
  if (access != self->held[kBothAccess] && access != self->held[is_get ? kReadAccess : kWriteAccess]) {
    return nothing();
  }
  PyObject* nbytes = slot_of(self, local, kLocalNbytes);
  PyObject* incarnation = slot_of(self, region, kIncarnation);
  if (nbytes == nullptr || incarnation == nullptr) {
    return nothing();
  }
  PyObject* peer = PyDict_GetItemWithError(self->held[kPeers], incarnation);
  if (peer == nullptr) {
    return PyErr_Occurred() != nullptr ? nullptr : nothing();
  }
  // First, so that nothing can fail once bytes have moved. It keeps `peer`.
  const auto kind = is_get ? kGetKind : kPutKind;
  auto made = py::reinterpret_steal<py::object>(reinterpret_cast<PyObject*>(new_one(self, kind, peer, nbytes, started)));
  if (!made) {
    return nullptr;
  }
  PyObject* line = is_a(self, peer, kPeer) ? slot_of(self, peer, kPeerLine) : nullptr;
  if (!is_a(self, line, kLine) || slot_of(self, line, kIdle) != Py_True) {
    return nothing();
  }
  Run run;
  std::uint64_t address = 0;
  std::uint64_t remote_nbytes = 0;
  std::uint64_t id = 0;
  std::uint64_t generation = 0;
  std::uint64_t number = 0;
  if (!read_number(nbytes, run.nbytes) || !read_number(slot_of(self, remote, kRemoteNbytes), remote_nbytes) ||
      run.nbytes == 0 || run.nbytes != remote_nbytes || !read_number(slot_of(self, local, kLocalAddress), address) ||
      !read_number(slot_of(self, remote, kRemoteOffset), run.remote_offset) ||
      !read_number(slot_of(self, region, kRegionId), id) ||
      !read_number(slot_of(self, region, kGeneration), generation) ||
      !read_number(slot_of(self, peer, kPeerId), number) || id > UINT32_MAX || generation > UINT32_MAX ||
      number > UINT32_MAX) {
    return nothing();
  }
  run.local = reinterpret_cast<std::byte*>(static_cast<std::uintptr_t>(address));
  run.region = static_cast<std::uint32_t>(id);
  run.generation = static_cast<std::uint32_t>(generation);
  run.direction = is_get ? Direction::get : Direction::put;
  const auto peer_id = static_cast<PeerId>(number);
  SignalText signal;
  const bool with_signal = name != Py_None;
  if (with_signal) {
    if (!read_signal(self, name, payload, signal) || !ok(self->engine->transport().reserve_signal(peer_id))) {
      return nothing();
    }
  } else if (payload != nullptr && (!PyBytes_CheckExact(payload) || PyBytes_GET_SIZE(payload) != 0)) {
    return nothing();
  }
  const Status status = self->engine->transfer_now(peer_id, run, with_signal ? &signal : nullptr, with_signal);
  if (!ok(status)) {
    if (with_signal) {
      self->engine->transport().unreserve_signal(peer_id);
    }
    return nothing();
  }
  ++self->count;
  self->nbytes += run.nbytes;
  reinterpret_cast<Pace*>(self->held[kPace])->nbytes += run.nbytes;
  reinterpret_cast<CompletionBase*>(made.ptr())->ended = monotonic();
  return made.release().ptr();
}

PyObject* put(PyObject* self, PyObject* const* args, Py_ssize_t count) {
  if (count != 4) {
    PyErr_SetString(PyExc_TypeError, "put(src, dst, signal, payload)");
    return nullptr;
  }
  return transfer(reinterpret_cast<ShortWay*>(self), false, args[0], args[1], args[2], args[3]);
}

PyObject* get(PyObject* self, PyObject* const* args, Py_ssize_t count) {
  if (count != 2) {
    PyErr_SetString(PyExc_TypeError, "get(src, dst)");
    return nullptr;
  }
  return transfer(reinterpret_cast<ShortWay*>(self), true, args[1], args[0], Py_None, nullptr);
}

int clear(PyObject* object) {
  auto* self = reinterpret_cast<ShortWay*>(object);
  self->engine = nullptr;
  Py_CLEAR(self->running);
  Py_CLEAR(self->loop);
  for (PyObject*& held : self->held) {
    Py_CLEAR(held);
  }
  return 0;
}

PyObject* close(PyObject* self, PyObject*) {
  clear(self);
  return nothing();
}

int traverse(PyObject* object, visitproc visit, void* arg) {
  Py_VISIT(Py_TYPE(object));
  Py_VISIT(reinterpret_cast<ShortWay*>(object)->running);
  Py_VISIT(reinterpret_cast<ShortWay*>(object)->loop);
  for (PyObject* held : reinterpret_cast<ShortWay*>(object)->held) {
    Py_VISIT(held);
  }
  return 0;
}

void dealloc(PyObject* object) {
  PyTypeObject* type = Py_TYPE(object);
  PyObject_GC_UnTrack(object);
  clear(object);
  type->tp_free(object);
  Py_DECREF(type);
}

PyObject* totals(PyObject* object, void*) {
  const auto* self = reinterpret_cast<ShortWay*>(object);
  return Py_BuildValue("(KK)", static_cast<unsigned long long>(self->count),
                       static_cast<unsigned long long>(self->nbytes));
}

template <typename Function>
PyCFunction as_function(Function* function) noexcept {
  return reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(function));
}

PyTypeObject* short_way_type = nullptr;  // made once, with the module

}  // namespace

py::object make_short_way(Engine& engine, py::handle native, const py::dict& parts) {
  py::object made = py::reinterpret_steal<py::object>(short_way_type->tp_alloc(short_way_type, 0));
  if (!made) {
    throw py::error_already_set();
  }
  auto* self = reinterpret_cast<ShortWay*>(made.ptr());
  for (std::size_t i = 0; i < kSlots; ++i) {
    self->slots[i] = slot_offset(py::object(parts[kSlotNames[i].owner]), kSlotNames[i].name);
  }
  for (std::size_t i = 0; i < kHeld; ++i) {
    self->held[i] = i == kNative ? Py_NewRef(native.ptr()) : Py_NewRef(py::object(parts[kHeldNames[i]]).ptr());
  }
  if (!is_pace(self->held[kPace])) {
    throw NativeError(Status::internal, "pace is no Pace");
  }
  find_asyncio();
  self->max_payload = static_cast<Py_ssize_t>(engine.transport().capabilities().max_signal_payload);
  self->engine = &engine;
  return made;
}

void bind_short_way(py::module_& module) {
#if PY_VERSION_HEX < 0x030C0000
  record_name = py::str("__asyncio_running_event_loop__").release().ptr();
  PyUnicode_InternInPlace(&record_name);
#endif
  static PyMethodDef methods[] = {
      {"put", as_function(put), METH_FASTCALL, nullptr},
      {"get", as_function(get), METH_FASTCALL, nullptr},
      {"close", close, METH_NOARGS, nullptr},
      {nullptr, nullptr, 0, nullptr},
  };
  static PyGetSetDef properties[] = {{"totals", totals, nullptr, nullptr, nullptr}, {nullptr, nullptr, nullptr, nullptr, nullptr}};
  static PyType_Slot slots[] = {
      {Py_tp_methods, methods},
      {Py_tp_getset, properties},
      {Py_tp_traverse, reinterpret_cast<void*>(traverse)},
      {Py_tp_clear, reinterpret_cast<void*>(clear)},
      {Py_tp_dealloc, reinterpret_cast<void*>(dealloc)},
      {0, nullptr},
  };
  static PyType_Spec spec{"hixl_aio._native.ShortWay", sizeof(ShortWay), 0,
                          Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_DISALLOW_INSTANTIATION, slots};
  PyObject* type = PyType_FromSpec(&spec);
  if (type == nullptr) {
    throw py::error_already_set();
  }
  short_way_type = reinterpret_cast<PyTypeObject*>(type);
  module.attr("ShortWay") = py::reinterpret_borrow<py::object>(type);
}

}  // namespace hixl_aio::python
