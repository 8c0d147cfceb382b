# Warnings and sanitizers, for every target of ours.
add_library(hixl_flags INTERFACE)
target_compile_options(hixl_flags INTERFACE -Wall -Wextra -Wpedantic -Wshadow -Wconversion)
if(HIXL_AIO_SANITIZE STREQUAL "thread")
  set(sanitize -fsanitize=thread)
elseif(HIXL_AIO_SANITIZE STREQUAL "address")
  set(sanitize -fsanitize=address,undefined -fno-sanitize-recover=undefined)
elseif(HIXL_AIO_SANITIZE)
  message(FATAL_ERROR "HIXL_AIO_SANITIZE is empty, thread or address, not '${HIXL_AIO_SANITIZE}'")
endif()
if(HIXL_AIO_SANITIZE)
  # -O1 is what the sanitizers' authors advise; it compiles in two thirds of the time of -O2.
  target_compile_options(hixl_flags INTERFACE ${sanitize} -O1 -fno-omit-frame-pointer -g)
  target_link_options(hixl_flags INTERFACE ${sanitize})
endif()

# The core knows no transport; a transport may use the core's threads. Two libraries, so that the linker sees to it.
file(GLOB core_sources CONFIGURE_DEPENDS core/*.cc)
add_library(hixl_core STATIC ${core_sources})
target_include_directories(hixl_core PUBLIC ${CMAKE_CURRENT_SOURCE_DIR} ${CMAKE_CURRENT_SOURCE_DIR}/include)
target_link_libraries(hixl_core PUBLIC Threads::Threads PRIVATE $<BUILD_INTERFACE:hixl_flags>)

file(GLOB host_sources CONFIGURE_DEPENDS transports/host/*.cc)
add_library(hixl_host STATIC ${host_sources})
target_link_libraries(hixl_host PUBLIC hixl_core PRIVATE $<BUILD_INTERFACE:hixl_flags>)

file(GLOB fault_sources CONFIGURE_DEPENDS transports/fault/*.cc)
add_library(hixl_fault STATIC ${fault_sources})
target_link_libraries(hixl_fault PUBLIC hixl_core PRIVATE $<BUILD_INTERFACE:hixl_flags>)

file(GLOB resend_sources CONFIGURE_DEPENDS transports/resend/*.cc)
add_library(hixl_resend STATIC ${resend_sources})
target_link_libraries(hixl_resend PUBLIC hixl_core PRIVATE $<BUILD_INTERFACE:hixl_flags>)

# For other builds that link these libraries: HIXL_AIO_LIBRARIES names this file.
export(TARGETS hixl_flags hixl_core hixl_host hixl_fault hixl_resend FILE hixl_libraries.cmake)
