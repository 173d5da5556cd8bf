# SPDX-License-Identifier: Apache-2.0
# `make install`: the command and its manual page, both libraries, the header, packages for pkg-config and CMake, and
# the files that come along. All of it finds its parts from where it lies, so an installation may be moved.
include(GNUInstallDirs)
include(CMakePackageConfigHelpers)

# Beyond threads, what a program needs that links the static library.
set(FERRY_STATIC_NEEDS m ${CMAKE_DL_LIBS})
if(TARGET ferry_cuda)
  list(APPEND FERRY_STATIC_NEEDS ${CUDA_cudart_static_LIBRARY} rt)
endif()
set(FERRY_PC_NEEDS -lpthread)
foreach(need ${FERRY_STATIC_NEEDS})
  string(REGEX REPLACE "^([^/].*)$" "-l\\1" need ${need})
  string(APPEND FERRY_PC_NEEDS " ${need}")
endforeach()

file(RELATIVE_PATH FERRY_PC_TO_PREFIX ${CMAKE_INSTALL_FULL_LIBDIR}/pkgconfig ${CMAKE_INSTALL_PREFIX})
configure_file(cmake/ferry.pc.in ferry.pc @ONLY)
set(FERRY_CMAKE_DIR ${CMAKE_INSTALL_LIBDIR}/cmake/ferry)
configure_package_config_file(cmake/ferry-config.cmake.in ferry-config.cmake INSTALL_DESTINATION ${FERRY_CMAKE_DIR}
  PATH_VARS CMAKE_INSTALL_LIBDIR CMAKE_INSTALL_INCLUDEDIR)
write_basic_package_version_file(ferry-config-version.cmake COMPATIBILITY SameMinorVersion)

add_custom_command(OUTPUT ${CMAKE_BINARY_DIR}/ferry.1 COMMAND ferry --man > ${CMAKE_BINARY_DIR}/ferry.1
  DEPENDS ferry VERBATIM)
add_custom_target(man ALL DEPENDS ${CMAKE_BINARY_DIR}/ferry.1)

install(TARGETS ferry ferry_static ferry_shared)
if(TARGET ferry_mpi)
  install(TARGETS ferry_mpi DESTINATION ${CMAKE_INSTALL_LIBDIR}/ferry)
endif()
install(FILES include/ferry/ferry.h DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/ferry)
install(FILES ${CMAKE_BINARY_DIR}/ferry.pc DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig)
install(FILES ${CMAKE_BINARY_DIR}/ferry-config.cmake ${CMAKE_BINARY_DIR}/ferry-config-version.cmake
  DESTINATION ${FERRY_CMAKE_DIR})
install(FILES ${CMAKE_BINARY_DIR}/ferry.1 DESTINATION ${CMAKE_INSTALL_MANDIR}/man1)
install(FILES README.md CHANGELOG.md LICENSE NOTICE DESTINATION ${CMAKE_INSTALL_DOCDIR})
install(DIRECTORY data DESTINATION ${CMAKE_INSTALL_DATADIR}/ferry)
