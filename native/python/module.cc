// The extension module: tokens and plain records for Python. This layer holds the GIL and is the only one that knows it;
// nothing below it does (INV-3).
#include <pybind11/pybind11.h>

#include <exception>
#include <utility>

#include "core/engine.h"
#include "python/buffers.h"
#include "python/completion.h"
#include "python/faults.h"
#include "python/native_engine.h"
#include "python/native_error.h"
#include "python/short_way.h"
#include "python/slots.h"
#include "python/texts.h"

namespace py = pybind11;

namespace hixl_aio::python {
namespace {

constexpr std::pair<const char*, Status> kStatuses[] = {
    {"ok", Status::ok},
    {"would_block", Status::would_block},
    {"stopped", Status::stopped},
    {"failed", Status::failed},
    {"lost", Status::lost},
    {"peer_lost", Status::peer_lost},
    {"peer_closed", Status::peer_closed},
    {"not_connected", Status::not_connected},
    {"stale_region", Status::stale_region},
    {"access_denied", Status::access_denied},
    {"out_of_bounds", Status::out_of_bounds},
    {"no_link", Status::no_link},
    {"queue_full", Status::queue_full},
    {"signal_queue_full", Status::signal_queue_full},
    {"invalid_argument", Status::invalid_argument},
    {"unsupported", Status::unsupported},
    {"closed", Status::closed},
    {"resource_exhausted", Status::resource_exhausted},
    {"timed_out", Status::timed_out},
    {"handshake_refused", Status::handshake_refused},
    {"permission_denied", Status::permission_denied},
    {"address_in_use", Status::address_in_use},
    {"connect_failed", Status::connect_failed},
    {"not_registered", Status::not_registered},
    {"region_busy", Status::region_busy},
    {"internal", Status::internal},
    {"authentication_failed", Status::authentication_failed},
};

// Raised here only; carries (status, text) as attributes too, so that nobody unpacks args.
void bind_error(py::module_& module) {
  static PyObject* type = nullptr;  // lives as long as the process: the translator may be called at any time
  type = PyErr_NewExceptionWithDoc("hixl_aio._native.NativeError",
                                   "(status, text): turned into a public exception by hixl_aio.errors.", nullptr,
                                   nullptr);
  if (type == nullptr) {
    throw py::error_already_set();
  }
  module.attr("NativeError") = py::reinterpret_borrow<py::object>(type);
  py::register_local_exception_translator([](std::exception_ptr pointer) {
    try {
      if (pointer) {
        std::rethrow_exception(pointer);
      }
    } catch (const NativeError& error) {
      const auto status = static_cast<int>(error.status());
      const py::object value = py::reinterpret_borrow<py::object>(type)(status, lenient(error.text()));
      value.attr("status") = status;
      value.attr("text") = lenient(error.text());
      PyErr_SetObject(type, value.ptr());
    }
  });
}

}  // namespace
}  // namespace hixl_aio::python

PYBIND11_MODULE(_native, module) {
  using namespace hixl_aio;
  using namespace hixl_aio::python;
  module.attr("__version__") = HIXL_AIO_VERSION;
  py::dict statuses;
  for (const auto& [name, status] : kStatuses) {
    statuses[name] = static_cast<int>(status);
  }
  module.attr("STATUS") = statuses;
  module.attr("PUT") = static_cast<int>(OpKind::put);
  module.attr("GET") = static_cast<int>(OpKind::get);
  module.attr("BATCH") = static_cast<int>(OpKind::batch);
  module.attr("SIGNAL") = static_cast<int>(OpKind::signal);
  module.attr("EVENT_CONNECTED") = static_cast<int>(EventKind::connected);
  module.attr("EVENT_ACCEPTED") = static_cast<int>(EventKind::accepted);
  module.attr("EVENT_PEER_DOWN") = static_cast<int>(EventKind::peer_down);
  module.attr("EVENT_DISCONNECTED") = static_cast<int>(EventKind::disconnected);
  module.attr("EVENT_REFRESHED") = static_cast<int>(EventKind::refreshed);
  module.attr("EVENT_ALLOCATED") = static_cast<int>(EventKind::allocated);
  module.attr("EVENT_REGION_CLOSED") = static_cast<int>(EventKind::region_closed);
  module.attr("EVENT_SHUTDOWN") = static_cast<int>(EventKind::shutdown);
  module.attr("EVENT_FAULT") = static_cast<int>(EventKind::fault);
  module.attr("EVENT_LOOKED") = static_cast<int>(EventKind::looked);
  module.attr("PEER_CONNECTED") = static_cast<int>(PeerState::connected);
  module.attr("PEER_SUSPECT") = static_cast<int>(PeerState::suspect);
  module.attr("KIND_SHARED") = static_cast<int>(MemoryKind::shared);
  module.attr("KIND_HOST") = static_cast<int>(MemoryKind::host);
  module.attr("KIND_DEVICE") = static_cast<int>(MemoryKind::device);
  bind_error(module);
  bind_maker(module);
  bind_completion(module);
  bind_short_way(module);
  bind_buffers(module);
  bind_faults(module);
  bind_engine(module);
}
