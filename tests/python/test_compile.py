# SPDX-License-Identifier: Apache-2.0
"""torch.compile(fullgraph=True): the same bits as eager, forward and backward."""
import pytest
import torch
from reference import Case, contexts

from ferry_moe import FerryMoE, moe

pytestmark = pytest.mark.skipif(not hasattr(torch.library, "custom_op"), reason="custom operators need torch 2.4")


@pytest.fixture(autouse=True)
def fresh():
    torch._dynamo.reset()


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_module(group, device, backend):
    torch.manual_seed(0)
    block = FerryMoE(32, 48, 6, 2, group, shared=16, max_tokens=64, load=True)
    x = torch.randn(40, 32, device=device, dtype=torch.bfloat16).requires_grad_()
    dout = torch.randn_like(x)
    compiled = torch.compile(block, fullgraph=True, backend=backend)

    def step(f):
        x.grad = None
        block.zero_grad()
        block.load = None
        out = f(x)
        out.backward(dout)
        return [out, x.grad, block.load.expert_rows] + [p.grad for p in block.parameters()]

    want = step(block)
    for _ in range(2):
        for a, b in zip(step(compiled), want):
            assert torch.equal(a, b)
    assert not contexts(block.layer)  # contexts go with compiled graphs too
    with torch.no_grad():
        assert torch.equal(compiled(x), want[0])


def test_other_numbers_of_tokens(group, device):
    torch.manual_seed(0)
    block = FerryMoE(32, 48, 6, 2, group, max_tokens=64)
    compiled = torch.compile(block, fullgraph=True, backend="aot_eager")
    for n in (40, 20, 33, 64):
        x, other = (torch.full((n, 32), 0.5 + n / 64, device=device).requires_grad_() for _ in range(2))
        want, out = block(x), compiled(other)
        want.sum().backward()
        out.sum().backward()
        assert torch.equal(out, want) and torch.equal(x.grad, other.grad)


def test_weights_in_pairs_and_frozen(group, device):
    case = Case(device, S=16)
    layer = group.layer(max_tokens=64, **case.sizes)
    I = case.sizes["intermediate"]

    def call():
        gate, up = case.gate_up[:, :I], case.gate_up[:, I:]
        return moe(case.x, case.ids, case.weights, (gate, up), case.down, *case.shared, layer=layer)

    case.down.requires_grad_(False)
    want = case.gradients(call())
    for a, b in zip(case.gradients(torch.compile(call, fullgraph=True, backend="aot_eager")()), want):
        assert (a is None) == (b is None) and (a is None or torch.equal(a, b))


def test_operators_have_right_fakes(group, device):
    case = Case(device, N=5)
    layer = group.layer(max_tokens=64, **case.sizes)
    weights = [case.gate_up, case.down]
    arguments = (case.x, case.ids, case.weights, weights, None, layer.number, False, -1, 0, True, True)
    torch.library.opcheck(torch.ops.ferry.moe, arguments, test_utils=("test_schema", "test_faketensor",
                                                                      "test_autograd_registration"))


def test_main_grad_is_refused(group, device):
    case = Case(device)
    layer = group.layer(max_tokens=64, **case.sizes)
    case.down.main_grad = torch.zeros(case.down.shape, device=device)
    with pytest.raises(Exception, match="main_grad cannot be compiled"):
        torch.compile(lambda: moe(case.x, case.ids, case.weights, case.gate_up, case.down, layer=layer), fullgraph=True,
                      backend="eager")()
