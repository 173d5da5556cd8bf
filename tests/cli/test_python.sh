# SPDX-License-Identifier: Apache-2.0
# The Python package beside PyTorch. The parts that need a newer torch, NumPy, or a GPU, are skips of pytest, which this
# prints; tests of real models are test_python_models.sh's.
. tests/cli/lib.sh
. tests/cli/python.sh

# shellcheck disable=SC2046
python_tests torch $(ls tests/python/test_*.py | grep -v -e test_patch -e test_jobs)
finish
