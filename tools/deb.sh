#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# tools/deb.sh FOLDER: makes the Debian packages of the last commit in FOLDER, which is emptied before. Their own test
# run is left out: `make check` has it.
set -eu
missing=
for pair in dpkg-buildpackage:dpkg-dev dh:debhelper fakeroot:fakeroot lintian:lintian; do
    command -v "${pair%:*}" >/dev/null || missing="$missing ${pair#*:}"
done
if [ -n "$missing" ]; then
    echo "deb: missing; run: apt-get install$missing" >&2
    exit 2
fi
rm -rf "$1"
source=$("$(dirname "$0")/dist.sh" "$1")
tar -xzf "$source" -C "$1"
rm "$source"
cd "$1"/ferry-*
DEB_BUILD_OPTIONS="nocheck parallel=${JOBS:-1}" dpkg-buildpackage -us -uc -F >../build.log 2>&1 || {
    tail -n 40 ../build.log >&2
    exit 1
}
cd ..
rm -rf ferry-*/
# It leaves files in its temporary folder.
mkdir lintian
TMPDIR=$PWD/lintian lintian --allow-root --fail-on error,warning ./*.changes
rm -rf lintian
ls ./*.deb
