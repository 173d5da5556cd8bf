# SPDX-License-Identifier: Apache-2.0
# `ferry plan`: what it prints, machines, and bad command lines and files.
. tests/cli/lib.sh

h200="--machine data/machines/h200.json"
# shellcheck disable=SC2086
expect 0 "$FERRY" plan $h200
silent err
for label in layer knobs chosen memory busiest machine forward fwd+bwd; do
    grep -q "^$label " "$work/out" || problem "ferry plan has no line '$label'"
done
says out "kimi-slice: 2048 tokens over 1 rank x 6 slots, H 7168, I 2048, 6 experts"
says out "two waves of product tiles on NVIDIA H200 SXM: 2112 rows"
says out "floor 1.384 ms"
# shellcheck disable=SC2086
expect 0 "$FERRY" plan --json --ranks 2 --skew 1 --ring 64 --context recompute $h200
[ "$(wc -l <"$work/out")" -eq 1 ] || problem "--json is not one line"
for key in machine knobs shape minibatch_floor planned_bytes forward forward_floor forward_links backward \
    forward_backward_floor backward_links ranks link_bytes_without_fanout memory_bytes floor_seconds; do
    says out "\"$key\":"
done
expect 0 "$FERRY" plan --shape 64,64,4,2,100 --machine this
says out "products"
expect 0 "$FERRY" plan --shape mixtral-8x7b --scale 64 --ranks 3 --machine data/machines/gb300.json
says out "(peak)"

expect 2 "$FERRY" plan --shape mixtral-8x7b --pull-warps 2
# GPUs: memory of the CUDA layer, without a GPU.
if "$FERRY" info --json | grep -q '"cuda":true'; then
    expect 0 "$FERRY" plan --backend cuda --shape qwen3-30b-a3b --ranks 2
    says out "132 multiprocessors each, 0 of them for communication alone; 2 pulling warps, a row pulled once"
    expect 0 "$FERRY" plan --backend cuda --json --shape qwen3-30b-a3b --pull-warps 1 --fan-out each --comm-sms 4 \
        --sm-margin 12
    says out '"multiprocessors":120,"pull_warps":1,"fan_out":"each","comm_sms":4'
    says out '"pull_warps":"given"'
    expect 1 "$FERRY" plan --backend cuda --sm-margin 132
    says err "sm_margin is 132 of the 132 multiprocessors of rank 0, expected at most 131"
    expect 1 "$FERRY" plan --backend cuda --sm-margin 100 --comm-sms 32
    says err "comm_sms is 32 of the 32 multiprocessors"
    expect 2 "$FERRY" plan --backend cuda --machine this
else
    expect 1 "$FERRY" plan --backend cuda
    says err "this build does not have the CUDA backend"
fi

expect 2 "$FERRY" plan --shape nothing
says err "kimi-slice, glm5-slice"
expect 2 "$FERRY" plan --shape 64,64,4,5,100
says err "5 slots of a token cannot be different ones of 4 experts"
# Five numbers, one of which cannot be.
while read -r shape name least; do
    for command in plan trace; do
        expect 2 "$FERRY" $command --shape "$shape"
        says err "--shape: $name ("
        says err ") of '$shape' is out of range; expected $least to 2147483647"
        silent out
    done
done <<END
0,0,0,0,0 H 1
256,0,8,2,64 I 1
256,256,2147483648,2,64 E 1
256,256,8,-2,64 K 1
256,256,8,2,99999999999999999999 T 0
END
expect 2 "$FERRY" plan --shape 256,0,8,2
says err "or five numbers H,I,E,K,T"
# What cannot be is said before ids are drawn, which would take hours; what takes a second is announced on a terminal.
expect 1 timeout 20 "$FERRY" plan --shape 64,64,4096,2,1000000000 $h200
says err "expected less than 2^30 rows"
expect 2 timeout 20 "$FERRY" plan --shape 64,64,4096,2,100000000 --machine vax
drawn="plan --shape 64,64,1024,2,40000 $h200"
if script -qec true /dev/null >/dev/null 2>&1; then
    for json in "" --json; do
        expect 0 script -qec "$FERRY $drawn $json" "$work/typescript"
        if [ -z "$json" ]; then
            says out "ferry plan: drawing the ids of 40000 tokens over 1024 experts takes about 1 s"
        else
            ! grep -q drawing "$work/out" || problem "a remark beside the JSON object"
        fi
    done
fi
# shellcheck disable=SC2086
expect 0 "$FERRY" $drawn
silent err
expect 2 "$FERRY" plan --machine vax
expect 2 "$FERRY" plan --shape olmoe --input "$work/in"
says err "exclude each other"
expect 2 "$FERRY" plan --input "$work/in" --routing "$work/in"
echo '{"name": "half", "processors": 1}' >"$work/half.json"
expect 1 "$FERRY" plan --machine "$work/half.json"
says err "product_flop_per_s"
echo '{' >"$work/half.json"
for wrong in "$work/half.json" README.md; do
    expect 1 "$FERRY" plan --machine "$wrong"
    says err "ferry plan: $wrong: not a machine description"
done
expect 1 "$FERRY" plan --input "$work/absent" $h200
"$TENSORS" make "$work/in.safetensors" N=40 K=3 E=6 || problem "no input"
# An input of ferry run has ids and weights, so it serves as a routing too.
# shellcheck disable=SC2086
expect 0 "$FERRY" plan --shape 32,24,6,3,1 --routing "$work/in.safetensors" --ranks 3 $h200
says out "40 tokens over 3 ranks x 3 slots"
expect 2 "$FERRY" plan --shape 32,24,6,2,1 --routing "$work/in.safetensors"
says err "--shape 32,24,6,2,1 has 2 slots of a token, $work/in.safetensors has 3"
silent out
expect 2 "$FERRY" plan --routing "$work/in.safetensors"
says err "--shape kimi-slice has 6 slots of a token"
# shellcheck disable=SC2086
expect 1 "$FERRY" plan --shape 32,24,5,3,1 --routing "$work/in.safetensors" $h200
says err "expected -1 to 4"
finish
