#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# tools/gpu_all.sh BUILD [FOLDER]: checks and times everything that needs a GPU, in less than 10 minutes. Build first:
#     cmake --build BUILD --target ferry tensor_tool forward_lab backward_lab api_check backward_check ferry_shared \
#         bench_gpu sym_check test_lm_gpu
# Where there are two GPUs, what needs one runs on each side by side. GPU_PARTS chooses parts (default: all but `two`,
# in this order):
#     api       the public interface: ranks as threads and processes, faults, contexts, graphs
#     check     side by side: `ferry check --backend cuda`; tests of ferry_moe (where PyTorch is there); the command's
#               GPU tests and the language model's operations; values against FP64 and equal bits of the kernels,
#               compute-sanitizer on small cases; the benchmark shapes against FP64, and bits of two ranks against one
#     two       what of `check` needs two GPUs, alone
#     torch     forward, and forward + backward, beside NCCL + PyTorch in one loop (where PyTorch is there)
#     bars      ratios that the layer has to keep (likewise), and each weight gradient alone beside the plain product
#     e2e       end-to-end training beside NCCL + PyTorch, on two GPUs (likewise)
#     bench     `ferry bench --backend cuda`, all shapes, skews 0 and 1
#     micro     `ferry bench --micro`, and the test of `ferry bench`, which other programs on its GPUs hold up
# Figures go to FOLDER (default bench/results), logs to BUILD/gpu. FERRY_COMMIT names the commit where there is no
# repository. Ends with 1 when a step failed, with 77 when there is no GPU.
set -u
cd "$(dirname "$0")/.." || exit 2
build=${1:?usage: tools/gpu_all.sh BUILD [FOLDER]}
folder=${2:-bench/results}
seconds=590
. tools/gpu_lib.sh
most_ranks=1
[ "$gpus" -lt 2 ] || most_ranks=2

lab_of() {
    step "$1-lab" 120 "$build/$1_lab" check
    command -v compute-sanitizer >/dev/null || return
    step "memcheck-$1" 120 compute-sanitizer --error-exitcode 9 "$build/$1_lab" plain
    step "synccheck-$1" 120 compute-sanitizer --tool synccheck --error-exitcode 9 "$build/$1_lab" plain
}

api() {
    step interface 120 "$build/api_check"
    step backward-interface 120 "$build/backward_check"
    step symmetric-memory 60 "$build/sym_check"
}

suites() {
    step check 240 tools/check_gpu.sh "$build"
    grep -E '^FAILED|passed, |only the forward' "$logs/check.log"
}

python_tests() {
    has_torch "tests of ferry_moe" || return
    # shellcheck disable=SC2086
    step "python-$1" 240 env FERRY_LIBRARY="$build/libferry.so" PYTHONPATH=python python3 -m pytest -q -rs \
        -p no:cacheprovider $2
    tail -n 3 "$logs/python-$1.log"
}

values() {
    has_torch values || return
    lines='R[0-9]:|FP64' port=29611
    for r in "$@"; do
        python "values-ep$r" 120 "$r" values.py
    done
}

# Tests of the command on a GPU: `train` and `trace`, which need one GPU, `bench`, which needs all to itself, or the
# others.
command_tests() {
    for test in tests/cli/test_gpu_*.sh; do
        case $test in
        *_train.sh | *_trace.sh) needs=one ;;
        *_bench.sh) needs=all ;;
        *) needs=both ;;
        esac
        [ "$needs" = "$1" ] || continue
        step "$(basename "$test" .sh)" 120 env FERRY="$ferry" TENSORS="$build/tensor_tool" sh "$test"
    done
}

# Jobs of several processes on the CPU, which take long, are not among the Python tests here.
on_first() {
    suites
    command_tests one
}

on_second() {
    python_tests one "--ignore tests/python/test_jobs.py --ignore tests/python/test_jobs_hosts.py tests/python"
    lab_of backward
}

