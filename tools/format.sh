#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Formats every C and C++ file of the tree by .clang-format; with --check, says which ones differ and ends with 1.
set -u
if ! command -v clang-format >/dev/null 2>&1; then
    echo "format: clang-format is missing: apt-get install clang-format" >&2
    exit 2
fi
mode=-i
[ "${1-}" = --check ] && mode="--dry-run --Werror"
git ls-files -z '*.c' '*.cc' '*.h' '*.cu' '*.cuh' | xargs -0 clang-format $mode
