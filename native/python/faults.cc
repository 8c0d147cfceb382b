// See faults.h. A thin layer: `hixl_aio.testing` gives these their meaning and checks what goes in.
#include "python/faults.h"

#include <pybind11/stl.h>

#include <initializer_list>
#include <string>
#include <utility>

namespace py = pybind11;

namespace hixl_aio::python {

void bind_faults(py::module_& module) {
  using fault::FaultTransport;
  using fault::Rule;
  using fault::Action;
  using fault::HoldPoint;
  py::dict actions;
  for (const auto& [name, action] : std::initializer_list<std::pair<const char*, Action>>{
           {"hold", Action::hold},
           {"delay", Action::delay},
           {"fail", Action::fail},
           {"lie", Action::lie},
           {"lose", Action::lose},
           {"duplicate", Action::duplicate},
           {"reorder", Action::reorder},
           {"refuse", Action::refuse},
           {"latch", Action::latch},
           {"drop_signal", Action::drop_signal},
           {"duplicate_signal", Action::duplicate_signal},
       }) {
    actions[name] = static_cast<int>(action);
  }
  module.attr("FAULT_ACTIONS") = actions;
  py::dict points;
  for (const auto& [name, point] : std::initializer_list<std::pair<const char*, HoldPoint>>{
           {"posted", HoldPoint::posted},
           {"half", HoldPoint::half},
           {"landed", HoldPoint::landed},
           {"signalled", HoldPoint::signalled},
       }) {
    points[name] = static_cast<int>(point);
  }
  module.attr("FAULT_POINTS") = points;
  py::class_<FaultTransport>(module, "NativeFaults", py::is_final())
      .def(
          "add_rule",
          [](FaultTransport& self, int action, int at, int kind, PeerId peer, std::uint64_t min_nbytes,
             std::string signal, std::uint32_t skip, std::uint32_t count, int status, bool quiescent, bool can_stop,
             double seconds, std::uint32_t window) {
            Rule rule;
            rule.action = static_cast<fault::Action>(action);
            rule.at = static_cast<fault::HoldPoint>(at);
            rule.kind = kind;
            rule.peer = peer;
            rule.min_nbytes = min_nbytes;
            rule.signal = std::move(signal);
            rule.skip = skip;
            rule.count = count;
            rule.status = static_cast<Status>(status);
            rule.quiescent = quiescent;
            rule.can_stop = can_stop;
            rule.seconds = seconds;
            rule.window = window;
            return self.add_rule(std::move(rule));
          })
      .def("remove_rule", &FaultTransport::remove_rule)
      .def("clear_rules", &FaultTransport::clear_rules)
      .def("caught", &FaultTransport::caught)
      .def("hits", &FaultTransport::hits)
      .def("release", &FaultTransport::release_held)
      .def("throttle", &FaultTransport::throttle)
      .def("advance", &FaultTransport::advance)
      .def("freeze", &FaultTransport::freeze)
      .def("thaw", &FaultTransport::thaw)
      .def("pending", &FaultTransport::pending);
}

}  // namespace hixl_aio::python
