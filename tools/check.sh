#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# tools/check.sh BUILD [OPTION]...: unit tests and tests of the command by ctest, then `ferry check OPTION...`. Ends
# with one line, "N passed, N failed", over both, which it also leaves in BUILD/check.count; before it what was skipped,
# also within programs of tests, and how much. CHECK_PARTS chooses parts (default "ctest layer").
set -u
build=$1
shift
parts=${CHECK_PARTS-ctest layer}
log=$build/check.log
passed=0
failed=0
skipped= # lines "COUNT TEST: REASON"

# Adds a part's numbers; a part that gave none, or that ended badly without a failure, counts as one failure.
count() { # name exit-code passed failed
    if [ -z "$3" ] || { [ "$2" -ne 0 ] && [ "$4" -eq 0 ]; }; then
        echo "$1: ended with exit code $2 and no count of failures" >&2
        failed=$((failed + 1))
    else
        passed=$((passed + $3))
        failed=$((failed + $4))
    fi
}

# What the last ctest, whose output is in $log, skipped: whole tests with the last line that they said, and what pytest
# and cmocka skipped within tests.
skips() {
    awk '
    NR == FNR { if (/\*\*\*Skipped/) whole[$4] = 1; next }
    /^[0-9]+\/[0-9]+ Testing: / { test = $3; said = "" }
    /^<end of output>/ && test in whole { print 1, test ": " said }
    /^SKIPPED \[[0-9]+\] / { count = substr($2, 2) + 0; $1 = $2 = ""; print count, test ":" substr($0, 2) }
    /^\[  SKIPPED \] / && !/listed below/ && !seen[test, $NF]++ { print 1, test ": " $NF }
    { sub(/^-+$|^skipped: /, ""); said = $0 }
    ' "$log" "$build/Testing/Temporary/LastTest.log"
}

for part in $parts; do
    code_file=$build/check.code
    case $part in
    ctest)
        { ctest --test-dir "$build" --output-on-failure; echo $? >"$code_file"; } 2>&1 | tee "$log"
        total=$(sed -n 's/.* tests failed out of \([0-9]*\)$/\1/p' "$log")
        bad=$(sed -n 's/.*, \([0-9]*\) tests failed out of .*/\1/p' "$log")
        whole=$(grep -c '\*\*\*Skipped' "$log")
        count "unit tests" "$(cat "$code_file")" "${total:+$((total - bad - whole))}" "${bad:-0}"
        skipped=$(skips)
        ;;
    layer)
        { "$build/ferry" check "$@"; echo $? >"$code_file"; } 2>&1 | tee "$log"
        last=$(grep -E '^[0-9]+ passed, [0-9]+ failed' "$log" | tail -n 1)
        good=${last%% passed*}
        bad=${last#*passed, }
        count "ferry check" "$(cat "$code_file")" "$good" "${bad%% failed*}"
        skipped="$skipped
$(echo "$last" | sed -n 's/.*, \([0-9]*\) skipped$/\1 ferry check: see above/p')"
        ;;
    *)
        echo "CHECK_PARTS: '$part' is not ctest or layer" >&2
        exit 2
        ;;
    esac
done
echo "$skipped" | awk 'NF {n += $1; print "skipped: " $0} END {print n + 0 " skipped"}'
echo "$passed passed, $failed failed" | tee "$build/check.count"
[ "$failed" -eq 0 ]
