# SPDX-License-Identifier: Apache-2.0
# `ferry tune` on the CPU, from measuring to a layer that uses the result: the file, its list, what ferry plan says of
# it, and a run's bits with and without it.
. tests/cli/lib.sh

file=$work/tune
shape=64,32,4,2,150
expect 0 "$FERRY" tune --shape $shape --quick --backward --ranks 2 --tune-file "$file"
silent err
says out "minibatch_rows"
says out "best: "
[ "$(wc -l <"$file")" -eq 1 ] || problem "not one line in the file"

# The rule is measured once more against a winner, and never against itself.
for _ in 1 2 3 4; do
    expect 0 "$FERRY" tune --shape $shape --quick --tune-file "$work/again"
    if grep -v "^again" "$work/out" | grep "  <$" | grep -qv "by rule  <$"; then
        says out "again "
    else
        grep "^again" "$work/out" && problem "the rule was measured against itself: $(cat "$work/out")"
        says out "nothing was faster by more than the scatter"
    fi
done
expect 0 "$FERRY" tune --shape $shape --quick --tune-file "$file" --json
[ "$(wc -l <"$work/out")" -eq 1 ] || problem "--json is not one line"
expect 0 "$FERRY" tune --shape $shape --quick --tune-file "$file" --processes
[ "$(wc -l <"$file")" -eq 2 ] || problem "a second result of the same layer did not replace the first"

# A forged result, for the workers that ferry run has.
expect 0 "$FERRY" plan --shape $shape --json --tune-file ""
says out '"minibatch":"by rule"'
compute=$(grep -o '"compute_workers":[0-9]*' "$work/out" | head -n 1 | cut -d: -f2)
grep "ranks=1 " "$file" | sed "s/workers=[0-9]* ranks/workers=$((1 + compute)) ranks/
    s/minibatch_rows=[0-9]*/minibatch_rows=64/" >"$work/forged"
echo "somebody else's line" >>"$work/forged"
expect 0 "$FERRY" plan --shape $shape --tune-file "$work/forged"
says out "minibatch 64,"
says out "minibatch tuned"
expect 0 "$FERRY" plan --shape $shape --tune-file "$work/forged" --minibatch 128
says out "minibatch given"
expect 0 env FERRY_TUNE_FILE="$work/forged" "$FERRY" plan --shape $shape
says out "minibatch tuned"
expect 0 "$FERRY" tune --list --tune-file "$work/forged"
says out "minibatch_rows 64"
says out " workers, 1 rank; H 64"
! grep -q "no entries" "$work/out" || problem "entries are denied"
says out "line 2: no entry of this version; layers pass it over: somebody else's line"

in=$work/in.safetensors
"$TENSORS" make "$in" N=150 K=2 H=64 I=32 E=4 dout=1 || problem "no input"
expect 0 "$FERRY" run --json --tune-file "" "$in" "$work/rule.safetensors"
says out '"tuned":0'
expect 0 "$FERRY" run --json --tune-file "$work/forged" "$in" "$work/tuned.safetensors"
says out '"minibatch_rows":64'
says out '"tuned":1'
"$TENSORS" equal "$work/rule.safetensors" "$work/tuned.safetensors" || problem "a tuned layer has other bits"

# The command gives the workers itself: an entry's are for callers that leave them open, in a run and in its plan.
sed "s/comm_workers=[0-9]*/comm_workers=2/" "$work/forged" >"$work/workers"
grep -q "comm_workers=2" "$work/workers" || problem "an entry without workers"
expect 0 "$FERRY" run --json --tune-file "$work/workers" "$in" "$work/tuned.safetensors"
says out '"comm_workers":1'
expect 0 "$FERRY" plan --shape $shape --json --tune-file "$work/workers"
says out '"comm_workers":1'

expect 2 "$FERRY" tune --tune-file "$file"
says err "give --shape"
expect 2 "$FERRY" tune --shape $shape --tune-file ""
says err "no tune file"
expect 1 "$FERRY" tune --shape 16,16,2,1,4 --quick --tune-file /dev/null/tune
says err "/dev/null"
silent out
mkdir "$work/place"
expect 1 "$FERRY" tune --shape 16,16,2,1,4 --quick --tune-file "$work/place"
says err "not a plain file"
silent out
{ printf 'a \033[31m line\n' && cat "$file"; } >"$work/colours"
expect 0 "$FERRY" tune --list --tune-file "$work/colours"
says out "over: a ?[31m line"

# A path that somebody named: no folder is made, nobody's file gets a line.
expect 1 "$FERRY" tune --shape 16,16,2,1,4 --quick --tune-file "$work/typo/tune"
says err "typo: no folder for the tune file: No such file or directory"
[ ! -e "$work/typo" ] || problem "a folder was made"
cp README.md "$work/notes"
expect 1 "$FERRY" tune --shape 16,16,2,1,4 --quick --tune-file "$work/notes"
says err "notes: not a tune file"
silent out
cmp README.md "$work/notes" || problem "a file of something else was changed"
for path in notes absent; do
    for list in "$FERRY tune --list --tune-file $work/$path" \
        "env FERRY_TUNE_FILE=$work/$path $FERRY tune --list --json"; do
        # shellcheck disable=SC2086
        expect 1 $list
        silent out
        [ "$(wc -l <"$work/err")" -eq 1 ] || problem "not one sentence"
    done
    expect 0 "$FERRY" run --tune-file "$work/$path" "$in" "$work/tuned.safetensors"
    says err "--tune-file: $work/$path: "
done

# The usual place: its folders are made, and it may be missing.
expect 0 env -u FERRY_TUNE_FILE XDG_CACHE_HOME="$work/cache" "$FERRY" tune --list
says out "no entries: $work/cache/ferry/tune does not exist"
silent err
expect 0 env -u FERRY_TUNE_FILE XDG_CACHE_HOME="$work/cache" "$FERRY" tune --list --json
says out '"entries":[]'
expect 0 env -u FERRY_TUNE_FILE XDG_CACHE_HOME="$work/cache" "$FERRY" tune --shape 16,16,2,1,4 --quick
[ -s "$work/cache/ferry/tune" ] || problem "nothing at the usual place"
: >"$work/empty"
expect 0 "$FERRY" tune --list --tune-file "$work/empty"
says out "no entries: $work/empty has none"

# More than any machine has, or than a layer can: said before anything is drawn.
for way in "" "--ranks 2 --backward"; do
    # shellcheck disable=SC2086
    expect 1 timeout 20 "$FERRY" tune --shape 65536,65536,4096,1,1 $way --tune-file "$work/none"
    says err "the layers and their tensors need "
    says err " GB are available; give fewer ranks or a smaller shape"
    silent out
done
expect 1 timeout 20 "$FERRY" tune --shape 64,64,4096,2,1000000000 --tune-file "$work/none"
says err "expected less than 2^30 rows"
finish
