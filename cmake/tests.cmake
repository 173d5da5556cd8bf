# SPDX-License-Identifier: Apache-2.0
# tests/unit/test_*.c: each a cmocka program of its own, linked with the static library, the oracle and the command's
# parts. tests/cli/test_*.sh: each a script that runs the command; 77 means skipped.
enable_testing()
pkg_check_modules(CMOCKA QUIET IMPORTED_TARGET cmocka)
if(NOT CMOCKA_FOUND)
  message(FATAL_ERROR "cmocka was not found by pkg-config: apt-get install libcmocka-dev, or -DFERRY_TESTS=OFF")
endif()
# Sanitizers and counted lines make everything slower; hangs are still ended.
set(FERRY_TEST_TIMEOUT 300)
if(FERRY_SANITIZE OR FERRY_COVERAGE)
  set(FERRY_TEST_TIMEOUT 900)
endif()

file(GLOB FERRY_UNIT_TESTS CONFIGURE_DEPENDS tests/unit/test_*.c)
foreach(source ${FERRY_UNIT_TESTS})
  get_filename_component(name ${source} NAME_WE)
  add_executable(${name} ${source})
  target_link_libraries(${name} PRIVATE ferry_cli PkgConfig::CMOCKA)
  target_compile_definitions(${name} PRIVATE FERRY_SOURCE_DIR="${CMAKE_SOURCE_DIR}")
  add_test(NAME ${name} COMMAND ${name} WORKING_DIRECTORY ${CMAKE_SOURCE_DIR})
  set_tests_properties(${name} PROPERTIES TIMEOUT ${FERRY_TEST_TIMEOUT} LABELS unit)
endforeach()

# It compares what the process holds after hundreds of lives: without the C library's own stock of freed blocks.
set_tests_properties(test_comm_resources PROPERTIES ENVIRONMENT GLIBC_TUNABLES=glibc.malloc.tcache_count=0)

# What the scripts need: files of random inputs, and comparing files of tensors.
add_executable(tensor_tool tests/cli/tensor_tool.c)
target_link_libraries(tensor_tool PRIVATE ferry_cli)

file(GLOB FERRY_CLI_TESTS CONFIGURE_DEPENDS tests/cli/test_*.sh)
foreach(source ${FERRY_CLI_TESTS})
  get_filename_component(name ${source} NAME_WE)
  string(REPLACE "test_" "cli_" name ${name})
  add_test(NAME ${name} COMMAND sh ${source} WORKING_DIRECTORY ${CMAKE_SOURCE_DIR})
  set(environment FERRY=$<TARGET_FILE:ferry> TENSORS=$<TARGET_FILE:tensor_tool> FERRY_BUILD=${CMAKE_BINARY_DIR})
  set_tests_properties(${name} PROPERTIES TIMEOUT ${FERRY_TEST_TIMEOUT} LABELS cli SKIP_RETURN_CODE 77
    ENVIRONMENT "${environment}")
endforeach()

# Many processes that load PyTorch, which takes seconds each.
set_tests_properties(cli_python cli_python_models PROPERTIES TIMEOUT 900)
