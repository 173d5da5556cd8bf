# SPDX-License-Identifier: Apache-2.0
# Runs every `sh` block of the documentation, line by line, and compiles and runs every `c` block that is a program.
# Long commands are made short by the variables that the Makefile reads: no parts of `make check` (this is one of
# them), two steps of training.
. tests/cli/lib.sh

root=$(pwd)
export BUILD="$FERRY_BUILD" CHECK_PARTS="" TRAIN_OPTIONS="--steps 2"
unset MAKEFLAGS MAKELEVEL MFLAGS

# The blocks of language $2 in file $1; each ends with a line that holds ---- alone.
blocks() { awk -v start="\`\`\`$2" '$0 == start {on = 1; next} on && /^```$/ {on = 0; print "----"; next} on' "$1"; }

# Paths of the build are this build's; what a command writes goes to the working folder.
localize() {
    sed -e "s#build/ferry#$FERRY#g" -e "s#--test-dir build#--test-dir $FERRY_BUILD#g" \
        -e "s# \(result\|model\)\.safetensors# $work/\1.safetensors#g"
}

ran=0
for page in README.md CONTRIBUTING.md CHANGELOG.md docs/*.md data/*.md tests/golden/*.md; do
    blocks "$page" sh | grep -v -e '^----$' -e '^#' -e '^$' | localize >"$work/commands"
    while IFS= read -r line <&3; do
        expect 0 sh -c "$line"
        ran=$((ran + 1))
    done 3<"$work/commands"

    blocks "$page" c | awk -v folder="$work" '$0 == "----" {n++; next} {print > (folder "/block" n + 0 ".c")}'
    for source in "$work"/block*.c; do
        [ -e "$source" ] || continue
        expect 0 cc -std=c99 -Wall -Wextra -Werror -I"$root/include" "$source" "$FERRY_BUILD/libferry.a" \
            ${FERRY_LINK-} -lm -lpthread -ldl -o "$work/program"
        expect 0 "$work/program"
        rm -f "$source"
        ran=$((ran + 1))
    done
done
[ "$ran" -ge 8 ] || problem "only $ran commands and programs found in the documentation"
finish
