# SPDX-License-Identifier: Apache-2.0
"""What goes wrong has a name and a sentence, and what ends is taken down cleanly."""
import gc
import os
import subprocess
import sys
import textwrap

import pytest
import torch
from reference import Case

import ferry_moe
from ferry_moe import FerryError, FerryMoE, functional, moe


def run(case, layer, **changed):
    names = ("x", "ids", "weights", "gate_up", "down")
    return moe(*[changed.get(name, getattr(case, name)) for name in names], layer=layer)


def test_arguments(group, device):
    case = Case(device)
    layer = group.layer(max_tokens=64, **case.sizes)
    for changed, words in (({"x": case.x.float()}, r"x is \[50, 64\] torch.float32, expected \[50, 64\] BF16"),
                           ({"ids": case.ids[:, :2]}, r"ids is \[50, 2\]"), ({"ids": case.ids.short()}, "I32 or I64"),
                           ({"down": case.down[1:]}, r"down is \[7, 64, 96\]"),
                           ({"down": case.down.mT.contiguous().mT}, "down is not contiguous"),
                           ({"gate_up": list(case.gate_up)[1:], "down": list(case.down)}, "lengths.*expected 8"),
                           ({"gate_up": list(case.gate_up)[1:], "down": list(case.down)[1:]}, "has 7 matrices"),
                           ({"gate_up": case.gate_up.float()}, "gate_up is .* expected .* BF16"),
                           ({"down": case.down.to("meta")}, "down is on meta")):
        with pytest.raises(ValueError, match=words):
            run(case, layer, **changed)
    with pytest.raises(FerryError, match="FERRY_E_INVALID.*hidden is 0") as error:
        group.layer(hidden=0, intermediate=1, experts=1, top_k=1, max_tokens=1)
    assert error.value.status == "FERRY_E_INVALID"
    with pytest.raises(ValueError, match="expert_rank has 1 entries, expected 2"):
        group.layer(hidden=8, intermediate=8, experts=2, top_k=1, max_tokens=1, expert_rank=[0])


def test_sizes_of_a_block(group, device):
    with pytest.raises(ValueError, match="top_k is 4, expected at most experts = 2"):
        FerryMoE(16, 16, 2, 4, group, max_tokens=4)
    with pytest.raises(ValueError, match="2 of 4 groups of 8 experts, top 5"):
        FerryMoE(16, 16, 8, 5, group, n_group=4, topk_group=2, max_tokens=4)
    for router in ("softmax", None):
        block = FerryMoE(16, 16, 2, 1, group, router=router, max_tokens=4)
        with pytest.raises(ValueError, match=r"x.shape\[-1\] is 8, expected hidden = 16"):
            block(torch.zeros(2, 2, 8, device=device))


def test_too_many_tokens(group, device):
    case = Case(device)
    layer = group.layer(max_tokens=16, **case.sizes)
    with pytest.raises(FerryError, match="50 tokens, the layer at most 16.*max_tokens=50"):
        run(case, layer)
    if device == "cuda":  # the report of that call, which other ranks would get
        torch.cuda.synchronize()
        assert layer.poll().status == 31
    small = run(case, layer, x=case.x[:16], ids=case.ids[:16], weights=case.weights[:16])
    assert small.isfinite().all()


def test_bad_ids(group, device):
    case = Case(device)
    layer = group.layer(max_tokens=64, **case.sizes)
    ids = case.ids.clone()
    ids[7, 1] = 8
    if device == "cpu":
        with pytest.raises(FerryError, match="FERRY_E_BAD_ID"):
            run(case, layer, ids=ids)
    else:  # found on the device: the next call says so
        run(case, layer, ids=ids)
        torch.cuda.synchronize()
        with pytest.raises(FerryError, match="FERRY_E_BAD_ID.*earlier call.*token 7, slot 1"):
            run(case, layer)
        run(case, layer, ids=ids)
        torch.cuda.synchronize()
    report = layer.poll()
    assert (report.status, report.count, report.token, report.slot, report.id) == (30, 1, 7, 1, 8)
    assert layer.poll() is None
    run(case, layer)


def test_use_after_destroy(device):
    case = Case(device)
    group = ferry_moe.Group.single(device)
    layer = group.layer(max_tokens=64, **case.sizes)
    out = run(case, layer)
    context = ferry_moe.Context(layer)
    context.destroy()
    context.destroy()
    with pytest.raises(FerryError, match="context was destroyed"):
        functional.forward(layer, case.x.detach(), case.ids, case.weights.detach(), case.gate_up.detach(),
                           case.down.detach(), context=context)
    layer.destroy()
    layer.destroy()
    for use in (lambda: run(case, layer), layer.poll, layer.stats, lambda: case.gradients(out)):
        with pytest.raises(FerryError, match="FERRY_E_STATE.*destroyed"):
            use()
    again = group.layer(max_tokens=64, **case.sizes)
    assert again is not layer
    run(case, again)
    group.destroy()
    group.destroy()
    for use in (lambda: run(case, again), group.barrier, lambda: group.layer(max_tokens=64, **case.sizes)):
        with pytest.raises(FerryError, match="FERRY_E_STATE.*destroyed"):
            use()


def test_a_dropped_group_takes_everything_with_it(device):
    case = Case(device)
    handles = []

    def life():
        group = ferry_moe.Group.single(device)
        layer = group.layer(max_tokens=64, **case.sizes)
        run(case, layer)
        handles.extend([group._handle, layer._handle])

    life()
    gc.collect()
    assert not any(h.alive for h in handles)


@pytest.mark.parametrize("ending", ["", "sys.exit(3)", "raise ValueError('mine')", "del group, layer, out"])
def test_the_interpreter_ends_cleanly(ending):
    if ending.startswith("del"):
        pytest.importorskip("torch")
    code = textwrap.dedent("""
        import sys, torch, ferry_moe
        group = ferry_moe.Group.single("cpu")
        layer = group.layer(hidden=8, intermediate=8, experts=2, top_k=1, max_tokens=4)
        w = [torch.randn(s, dtype=torch.bfloat16, requires_grad=True) for s in ((4, 8), (2, 16, 8), (2, 8, 8))]
        out = ferry_moe.moe(w[0], torch.zeros(4, 1, dtype=torch.int64), torch.ones(4, 1), *w[1:], layer=layer)
        context = ferry_moe.Context(layer)
        print("made", flush=True)
        """) + ending
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=100, env=os.environ)
    assert done.stdout == "made\n"
    assert done.returncode == {"s": 3, "r": 1}.get(ending[:1], 0), done.stderr
    assert ("ValueError: mine" in done.stderr) if ending.startswith("raise") else not done.stderr


def test_a_missing_library_is_named():
    env = {**os.environ, "FERRY_LIBRARY": "/nowhere/libferry.so"}
    done = subprocess.run([sys.executable, "-c", "import ferry_moe; ferry_moe.version()"], capture_output=True,
                          text=True, timeout=60, env=env)
    assert done.returncode == 1 and "no libferry.so: tried /nowhere/libferry.so" in done.stderr
    assert ferry_moe.version().count(".") == 2 and ferry_moe.__version__ == ferry_moe.version()
