# SPDX-License-Identifier: Apache-2.0
"""The layer as a differentiable function of PyTorch.

What a forward leaves for its backward is a context in memory of PyTorch's allocator. It hangs on a one-element tensor
on the CPU, its key, which is what autograd saves: when autograd lets go of the key (after the backward, when the graph
is dropped, or when activation checkpointing throws saved tensors away), the context goes too, its memory at once.
"""
import torch

from . import _types as T
from . import functional
from ._library import fail
from .layer import find_context, new_context
from .load import Load


class Layout:
    """How the weights of a call are given: what turns them into one flat list of tensors, and back."""
    __slots__ = ("pair", "listed", "shared")

    def __init__(self, pair, listed, shared):
        self.pair = pair  # gate and up apart
        self.listed = listed  # number of matrices in each list; -1: one stacked tensor
        self.shared = shared  # 0: no shared expert, 1: gate and up in one, 2: apart

    @staticmethod
    def flatten(gate_up, down, shared_gate_up, shared_down):
        if shared_gate_up is None and isinstance(gate_up, torch.Tensor) and isinstance(down, torch.Tensor):
            return _STACKED, [gate_up, down]
        pair, listed = isinstance(gate_up, tuple), -1
        parts = list(gate_up) if pair else [gate_up]
        parts.append(down)
        if any(isinstance(p, list) for p in parts):
            listed = len(down)
            for p in parts:
                if not isinstance(p, list) or len(p) != listed:
                    raise ValueError(f"ferry_moe: weights in lists of different lengths, or only some in lists; "
                                     f"expected {listed} matrices in each, one per local expert, as in down")
            flat = [t for p in parts for t in p]
        else:
            flat = parts
        shared = 0
        if shared_gate_up is not None:
            shared = 2 if isinstance(shared_gate_up, tuple) else 1
            flat = flat + (list(shared_gate_up) if shared == 2 else [shared_gate_up]) + [shared_down]
        return Layout(pair, listed, shared), flat

    def restore(self, flat):
        """gate_up, down, shared_gate_up, shared_down as they were given."""
        if self is _STACKED:
            return flat[0], flat[1], None, None
        flat = list(flat)

        def take():
            if self.listed < 0:
                return flat.pop(0)
            part = flat[:self.listed]
            del flat[:self.listed]
            return part

        gate_up = (take(), take()) if self.pair else take()
        down = take()
        if not self.shared:
            return gate_up, down, None, None
        shared = (flat[0], flat[1]) if self.shared == 2 else flat[0]
        return gate_up, down, shared, flat[-1]

    def groups(self):
        """Of each group of weights that has one beta: its name, and how many tensors of the flat list it takes."""
        each = 1 if self.listed < 0 else self.listed
        groups = [("gate_up", 2 * each if self.pair else each), ("down", each)]
        return groups + ([("shared_gate_up", self.shared), ("shared_down", 1)] if self.shared else [])


_STACKED = Layout(False, -1, 0)  # the common one: two tensors


def _in_rows(tensor):
    """The tensor as rows that the library reads: a gradient or an input may be expanded, transposed or a slice."""
    if not tensor.is_contiguous():
        row, column = tensor.stride()
        if column != 1 or row < tensor.shape[1] or row % 8:
            tensor = tensor.contiguous()
    # A slice of a flat buffer is contiguous wherever it begins; GPUs read 16 bytes at a time.
    return tensor.clone() if tensor.data_ptr() % 16 else tensor


