# SPDX-License-Identifier: Apache-2.0
"""Trainings of several processes: data parallel around expert parallel, a process that dies, going on from a
checkpoint; the end-to-end benchmark at a tiny size; the example of a patched model."""
import json
import os
import pathlib
import re
import signal
import socket
import subprocess
import sys
import time

import pytest

torch = pytest.importorskip("torch", minversion="2.4")
RANKS = 2
TOP = pathlib.Path(__file__).resolve().parents[2]


class Job:
    """A program as two processes, each with what it says in a file of `folder`."""

    def __init__(self, folder, program, *options):
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        folder.mkdir(parents=True)
        self.logs = [folder / f"rank-{rank}.log" for rank in range(RANKS)]
        common = {**os.environ, "WORLD_SIZE": str(RANKS), "LOCAL_WORLD_SIZE": str(RANKS), "MASTER_ADDR": "127.0.0.1",
                  "MASTER_PORT": str(port), "OMP_NUM_THREADS": "1"}
        self.processes = []
        for rank, log in enumerate(self.logs):
            with open(log, "wb") as out:
                self.processes.append(subprocess.Popen(
                    [sys.executable, str(TOP / program), *map(str, options)], stdout=out, stderr=subprocess.STDOUT,
                    env={**common, "RANK": str(rank), "LOCAL_RANK": str(rank)}))

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for p in self.processes:
            p.kill()
            p.wait()

    def said(self, rank=0):
        return self.logs[rank].read_text(errors="replace")

    def finish(self, timeout=150):
        codes = [p.wait(timeout) for p in self.processes]
        assert codes == [0] * len(codes), "\n".join(map(self.said, range(len(codes))))
        return self.said()


def losses(text):
    return dict(re.findall(r"^step (\d+) loss (\S+)$", text, re.M))


def train(folder, *options):
    with Job(folder, "examples/ddp_ep.py", *options) as job:
        return losses(job.finish())


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    return train(tmp_path_factory.mktemp("undisturbed") / "job", "--ep", 2, "--steps", 20)


def test_divisions_train_the_same_model(undisturbed, tmp_path):
    """Data parallel and expert parallel: the same gradients but for the order of sums, so nearly the same losses."""
    other = train(tmp_path / "job", "--ep", 1, "--steps", 20)
    assert list(undisturbed) == list(other) == [str(step) for step in range(1, 21)]
    assert all(abs(float(undisturbed[s]) - float(other[s])) < 0.03 * float(other[s]) for s in other)
    assert all(abs(float(undisturbed[s]) - float(other[s])) < 0.003 * float(other[s]) for s in ("1", "2", "3"))
    assert float(other["20"]) < 0.75 * float(other["1"])


@pytest.mark.parametrize("ep", [1, 2])
def test_a_process_dies(ep, undisturbed, tmp_path):
    """The other one ends with an error; from the last checkpoint the losses are those of an undisturbed run."""
    checkpoints = tmp_path / "checkpoints"
    options = ["--ep", ep, "--every", 5, "--checkpoints", checkpoints]
    with Job(tmp_path / "killed", "examples/ddp_ep.py", *options, "--steps", 1000000) as job:
        end = time.monotonic() + 120
        while "12" not in losses(job.said()):
            assert time.monotonic() < end and job.processes[0].poll() is None, job.said()
            time.sleep(0.02)
        job.processes[1].send_signal(signal.SIGKILL)
        assert job.processes[0].wait(60) > 0, job.said()
        assert re.search(r"Error", job.said()), job.said()
        before = losses(job.said())
    if ep == 1:
        return
    first = int((checkpoints / "latest").read_text().rpartition("-")[2])
    assert first >= 10
    # The killed run may have come far: what it made last is one of the steps that are compared.
    last = first + 5
    wanted = undisturbed if last <= 20 else train(tmp_path / "longer", "--ep", ep, "--steps", last)
    resumed = train(tmp_path / "resumed", *options, "--steps", last, "--resume")
    assert resumed == {str(step): wanted[str(step)] for step in range(first + 1, last + 1)}
    assert all(wanted[step] == loss for step, loss in before.items() if step in wanted)


def test_the_end_to_end_benchmark(tmp_path):
    with Job(tmp_path / "job", "bench/train_e2e.py", "--tiny", "--steps", 12, "--warmup", 2, "--json",
             tmp_path / "result.json", "--plot", tmp_path / "plot.svg") as job:
        said = job.finish()
    found = json.loads((tmp_path / "result.json").read_text())
    theirs, ours = found["results"]["ways"]
    assert (theirs["name"], ours["name"]) == ("NCCL + PyTorch", "Ferry BF16") and found["results"]["ranks"] == 2
    for way in (theirs, ours):
        low, high = way["tokens_per_s_per_gpu_quartiles"]
        assert 0 < low <= way["tokens_per_s_per_gpu"] <= high
        assert len(way["losses"]) == 14 and way["losses"][-1] < way["losses"][0] - 0.2
        assert f"{way['name']:15s} {way['tokens_per_s_per_gpu']:9.0f} tokens/s/GPU" in said
    assert all(abs(a - b) < 2e-3 * a for a, b in zip(theirs["losses"], ours["losses"]))
    assert theirs["losses"] != ours["losses"], "the same code ran twice"
    picture = (tmp_path / "plot.svg").read_text()
    assert picture.count("<polyline") == 2 and "Ferry BF16" in picture and picture.rstrip().endswith("</svg>")


def test_the_example_of_a_patched_model(tmp_path):
    pytest.importorskip("transformers", minversion="4.50")
    with Job(tmp_path / "job", "examples/patch_model.py", "--save", tmp_path / "saved") as job:
        found = losses(job.finish())
        assert "tokens [0, 1, 2, 3, 4, 5, 6, 7, " in job.said()
    assert len(found) == 10 and float(found["10"]) < 0.9 * float(found["1"])
    from transformers import AutoModelForCausalLM
    saved = AutoModelForCausalLM.from_pretrained(tmp_path / "saved")
    assert type(saved).__name__ == "Qwen3MoeForCausalLM" and saved.config.num_experts == 8
