#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# tools/check_gpu.sh BUILD [OPTION]...: `ferry check` on the CUDA backend, where there is one and a GPU to run it on.
set -u
build=$1
shift
info=$("$build/ferry" info --json) || exit 1
case $info in
*'"cuda":false'*) why="this build has no CUDA backend" ;;
*'"gpus":[]'*) why="this machine has no GPU" ;;
*) why= ;;
esac
if [ -n "$why" ]; then
    echo "check-gpu: skipped: $why"
    echo "0 passed, 0 failed"
    exit 0
fi
exec "$build/ferry" check --backend cuda "$@"
