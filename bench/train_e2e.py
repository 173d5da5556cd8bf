# SPDX-License-Identifier: Apache-2.0
"""End-to-end training of a Qwen3-30B-A3B-shaped model: NCCL + PyTorch experts, then Ferry's, in one run.

    torchrun --nproc-per-node=2 bench/train_e2e.py --json result.json --plot docs/train-e2e.svg
    torchrun --nproc-per-node=2 bench/train_e2e.py --tiny            (CPU, seconds)

Both ways start from the same weights, see the same tokens and differ in one function, the experts' layer. Experts are
spread over the ranks; attention, router, embedding and head are on every rank, their gradients are added up by
DistributedDataParallel while the backward runs. AdamW is PyTorch's fused one; weights, gradients and its two moments
are BF16. The model has fewer layers than 48, and a vocabulary smaller by the same factor, so that the output layer
keeps its share of the work; tokens are bytes of data/pride-and-prejudice.txt. A step is timed from one synchronisation
to the next; the first --warmup steps are not counted. Peak memory is what the device has in use beyond what it had
before the way began, PyTorch's cache included, read after every step.
"""
import argparse
import dataclasses
import os
import pathlib
import statistics
import sys
import time

HERE = pathlib.Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE / "gpu"), str(HERE.parent / "python")]

import common
import torch
import torch.distributed as dist
from common import RANK, WORLD
from torch.nn.parallel import DistributedDataParallel

import e2e_model
import ferry_moe
import loss_plot

TINY = e2e_model.Shape(layers=2, hidden=64, heads=4, kv_heads=2, head_dim=16, experts=8, top_k=2, intermediate=32,
                       vocab=256)


def sum_gradients(_, bucket):
    """Expert gradients are sums over the tokens of all ranks, so those of the dense part are sums as well."""
    work = dist.all_reduce(bucket.buffer(), async_op=True)
    return work.get_future().then(lambda done: done.value()[0])


class Text:
    def __init__(self, device):
        path = HERE.parent / "data" / "pride-and-prejudice.txt"
        self.bytes = torch.frombuffer(bytearray(path.read_bytes()), dtype=torch.uint8).to(device)

    def batch(self, step, sequences, length):
        """Other places for every step and rank, the same for every way."""
        chosen = torch.Generator().manual_seed(1000 * step + RANK)
        starts = torch.randint(len(self.bytes) - length - 1, (sequences, 1), generator=chosen).to(self.bytes.device)
        return self.bytes[starts + torch.arange(length + 1, device=self.bytes.device)].long()


class NcclExperts:
    """The baseline: sort by expert, all-to-all, grouped products, all-to-all back."""
    name = "NCCL + PyTorch"

    def __init__(self, shape, tokens, device):
        self.experts = shape.experts

    def __call__(self, x, ids, weights, gate_up, down):
        return common.torch_layer(x, ids, weights, gate_up, down, self.experts)

    def destroy(self):
        pass


class FerryExperts:
    name = "Ferry BF16"

    def __init__(self, shape, tokens, device):
        self.group = ferry_moe.Group(dist.group.WORLD, device)
        self.layer = ferry_moe.Layer(self.group, hidden=shape.hidden, intermediate=shape.intermediate,
                                     experts=shape.experts, top_k=shape.top_k, max_tokens=tokens)

    def __call__(self, x, ids, weights, gate_up, down):
        return ferry_moe.moe(x, ids, weights, gate_up, down, layer=self.layer)

    def destroy(self):
        self.layer.destroy()
        self.group.destroy()


def in_use(device):
    if device.type == "cpu":
        return 0
    free, whole = torch.cuda.mem_get_info(device)
    return whole - free


