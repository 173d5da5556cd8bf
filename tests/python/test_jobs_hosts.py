# SPDX-License-Identifier: Apache-2.0
"""Two hosts: namespaces of network, name, mounts and System V memory, joined by a virtual cable and nothing else but
the files. Experts are spread inside a host, data parallel between them. Needs root and ip."""
import os
import shutil
import subprocess
import time

import pytest

torch = pytest.importorskip("torch", minversion="2.4")
from jobs import killed_and_resumed, train

NAMESPACES = ["unshare", "--net", "--uts", "--mount", "--ipc", "sh", "-c"]


@pytest.fixture(scope="module")
def hosts(tmp_path_factory):
    """Job's arguments that put two processes on each of two hosts."""
    try_it = "ip link add name test0 type veth peer name test1"
    if not (shutil.which("ip") and shutil.which("nsenter") and shutil.which("unshare")) or subprocess.run(
            NAMESPACES + [try_it], capture_output=True).returncode:
        pytest.skip("no namespaces of network: needs root, ip, unshare and nsenter")
    folder, holders = tmp_path_factory.mktemp("hosts"), []
    try:
        for host in (1, 2):
            ready = folder / f"{host}"
            holders.append(subprocess.Popen(NAMESPACES + [
                f"hostname ferry-{host} && mount -t tmpfs none /dev/shm && ip link set lo up && touch {ready} && "
                "exec sleep 600"]))
            end = time.monotonic() + 20
            while not ready.exists():
                assert time.monotonic() < end and holders[-1].poll() is None, "no namespaces"
                time.sleep(0.02)
        inside = [["nsenter", "-t", str(p.pid), "-n", "-u", "-m", "-i", f"--wd={os.getcwd()}"] for p in holders]
        subprocess.run(inside[0] + f"ip link add name cable type veth peer name cable netns {holders[1].pid}".split(),
                       check=True)
        for host, enter in enumerate(inside, 1):
            subprocess.run(enter + ["ip", "addr", "add", f"10.78.0.{host}/24", "dev", "cable"], check=True)
            subprocess.run(enter + ["ip", "link", "set", "cable", "up"], check=True)
        # Where there are GPUs they belong to one host, not to two.
        yield {"hosts": inside, "address": "10.78.0.1",
               "extra": {"GLOO_SOCKET_IFNAME": "cable", "CUDA_VISIBLE_DEVICES": ""}}
    finally:
        for p in holders:
            p.kill()
            p.wait()


def test_two_hosts(hosts, tmp_path):
    undisturbed = train(tmp_path / "undisturbed", "--ep", 2, "--steps", 20, **hosts)
    assert float(undisturbed["20"]) < 0.75 * float(undisturbed["1"])
    killed_and_resumed(tmp_path, 2, undisturbed, **hosts)
