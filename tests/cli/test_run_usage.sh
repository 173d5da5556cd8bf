# SPDX-License-Identifier: Apache-2.0
# `ferry run`: bad command lines end with 2, bad files with 1, both with a message that names the cause.
. tests/cli/lib.sh

in=$work/in.safetensors
out=$work/out.safetensors
"$TENSORS" make "$in" || problem "no input"
"$TENSORS" make "$work/split.safetensors" split=10,0,14 || problem "no input"

expect 2 "$FERRY" run
says err "missing argument IN.safetensors"
expect 2 "$FERRY" run "$in"
says err "missing argument OUT.safetensors"
expect 2 "$FERRY" run "$in" "$out" "$out"
for pair in "--ranks 0" "--ranks x" "--ranks 1000" "--ring -1" "--ring 64x" "--ring 99999999999999999999" "--isa sse" \
    "--context all" "--context -3" "--grad-dtype f16" "--swiglu-limit nan" "--swiglu-limit -1" \
    "--swiglu-limit 1e-60" "--timeout -1" "--comm-workers 0" "--compute-workers 0" "--minibatch 0" "--backend tpu" \
    "--ranks" "--json=yes" "--threads --processes" "-r 2"; do
    # shellcheck disable=SC2086
    expect 2 "$FERRY" run "$in" "$out" $pair
    silent out
done
says err "unknown option '-r'"
expect 2 "$FERRY" run --threads --processes "$in" "$out"
says err "--threads and --processes exclude each other"
for knob in "--pull-warps 3" "--fan-out each" "--comm-sms 4" "--sm-margin 8"; do
    # shellcheck disable=SC2086
    expect 2 "$FERRY" run $knob "$in" "$out"
    says err "${knob% *} is for GPUs: --backend cuda"
done
for knob in "--comm-workers 2" "--isa portable"; do
    # shellcheck disable=SC2086
    expect 2 "$FERRY" run --backend cuda $knob "$in" "$out"
    says err "${knob% *} is for CPUs: --backend cpu"
done
expect 2 "$FERRY" run --ranks 4 "$work/split.safetensors" "$out"
says err "--ranks 4 contradicts tokens_per_rank"
expect 0 "$FERRY" run --ranks 3 --threads --threads "$work/split.safetensors" "$out"
rm "$out"

# Results never take the place of their inputs, whatever the name.
cp "$in" "$work/kept.safetensors"
ln "$in" "$work/hard.safetensors"
ln -s in.safetensors "$work/soft.safetensors"
for same in "$in" "$work/./in.safetensors" "$work/hard.safetensors" "$work/soft.safetensors"; do
    expect 2 "$FERRY" run "$in" "$same"
    says err "are the same file"
    silent out
done
[ -L "$work/soft.safetensors" ] || problem "a link was replaced"
cmp "$in" "$work/kept.safetensors" || problem "the inputs were overwritten"
rm "$work/kept.safetensors" "$work/hard.safetensors" "$work/soft.safetensors"

# Nor that of what somebody else has there; a file of tensors and an empty one may go. Said before the inputs are read.
echo "of somebody" >"$work/notes"
head -c 300 "$in" >"$work/part"
for place in "$work/notes" "$work/part"; do
    cp "$place" "$work/kept"
    expect 1 "$FERRY" run "$work/absent.safetensors" "$place"
    says err "OUT: $place is there and is no safetensors file; name another file"
    silent out
    cmp "$place" "$work/kept" || problem "$place was replaced"
done
expect 2 "$FERRY" run "$in" ""
says err "OUT: the name of the file is empty"
silent out
for place in notes in2.safetensors; do
    [ $place = notes ] && : >"$work/notes" || cp "$in" "$work/$place"
    expect 0 "$FERRY" run "$in" "$work/$place"
    "$TENSORS" names "$work/$place" | grep -q '^out ' || problem "$place was not replaced"
done
chmod a-w "$work/notes"
if [ ! -w "$work/notes" ]; then # not so for root
    expect 1 "$FERRY" run "$in" "$work/notes"
    says err "$work/notes: cannot be written"
fi
rm -f "$work/notes" "$work/part" "$work/kept" "$work/in2.safetensors"

expect 1 "$FERRY" run "$work/absent.safetensors" "$out"
says err "cannot be opened"
expect 1 "$FERRY" run README.md "$out"
says err "README.md: not a safetensors file: a header of "
expect 1 "$FERRY" run "$work" "$out"
says err "not a regular file"
mkfifo "$work/pipe" || problem "no pipe"
expect 1 timeout 30 "$FERRY" run "$work/pipe" "$out" # nobody writes to it
says err "not a regular file"
head -c 300 "$in" >"$work/short.safetensors"
expect 1 "$FERRY" run "$work/short.safetensors" "$out"
says err "short.safetensors: not a safetensors file, or cut short: a header of "
: >"$work/empty.safetensors"
expect 1 "$FERRY" run "$work/empty.safetensors" "$out"
says err "too few"

# Same length, so that the header stays right: another dtype, another name.
sed 's/"dtype":"F32"/"dtype":"I32"/' "$in" >"$work/dtype.safetensors"
expect 1 "$FERRY" run "$work/dtype.safetensors" "$out"
says err "tensor 'weights' is I32; expected F32"
sed 's/"dtype":"BF16"/"dtype":"F16" /g' "$in" >"$work/f16.safetensors"
expect 1 "$FERRY" run "$work/f16.safetensors" "$out"
says err "is F16; expected BF16"
sed 's/"gate":/"gata":/' "$in" >"$work/name.safetensors"
expect 1 "$FERRY" run "$work/name.safetensors" "$out"
says err "tensor 'gate' is missing"
sed 's/"shape":\[24,2\]/"shape":[48,1]/' "$in" >"$work/shape.safetensors"
expect 1 "$FERRY" run "$work/shape.safetensors" "$out"
says err "tensor 'ids' has shape [48, 1]; expected [N,K]"
"$TENSORS" make "$work/sum.safetensors" split=10,0,13 || problem "no input"
expect 1 "$FERRY" run "$work/sum.safetensors" "$out"
says err "adds up to 23 tokens, but x has 24"
"$TENSORS" make "$work/negative.safetensors" split=30,-6 || problem "no input"
expect 1 "$FERRY" run "$work/negative.safetensors" "$out"
says err "gives rank 1 -6 tokens"
for key in E=0 I=0 H=0 K=0; do
    "$TENSORS" make "$work/zero.safetensors" $key || problem "no input"
    expect 1 "$FERRY" run "$work/zero.safetensors" "$out"
    says err "at least 1 is needed"
done
[ ! -e "$out" ] || problem "a failed run left a file"

expect 1 "$FERRY" run "$in" "$work/absent/out.safetensors"
says err "cannot be written"
for place in "$work" "$work/pipe" /dev/null /dev/full; do
    # Before the inputs are read, so before any work.
    expect 1 timeout 30 "$FERRY" run "$work/short.safetensors" "$place"
    says err "$place is there and is no regular file; name another file"
done
[ -c /dev/null ] || problem "/dev/null was replaced"
[ -z "$(find "$work" -name '*.tmp')" ] || problem "a temporary file was left"
finish
