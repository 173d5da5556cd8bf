# SPDX-License-Identifier: Apache-2.0
# Every command explains itself, and a bad command line ends with 2 and a message.
. tests/cli/lib.sh

expect 0 "$FERRY" --version
says out "ferry $(sed -n 's/^project(ferry VERSION \([0-9.]*\).*/\1/p' CMakeLists.txt)"
expect 0 "$FERRY" --help
silent err
commands=$(sed -n 's/^  \([a-z]*\)  *[a-z].*/\1/p' "$work/out" | grep -v ferry)
cp "$work/out" "$work/help"
for words in help "help help"; do
    # shellcheck disable=SC2086
    expect 0 "$FERRY" $words
    silent err
    cmp "$work/out" "$work/help" || problem "ferry $words is not ferry --help"
done
says out "ferry help COMMAND"
for command in train run check info; do
    echo "$commands" | grep -qx $command || problem "ferry --help does not list $command"
done
for command in $commands; do
    expect 0 "$FERRY" "$command" --help
    silent err
    says out "Usage: ferry $command"
    says out "Options:"
    says out "Examples:"
    [ "$(awk 'length > 100' "$work/out" | wc -l)" -eq 0 ] || problem "$command --help is wider than 100 columns"
    cp "$work/out" "$work/help"
    expect 0 "$FERRY" help "$command"
    silent err
    cmp "$work/out" "$work/help" || problem "ferry help $command is not ferry $command --help"
    expect 2 "$FERRY" "$command" --no-such-option
    says err "ferry $command: unknown option '--no-such-option'"
    says err "Try: ferry $command --help"
    silent out
done

# Training by make builds the command and no test.
expect 0 env -u MAKEFLAGS -u MAKELEVEL -u MFLAGS make -n train BUILD="$FERRY_BUILD"
says out "--target ferry"
! grep -vF -- "--target ferry" "$work/out" | grep -q -- --build || problem "make train builds more: $(cat "$work/out")"

# The manual page has every option of every command, is the same every time, and roff has nothing to say about it.
expect 0 "$FERRY" --man
silent err
cp "$work/out" "$work/ferry.1"
expect 0 "$FERRY" --man
cmp "$work/out" "$work/ferry.1" || problem "two manual pages"
for command in $commands; do
    "$FERRY" "$command" --help | sed -n 's/^  \(--[a-z-]*\).*/\1/p' >"$work/options"
    awk -v "command=$command" '/^\.S[SH]/ {on = $2 == "ferry" && $3 == command} on' "$work/ferry.1" |
        sed -n 's/^\.B \(\\-\\-[^ ]*\).*/\1/p' | tr -d '\\' | diff "$work/options" - ||
        problem "the manual page and --help of $command differ"
done
if command -v groff >/dev/null 2>&1; then
    expect 0 groff -man -Tutf8 -ww "$work/ferry.1"
    silent err
fi

expect 2 "$FERRY"
says err "Usage: ferry COMMAND"
expect 2 "$FERRY" no-such-command
says err "unknown command 'no-such-command'"
expect 2 "$FERRY" help no-such-command
says err "unknown command 'no-such-command'"
expect 2 "$FERRY" help info surplus
says err "unexpected argument 'surplus'"
silent out
expect 2 "$FERRY" info surplus
says err "unexpected argument 'surplus'"
finish
