# SPDX-License-Identifier: Apache-2.0
# `ferry trace --backend cuda`: a timeline with every multiprocessor, for one and several ranks, and what does not fit.
# Without a GPU: only that it says so.
. tests/cli/lib.sh

json=$work/timeline.json
svg=$work/timeline.svg
find_gpus
if [ "$gpus" -eq 0 ]; then
    expect 1 "$FERRY" trace --backend cuda --shape 64,64,4,2,100
    says err "the CUDA backend: "
    silent out
    skip "$no_gpu"
fi

for way in "--ranks 1" "--ranks 1 --ring 256 --context recompute" "--ranks 2 --ring 512" "--ranks 3"; do
    rm -f "$json" "$svg"
    # shellcheck disable=SC2086
    expect 0 "$FERRY" trace --backend cuda --shape 512,264,8,4,600 --backward $way --out "$json" --svg "$svg"
    silent err
    for phase in schedule pull compute push sum; do
        grep -q "^$phase  *[1-9]" "$work/out" || problem "$way: no units of '$phase'"
    done
    for what in 'SM 0 feed' 'SM 3 pull 1' 'SM 3 multiply 2' '"schedule"' '"gate and up"' '"down"' \
        '"gradient of a weight"' '"sums of tokens"' '"wait: publication of the call by all ranks"'; do
        grep -q "$what" "$json" || problem "$way: no $what"
    done
    grep -q '"lost_events":0' "$json" || problem "$way: events were lost"
    grep -q '^</svg>$' "$svg" || problem "$way: no picture"
done
expect 0 "$FERRY" trace --backend cuda --shape 512,264,8,4,600 --events 3 --out "$json"
says err "events found no room"
finish
