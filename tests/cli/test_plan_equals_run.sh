# SPDX-License-Identifier: Apache-2.0
# What `ferry plan` counts from the ids equals what `ferry run` counts while it works: planned memory, counters, bytes
# per phase, operations and bytes between ranks, on random shapes. SEED and CASES choose others. The peak is the plan
# and a communicator of the size that the help says.
. tests/cli/lib.sh

in=$work/in.safetensors
out=$work/out.safetensors
seed=${SEED:-1} cases=${CASES:-50}
echo "seed $seed"

# Keys of an input and options of both commands, one case a line.
awk -v seed="$seed" -v cases="$cases" '
function below(n) { return int(rand() * n) }
function of(list) { count = split(list, words, " "); return words[1 + below(count)] }
function maybe(list) { word = of(list); return word == "-" ? "" : " " word }
BEGIN {
    srand(seed)
    for (i = 1; i <= cases; i++) {
        tokens = of("0 1 24 70 150 150")
        ranks = 1 + below(4)
        keys = "N=" tokens " K=" 1 + below(4) " H=" of("1 8 40 130") " I=" of("1 6 64 100") " E=" 1 + below(12)
        keys = keys " S=" of("0 0 5 32") " dout=" (below(5) > 0) " seed=" seed * 1000 + i " wide=" below(2)
        keys = keys maybe("- - - one=1") maybe("- - - - - - none=1")
        if (below(2)) {
            first = below(tokens + 1)
            keys = keys " split=" first "," tokens - first
            ranks = 2
        }
        knobs = "--ranks=" ranks " --comm-workers=" 1 + below(2) " --compute-workers=" 1 + below(2)
        knobs = knobs maybe("- --ring=64 --ring=64 --ring=100 --ring=256") maybe("- - --minibatch=1 --minibatch=128")
        knobs = knobs maybe("- --context=saved --context=recompute --context=64 --context=129")
        print keys "|" knobs
    }
}' >"$work/cases"

# Every counter and planned byte, totals and per rank, in the order in which both print them.
counted() {
    grep -oE '"(forward|backward)":\{[^{}]*\{[^{}]*\}\}|"plan":\{[^}]*\}|"planned_bytes":[0-9]*|"shape":\{[^}]*\}' "$1"
}
# The sum of the numbers behind a key.
sum_of() { grep -oE "\"$2\":[0-9]+" "$1" | awk -F: '{ sum += $2 } END { printf "%d", sum }'; }

number=0
while IFS='|' read -r keys knobs; do
    number=$((number + 1))
    # shellcheck disable=SC2086
    "$TENSORS" make "$in" $keys || problem "no input: $keys"
    # shellcheck disable=SC2086
    expect 0 "$FERRY" run --json $knobs "$in" "$out"
    counted "$work/out" >"$work/run"
    ranks=$(grep -oE '"rank":[0-9]+' "$work/out" | wc -l)
    # In the totals and in the ranks.
    over=$((($(sum_of "$work/out" peak_bytes) - $(sum_of "$work/out" planned_bytes)) / 2))
    if [ "$over" -le 0 ] || [ "$over" -gt $((ranks * (2000 + 200 * ranks))) ]; then
        problem "case $number: the peak of $ranks ranks is $over bytes over the plan"
    fi
    # Totals and ranks: every byte between ranks is there twice.
    between=$((($(sum_of "$work/out" pull_remote) + $(sum_of "$work/out" push_remote)) / 3))
    # shellcheck disable=SC2086
    expect 0 "$FERRY" plan --json --machine data/machines/h200.json $knobs --input "$in"
    counted "$work/out" >"$work/plan"
    [ -s "$work/run" ] || problem "nothing counted"
    cmp -s "$work/run" "$work/plan" || {
        problem "case $number: $keys | $knobs"
        diff "$work/run" "$work/plan" | head -n 6
    }
    links=$(grep -oE '"to":[0-9]+,"bytes":[0-9]+' "$work/out" | awk -F: '{ sum += $3 } END { printf "%d", sum }')
    [ "$links" -eq "$between" ] || problem "case $number: links have $links bytes, counters $between"
done <"$work/cases"
[ "$number" -eq "$cases" ] || problem "$number cases instead of $cases"
finish
