# SPDX-License-Identifier: Apache-2.0
# `ferry train` started by an MPI launcher on this machine: the bytes of the same nodes in one program, what is refused,
# and the end of a job of which a process dies.
. tests/cli/lib.sh
. tests/cli/train_lib.sh

# Without its module beside it the command says so, wherever this is built.
cp "$FERRY" "$work/alone"
expect 1 env OMPI_COMM_WORLD_SIZE=2 "$work/alone" train --data "$text" --steps 1
says err "there is no MPI here"

{ [ -e "$FERRY_BUILD/ferry_mpi.so" ] && command -v mpirun; } >/dev/null || skip "no ferry_mpi.so or mpirun"
mpirun --version 2>&1 | grep -q "Open MPI" || skip "mpirun is not Open MPI's, whose options are used"
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 OMPI_MCA_rmaps_base_oversubscribe=1
export OMPI_MCA_hwloc_base_binding_policy=none

ferry_mpi() {
    processes=$1
    shift
    mpirun -n "$processes" "$FERRY" train "$@"
}

for layout in "1 2" "2 2" "4 1"; do
    nodes=${layout% *} ranks=${layout#* }
    expect 0 "$FERRY" train --data "$text" --nodes "$nodes" --ranks "$ranks" --steps 3 --save "$work/expected"
    expect 0 ferry_mpi $((nodes * ranks)) --data "$text" --nodes "$nodes" --steps 3 --save "$work/mpi"
    says out "MPI processes"
    cmp "$work/expected" "$work/mpi" || problem "$nodes nodes of $ranks: other bytes than in one program"
done
# All processes of one machine are one node, unless told otherwise.
expect 0 ferry_mpi 2 --data "$text" --steps 1
says out "on 2 ranks (MPI"

ferry_mpi 2 --data "$text" --ranks 1 --steps 1 >"$work/out" 2>"$work/err" && problem "--ranks 1 was accepted"
says err "the MPI launcher started 2 on each of 1 nodes"
ferry_mpi 2 --data "$text" --nodes 4 --steps 1 >"$work/out" 2>"$work/err" && problem "4 nodes of 2 were accepted"
says err "cannot be split into 4 nodes"
ferry_mpi 2 --data "$text" --steps 1 --record-routing "$work/routing" >"$work/out" 2>"$work/err" &&
    problem "--record-routing was accepted"
says err "--record-routing"
mpirun -n 1 "$FERRY" train --data "$text" --nodes 2 --steps 2 : -n 1 "$FERRY" train --data "$text" --nodes 2 --steps 3 \
    >"$work/out" 2>"$work/err" && problem "different options were accepted"
says err "different options, texts or checkpoints"

# One of four processes dies. mpirun ends the others and says so; told not to (it then ends with 0), each of them does.
for recovery in "" --enable-recovery; do
    rm -f "$work/kept"
    # shellcheck disable=SC2086
    mpirun $recovery -n 4 "$FERRY" train --data "$text" --nodes 2 --timeout 20 --steps 100000 --save "$work/kept" \
        --save-every 2 >"$work/out" 2>"$work/err" &
    job=$!
    if wait_for 60 test -s "$work/kept"; then
        begin=$(date +%s)
        kill -9 "$(cut -d' ' -f4 /proc/$job/task/$job/children)"
        wait $job && [ -z "$recovery" ] && problem "a job of which a process was killed ended with 0"
        [ $(($(date +%s) - begin)) -lt 40 ] || problem "it took longer than the deadline to end"
    else
        kill $job
        problem "no checkpoint after a minute: $(cat "$work/err")"
    fi
done
for rank in 0 1 2; do
    grep -q "rank $rank: " "$work/err" || problem "rank $rank ended without a word: $(cat "$work/err")"
done
goes_on "$work/kept" mpirun -n 4 "$FERRY" train --nodes 2
finish
