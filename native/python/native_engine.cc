// See native_engine.h.
#include "python/native_engine.h"

#include <pybind11/stl.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <tuple>
#include <unordered_map>
#include <vector>

#include "core/engine.h"
#include "python/batch.h"
#include "python/buffers.h"
#include "python/native_error.h"
#include "python/short_way.h"
#include "python/texts.h"
#include "transports/fault/fault_transport.h"
#include "transports/host/host_transport.h"
#include "transports/resend/resend_transport.h"

namespace py = pybind11;

namespace hixl_aio::python {
namespace {

constexpr std::uint32_t kStrays = 64;  // records that a fault plan may repeat and that nobody has drained yet

std::int64_t refused(Status status) noexcept { return -static_cast<std::int64_t>(status); }

py::object region_tuple(const RegionInfo& region) {
  return py::make_tuple(region.region, region.generation, region.nbytes,
                        reinterpret_cast<std::uintptr_t>(region.address), static_cast<int>(region.kind),
                        static_cast<int>(region.access), region.label);
}

class NativeEngine {
 public:
  NativeEngine(std::string name, const std::vector<std::string>& links, std::uint32_t copy_threads,
               std::uint64_t chunk_nbytes, std::uint64_t inline_nbytes, std::uint64_t stream_nbytes,
               std::uint32_t max_operations, std::uint32_t max_regions, std::uint32_t signal_capacity,
               bool allow_ptrace, bool huge_pages, bool populate,
               const std::optional<std::tuple<bool, bool, bool>>& faults) {
    host::HostConfig config;
    config.name = std::move(name);
    for (const std::string& link : links.empty() ? std::vector<std::string>{"inproc", "shm", "cma", "cooperative"}
                                                 : links) {
      const host::LinkKind kind = host::parse_link(link);
      if (kind == host::LinkKind::none) {
        throw NativeError(Status::invalid_argument,
                          "link '" + link + "' is not known; choose from inproc, shm, cma, cooperative");
      }
      config.links.add(kind);
    }
    if (copy_threads == 0 || copy_threads > 64 || chunk_nbytes == 0 || max_operations == 0 || max_regions == 0 ||
        max_regions > host::kMaxRegionsLimit || signal_capacity == 0 || signal_capacity > host::kSignalCapacityLimit) {
      throw NativeError(Status::invalid_argument, "an engine option is out of range");
    }
    config.copy_threads = copy_threads;
    config.chunk_nbytes = chunk_nbytes;
    config.inline_nbytes = inline_nbytes;
    config.stream_nbytes = stream_nbytes;
    config.huge_pages = huge_pages;
    config.populate = populate;
    config.max_regions = max_regions;
    config.signal_capacity = signal_capacity;
    config.allow_ptrace = allow_ptrace;
    auto transport = std::make_unique<host::HostTransport>(std::move(config));
    host_ = transport.get();
    if (faults) {
      const auto [manual_clock, can_stop, lossy_signals] = *faults;
      auto faulty = std::make_unique<fault::FaultTransport>(
          std::move(transport), fault::FaultTransport::Config{manual_clock, can_stop, lossy_signals});
      faults_ = faulty.get();
      std::unique_ptr<Transport> whole = std::move(faulty);
      if (lossy_signals) {
        resend::Config settings;
        settings.capacity = signal_capacity;
        whole = std::make_unique<resend::ResendTransport>(std::move(whole), settings);
      }
      engine_ = std::make_unique<Engine>(EngineConfig{max_operations, kStrays}, std::move(whole));
    } else {
      engine_ = std::make_unique<Engine>(EngineConfig{max_operations}, std::move(transport));
    }
  }

  ~NativeEngine() {
    // Joining with the GIL held would stop every Python thread for as long as the last chunk takes.
    const py::gil_scoped_release release;
    engine_.reset();
  }

  std::string start(const std::string& address) {
    std::string bound;
    std::string error;
    if (const Status status = engine_->start(address, bound, error); !ok(status)) {
      throw NativeError(status, error);
    }
    started_ = true;
    return bound;
  }

