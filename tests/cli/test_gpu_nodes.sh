# SPDX-License-Identifier: Apache-2.0
# Several nodes on GPUs: the same bytes through NCCL and through host memory, as threads and as processes; a process
# that dies is seen by the others, and the training goes on from its checkpoint. Without a GPU it is skipped;
# test_gpu_run.sh has the sentence.
. tests/cli/lib.sh
. tests/cli/train_lib.sh

needs_gpu
export CUDA_DEVICE_MAX_CONNECTIONS=32 # ranks share a GPU

train() { "$FERRY" train --backend cuda --data "$text" "$@"; }

expect 0 env CUDA_VISIBLE_DEVICES=0 "$FERRY" train --backend cuda --data "$text" --nodes 2 --ranks 1 --steps 20 \
    --save "$work/host"
says out "joined through host memory"
expect 2 env CUDA_VISIBLE_DEVICES=0 "$FERRY" train --backend cuda --nodes 2 --ranks 2
says err "need a GPU each"
if [ "$gpus" -lt 2 ] || grep -q '"nccl":null' "$work/info"; then
    echo "one GPU, or no NCCL: through host memory only"
    finish
fi

for how in threads processes; do
    expect 0 train --nodes 2 --ranks 1 --steps 20 --$how --save "$work/$how"
    says out "joined through NCCL"
    cmp "$work/host" "$work/$how" || problem "$how: other bytes than through host memory"
done

"$FERRY" train --backend cuda --data "$text" --nodes 2 --ranks 1 --processes --timeout 60 --steps 100000000 \
    --save "$work/kept" --save-every 50 >"$work/out" 2>"$work/err" &
job=$!
if wait_for 60 test -s "$work/kept"; then
    begin=$(date +%s)
    kill -9 "$(cut -d' ' -f2 /proc/$job/task/$job/children)"
    wait $job && problem "a training of which a process was killed ended with 0"
    [ $(($(date +%s) - begin)) -lt 30 ] || problem "it took until the deadline to end"
    grep -q "rank 0: " "$work/err" || problem "rank 0 ended without a word: $(cat "$work/err")"
    goes_on "$work/kept" "$FERRY" train --backend cuda --nodes 2 --ranks 1
else
    kill $job
    problem "no checkpoint after a minute: $(cat "$work/err")"
fi
finish
