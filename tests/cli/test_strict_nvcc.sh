# SPDX-License-Identifier: Apache-2.0
# tools/strict_nvcc.sh refuses a kernel whose products the compiler has serialized; else it is as the compiler itself.
. tests/cli/lib.sh

# compiler CODE TEXT: one that says so and ends so.
compiler() {
    printf '#!/bin/sh\necho "$@"\necho "%s" >&2\nexit %s\n' "$2" "$1" >"$work/compiler"
    chmod +x "$work/compiler"
}

compiler 0 "ptxas info : (C7511) wgmma.mma_async instructions are serialized due to insufficient register resources"
expect 1 tools/strict_nvcc.sh "$work/compiler" -c kernel.cu
says err "(C7511)"
says err "products are serialized"
compiler 0 "ptxas info : Used 168 registers"
expect 0 tools/strict_nvcc.sh "$work/compiler" -c "two words.cu"
says out "-c two words.cu"
says err "Used 168 registers"
compiler 3 "error"
expect 3 tools/strict_nvcc.sh "$work/compiler"
finish
