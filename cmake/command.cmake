# SPDX-License-Identifier: Apache-2.0
# The command `ferry`: cli/ and lm/ over the static library. Everything but main.c is a library of its own, so that
# unit tests can link parts of the command.
find_package(PkgConfig REQUIRED)
pkg_check_modules(JANSSON QUIET IMPORTED_TARGET jansson)
if(NOT JANSSON_FOUND)
  message(FATAL_ERROR "jansson was not found by pkg-config: apt-get install libjansson-dev")
endif()

file(GLOB FERRY_CLI_SOURCES CONFIGURE_DEPENDS cli/*.c cli/check/*.c lm/*.c)
list(FILTER FERRY_CLI_SOURCES EXCLUDE REGEX "cli/main\\.c$")
add_library(ferry_cli STATIC ${FERRY_CLI_SOURCES})
target_include_directories(ferry_cli PUBLIC ${CMAKE_SOURCE_DIR})
target_link_libraries(ferry_cli PUBLIC ferry_static ferry_ref PkgConfig::JANSSON)

# The yardstick of `ferry bench` and the dense part of `ferry train` on GPUs, built as the kernels of the library are.
if(TARGET ferry_cuda)
  file(GLOB FERRY_LM_KERNELS CONFIGURE_DEPENDS lm/cuda/*.cu)
  add_library(ferry_cli_cuda OBJECT cli/bench_plain.cu cli/bench_micro.cu ${FERRY_LM_KERNELS})
  target_link_libraries(ferry_cli_cuda PRIVATE ferry_flags)
  target_include_directories(ferry_cli_cuda PRIVATE ${CMAKE_SOURCE_DIR})
  target_compile_options(ferry_cli_cuda PRIVATE $<TARGET_PROPERTY:ferry_cuda,COMPILE_OPTIONS>)
  target_sources(ferry_cli PRIVATE $<TARGET_OBJECTS:ferry_cli_cuda>)
  set_target_properties(ferry_cli PROPERTIES LINKER_LANGUAGE C CUDA_ARCHITECTURES OFF)
endif()

string(TOUPPER "${CMAKE_BUILD_TYPE}" type)
set(options "${CMAKE_C_FLAGS} ${CMAKE_C_FLAGS_${type}}")
if(FERRY_SANITIZE)
  string(APPEND options " -fsanitize=${FERRY_SANITIZE}")
endif()
# Where it was built is nobody's business.
string(REGEX REPLACE "-f[a-z]*-prefix-map=[^ ]*" "" options "${options}")
string(REGEX REPLACE " +" " " options "${options}")
string(STRIP "${options}" options)
set(build_definitions
  "FERRY_COMPILER=\"${CMAKE_C_COMPILER_ID} ${CMAKE_C_COMPILER_VERSION}\""
  "FERRY_BUILD_TYPE=\"${CMAKE_BUILD_TYPE} (${options})\"")
set_source_files_properties(cli/info.c PROPERTIES COMPILE_DEFINITIONS "${build_definitions}")

# Where an installed command finds its modules.
include(GNUInstallDirs)
file(RELATIVE_PATH FERRY_MODULE_DIR ${CMAKE_INSTALL_FULL_BINDIR} ${CMAKE_INSTALL_FULL_LIBDIR}/ferry)
set_source_files_properties(cli/mpi.c PROPERTIES COMPILE_DEFINITIONS "FERRY_MODULE_DIR=\"${FERRY_MODULE_DIR}\"")

add_executable(ferry cli/main.c)
target_link_libraries(ferry PRIVATE ferry_cli)
