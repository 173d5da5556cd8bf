# SPDX-License-Identifier: Apache-2.0
# The Python package beside PyTorch: tests/python with the first Python that has torch and pytest (FERRY_PYTHON names
# another one). The parts that need a newer torch, NumPy, or a GPU, are skips of pytest, which this prints.
. tests/cli/lib.sh

case $checkers in
*-fsanitize*)
    echo "skipped: a library with a sanitizer does not load into Python"
    exit 77
    ;;
esac
for python in ${FERRY_PYTHON-} python3 /usr/bin/python3 none; do
    "$python" -c 'import torch, pytest' 2>/dev/null && break
done
if [ "$python" = none ]; then
    echo "skipped: no python3 with torch and pytest"
    exit 77
fi
FERRY_LIBRARY=$FERRY_BUILD/libferry.so "$python" -m pytest -q -rs -p no:cacheprovider tests/python ||
    problem "pytest ended with $?"
finish
