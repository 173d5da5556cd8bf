# SPDX-License-Identifier: Apache-2.0
# The Python package in models of transformers, and trainings with it as jobs of several processes.
. tests/cli/lib.sh
. tests/cli/python.sh

# shellcheck disable=SC2046
python_tests "torch, transformers" $(ls tests/python/test_patch*.py tests/python/test_jobs*.py)
finish
