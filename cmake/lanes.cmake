# SPDX-License-Identifier: Apache-2.0
# tests/lanes: the schedule and the sums of the CUDA backend, lane by lane, on the host (tests/lanes/main.cc). Built as
# the model of the tickets is, with its coroutines and what of its standin/ is the same; model.cmake has looked for a
# C++ compiler.
if(NOT CMAKE_CXX_COMPILER)
  add_test(NAME lane_model COMMAND sh -c "echo 'skipped: no C++ compiler: apt-get install g++'; exit 77")
  set_tests_properties(lane_model PROPERTIES SKIP_RETURN_CODE 77 LABELS model)
  return()
endif()

file(GLOB FERRY_LANES_SOURCES CONFIGURE_DEPENDS tests/lanes/*.cc)
add_executable(lane_model ${FERRY_LANES_SOURCES} tests/model/coroutine.cc)
target_compile_features(lane_model PRIVATE cxx_std_17)
# Here and there first: scheduler.h and together.h are those of tests/lanes.
target_include_directories(lane_model PRIVATE tests/lanes/standin tests/lanes tests/model/standin tests/model)
target_include_directories(lane_model SYSTEM PRIVATE src include)
ferry_model_options(lane_model)

# 12 seconds; under a sanitizer the first of them.
set(FERRY_LANES_CASES 400)
if(FERRY_SANITIZE)
  set(FERRY_LANES_CASES 60)
endif()
add_test(NAME lane_model COMMAND lane_model --cases ${FERRY_LANES_CASES})
set_tests_properties(lane_model PROPERTIES TIMEOUT ${FERRY_TEST_TIMEOUT} LABELS model)
