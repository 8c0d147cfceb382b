#include "python/batch.h"

#include <algorithm>
#include <optional>
#include <string>

#include "python/native_error.h"

namespace py = pybind11;

namespace hixl_aio::python {
namespace {

// An int64 array given as a buffer; held while the batch is built.
class Offsets {
 public:
  Offsets(const py::handle& object, std::size_t part, const char* what) {
    if (PyObject_GetBuffer(object.ptr(), &view_, PyBUF_C_CONTIGUOUS | PyBUF_FORMAT) != 0) {
      PyErr_Clear();
      throw NativeError(Status::invalid_argument, "part " + std::to_string(part) + ": " + what +
                                                      " is not a contiguous array; pass int64 offsets");
    }
    const std::string_view format = view_.format == nullptr ? "B" : view_.format;
    const std::string_view code = format.size() == 2 && (format[0] == '@' || format[0] == '=' || format[0] == '<')
                                      ? format.substr(1)
                                      : format;
    if (view_.ndim != 1 || view_.itemsize != 8 || (code != "q" && code != "l")) {
      PyBuffer_Release(&view_);
      throw NativeError(Status::invalid_argument, "part " + std::to_string(part) + ": " + what + " has format '" +
                                                      std::string(format) + "' and " + std::to_string(view_.ndim) +
                                                      " dimensions; pass a one-dimensional int64 array");
    }
    data_ = static_cast<const std::int64_t*>(view_.buf);
    count_ = static_cast<std::size_t>(view_.shape != nullptr ? view_.shape[0] : view_.len / 8);
  }
  Offsets(const Offsets&) = delete;
  Offsets& operator=(const Offsets&) = delete;
  ~Offsets() { PyBuffer_Release(&view_); }

  [[nodiscard]] std::size_t size() const noexcept { return count_; }
  [[nodiscard]] std::int64_t operator[](std::size_t i) const noexcept { return data_[i]; }

 private:
  Py_buffer view_{};
  const std::int64_t* data_ = nullptr;
  std::size_t count_ = 0;
};

struct Part {
  Direction direction = Direction::put;
  std::byte* local = nullptr;
  std::uint64_t local_nbytes = 0;
  std::uint32_t region = 0;
  std::uint32_t generation = 0;
  std::uint64_t remote_offset = 0;
  std::uint64_t remote_nbytes = 0;
};

class Builder {
 public:
  Builder(std::vector<Run>& runs, std::vector<PartSpan>& spans) : runs_(runs), spans_(spans) {}

  void begin(const Part& part) {
    part_ = part;
    first_ = UINT32_MAX;
    last_ = 0;
  }

  // Room for so many runs more: growing step by step would copy all of them several times over. At least twice what there
  // is: a batch of many such parts would copy all of them for each.
  void expect(std::size_t count) {
    if (const std::size_t wanted = runs_.size() + count; wanted > runs_.capacity()) {
      runs_.reserve(std::max(wanted, 2 * runs_.capacity()));
    }
  }

  void add(std::size_t index, std::int64_t local, std::int64_t remote, std::int64_t nbytes) {
    check(index, "the local view", local, nbytes, part_.local_nbytes);
    check(index, "the remote view", remote, nbytes, part_.remote_nbytes);
    if (nbytes == 0) {
      return;
    }
    std::byte* address = part_.local + local;
    const std::uint64_t offset = part_.remote_offset + static_cast<std::uint64_t>(remote);
    const auto length = static_cast<std::uint64_t>(nbytes);
    if (!runs_.empty()) {
      Run& before = runs_.back();
      if (before.local + before.nbytes == address && before.remote_offset + before.nbytes == offset &&
          before.region == part_.region && before.generation == part_.generation &&
          before.direction == part_.direction) {
        before.nbytes += length;
        note();
        return;
      }
    }
    Run& run = runs_.emplace_back();
    run.local = address;
    run.remote_offset = offset;
    run.nbytes = length;
    run.region = part_.region;
    run.generation = part_.generation;
    run.direction = part_.direction;
    note();
  }

  void end() {
    spans_.emplace_back(first_ == UINT32_MAX ? 1 : first_, first_ == UINT32_MAX ? 0 : last_);
    ++part_index_;
  }

  [[nodiscard]] std::size_t part_index() const noexcept { return part_index_; }

 private:
  void note() noexcept {
    last_ = static_cast<std::uint32_t>(runs_.size() - 1);
    first_ = std::min(first_, last_);
  }

