#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# tests/fuzz/run.sh BUILD [NAME]...: runs the fuzzers of a build folder (all, or the named ones), FUZZ_SECONDS each
# (default 600), one after the other. Starts from tests/fuzz/corpus/NAME; what is found new stays in BUILD/corpus/NAME,
# and an input that breaks something in BUILD/findings/NAME-*. Ends with 1 when there was one.
set -u
build=$1
shift
[ $# -gt 0 ] || set -- safetensors options environment checkpoint routing tune
seconds=${FUZZ_SECONDS:-600}
here=$(dirname "$0")
clean=0
broken=0
mkdir -p "$build/findings"
for name in "$@"; do
    mkdir -p "$build/corpus/$name"
    dictionary=""
    [ -f "$here/$name.dict" ] && dictionary=-dict=$here/$name.dict
    log=$build/fuzz_$name.log
    if "$build/fuzz_$name" -max_total_time="$seconds" -timeout=60 -rss_limit_mb=3000 -print_final_stats=1 -verbosity=1 \
        -artifact_prefix="$build/findings/$name-" $dictionary "$build/corpus/$name" "$here/corpus/$name" \
        >"$log" 2>&1; then
        clean=$((clean + 1))
        echo "fuzz $name: clean, $(sed -n 's/.*number_of_executed_units: *//p' "$log") executions in $seconds s"
    else
        broken=$((broken + 1))
        echo "fuzz $name: FAILED, see $log and $build/findings:" >&2
        grep -E 'ERROR|runtime error|not so|SUMMARY' "$log" | head -n 5 >&2
    fi
done
echo "$clean passed, $broken failed"
[ "$broken" -eq 0 ]
