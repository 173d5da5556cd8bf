#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# tools/gpu_all.sh BUILD [FOLDER]: checks and times everything that needs a GPU, in less than 10 minutes. Writes to
# FOLDER (default bench/results) check.txt and, with hardware, driver, commit and command in each, ferry-rN.json (`ferry
# bench` on N ranks, all shapes, skews 0 and 1) and torch-rN.json (bench/layer_torch.py, the same). GPU_PARTS chooses
# parts (default "check bench torch"); FERRY_COMMIT names the commit where there is no repository. Ends with 1 when a
# part failed, with 77 when there is no GPU.
set -u
cd "$(dirname "$0")/.." || exit 2
build=${1:?usage: tools/gpu_all.sh BUILD [FOLDER]}
folder=${2:-bench/results}
parts=${GPU_PARTS-check bench torch}
ferry=$build/ferry
failed=0
end=$(($(date +%s) + 590))

# Seconds that a step may take: at most $1, and never beyond the end of all.
within() {
    left=$((end - $(date +%s)))
    [ "$left" -ge 1 ] || left=1
    [ "$left" -le "$1" ] || left=$1
    echo "$left"
}

gpus=$("$ferry" info --json | grep -o '"compute_capability"' | wc -l)
if [ "$gpus" -eq 0 ]; then
    echo "gpu_all: skipped: no GPU"
    exit 77
fi
mkdir -p "$folder" || exit 2
most_ranks=1
[ "$gpus" -lt 2 ] || most_ranks=2
commit=${FERRY_COMMIT-$(git rev-parse HEAD 2>/dev/null || echo unknown)}
hardware=$(nvidia-smi --query-gpu=name --format=csv,noheader | sort | uniq -c |
    sed 's/^ *\([0-9]*\) /\1 x /' | paste -sd, -)
driver=$(nvidia-smi --query-gpu=driver_version --format=csv,noheader | head -n 1)
# The vendor's product is a yardstick; its library is often outside the linker's path.
library=$(find /usr/local/cuda*/ -name 'libcublas.so.1*' 2>/dev/null | head -n 1)
[ -z "$library" ] || export LD_LIBRARY_PATH="$(dirname "$library")${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}"

fail() {
    echo "gpu_all: FAILED: $*"
    failed=1
}

# record FILE COMMAND...: the command's lines of JSON as a list, with where they come from; at most 2 minutes.
record() {
    file=$folder/$1
    shift
    timeout "$(within 120)" "$@" >"$file.lines" || fail "$*"
    {
        printf '{"hardware":"%s","driver":"%s","commit":"%s",\n' "$hardware" "$driver" "$commit"
        printf '"date":"%s","command":"%s","results":[\n' "$(date -u +%Y-%m-%dT%H:%MZ)" "$*"
        grep '^{' "$file.lines" | sed '$!s/$/,/'
        printf ']}\n'
    } >>"$file.list"
    rm -f "$file.lines"
}

# close FILE: the records that were made for it, as one list.
close() {
    file=$folder/$1
    { printf '[\n' && sed 's/^\]}$/]},/' "$file.list" | sed '$s/,$//' && printf ']\n'; } >"$file"
    rm -f "$file.list"
}

for part in $parts; do
    case $part in
    check)
        : >"$folder/check.txt"
        for test in tests/cli/test_gpu_*.sh; do
            FERRY=$ferry TENSORS=$build/tensor_tool timeout "$(within 120)" sh "$test" >>"$folder/check.txt" 2>&1 || fail "$test"
        done
        timeout "$(within 240)" tools/check_gpu.sh "$build" >>"$folder/check.txt" 2>&1 || fail "ferry check --backend cuda"
        grep -E '^FAILED|passed, |only the forward' "$folder/check.txt"
        ;;
    bench)
        for ranks in $(seq $most_ranks); do
            for skew in 0 1; do
                record "ferry-r$ranks.json" "$ferry" bench --backend cuda --shape all --ranks "$ranks" --skew $skew --json
            done
            close "ferry-r$ranks.json"
        done
        ;;
    torch)
        for ranks in $(seq $most_ranks); do
            run=python3
            [ "$ranks" -eq 1 ] || run="torchrun --nproc-per-node=$ranks"
            # shellcheck disable=SC2086
            record "torch-r$ranks.json" $run bench/layer_torch.py --skews 0,1
            close "torch-r$ranks.json"
        done
        ;;
    *)
        echo "GPU_PARTS: '$part' is not check, bench or torch" >&2
        exit 2
        ;;
    esac
done
exit $failed
