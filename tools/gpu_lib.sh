# SPDX-License-Identifier: Apache-2.0
# shellcheck shell=sh disable=SC2034
# What tools/gpu_all.sh and tools/gpu_many.sh share; read by them, with build and folder set and `seconds` to spend.
ferry=$build/ferry
logs=$build/gpu
failed=$logs/failed # exists once a step has failed, in a lane too
end=$(($(date +%s) + seconds))
# Streams of ranks that share a device must not share hardware queues.
export CUDA_DEVICE_MAX_CONNECTIONS=32

gpus=$("$ferry" info --json | grep -o '"compute_capability"' | wc -l)
if [ "$gpus" -eq 0 ]; then
    echo "$(basename "$0" .sh): skipped: no GPU"
    exit 77
fi
# A build that was carried here may have left the folder data behind.
"$ferry" plan --machine h200 --shape 256,128,8,2,512 >/dev/null || exit 2
mkdir -p "$folder" "$logs" || exit 2
rm -f "$failed"
FERRY_COMMIT=${FERRY_COMMIT-$(git rev-parse HEAD 2>/dev/null || echo unknown)}
export FERRY_COMMIT
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
    name=$1 most=$2
    shift 2
    left=$((end - $(date +%s)))
    [ "$left" -ge 1 ] || left=1
    [ "$left" -le "$most" ] || left=$most
    begun=$(date +%s)
    if timeout "$left" "$@" >"$logs/$name.log" 2>&1; then
        echo "ok      $name ($(($(date +%s) - begun)) s)"
    else
        echo "FAILED  $name: $(tail -n 1 "$logs/$name.log") (see $logs/$name.log)"
        : >"$failed"
    fi
}

# lane GPUS COMMAND...: on these GPUs alone, beside the other lanes where there are several GPUs, until `wait`.
lane() {
    gpu=$1
    shift
    if [ "$gpus" -eq 1 ]; then
        "$@"
        return
    fi
    (
        CUDA_VISIBLE_DEVICES=$gpu
        export CUDA_VISIBLE_DEVICES
        "$@"
    ) &
}

# record FILE COMMAND: the lines of JSON of the last step as a list, with where they come from.
record() {
    printf '{"hardware":"%s","driver":"%s","commit":"%s","date":"%s","command":"%s","results":[\n' \
        "$hardware" "$driver" "$FERRY_COMMIT" "$(date -u +%Y-%m-%dT%H:%MZ)" "$2" >"$folder/$1"
    grep '^{' "$logs/$name.log" | sed '$!s/$/,/' >>"$folder/$1"
    printf ']}\n' >>"$folder/$1"
}

# python NAME SECONDS RANKS SCRIPT [OPTION]...: a script of bench/gpu on as many GPUs, results in NAME.json; says the
# lines of its log that match $lines. Those that run side by side each have a `port`.
python() {
    what=$1 most_s=$2 ranks=$3 script=$4
    shift 4
    run=python3
    [ "$ranks" -eq 1 ] || run="torchrun --nproc-per-node=$ranks --master-port=${port-29500}"
    # shellcheck disable=SC2086
    step "$what" "$most_s" $run "bench/gpu/$script" --library "$build/libferry.so" --json "$folder/$what.json" "$@"
    grep -E "$lines" "$logs/$what.log"
}

has_torch() {
    python3 -c 'import importlib.util, sys; sys.exit(importlib.util.find_spec("torch") is None)' && return
    echo "skipped $1: no PyTorch"
    return 1
}
