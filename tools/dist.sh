#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# tools/dist.sh FOLDER: writes FOLDER/ferry-VERSION.tar.gz, the sources of the last commit, and prints its name. Equal
# commits give equal bytes.
set -eu
cd "$(dirname "$0")/.."
version=$(git show HEAD:CMakeLists.txt | sed -n 's/^project(ferry VERSION \([0-9.]*\).*/\1/p')
git diff --quiet HEAD || echo "dist: changes that are not committed are left out" >&2
mkdir -p "$1"
tar=$1/ferry-$version.tar
git -c tar.umask=0022 archive --format=tar --prefix="ferry-$version/" -o "$tar" HEAD
gzip -9nf "$tar"
echo "$tar.gz"
