# SPDX-License-Identifier: Apache-2.0
"""Arrays whose memory is not what it looks like: expanded, transposed, sliced, too small, on other terms."""
import random

import pytest
import torch
from reference import Case, apart, plain

import ferry_moe
from ferry_moe import functional, moe


def call(case, layer, **changed):
    names = ("x", "ids", "weights", "gate_up", "down")
    return moe(*[changed.get(name, getattr(case, name)) for name in names], layer=layer)


def values(case):
    return [t.detach() for t in (case.x, case.ids, case.weights, case.gate_up, case.down)]


def test_gradients_that_are_expanded(group, device):
    case = Case(device)
    layer = group.layer(max_tokens=64, **case.sizes)
    row = case.dout[:1]
    for dout in (row.expand(50, 64), row[:, :1].expand(50, 64), case.dout.T.contiguous().T):
        got, want = (torch.autograd.grad(call(case, layer), case.leaves(), d) for d in (dout, dout.contiguous()))
        for a, b in zip(got, want):
            assert torch.equal(a, b)
    # What a mean over tokens hands to the backward.
    out, want = call(case, layer), case.plain()
    scale = torch.arange(64, device=device)
    got = torch.autograd.grad((out.float().mean(0) * scale).sum(), case.leaves())
    for a, b in zip(got, torch.autograd.grad((want.mean(0) * scale).sum(), case.leaves())):
        assert apart(a, b) < 6e-3


def test_inputs_that_are_expanded(group, device):
    case = Case(device)
    layer = group.layer(max_tokens=64, **case.sizes)
    wide = torch.zeros(50, 67, dtype=torch.bfloat16, device=device)
    wide[:, 1:65] = case.x.detach()
    with torch.no_grad():
        for x in (case.x[:1].expand(50, 64), case.x.T.contiguous().T, wide[:, 1:65], case.x.flip(0)[::2].repeat(2, 1)):
            assert torch.equal(call(case, layer, x=x), call(case, layer, x=x.contiguous()))
    x, ids, weights, gate_up, down = values(case)
    with pytest.raises(ValueError, match="rows of x are 0 elements apart, expected at least 64"):
        functional.forward(layer, x[:1].expand(50, 64), ids, weights, gate_up, down)


def test_arrays_that_are_too_small(group, device):
    case = Case(device)
    layer = group.layer(max_tokens=64, **case.sizes)
    given = values(case)

    def words(count, dtype=torch.int32):
        return torch.zeros(count, dtype=dtype, device=device)

    for more, says in (({"load": words(103, torch.uint8)}, "load has 103 bytes"),
                       ({"expert_rows": words(7)}, "expert_rows has 28 bytes in words of 4, expected 8 of 4"),
                       ({"expert_rows": words(8, torch.int64)}, "expert_rows has 64 bytes in words of 8"),
                       ({"expert_rows": words(16)[::2]}, "expert_rows is not contiguous"),
                       ({"num_tokens": words(1, torch.int64)}, r"num_tokens is \[1\] torch.int64, expected one I32"),
                       ({"num_tokens": words(2)}, "num_tokens is .2. torch.int32, expected one I32")):
        with pytest.raises(ValueError, match=says):
            functional.forward(layer, *given, **more)
    if device == "cpu":
        for n in (51, -1):
            with pytest.raises(ValueError, match=f"num_tokens is {n}, but x has 50 rows"):
                functional.forward(layer, *given, num_tokens=words(1) + n)
    # One matrix is not one for every expert.
    with pytest.raises(ValueError, match=r"gate_up is \[192, 64\]"):
        functional.forward(layer, *given[:3], case.gate_up[0].detach(), given[4])

    context = ferry_moe.Context(layer)
    more = {"dx": torch.empty_like(case.dout)}
    with pytest.raises(ferry_moe.FerryError, match="no forward has filled it"):
        functional.backward(layer, context, case.dout, *given[3:], **more)
    functional.forward(layer, *given, context=context)
    with pytest.raises(ValueError, match="ready has 28 bytes"):
        functional.backward(layer, context, case.dout, *given[3:], **more, ready=words(7))
    # A backward has the tokens of its forward, whatever the arrays say.
    with pytest.raises(ValueError, match=r"dout is \[5, 64\] torch.bfloat16, expected \[50, 64\]"):
        functional.backward(layer, context, case.dout[:5], *given[3:], dx=torch.empty_like(case.dout[:5]))
    ready = words(8)
    functional.backward(layer, context, case.dout, *given[3:], **more, d_down=torch.empty_like(given[4]), ready=ready,
                        ready_value=7)
    assert ready.tolist() == [7] * 8


