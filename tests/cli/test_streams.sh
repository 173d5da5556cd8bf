# SPDX-License-Identifier: Apache-2.0
# Standard output that is full, or was closed before the start: what could not be said is a failure, whoever says it,
# and no file or socket takes the place of the stream.
. tests/cli/lib.sh

head -c 40000 data/pride-and-prejudice.txt >"$work/text"
in=$work/in.safetensors
out=$work/out.safetensors
"$TENSORS" make "$in" || problem "no input"

# full COMMAND..., closed COMMAND...: it must end with 1 and say why.
full() {
    "$@" >/dev/full 2>"$work/err"
    code=$?
    [ "$code" -eq 1 ] || problem "exit code $code, expected 1, with a full stdout: $*"
    says err "cannot write to standard output"
}
closed() {
    "$@" >&- 2>"$work/err"
    code=$?
    [ "$code" -eq 1 ] || problem "exit code $code, expected 1, with a closed stdout: $*"
    says err "cannot write to standard output"
}

for way in full closed; do
    $way "$FERRY" --help
    $way "$FERRY" --version
    $way "$FERRY" run --help
    $way "$FERRY" info
    $way "$FERRY" run "$in" "$out"
    $way "$FERRY" run --json --ranks 2 --processes "$in" "$out"
    $way "$FERRY" train --data "$work/text" --steps 1
    $way "$FERRY" train --data "$work/text" --steps 1 --json --processes --save "$work/$way.safetensors"
done
cmp "$work/full.safetensors" "$work/closed.safetensors" || problem "a closed stdout changes a checkpoint"
finish
