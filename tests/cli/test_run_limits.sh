# SPDX-License-Identifier: Apache-2.0
# Limits of the process: what is short is named, on all ranks and soon, and nothing half-made stays.
. tests/cli/lib.sh

in=$work/in.safetensors
out=$work/out.safetensors
"$TENSORS" make "$in" || problem "no input"

# Rank 0 has a descriptor for every other rank.
few_files() { (ulimit -n 20 && exec timeout 30 "$FERRY" run --processes --ranks 32 --timeout 100 "$in" "$out"); }
expect 1 few_files
says err "rank 0 cannot accept the connection of a rank: Too many open files"
grep -v "Too many open files" "$work/err" && problem "a rank says something else"

small_files() { (ulimit -f 4 && exec "$FERRY" run "$in" "$out"); }
expect 1 small_files
says err "cannot be written: File too large"
[ -z "$(find "$work" -name 'out.safetensors*')" ] || problem "a file was left"
finish