  [[nodiscard]] int fileno() const noexcept { return engine_->fd(); }
  void begin_shutdown(Token token) { engine_->begin_shutdown(token); }
  // After the shutdown event nothing is left to wait for; before it, the wait must not hold the GIL.
  void close() {
    const py::gil_scoped_release release;
    engine_->close();
  }
  void abandon_after_fork() noexcept { engine_->abandon_after_fork(); }
  // The plan that was asked for; null if none was.
  [[nodiscard]] fault::FaultTransport* faults() const noexcept { return faults_; }
  [[nodiscard]] std::string incarnation() const { return host_->incarnation(); }

  [[nodiscard]] py::dict capabilities() const {
    const Capabilities& c = engine_->transport().capabilities();
    py::dict out;
    out["name"] = std::string(c.name);
    out["delivery"] = c.delivery == DeliveryLevel::remote ? "remote" : "local";
    out["order"] = c.order == OrderPerPeer::none ? "none" : "submission";
    out["max_in_flight_per_peer"] = c.max_in_flight_per_peer;
    out["max_descriptors"] = c.max_descriptors;
    out["inline_nbytes"] = c.inline_nbytes;
    out["post_is_nonblocking"] = c.post_is_nonblocking;
    out["can_stop"] = c.can_stop;
    out["deregister_while_connected"] = c.deregister_while_connected;
    out["inline_signal"] = c.inline_signal;
    out["signals_lossless"] = c.signals_lossless;
    out["max_signal_payload"] = c.max_signal_payload;
    out["always_quiescent"] = c.always_quiescent;
    out["memory_shared"] = c.memory_shared;
    out["memory_host"] = c.memory_host;
    out["memory_device"] = c.memory_device;
    return out;
  }

  [[nodiscard]] py::dict counters() const {
    const EngineCounters c = engine_->counters();
    py::dict out;
    out["submitted"] = c.submitted;
    out["completed"] = c.completed;
    out["drained"] = c.drained;
    out["inline_done"] = c.inline_done;
    out["wakeups"] = c.wakeups;
    out["in_flight"] = c.in_flight;
    out["strays"] = c.strays;
    out["regions"] = host_->region_count();
    out["peers"] = host_->peer_count();
    out["huge_nbytes"] = host_->huge_nbytes();
    return out;
  }

  void connect(Token token, const std::string& address, double timeout) {
    transport().connect(token, address, timeout);
  }
  void look(Token token, const std::string& address, double timeout) {
    (void)transport();  // it was started
    host_->look(token, address, timeout);
  }
  void disconnect(Token token, PeerId peer, bool abort) { transport().disconnect(token, peer, abort); }
  void refresh(Token token, PeerId peer) { transport().refresh(token, peer); }
  void allocate(Token token, std::uint64_t nbytes, int access, std::string label) {
    RegionSpec spec;
    spec.nbytes = nbytes;
    spec.kind = MemoryKind::shared;
    spec.access = static_cast<Access>(access);
    spec.label = std::move(label);
    transport().allocate(token, spec);
  }
  void register_memory(Token token, std::uintptr_t address, std::uint64_t nbytes, int kind, int access,
                       std::string label) {
    RegionSpec spec;
    spec.nbytes = nbytes;
    spec.address = reinterpret_cast<std::byte*>(address);
    spec.kind = static_cast<MemoryKind>(kind);
    spec.access = static_cast<Access>(access);
    spec.label = std::move(label);
    transport().register_memory(token, spec);
  }
  void close_region(Token token, std::uint32_t region, double timeout) {
    transport().close_region(token, region, timeout);
  }

  py::object find_region(PeerId peer, const std::string& label) {
    RegionInfo region;
    return transport().find_region(peer, label, region) ? region_tuple(region) : py::none();
  }
  py::object peer_info(PeerId peer) {
    PeerInfo info;
    if (!transport().peer_info(peer, info)) {
      return py::none();
    }
    py::tuple links(info.route.size());
    for (std::size_t i = 0; i < info.route.size(); ++i) {
      links[i] = py::make_tuple(info.route[i].name, lenient(info.route[i].reason));
    }
    return py::make_tuple(lenient(info.name), lenient(info.address), info.incarnation, info.pid,
                          static_cast<int>(info.state), links);
  }
  void forget_peer(PeerId peer) { transport().forget_peer(peer); }
  py::object hold_region(std::uint32_t region) {
    auto block = transport().hold_region(region);
    return block ? py::cast(RegionHold{std::move(block)}) : py::none();
  }

