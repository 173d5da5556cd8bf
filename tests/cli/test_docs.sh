# SPDX-License-Identifier: Apache-2.0
# Runs every `sh` block of the documentation, in a copy of the tree whose build folder has this build's entries, but for
# the log of the tests, of which this is one. Long commands are made short by the variables that the Makefile reads: no
# parts of `make check`, two steps of training. Builds for checkers skip it: what the blocks run has its own tests.
. tests/cli/lib.sh

[ -z "$checkers" ] || skip "a build for checkers"
FERRY_BUILD=$(realpath "$FERRY_BUILD")
export CHECK_PARTS="" TRAIN_OPTIONS="--steps 2"
unset MAKEFLAGS MAKELEVEL MFLAGS BUILD

# For the block that asks pkg-config.
expect 0 cmake --install "$FERRY_BUILD" --prefix "$work/prefix"
PKG_CONFIG_PATH=$(dirname "$(find "$work/prefix" -name ferry.pc)")
export PKG_CONFIG_PATH

mkdir "$work/tree"
for entry in * .clang-format; do
    case $entry in
    build* | out) ;;
    *) cp -R "$entry" "$work/tree/" ;;
    esac
done
mkdir "$work/tree/build"
ln -s "$FERRY_BUILD"/* "$work/tree/build/"
rm -f "$work/tree/build/Testing"
cd "$work/tree" || exit 1

blocks=0
for page in *.md docs/*.md data/*.md examples/*.md tests/golden/*.md; do
    rm -f "$work"/block.*
    awk -v to="$work/block." '/^```sh$/ {on = 1; n++; next} /^```$/ {on = 0} on {print > (to n)}' "$page"
    for block in "$work"/block.*; do
        [ -e "$block" ] || continue
        blocks=$((blocks + 1))
        before=$problems
        expect 0 sh -e "$block"
        [ "$problems" -eq "$before" ] || sed "s#^#$page: #" "$block"
    done
done
[ "$blocks" -ge 8 ] || problem "only $blocks blocks of commands found in the documentation"
finish