  void check(std::size_t index, const char* where, std::int64_t offset, std::int64_t nbytes, std::uint64_t limit) const {
    if (offset >= 0 && nbytes >= 0 && static_cast<std::uint64_t>(offset) <= limit &&
        static_cast<std::uint64_t>(nbytes) <= limit - static_cast<std::uint64_t>(offset)) {
      return;
    }
    throw NativeError(Status::out_of_bounds, "part " + std::to_string(part_index_) + ", block " +
                                                 std::to_string(index) + ": offset " + std::to_string(offset) +
                                                 " with " + std::to_string(nbytes) + " bytes leaves " + where +
                                                 " of " + std::to_string(limit) + " bytes");
  }

  std::vector<Run>& runs_;
  std::vector<PartSpan>& spans_;
  Part part_;
  std::size_t part_index_ = 0;
  std::uint32_t first_ = UINT32_MAX;
  std::uint32_t last_ = 0;
};

void add_blocks(Builder& builder, const py::tuple& tuple) {
  const Offsets local(tuple[7], builder.part_index(), "the local offsets");
  const Offsets remote(tuple[8], builder.part_index(), "the remote offsets");
  std::optional<Offsets> lengths;
  std::int64_t length = 0;
  if (py::isinstance<py::int_>(tuple[9])) {
    length = tuple[9].cast<std::int64_t>();
  } else {
    lengths.emplace(tuple[9], builder.part_index(), "nbytes");
  }
  if (local.size() != remote.size() || (lengths && lengths->size() != local.size())) {
    throw NativeError(Status::invalid_argument,
                      "part " + std::to_string(builder.part_index()) + ": " + std::to_string(local.size()) +
                          " local offsets, " + std::to_string(remote.size()) + " remote offsets" +
                          (lengths ? ", " + std::to_string(lengths->size()) + " lengths" : "") +
                          "; the arrays must have one length");
  }
  builder.expect(local.size());
  for (std::size_t i = 0; i < local.size(); ++i) {
    builder.add(i, local[i], remote[i], lengths ? (*lengths)[i] : length);
  }
}

}  // namespace

void build_runs(const py::list& parts, std::vector<Run>& runs, std::vector<PartSpan>& spans) {
  runs.clear();
  Builder builder(runs, spans);
  for (const py::handle& item : parts) {
    const auto tuple = py::reinterpret_borrow<py::tuple>(item);
    Part part;
    part.direction = static_cast<Direction>(tuple[0].cast<int>());
    part.local = reinterpret_cast<std::byte*>(tuple[1].cast<std::uintptr_t>());
    part.local_nbytes = tuple[2].cast<std::uint64_t>();
    part.region = tuple[3].cast<std::uint32_t>();
    part.generation = tuple[4].cast<std::uint32_t>();
    part.remote_offset = tuple[5].cast<std::uint64_t>();
    part.remote_nbytes = tuple[6].cast<std::uint64_t>();
    builder.begin(part);
    if (tuple[7].is_none()) {
      builder.add(0, 0, 0, tuple[9].cast<std::int64_t>());
    } else {
      add_blocks(builder, tuple);
    }
    builder.end();
  }
}

std::size_t part_of(std::size_t run, const std::vector<PartSpan>& spans) noexcept {
  const auto found = std::find_if(spans.begin(), spans.end(),
                                  [run](const PartSpan& span) { return span.first <= run && run <= span.second; });
  return found == spans.end() ? 0 : static_cast<std::size_t>(found - spans.begin());
}

std::vector<std::uint8_t> part_states(const Op& op, Status status, const std::vector<PartSpan>& spans) {
  std::vector<std::uint8_t> states;
  states.reserve(spans.size());
  for (const auto& [first, last] : spans) {
    auto worst = static_cast<std::uint8_t>(RunState::done);
    for (std::uint32_t run = first; run <= last && run < op.runs.size(); ++run) {
      // Asked for when the whole has not completed: what was never begun is not there either.
      const bool begun = op.runs[run].state != RunState::pending || op.runs[run].nbytes == 0;
      const RunState otherwise = status == Status::stopped ? RunState::stopped : RunState::failed;
      worst = std::max(worst, static_cast<std::uint8_t>(begun ? op.runs[run].state : otherwise));
    }
    states.push_back(worst);
  }
  return states;
}

}  // namespace hixl_aio::python
