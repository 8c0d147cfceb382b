// The one exception of the extension; hixl_aio.errors turns it into a public one.
#pragma once

#include <exception>
#include <string>
#include <utility>

#include "hixl_aio/status.h"

namespace hixl_aio::python {

class NativeError : public std::exception {
 public:
  NativeError(Status status, std::string text) : status_(status), text_(std::move(text)) {}
  [[nodiscard]] Status status() const noexcept { return status_; }
  [[nodiscard]] const std::string& text() const noexcept { return text_; }
  [[nodiscard]] const char* what() const noexcept override { return text_.c_str(); }

 private:
  Status status_;
  std::string text_;
};

}  // namespace hixl_aio::python
