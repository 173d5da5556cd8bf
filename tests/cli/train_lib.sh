# SPDX-License-Identifier: Apache-2.0
# For the scripts that train: a text, and a job that is killed and goes on. Sourced after lib.sh.
text=$work/text # short, so that losses on its held-out part take no time
head -c 40000 data/pride-and-prejudice.txt >"$text"

# The step that a checkpoint has done.
step_of() { grep -ao '"step": *"[0-9]*"' "$1" | head -n 1 | tr -dc 0-9; }

# wait_for SECONDS COMMAND...: until the command succeeds.
wait_for() {
    tries=$(($1 * 20))
    shift
    until "$@"; do
        tries=$((tries - 1))
        [ "$tries" -gt 0 ] || return 1
        sleep 0.05
    done
}

# losses FILE: what a training with --json said of each step's losses.
losses() { sed -n 's/.*"event": *"progress", *\("step".*\), *"tokens_per_second.*/\1/p' "$1"; }

# goes_on CHECKPOINT RUN...: RUN trains with the options that follow it. Resumed from the checkpoint it says the same
# losses and leaves the same bytes as a training that was never disturbed.
goes_on() {
    checkpoint=$1
    shift
    done=$(step_of "$checkpoint")
    steps=$((done + 2))
    expect 0 "$@" --data "$text" --steps $steps --json --save "$work/undisturbed"
    losses "$work/out" >"$work/losses"
    expect 0 "$@" --data "$text" --steps $steps --json --resume "$checkpoint" --save "$work/resumed"
    losses "$work/out" | grep "\"step\": *$steps," >"$work/last"
    [ -s "$work/last" ] || problem "the resumed training said no loss of step $steps"
    grep -qxF -f "$work/last" "$work/losses" || problem "other losses after step $done: $(cat "$work/last")"
    cmp "$work/undisturbed" "$work/resumed" || problem "other bytes after going on from step $done"
}
