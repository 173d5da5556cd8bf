# SPDX-License-Identifier: Apache-2.0
"""Routers: from token vectors to the experts of each token and their weights."""
import torch
from torch import nn


class Router(nn.Module):
    """top_k experts of each token, by scores that are computed in F32.

    score          "softmax" over all experts, or "sigmoid" of each
    norm_topk      divide the chosen scores by their sum
    scaling        multiplies the weights at the end
    n_group, topk_group    choose only from the topk_group best of n_group equal groups of experts; a group counts with
                   the sum of its two best scores
    correction     adds a buffer `correction_bias` [E] to the scores when choosing, never to the weights (the load
                   balancing of DeepSeek-V3); the caller changes it
    """

    def __init__(self, hidden, experts, top_k, *, score="softmax", norm_topk=True, scaling=1.0, n_group=1, topk_group=1,
                 correction=False, dtype=torch.bfloat16, device=None):
        super().__init__()
        if score not in ("softmax", "sigmoid"):
            raise ValueError(f"ferry_moe: score {score!r}, expected 'softmax' or 'sigmoid'")
        if top_k > experts:
            raise ValueError(f"ferry_moe: top_k is {top_k}, expected at most experts = {experts}")
        if experts % n_group or not 1 <= topk_group <= n_group or topk_group * (experts // n_group) < top_k:
            raise ValueError(f"ferry_moe: {topk_group} of {n_group} groups of {experts} experts, top {top_k}: expected "
                             f"equal groups, and as many experts in the chosen ones as a token takes")
        self.top_k, self.score, self.norm_topk, self.scaling = top_k, score, norm_topk, scaling
        self.n_group, self.topk_group = n_group, topk_group
        self.weight = nn.Parameter(torch.empty(experts, hidden, dtype=dtype, device=device))
        nn.init.normal_(self.weight, std=hidden ** -0.5)
        bias = torch.zeros(experts, dtype=torch.float32, device=device) if correction else None
        self.register_buffer("correction_bias", bias)

    def forward(self, x):
        """x [N, H]: ids [N, K] int64, weights [N, K] F32."""
        return self.choose(nn.functional.linear(x.float(), self.weight.float()))

    def choose(self, logits):
        """The same from logits [N, E]."""
        scores = logits.softmax(-1) if self.score == "softmax" else logits.sigmoid()
        wanted = scores.detach()
        if self.correction_bias is not None:
            wanted = wanted + self.correction_bias
        if self.n_group > 1:
            groups = wanted.view(-1, self.n_group, wanted.shape[-1] // self.n_group)
            best = groups.topk(min(2, groups.shape[-1]), -1).values.sum(-1).topk(self.topk_group, -1).indices
            kept = torch.zeros(groups.shape[:2], dtype=torch.bool, device=groups.device).scatter(1, best, True)
            wanted = groups.masked_fill(~kept.unsqueeze(-1), float("-inf")).flatten(1)
        ids = wanted.topk(self.top_k, -1).indices
        weights = scores.gather(-1, ids)
        if self.norm_topk:
            weights = weights / (weights.sum(-1, keepdim=True) + 1e-20)
        return ids, weights * self.scaling
