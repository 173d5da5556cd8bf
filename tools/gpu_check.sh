#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# tools/gpu_check.sh BUILD [OUT]: everything about the layer on this machine's GPUs, in a few minutes: values
# against FP64 and equal bits (forward_lab), the public interface with threads, processes and faults (api_check), the
# sanitizer on small cases, and the benchmark beside NCCL + PyTorch where PyTorch is there. Results go to OUT (default:
# BUILD/gpu).
# Build first: cmake --build BUILD --target forward_lab backward_lab api_check backward_check ferry_shared
set -u
build=$1
out=${2:-$build/gpu}
mkdir -p "$out"
# Streams of ranks that share a device must not share hardware queues.
export CUDA_DEVICE_MAX_CONNECTIONS=32
failed=0
step() {
    name=$1
    seconds=$2
    shift 2
    if timeout "$seconds" "$@" >"$out/$name.log" 2>&1; then
        echo "ok   $name"
    else
        echo "FAIL $name: see $out/$name.log"
        failed=$((failed + 1))
    fi
}
gpus=$(nvidia-smi -L 2>/dev/null | grep -c '^GPU')
if [ "$gpus" -eq 0 ]; then
    echo "gpu-check: skipped: this machine has no GPU"
    exit 0
fi
step values 120 "$build/forward_lab" check
if [ "$gpus" -ge 2 ]; then step values-two-gpus 60 "$build/forward_lab" check2; fi
step interface 120 "$build/api_check"
step backward-values 120 "$build/backward_lab" check
step backward-interface 120 "$build/backward_check"
if command -v compute-sanitizer >/dev/null; then
    step memcheck 120 compute-sanitizer --error-exitcode 9 "$build/forward_lab" plain
    step synccheck 120 compute-sanitizer --tool synccheck --error-exitcode 9 "$build/forward_lab" plain
fi
if python3 -c 'import torch' 2>/dev/null; then
    step bench-ep1 150 python3 bench/gpu/forward_bench.py --library "$build/libferry.so" --json "$out/forward-ep1.json"
    if [ "$gpus" -ge 2 ]; then
        step bench-ep2 150 torchrun --nproc-per-node=2 bench/gpu/forward_bench.py --library "$build/libferry.so" \
            --json "$out/forward-ep2.json" --skews 0,1
    fi
    step bench-training-ep1 200 python3 bench/gpu/training_bench.py --library "$build/libferry.so" \
        --json "$out/training-ep1.json"
    if [ "$gpus" -ge 2 ]; then
        step bench-training-ep2 200 torchrun --nproc-per-node=2 bench/gpu/training_bench.py --library "$build/libferry.so" \
            --json "$out/training-ep2.json"
    fi
    grep -h score "$out"/bench-*.log
fi
echo "$failed failed"
exit "$failed"
