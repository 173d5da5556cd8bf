# SPDX-License-Identifier: Apache-2.0
# For the scripts that run Python tests: `python_tests MODULES FILE...` runs pytest on them with the first Python that
# has these modules and pytest (FERRY_PYTHON names one to try first), or skips.
python_tests() {
    modules=$1
    shift
    case $checkers in
    *-fsanitize*) skip "a library with a sanitizer does not load into Python" ;;
    esac
    for python in ${FERRY_PYTHON-} python3 /usr/bin/python3 none; do
        "$python" -c "import pytest, $modules" 2>/dev/null && break
    done
    [ "$python" != none ] || skip "no python3 with pytest, $modules (FERRY_PYTHON may name one)"
    FERRY_LIBRARY=$FERRY_BUILD/libferry.so "$python" -m pytest -q -rs -p no:cacheprovider "$@" ||
        problem "pytest ended with $?"
}
