#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# tools/gpu_all.sh BUILD [FOLDER]: checks and times everything that needs a GPU, in less than 10 minutes. Build first:
#     cmake --build BUILD --target ferry tensor_tool forward_lab backward_lab api_check backward_check ferry_shared
# GPU_PARTS chooses parts (default: all, in this order):
#     lab       values against FP64 and equal bits of the kernels; compute-sanitizer on small cases
#     api       the public interface: ranks as threads and processes, faults, contexts, graphs
#     check     `ferry check --backend cuda` and the command's GPU tests
#     torch     forward, and forward + backward, beside NCCL + PyTorch in one loop (where PyTorch is there)
#     bench     `ferry bench --backend cuda`, all shapes, skews 0 and 1
# Figures go to FOLDER (default bench/results), logs to BUILD/gpu. FERRY_COMMIT names the commit where there is no
# repository. Ends with 1 when a step failed, with 77 when there is no GPU.
set -u
cd "$(dirname "$0")/.." || exit 2
build=${1:?usage: tools/gpu_all.sh BUILD [FOLDER]}
folder=${2:-bench/results}
logs=$build/gpu
ferry=$build/ferry
failed=0
end=$(($(date +%s) + 590))
# Streams of ranks that share a device must not share hardware queues.
export CUDA_DEVICE_MAX_CONNECTIONS=32

gpus=$("$ferry" info --json | grep -o '"compute_capability"' | wc -l)
if [ "$gpus" -eq 0 ]; then
    echo "gpu_all: skipped: no GPU"
    exit 77
fi
mkdir -p "$folder" "$logs" || exit 2
most_ranks=1
[ "$gpus" -lt 2 ] || most_ranks=2
commit=${FERRY_COMMIT-$(git rev-parse HEAD 2>/dev/null || echo unknown)}
hardware=$(nvidia-smi --query-gpu=name --format=csv,noheader | sort | uniq -c |
    sed 's/^ *\([0-9]*\) /\1 x /' | paste -sd, -)
driver=$(nvidia-smi --query-gpu=driver_version --format=csv,noheader | head -n 1)
# The vendor's product is a yardstick; its library is often outside the linker's path.
library=$(find /usr/local/cuda*/ -name 'libcublas.so.1*' 2>/dev/null | head -n 1)
if [ -n "$library" ]; then
    LD_LIBRARY_PATH=$(dirname "$library")${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
    export LD_LIBRARY_PATH
fi

# step NAME SECONDS COMMAND...: bounded by its own time and by what is left of all.
step() {
    name=$1 seconds=$2
    shift 2
    left=$((end - $(date +%s)))
    [ "$left" -ge 1 ] || left=1
    [ "$left" -le "$seconds" ] || left=$seconds
    if timeout "$left" "$@" >"$logs/$name.log" 2>&1; then
        echo "ok      $name"
    else
        echo "FAILED  $name: $(tail -n 1 "$logs/$name.log") (see $logs/$name.log)"
        failed=1
    fi
}

# record FILE: the lines of JSON of the last step as a list, with where they come from.
record() {
    printf '{"hardware":"%s","driver":"%s","commit":"%s","date":"%s","command":"%s","results":[\n' \
        "$hardware" "$driver" "$commit" "$(date -u +%Y-%m-%dT%H:%MZ)" "$2" >"$folder/$1"
    grep '^{' "$logs/$name.log" | sed '$!s/$/,/' >>"$folder/$1"
    printf ']}\n' >>"$folder/$1"
}

lab() {
    step forward-lab 120 "$build/forward_lab" check
    [ "$gpus" -lt 2 ] || step forward-lab-two 60 "$build/forward_lab" check2
    step backward-lab 120 "$build/backward_lab" check
    command -v compute-sanitizer >/dev/null || return
    step memcheck 120 compute-sanitizer --error-exitcode 9 "$build/forward_lab" plain
    step synccheck 120 compute-sanitizer --tool synccheck --error-exitcode 9 "$build/forward_lab" plain
}

check() {
    for test in tests/cli/test_gpu_*.sh; do
        step "$(basename "$test" .sh)" 120 env FERRY="$ferry" TENSORS="$build/tensor_tool" sh "$test"
    done
    step check 240 tools/check_gpu.sh "$build"
    grep -E '^FAILED|passed, |only the forward' "$logs/check.log"
}

torch() {
    if ! python3 -c 'import torch' 2>/dev/null; then
        echo "skipped torch: no PyTorch"
        return
    fi
    for r in $(seq $most_ranks); do
        run=python3
        [ "$r" -eq 1 ] || run="torchrun --nproc-per-node=$r"
        for what in forward training; do
            # shellcheck disable=SC2086
            step "$what-ep$r" 200 $run "bench/gpu/${what}_bench.py" --library "$build/libferry.so" \
                --json "$folder/$what-ep$r.json"
            grep score "$logs/$what-ep$r.log"
        done
    done
}

bench() {
    for r in $(seq $most_ranks); do
        for skew in 0 1; do
            step "bench-ep$r-skew$skew" 120 "$ferry" bench --backend cuda --shape all --ranks "$r" --skew $skew --json
            record "ferry-ep$r-skew$skew.json" "ferry bench --backend cuda --shape all --ranks $r --skew $skew --json"
        done
    done
}

for part in ${GPU_PARTS-lab api check torch bench}; do
    case $part in
    api)
        step interface 120 "$build/api_check"
        step backward-interface 120 "$build/backward_check"
        ;;
    lab | check | torch | bench) $part ;;
    *)
        echo "GPU_PARTS: '$part' is not lab, api, check, torch or bench" >&2
        exit 2
        ;;
    esac
done
exit $failed
