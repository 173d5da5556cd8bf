#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# tools/gpu_many.sh BUILD [FOLDER]: what 4 and 8 GPUs of one machine give, in less than 8 minutes; builds nothing. Build
# first:
#     cmake --build BUILD --target ferry tensor_tool ferry_shared bench_gpu
# In this order:
#     bits      `ferry run`, forward and backward: 2, 4 and 8 ranks, as threads (ranks share GPUs where there are fewer)
#               and, where there is a GPU for each, as processes, against one rank
#     values    the benchmark shapes at EP = 8, then 4, against FP64, and bits against EP = 1
#     forward, training
#               all shapes, beside NCCL + PyTorch and the plain products in one loop
#     micro     links between all GPUs
# On fewer GPUs it is a rehearsal: the same steps with as many ranks as there are GPUs. GPU_ONLY: shapes whose names
# contain it; GPU_ROUNDS: repetitions of a measurement (default 8). What to expect: docs/performance-log.md.
# Figures go to FOLDER (default bench/results), logs to BUILD/gpu. FERRY_COMMIT names the commit where there is no
# repository. Ends with 1 when a step failed, with 77 when there is no GPU.
set -u
cd "$(dirname "$0")/.." || exit 2
build=${1:?usage: tools/gpu_many.sh BUILD [FOLDER]}
folder=${2:-bench/results}
seconds=470
. tools/gpu_lib.sh
tensors=$build/tensor_tool
case $gpus in
1 | 2 | 3) sizes=$gpus ;;
4 | 5 | 6 | 7) sizes=4 ;;
*) sizes="8 4" ;;
esac

same_bits() {
    in=$logs/many.in.safetensors
    one=$logs/many.1.safetensors
    other=$logs/many.other.safetensors
    "$tensors" make "$in" N=1500 K=4 E=24 H=512 I=256 dout=0 || return 1
    timeout 60 "$ferry" run --backend cuda "$in" "$one" || return 1
    for ranks in 2 4 8; do
        modes=--threads
        [ "$gpus" -lt $ranks ] || modes="--threads --processes"
        for mode in $modes; do
            timeout 60 "$ferry" run --backend cuda --ranks $ranks $mode "$in" "$other" || return 1
            "$tensors" equal "$one" "$other" || {
                echo "$ranks ranks $mode: other bits than one rank"
                return 1
            }
        done
    done
    rm -f "$in" "$one" "$other"
}

begun=$(date +%s)
if same_bits >"$logs/many-bits.log" 2>&1; then
    echo "ok      bits ($(($(date +%s) - begun)) s)"
else
    echo "FAILED  bits: $(tail -n 1 "$logs/many-bits.log") (see $logs/many-bits.log)"
    : >"$failed"
fi
if has_torch "values, forward, training"; then
    rounds=${GPU_ROUNDS-8}
    for r in $sizes; do
        lines='R[0-9]:|FP64'
        python "values-ep$r" 90 "$r" values.py --only "${GPU_ONLY-}"
        lines=score
        python "forward-ep$r" 90 "$r" forward_bench.py --only "${GPU_ONLY-}" --rounds "$rounds"
        python "training-ep$r" 120 "$r" training_bench.py --only "${GPU_ONLY-}" --rounds "$rounds"
    done
fi
for r in $sizes; do
    step "micro-ep$r" 60 "$ferry" bench --backend cuda --micro --ranks "$r" --processes --json
    record "micro-ep$r.json" "ferry bench --backend cuda --micro --ranks $r --processes --json"
done
[ ! -e "$failed" ]
