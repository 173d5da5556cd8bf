# SPDX-License-Identifier: Apache-2.0
# `ferry bench`: what it prints, that it counts what `ferry plan` counts, and bad command lines.
. tests/cli/lib.sh

small="--shape 128,64,6,3,200 --repeat 3"
# shellcheck disable=SC2086
expect 0 "$FERRY" bench $small
silent err
for label in layer knobs product forward backward fwd+bwd memory; do
    grep -q "^$label " "$work/out" || problem "ferry bench has no line '$label'"
done
says out "% of the product kernel"
says out "layer     128,64,6,3,200: 200 tokens x 3 slots, H 128"
says out "knobs     1 rank (threads)"
says out "; 1 macrobatch"
! grep -q "macrobatches" "$work/out" || problem "one macrobatch in the plural"
counted() { grep -oE '"macrobatches":[0-9]*,[^{}]*"bytes":\{[^{}]*\}' "$1"; }
for knobs in "" "--ranks 2 --processes --skew 1" "--ranks 3 --ring 64 --context recompute --comm-workers 2" \
    "--isa portable --minibatch 64 --ring 128 --context 64 --grad-dtype f32"; do
    # shellcheck disable=SC2086
    expect 0 "$FERRY" bench $small $knobs --json
    [ "$(wc -l <"$work/out")" -eq 1 ] || problem "--json is not one line"
    for key in scale shape product_gflop_per_s ms median min max product_share forward_backward planned_bytes \
        peak_bytes; do
        says out "\"$key\":"
    done
    counted "$work/out" >"$work/bench"
    plan=$(echo "$knobs" | sed 's/--processes//; s/--isa portable//')
    # shellcheck disable=SC2086
    expect 0 "$FERRY" plan --shape 128,64,6,3,200 $plan --json --machine data/machines/h200.json
    # The totals of both calls, of forward and of backward come first; ranks follow.
    counted "$work/out" | sed -n 2,3p | cmp -s - "$work/bench" || problem "bench and plan differ: $knobs"
done
"$TENSORS" make "$work/in.safetensors" N=40 K=3 E=6 || problem "no input"
expect 0 "$FERRY" bench --shape 64,64,6,3,1 --routing "$work/in.safetensors" --ranks 2 --repeat 1
says out "layer     64,64,6,3,1: 40 tokens x 3 slots as in $work/in.safetensors, H 64, I 64, 6 experts"
says out "knobs     2 ranks (threads)"
expect 2 "$FERRY" bench --shape 64,64,6,2,1 --routing "$work/in.safetensors"
says err "--shape 64,64,6,2,1 has 2 slots of a token, $work/in.safetensors has 3"
silent out
expect 0 "$FERRY" bench --shape qwen3-30b-a3b --scale 32 --repeat 1
says out "H, I, T divided by 32, H and I rounded to multiples of 64, at least 64: 256 tokens x 8 slots, H 64, I 64, 128"
expect 0 "$FERRY" bench --help
says out "rounded to multiples of 64"
tr -s ' \n' ' ' <"$work/out" | grep -qF "with --shape all one for each shape, a line each" ||
    problem "help: --json prints one object, however many shapes"

# More than any machine has, or than a layer can: said before anything is drawn.
for way in "" "--ranks 2 --processes" "--scale 2 --routing $work/in.safetensors"; do
    shape=65536,65536,4096,1,1
    case $way in *routing*) shape=65536,65536,4096,3,1 ;; esac
    # shellcheck disable=SC2086
    expect 1 timeout 20 "$FERRY" bench --shape $shape $way
    says err "the layer and its tensors need "
    says err " GB are available; give a larger --scale, fewer ranks or a smaller shape"
    silent out
done
expect 1 timeout 20 "$FERRY" bench --scale 1 --shape 64,64,4096,2,1000000000
says err "expected less than 2^30 rows"
# A process that may not have what the machine has: the host has no number, and sizes can be read.
if [ -z "$checkers" ]; then
    little_memory() {
        (ulimit -v 700000 && exec "$FERRY" bench --scale 1 --shape 2048,2048,32,1,16 --compute-workers 1 --repeat 1)
    }
    expect 1 little_memory
    says err "rank 0: allocating 256.0 MiB: out of memory; a smaller layer or fewer ranks need less"
fi

for wrong in "--shape x" "--scale 0.5" "--ranks 0" "--repeat 0" "--threads --processes" "--isa sse" "--backend tpu" \
    "--context all" "--shape 64,64,4,5,100" --micro; do
    # shellcheck disable=SC2086
    expect 2 "$FERRY" bench $wrong
    silent out
done
expect 2 "$FERRY" bench --sm-margin 8
says err "--sm-margin is for GPUs: --backend cuda"
expect 2 "$FERRY" bench --backend cuda --isa avx2
says err "--isa is for CPUs: --backend cpu"
expect 1 "$FERRY" bench --routing "$work/absent"
finish
