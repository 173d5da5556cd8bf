#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The baseline: an expert-parallel MoE layer of NCCL all-to-all and PyTorch's grouped products, forward and backward.

    python3 bench/layer_torch.py                                  one GPU
    torchrun --nproc-per-node=2 bench/layer_torch.py --shapes kimi-slice,olmoe --skews 0,1 --out torch.json

What `ferry bench --backend cuda` measures, by the usual means: sort by expert, exchange counts (the host needs them to
size the transfers), all-to-all, grouped gate+up product, SwiGLU, grouped down product, all-to-all back, weighted sum.
Before every start event the GPUs meet in an all-reduce on the same stream; the slowest rank counts. Weight gradients
are BF16 and overwritten. Prints one JSON object a line and, with --out, writes them to a file.
"""
import argparse
import json
import os
import statistics

import torch
import torch.distributed as dist
import torch.nn.functional as F

RANK = int(os.environ.get("RANK", 0))
WORLD = int(os.environ.get("WORLD_SIZE", 1))

# Name: hidden, intermediate, experts (of each rank where `slice`, else of all), slice, slots, tokens of each rank.
SHAPES = {
    "kimi-slice": (7168, 2048, 6, True, 8, 2048),
    "glm5-slice": (6144, 2048, 4, True, 8, 2048),
    "qwen397-slice": (4096, 1024, 8, True, 10, 2048),
    "dsv4pro-slice": (7168, 3072, 6, True, 6, 2048),
    "qwen3-30b-a3b": (2048, 768, 128, False, 8, 8192),
    "olmoe": (2048, 1024, 64, False, 8, 8192),
    "mixtral-8x7b": (4096, 14336, 8, False, 2, 8192),
    "dsv3-full": (7168, 2048, 256, False, 8, 8192),
}


class AllToAll(torch.autograd.Function):
    """Rows to other ranks; backward sends the gradients the opposite way."""

    @staticmethod
    def forward(ctx, rows, sent, received):
        ctx.splits = (sent, received)
        out = rows.new_empty((sum(received),) + rows.shape[1:])
        dist.all_to_all_single(out, rows.contiguous(), received, sent)
        return out

    @staticmethod
    def backward(ctx, grad):
        sent, received = ctx.splits
        out = grad.new_empty((sum(sent),) + grad.shape[1:])
        dist.all_to_all_single(out, grad.contiguous(), sent, received)
        return out, None, None


def inverse(permutation):
    out = torch.empty_like(permutation)
    out[permutation] = torch.arange(permutation.numel(), device=permutation.device)
    return out


def layer(x, ids, weights, gate_up, down, experts, mark=lambda name: None):
    """out [T, H] of x [T, H], ids and weights [T, K], gate_up [E / R, 2I, H], down [E / R, H, I]."""
    tokens, hidden = x.shape
    slots, local = ids.shape[1], experts // WORLD
    mark("start")
    flat = ids.reshape(-1)
    order = torch.argsort(flat, stable=True)
    counts = torch.bincount(flat, minlength=experts)
    rows_of_expert = counts
    if WORLD > 1:
        theirs = torch.empty_like(counts)
        dist.all_to_all_single(theirs, counts)
        sent = counts.view(WORLD, local).sum(1).tolist()
        received = theirs.view(WORLD, local).sum(1).tolist()
        expert_of_row = torch.repeat_interleave(torch.arange(local, device=x.device).repeat(WORLD), theirs)
        by_expert = torch.argsort(expert_of_row, stable=True)
        rows_of_expert = theirs.view(WORLD, local).sum(0)
    mark("schedule")
    rows = x[order // slots]
    if WORLD > 1:
        rows = AllToAll.apply(rows, sent, received)[by_expert]
    mark("dispatch")
    ends = torch.cumsum(rows_of_expert, 0).to(torch.int32)
    gate, up = torch._grouped_mm(rows, gate_up.transpose(1, 2), offs=ends).chunk(2, -1)
    y = torch._grouped_mm(F.silu(gate) * up, down.transpose(1, 2), offs=ends)
    mark("ffn")
    if WORLD > 1:
        y = AllToAll.apply(y[inverse(by_expert)], received, sent)
    y = y[inverse(order)].view(tokens, slots, hidden)
    out = (y * weights.unsqueeze(-1).to(y.dtype)).sum(1)
    mark("combine")
    return out


def spread(values):
    return {"median": statistics.median(values), "min": min(values), "max": max(values)}


def measure(call, repeat, warm=4):
    """Milliseconds of each repetition on the slowest rank."""
    token = torch.zeros(1, device="cuda")
    times = []
    for i in range(warm + repeat):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        if WORLD > 1:
            dist.all_reduce(token)  # in stream order: all GPUs leave it together
        begin.record()
        call()
        end.record()
        torch.cuda.synchronize()
        if i >= warm:
            times.append(begin.elapsed_time(end))
    slowest = torch.tensor(times, device="cuda")
    if WORLD > 1:
        dist.all_reduce(slowest, op=dist.ReduceOp.MAX)
    return slowest.tolist()


def measure_parts(call):
    """Milliseconds between the marks of one forward, on this rank."""
    for _ in range(3):
        events = []

        def mark(name):
            event = torch.cuda.Event(enable_timing=True)
            event.record()
            events.append((name, event))

        call(mark)
    torch.cuda.synchronize()
    return {name: before[1].elapsed_time(event) for before, (name, event) in zip(events, events[1:])}


def draw(shape, skew):
    """Top-k of the softmax of normal logits, plus one shared normal bias per expert times `skew`; renormalised."""
    hidden, intermediate, experts, is_slice, slots, tokens = SHAPES[shape]
    experts *= WORLD if is_slice else 1
    slots = min(slots, experts)
    torch.manual_seed(1234 + RANK)
    bias = torch.randn(experts, device="cuda", generator=torch.Generator("cuda").manual_seed(7))
    logits = torch.randn(tokens, experts, device="cuda") + skew * bias
    weights, ids = torch.topk(torch.softmax(logits, -1), slots, -1)
    return hidden, intermediate, experts, tokens, ids, weights / weights.sum(-1, keepdim=True)


def bench(shape, skew, repeat):
    hidden, intermediate, experts, tokens, ids, weights = draw(shape, skew)
    local = experts // WORLD

    def random(*extents, scale=1.0):
        return torch.randn(*extents, device="cuda", dtype=torch.bfloat16).mul_(scale)

    x, dout = random(tokens, hidden), random(tokens, hidden)
    gate_up = random(local, 2 * intermediate, hidden, scale=hidden**-0.5)
    down = random(local, hidden, intermediate, scale=intermediate**-0.5)
    leaves = [t.requires_grad_() for t in (x, weights, gate_up, down)]

    def forward(mark=lambda name: None):
        return layer(x, ids, weights, gate_up, down, experts, mark)

    def step():
        for leaf in leaves:
            leaf.grad = None
        forward().backward(dout)

    rows = torch.bincount(ids.reshape(-1), minlength=experts)
    if WORLD > 1:
        dist.all_reduce(rows)
    busiest = int(rows.view(WORLD, local).sum(1).max())
    with torch.no_grad():
        alone = measure(forward, repeat)
        parts = measure_parts(forward)
    both = measure(step, repeat)
    flop = 6.0 * busiest * hidden * intermediate
    return {
        "title": shape,
        "ranks": WORLD,
        "skew": skew,
        "shape": {"tokens": tokens * WORLD, "slots": ids.shape[1], "hidden": hidden, "intermediate": intermediate,
                  "experts": experts},
        "busiest_rows": busiest,
        "forward": {"ms": spread(alone), "tflop_per_s": flop / statistics.median(alone) * 1e-9, "parts_ms": parts},
        "forward_backward": {"ms": spread(both), "tflop_per_s": 3 * flop / statistics.median(both) * 1e-9},
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shapes", default="all", help="names, separated by commas (default: all)")
    parser.add_argument("--skews", default="0", help="numbers, separated by commas (default: 0)")
    parser.add_argument("--repeat", type=int, default=11)
    parser.add_argument("--out", help="a file that gets the list of objects")
    options = parser.parse_args()
    names = list(SHAPES) if options.shapes == "all" else options.shapes.split(",")
    unknown = [name for name in names if name not in SHAPES]
    if unknown:
        parser.error(f"unknown shapes: {', '.join(unknown)}; there are {', '.join(SHAPES)}")
    torch.cuda.set_device(RANK)
    if WORLD > 1:
        dist.init_process_group("nccl", device_id=torch.device("cuda", RANK))
    results = []
    for name in names:
        for skew in (float(s) for s in options.skews.split(",")):
            result = bench(name, skew, options.repeat)
            torch.cuda.empty_cache()
            result["torch"] = torch.__version__
            results.append(result)
            if RANK == 0:
                print(json.dumps(result), flush=True)
    if RANK == 0 and options.out:
        with open(options.out, "w", encoding="utf-8") as file:
            json.dump(results, file, indent=1)
            file.write("\n")
    if WORLD > 1:
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
