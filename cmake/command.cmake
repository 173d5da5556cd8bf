# SPDX-License-Identifier: Apache-2.0
# The command `ferry`: cli/ and lm/ over the static library.
file(GLOB FERRY_CLI_SOURCES CONFIGURE_DEPENDS cli/*.c cli/check/*.c lm/*.c)
if(FERRY_CLI_SOURCES)
  find_package(PkgConfig REQUIRED)
  pkg_check_modules(JANSSON REQUIRED IMPORTED_TARGET jansson)
  add_executable(ferry ${FERRY_CLI_SOURCES})
  target_include_directories(ferry PRIVATE ${CMAKE_SOURCE_DIR})
  target_link_libraries(ferry PRIVATE ferry_static ferry_ref PkgConfig::JANSSON)
endif()
