# SPDX-License-Identifier: Apache-2.0
# bench/*.c: measuring programs over the static library; none is built by default or run by the tests.
file(GLOB FERRY_BENCHES CONFIGURE_DEPENDS bench/*.c)
foreach(source ${FERRY_BENCHES})
  get_filename_component(name ${source} NAME_WE)
  add_executable(bench_${name} EXCLUDE_FROM_ALL ${source})
  target_link_libraries(bench_${name} PRIVATE ferry_static)
endforeach()
