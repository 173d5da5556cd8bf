# SPDX-License-Identifier: Apache-2.0
"""Patched models whose experts are spread over two processes, beside one process that has them all."""
import os
import pathlib
import socket
import subprocess
import sys

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers", minversion="4.50")
import patch_models as pm

HERE = pathlib.Path(__file__).resolve().parent
DEVICES = ["cpu"] + (["cuda"] if torch.cuda.device_count() >= 2 else [])


JOBS = ("generate:qwen3_moe", "generate:deepseek_v3", "gradients:qwen3_moe_raw", "gradients:mixtral",
        "states:qwen3_moe_raw", "states:deepseek_v3")


def start(ranks, folder, device, port):
    """The processes of a group of ranks."""
    common = {**os.environ, "WORLD_SIZE": str(ranks), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port),
              "OMP_NUM_THREADS": "1", "PATCH_DEVICE": device}
    return [subprocess.Popen([sys.executable, str(HERE / "patch_ranks.py"), str(folder), *JOBS],
                             env={**common, "RANK": str(rank), "LOCAL_RANK": str(rank)}, text=True,
                             stdout=subprocess.PIPE, stderr=subprocess.STDOUT) for rank in range(ranks)]


def found_by(ranks, folder):
    """For every job, its entries in the order of parts."""
    found = [torch.load(folder / f"{ranks}-{rank}.pt", map_location="cpu") for rank in range(ranks)]
    return {job: [entry for rank in found for entry in rank[job]] for job in JOBS}


@pytest.fixture(scope="module", params=DEVICES)
def alone_and_spread(request, tmp_path_factory):
    """What one process finds, and what two find, side by side: most of their time is that of starting."""
    folder = tmp_path_factory.mktemp("ranks")
    with socket.socket() as one, socket.socket() as other:
        for s in (one, other):
            s.bind(("127.0.0.1", 0))
        ports = one.getsockname()[1], other.getsockname()[1]
    processes = start(1, folder, request.param, ports[0]) + start(2, folder, request.param, ports[1])
    try:
        said = [p.communicate(timeout=150)[0] for p in processes]
    finally:
        for p in processes:
            p.kill()
    assert all(p.returncode == 0 for p in processes), "\n".join(said)
    return found_by(1, folder), found_by(2, folder)


@pytest.mark.parametrize("family", ["qwen3_moe", "deepseek_v3"])
def test_generation_is_the_same(family, alone_and_spread):
    alone, spread = (found["generate:" + family] for found in alone_and_spread)
    for a, b in zip(alone, spread):
        assert a.shape[1] == 12 + 32 and torch.equal(a, b)
    assert not torch.equal(alone[0][:, 12:], alone[1][:, 12:])


@pytest.mark.parametrize("family", ["qwen3_moe_raw", "mixtral"])
def test_gradients(family, alone_and_spread):
    """The same bits, but for experts: theirs are sums over both parts, on the rank that has the expert."""
    alone, spread = (found["gradients:" + family] for found in alone_and_spread)
    experts = [name for name in alone[0][1] if ".experts." in name]
    assert experts
    for (logits, grads), (same, others) in zip(alone, spread):
        assert torch.equal(logits, same)
        assert all(torch.equal(grads[name], others[name]) for name in grads if name not in experts)
    for name in experts:
        # Fused tensors are slices; Linears are on one of the ranks.
        got = torch.cat([grads[name] for _, grads in spread if name in grads]).float()
        wanted = sum(grads[name].float() for _, grads in alone)
        assert pm.apart(got, wanted) <= 5e-3, name


def test_states(alone_and_spread):
    """The ranks themselves look: see patch_ranks.py."""
    for found in alone_and_spread:
        assert all(all(found[job]) for job in JOBS if job.startswith("states:"))
