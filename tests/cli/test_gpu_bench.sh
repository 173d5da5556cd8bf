# SPDX-License-Identifier: Apache-2.0
# `ferry bench --backend cuda`: what it prints, on one rank, on ranks that share a GPU and on processes, and its
# arithmetic. Without a GPU it is skipped; test_gpu_run.sh has the sentence.
. tests/cli/lib.sh

needs_gpu

small="--backend cuda --shape 512,256,8,2,1024 --repeat 3"
# shellcheck disable=SC2086
expect 0 "$FERRY" bench $small
silent err
for label in layer knobs product forward backward memory; do
    grep -q "^$label " "$work/out" || problem "ferry bench has no line '$label'"
done
ways="--json|--ranks 2 --json|--ranks 3 --skew 1 --json"
[ "$gpus" -lt 2 ] || ways="$ways|--ranks 2 --processes --json"
IFS='|'
for way in $ways; do
    unset IFS
    # shellcheck disable=SC2086
    expect 0 "$FERRY" bench $small $way
    [ "$(wc -l <"$work/out")" -eq 1 ] || problem "$way: not one line"
    for key in title gpus yardsticks r_star_tflop_per_s copy_gb_per_s forward ms median floor_ms score planned_bytes; do
        says out "\"$key\":"
    done
    # Nothing is faster than its floor, and nothing takes no time.
    score=$(sed 's/.*"score":{"median":\([0-9.e-]*\).*/\1/' "$work/out")
    awk -v s="$score" 'BEGIN {exit !(s > 0.001 && s < 1.05)}' || problem "$way: score $score"
done

# Ranks that share a GPU say why nothing between them is measured; the rest is there in either case.
expect 0 "$FERRY" bench --backend cuda --micro --repeat 2
silent err
says out "not measured: there is one rank"
expect 0 "$FERRY" bench --backend cuda --micro --repeat 2 --ranks $((gpus + 1))
says out "not measured: ranks share a GPU"
ways="--threads"
[ "$gpus" -lt 2 ] || ways="--threads --processes"
for way in $ways; do
    expect 0 "$FERRY" bench --backend cuda --micro --repeat 2 --ranks $((gpus < 2 ? 1 : 2)) "$way" --json
    [ "$(wc -l <"$work/out")" -eq 1 ] || problem "--micro $way: not one line"
    keys="title gpus multiprocessors local_gb_per_s"
    [ "$gpus" -lt 2 ] || keys="$keys pull_gb_per_s push_gb_per_s one_way both_ways hot_owner signal latency_us"
    for key in $keys; do says out "\"$key\":"; done
done
expect 2 "$FERRY" bench --backend cuda --shape x
finish
