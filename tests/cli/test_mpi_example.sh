# SPDX-License-Identifier: Apache-2.0
# examples/mpi.c builds as C99 without a warning, and gives the same checksum with any number of processes.
. tests/cli/lib.sh

{ command -v mpicc && command -v mpirun; } >/dev/null || skip "no mpicc and mpirun"
mpirun --version 2>&1 | grep -q "Open MPI" || skip "mpirun is not Open MPI's, whose options are used"
[ -z "$checkers" ] || skip "sanitizers would speak of MPI's own libraries"
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1

expect 0 mpicc -std=c99 -pedantic-errors -Wall -Wextra -Werror -Iinclude -o "$work/mpi" examples/mpi.c \
    -L"$FERRY_BUILD" -lferry -Wl,-rpath,"$(realpath "$FERRY_BUILD")"
silent err
for ranks in 1 2 4 8; do
    expect 0 mpirun --oversubscribe -n $ranks "$work/mpi"
    [ "$ranks" -gt 1 ] || cp "$work/out" "$work/one"
    cmp "$work/one" "$work/out" || problem "$ranks processes: $(cat "$work/out")"
done
grep -Eq '^checksum [0-9a-f]{16}$' "$work/one" || problem "no checksum: $(cat "$work/one")"
finish
