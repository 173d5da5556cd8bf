# SPDX-License-Identifier: Apache-2.0
"""Every Python example of this package's own runs and does what it says."""
import os
import pathlib
import re
import socket
import subprocess
import sys

import pytest
import torch
from conftest import DEVICES

TOP = pathlib.Path(__file__).resolve().parents[2]
# What they run on; without the backend they run on the CPU.
HERE = {"CUDA_VISIBLE_DEVICES": ""} if "cuda" not in DEVICES else {}


def free_port():
    with socket.socket() as s:
        s.bind(("localhost", 0))
        return str(s.getsockname()[1])


def run(name, *options, ranks=1):
    """The output of rank 0; the ranks are started with the variables that torchrun sets."""
    port, started = free_port(), []
    for rank in range(ranks):
        env = {**os.environ, **HERE, "OMP_NUM_THREADS": "1", "RANK": str(rank), "LOCAL_RANK": str(rank),
               "WORLD_SIZE": str(ranks), "MASTER_ADDR": "localhost", "MASTER_PORT": port}
        started.append(subprocess.Popen([sys.executable, str(TOP / "examples" / name), *options], env=env, text=True,
                                        stdout=subprocess.PIPE, stderr=subprocess.PIPE))
    try:
        ended = [p.communicate(timeout=100) for p in started]
    finally:
        for p in started:
            p.kill()
    for p, (out, err) in zip(started, ended):
        assert p.returncode == 0, out + err
    return ended[0][0]


@pytest.mark.parametrize("ranks", [1, 2])
def test_pytorch_layer(ranks):
    enough_gpus = "cuda" in DEVICES and torch.cuda.device_count() >= ranks
    out = run("pytorch_layer.py", "--device", "cuda" if enough_gpus else "cpu", ranks=ranks)
    losses = re.findall(r"loss (\d+\.\d+)", out)
    assert len(losses) == 4 and float(losses[-1]) < 0.7 * float(losses[0])


def test_load_statistics():
    out = run("load_statistics.py")
    assert out.count("busiest rank 1.00 x mean") == 12 and "rows of each expert" in out
    assert re.search(r"busiest expert [2-6]\.\d\d x mean", out), out


def test_cuda_graph():
    if "cuda" not in DEVICES:
        pytest.skip("needs a GPU")
    assert run("cuda_graph.py").count("the same bits as eager") == 5
