# SPDX-License-Identifier: Apache-2.0
# `ferry run` against results that another implementation wrote (tests/golden), in every way of running it.
. tests/cli/lib.sh

out=$work/out.safetensors
for case in plain forward shared_limit; do
    golden=tests/golden/$case
    limit=0
    [ $case = shared_limit ] && limit=0.7
    for way in --threads --processes "--isa portable" "--ring 64" "--context recompute" "--context 64" \
        "--context saved"; do
        # shellcheck disable=SC2086
        expect 0 "$FERRY" run $way --swiglu-limit $limit $golden.in.safetensors "$out"
        "$TENSORS" near "$out" $golden.out.safetensors 1e-3 || problem "$case $way: values"
        "$TENSORS" names "$out" >"$work/names"
        "$TENSORS" names $golden.out.safetensors | cmp -s - "$work/names" || problem "$case $way: names"
    done
    expect 0 "$FERRY" run --grad-dtype bf16 --swiglu-limit $limit $golden.in.safetensors "$out"
    "$TENSORS" names "$out" | grep -v -e "^dweights F32" | grep F32 && problem "$case: F32 gradients in spite of bf16"
done

# The comparison itself can fail.
expect 0 "$FERRY" run tests/golden/shared_limit.in.safetensors "$out"
expect 1 "$TENSORS" near "$out" tests/golden/shared_limit.out.safetensors 1e-3
finish
