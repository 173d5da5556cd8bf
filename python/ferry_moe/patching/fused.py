# SPDX-License-Identifier: Apache-2.0
"""Experts kept as two tensors, gate_up_proj [E, 2I, H] and down_proj [E, H, I]: Ferry's own layout, so the parameters
stay what they are. With more than one rank they become the slices of this rank's experts, under the same names."""
import torch

from ..autograd import moe
from .parts import gather_experts

_NAMES = ("gate_up_proj", "down_proj")


class FusedExperts:
    """Goes before the experts' class: the block, its router and its shared experts are not touched."""

    def forward(self, hidden_states, top_k_index, top_k_weights):
        return moe(hidden_states, top_k_index, top_k_weights, self.gate_up_proj, self.down_proj, layer=self.ferry)


def sizes(experts):
    """Number of experts, hidden size, size of an expert."""
    count, both, hidden = experts.gate_up_proj.shape
    return count, hidden, both // 2


def place(block):
    """The module whose class changes, and what goes before it."""
    return block.experts, FusedExperts


def keep_local(experts, own):
    """Leaves only the experts in `own`. A state dict may bring these, or all. Returns hooks to remove."""
    total = sizes(experts)[0]
    if len(own) == total:
        return ()
    for name in _NAMES:
        p = getattr(experts, name)
        setattr(experts, name, torch.nn.Parameter(p.detach()[own.start:own.stop].clone(), p.requires_grad))

    def take_own(_, state, prefix, *__):
        for name in _NAMES:
            given = state.get(prefix + name)
            if given is not None and given.shape[0] == total:
                state[prefix + name] = given[own.start:own.stop]

    return (experts.register_load_state_dict_pre_hook(take_own),)


def all_experts(experts, total, group):
    """Collective: {name in the experts' module: its values for all experts}."""
    return {name: gather_experts(getattr(experts, name).detach(), total, group) for name in _NAMES}


def restore(experts, total, group):
    if experts.gate_up_proj.shape[0] == total:
        return
    for name, whole in all_experts(experts, total, group).items():
        setattr(experts, name, torch.nn.Parameter(whole, getattr(experts, name).requires_grad))
