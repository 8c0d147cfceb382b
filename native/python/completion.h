// What of a Completion native code makes and reads, and the count that says when a task must let others run.
#pragma once

#include <pybind11/pybind11.h>

#include <cstddef>

namespace hixl_aio::python {

// How much one loop has been used since it last ran others: calls that need not wait do not suspend, but a task that makes
// only such calls would keep the loop for itself.
struct Pace {
  PyObject_HEAD
  unsigned awaits;
  unsigned free_awaits;
  std::size_t nbytes;  // copied within the call
  std::size_t free_nbytes;
};

// The base of hixl_aio.Completion. What is not set is null, and None for Python.
struct CompletionBase {
  PyObject_HEAD
  PyObject* runtime;
  PyObject* pace;
  PyObject* kind;
  PyObject* peer;
  PyObject* nbytes;
  PyObject* user_data;
  PyObject* failure;
  PyObject* operation;
  double started;  // seconds, as time.monotonic() counts
  double ended;    // 0.0 until the result is known
};

[[nodiscard]] bool is_pace(PyObject* object) noexcept;

[[nodiscard]] double monotonic() noexcept;

// A new, empty one, of `type`, which derives from CompletionBase; null with an exception if there is no memory.
[[nodiscard]] CompletionBase* new_completion(PyObject* type) noexcept;

void bind_completion(pybind11::module_& module);

}  // namespace hixl_aio::python