of_two_ranks() {
    [ "$gpus" -gt 1 ] || return
    python_tests two "tests/python/test_ranks.py tests/python/test_patch_ranks.py"
    step forward-lab-two 60 "$build/forward_lab" check2
}

on_both() {
    command_tests both
    of_two_ranks
    step language-model 60 "$build/test_lm_gpu"
    lab_of forward
}

check() {
    lane 0 on_first
    lane 1 on_second
    lane 0,1 on_both
    # shellcheck disable=SC2046
    lane 0,1 values $(seq $most_ranks)
    wait
}

two() {
    [ "$gpus" -gt 1 ] || {
        echo "skipped two: one GPU"
        return
    }
    lane 0,1 command_tests both
    lane 0,1 of_two_ranks
    lane 0,1 values 2
    wait
}

torch() {
    has_torch torch || return
    lines=score
    if [ "$gpus" -gt 1 ]; then
        python forward-ep2 200 2 forward_bench.py --rounds "${GPU_ROUNDS-10}"
        python training-ep2 200 2 training_bench.py --rounds "${GPU_ROUNDS-10}"
    fi
    lane 0 python forward-ep1 200 1 forward_bench.py --rounds "${GPU_ROUNDS-10}"
    lane 1 python training-ep1 200 1 training_bench.py --rounds "${GPU_ROUNDS-10}"
    wait
}

# Of kimi-slice's weight gradients each alone: at least .85 of the plain product with BF16 results, .80 with F32.
weight_products() {
    step weight-products 60 "$build/backward_lab" time kimi-slice
    awk '/^kimi-slice/ {
        least = $2 == "BF16" ? 0.85 : 0.80
        parts = split($0, part, "; ")
        for (i = 1; i <= parts; i++) {
            if (part[i] !~ /^dW/ || !match(part[i], /[0-9.]+ of plain/)) continue
            share = substr(part[i], RSTART) + 0
            kept += share >= least
            print (share >= least ? "kept   " : "MISSED "), part[i], "(" $2 ", limit >= " least ")"
        }
    }
    END { exit kept != 4 }' "$logs/weight-products.log" || {
        echo "FAILED  weight-products: not all four are fast enough"
        : >"$failed"
    }
}

bars() {
    lane 0 weight_products
    wait
    has_torch bars || return
    lines='^kept|^MISSED|failed:|skipped:'
    for r in $(seq $most_ranks); do
        python "bars-ep$r" 120 "$r" bars.py --rounds "${GPU_ROUNDS-10}"
    done
}

e2e() {
    has_torch e2e || return
    if [ "$gpus" -lt 2 ]; then
        echo "skipped e2e: one GPU"
        return
    fi
    step e2e 90 env FERRY_LIBRARY="$build/libferry.so" PYTHONPATH=python torchrun --nproc-per-node=2 \
        bench/train_e2e.py --steps 40 --json "$folder/train-e2e.json" --plot "$folder/train-e2e.svg"
    tail -n 3 "$logs/e2e.log"
}

bench() {
    for r in $(seq $most_ranks); do
        for skew in 0 1; do
            step "bench-ep$r-skew$skew" 120 "$ferry" bench --backend cuda --shape all --ranks "$r" --skew $skew --json
            record "ferry-ep$r-skew$skew.json" "ferry bench --backend cuda --shape all --ranks $r --skew $skew --json"
        done
    done
}

micro() {
    command_tests all
    step micro 60 "$ferry" bench --backend cuda --micro --ranks $most_ranks --processes --json
    record micro.json "ferry bench --backend cuda --micro --ranks $most_ranks --processes --json"
}

for part in ${GPU_PARTS-api check torch bars e2e bench micro}; do
    case $part in
    api | check | two | torch | bars | e2e | bench | micro) $part ;;
    *)
        echo "GPU_PARTS: '$part' is not api, check, two, torch, bars, e2e, bench or micro" >&2
        exit 2
        ;;
    esac
done
[ ! -e "$failed" ]
