# SPDX-License-Identifier: Apache-2.0
"""What only a GPU can show: streams, captured graphs, and what a call costs the host."""
import os
import time

import pytest
import torch
from conftest import DEVICES, FIGURES
from reference import Case

from ferry_moe import FerryMoE, Group, moe

pytestmark = pytest.mark.skipif("cuda" not in DEVICES, reason="needs a GPU")


@pytest.fixture
def layer():
    group = Group.single("cuda")
    yield group.layer(hidden=64, intermediate=96, experts=8, top_k=3, max_tokens=64)
    group.destroy()


def test_calls_follow_the_current_stream(layer):
    case = Case("cuda")
    want = moe(case.x, case.ids, case.weights, case.gate_up, case.down, layer=layer)
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        late = torch.empty_like(case.x)
        torch.cuda._sleep(50_000_000)
        late.copy_(case.x.detach())  # long after the call was enqueued
        out = moe(late, case.ids, case.weights, case.gate_up, case.down, layer=layer)
        same = torch.equal(out, want)
    assert same


def test_a_captured_step_of_a_module(layer):
    torch.manual_seed(0)
    block = FerryMoE(64, 96, 8, 3, layer.group, max_tokens=64)
    x = torch.randn(64, 64, device="cuda", dtype=torch.bfloat16)
    for p in block.parameters():
        p.grad = torch.zeros_like(p)

    def step():
        for p in block.parameters():
            p.grad.zero_()
        out = block(x)
        out.backward(x)
        return out

    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        step()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = step()
    for _ in range(3):
        with torch.no_grad():
            x.normal_()
        graph.replay()
        got = [out.clone()] + [p.grad.clone() for p in block.parameters()]
        want = [step()] + [p.grad for p in block.parameters()]
        for a, b in zip(got, want):
            assert torch.equal(a, b)


def test_tokens_known_on_the_device_only(layer):
    case = Case("cuda")
    n = torch.tensor(20, dtype=torch.int32, device="cuda")
    torch.full((50, 64), 7.0, device="cuda")  # what freed memory may hold
    out = moe(case.x, case.ids, case.weights, case.gate_up, case.down, layer=layer, num_tokens=n)
    short = moe(case.x[:20], case.ids[:20], case.weights[:20], case.gate_up, case.down, layer=layer)
    assert torch.equal(out[:20], short) and not out[20:].any()
    got, case.dout = case.gradients(out), case.dout[:20]
    for a, b in zip(got, case.gradients(short)):
        assert torch.equal(a, b)
    assert not got[0][20:].any() and not got[1][20:].any()


def test_host_time_of_a_call():
    """CPU time of this thread for a call of moe() with a context, the median over rounds: told at the end of the
    report, and with FERRY_HOST_TIME_US set, at most that."""
    group = Group.single("cuda")
    layer = group.layer(hidden=512, intermediate=256, experts=16, top_k=4, max_tokens=256)
    case = Case("cuda", H=512, I=256, E=16, K=4, N=256)

    def call():
        return moe(case.x, case.ids, case.weights, case.gate_up, case.down, layer=layer)

    def no_gradient():
        with torch.no_grad():
            return call()

    def backward():
        out.backward(case.dout, retain_graph=True)

    out = call()
    figures = {}
    for name, function in (("forward", call), ("forward without gradients", no_gradient), ("backward", backward)):
        rounds = []
        for _ in range(15):
            torch.cuda.synchronize()
            start = time.thread_time()
            for _ in range(40):
                function()
            rounds.append((time.thread_time() - start) / 40 * 1e6)
        torch.cuda.synchronize()
        figures[name] = sorted(rounds)[len(rounds) // 2]
    FIGURES.append("host time of a call, us: " + ", ".join(f"{k} {v:.1f}" for k, v in figures.items()))
    if "FERRY_HOST_TIME_US" in os.environ:
        assert figures["forward"] <= float(os.environ["FERRY_HOST_TIME_US"])
    group.destroy()
