#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# tools/wheel.sh BUILD [FOLDER]: the Python wheel with the library of a build folder, into FOLDER (default BUILD).
# Prints its path. Needs Python 3 and nothing else.
set -eu
cd "$(dirname "$0")/.."
build=${1:?usage: tools/wheel.sh BUILD [FOLDER]}
FERRY_LIBRARY=$build/libferry.so exec "${PYTHON:-python3}" python/wheel_backend.py "${2:-$build}"
