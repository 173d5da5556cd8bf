# SPDX-License-Identifier: Apache-2.0
# `make install`: the command, both libraries, the header, a pkg-config file and the text that `ferry train` learns.
include(GNUInstallDirs)
# The prefix may change after the configuration, so the file says where it is seen from itself.
file(RELATIVE_PATH FERRY_PC_TO_PREFIX ${CMAKE_INSTALL_FULL_LIBDIR}/pkgconfig ${CMAKE_INSTALL_PREFIX})
configure_file(cmake/ferry.pc.in ferry.pc @ONLY)
install(TARGETS ferry ferry_static ferry_shared)
install(FILES include/ferry/ferry.h DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/ferry)
install(FILES ${CMAKE_BINARY_DIR}/ferry.pc DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig)
install(FILES README.md CHANGELOG.md LICENSE NOTICE DESTINATION ${CMAKE_INSTALL_DOCDIR})
install(DIRECTORY data DESTINATION ${CMAKE_INSTALL_DATADIR}/ferry)
