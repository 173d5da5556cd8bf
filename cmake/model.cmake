# SPDX-License-Identifier: Apache-2.0
# tests/model: the CUDA backend's tickets on the host (tests/model/main.cc), where there is a C++ compiler; without one
# the test says so and is skipped. It needs no CUDA toolkit: tests/model/standin has what it wants of one, and files
# that go before those of the same name in src/. Coroutines are beyond ThreadSanitizer, and there is but one thread.
set(CMAKE_CXX_FLAGS_RELEASE "-O2 -g")
include(CheckLanguage)
check_language(CXX)

# `name` as a test: `cases` of its cases, under a sanitizer so many of them. Without a compiler it says so.
function(ferry_model_test name cases sanitized)
  if(NOT CMAKE_CXX_COMPILER)
    add_test(NAME ${name} COMMAND sh -c "echo 'skipped: no C++ compiler: apt-get install g++'; exit 77")
    set_tests_properties(${name} PROPERTIES SKIP_RETURN_CODE 77 LABELS model)
    return()
  endif()
  if(FERRY_SANITIZE)
    set(cases ${sanitized})
  endif()
  add_test(NAME ${name} COMMAND ${name} --cases ${cases})
  set_tests_properties(${name} PROPERTIES TIMEOUT ${FERRY_TEST_TIMEOUT} LABELS model)
endfunction()

# The same cases everywhere, 15 seconds; `make model` runs others, for longer.
ferry_model_test(ticket_model 20000 4000)
if(NOT CMAKE_CXX_COMPILER)
  message(STATUS "Model of the tickets: left out, there is no C++ compiler")
  return()
endif()
enable_language(CXX)

# Of a program that has device code as coroutines.
function(ferry_model_options target)
  target_compile_options(${target} PRIVATE -Wall -Wextra -Wshadow -fno-strict-aliasing)
  if(FERRY_WERROR)
    target_compile_options(${target} PRIVATE -Werror)
  endif()
  if(FERRY_SANITIZE AND NOT FERRY_SANITIZE MATCHES thread)
    target_compile_options(${target} PRIVATE -fsanitize=${FERRY_SANITIZE} -fno-omit-frame-pointer
      -fno-sanitize-recover=all)
    target_link_options(${target} PRIVATE -fsanitize=${FERRY_SANITIZE})
  endif()
endfunction()

file(GLOB FERRY_MODEL_SOURCES CONFIGURE_DEPENDS tests/model/*.cc)
add_executable(ticket_model ${FERRY_MODEL_SOURCES})
target_compile_features(ticket_model PRIVATE cxx_std_17)
target_include_directories(ticket_model PRIVATE tests/model/standin tests/model)
# Of C and CUDA C, not asked to please a C++ compiler.
target_include_directories(ticket_model SYSTEM PRIVATE src include)
ferry_model_options(ticket_model)