  std::int64_t transfer(Token token, int kind, PeerId peer, std::uintptr_t local, std::uint32_t region,
                        std::uint32_t generation, std::uint64_t offset, std::uint64_t nbytes, bool allow_inline,
                        const py::object& name, std::string_view payload) {
    Run run;
    run.local = reinterpret_cast<std::byte*>(local);
    run.remote_offset = offset;
    run.nbytes = nbytes;
    run.region = region;
    run.generation = generation;
    run.direction = static_cast<Direction>(kind);
    const bool with_signal = !name.is_none();
    if (with_signal) {
      inline_signal_.name = name.cast<std::string_view>();
      inline_signal_.payload = payload;
    }
    if (allow_inline) {
      const Status status = engine_->transfer_now(peer, run, with_signal ? &inline_signal_ : nullptr, with_signal);
      if (status != Status::would_block) {
        return refused(status);
      }
    }
    Op* op = engine_->acquire();
    if (op == nullptr) {
      return refused(Status::queue_full);
    }
    op->token = token;
    op->peer = peer;
    op->kind = static_cast<OpKind>(kind);
    op->runs.push_back(run);
    set_signal(*op, with_signal, name, payload);
    const OpHandle handle = op->handle;
    const Status status = engine_->submit(*op);
    return ok(status) ? static_cast<std::int64_t>(handle) : refused(status);
  }

  std::int64_t batch(Token token, PeerId peer, const py::list& parts, bool allow_inline, const py::object& name,
                     std::string_view payload) {
    refused_part_ = 0;
    Op* op = engine_->acquire();
    if (op == nullptr) {
      return refused(Status::queue_full);
    }
    std::vector<PartSpan> spans;
    spans.reserve(parts.size());
    try {
      build_runs(parts, op->runs, spans);
      set_signal(*op, !name.is_none(), name, payload);
    } catch (...) {
      engine_->discard(*op);
      throw;
    }
    op->token = token;
    op->peer = peer;
    op->kind = OpKind::batch;
    if (allow_inline && engine_->batch_now(*op)) {
      return 0;
    }
    const OpHandle handle = op->handle;
    std::size_t refused_run = 0;
    const Status status = engine_->submit(*op, &refused_run);
    if (!ok(status)) {
      refused_part_ = part_of(refused_run, spans);
      return refused(status);
    }
    part_spans_.emplace(token, std::move(spans));
    return static_cast<std::int64_t>(handle);
  }

  [[nodiscard]] std::size_t refused_part() const noexcept { return refused_part_; }

  [[nodiscard]] Engine& engine() noexcept { return *engine_; }

  bool stop(OpHandle handle) noexcept { return engine_->request_stop(handle); }

  std::int64_t reserve_signal(PeerId peer) { return refused(transport().reserve_signal(peer)); }
  void unreserve_signal(PeerId peer) { transport().unreserve_signal(peer); }
  std::int64_t send_signal(PeerId peer, std::string_view name, std::string_view payload, int status, bool reserved) {
    return refused(transport().send_signal(peer, name, payload, static_cast<Status>(status), reserved));
  }
  void signals_taken(PeerId peer, std::uint32_t count) { transport().signals_taken(peer, count); }

  py::tuple drain(std::size_t limit) {
    Collector collector(*this);
    const bool more = engine_->drain(collector, limit);
    return py::make_tuple(std::move(collector.completions), std::move(collector.signals), std::move(collector.events),
                          more);
  }

 private:
  class Collector final : public DrainSink {
   public:
    explicit Collector(NativeEngine& owner) : owner_(owner) {}

    void complete(const CompletionRecord& record, const Op& op) override {
      py::object states = py::none();
      if (op.kind == OpKind::batch) {
        const auto it = owner_.part_spans_.find(record.token);
        if (it != owner_.part_spans_.end()) {
          if (!ok(record.status)) {
            const auto bytes = part_states(op, record.status, it->second);
            states = py::bytes(reinterpret_cast<const char*>(bytes.data()), bytes.size());
          }
          owner_.part_spans_.erase(it);
        }
      }
      completions.append(py::make_tuple(record.token, static_cast<int>(record.status), record.nbytes,
                                        record.quiescent, std::move(states)));
    }
    void take(const SignalRecord& record) override {
      signals.append(py::make_tuple(record.peer, record.sequence, static_cast<int>(record.status),
                                    signal_name(record.name), py::bytes(record.payload)));
    }
    void event(Event&& event) override {
      py::object region = py::none();
      if (event.kind == EventKind::allocated && ok(event.status)) {
        region = region_tuple(event.region);
      }
      events.append(py::make_tuple(static_cast<int>(event.kind), event.token, event.peer,
                                   static_cast<int>(event.status), lenient(event.text), std::move(region)));
    }

