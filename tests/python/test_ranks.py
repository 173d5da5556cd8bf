# SPDX-License-Identifier: Apache-2.0
"""Two ranks, as processes of torch.distributed: gloo on the CPU, NCCL where there are two GPUs."""
import os
import pathlib
import subprocess
import sys

import pytest
import torch
from conftest import DEVICES

HOLDS = ["same bits from the world", "same bits from a sub-group", "same bits from the environment",
         "the default group is one", "a sub-group of one has all experts", "a rank outside is refused",
         "experts go where the map says", "ranks that disagree are told",
         "too many tokens on rank 1 are an error on both", "the layer can still be used",
         "a failed exchange is the cause"]
HOLDS += ["compiled over two ranks: the same bits"] if hasattr(torch.library, "custom_op") else []


@pytest.mark.parametrize("backend", ["gloo", "nccl"])
def test_two_ranks(tmp_path, backend):
    if backend == "nccl" and ("cuda" not in DEVICES or torch.cuda.device_count() < 2):
        pytest.skip("needs two GPUs")
    worker = pathlib.Path(__file__).with_name("ranks_worker.py")
    ranks = []
    for rank in range(2):
        env = {**os.environ, "RANK": str(rank), "WORLD_SIZE": "2", "FERRY_JOB": f"python-{os.getpid()}-{backend}",
               "RANKS_FILE": str(tmp_path / "store"), "OMP_NUM_THREADS": "1"}
        ranks.append(subprocess.Popen([sys.executable, str(worker), backend], env=env, stdout=subprocess.PIPE,
                                      stderr=subprocess.PIPE, text=True))
    ended = []
    try:
        ended = [r.communicate(timeout=120) for r in ranks]
    finally:
        for r in ranks:
            r.kill()
    for rank, (out, err) in enumerate(ended):
        assert ranks[rank].returncode == 0, f"rank {rank}:\n{out}{err}"
        held = [line[len("holds: "):] for line in out.splitlines() if line.startswith("holds: ")]
        assert held == HOLDS + (["a dead peer is an error"] if rank == 0 else []), f"rank {rank}:\n{out}{err}"
    assert "done" in ended[0][0]
