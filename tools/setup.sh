#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Finds what a build needs and this machine lacks. As root on Debian or Ubuntu it prints and runs the command that
# installs it; otherwise it ends with 2 and that command. Nothing missing: silent.
# What is optional (CUDA; g++; MPI: openmpi-bin, libopenmpi-dev) it does not ask for: the build says what it found.
set -u

has_header() { printf '#include <%s>\n' "$1" | cc -fsyntax-only -x c - 2>/dev/null; }
has_command() { command -v "$1" >/dev/null 2>&1; }

if ! has_command cc; then
    echo "setup: no C compiler; install gcc" >&2
    exit 2
fi
missing=
has_header stdio.h || missing="$missing libc6-dev"
has_command cmake || missing="$missing cmake"
has_command pkg-config || missing="$missing pkg-config"
has_header jansson.h || missing="$missing libjansson-dev"
printf '#include <stdarg.h>\n#include <stddef.h>\n#include <setjmp.h>\n#include <stdint.h>\n#include <cmocka.h>\n' |
    cc -fsyntax-only -x c - 2>/dev/null || missing="$missing libcmocka-dev"
[ -z "$missing" ] && exit 0

install="apt-get install -y --no-install-recommends$missing"
if ! has_command apt-get; then
    echo "setup: missing, by their Debian names:$missing" >&2
    exit 2
fi
if [ "$(id -u)" -ne 0 ]; then
    echo "setup: missing:$missing. Run this, then make again:" >&2
    echo "    sudo apt-get update && sudo $install" >&2
    exit 2
fi
echo "setup: missing:$missing. Running: apt-get update && $install"
export DEBIAN_FRONTEND=noninteractive
if ! { apt-get update -q && apt-get -q ${install#apt-get }; }; then
    echo "setup: that failed; the packages are needed:$missing" >&2
    exit 2
fi