def synchronise(device):
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def train(way, shape, o, device, text):
    if device.type == "cuda":
        torch.cuda.empty_cache()
    before = peak = in_use(device)
    moe = way(shape, o.sequences * o.length, device)
    model = e2e_model.build(shape, moe, RANK, WORLD, device)
    DistributedDataParallel._set_params_and_buffers_to_ignore_for_model(model, e2e_model.expert_names(model))
    parallel = DistributedDataParallel(model, gradient_as_bucket_view=True)
    parallel.register_comm_hook(None, sum_gradients)
    optimizer = torch.optim.AdamW(model.parameters(), lr=o.rate, betas=(0.9, 0.95), weight_decay=0.1, fused=True)
    times, losses = [], []
    for step in range(o.warmup + o.steps):
        tokens = text.batch(step, o.sequences, o.length)
        synchronise(device)
        start = time.perf_counter()
        optimizer.zero_grad()
        loss, plain = parallel(tokens)
        (loss / WORLD).backward()
        optimizer.step()
        dist.all_reduce(plain)
        losses.append(plain.item() / WORLD)
        synchronise(device)
        times.append(time.perf_counter() - start)
        peak = max(peak, in_use(device))
    most = torch.tensor([peak - before], dtype=torch.int64, device=device)
    dist.all_reduce(most, dist.ReduceOp.MAX)
    counted = times[o.warmup:]
    quarters = statistics.quantiles(counted, n=4) if len(counted) > 1 else counted * 3
    tokens = o.sequences * o.length
    result = {"name": way.name, "tokens_per_s_per_gpu": tokens / quarters[1],
              "tokens_per_s_per_gpu_quartiles": [tokens / quarters[2], tokens / quarters[0]],
              "step_ms": quarters[1] * 1e3, "step_ms_least_most": [min(counted) * 1e3, max(counted) * 1e3],
              "peak_bytes": most.item(), "losses": losses}
    del parallel, model, optimizer, loss, plain
    moe.destroy()
    common.say(f"{way.name:15s} {result['tokens_per_s_per_gpu']:9.0f} tokens/s/GPU, step {result['step_ms']:.1f} ms "
               f"({min(counted) * 1e3:.1f}-{max(counted) * 1e3:.1f}), peak {most.item() / 2**30:.1f} GiB, loss "
               f"{losses[0]:.3f} -> {losses[-1]:.3f}")
    return result


def main():
    p = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    p.add_argument("--tiny", action="store_true", help="a small model on the CPU")
    p.add_argument("--layers", type=int, help="default: 12")
    p.add_argument("--sequences", type=int, help="of each rank in a step; default: 2")
    p.add_argument("--length", type=int, help="tokens of a sequence; default: 4096")
    p.add_argument("--steps", type=int, default=50)
    p.add_argument("--warmup", type=int, default=5)
    p.add_argument("--rate", type=float, default=3e-4, help="of learning")
    p.add_argument("--json", help="write the results here")
    p.add_argument("--plot", help="draw both losses here (SVG)")
    o = p.parse_args()
    o.sequences = o.sequences or 2
    o.length = o.length or (64 if o.tiny else 4096)
    shape = TINY if o.tiny else e2e_model.Shape()
    if o.layers:
        shape = dataclasses.replace(shape, layers=o.layers)
    if not o.tiny:
        shape = dataclasses.replace(shape, vocab=151936 * shape.layers // 48)
    device = torch.device("cpu") if o.tiny else torch.device("cuda", int(os.environ.get("LOCAL_RANK", RANK)))
    if device.type == "cuda":
        torch.cuda.set_device(device)
    dist.init_process_group("gloo" if o.tiny else "nccl", device_id=None if o.tiny else device)
    text = Text(device)
    ways = [train(way, shape, o, device, text) for way in (NcclExperts, FerryExperts)]
    speedup = ways[1]["tokens_per_s_per_gpu"] / ways[0]["tokens_per_s_per_gpu"]
    common.say(f"{shape.layers} layers, {WORLD} ranks, {o.sequences} x {o.length} tokens each: Ferry {speedup:.2f}x")
    common.write(o.json, {"model": dataclasses.asdict(shape), "ranks": WORLD, "sequences": o.sequences,
                          "length": o.length, "optimizer_states": "BF16", "speedup": speedup, "ways": ways})
    if o.plot and RANK == 0:
        title = f"{shape.layers} layers of Qwen3-30B-A3B's shape, {WORLD} ranks, the same tokens"
        loss_plot.plot(o.plot, title, {w["name"]: w["losses"] for w in ways})
    dist.barrier()  # who leaves early takes its threads' connections from the others
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
