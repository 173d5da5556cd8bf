# SPDX-License-Identifier: Apache-2.0
# Every command explains itself, and a bad command line ends with 2 and a message.
. tests/cli/lib.sh

expect 0 "$FERRY" --version
says out "ferry $(sed -n 's/^project(ferry VERSION \([0-9.]*\).*/\1/p' CMakeLists.txt)"
expect 0 "$FERRY" --help
silent err
commands=$(sed -n 's/^  \([a-z]*\)  *[a-z].*/\1/p' "$work/out" | grep -v ferry)
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
    expect 2 "$FERRY" "$command" --no-such-option
    says err "ferry $command: unknown option '--no-such-option'"
    says err "Try: ferry $command --help"
    silent out
done

expect 2 "$FERRY"
says err "Usage: ferry COMMAND"
expect 2 "$FERRY" no-such-command
says err "unknown command 'no-such-command'"
expect 2 "$FERRY" info surplus
says err "unexpected argument 'surplus'"
finish
