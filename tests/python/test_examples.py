# SPDX-License-Identifier: Apache-2.0
"""Every Python example of this package's own runs and does what it says."""
import os
import pathlib
import re
import subprocess
import sys

import pytest
import torch
from conftest import DEVICES

TOP = pathlib.Path(__file__).resolve().parents[2]
# What they run on; without the backend they run on the CPU.
HERE = {"CUDA_VISIBLE_DEVICES": ""} if "cuda" not in DEVICES else {}


def run(name, *options, ranks=1):
    launcher = []
    if ranks > 1:  # the spelling that old and new versions know
        launcher = ["-m", "torch.distributed.run", f"--nproc_per_node={ranks}", "--rdzv_backend=c10d",
                    "--rdzv_endpoint=localhost:0"]
    done = subprocess.run([sys.executable, *launcher, str(TOP / "examples" / name), *options], capture_output=True,
                          text=True, timeout=150, env={**os.environ, **HERE, "OMP_NUM_THREADS": "1"})
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.parametrize("ranks", [1, 2])
def test_pytorch_layer(ranks):
    enough_gpus = "cuda" in DEVICES and torch.cuda.device_count() >= ranks
    out = run("pytorch_layer.py", "--device", "cuda" if enough_gpus else "cpu", ranks=ranks)
    losses = re.findall(r"loss (\d+\.\d+)", out)
    assert len(losses) == 4 and float(losses[-1]) < 0.7 * float(losses[0])


def test_load_statistics():
    out = run("load_statistics.py")
    assert out.count("busiest rank 1.00 x mean") == 12 and "rows of each expert" in out
    assert re.search(r"busiest expert [4-8]\.\d\d x mean", out), out


def test_cuda_graph():
    if "cuda" not in DEVICES:
        pytest.skip("needs a GPU")
    assert run("cuda_graph.py").count("the same bits as eager") == 5
