# SPDX-License-Identifier: Apache-2.0
"""Makes the wheel of ferry_moe: the package with libferry.so inside, for any Python 3, tagged with the C library of the
machine that built it. The library is FERRY_LIBRARY, else build/libferry.so of the sources. An interface of PEP 517,
without dependencies."""
import base64
import hashlib
import os
import pathlib
import platform
import re
import shutil
import subprocess
import tempfile
import zipfile

HERE = pathlib.Path(__file__).resolve().parent
TOP = HERE.parent
NAME = "ferry_moe"


def _version():
    header = (TOP / "include/ferry/ferry.h").read_text()
    return ".".join(re.search(rf"FERRY_VERSION_{part} (\d+)", header)[1] for part in ("MAJOR", "MINOR", "PATCH"))


def _tag():
    machine = platform.machine()
    try:
        name, version = os.confstr("CS_GNU_LIBC_VERSION").split()
        if name == "glibc":
            return f"py3-none-manylinux_{version.replace('.', '_')}_{machine}"
    except (ValueError, AttributeError, TypeError, OSError):
        pass
    return f"py3-none-linux_{machine}"


def _metadata():
    return f"""Metadata-Version: 2.1
Name: ferry-moe
Version: {_version()}
Summary: Ferry, an expert-parallel Mixture-of-Experts layer, in Python
License: Apache-2.0
Requires-Python: >=3.8
Provides-Extra: torch
Requires-Dist: torch>=1.13; extra == "torch"
Description-Content-Type: text/markdown

{(HERE / "README.md").read_text()}"""


def _wheel():
    return f"Wheel-Version: 1.0\nGenerator: ferry_moe\nRoot-Is-Purelib: false\nTag: {_tag()}\n"


def _library():
    """The library without its debugging symbols, where `strip` is there."""
    path = pathlib.Path(os.environ.get("FERRY_LIBRARY", TOP / "build/libferry.so"))
    if not path.exists():
        raise SystemExit(f"ferry_moe: no library at {path}: build it (make), or set FERRY_LIBRARY to its path")
    if shutil.which("strip") is None:
        return path.read_bytes()
    with tempfile.TemporaryDirectory() as folder:
        stripped = os.path.join(folder, "libferry.so")
        subprocess.run(["strip", "--strip-unneeded", "-o", stripped, os.path.realpath(path)], check=True)
        return pathlib.Path(stripped).read_bytes()


def _files():
    """Names in the wheel and their contents."""
    for path in sorted((HERE / NAME).rglob("*.py")):
        yield str(path.relative_to(HERE)), path.read_bytes()
    yield f"{NAME}/libferry.so", _library()
    info = f"{NAME}-{_version()}.dist-info"
    for name in ("LICENSE", "NOTICE"):
        yield f"{info}/licenses/{name}", (TOP / name).read_bytes()
    yield f"{info}/METADATA", _metadata().encode()
    yield f"{info}/WHEEL", _wheel().encode()


def build_wheel(wheel_directory, config_settings=None, metadata_directory=None):
    info, record = f"{NAME}-{_version()}.dist-info", []
    name = f"{NAME}-{_version()}-{_tag()}.whl"
    with zipfile.ZipFile(os.path.join(wheel_directory, name), "w", zipfile.ZIP_DEFLATED) as wheel:
        def add(path, data):
            # One date for all: the same contents give the same file.
            entry = zipfile.ZipInfo(path, (1980, 1, 1, 0, 0, 0))
            entry.external_attr, entry.compress_type = 0o644 << 16, zipfile.ZIP_DEFLATED
            wheel.writestr(entry, data)

        for path, data in _files():
            add(path, data)
            digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
            record.append(f"{path},sha256={digest},{len(data)}")
        add(f"{info}/RECORD", "\n".join(record + [f"{info}/RECORD,,", ""]).encode())
    return name


def get_requires_for_build_wheel(config_settings=None):
    return []


if __name__ == "__main__":
    import sys
    print(os.path.join(sys.argv[1], build_wheel(sys.argv[1])))
