# SPDX-License-Identifier: Apache-2.0
"""The language model of train_e2e.py: Qwen3-30B-A3B's block (grouped-query attention with normed queries and keys,
rotary positions, experts with a normalised softmax top-k), any number of them. Experts are spread over all ranks, the
rest is on every rank. What runs the experts is given: moe(x, ids, weights, gate_up, down) -> out."""
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import nn


@dataclass
class Shape:
    layers: int = 12
    hidden: int = 2048
    heads: int = 32
    kv_heads: int = 4
    head_dim: int = 128
    experts: int = 128
    top_k: int = 8
    intermediate: int = 768
    vocab: int = 37984
    balance: float = 0.001  # weight of the balancing loss
    theta: float = 1e6


def rotations(shape, length, device):
    turns = shape.theta ** (-torch.arange(0, shape.head_dim, 2, device=device, dtype=torch.float32) / shape.head_dim)
    angle = torch.outer(torch.arange(length, device=device, dtype=torch.float32), turns).repeat(1, 2)
    return angle.cos().to(torch.bfloat16), angle.sin().to(torch.bfloat16)


def rotate(x, cos, sin):
    a, b = x.chunk(2, -1)
    return x * cos + torch.cat((-b, a), -1) * sin


class Attention(nn.Module):
    def __init__(self, s):
        super().__init__()
        self.shape = s
        self.qkv = nn.Linear(s.hidden, (s.heads + 2 * s.kv_heads) * s.head_dim, bias=False)
        self.out = nn.Linear(s.heads * s.head_dim, s.hidden, bias=False)
        self.q_norm, self.k_norm = (nn.RMSNorm(s.head_dim, eps=1e-6) for _ in range(2))

    def forward(self, x, cos, sin):
        s = self.shape
        heads = self.qkv(x).unflatten(-1, (-1, s.head_dim))
        q, k, v = heads.split((s.heads, s.kv_heads, s.kv_heads), 2)
        q = rotate(self.q_norm(q).transpose(1, 2), cos, sin)
        k = rotate(self.k_norm(k).transpose(1, 2), cos, sin)
        y = F.scaled_dot_product_attention(q, k, v.transpose(1, 2), is_causal=True, enable_gqa=True)
        return self.out(y.transpose(1, 2).flatten(2))


class Experts(nn.Module):
    def __init__(self, s, ranks):
        super().__init__()
        here = s.experts // ranks
        self.gate_up = nn.Parameter(torch.empty(here, 2 * s.intermediate, s.hidden))
        self.down = nn.Parameter(torch.empty(here, s.hidden, s.intermediate))


class Block(nn.Module):
    def __init__(self, s, moe, ranks):
        super().__init__()
        self.shape, self.moe = s, moe
        self.attention = Attention(s)
        self.router = nn.Linear(s.hidden, s.experts, bias=False)
        self.experts = Experts(s, ranks)
        self.norm1, self.norm2 = (nn.RMSNorm(s.hidden, eps=1e-6) for _ in range(2))

    def forward(self, x, cos, sin):
        s = self.shape
        x = x + self.attention(self.norm1(x), cos, sin)
        rows = self.norm2(x).flatten(0, 1)
        probabilities = torch.softmax(self.router(rows), -1, dtype=torch.float32)
        weights, ids = torch.topk(probabilities, s.top_k, -1)
        weights = weights / weights.sum(-1, keepdim=True)
        share = torch.zeros(s.experts, device=x.device).index_add_(
            0, ids.flatten(), torch.ones(ids.numel(), device=x.device)) / ids.numel()
        balance_loss = s.experts * (share * probabilities.mean(0)).sum()
        y = self.moe(rows, ids, weights, self.experts.gate_up, self.experts.down)
        return x + y.view_as(x), balance_loss


class Model(nn.Module):
    def __init__(self, shape, moe, ranks=1):
        super().__init__()
        self.shape = shape
        self.embed = nn.Embedding(shape.vocab, shape.hidden)
        self.blocks = nn.ModuleList(Block(shape, moe, ranks) for _ in range(shape.layers))
        self.norm = nn.RMSNorm(shape.hidden, eps=1e-6)
        self.head = nn.Linear(shape.hidden, shape.vocab, bias=False)

    def forward(self, tokens):
        """tokens [sequences, length + 1]; returns the loss that is trained, and the mean of -log p alone."""
        inputs, targets = tokens[:, :-1], tokens[:, 1:]
        cos, sin = rotations(self.shape, inputs.shape[1], inputs.device)
        x, balance_loss = self.embed(inputs), 0
        for block in self.blocks:
            x, more = block(x, cos, sin)
            balance_loss = balance_loss + more
        loss = F.cross_entropy(self.head(self.norm(x)).flatten(0, 1).float(), targets.flatten())
        return loss + self.shape.balance * balance_loss / len(self.blocks), loss.detach()


def expert_names(model):
    return [name for name, _ in model.named_parameters() if ".experts." in name]


def build(shape, moe, rank, ranks, device, seed=1):
    """A BF16 model with weights that depend on seed, shape and place in the group only."""
    with torch.device("meta"):
        model = Model(shape, moe, ranks)
    model = model.to(torch.bfloat16).to_empty(device=device)
    same, own = torch.Generator(device).manual_seed(seed), torch.Generator(device).manual_seed(seed + 1 + rank)
    theirs = set(expert_names(model))
    with torch.no_grad():
        for name, p in model.named_parameters():
            p.fill_(1) if p.dim() == 1 else p.normal_(0, 0.02, generator=own if name in theirs else same)
    return model
