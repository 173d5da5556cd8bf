# SPDX-License-Identifier: Apache-2.0
# For the scripts beside this file, which run in the folder of the sources: FERRY and TENSORS name the command and
# tensor_tool. Sourcing it makes a folder $work that goes away at the end; `finish` ends the script.
set -u
: "${FERRY:=build/ferry}" "${TENSORS:=build/tensor_tool}" "${FERRY_BUILD:=build}"
work=$(mktemp -d) || exit 1
trap 'rm -rf "$work"' EXIT
problems=0

problem() {
    echo "FAILED: $*"
    problems=$((problems + 1))
}

# expect CODE COMMAND...: runs it with its output in $work/out and $work/err, and wants that exit code.
expect() {
    wanted=$1
    shift
    "$@" >"$work/out" 2>"$work/err"
    code=$?
    [ "$code" -eq "$wanted" ] && return
    problem "exit code $code, expected $wanted: $*"
    sed 's/^/    /' "$work/out" "$work/err" | head -n 20
}

# says out|err TEXT: the last expected command's output has the text; silent out|err: it has none.
says() { grep -qF -- "$2" "$work/$1" || problem "no '$2' in: $(head -n 3 "$work/$1")"; }
silent() { [ ! -s "$work/$1" ] || problem "expected nothing on std$1, got: $(head -n 3 "$work/$1")"; }

# What a program needs to link with this build's libraries: their sanitizer, their counters of lines.
checkers=$(sed -n -e 's/^FERRY_SANITIZE:STRING=\(..*\)$/-fsanitize=\1/p' -e 's/^FERRY_COVERAGE:BOOL=ON$/--coverage/p' \
    "$FERRY_BUILD/CMakeCache.txt" 2>/dev/null)

finish() {
    [ "$problems" -eq 0 ] || echo "$problems problems"
    exit $((problems > 0))
}

# skip REASON: ends the script, which counts as skipped when it has found no problem.
skip() {
    [ "$problems" -eq 0 ] || finish
    echo "skipped: $*"
    exit 77
}

# find_gpus: what `ferry info` knows in $work/info, the number of GPUs that this build can use in $gpus.
find_gpus() {
    "$FERRY" info --json >"$work/info" || problem "ferry info"
    gpus=$(grep -o '"compute_capability"' "$work/info" | wc -l)
    ! grep -q '"cuda":false' "$work/info" || gpus=0
}
no_gpu="no GPU, or no CUDA backend in this build"
needs_gpu() {
    find_gpus
    [ "$gpus" -gt 0 ] || skip "$no_gpu"
}
