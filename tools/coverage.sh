#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# tools/coverage.sh BUILD [LEAST]: which lines of src/ (but for the CUDA backend) the tests have run in a build with
# FERRY_COVERAGE=ON. Writes BUILD/coverage.txt: a line per file, the lines that never ran, the share of all. Ends with 1
# when that is below LEAST percent (default 90). A line counts as run when any object file that has it says so: headers
# and the kernels are compiled several times.
set -eu
cd "$(dirname "$0")/.."
build=$(cd "$1" && pwd)
find "$build" -name '*.gcda' -path '*ferry_*' >"$build/coverage.list"
[ -s "$build/coverage.list" ] || {
    echo "coverage: $build has counted nothing" >&2
    exit 1
}
while read -r counts; do gcov -t "$counts" 2>/dev/null; done <"$build/coverage.list" |
    awk -v root="$PWD/" -v least="${2:-90}" '
        # "    count: line: text"; a line 0 names the source.
        {
            split($0, part, ":")
            count = part[1]
            line = part[2] + 0
            gsub(/[ *]/, "", count)
        }
        line == 0 && part[3] == "Source" {
            file = part[4]
            sub("^" root, "", file)
            wanted = file ~ /^src\// && file !~ /^src\/cuda\//
        }
        line == 0 || !wanted || count == "-" || count == "" {next}
        {
            if (!((file, line) in seen)) {
                seen[file, line] = 1
                lines[file]++
                last[file] = last[file] < line ? line : last[file]
            }
            if (count !~ /^[#=]/ && !((file, line) in ran)) {
                ran[file, line] = 1
                hits[file]++
            }
        }
        END {
            for (file in lines) {
                missed = ""
                for (n = 1; n <= last[file]; n++) {
                    if (!((file, n) in seen) || (file, n) in ran) continue
                    first = n
                    while (((file, n + 1) in seen) && !((file, n + 1) in ran)) n++
                    missed = missed " " (n > first ? first "-" n : first)
                }
                all += lines[file]
                hit += hits[file]
                printf "%5.1f %%  %4d of %4d  %s%s\n", 100 * hits[file] / lines[file], hits[file], lines[file], file,
                    missed == "" ? "" : "  not run:" missed | "sort -k 5"
            }
            close("sort -k 5")
            share = all ? 100 * hit / all : 0
            printf "%.1f %% of %d lines of src/ run (at least %s %% wanted)\n", share, all, least
            exit share < least
        }' >"$build/coverage.txt" && code=0 || code=1
cat "$build/coverage.txt"
exit "$code"
