# SPDX-License-Identifier: Apache-2.0
"""The forward beside NCCL + PyTorch and plain products, on the benchmark shapes, one process per GPU.

    torchrun --nproc-per-node=2 bench/gpu/forward_bench.py --library libferry.so --json result.json
    python3 bench/gpu/forward_bench.py --library libferry.so        (one GPU)

A round times, one after the other and on all GPUs at once: cuBLAS on 8192^3, Ferry's plain product on
16384 x 4096 x 7168, Ferry's forward, and the same layer from NCCL all-to-all and grouped matrix products. Before each
there is a barrier on the GPUs; the slowest rank counts. Values are medians over rounds; R* is the higher of the two
products' rates. floor = max(FLOP / R*, link bytes / 370 GB/s, memory bytes / 4158 GB/s), score = floor / measured.
Values are checked against FP64 on some tokens.
"""
import argparse

import common as c
import torch
import torch.distributed as dist


def exact_error(out, p, tokens):
    """Relative error of some of rank 0's tokens against FP64; every rank's experts add their part."""
    xs, idx, ws, got = p.x[tokens].clone(), p.ids[tokens].clone(), p.weights[tokens].clone(), out[tokens].clone()
    if c.WORLD > 1:
        for t in (xs, idx, ws, got):
            dist.broadcast(t, 0)
    ref = torch.zeros(xs.shape, dtype=torch.float64, device=xs.device)
    for j in range(len(tokens)):
        for k in range(idx.shape[1]):
            e = int(idx[j, k]) - c.RANK * p.here
            if 0 <= e < p.here:
                g, u = (p.w13[e].double() @ xs[j].double()).split(p.I)
                ref[j] += ws[j, k].double() * (p.w2[e].double() @ (torch.nn.functional.silu(g) * u))
    if c.WORLD > 1:
        dist.all_reduce(ref)
    return c.apart(got, ref)


def bench(ferry, yard, name, shape, skew, rounds):
    p = c.Problem(*shape, skew)
    out = torch.full_like(p.x, float("nan"))
    layer = ferry.layer(*p.shape())
    args = ferry.forward_args(p, out)
    with torch.no_grad():
        functions = yard.functions() + [lambda: ferry.forward(layer, args),
                                        lambda: c.torch_layer(p.x, p.ids, p.weights, p.w13, p.w2, p.E)]
        (square, *_), (own, *_), ours, theirs = c.measure(functions, rounds)
        error = exact_error(out, p, list(range(0, p.T, p.T // 12)))
    s = ferry.stats(layer)
    rate, cublas, plain = yard.rates(square, own)
    rows = c.most(s.rows)
    floors = c.floors(p, rows, c.most(s.bytes_pull_remote + s.bytes_push_remote), rate)
    floor = max(floors.values())
    result = {"shape": name, "ranks": c.WORLD, "skew": skew, "ferry_ms": ours, "torch_ms": theirs,
              "r_star_tflops": rate / 1e12, "cublas_tflops": cublas / 1e12, "plain_tflops": plain / 1e12,
              "rows": rows, "tflops_per_gpu": 6 * rows * p.H * p.I / ours[0] / 1e9, "floor_ms": floors,
              "score": floor / ours[0], "speedup": theirs[0] / ours[0], "error": error,
              "macrobatches": s.macrobatches, "steps": s.steps}
    c.say(f"{name:14s} R{c.WORLD} skew {skew}: ferry {ours[0]:.3f} ({ours[1]:.3f}-{ours[2]:.3f}) torch "
          f"{theirs[0]:.3f} = {result['speedup']:.2f}x, R* {rate / 1e12:.0f} (cuBLAS {cublas / 1e12:.0f}, plain "
          f"{plain / 1e12:.0f}), floor {floor:.3f} score {result['score']:.2f}, rows {rows:.0f} "
          f"macro {s.macrobatches} steps {s.steps} error {error:.1e}")
    ferry.drop(layer)
    return result


def main():
    p = c.options(argparse.ArgumentParser(description=__doc__.splitlines()[0]), 12)
    p.add_argument("--only", default="", help="shapes whose names contain this")
    p.add_argument("--skews", default="0", help="comma-separated")
    o = p.parse_args()
    c.start()
    ferry, yard = c.Ferry(o.library), c.yardsticks(o)
    results = []
    for skew in (float(v) for v in o.skews.split(",")):
        for name, *shape in c.SHAPES:
            if o.only in name and (skew == 0 or shape[3] < shape[2]):
                results.append(bench(ferry, yard, name, shape, skew, o.rounds))
                torch.cuda.empty_cache()
                c.write(o.json, results)
    c.end(ferry)


if __name__ == "__main__":
    main()
