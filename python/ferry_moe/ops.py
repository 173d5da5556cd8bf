# SPDX-License-Identifier: Apache-2.0
"""The layer as custom operators `ferry::moe` and `ferry::moe_backward`, for torch.compile. They know a layer by its
number, which a compiled graph holds as a constant. Needs torch 2.4; older ones run moe() eagerly."""
from typing import List, Optional, Tuple

import torch
from torch import Tensor

from .autograd import Layout, run_backward, run_forward
from .layer import find_layer
from .load import Load


@torch.library.custom_op("ferry::moe", mutates_args=())
def _moe(x: Tensor, ids: Tensor, weights: Tensor, flat: List[Tensor], num_tokens: Optional[Tensor], layer: int,
         pair: bool, listed: int, shared: int, save: bool, load: bool) -> Tuple[Tensor, Tensor, Tensor, Tensor]:
    layout = Layout(pair, listed, shared)
    out, key, (rows, struct) = run_forward(find_layer(layer), x, ids, weights, layout, flat, save, load, num_tokens)
    if key is None:
        key = torch.zeros(1, dtype=torch.int64)
    if not load:
        rows, struct = x.new_empty(0, dtype=torch.int32), x.new_empty(0, dtype=torch.uint8)
    return out, key, rows, struct


@_moe.register_fake
def _(x, ids, weights, flat, num_tokens, layer, pair, listed, shared, save, load):
    experts = find_layer(layer).experts if load else 0
    return (torch.empty(x.shape, dtype=x.dtype, device=x.device), torch.empty(1, dtype=torch.int64),
            torch.empty(experts, dtype=torch.int32, device=x.device),
            torch.empty(Load.BYTES if load else 0, dtype=torch.uint8, device=x.device))


@torch.library.custom_op("ferry::moe_backward", mutates_args=())
def _moe_backward(key: Tensor, dout: Tensor, flat: List[Tensor], layer: int, pair: bool, listed: int, shared: int,
                  want_x: bool, want_weights: bool, wanted: List[bool]) -> Tuple[Tensor, Tensor, List[Tensor]]:
    layout = Layout(pair, listed, shared)
    dx, dweights, given = run_backward(find_layer(layer), key, dout, layout, flat, want_x, want_weights, wanted, {})
    nothing = dout.new_empty
    return (nothing(0) if dx is None else dx, nothing(0, dtype=torch.float32) if dweights is None else dweights,
            [nothing(0) if g is None else g for g in given])


@_moe_backward.register_fake
def _(key, dout, flat, layer, pair, listed, shared, want_x, want_weights, wanted):
    k = find_layer(layer).top_k
    new = dout.new_empty
    return (new(dout.shape if want_x else 0), new((dout.shape[0], k) if want_weights else 0, dtype=torch.float32),
            [torch.empty(t.shape if w else (0,), dtype=t.dtype, device=t.device) for t, w in zip(flat, wanted)])


def _setup(ctx, inputs, output):
    _, _, _, flat, _, layer, pair, listed, shared, save, _ = inputs
    ctx.what = (layer, pair, listed, shared)
    ctx.wants = (ctx.needs_input_grad[0], ctx.needs_input_grad[2], [t.requires_grad for t in flat])
    ctx.save_for_backward(output[1], *flat)


def _gradients(ctx, dout, _key, _rows, _struct):
    key, *flat = ctx.saved_tensors
    want_x, want_weights, wanted = ctx.wants
    dx, dweights, given = torch.ops.ferry.moe_backward(key, dout, flat, *ctx.what, want_x, want_weights, wanted)
    return (dx if want_x else None, None, dweights if want_weights else None,
            [g if w else None for g, w in zip(given, wanted)], *[None] * 7)


_moe.register_autograd(_gradients, setup_context=_setup)


def moe_op(layer, layout, x, ids, weights, flat, load, num_tokens):
    if any(hasattr(t, "main_grad") for t in flat):
        raise ValueError("ferry_moe: weights with a main_grad cannot be compiled; leave the block out of the graph "
                         "with torch.compiler.disable")
    save = torch.is_grad_enabled() and (x.requires_grad or weights.requires_grad or any(t.requires_grad for t in flat))
    out, _, rows, struct = torch.ops.ferry.moe(x, ids, weights, flat, num_tokens, layer.number, layout.pair,
                                               layout.listed, layout.shared, save, load)
    return out, (rows, struct)
