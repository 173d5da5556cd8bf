# SPDX-License-Identifier: Apache-2.0
"""A layer in a captured CUDA graph that is replayed with other tokens, other experts and another number of tokens.

    python3 examples/cuda_graph.py

Nothing in a call depends on values that the host knows: N is a tensor on the device.
"""
import torch

import ferry_moe
from ferry_moe import moe

if not torch.cuda.is_available():
    raise SystemExit("this example needs a CUDA device")

H, I, E, K, MOST = 1024, 512, 16, 4, 512
layer = ferry_moe.Group.single("cuda").layer(hidden=H, intermediate=I, experts=E, top_k=K, max_tokens=MOST)
torch.manual_seed(0)
bf16 = {"device": "cuda", "dtype": torch.bfloat16}
gate_up, down = torch.randn(E, 2 * I, H, **bf16) * 0.03, torch.randn(E, H, I, **bf16) * 0.04

# What the graph reads and writes, at the addresses that it was captured with.
x = torch.randn(MOST, H, **bf16).requires_grad_()
ids = torch.zeros(MOST, K, dtype=torch.int32, device="cuda")
weights = torch.rand(MOST, K, device="cuda").requires_grad_()
tokens = torch.zeros((), dtype=torch.int32, device="cuda")
dout = torch.randn(MOST, H, **bf16)


def step(x, ids, weights, **more):
    out = moe(x, ids, weights, gate_up, down, layer=layer, **more)
    return (out, *torch.autograd.grad(out, (x, weights), dout[:len(x)]))


def route(n):
    with torch.no_grad():
        x.normal_()
        weights.uniform_()
    ids.copy_(torch.rand(MOST, E, device="cuda").topk(K).indices)
    tokens.fill_(n)


route(MOST)
side = torch.cuda.Stream()
side.wait_stream(torch.cuda.current_stream())
with torch.cuda.stream(side):  # PyTorch wants a warm-up on a side stream
    step(x, ids, weights, num_tokens=tokens)
side.synchronize()
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    captured = step(x, ids, weights, num_tokens=tokens)

for n in (512, 1, 300, 0, 77):
    route(n)
    graph.replay()
    eager = step(x[:n], ids[:n], weights[:n])
    same = all(torch.equal(a[:n], b) for a, b in zip(captured, eager))
    print(f"{n:3d} tokens: {'the same bits as eager' if same else 'DIFFERENT'}")
    assert same