def run_forward(layer, x, ids, weights, layout, flat, save, load, num_tokens):
    """Returns out, the key (None unless `save`), and the load (None unless wanted)."""
    context = key = None
    if save:
        # Of x's type, told by its size alone: torch.empty takes the host longer.
        context, number = new_context(layer, x.new_empty(layer.context_room))
        key = torch.frombuffer(number, dtype=torch.int64)
        context.dynamic = num_tokens is not None
    rows = struct = None
    if load:
        rows = torch.empty(layer.experts, dtype=torch.int32, device=x.device)
        struct = torch.empty(Load.BYTES, dtype=torch.uint8, device=x.device)
    x = _in_rows(x)
    # Rows behind a number of tokens that only the device knows are not written.
    out = None if num_tokens is None else torch.zeros(x.shape, dtype=x.dtype, device=x.device)
    # Not passed with a star: beside named arguments that makes a dict of them first.
    gate_up, down, shared_gate_up, shared_down = layout.restore(flat)
    out = functional.forward(layer, x, ids, weights, gate_up, down, shared_gate_up, shared_down, out=out,
                             context=context, num_tokens=num_tokens, expert_rows=rows, load=struct)
    return out, key, (rows, struct)


def main_grads(layout, flat, ctx):
    """By group of weights that have any: the list of `main_grad` of its tensors. `ctx` is asked only then: it makes a
    tuple of what is wanted."""
    found, at = {}, 0
    for t in flat:
        if getattr(t, "main_grad", None) is not None:
            break
    else:
        return found  # the common case, and a loop is faster here than all()
    wanted = ctx.needs_input_grad[3:]
    for name, count in layout.groups():
        part = flat[at:at + count]
        mains = [getattr(t, "main_grad", None) if want else None for t, want in zip(part, wanted[at:at + count])]
        with_main = sum(m is not None for m in mains)
        if with_main not in (0, count):
            raise ValueError(f"ferry_moe: {with_main} of {count} tensors of {name} have a main_grad, "
                             f"expected all or none")
        if with_main:
            found[name] = mains
        at += count
    return found


def run_backward(layer, key, dout, layout, flat, want_x, want_weights, wanted, mains):
    """Returns dx, dweights and the flat list of weight gradients; None where not wanted, or added to a main_grad."""
    context = find_context(int(key))
    dout = _in_rows(dout)
    count, device = dout.shape[0], dout.device
    data, weight = want_x or want_weights, any(wanted)
    parts = (T.DATA if data else 0) | (T.WEIGHT if weight else 0)
    new = torch.zeros if context.dynamic else torch.empty
    dx = new(dout.shape, dtype=dout.dtype, device=device) if data else None
    dweights = new((count, layer.top_k), dtype=torch.float32, device=device) if want_weights else None
    targets, given, betas, at = [], [], {}, 0
    for name, group in layout.groups():
        part, want = flat[at:at + group], wanted[at:at + group]
        at += group
        if name in mains:
            betas[name] = 1.0
            for t in part:
                if hasattr(t, "grad_added_to_main_grad"):
                    t.grad_added_to_main_grad = True
            targets += [m.view(t.shape) for m, t in zip(mains[name], part)]
            given += [None] * group
            continue
        if any(want):
            fresh = [torch.empty(t.shape, dtype=t.dtype, device=device) for t in part]
            given += [g if w else None for g, w in zip(fresh, want)]
        else:
            fresh = [None] * group
            given += fresh
        targets += fresh
    gradients = [_absent(g) for g in layout.restore(targets)]
    functional.backward(layer, context, dout, *layout.restore(flat), dx=dx, dweights=dweights, d_gate_up=gradients[0],
                        d_down=gradients[1], d_shared_gate_up=gradients[2], d_shared_down=gradients[3], beta=betas,
                        parts=parts)
    return dx if want_x else None, dweights, given


def _absent(gradient):
    """None for a group of which nothing is wanted."""
    first = gradient
    while isinstance(first, (tuple, list)) and first:
        first = first[0]
    return None if first is None else gradient


class _NotTwice(torch.autograd.Function):
    """A gradient that is not differentiated again."""

    @staticmethod
    def forward(ctx, gradient):
        return gradient.view_as(gradient)

    @staticmethod
    def backward(ctx, _):
        raise RuntimeError("ferry_moe: the layer has no second derivative (a backward with create_graph=True was "
                           "differentiated)")


