# SPDX-License-Identifier: Apache-2.0
# An installation, moved after it was made: its files, its command, and programs built against it by pkg-config and by
# CMake, with either library.
. tests/cli/lib.sh

version=$("$FERRY" --version | sed 's/ferry //')
expect 0 cmake --install "$FERRY_BUILD" --prefix "$work/before"
mv "$work/before" "$work/moved"
lib=$work/moved/$(cd "$work/moved" && dirname "$(find lib* -name libferry.a)")

(cd "$work/moved" && find . ! -type d) | sed -e "s#^\./##" -e "s#${lib#"$work/moved/"}#LIB#" | sort >"$work/files"
sed -e "s/VERSION/$version/" >"$work/expected" <<'LIST'
LIB/cmake/ferry/ferry-config-version.cmake
LIB/cmake/ferry/ferry-config.cmake
LIB/libferry.a
LIB/libferry.so
LIB/libferry.so.0
LIB/libferry.so.VERSION
LIB/pkgconfig/ferry.pc
bin/ferry
include/ferry/ferry.h
share/doc/ferry/CHANGELOG.md
share/doc/ferry/LICENSE
share/doc/ferry/NOTICE
share/doc/ferry/README.md
share/ferry/data/LICENSE.txt
share/ferry/data/README.md
share/ferry/data/machines/gb300.json
share/ferry/data/machines/h100.json
share/ferry/data/machines/h200.json
share/ferry/data/pride-and-prejudice.txt
share/man/man1/ferry.1
LIST
[ ! -e "$FERRY_BUILD/ferry_mpi.so" ] || echo LIB/ferry/ferry_mpi.so >>"$work/expected"
sort "$work/expected" | diff - "$work/files" || problem "other files are installed than should be"
grep -rlF -e "$work/before" -e "$(realpath "$FERRY_BUILD")" "$lib/pkgconfig" "$lib/cmake" "$work/moved/share" &&
    problem "these name the folder of the build or the first prefix"

# The command finds what came along.
expect 0 "$work/moved/bin/ferry" plan --shape 64,64,8,2,64 --machine h200
expect 0 "$work/moved/bin/ferry" train --steps 1
"$work/moved/bin/ferry" --man | cmp -s - "$work/moved/share/man/man1/ferry.1" || problem "another manual page"

runs() { # PROGRAM
    LD_LIBRARY_PATH=$lib expect 0 "$1"
    grep -q '^token 0:' "$work/out" || problem "$1: $(cat "$work/out")"
}

PKG_CONFIG_PATH=$lib/pkgconfig
export PKG_CONFIG_PATH
expect 0 pkg-config --modversion ferry
says out "$version"
expect 0 pkg-config --cflags --libs ferry
shared=$(cat "$work/out")
expect 0 pkg-config --static --libs ferry
static=$(sed 's#-lferry#-l:libferry.a#' "$work/out")
# shellcheck disable=SC2086
expect 0 cc -std=c99 $checkers examples/forward.c -o "$work/by_pkg_config" $shared
runs "$work/by_pkg_config"
# shellcheck disable=SC2086
expect 0 cc -std=c99 $checkers -I"$work/moved/include" examples/forward.c -o "$work/by_pkg_config_static" $static
runs "$work/by_pkg_config_static"

mkdir "$work/project"
cp examples/forward.c "$work/project/"
cat >"$work/project/CMakeLists.txt" <<'LISTS'
cmake_minimum_required(VERSION 3.20)
project(uses_ferry C)
find_package(ferry ${WANTED} REQUIRED)
add_executable(shared forward.c)
target_link_libraries(shared ferry::ferry)
add_executable(static forward.c)
target_link_libraries(static ferry::static)
LISTS
set -- cmake -S "$work/project" -B "$work/project/build" -DCMAKE_PREFIX_PATH="$work/moved" -DCMAKE_C_FLAGS="$checkers"
expect 0 "$@" -DWANTED="$version"
expect 0 cmake --build "$work/project/build"
runs "$work/project/build/shared"
runs "$work/project/build/static"
expect 1 "$@" -DWANTED=9.0
says err 'requested version "9.0"'
finish
