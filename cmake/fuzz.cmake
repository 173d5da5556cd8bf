# SPDX-License-Identifier: Apache-2.0
# tests/fuzz/fuzz_*.c: each a program of libFuzzer, built by the target `fuzz` alone, with clang and FERRY_FUZZ=ON, in
# a build folder of its own. What a fuzzer must not do (run a command, meet peers, open files) is replaced at link time.
option(FERRY_FUZZ "build the fuzzers (clang)" OFF)
if(NOT FERRY_FUZZ)
  return()
endif()
if(NOT CMAKE_C_COMPILER_ID MATCHES Clang)
  message(FATAL_ERROR "FERRY_FUZZ needs clang and its libFuzzer: apt-get install clang, then -DCMAKE_C_COMPILER=clang")
endif()

target_compile_options(ferry_flags INTERFACE $<$<COMPILE_LANGUAGE:C>:-fsanitize=fuzzer-no-link>)
set(FERRY_FUZZ_WRAPS_options cli_parse cli_usage)
set(FERRY_FUZZ_WRAPS_environment fy_rendezvous_meet)
set(FERRY_FUZZ_WRAPS_checkpoint safetensors_open cli_fail)

add_custom_target(fuzz)
file(GLOB FERRY_FUZZERS CONFIGURE_DEPENDS tests/fuzz/fuzz_*.c)
foreach(source ${FERRY_FUZZERS})
  get_filename_component(name ${source} NAME_WE)
  string(REPLACE "fuzz_" "" part ${name})
  add_executable(${name} EXCLUDE_FROM_ALL ${source})
  target_link_libraries(${name} PRIVATE ferry_cli -fsanitize=fuzzer)
  foreach(function ${FERRY_FUZZ_WRAPS_${part}})
    target_link_options(${name} PRIVATE -Wl,--wrap=${function})
  endforeach()
  add_dependencies(fuzz ${name})
endforeach()
