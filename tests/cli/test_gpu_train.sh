# SPDX-License-Identifier: Apache-2.0
# `ferry train --backend cuda`: losses beside the CPU's; the same bytes from any ranks, as threads and as processes;
# checkpoints that go on there and back; a process that dies. Without a GPU it is skipped; test_gpu_run.sh has the
# sentence.
. tests/cli/lib.sh
. tests/cli/train_lib.sh

needs_gpu

# train NAME OPTIONS...: its lines in $work/NAME.json, its checkpoint in $work/NAME.safetensors.
train() {
    name=$1
    shift
    expect 0 "$FERRY" train --json --save "$work/$name.safetensors" "$@"
    silent err
    cp "$work/out" "$work/$name.json"
}

# The field of the lines of an event.
field() { sed -n "s/.*\"event\": *\"$2\".*\"$3\": *\([-0-9.e]*\).*/\1/p" "$work/$1.json"; }

same() { cmp -s "$work/$1.safetensors" "$work/$2.safetensors" || problem "the checkpoints of $1 and $2 differ"; }

# near A B: the losses of all their steps, and the held-out losses, within a hundredth.
near() {
    for what in "progress loss" "end held_out_loss"; do
        # shellcheck disable=SC2086
        field "$1" $what >"$work/a"
        # shellcheck disable=SC2086
        field "$2" $what >"$work/b"
        [ -s "$work/a" ] || problem "$1: no $what"
        paste "$work/a" "$work/b" | awk '!(($1 - $2) ^ 2 < (0.01 * $1) ^ 2) {exit 1}' ||
            problem "$1 and $2: $what: $(paste "$work/a" "$work/b")"
    done
}

train cpu --steps 20 --ranks 2
train gpu --backend cuda --steps 20 --ranks 1 --record-routing "$work/routing.safetensors" --sample 20
near cpu gpu
grep -q '"event": *"sample"' "$work/gpu.json" || problem "no sample"
expect 0 "$FERRY" plan --routing "$work/routing.safetensors" --shape 128,128,8,2,2048
for ranks in 2 4; do
    train ranks$ranks --backend cuda --steps 20 --ranks $ranks
    same gpu ranks$ranks
done
if [ "$gpus" -ge 2 ]; then
    train processes --backend cuda --steps 20 --ranks 2 --processes
    same gpu processes
fi

train half --backend cuda --steps 10 --ranks 2
train resumed --backend cuda --steps 20 --ranks 1 --resume "$work/half.safetensors"
same gpu resumed
train back --steps 20 --resume "$work/half.safetensors"
train half_cpu --steps 10
train there --backend cuda --steps 20 --resume "$work/half_cpu.safetensors"
near back there

# Two nodes: the same bytes with any ranks of each, other bytes than one node's, about the same losses.
train nodes --backend cuda --steps 20 --nodes 2 --ranks 1
train nodes_processes --backend cuda --steps 20 --nodes 2 --ranks 1 --processes
same nodes nodes_processes
if [ "$gpus" -ge 4 ]; then
    train nodes_ranks --backend cuda --steps 20 --nodes 2 --ranks 2
    same nodes nodes_ranks
fi
cmp -s "$work/gpu.safetensors" "$work/nodes.safetensors" && problem "one node and two have the same bytes"
near gpu nodes

# One of two processes dies.
[ "$gpus" -ge 2 ] || finish
"$FERRY" train --backend cuda --data "$text" --ranks 2 --processes --timeout 60 --steps 100000 --save "$work/kept" \
    --save-every 50 >"$work/out" 2>"$work/err" &
job=$!
if wait_for 60 test -s "$work/kept"; then
    victim=$(cut -d' ' -f2 "/proc/$job/task/$job/children")
    begin=$(date +%s)
    kill -9 "$victim"
    wait $job && problem "a training of which a process was killed ended with 0"
    [ $(($(date +%s) - begin)) -lt 60 ] || problem "it took until the deadline to end"
    grep -q "rank 0: " "$work/err" || problem "rank 0 ended without a word: $(cat "$work/err")"
    says err "rank 1 was ended by signal 9"
    goes_on "$work/kept" "$FERRY" train --backend cuda --ranks 1
else
    kill $job
    problem "no checkpoint after a minute"
fi
finish
