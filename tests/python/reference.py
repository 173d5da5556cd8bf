# SPDX-License-Identifier: Apache-2.0
"""A plain PyTorch MoE in FP64, and how far results are from it."""
import torch

OUT, GRADIENT = 4e-3, 6e-3  # bars of the relative distance


def swiglu(x, gate_up, down, limit=0.0):
    gate, up = (x @ gate_up.double().T).chunk(2, -1)
    if limit:
        gate, up = gate.clamp(max=limit), up.clamp(-limit, limit)
    return (torch.nn.functional.silu(gate) * up) @ down.double().T


def plain(x, ids, weights, gate_up, down, shared_gate_up=None, shared_down=None, limit=0.0):
    """gate_up and down index experts by their ids."""
    x = x.double()
    out = swiglu(x, shared_gate_up, shared_down, limit) if shared_gate_up is not None else torch.zeros_like(x)
    for e in range(len(gate_up)):
        token, slot = (ids == e).nonzero(as_tuple=True)
        y = swiglu(x[token], gate_up[e], down[e], limit)
        out = out.index_add(0, token, weights.double()[token, slot, None] * y)
    return out


def apart(a, b):
    """Relative L2 distance of a from b."""
    a, b = a.detach().double(), b.detach().double()
    assert a.shape == b.shape
    return ((a - b).norm() / b.norm().clamp_min(1e-30)).item()


def contexts(layer):
    """Those of forwards that autograd still holds."""
    from ferry_moe.layer import _contexts
    return [c for c in _contexts.values() if c.layer is layer]


def leaf(*shape, scale=1.0, device="cpu", dtype=torch.bfloat16):
    return (torch.randn(*shape, device=device) * scale).to(dtype).requires_grad_()


class Case:
    """Random inputs of a small layer, as leaves."""

    def __init__(self, device, H=64, I=96, E=8, K=3, N=50, S=0, seed=0, dtype=torch.int64):
        torch.manual_seed(seed)
        self.sizes = {"hidden": H, "intermediate": I, "experts": E, "top_k": K, "shared": S}
        self.x, self.dout = leaf(N, H, device=device), leaf(N, H, device=device).detach()
        self.ids = torch.stack([torch.randperm(E)[:K] for _ in range(N)]).to(device, dtype)
        self.weights = torch.rand(N, K, device=device).requires_grad_()
        self.gate_up = leaf(E, 2 * I, H, scale=H**-0.5, device=device)
        self.down = leaf(E, H, I, scale=I**-0.5, device=device)
        self.shared = ()
        if S:
            self.shared = leaf(2 * S, H, scale=H**-0.5, device=device), leaf(H, S, scale=S**-0.5, device=device)

    def leaves(self):
        return [self.x, self.weights, self.gate_up, self.down, *self.shared]

    def gradients(self, out):
        """Of all leaves, which then have none."""
        for t in self.leaves():
            t.grad = None
        out.backward(self.dout.to(out.dtype))
        found = [t.grad for t in self.leaves()]
        for t in self.leaves():
            t.grad = None
        return found

    def plain(self, limit=0.0):
        return plain(self.x, self.ids, self.weights, self.gate_up, self.down, *self.shared, limit=limit)
