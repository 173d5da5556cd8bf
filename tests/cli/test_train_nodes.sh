# SPDX-License-Identifier: Apache-2.0
# Several nodes in one program: the same bytes with any number of ranks of a node, as threads or processes; losses as
# with one node; and a training of which a process dies, which ends on all ranks and goes on from its checkpoint.
. tests/cli/lib.sh
. tests/cli/train_lib.sh

train() { "$FERRY" train --data "$text" "$@"; }

for layout in "1 1" "2 1" "2 2" "2 4" "8 1"; do
    nodes=${layout% *} ranks=${layout#* }
    expect 0 train --nodes "$nodes" --ranks "$ranks" --steps 3 --json --save "$work/$nodes-$ranks"
    sed -n 's/.*"event": *"end".*"held_out_loss": *\([0-9.]*\).*/\1/p' "$work/out" >"$work/loss-$nodes"
done
expect 0 train --nodes 2 --ranks 2 --steps 3 --save "$work/2-processes" --processes
says out "2 ranks of each of 2 nodes"
for same in 2-2 2-4 2-processes; do
    cmp "$work/2-1" "$work/$same" || problem "$same: other bytes than two nodes of one rank"
done
# Sums in another order are not the same bits, or nothing was added across nodes.
cmp -s "$work/1-1" "$work/2-1" && problem "one node and two have the same bytes"
for nodes in 2 8; do
    awk -v a="$(cat "$work/loss-1")" -v b="$(cat "$work/loss-$nodes")" \
        'BEGIN { d = a - b; exit !(a > 0 && d < 0.001 && -d < 0.001) }' ||
        problem "held-out losses of 1 and $nodes nodes: $(cat "$work/loss-1") $(cat "$work/loss-$nodes")"
done

expect 2 train --nodes 4 --ranks 4
says err "all ranks together"
expect 2 train --save-every 2
says err "--save"

# A rank that fails ends all: long before the deadline, which is ten minutes.
small_files() { (ulimit -f 4 && exec timeout 60 "$FERRY" train --data "$text" --nodes 2 "$@"); }
expect 1 small_files --steps 4 --save-every 2 --save "$work/place"
says err "place: cannot be written: File too large"
for rank in 1 2 3; do says err "rank $rank: "; done

# One of four processes dies.
"$FERRY" train --data "$text" --nodes 2 --ranks 2 --processes --timeout 60 --steps 100000 --save "$work/kept" \
    --save-every 2 >"$work/out" 2>"$work/err" &
job=$!
if wait_for 60 test -s "$work/kept"; then
    victim=$(cut -d' ' -f4 /proc/$job/task/$job/children)
    begin=$(date +%s)
    kill -9 "$victim"
    wait $job
    code=$?
    [ $code -eq 1 ] || problem "a training of which a process was killed ended with $code"
    [ $(($(date +%s) - begin)) -lt 60 ] || problem "it took until the deadline to end"
    for rank in 0 1 2; do
        grep -q "rank $rank: " "$work/err" || problem "rank $rank ended without a word: $(cat "$work/err")"
    done
    says err "rank 3 was ended by signal 9"
    goes_on "$work/kept" "$FERRY" train --nodes 2 --ranks 2
else
    kill $job
    problem "no checkpoint after a minute"
fi
finish
