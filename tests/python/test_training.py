# SPDX-License-Identifier: Apache-2.0
"""What training does with the layer: main gradients, contexts in flight, checkpointing, a falling loss."""
import gc
import weakref

import pytest
import torch
from reference import Case, apart, contexts
from torch.utils.checkpoint import checkpoint

import ferry_moe
from ferry_moe import FerryError, functional, moe
from ferry_moe.layer import new_context


def call(case, layer, **more):
    return moe(case.x, case.ids, case.weights, case.gate_up, case.down, *case.shared, layer=layer, **more)


def test_main_grad_gets_the_sum(group, device):
    case = Case(device, S=16)
    layer = group.layer(max_tokens=64, **case.sizes)
    want = case.gradients(call(case, layer))
    start = {}
    for t in (case.gate_up, case.down, *case.shared):
        start[t] = torch.randn(t.shape, device=device)
        t.main_grad = start[t].clone()
        t.grad_added_to_main_grad = False
    for _ in range(2):
        got = case.gradients(call(case, layer))
        assert torch.equal(got[0], want[0]) and torch.equal(got[1], want[1]) and got[2:] == [None] * 4
    for t, g in zip((case.gate_up, case.down, *case.shared), want[2:]):
        assert t.grad_added_to_main_grad
        assert apart(t.main_grad - start[t], 2 * g.float()) < 4e-3
    del case.down.main_grad
    got = case.gradients(call(case, layer))
    assert got[2] is None and torch.equal(got[3], want[3])


def test_main_grad_of_some_matrices_of_a_list(group, device):
    case = Case(device)
    layer = group.layer(max_tokens=64, **case.sizes)
    ups, downs = ([m.detach().requires_grad_() for m in t] for t in (case.gate_up, case.down))
    ups[0].main_grad = torch.zeros_like(ups[0], dtype=torch.float32)
    with pytest.raises(ValueError, match="1 of 8 tensors of gate_up have a main_grad"):
        moe(case.x, case.ids, case.weights, ups, downs, layer=layer)


def test_hooks_of_a_weight_with_main_grad_run(group, device):
    case = Case(device)
    layer = group.layer(max_tokens=64, **case.sizes)
    case.down.main_grad = torch.zeros(case.down.shape, device=device)
    ran = []
    node = case.down.expand_as(case.down).grad_fn.next_functions[0][0]
    node.register_hook(lambda *_: ran.append(1))
    case.gradients(call(case, layer))
    assert ran == [1] and case.down.main_grad.any()


def test_several_forwards_in_flight(group, device):
    a, b = Case(device, seed=1), Case(device, seed=2, N=31)
    layer = group.layer(max_tokens=64, context_rows=64, **a.sizes)
    want = a.gradients(call(a, layer)), b.gradients(call(b, layer))
    outs = call(a, layer), call(b, layer)
    call(b, layer)  # dropped without a backward
    assert len(contexts(layer)) == 2
    for case, out, expected in ((a, outs[0], want[0]), (b, outs[1], want[1])):
        for x, y in zip(case.gradients(out), expected):
            assert torch.equal(x, y)
    del outs, out
    assert not contexts(layer)


def test_memory_goes_back_and_contexts_are_made_once(group, device):
    case = Case(device)
    layer = group.layer(max_tokens=64, **case.sizes)
    out = call(case, layer)
    memory = weakref.ref(contexts(layer)[0].memory)
    del out
    assert memory() is None
    for _ in range(100):
        call(case, layer)
    assert len(layer._handle.leaves) < 50  # the allocator gave few places

    room = torch.empty(layer.context_bytes + 256 * 1200, dtype=torch.uint8, device=device)
    first, key = new_context(layer, room)
    second, second_key = new_context(layer, room[256:])
    first.rows, first.dynamic, pointer = 7, True, first.pointer
    assert second.pointer != pointer
    del key
    assert first.memory is None and contexts(layer) == [second]
    again, key = new_context(layer, room)
    assert again is first and again.memory is room and again.pointer == pointer
    assert again.layer is layer and again.rows is None and not again.dynamic
    assert again not in layer.spare.values()
    for n in range(2, 1100):
        new_context(layer, room[256 * n:])
    assert len(layer.spare) <= 1024 and len(layer._handle.leaves) == len(layer.spare) + 2
    del key
    layer.destroy()
    for context in (first, second):
        with pytest.raises(FerryError, match="was destroyed"):
            context.pointer
    with pytest.raises(FerryError, match="this layer was destroyed"):
        call(case, layer)


def test_a_layer_goes_with_the_last_context(group, device):
    case = Case(device)
    layer = ferry_moe.Layer(group, max_tokens=64, **case.sizes)
    call(case, layer)
    out, gone = call(case, layer), weakref.ref(layer)
    del layer
    gc.disable()  # no ring of references may hold it either
    try:
        case.gradients(out)
        del out
        assert gone() is None
    finally:
        gc.enable()


