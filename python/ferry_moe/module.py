# SPDX-License-Identifier: Apache-2.0
"""FerryMoE: the layer with its parameters as a module."""
import torch
from torch import nn

from .autograd import moe
from .group import Group, default_group
from .router import Router


class FerryMoE(nn.Module):
    """An expert-parallel Mixture-of-Experts block. Making one is collective over its group.

    hidden, intermediate, experts, top_k    of the layer; experts of all ranks
    group          a ferry_moe.Group, a process group of torch.distributed, or None: all processes where
                   torch.distributed is in use, else this process alone
    shared         intermediate size of a shared expert; 0: none
    router         "softmax" or "sigmoid": a Router inside, called as block(x); None: called as block(x, ids, weights)
    norm_topk, scaling, n_group, topk_group, correction    of the Router
    swiglu_limit, context_rows, expert_rank    of the Layer
    max_tokens     most tokens that a rank passes in one call
    load           True: after each forward, `self.load` is a ferry_moe.Load
    layer_options  further options of the Layer

    Parameters: gate_up [local experts, 2 I, H] with gate above up, and down [local experts, H, I] of this rank's
    experts (`expert_ids`); shared_gate_up [2 S, H] and shared_down [H, S]; router.weight [E, H]. Expert parameters have
    `expert_parallel` = True: their gradients already hold the tokens of all ranks of the group, so a data-parallel
    wrapper reduces them over other groups only. Blocks of one group that are alike share one Layer and its memory.
    """

    def __init__(self, hidden, intermediate, experts, top_k, group=None, shared=0, router="softmax", norm_topk=True,
                 scaling=1.0, n_group=1, topk_group=1, correction=False, swiglu_limit=0.0, dtype=torch.bfloat16,
                 device=None, *, max_tokens, context_rows=-1, expert_rank=None, load=False, **layer_options):
        super().__init__()
        if dtype != torch.bfloat16:
            raise ValueError(f"ferry_moe: dtype {dtype}, expected torch.bfloat16")
        self.group = group if isinstance(group, Group) else default_group(group, device)
        self.layer = self.group.layer(hidden=hidden, intermediate=intermediate, experts=experts, top_k=top_k,
                                      max_tokens=max_tokens, shared=shared, swiglu_limit=swiglu_limit,
                                      context_rows=context_rows, expert_rank=expert_rank, **layer_options)
        self.expert_ids = self.layer.expert_ids
        local, place = self.layer.local_experts, {"dtype": dtype, "device": self.group.device.name}
        self.router = None
        if router is not None:
            self.router = Router(hidden, experts, top_k, score=router, norm_topk=norm_topk, scaling=scaling,
                                 n_group=n_group, topk_group=topk_group, correction=correction, **place)
        self.gate_up = nn.Parameter(torch.empty(local, 2 * intermediate, hidden, **place))
        self.down = nn.Parameter(torch.empty(local, hidden, intermediate, **place))
        self.shared_gate_up = self.shared_down = None
        if shared:
            self.shared_gate_up = nn.Parameter(torch.empty(2 * shared, hidden, **place))
            self.shared_down = nn.Parameter(torch.empty(hidden, shared, **place))
        self.wants_load, self.load = load, None
        self.reset_parameters()

    def register_parameter(self, name, parameter):
        """Marks the experts', also those that take their place (a state dict that is assigned)."""
        super().register_parameter(name, parameter)
        if name in ("gate_up", "down"):
            parameter.expert_parallel = True

    def __setstate__(self, state):
        super().__setstate__(state)
        self.gate_up.expert_parallel = self.down.expert_parallel = True  # copies of parameters lose their attributes

    def reset_parameters(self):
        """Normal, with the standard deviation that keeps the size of values."""
        for weight in (self.gate_up, self.down, self.shared_gate_up, self.shared_down):
            if weight is not None:
                nn.init.normal_(weight, std=weight.shape[-1] ** -0.5)

    def forward(self, x, ids=None, weights=None, num_tokens=None):
        """x [..., H]; with no router inside, ids and weights [..., K]. The result has the shape and type of x."""
        shape, dtype = x.shape, x.dtype
        if shape[-1] != self.layer.hidden:
            raise ValueError(f"ferry_moe: x.shape[-1] is {shape[-1]}, expected hidden = {self.layer.hidden}")
        x = x.reshape(-1, shape[-1])
        if self.router is not None:
            if ids is not None or weights is not None:
                raise ValueError("ferry_moe: this block has a router of its own; make it with router=None to pass ids")
            ids, weights = self.router(x)
        elif ids is None or weights is None:
            raise ValueError("ferry_moe: this block has no router: pass ids and weights")
        out = moe(x.to(torch.bfloat16), ids, weights, self.gate_up, self.down, self.shared_gate_up,
                  self.shared_down, layer=self.layer, num_tokens=num_tokens, load=self.wants_load)
        if self.wants_load:
            out, self.load = out
        return out.to(dtype).view(shape)

    def extra_repr(self):
        layer = self.layer
        return (f"hidden={layer.hidden}, intermediate={layer.intermediate}, experts={layer.experts}, "
                f"top_k={layer.top_k}, shared={layer.shared}, max_tokens={layer.max_tokens}, group={self.group}")
