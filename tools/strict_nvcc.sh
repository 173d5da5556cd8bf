#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# tools/strict_nvcc.sh COMPILER ARGUMENT...: compiles, and ends with 1 where the compiler only remarks that it has
# serialized the products of a kernel (each waits for the one before, for want of registers): no warning option makes
# that an error, the results stay right, and the kernel takes a quarter longer.
set -u
said=$(mktemp) || exit 1
trap 'rm -f "$said"' EXIT
"$@" 2>"$said"
code=$?
cat "$said" >&2
[ "$code" -eq 0 ] || exit "$code"
if grep -q 'wgmma.mma_async instructions are serialized' "$said"; then
    echo "strict_nvcc: products are serialized; give the kernel fewer values to hold across its products" >&2
    exit 1
fi
