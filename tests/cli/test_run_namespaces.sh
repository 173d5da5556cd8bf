# SPDX-License-Identifier: Apache-2.0
# Launchers in pid namespaces of their own that share a network, as containers do: equal pids at equal times must not
# make one job of them.
. tests/cli/lib.sh

unshare --pid --fork true 2>/dev/null || skip "no namespaces of processes: needs root and unshare"

in=$work/in.safetensors
"$TENSORS" make "$in" || problem "no input"
"$FERRY" run --ranks 3 "$in" "$work/expected" >/dev/null || problem "the run with threads"
pids=
for i in 1 2 3 4 5; do
    unshare --pid --fork "$FERRY" run --processes --ranks 3 --timeout 20 "$in" "$work/$i" >"$work/said$i" 2>&1 &
    pids="$pids $!"
done
for pid in $pids; do wait "$pid" || problem "exit code $? of a run beside others"; done
for i in 1 2 3 4 5; do cmp "$work/expected" "$work/$i" || problem "$(head -n 1 "$work/said$i")"; done
finish
