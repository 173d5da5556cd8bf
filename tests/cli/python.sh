# SPDX-License-Identifier: Apache-2.0
# For the scripts that run Python tests: `python_tests MODULES FILE...` runs pytest on them with the first Python that
# has these modules and pytest (FERRY_PYTHON names one to try first), or skips.
python_tests() {
    modules=$1
    shift
    case $checkers in
    *-fsanitize*)
        echo "skipped: a library with a sanitizer does not load into Python"
        exit 77
        ;;
    esac
    for python in ${FERRY_PYTHON-} python3 /usr/bin/python3 none; do
        "$python" -c "import pytest, $modules" 2>/dev/null && break
    done
    if [ "$python" = none ]; then
        echo "skipped: no python3 with pytest, $modules"
        exit 77
    fi
    FERRY_LIBRARY=$FERRY_BUILD/libferry.so "$python" -m pytest -q -rs -p no:cacheprovider "$@" ||
        problem "pytest ended with $?"
}
