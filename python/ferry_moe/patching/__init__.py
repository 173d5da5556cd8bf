# SPDX-License-Identifier: Apache-2.0
"""Puts Ferry into the MoE blocks of Hugging Face transformers' models, in place, and takes it out again.

A block keeps its router, its shared experts, its parameters and their names; its class becomes a subclass of what it
was. Only the experts' products run elsewhere: ids and router weights go to Ferry as the block's own router makes them,
so its logits, the balancing loss and whatever else looks at the router see what they saw.

With more than one rank in the group a rank keeps its own experts only, and passes its own tokens. Gradients of experts
are sums over the tokens of all ranks of the group. Every rank calls the model equally often (in generation: the same
number of new tokens).
"""
import copy

import torch

from ..group import Group, default_group
from . import fused, linears
from .parts import own_experts

_BLOCKS = ("Qwen3MoeSparseMoeBlock", "OlmoeSparseMoeBlock", "MixtralSparseMoeBlock", "DeepseekV3MoE")


class _Patched:
    """What is remembered of a block: its layout's functions, the number of all ranks' experts, the group, its
    own class, hooks."""

    def __init__(self, layout, total, group, module, original, hooks):
        self.layout, self.total, self.group = layout, total, group
        self.module, self.original, self.hooks = module, original, hooks

    def __deepcopy__(self, memo):
        """Of a copied model: its modules and hooks are the copy's, the rest is common."""
        module, hooks = copy.deepcopy((self.module, self.hooks), memo)
        return _Patched(self.layout, self.total, self.group, module, self.original, hooks)


def _problem(name, what):
    return ValueError(f"ferry_moe.patch: {name} {what}")


def _is_block(module):
    return any(c.__name__ in _BLOCKS for c in type(module).__mro__)


def _check(name, experts, weight):
    activations = {type(m.act_fn).__name__ for m in experts.modules() if hasattr(m, "act_fn")}
    if not activations <= {"SiLU", "SiLUActivation"}:
        raise _problem(name, "has experts with another activation than SiLU, the only one that Ferry computes")
    if weight.dtype != torch.bfloat16:
        raise _problem(name, f"has experts of {weight.dtype}, expected torch.bfloat16: model.to(torch.bfloat16) first")
    if weight.is_meta:
        raise _problem(name, "has experts on the meta device: load the model first")


def _become(name, module, kind):
    """Changes the class. Some versions of transformers leave the class's forward on the object once they have recorded
    outputs there; it would hide the new one."""
    left = module.__dict__.get("forward")
    if left is not None:
        if getattr(left, "__func__", None) is not type(module).forward:
            raise _problem(name, "has a forward of other code on it (hooks of accelerate, say): patch before them")
        del module.__dict__["forward"]
    module.__class__ = kind


def patch(model, group=None, max_tokens=8192, **layer_options):
    """Swaps the experts of every MoE block of `model` for Ferry's; returns the model. Collective over the group.

    group          a ferry_moe.Group, or a process group of torch.distributed; None: all processes where
                   torch.distributed is in use, else this process alone. Its ranks share the experts
    max_tokens     most tokens that a rank passes in one forward (sequences x length); memory grows with it
    layer_options  further arguments of ferry_moe.Layer, such as context_rows

    Make optimizers afterwards: with more than one rank the experts' parameters are new ones.
    """
    blocks = [(name, m) for name, m in model.named_modules() if _is_block(m)]
    if not blocks:
        raise ValueError(f"ferry_moe.patch: {type(model).__name__} has no block that Ferry knows: {', '.join(_BLOCKS)}")
    for name, block in blocks:
        if hasattr(block, "_ferry"):
            raise _problem(name, "is patched already: ferry_moe.unpatch(model) first")
        _check(name, block.experts, next(block.experts.parameters()))
    device = next(blocks[0][1].experts.parameters()).device
    if not isinstance(group, Group):
        group = default_group(group, device)
    for name, block in blocks:
        layout = linears if isinstance(block.experts, torch.nn.ModuleList) else fused
        total, hidden, intermediate = layout.sizes(block.experts)
        top_k = getattr(block.gate, "top_k", None) or block.top_k
        block.experts.ferry = group.layer(hidden=hidden, intermediate=intermediate, experts=total, top_k=top_k,
                                          max_tokens=max_tokens, **layer_options)
        module, extra = layout.place(block)
        original = type(module)
        _become(name, module, type("Ferry" + original.__name__, (extra, original), {}))
        hooks = layout.keep_local(block.experts, own_experts(total, group.rank, group.size))
        block._ferry = _Patched(layout, total, group, module, original, hooks)
    return model


def _process_group(group):
    if group.size == 1:
        return None
    return group.process_group or torch.distributed.group.WORLD


def unpatch(model):
    """Gives every block back its own experts' code, and all experts where a rank had its own only: collective then."""
    for name, block in [(name, m) for name, m in model.named_modules() if hasattr(m, "_ferry")]:
        p = block._ferry
        _become(name, p.module, p.original)
        for hook in p.hooks:
            hook.remove()
        p.layout.restore(block.experts, p.total, _process_group(p.group))
        del block.experts.ferry, block._ferry
    return model


def full_state_dict(model):
    """The state dict that the model had without patching, all experts included: collective, equal names, on every rank.
    `model.state_dict()` alone has this rank's experts; `load_state_dict` takes both."""
    state = model.state_dict()
    for name, block in model.named_modules():
        if hasattr(block, "_ferry"):
            p = block._ferry
            prefix = (name + "." if name else "") + "experts."
            for inner, whole in p.layout.all_experts(block.experts, p.total, _process_group(p.group)).items():
                state[prefix + inner] = whole
    return state
