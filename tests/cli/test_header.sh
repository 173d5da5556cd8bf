# SPDX-License-Identifier: Apache-2.0
# The public header alone is C99 and C++, and the shared library exports exactly what it declares.
. tests/cli/lib.sh

strict="-pedantic-errors -Wall -Wextra -Werror -fsyntax-only"
# shellcheck disable=SC2086
expect 0 cc -std=c99 $strict -x c include/ferry/ferry.h
# shellcheck disable=SC2086
if command -v c++ >/dev/null 2>&1; then expect 0 c++ -std=c++11 $strict -x c++ include/ferry/ferry.h; fi

library=$FERRY_BUILD/libferry.so
if command -v nm >/dev/null 2>&1 && [ -e "$library" ]; then
    nm -D --defined-only "$library" | awk '{print $3}' | grep -v -e '^_' | sort >"$work/exported"
    cc -E -P -x c include/ferry/ferry.h | tr ';' '\n' |
        sed -n 's/.*visibility("default").*[ *]\(ferry_[a-z_0-9]*\) *(.*/\1/p' | sort >"$work/declared"
    diff "$work/declared" "$work/exported" || problem "the library does not export what the header declares"
fi
finish
