# SPDX-License-Identifier: Apache-2.0
"""Outputs and gradients beside a plain PyTorch MoE, in all ways of giving weights."""
import pytest
import torch
from reference import GRADIENT, OUT, Case, apart, contexts

from ferry_moe import moe


def compare(case, out, limit=0.0):
    want = case.plain(limit)
    assert apart(out, want) <= OUT
    for got, expected in zip(case.gradients(out), case.gradients(want)):
        assert got.dtype in (torch.bfloat16, torch.float32) and torch.isfinite(got).all()
        assert apart(got, expected) <= GRADIENT


@pytest.mark.parametrize("more", [{}, {"S": 32}, {"K": 1, "E": 3}, {"N": 1}, {"dtype": torch.int32},
                                  {"I": 40, "H": 136}])
def test_beside_plain(group, device, more):
    case = Case(device, **more)
    layer = group.layer(max_tokens=64, **case.sizes)
    compare(case, moe(case.x, case.ids, case.weights, case.gate_up, case.down, *case.shared, layer=layer))


def test_clamp(group, device):
    case = Case(device)
    with torch.no_grad():
        case.gate_up.mul_(2)
    layer = group.layer(max_tokens=64, swiglu_limit=1.5, **case.sizes)
    compare(case, moe(case.x, case.ids, case.weights, case.gate_up, case.down, layer=layer), limit=1.5)


def test_gate_and_up_apart_and_lists_are_the_same(group, device):
    case = Case(device, S=16)
    I, layer = case.sizes["intermediate"], group.layer(max_tokens=64, **case.sizes)
    out = moe(case.x, case.ids, case.weights, case.gate_up, case.down, *case.shared, layer=layer)
    want = case.gradients(out)
    gate, up = case.gate_up[:, :I], case.gate_up[:, I:]  # views: the strides of the fused tensor
    shared_pair = case.shared[0][:16], case.shared[0][16:]
    for weights in (((gate, up), case.down), (list(case.gate_up), list(case.down)),
                    ((list(gate), list(up)), list(case.down)),
                    ((gate.contiguous(), up.contiguous()), case.down)):
        other = moe(case.x, case.ids, case.weights, *weights, shared_pair, case.shared[1], layer=layer)
        assert torch.equal(other, out)
        for a, b in zip(case.gradients(other), want):
            assert torch.equal(a, b)


def test_shapes_strides_and_no_expert(group, device):
    case = Case(device, N=48)
    layer = group.layer(max_tokens=48, **case.sizes)
    out = moe(case.x, case.ids, case.weights, case.gate_up, case.down, layer=layer)
    wide = torch.randn(48, 128, device=device).bfloat16()
    wide[:, :64] = case.x.detach()
    shaped = moe(wide[:, :64].view(3, 16, 64), case.ids.view(3, 16, 3), case.weights.view(3, 16, 3).detach(),
                 case.gate_up, case.down, layer=layer)
    assert shaped.shape == (3, 16, 64) and torch.equal(shaped.view(48, 64), out)
    ids = case.ids.clone()
    ids[5] = -1
    broken = case.weights.detach().clone()
    broken[5] = float("nan")
    broken.requires_grad_()
    x = case.x.detach().requires_grad_()
    got = moe(x, ids, broken, case.gate_up, case.down, layer=layer)
    assert not got[5].any() and torch.equal(got[6:], out[6:])
    got.backward(case.dout)
    assert not broken.grad[5].any() and not x.grad[5].any() and torch.isfinite(x.grad).all()


def test_no_tokens(group, device):
    case = Case(device, N=4)
    layer = group.layer(max_tokens=8, **case.sizes)
    x = case.x.detach()[:0].requires_grad_()
    out = moe(x, case.ids[:0], case.weights.detach()[:0], case.gate_up, case.down, layer=layer)
    assert out.shape == (0, 64)
    out.sum().backward()
    assert x.grad.shape == (0, 64) and not case.gate_up.grad.any() and not case.down.grad.any()


def test_without_gradients_nothing_is_kept(group, device):
    case = Case(device)
    layer = group.layer(max_tokens=64, **case.sizes)
    out = moe(case.x, case.ids, case.weights, case.gate_up, case.down, layer=layer)
    assert len(contexts(layer)) == 1
    with torch.no_grad():
        assert torch.equal(moe(case.x, case.ids, case.weights, case.gate_up, case.down, layer=layer), out)
    assert len(contexts(layer)) == 1
    del out
    assert not contexts(layer)


def test_only_what_needs_gradients(group, device):
    case = Case(device)
    layer = group.layer(max_tokens=64, **case.sizes)

    def run(*frozen):
        for t in case.leaves():
            t.requires_grad_(all(t is not f for f in frozen))
        return case.gradients(moe(case.x, case.ids, case.weights, case.gate_up, case.down, layer=layer))

    dx, dweights, gate_up, down = run()
    for frozen, want in (((case.x, case.weights), (None, None, gate_up, down)),
                         ((case.gate_up, case.down), (dx, dweights, None, None)),
                         ((case.gate_up,), (dx, dweights, None, down)), ((case.weights,), (dx, None, gate_up, down))):
        for got, expected in zip(run(*frozen), want):
            assert (got is None) == (expected is None)
            assert got is None or torch.equal(got, expected)
