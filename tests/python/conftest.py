# SPDX-License-Identifier: Apache-2.0
"""The tests run against the package of these sources and the library of FERRY_LIBRARY (default: build/libferry.so), on
every kind of device that there is."""
import os
import pathlib
import sys

import pytest

TOP = pathlib.Path(__file__).resolve().parents[2]
os.environ.setdefault("FERRY_LIBRARY", str(TOP / "build/libferry.so"))
os.environ["FERRY_LIBRARY"] = os.path.abspath(os.environ["FERRY_LIBRARY"])
for folder in (TOP / "python", TOP / "tests/python"):
    sys.path.insert(0, str(folder))
# What the tests start finds the package too.
os.environ["PYTHONPATH"] = os.pathsep.join([str(TOP / "python"), str(TOP / "tests/python"),
                                            os.environ.get("PYTHONPATH", "")]).rstrip(os.pathsep)

# Tensors here are small: more threads only wait for each other.
os.environ.setdefault("OMP_NUM_THREADS", "1")
try:
    import torch
except ImportError:
    torch = None
collect_ignore = [] if torch else [p.name for p in pathlib.Path(__file__).parent.glob("test_*.py")
                                   if p.name != "test_arrays.py"]


def _devices():
    if torch is None or not torch.cuda.is_available():
        return ["cpu"]
    import ferry_moe
    try:
        ferry_moe.Group.single("cuda").destroy()
        return ["cpu", "cuda"]
    except ferry_moe.FerryError:
        return ["cpu"]  # a build without the backend, or a GPU that it does not know


DEVICES = _devices()


FIGURES = []  # lines that tests leave for the end of the report


def pytest_terminal_summary(terminalreporter):
    for line in FIGURES:
        terminalreporter.write_line(line)


def pytest_report_header():
    return f"ferry_moe on {', '.join(DEVICES)}; torch {torch.__version__ if torch else 'absent'}"


@pytest.fixture(params=DEVICES)
def device(request):
    return request.param


@pytest.fixture
def group(device):
    import ferry_moe
    made = ferry_moe.Group.single(device)
    yield made
    made.destroy()
