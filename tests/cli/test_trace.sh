# SPDX-License-Identifier: Apache-2.0
# `ferry trace` on files and shapes, as threads and processes, and what it refuses. Timelines are read by test_trace.c.
. tests/cli/lib.sh

json=$work/timeline.json
svg=$work/timeline.svg
for way in \
    "--input tests/golden/plain.in.safetensors --ranks 2" \
    "--input tests/golden/shared_limit.in.safetensors --backward --processes" \
    "--shape 96,40,5,2,50 --ranks 3 --backward" \
    "--shape 64,64,4,2,100 --ranks 2 --processes --ring 64 --context recompute --backward --comm-workers 2"; do
    rm -f "$json" "$svg"
    # shellcheck disable=SC2086
    expect 0 "$FERRY" trace $way --out "$json" --svg "$svg"
    silent err
    for phase in schedule pull compute push sum idle; do
        grep -q "^$phase  *[0-9]" "$work/out" || problem "$way: no line '$phase'"
    done
    # The caller's time has no share, so the shares add up to the whole.
    awk '$1 ~ /^(schedule|pull|compute|push|sum|idle)$/ {for (i = 2; i <= NF; i++) if (sub(/%$/, "", $i)) all += $i}
        END {exit !(all > 99.4 && all < 100.6)}' "$work/out" || problem "$way: shares: $(cat "$work/out")"
    ! grep -q '^schedule.*%' "$work/out" || problem "$way: a share of the schedule"
    ! grep -q incomplete "$work/out" || problem "$way: incomplete"
    says out "wrote $json, $svg"
    grep -q '"traceEvents":\[' "$json" || problem "$way: no events"
    grep -q '^</svg>$' "$svg" || problem "$way: no picture"
done
if command -v xmllint >/dev/null 2>&1; then expect 0 xmllint --noout "$svg"; fi

# The report alone.
expect 0 "$FERRY" trace --shape 64,64,4,2,100
says out "H 64, I 64, E 4, K 2, T 100; 1 rank (threads)"
silent err
! grep -q wrote "$work/out" || problem "no file was asked for"
expect 0 "$FERRY" trace --shape 64,64,4,2,100 --svg "$svg"
grep -qx "wrote $svg" "$work/out" || problem "the file is not named: $(cat "$work/out")"

# More than any machine has: said before anything is drawn.
for way in "" "--backward --ranks 2"; do
    # shellcheck disable=SC2086
    expect 1 timeout 20 "$FERRY" trace --shape 65536,65536,4096,1,1 $way
    says err "GB of memory, "
    says err "GB are available"
    silent out
done

# Events that find no room are said.
expect 0 "$FERRY" trace --shape 64,64,4,2,100 --events 3 --out "$json" --svg "$svg"
says err "events found no room"
grep -q '^incomplete: [1-9][0-9]* events found no room' "$work/out" || problem "the table hides lost events"
grep -q '"lost_events":[1-9]' "$json" || problem "the file does not say that events were lost"

expect 2 "$FERRY" trace
says err "give --shape or --input"
expect 2 "$FERRY" trace --shape 64,64,4,2,100 --input tests/golden/plain.in.safetensors
expect 2 "$FERRY" trace --shape 64,64,4,2
expect 2 "$FERRY" trace --shape 64,64,4,2,100 --threads --processes
expect 2 "$FERRY" trace --shape 64,64,4,2,100 --events 0
expect 2 "$FERRY" trace --shape 64,64,4,2,100 --fan-out each
says err "--fan-out is for GPUs: --backend cuda"
rm -f "$json"
for same in "$json" "$work/./timeline.json"; do
    expect 2 "$FERRY" trace --shape 64,64,4,2,100 --out "$json" --svg "$same"
    says err "are the same file"
    [ ! -e "$json" ] || problem "a refused trace left a file"
done
cp tests/golden/plain.in.safetensors "$work/in.safetensors"
for option in --out --svg; do
    expect 2 "$FERRY" trace --input "$work/in.safetensors" $option "$work/in.safetensors"
    says err "are the same file"
done
cmp tests/golden/plain.in.safetensors "$work/in.safetensors" || problem "the inputs were overwritten"
expect 2 "$FERRY" trace --input tests/golden/forward.in.safetensors --backward
says err "--backward needs the tensor 'dout'"
expect 1 "$FERRY" trace --input "$work/absent.safetensors"
for option in --out --svg; do
    expect 1 "$FERRY" trace --shape 64,64,4,2,100 $option "$work/absent/file"
    says err "cannot be written"
done

# What is there and not of their kind stays, said before any work; their own kind and an empty file may go.
"$FERRY" trace --shape 64,64,4,2,100 --out "$json" --svg "$svg" >/dev/null || problem "no timeline"
echo "of somebody" >"$work/notes"
cp docs/pipeline.svg "$work/drawing.svg" || problem "no picture of another kind"
for place in "$work/notes" "$work/drawing.svg" "$work" /dev/full "$json" "$svg"; do
    for option in --out --svg; do
        [ $option = --out ] && own=$json || own=$svg
        [ "$place" = "$own" ] && continue
        [ ! -f "$place" ] || cp "$place" "$work/kept"
        expect 1 "$FERRY" trace --shape 64,64,4,2,100 $option "$place"
        says err "$option: $place is there and is no "
        silent out
        [ ! -f "$place" ] || cmp "$place" "$work/kept" || problem "$place was replaced"
    done
done
for option in --out --svg; do
    [ $option = --out ] && own=$json || own=$svg
    expect 2 "$FERRY" trace --shape 64,64,4,2,100 $option ""
    says err "$option: the name of the file is empty"
    silent out
    : >"$work/notes"
    for place in "$own" "$work/notes"; do
        expect 0 "$FERRY" trace --shape 96,64,4,2,100 $option "$place"
        grep -q 'H 96' "$place" || problem "$place was not replaced"
    done
    # Room that ends while the file is written.
    expect 1 sh -c 'ulimit -f 8; exec "$@"' small "$FERRY" trace --shape 64,64,4,2,100 $option "$own"
    says err "$own: cannot be written"
done
finish
