#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# What every file must keep: licence line, width, length, spaces, format; assembly in prim_* alone; a library that
# neither ends the process nor prints; scripts that parse; planted defects that apply. Prints each finding and ends
# with 1 when there was one.
set -u
cd "$(dirname "$0")/.." || exit 2
findings=0
say() {
    echo "lint: $*"
    findings=$((findings + 1))
}

for file in $(git ls-files '*.c' '*.cc' '*.h' '*.cu' '*.cuh' '*.sh' '*.py' '*.cmake' CMakeLists.txt Makefile \
    .ci/run); do
    head -n 2 "$file" | grep -q 'SPDX-License-Identifier: Apache-2.0' || say "$file: no SPDX line at the top"
    [ "$(wc -l <"$file")" -le 800 ] || say "$file: more than 800 lines"
    wide=$(awk 'length > 120 {print FNR; exit}' "$file")
    [ -z "$wide" ] || say "$file:$wide: wider than 120 columns"
    blank=$(grep -n '[[:space:]]$' "$file" | head -n 1 | cut -d: -f1)
    [ -z "$blank" ] || say "$file:$blank: blanks at the end of the line"
done
# never SENTENCE PATTERN PATH...: every line of these files that matches is a finding.
never() {
    sentence=$1 pattern=$2
    shift 2
    for place in $(git grep -nE "$pattern" -- "$@" | cut -d: -f1,2); do say "$place: $sentence"; done
}
never "assembly outside prim_*" '\basm\b' '*.c' '*.cc' '*.h' '*.cu' '*.cuh' ':!src/*/prim_*'
never "a library neither ends the process nor prints" '\b(abort|_?exit|v?f?printf|puts|perror)\(' src
never "a proxy fence for all memory, which waits for the whole multiprocessor" 'fence\.proxy\.async;' src
for file in $(git ls-files '*.sh' .ci/run); do sh -n "$file" || say "$file: does not parse"; done
for patch in tests/mutants/*.patch; do git apply --check "$patch" 2>/dev/null || say "$patch: does not apply"; done
tools/format.sh --check || say "format: run make format"
[ "$findings" -eq 0 ]