    py::list completions;
    py::list signals;
    py::list events;

   private:
    NativeEngine& owner_;
  };

  Transport& transport() {
    if (!started_) {
      throw NativeError(Status::closed, "the engine was not started");
    }
    return engine_->transport();
  }

  static void set_signal(Op& op, bool present, const py::object& name, std::string_view payload) {
    op.signal.present = present;
    if (present) {
      op.signal.name = name.cast<std::string_view>();
      op.signal.payload = payload;
    }
  }

  host::HostTransport* host_ = nullptr;  // the engine's transport, for what only the host has
  fault::FaultTransport* faults_ = nullptr;
  std::unique_ptr<Engine> engine_;
  SignalText inline_signal_;  // keeps its capacity from call to call
  std::unordered_map<Token, std::vector<PartSpan>> part_spans_;
  std::size_t refused_part_ = 0;
  bool started_ = false;
};

}  // namespace

void bind_engine(py::module_& module) {
  py::class_<NativeEngine>(module, "NativeEngine", py::is_final())
      .def(py::init<std::string, const std::vector<std::string>&, std::uint32_t, std::uint64_t, std::uint64_t,
                    std::uint64_t, std::uint32_t, std::uint32_t, std::uint32_t, bool, bool, bool,
                    std::optional<std::tuple<bool, bool, bool>>>(),
           py::arg("name"), py::kw_only(), py::arg("links") = py::tuple(), py::arg("copy_threads") = 1,
           py::arg("chunk_nbytes") = 1U << 20U, py::arg("inline_nbytes") = 64U << 10U,
           py::arg("stream_nbytes") = 8U << 20U, py::arg("max_operations") = 65536,
           py::arg("max_regions") = 131072, py::arg("signal_capacity") = 4096, py::arg("allow_ptrace") = true,
           py::arg("huge_pages") = false, py::arg("populate") = false, py::arg("faults") = py::none())
      .def_property_readonly("faults", &NativeEngine::faults, py::return_value_policy::reference_internal)
      .def("start", &NativeEngine::start)
      .def("fileno", &NativeEngine::fileno)
      .def("begin_shutdown", &NativeEngine::begin_shutdown)
      .def("close", &NativeEngine::close)
      .def("abandon_after_fork", &NativeEngine::abandon_after_fork)
      .def_property_readonly("incarnation", &NativeEngine::incarnation)
      .def_property_readonly("capabilities", &NativeEngine::capabilities)
      .def("counters", &NativeEngine::counters)
      .def("connect", &NativeEngine::connect)
      .def("look", &NativeEngine::look)
      .def("disconnect", &NativeEngine::disconnect)
      .def("refresh", &NativeEngine::refresh)
      .def("allocate", &NativeEngine::allocate)
      .def("register", &NativeEngine::register_memory)
      .def("close_region", &NativeEngine::close_region)
      .def("find_region", &NativeEngine::find_region)
      .def("peer_info", &NativeEngine::peer_info)
      .def("forget_peer", &NativeEngine::forget_peer)
      .def("hold_region", &NativeEngine::hold_region)
      .def("short_way", [](const py::object& self, const py::dict& parts) {
        return make_short_way(self.cast<NativeEngine&>().engine(), self, parts);
      })
      .def("transfer", &NativeEngine::transfer)
      .def("batch", &NativeEngine::batch)
      .def_property_readonly("refused_part", &NativeEngine::refused_part)
      .def("stop", &NativeEngine::stop)
      .def("reserve_signal", &NativeEngine::reserve_signal)
      .def("unreserve_signal", &NativeEngine::unreserve_signal)
      .def("send_signal", &NativeEngine::send_signal)
      .def("signals_taken", &NativeEngine::signals_taken)
      .def("drain", &NativeEngine::drain);
}

}  // namespace hixl_aio::python
