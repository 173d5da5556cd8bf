# SPDX-License-Identifier: Apache-2.0
# Every program of examples/ builds as C99 without a warning, against either library, and does what it says.
. tests/cli/lib.sh

strict="-std=c99 -pedantic-errors -Wall -Wextra -Werror"
needs=$(sed -n 's/^Libs.private: //p' "$FERRY_BUILD/ferry.pc")
for source in examples/*.c; do
    name=$(basename "$source" .c)
    [ "$name" = mpi ] && continue # test_mpi_example.sh
    # shellcheck disable=SC2086
    expect 0 cc $strict $checkers -Iinclude -o "$work/$name" "$source" "$FERRY_BUILD/libferry.a" $needs
    # shellcheck disable=SC2086
    expect 0 cc $strict $checkers -Iinclude -o "$work/$name.shared" "$source" -L"$FERRY_BUILD" -lferry \
        -Wl,-rpath,"$(realpath "$FERRY_BUILD")" -lpthread
    silent err
done

for name in forward forward.shared; do
    expect 0 "$work/$name"
    grep -Eq '^token 0:( [0-9a-f]{4}){16}$' "$work/out" || problem "$name: $(cat "$work/out")"
    cp "$work/out" "$work/$name.txt"
done
cmp -s "$work/forward.txt" "$work/forward.shared.txt" || problem "the two libraries give different results"

expect 0 "$work/backward"
says out "step  0  loss"
expect 0 "$work/ranks_threads"
says out "4 ranks and 1 rank: the same bits"

# The loop of examples/README.md; a checksum that does not depend on the number of ranks.
for ranks in 1 2 4 10; do
    rank=0
    pids=
    while [ "$rank" -lt "$ranks" ]; do
        RANK=$rank WORLD_SIZE=$ranks FERRY_JOB=examples-$$-$ranks "$work/ranks_processes" >>"$work/sums.$ranks" &
        pids="$pids $!"
        rank=$((rank + 1))
    done
    for pid in $pids; do wait "$pid" || problem "ranks_processes: a rank of $ranks ended with $?"; done
    cmp "$work/sums.1" "$work/sums.$ranks" || problem "$ranks ranks: $(cat "$work/sums.$ranks")"
done
grep -Eq '^checksum [0-9a-f]{16}$' "$work/sums.1" || problem "no checksum: $(cat "$work/sums.1")"
finish
