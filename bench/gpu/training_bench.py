# SPDX-License-Identifier: Apache-2.0
"""Forward and backward beside NCCL + PyTorch and plain products, on the benchmark shapes, one process per GPU.

    torchrun --nproc-per-node=2 bench/gpu/training_bench.py --library libferry.so --json result.json
    python3 bench/gpu/training_bench.py --library libferry.so        (one GPU)

Rounds, barriers and medians are those of forward_bench.py. A round times both plain products, Ferry's forward with a
context, then forward + backward with BF16 gradients overwritten, both plain products again, forward + backward with F32
gradients overwritten, F32 gradients added to, and the same step of the same layer from NCCL and PyTorch. R* is that of
the mean of the times before and after, for a step of tens of ms leaves a chip that is slower than the one it found;
both are written (`r_star_around_tflops`). floor = that of the forward with three times its FLOP and memory bytes, and
the link bytes of both; score = floor / measured, with BF16 gradients. Gradients are compared with PyTorch's.
"""
import argparse

import common as c
import torch


def bench(ferry, yard, name, shape, skew, o):
    p = c.Problem(*shape, skew)
    dout = torch.randn(p.T, p.H, device=c.DEVICE, dtype=torch.bfloat16)
    out, dx = torch.empty_like(p.x), torch.full_like(p.x, float("nan"))
    dweights = torch.full_like(p.weights, float("nan"))
    d13, d2 = torch.full_like(p.w13, float("nan")), torch.full_like(p.w2, float("nan"))
    # Where F32 gradients do not fit beside PyTorch's tensors, BF16 ones are timed in their place.
    wide = torch.float32 if p.here * 3 * p.H * p.I * 4 < 40e9 else torch.bfloat16
    f13, f2 = torch.zeros_like(p.w13, dtype=wide), torch.zeros_like(p.w2, dtype=wide)
    layer = ferry.layer(*p.shape(), ring_rows=o.ring, context_rows=o.context_rows)
    context = ferry.context(layer)
    forward = ferry.forward_args(p, out, context)
    backs = [ferry.backward_args(p, dout, dx, dweights, *g, beta, context)
             for g, beta in (((d13, d2), 0.0), ((f13, f2), 0.0), ((f13, f2), 1.0))]
    leaves = [t.detach().requires_grad_() for t in (p.x, p.weights, p.w13, p.w2)]
    moved = []

    def step(back):
        ferry.forward(layer, forward)
        ferry.backward(layer, back)

    def torch_step():
        for t in leaves:
            t.grad = None
        c.torch_layer(leaves[0], p.ids, leaves[1], leaves[2], leaves[3], p.E).backward(dout)

    ways = [lambda b=b: step(b) for b in backs]
    functions = [*yard.functions(), lambda: ferry.forward(layer, forward), ways[0], *yard.functions(), *ways[1:]]
    times = c.measure(functions + [torch_step], o.rounds)
    alone, ours, (ours32, added, theirs) = times[2], times[3], times[6:]
    around = [(times[i][0], times[i + 1][0]) for i in (0, 4)]
    for f in (lambda: ferry.forward(layer, forward), lambda: step(backs[0])):
        f()
        torch.cuda.synchronize()
        s = ferry.stats(layer)
        moved.append(s.bytes_pull_remote + s.bytes_push_remote)
    errors = [c.apart(a, t.grad) for a, t in zip((dx, dweights, d13, d2), leaves)]
    rate, cublas, plain = yard.rates(*(sum(both) / 2 for both in zip(*around)))
    rows = c.most(s.rows)
    floors = c.floors(p, rows, c.most(sum(moved)), rate, backward=True)
    floor = max(floors.values())
    result = {"shape": name, "ranks": c.WORLD, "skew": skew, "forward_ms": alone, "ferry_ms": ours,
              "ferry_f32_ms": ours32, "ferry_f32_added_ms": added, "f32": wide == torch.float32, "torch_ms": theirs,
              "r_star_tflops": rate / 1e12, "r_star_around_tflops": [yard.rates(*a)[0] / 1e12 for a in around],
              "cublas_tflops": cublas / 1e12, "plain_tflops": plain / 1e12,
              "rows": rows, "tflops_per_gpu": 18 * rows * p.H * p.I / ours[0] / 1e9, "floor_ms": floors,
              "score": floor / ours[0], "speedup": theirs[0] / ours[0], "recomputed": s.recomputed_rows,
              "apart_from_torch": dict(zip(("dx", "dweights", "gate_up", "down"), errors))}
    c.say(f"{name:14s} R{c.WORLD} skew {skew}: forward {alone[0]:.3f}, with backward {ours[0]:.3f} "
          f"({ours[1]:.3f}-{ours[2]:.3f}) F32 {ours32[0]:.3f} added {added[0]:.3f}, torch {theirs[0]:.3f} = "
          f"{result['speedup']:.2f}x, R* {rate / 1e12:.0f} (cuBLAS {cublas / 1e12:.0f}, plain {plain / 1e12:.0f}), "
          f"floor {floor:.3f} score {result['score']:.2f}, apart " + " ".join(f"{e:.1e}" for e in errors))
    ferry.drop(layer, context)
    return result


def main():
    p = c.options(argparse.ArgumentParser(description=__doc__.splitlines()[0]), 10)
    p.add_argument("--only", default="", help="shapes whose names contain this")
    p.add_argument("--skews", default="0", help="comma-separated")
    p.add_argument("--ring", type=int, default=0, help="rows; 0: by rule")
    p.add_argument("--context-rows", type=int, default=-1, help="saved rows; -1: by rule, 0: all is computed again")
    o = p.parse_args()
    c.start()
    ferry, yard = c.Ferry(o.library), c.yardsticks(o)
    results = []
    for skew in (float(v) for v in o.skews.split(",")):
        for name, *shape in c.SHAPES:
            if o.only in name and (skew == 0 or shape[3] < shape[2]):
                results.append(bench(ferry, yard, name, shape, skew, o))
                torch.cuda.empty_cache()
                c.write(o.json, results)
    c.end(ferry)


if __name__ == "__main__":
    main()
