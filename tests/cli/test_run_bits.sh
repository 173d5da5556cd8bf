# SPDX-License-Identifier: Apache-2.0
# `ferry run` gives the same bits in every way of running it; only the shared expert's gradients may depend on R.
. tests/cli/lib.sh

in=$work/in.safetensors
base=$work/base.safetensors
out=$work/out.safetensors
fixed="--comm-workers 1 --compute-workers 1"

# Compares $out with the base.
same() { "$TENSORS" equal "$base" "$out" >"$work/diff" || problem "$1: $(head -n 2 "$work/diff")"; }

"$TENSORS" make "$in" N=90 K=3 E=7 H=72 I=40 || problem "no input"
expect 0 "$FERRY" run $fixed "$in" "$base"
for way in "--ranks 2" "--ranks 3 --processes" "--ranks 8" "--ring 64" "--ring 64 --minibatch 64 --ranks 2" \
    "--ring 128" "--minibatch 64" "--context saved" "--context recompute --ring 64" "--context 64" "--isa portable" \
    "--comm-workers 3 --compute-workers 4" "--processes"; do
    # shellcheck disable=SC2086
    expect 0 "$FERRY" run $fixed $way "$in" "$out"
    same "$way"
done
for isa in avx2 avx512; do
    "$FERRY" info | grep -q "^kernels .*$isa" || continue
    expect 0 "$FERRY" run $fixed --isa $isa "$in" "$out"
    same "$isa"
done
expect 0 "$FERRY" run --grad-dtype bf16 "$in" "$base"
expect 0 "$FERRY" run --grad-dtype bf16 --ranks 4 --ring 64 "$in" "$out"
same "bf16 gradients"

# Ids as I64, and tokens split by the file; the shared expert's gradients are sums over ranks.
"$TENSORS" make "$in" N=40 S=20 || problem "no input"
expect 0 "$FERRY" run $fixed --ranks 3 "$in" "$base"
"$TENSORS" make "$in" N=40 S=20 wide=1 split=14,13,13 || problem "no input"
expect 0 "$FERRY" run $fixed --processes "$in" "$out"
same "I64 ids, split by the file"
"$TENSORS" make "$in" N=40 S=20 split=0,40,0,0 || problem "no input"
expect 0 "$FERRY" run $fixed "$in" "$out"
"$TENSORS" near "$out" "$base" 1e-5 || problem "another split: values"
"$TENSORS" equal "$base" "$out" | grep -v dshared && problem "another split: bits"
finish
