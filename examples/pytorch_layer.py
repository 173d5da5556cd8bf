# SPDX-License-Identifier: Apache-2.0
"""An expert-parallel MoE block in a training loop, on one process or several of one machine:

    python3 examples/pytorch_layer.py
    torchrun --nproc-per-node=2 examples/pytorch_layer.py

Every rank has its own tokens and its own experts. The experts' gradients are complete after the backward; those of all
other parameters are averaged over the ranks. Runs on a GPU where there is one; --device cpu keeps it off.
"""
import argparse
import os

import torch
import torch.distributed as dist

import ferry_moe

parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
parser.add_argument("--steps", type=int, default=40)
options = parser.parse_args()

ranks, rank = int(os.environ.get("WORLD_SIZE", 1)), int(os.environ.get("RANK", 0))
device = torch.device(options.device, int(os.environ.get("LOCAL_RANK", 0)) if options.device == "cuda" else None)
if device.type == "cuda":
    torch.cuda.set_device(device)
if ranks > 1:
    dist.init_process_group("nccl" if device.type == "cuda" else "gloo")

torch.manual_seed(0)  # alike on all ranks: the router
block = ferry_moe.FerryMoE(hidden=64, intermediate=128, experts=8, top_k=2, shared=64, max_tokens=256, device=device)
torch.manual_seed(1 + rank)  # this rank's tokens
x = torch.randn(256, 64, device=device)
target = x.roll(1, dims=1)
optimizer = torch.optim.AdamW(block.parameters(), lr=1e-2)

for step in range(options.steps):
    optimizer.zero_grad()
    loss = (x + block(x) - target).square().mean()
    (loss / ranks).backward()
    if ranks > 1:
        for parameter in block.parameters():
            if not getattr(parameter, "expert_parallel", False):
                total = parameter.grad.float()
                dist.all_reduce(total)
                parameter.grad.copy_(total)
        dist.all_reduce(loss.detach_(), op=dist.ReduceOp.SUM)
    optimizer.step()
    if rank == 0 and step % 10 == 9:
        print(f"step {step + 1:3d}  loss {loss.item() / ranks:.4f}")

if ranks > 1:
    dist.destroy_process_group()
