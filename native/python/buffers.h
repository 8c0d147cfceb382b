// Python memory as addresses, and our memory as Python buffers.
#pragma once

#include <pybind11/pybind11.h>

#include <cstdint>
#include <memory>

namespace hixl_aio::python {

// Holds the export of one contiguous buffer. Meanwhile its owner cannot be resized, and the address stays true.
class BufferPin {
 public:
  explicit BufferPin(const pybind11::object& object);
  BufferPin(const BufferPin&) = delete;
  BufferPin& operator=(const BufferPin&) = delete;
  ~BufferPin() { release(); }

  [[nodiscard]] std::uintptr_t address() const noexcept { return address_; }
  [[nodiscard]] std::uint64_t nbytes() const noexcept { return nbytes_; }
  [[nodiscard]] bool readonly() const noexcept { return readonly_; }
  void release() noexcept;

 private:
  Py_buffer view_{};
  bool held_ = false;
  std::uintptr_t address_ = 0;
  std::uint64_t nbytes_ = 0;
  bool readonly_ = false;
};

// Memory of ours, or of a tensor that exports no buffer. Every view keeps this object, and this object keeps `owner`.
struct ExportedMemory {
  std::uintptr_t address = 0;
  std::uint64_t nbytes = 0;
  bool readonly = false;
  pybind11::object owner;
};

// Keeps the pages of a region mapped after the region itself was closed.
struct RegionHold {
  std::shared_ptr<void> block;
};

void bind_buffers(pybind11::module_& module);

}  // namespace hixl_aio::python
