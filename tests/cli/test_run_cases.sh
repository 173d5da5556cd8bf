# SPDX-License-Identifier: Apache-2.0
# `ferry run` on empty and one-sided inputs and on bad ids, and what --json says.
. tests/cli/lib.sh

in=$work/in.safetensors
out=$work/out.safetensors
for keys in "N=0" "N=0 split=0,0,0 S=8" "none=1" "none=1 S=8 split=0,24" "one=1" "dout=0" "E=2 split=6,6,6,6" \
    "N=1 K=1 E=1" "H=1 I=1 S=1"; do
    # shellcheck disable=SC2086
    "$TENSORS" make "$in" $keys || problem "no input"
    for mode in --threads --processes; do
        expect 0 "$FERRY" run $mode "$in" "$out"
        silent err
    done
done

# What it says to people; where the results are is said there alone.
"$TENSORS" make "$in" || problem "no input"
expect 0 "$FERRY" run "$in" "$out"
says out "knobs     1 rank (threads)"
grep -Eq '^forward +[0-9]+\.[0-9]{3} ms; .* 1 macrobatch, ' "$work/out" || problem "forward: $(cat "$work/out")"
says out "wrote     $out"
expect 0 "$FERRY" run --json --ranks 2 "$in" "$out"
! grep -q wrote "$work/out" || problem "--json with text"

# All slots on one expert, through a ring of one block: 240 rows in 4 macrobatches on one rank, 0 on the other.
"$TENSORS" make "$in" N=80 K=3 one=1 || problem "no input"
expect 0 "$FERRY" run --ranks 2 --ring 64 --context recompute --json "$in" "$out"
[ "$(wc -l <"$work/out")" -eq 1 ] || problem "--json is not one line"
says out '"macrobatches":4,"ring_high_water":64,"pulls":'
says out '"knobs":{"ranks":2,"mode":"threads","backend":"cpu"'
says out '"ring":64'
# What the ring still holds, one block, need not be computed again.
says out '"context":0'
says out '"recomputed_rows":176'
for key in recomputed_rows bytes schedule pull push sum planned_bytes peak_bytes forward backward ranks bad_ids; do
    says out "\"$key\":"
done
case $(cat "$work/out") in
*'"planned_bytes":0'* | *'"peak_bytes":0'*) problem "a rank planned or used no memory: $(cat "$work/out")" ;;
esac

expect 0 "$FERRY" run --ring 64 --context 128 --json "$in" "$out"
says out '"context":128,'
says out '"recomputed_rows":112,'
expect 0 "$FERRY" run --ring 64 --context saved --json "$in" "$out"
grep -q '"recomputed_rows":[1-9]' "$work/out" && problem "rows are recomputed in spite of --context saved"

# Bad ids: the result is there, and says what ids of -1 give.
"$TENSORS" make "$in" N=24 K=2 split=10,14 bad_token=13 bad_slot=1 || problem "no input"
rm -f "$out"
expect 1 "$FERRY" run "$in" "$out"
says err "1 expert id outside -1..5 counted as -1; the first is 13 on rank 1, token 3, slot 1"
[ -s "$out" ] || problem "bad ids: no output"
expect 1 "$FERRY" run --processes --json "$in" "$work/processes.safetensors"
says out '"bad_ids":{"count":1,"rank":1,"token":3,"slot":1,"id":13}'
cmp "$out" "$work/processes.safetensors" || problem "bad ids: threads and processes differ"

# A tensor that is no input is said and ignored.
sed 's/"dout":/"dxyz":/' "$in" >"$work/odd.safetensors"
expect 1 "$FERRY" run "$work/odd.safetensors" "$out"
says err "tensor 'dxyz' is not an input of a layer; ignored"
[ "$("$TENSORS" names "$out")" = "out BF16 24x32" ] || problem "forward only: $("$TENSORS" names "$out")"
finish
