# SPDX-License-Identifier: Apache-2.0
# `ferry run --backend cuda`: the values of the CPU, the same bits from every way of running it, and the sentences where
# it cannot. Without a GPU: only that it says so.
. tests/cli/lib.sh

in=$work/in.safetensors
out=$work/out.safetensors
first=$work/first.safetensors
"$TENSORS" make "$in" N=150 K=3 E=10 H=136 I=72 S=40 dout=0 || problem "no input"
find_gpus
if [ "$gpus" -eq 0 ]; then
    expect 1 "$FERRY" run --backend cuda "$in" "$out"
    says err "the CUDA backend: "
    silent out
    [ ! -e "$out" ] || problem "a failed run left an output"
    expect 1 "$FERRY" bench --backend cuda
    says err "the CUDA backend: "
    for way in "" --json; do
        # shellcheck disable=SC2086
        expect 1 "$FERRY" check --backend cuda $way
        says err "nothing was tested: the CUDA backend: "
        [ "$(wc -l <"$work/err")" -eq 1 ] || problem "more than one sentence"
        silent out
    done
    expect 2 "$FERRY" check --backend cuda --suite memory
    says err "the suite 'memory' is not for GPUs"
    skip "$no_gpu"
fi

expect 0 "$FERRY" run "$in" "$work/cpu.safetensors"
expect 0 "$FERRY" run --backend cuda "$in" "$first"
silent err
"$TENSORS" near "$first" "$work/cpu.safetensors" 4e-3 || problem "one rank: values"
for way in "--ranks 2" "--ranks 3" "--ranks 4 --ring 64" "--ranks 8" "--ring 64 --minibatch 64" "--pull-warps 1" \
    "--fan-out each --sm-margin 8" "--comm-sms 4" "--compute-workers 5"; do
    # shellcheck disable=SC2086
    expect 0 "$FERRY" run --backend cuda $way "$in" "$out"
    "$TENSORS" equal "$first" "$out" || problem "$way: other bits than one rank"
done
if [ "$gpus" -ge 2 ]; then
    expect 0 "$FERRY" run --backend cuda --ranks 2 --processes "$in" "$out"
    "$TENSORS" equal "$first" "$out" || problem "two processes: other bits than one rank"
fi
expect 1 "$FERRY" run --backend cuda --timeout 20 --ranks $((gpus + 1)) --processes "$in" "$out"
says err "ranks of different processes use one device"

expect 0 "$FERRY" run --backend cuda --ranks 2 --json "$in" "$out"
says out '"backend":"cuda"'
rows=$(sed 's/.*"ranks":\[.*"rows":\([0-9]*\).*/\1/' "$work/out")
[ "$rows" -gt 0 ] || problem "no rows counted"

"$TENSORS" make "$in" N=24 K=2 H=32 I=40 dout=0 split=10,14 bad_token=13 bad_slot=1 || problem "no input"
expect 1 "$FERRY" run --backend cuda "$in" "$out"
says err "1 expert id outside -1..5 counted as -1; the first is 13 on rank 1, token 3, slot 1"
"$TENSORS" make "$in" N=9 K=2 E=3 H=33 I=64 dout=0 || problem "no input"
expect 1 "$FERRY" run --backend cuda "$in" "$out"
says err "expected multiples of 8"
finish
