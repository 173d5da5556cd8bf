# SPDX-License-Identifier: Apache-2.0
# The public header alone is C99, C17 and C++, the shared library exports exactly what it declares, and sizes, offsets
# and numbers that programs were built with stay what they are (tests/abi/golden.txt).
. tests/cli/lib.sh

strict="-pedantic-errors -Wall -Wextra -Werror -fsyntax-only"
for language in c99 c17; do
    # shellcheck disable=SC2086
    expect 0 cc -std=$language $strict -x c include/ferry/ferry.h
done
if command -v c++ >/dev/null 2>&1; then
    for language in c++11 c++17; do
        # shellcheck disable=SC2086
        expect 0 c++ -std=$language $strict -x c++ include/ferry/ferry.h
    done
fi

# The header without comments and macros, one declaration a line.
cc -E -P -x c include/ferry/ferry.h | tr -s '\n\t ' ' ' | tr ';' '\n' >"$work/declarations"

# Functions.
library=$FERRY_BUILD/libferry.so
if command -v nm >/dev/null 2>&1 && [ -e "$library" ]; then
    nm -D --defined-only "$library" | sed -n 's/^[0-9a-f]* [^A] \(.*\)@@FERRY_0$/\1/p' | sort >"$work/versioned"
    nm -D --defined-only "$library" | sed 's/^[0-9a-f]* . //' | grep -v '^__[a-z]*san_' | sort >"$work/exported"
    { sed 's/$/@@FERRY_0/' "$work/versioned" && echo FERRY_0; } | sort | diff - "$work/exported" ||
        problem "the library exports more than its version FERRY_0"
    sed -n 's/.*visibility("default").*[ *]\(ferry_[a-z_0-9]*\) *(.*/\1/p' "$work/declarations" | sort >"$work/declared"
    diff "$work/declared" "$work/versioned" || problem "the library does not export what the header declares"
fi

# Data. Every line of the golden file is a constant expression and its value.
grep -v '^#' tests/abi/golden.txt >"$work/golden"
{
    printf '#include <ferry/ferry.h>\n#include <stdio.h>\nint main(void) {\n'
    sed 's/^\(.*\) -\{0,1\}[0-9]*$/printf("%s %lld\\n", "\1", (long long)(\1));/' "$work/golden"
    printf 'return 0;\n}\n'
} >"$work/abi.c"
expect 0 cc -std=c17 -Iinclude -o "$work/abi" "$work/abi.c"
"$work/abi" | diff "$work/golden" - || problem "programs built with an older header would break"

# Nothing is forgotten: every structure and field, every enumerator.
sed 's/ -\{0,1\}[0-9]*$//' "$work/golden" | sort >"$work/known"
{
    # Enumerators: the first word between commas inside enum braces.
    tr '\n' ';' <"$work/declarations" | grep -o 'enum [a-z_]*[ ]*{[^}]*}' | sed 's/^[^{]*{//; s/}//' | tr ',' '\n' |
        sed -n 's/^ *\(FERRY_[A-Z0-9_]*\).*/\1/p'
    # Structures: their fields up to the closing brace.
    awk '
        match($0, /typedef struct ferry_[a-z_]* *\{/) {
            name = substr($0, RSTART + 15, RLENGTH - 16)
            gsub(/ /, "", name)
            print "sizeof(" name ")"
            $0 = substr($0, RSTART + RLENGTH)
        }
        name && /^ *}/ {name = ""}
        name && match($0, /\( *\*[a-z_]+ *\) *\(/) {
            field = substr($0, RSTART, RLENGTH)
            gsub(/[^a-z_0-9]/, "", field)
            print "offsetof(" name ", " field ")"
            next
        }
        name {
            count = split($0, part, ",")
            for (i = 1; i <= count; i++) {
                sub(/(\[[0-9]*\])? *$/, "", part[i])
                sub(/.*[ *]/, "", part[i])
                if (part[i] != "") print "offsetof(" name ", " part[i] ")"
            }
        }' "$work/declarations"
} | sort >"$work/declared"
diff "$work/known" "$work/declared" || problem "tests/abi/golden.txt and the header name different things"
finish