def test_contexts_in_the_same_place_are_like_new_ones(group, device):
    case, fewer = Case(device), Case(device, N=20, seed=1)
    layer = group.layer(max_tokens=64, **case.sizes)
    want = {c: c.gradients(call(c, layer)) for c in (case, fewer)}
    layer.spare.clear()
    n = torch.tensor(50, dtype=torch.int32, device=device)
    bad = case.ids.clone()
    bad[3] = 99
    for _ in range(3):
        for c, more in ((case, {"num_tokens": n}), (fewer, {}), (case, {})):
            out = moe(c.x, c.ids, c.weights, c.gate_up, c.down, layer=layer, **more)
            assert contexts(layer)[0].dynamic == bool(more)
            for a, b in zip(c.gradients(out), want[c]):
                assert torch.equal(a, b)
            del out
        if device == "cpu":  # where it fails in the call
            with pytest.raises(FerryError, match="BAD_ID"):
                moe(case.x, bad, case.weights, case.gate_up, case.down, layer=layer)
        with pytest.raises(ValueError, match="x is"):
            moe(case.x[:, :32], case.ids, case.weights, case.gate_up, case.down, layer=layer)
        assert not contexts(layer)


def test_a_context_in_the_same_place_is_empty(group, device):
    """Its memory has been somebody else's since: what the last forward left there may not be read."""
    case = Case(device)
    layer = group.layer(max_tokens=64, **case.sizes)
    room = torch.empty(layer.context_bytes + 256, dtype=torch.uint8, device=device)
    context, key = new_context(layer, room)
    weights = case.gate_up.detach(), case.down.detach()
    out = functional.forward(layer, case.x.detach(), case.ids, case.weights.detach(), *weights, context=context)
    functional.backward(layer, context, case.dout, *weights, dx=torch.empty_like(out))
    del key
    room.fill_(0xff)
    again, key = new_context(layer, room)
    assert again is context
    with pytest.raises(FerryError, match="the context is empty"):
        functional.backward(layer, again, case.dout, *weights, dx=torch.empty_like(out))


@pytest.mark.parametrize("reentrant", [False, True])
def test_checkpointing_gives_the_same_bits(group, device, reentrant):
    case = Case(device, S=16)
    layer = group.layer(max_tokens=64, **case.sizes)
    plain_out = call(case, layer)
    want = case.gradients(plain_out)
    del plain_out

    def block(x, weights):
        return moe(x, case.ids, weights, case.gate_up, case.down, *case.shared, layer=layer)

    out = checkpoint(block, case.x, case.weights, use_reentrant=reentrant)
    assert not contexts(layer)  # the forward's context is gone until the block is computed again
    for x, y in zip(case.gradients(out), want):
        assert torch.equal(x, y)
    assert not contexts(layer)


def test_contexts_without_rows_give_the_same_bits(group, device):
    case = Case(device, S=16)
    full = group.layer(max_tokens=64, **case.sizes)
    lean = group.layer(max_tokens=64, context_rows=0, **case.sizes)
    assert lean.context_bytes < full.context_bytes / 2
    for x, y in zip(case.gradients(call(case, lean)), case.gradients(call(case, full))):
        assert torch.equal(x, y)


def test_a_key_moved_elsewhere_is_an_error(group, device):
    case = Case(device)
    layer = group.layer(max_tokens=64, **case.sizes)
    with torch.autograd.graph.saved_tensors_hooks(lambda t: t.clone(), lambda t: t):
        out = call(case, layer)
    with pytest.raises(ferry_moe.FerryError, match="context of this forward is gone"):
        case.gradients(out)


def test_a_module_learns(group, device):
    torch.manual_seed(0)
    block = ferry_moe.FerryMoE(32, 48, 6, 2, group, shared=16, max_tokens=64)
    assert block.layer is ferry_moe.FerryMoE(32, 48, 6, 2, group, shared=16, max_tokens=64).layer
    x = torch.randn(64, 32, device=device)
    target = torch.randn(64, 32, device=device)
    optimizer = torch.optim.Adam(block.parameters(), lr=1e-2)
    losses = []
    for _ in range(30):
        optimizer.zero_grad()
        loss = (block(x) - target).square().mean()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert all(p.grad is not None for p in block.parameters())
    assert losses[-1] < 0.8 * losses[0]
    loaded = ferry_moe.FerryMoE(32, 48, 6, 2, group, shared=16, max_tokens=64)
    loaded.load_state_dict(block.state_dict())
    with torch.no_grad():
        assert torch.equal(loaded(x), block(x))
