# SPDX-License-Identifier: Apache-2.0
# `make dist`: equal bytes twice, and what it packs builds and runs by itself.
. tests/cli/lib.sh

if ! git rev-parse --verify -q HEAD >/dev/null 2>&1 || [ "$(git rev-parse --show-prefix)" != "" ]; then
    skip "not a checkout"
fi
[ -z "$checkers" ] || skip "a build for checkers"
TENSORS=$(realpath "$TENSORS")
version=$("$FERRY" --version | sed 's/ferry //')
expect 0 tools/dist.sh "$work/one"
says out "$work/one/ferry-$version.tar.gz"
expect 0 tools/dist.sh "$work/two"
cmp "$work/one/ferry-$version.tar.gz" "$work/two/ferry-$version.tar.gz" || problem "two archives differ"

expect 0 tar -xzf "$work/one/ferry-$version.tar.gz" -C "$work"
cd "$work/ferry-$version" || exit 1
expect 0 cmake -S . -B build -DFERRY_CUDA=OFF -DFERRY_TESTS=OFF
expect 0 cmake --build build -j 2
expect 0 build/ferry run --ranks 2 tests/golden/plain.in.safetensors "$work/out.safetensors"
expect 0 "$TENSORS" near "$work/out.safetensors" tests/golden/plain.out.safetensors 1e-3
expect 0 build/ferry train --steps 1
finish