def test_weights_that_are_no_tensors_are_not_mistaken(device):
    numpy = pytest.importorskip("numpy")
    if device != "cpu":
        pytest.skip("NumPy has host memory only")
    group = ferry_moe.Group.single("cpu")
    case = Case("cpu")
    layer = group.layer(max_tokens=64, **case.sizes)
    x, ids, weights, gate_up, down = values(case)
    bits = gate_up.view(torch.int16).numpy().view(numpy.uint16)
    want = functional.forward(layer, x, ids, weights, gate_up, down)
    assert torch.equal(functional.forward(layer, x, ids, weights, bits.copy(), down), want)
    # Beside the same tensor for `down`: other values in another array.
    assert not functional.forward(layer, x, ids, weights, numpy.zeros_like(bits), down).any()
    group.destroy()


def messy(tensor, pick):
    """The values in memory of another shape."""
    rows, columns = tensor.shape
    new = tensor.new_zeros
    to = [new(rows, columns), new(columns, rows).T, new(rows, columns + pick.choice([1, 3, 8]))[:, :columns],
          new(2 * rows, columns)[::2], new(rows, columns + 1)[:, 1:]][pick.randrange(5)]
    return to.copy_(tensor)


@pytest.mark.parametrize("seed", range(3))
def test_random_sequences_against_plain(group, device, seed):
    """Layers of any shape over one group, inputs of any layout, any gradients wanted, graphs kept and dropped."""
    pick, kept = random.Random(seed), []
    for step in range(25):
        E, N, limit = pick.choice([1, 2, 5, 17]), pick.choice([0, 1, 2, 33, 64]), pick.choice([0.0, 0.0, 2.0])
        K, S = pick.randint(1, min(E, 4)), pick.choice([0, 0, 8, 24])
        H, I = pick.choice([16, 64, 128]), pick.choice([16, 40, 96])
        case = Case(device, H=H, I=I, E=E, K=K, N=max(N, 1), S=S, seed=100 * seed + step,
                    dtype=pick.choice([torch.int32, torch.int64]))
        layer = ferry_moe.Layer(group, **case.sizes, max_tokens=max(N, 64), context_rows=pick.choice([-1, 0, 64]),
                                ring_rows=pick.choice([0, 64, 192]), swiglu_limit=limit)
        ids = case.ids[:N].clone()
        ids[::3, 0] = -1
        x, weights = (messy(t.detach()[:N], pick).requires_grad_(pick.random() < 0.8) for t in (case.x, case.weights))
        experts = [t.detach().requires_grad_(pick.random() < 0.7) for t in (case.gate_up, case.down, *case.shared)]
        out = moe(x, messy(ids, pick), weights, *experts, layer=layer)
        want = plain(x, ids, weights, *experts, limit=limit)
        assert out.shape == want.shape and (N == 0 or apart(out, want) < 1e-2), step
        wanted = [t for t in (x, weights, *experts) if t.requires_grad]
        if wanted:
            dout = pick.choice([messy(case.dout[:N], pick), case.dout[:1].expand(N, H)])
            got = torch.autograd.grad(out, wanted, dout, retain_graph=True)
            for a, b in zip(got, torch.autograd.grad(out, wanted, dout)):
                assert torch.equal(a, b), step
            for a, b in zip(got, torch.autograd.grad(want, wanted, dout.double(), allow_unused=True)):
                # Of a few tokens a sum may nearly cancel.
                b = torch.zeros_like(a) if b is None else b
                assert (a.double() - b).norm() <= 2e-2 * b.norm() + 1e-2, step
        kept.append(moe(x, ids, weights, *experts, layer=layer))
        if len(kept) > 4:
            kept.pop(pick.randrange(4))
        if pick.random() < 0.3:
            layer.destroy()
