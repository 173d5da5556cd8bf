# SPDX-License-Identifier: Apache-2.0
# `ferry info` says what it should, for people and as JSON.
. tests/cli/lib.sh

expect 0 "$FERRY" info
silent err
for label in ferry build cpu features kernels chosen /dev/shm mpi nccl; do
    grep -q "^$label " "$work/out" || problem "ferry info has no line '$label'"
done
says out portable
expect 0 "$FERRY" info --json
[ "$(wc -l <"$work/out")" -eq 1 ] || problem "ferry info --json is not one line"
for key in version build compiler type cuda cpu processors features isas isa shm_free_bytes gpus mpi nccl missing; do
    says out "\"$key\":"
done
# A build with the MPI module has MPI's name; one without says what is missing.
if [ -e "$FERRY_BUILD/ferry_mpi.so" ]; then
    grep -Eq '"mpi": *"[A-Za-z]' "$work/out" || problem "the MPI module is built, but no MPI is named"
else
    says out "MPI, for a training on several machines"
fi
finish
