# SPDX-License-Identifier: Apache-2.0
"""Logging how evenly a router loads experts and ranks, without waiting for the device in a step:

    python3 examples/load_statistics.py
    torchrun --nproc-per-node=2 examples/load_statistics.py

The statistics are tensors on the device. Steps leave them there; a few steps later, when they are long finished, one
copy brings a number of them to the host.
"""
import os

import torch
import torch.distributed as dist

import ferry_moe

ranks, rank = int(os.environ.get("WORLD_SIZE", 1)), int(os.environ.get("RANK", 0))
device = torch.device("cpu")
if torch.cuda.is_available():
    device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", 0)))
    torch.cuda.set_device(device)
if ranks > 1:
    dist.init_process_group("nccl" if device.type == "cuda" else "gloo")

torch.manual_seed(0)
block = ferry_moe.FerryMoE(hidden=64, intermediate=64, experts=16, top_k=2, max_tokens=256, device=device, load=True)
with torch.no_grad():
    block.router.weight[3] += 0.1  # a favourite
torch.manual_seed(1 + rank)

waiting = []
for step in range(12):
    x = torch.randn(256, 64, device=device) + 0.2
    block(x).sum().backward()
    waiting.append((step, block.load))
    if len(waiting) == 4:  # log the four steps before this one
        numbers = torch.stack([torch.stack([load.overload, load.expert_overload]) for _, load in waiting]).tolist()
        for (logged, load), (overload, expert) in zip(waiting, numbers):
            if rank == 0:
                print(f"step {logged:2d}  busiest rank {overload:.2f} x mean, busiest expert {expert:.2f} x mean")
        waiting.clear()

if rank == 0:
    print("rows of each expert in the last step:", block.load.expert_rows.tolist())
    print(block.load.read())
if ranks > 1:
    dist.destroy_process_group()
