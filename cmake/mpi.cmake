# SPDX-License-Identifier: Apache-2.0
# The MPI of `ferry train`, where MPI is found (FERRY_MPI=AUTO), demanded (ON) or left out (OFF): a module that the
# command loads when an MPI launcher has started it, so that the command itself needs no MPI. AUTO leaves it out of
# builds with a sanitizer, which would report what MPI's own libraries leak.
set(FERRY_MPI "AUTO" CACHE STRING "build the MPI module of the command: AUTO, ON or OFF")
if(FERRY_MPI STREQUAL "ON" OR (FERRY_MPI STREQUAL "AUTO" AND NOT FERRY_SANITIZE))
  find_package(MPI QUIET COMPONENTS C)
endif()
if(FERRY_MPI STREQUAL "ON" AND NOT MPI_C_FOUND)
  message(FATAL_ERROR "FERRY_MPI=ON, but no MPI was found: apt-get install libopenmpi-dev openmpi-bin")
elseif(MPI_C_FOUND)
  message(STATUS "MPI module: ${MPI_C_VERSION} (${MPI_C_LIBRARIES})")
  add_library(ferry_mpi MODULE cli/mpi/module.c)
  target_link_libraries(ferry_mpi PRIVATE ferry_flags MPI::MPI_C)
  target_include_directories(ferry_mpi PRIVATE ${CMAKE_SOURCE_DIR})
  set_target_properties(ferry_mpi PROPERTIES PREFIX "" C_VISIBILITY_PRESET default)
  add_dependencies(ferry ferry_mpi)
else()
  message(STATUS "MPI module: left out")
endif()
