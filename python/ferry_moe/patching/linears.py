# SPDX-License-Identifier: Apache-2.0
"""Experts kept as a ModuleList of three Linear each (transformers before version 5). Ferry takes their weights through
tables of pointers: nothing is copied or moved.

With more than one rank the other ranks' experts leave the ModuleList; those that stay keep their numbers."""
import torch

from ..autograd import moe
from .parts import gather_experts

_LINEARS = (("gate_proj", "up_proj", "down_proj"), ("w1", "w3", "w2"))  # the second names are Mixtral's


class LinearExperts:
    """Goes before the class of a block that routes by itself and returns the router's logits too."""

    def forward(self, hidden_states):
        if self.training and getattr(self, "jitter_noise", 0) > 0:
            noise = torch.empty_like(hidden_states).uniform_(1.0 - self.jitter_noise, 1.0 + self.jitter_noise)
            hidden_states = hidden_states * noise
        x = hidden_states.flatten(0, -2)
        logits = self.gate(x)
        weights, ids = torch.topk(torch.softmax(logits, 1, dtype=torch.float32), self.top_k, -1)
        if getattr(self, "norm_topk_prob", True):
            weights = weights / weights.sum(-1, keepdim=True)
        y = _run(self.experts, x, ids, weights.to(x.dtype))
        return y.view_as(hidden_states), logits


class LinearExpertsAfterRouter:
    """Goes before the class of a block whose router and shared experts stay what they are (DeepSeek-V3)."""

    def moe(self, hidden_states, topk_indices, topk_weights):
        return _run(self.experts, hidden_states, topk_indices, topk_weights)


def _run(experts, x, ids, weights):
    gate, up, down = matrices(experts)
    return moe(x, ids, weights, (gate, up), down, layer=experts.ferry)


def names(experts):
    first = next(iter(experts.children()))
    return next(n for n in _LINEARS if hasattr(first, n[0]))


def matrices(experts):
    """The weights of gates, ups and downs of the experts that are here, by number."""
    return [[getattr(e, name).weight for e in experts.children()] for name in names(experts)]


def sizes(experts):
    """Number of experts, hidden size, size of an expert."""
    intermediate, hidden = matrices(experts)[0][0].shape
    return len(experts), hidden, intermediate


def place(block):
    """The module whose class changes, and what goes before it."""
    return block, LinearExpertsAfterRouter if hasattr(type(block), "moe") else LinearExperts


def keep_local(experts, own):
    """Leaves only the experts in `own`. A state dict may bring these, or all. Returns hooks to remove."""
    total = len(experts)
    if len(own) == total:
        return ()
    experts.others = {str(e): experts._modules.pop(str(e)).to("meta") for e in range(total) if e not in own}

    def take_own(_, state, prefix, *__):
        for name in [n for n in state if n.startswith(prefix) and int(n[len(prefix):].split(".")[0]) not in own]:
            del state[name]

    return (experts.register_load_state_dict_pre_hook(take_own),)


def all_experts(experts, total, group):
    """Collective: {name in the experts' module: its values for all experts}, one for every Linear."""
    found = {}
    for name, own in zip(names(experts), matrices(experts)):
        whole = gather_experts(torch.stack([w.detach() for w in own]), total, group)
        found.update((f"{e}.{name}.weight", whole[e]) for e in range(total))
    return found


def restore(experts, total, group):
    if len(experts) == total:
        return
    values, own = all_experts(experts, total, group), experts._modules
    experts._modules = {str(e): own.get(str(e)) or experts.others[str(e)] for e in range(total)}
    for name, value in values.items():
        expert, linear, _ = name.split(".")
        if expert in experts.others:
            old = getattr(experts.others[expert], linear)
            old.weight = torch.nn.Parameter(value.clone(), old.weight.requires_grad)
    del experts.others
