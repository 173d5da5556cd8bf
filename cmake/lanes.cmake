# SPDX-License-Identifier: Apache-2.0
# tests/lanes: the schedule, the choice of tiles, the signals and the sums of the CUDA backend, lane by lane, on the
# host (tests/lanes/main.cc). Built as the model of the tickets is, with its coroutines and what of its standin/ is the
# same; model.cmake has looked for a C++ compiler.
ferry_model_test(lane_model 400 60) # 12 seconds
if(NOT CMAKE_CXX_COMPILER)
  return()
endif()

file(GLOB FERRY_LANES_SOURCES CONFIGURE_DEPENDS tests/lanes/*.cc)
add_executable(lane_model ${FERRY_LANES_SOURCES} tests/model/coroutine.cc tests/model/arguments.cc)
target_compile_features(lane_model PRIVATE cxx_std_17)
# Here and there first: scheduler.h and together.h are those of tests/lanes.
target_include_directories(lane_model PRIVATE tests/lanes/standin tests/lanes tests/model/standin tests/model)
target_include_directories(lane_model SYSTEM PRIVATE src include)
ferry_model_options(lane_model)
