# SPDX-License-Identifier: Apache-2.0
"""Expert parallel inside, data parallel outside: a small language model over bytes on a DeviceMesh (dp, ep).

    torchrun --nproc-per-node=4 examples/ddp_ep.py --ep 2 --steps 50
    torchrun --nproc-per-node=4 examples/ddp_ep.py --ep 2 --steps 100 --checkpoints out --resume

Every rank has its own tokens. The ranks of an "ep" group, processes of one machine, share the experts of every layer
among them; the "dp" groups connect ranks that have the same experts. So gradients of the dense part are averaged over
all ranks (DistributedDataParallel), those of experts over their "dp" group only: within "ep" Ferry has added them up.

Checkpoints: a folder for every saved step with a file of every rank, and the file `latest`, which names a folder once
all ranks are in it. When a process dies, the others end with an error; --resume goes on from `latest`.
"""
import argparse
import os
import pathlib

import ferry_moe
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.nn.parallel import DistributedDataParallel

TEXT = pathlib.Path(__file__).resolve().parent.parent / "data" / "pride-and-prejudice.txt"
LENGTH, SEQUENCES, HIDDEN, EXPERTS = 64, 4, 64, 8


class Block(nn.Module):
    def __init__(self, group):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(HIDDEN), nn.LayerNorm(HIDDEN)
        self.qkv, self.out = nn.Linear(HIDDEN, 3 * HIDDEN, bias=False), nn.Linear(HIDDEN, HIDDEN, bias=False)
        self.moe = ferry_moe.FerryMoE(HIDDEN, 2 * HIDDEN, EXPERTS, 2, group=group, max_tokens=SEQUENCES * LENGTH)

    def forward(self, x):
        q, k, v = self.qkv(self.norm1(x)).unflatten(-1, (3, 4, -1)).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(y.transpose(1, 2).flatten(2))
        return x + self.moe(self.norm2(x))


class Model(nn.Module):
    def __init__(self, group):
        super().__init__()
        self.bytes, self.places = nn.Embedding(256, HIDDEN), nn.Embedding(LENGTH, HIDDEN)
        self.blocks = nn.Sequential(Block(group), Block(group))
        self.head = nn.Linear(HIDDEN, 256, bias=False)

    def forward(self, text):
        x = self.blocks(self.bytes(text[:, :-1]) + self.places.weight)
        return F.cross_entropy(self.head(x).flatten(0, 1).float(), text[:, 1:].flatten())


def first_weights(model, experts):
    """The same model for every division of the ranks: an expert's weights depend on its number, not on who has it."""
    for index, (name, p) in enumerate(model.named_parameters()):
        numbers = model.blocks[0].moe.expert_ids if name in experts else [0]
        for values, number in zip(p.data if name in experts else [p.data], numbers):
            if values.dim() > 1:
                seeded = torch.Generator().manual_seed(1000 * index + number)
                values.copy_(torch.randn(values.shape, generator=seeded) * values.shape[-1] ** -0.5)


def save(folder, step, state):
    place = folder / f"step-{step:06d}"
    place.mkdir(parents=True, exist_ok=True)
    torch.save(state, place / f"rank-{dist.get_rank()}.pt")
    dist.barrier()
    if dist.get_rank() == 0:
        (folder / "latest.new").write_text(place.name)
        os.replace(folder / "latest.new", folder / "latest")


def batch(text, step):
    chosen = torch.Generator().manual_seed(step * 1000 + dist.get_rank())
    starts = torch.randint(len(text) - LENGTH - 1, (SEQUENCES, 1), generator=chosen).to(text.device)
    return text[starts + torch.arange(LENGTH + 1, device=text.device)].long()


def main():
    p = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    p.add_argument("--ep", type=int, default=1, help="ranks that share the experts; the others multiply the data")
    p.add_argument("--steps", type=int, default=20)
    p.add_argument("--every", type=int, default=10, help="steps between checkpoints")
    p.add_argument("--checkpoints", type=pathlib.Path, help="a folder")
    p.add_argument("--resume", action="store_true", help="go on from the latest checkpoint")
    o = p.parse_args()
    if "LOCAL_WORLD_SIZE" not in os.environ:
        p.error("start it by torchrun, for example: torchrun --nproc-per-node=4 examples/ddp_ep.py --ep 2")

    gpu = torch.cuda.device_count() >= int(os.environ["LOCAL_WORLD_SIZE"])
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if gpu else torch.device("cpu")
    if gpu:
        torch.cuda.set_device(device)
    dist.init_process_group("nccl" if gpu else "gloo")
    world = dist.get_world_size()
    mesh = init_device_mesh(device.type, (world // o.ep, o.ep), mesh_dim_names=("dp", "ep"))
    group = ferry_moe.Group(mesh.get_group("ep"), device)

    model = Model(group).to(device, torch.bfloat16)
    experts = {name: p for name, p in model.named_parameters() if getattr(p, "expert_parallel", False)}
    first_weights(model, experts)
    DistributedDataParallel._set_params_and_buffers_to_ignore_for_model(model, list(experts))
    # So asked, it keeps its buckets as they are; else it sorts them anew after the first step, and a training that goes
    # on would add up that step's gradients in another order than one that was never disturbed.
    parallel = DistributedDataParallel(model, find_unused_parameters=True)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    text = torch.frombuffer(bytearray(TEXT.read_bytes()), dtype=torch.uint8).to(device)

    first = 0
    if o.resume:
        latest = o.checkpoints / (o.checkpoints / "latest").read_text()
        state = torch.load(latest / f"rank-{dist.get_rank()}.pt", map_location=device)
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        first = state["step"]
    for step in range(first + 1, o.steps + 1):
        optimizer.zero_grad()
        loss = parallel(batch(text, step))
        loss.backward()
        for p in experts.values():
            dist.all_reduce(p.grad, group=mesh.get_group("dp"))
            p.grad /= world
        optimizer.step()
        mean = loss.detach()
        dist.all_reduce(mean)
        if dist.get_rank() == 0:
            print(f"step {step} loss {mean.item() / world:.6f}", flush=True)
        if o.checkpoints and step % o.every == 0:
            save(o.checkpoints, step, {"step": step, "model": model.state_dict(), "optimizer": optimizer.state_dict()})
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
