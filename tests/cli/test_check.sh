# SPDX-License-Identifier: Apache-2.0
# `ferry check`: what it lists, for people and as JSON, and a suite that there is not.
. tests/cli/lib.sh

for only in "" "--suite cases" "--fault kill"; do
    # shellcheck disable=SC2086
    expect 0 "$FERRY" check --list $only
    silent err
    cp "$work/out" "$work/list"
    # shellcheck disable=SC2086
    expect 0 "$FERRY" check --list --json $only
    silent err
    [ "$(wc -l <"$work/out")" -eq 1 ] || problem "--list --json $only: not one line"
    # The same tests in the same order.
    sed -e 's/^{"tests":\[{"suite":"//' -e 's/"}\]}$//' -e 's/"},{"suite":"/\n/g' "$work/out" |
        sed 's/","name":"/ /' >"$work/json"
    sed 's/^\([a-z]*\)  */\1 /' "$work/list" | diff - "$work/json" >"$work/diff" ||
        problem "--list and --list --json $only differ: $(head -n 3 "$work/diff")"
    [ -s "$work/list" ] || problem "--list $only: nothing"
done
! grep -qv '^fault ' "$work/list" || problem "--fault kill lists other suites"

expect 2 "$FERRY" check --suite foo
says err "'foo' is not one of: cases, property, bits, life, memory, alloc, overlap, fault"
silent out
expect 2 "$FERRY" check --backend cuda --list --suite memory
says err "the suite 'memory' is not for GPUs"
finish
