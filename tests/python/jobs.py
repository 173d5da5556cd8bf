# SPDX-License-Identifier: Apache-2.0
"""Programs as jobs of several processes, as torchrun would start them, for the tests that look at them or kill one."""
import os
import pathlib
import re
import signal
import socket
import subprocess
import sys
import time

TOP = pathlib.Path(__file__).resolve().parents[2]


class Job:
    """A program as processes, each with what it says in a file of `folder`. Without `hosts` two on this host, else two
    on each: a host is what goes before a command to run it there. `address` and `extra` variables: how they meet."""

    def __init__(self, folder, program, *options, hosts=(), address="127.0.0.1", extra=None):
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        folder.mkdir(parents=True)
        starts = [host for host in hosts or ([],) for _ in range(2)]
        self.logs = [folder / f"rank-{rank}.log" for rank in range(len(starts))]
        common = {**os.environ, "WORLD_SIZE": str(len(starts)), "LOCAL_WORLD_SIZE": "2", "MASTER_ADDR": address,
                  "MASTER_PORT": str(port), "OMP_NUM_THREADS": "1", **(extra or {})}
        self.processes = []
        for rank, (start, log) in enumerate(zip(starts, self.logs)):
            with open(log, "wb") as out:
                self.processes.append(subprocess.Popen(
                    [*start, sys.executable, str(TOP / program), *map(str, options)], stdout=out,
                    stderr=subprocess.STDOUT, env={**common, "RANK": str(rank), "LOCAL_RANK": str(rank % 2)}))

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

    def kill_last(self, step):
        """Kills the last process once `step` is done. The others must end with an error. Returns the losses said."""
        end = time.monotonic() + 120
        while str(step) not in losses(self.said()):
            assert time.monotonic() < end and self.processes[0].poll() is None, self.said()
            time.sleep(0.02)
        self.processes[-1].send_signal(signal.SIGKILL)
        for rank, p in enumerate(self.processes[:-1]):
            assert p.wait(60) > 0, self.said(rank)
            assert "Error" in self.said(rank), self.said(rank)
        return losses(self.said())


def losses(text):
    return dict(re.findall(r"^step (\d+) loss (\S+)$", text, re.M))


def train(folder, *options, **where):
    with Job(folder, "examples/ddp_ep.py", *options, **where) as job:
        return losses(job.finish())


def killed_and_resumed(folder, ep, undisturbed, **where):
    """From the last checkpoint of a job of which a process dies the losses are those of an undisturbed run."""
    checkpoints = folder / "checkpoints"
    options = ["--ep", ep, "--every", 5, "--checkpoints", checkpoints]
    with Job(folder / "killed", "examples/ddp_ep.py", *options, "--steps", 1000000, **where) as job:
        before = job.kill_last(12)
    first = int((checkpoints / "latest").read_text().rpartition("-")[2])
    assert first >= 10
    # The killed run may have come far: what it made last is one of the steps that are compared.
    last = first + 5
    wanted = undisturbed if last <= len(undisturbed) else train(folder / "longer", "--ep", ep, "--steps", last, **where)
    resumed = train(folder / "resumed", *options, "--steps", last, "--resume", **where)
    assert resumed == {str(step): wanted[str(step)] for step in range(first + 1, last + 1)}
    assert all(wanted[step] == loss for step, loss in before.items() if step in wanted)