class _Moe(torch.autograd.Function):
    """Every argument costs the host time, tensors most: what gets no gradient comes in one tuple, `told`. The load goes
    into the list at its end."""

    @staticmethod
    def forward(ctx, told, x, weights, *flat):
        layer, layout, ids, num_tokens, load, found = told
        out, key, found[:] = run_forward(layer, x, ids, weights, layout, flat, True, load, num_tokens)
        ctx.save_for_backward(key, *flat)
        ctx.call = layer, layout, main_grads(layout, flat, ctx)
        return out

    @staticmethod
    def backward(ctx, dout):
        if not torch.is_grad_enabled():
            return _Moe.gradients(ctx, dout)
        with torch.no_grad():
            found = _Moe.gradients(ctx, dout)
        return tuple(None if g is None else _NotTwice.apply(g.requires_grad_()) for g in found)

    @staticmethod
    def gradients(ctx, dout):
        layer, layout, mains = ctx.call
        key, *flat = ctx.saved_tensors
        _, want_x, want_weights, *wanted = ctx.needs_input_grad
        dx, dweights, given = run_backward(layer, key, dout, layout, flat, want_x, want_weights, wanted, mains)
        return (None, dx, dweights, *given)


def _never():
    return False


# Many releases of torch look for transforms of torch.func in a Python part of `apply`, which takes a third of its time.
# Only where there is one, for which it has the right error, is it needed.
_transformed = getattr(torch._C, "_are_functorch_transforms_active", _never)
_apply = super(torch.autograd.Function, _Moe).apply


def moe(x, ids, weights, gate_up, down, shared_gate_up=None, shared_down=None, *, layer, num_tokens=None, load=False):
    """out[t] = shared(x[t]) + sum over k of weights[t, k] * expert ids[t, k] of x[t], differentiable; collective.

    x          [..., H] BF16, at most layer.max_tokens tokens
    ids        [..., K] int32 or int64 of all experts, -1: none; weights: [..., K], computed with in F32
    gate_up, down, shared_gate_up, shared_down    see ferry_moe.functional
    num_tokens    int32 scalar tensor on the device, for captured graphs: tokens behind it give zeros
    load       True: returns (out, Load)

    Gradients go to x, weights and the experts' weights. A weight with a `main_grad` (F32 or BF16, of the weight's
    shape) gets its gradient added there and no gradient of its own (hooks of its AccumulateGrad node still run); where
    it has the attribute `grad_added_to_main_grad`, that is set to True. Gradients of experts are complete: they hold
    the tokens of all ranks. Those of the shared expert hold this rank's tokens only, as those of any layer outside.
    """
    shape = x.shape
    if len(shape) != 2:
        x, ids, weights = (t.reshape(-1, t.shape[-1]) for t in (x, ids, weights))
    if weights.dtype != torch.float32:
        weights = weights.float()
    if not (ids.is_contiguous() and weights.is_contiguous()):
        ids, weights = ids.contiguous(), weights.contiguous()
    layout, flat = Layout.flatten(gate_up, down, shared_gate_up, shared_down)
    if _compiling():
        out, found = _ops.moe_op(layer, layout, x, ids, weights, flat, load, num_tokens)
    elif torch.is_grad_enabled() and (x.requires_grad or weights.requires_grad or any(t.requires_grad for t in flat)):
        found = [None, None]
        apply = _Moe.apply if _transformed() else _apply
        out = apply((layer, layout, ids, num_tokens, load, found), x, weights, *flat)
    else:
        out, _, found = run_forward(layer, x, ids, weights, layout, flat, False, load, num_tokens)
    out = out if len(shape) == 2 else out.view(shape)
    return (out, Load(*found)) if load else out


_compiling = getattr(getattr(torch, "compiler", None), "is_compiling", _never)
# Here, because the operators are made of the functions above; torch before 2.4 has none.
if hasattr(torch.library, "custom_op"):
    from . import ops as _ops  # noqa: E402
else:
    _compiling = _never
