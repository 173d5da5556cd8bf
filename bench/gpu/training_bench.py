# SPDX-License-Identifier: Apache-2.0
"""Forward and backward beside NCCL + PyTorch and cuBLAS, on the benchmark shapes, one process per GPU.

    torchrun --nproc-per-node=2 bench/gpu/training_bench.py --library libferry.so --json result.json
    python3 bench/gpu/training_bench.py --library libferry.so        (one GPU)

Rounds, barriers and medians are those of forward_bench.py. A round times R* (cuBLAS, 8192^3), Ferry's forward with a
context, then forward + backward with BF16 gradients overwritten, F32 gradients overwritten, F32 gradients added to, and
the same step of the same layer from NCCL and PyTorch. floor = that of the forward with three times its FLOP and memory
bytes, and the link bytes of both; score = floor / measured, with BF16 gradients. Gradients are compared with PyTorch's.
"""
import argparse
import ctypes as C
import json

import forward_bench as fb
import torch
import torch.distributed as dist

RANK, WORLD = fb.RANK, fb.WORLD


class Gradient(C.Structure):
    _fields_ = [("to", fb.Matrices), ("beta", C.c_float)]


class BackwardArgs(C.Structure):
    _fields_ = [("size", C.c_size_t), ("context", C.c_void_p), ("parts", C.c_int), ("dout", C.c_void_p),
                ("dout_stride", C.c_int64), ("params", fb.Matrices * 6), ("dx", C.c_void_p), ("dx_stride", C.c_int64),
                ("dweights", C.c_void_p), ("grads", Gradient * 6), ("stream", C.c_void_p)]


def context_layer(ferry, H, I, E, K, T, ring, context_rows):
    config, layer, context = fb.LayerConfig(), C.c_void_p(), C.c_void_p()
    ferry.lib.ferry_layer_config_init(C.byref(config))
    config.hidden, config.intermediate, config.experts, config.slots, config.max_tokens = H, I, E, K, T
    config.ring_rows, config.context_rows = ring, context_rows
    ferry.call("ferry_layer_create", ferry.comm, C.byref(config), C.byref(layer))
    ferry.call("ferry_context_create", layer, None, C.byref(context))
    return layer, context


def backward_args(ferry, context, forward, dout, dx, dweights, d13, d2, beta):
    a = BackwardArgs()
    ferry.lib.ferry_backward_args_init(C.byref(a))
    _, I2, H = d13.shape
    size, dtype = d13.element_size(), 1 if d13.dtype == torch.bfloat16 else 2
    a.context, a.dout, a.dx, a.dweights = context, dout.data_ptr(), dx.data_ptr(), dweights.data_ptr()
    a.stream = torch.cuda.current_stream().cuda_stream
    for i in range(6):
        a.params[i] = forward.params[i]
    a.grads[0] = Gradient(fb.Matrices(d13.data_ptr(), None, I2 * H, H, dtype), beta)
    a.grads[1] = Gradient(fb.Matrices(d13.data_ptr() + I2 // 2 * H * size, None, I2 * H, H, dtype), beta)
    a.grads[2] = Gradient(fb.Matrices(d2.data_ptr(), None, H * I2 // 2, I2 // 2, dtype), beta)
    return a


class Exchange(torch.autograd.Function):
    @staticmethod
    def forward(ctx, rows, given, wanted):
        ctx.back = (wanted, given)
        return fb.exchange(rows, given, wanted)

    @staticmethod
    def backward(ctx, grad):
        return fb.exchange(grad, *ctx.back), None, None


def baseline(x, ids, weights, w13, w2, E):
    """The layer of forward_bench.baseline, with gradients."""
    T, K = ids.shape
    here = E // WORLD
    flat = ids.reshape(-1)
    order = torch.argsort(flat, stable=True)
    count = torch.bincount(flat, minlength=E)
    rows, mine = x[order // K], count
    if WORLD > 1:
        theirs = torch.empty_like(count)
        dist.all_to_all_single(theirs, count)
        given, wanted = count.view(WORLD, here).sum(1).tolist(), theirs.view(WORLD, here).sum(1).tolist()
        expert = torch.repeat_interleave(torch.arange(here, device=x.device).repeat(WORLD), theirs)
        by_expert = torch.argsort(expert, stable=True)
        mine = theirs.view(WORLD, here).sum(0)
        rows = Exchange.apply(rows, given, wanted)[by_expert]
    ends = torch.cumsum(mine, 0).to(torch.int32)
    gate, up = torch._grouped_mm(rows, w13.transpose(1, 2), offs=ends).chunk(2, -1)
    y = torch._grouped_mm(torch.nn.functional.silu(gate) * up, w2.transpose(1, 2), offs=ends)
    if WORLD > 1:
        y = Exchange.apply(y[torch.argsort(by_expert)], wanted, given)
    y = y[torch.argsort(order)].view(T, K, -1)
    return (y * weights.unsqueeze(-1).to(y.dtype)).sum(1)


def apart(a, b):
    return ((a.double() - b.double()).norm() / b.double().norm()).item()


def bench(ferry, name, H, I, E, K, T, skew, o):
    torch.manual_seed(1234 + RANK)
    K = min(K, E)
    here = E // WORLD
    x = torch.randn(T, H, device="cuda", dtype=torch.bfloat16)
    dout = torch.randn(T, H, device="cuda", dtype=torch.bfloat16)
    bias = torch.randn(E, device="cuda", generator=torch.Generator("cuda").manual_seed(7))
    weights, ids = torch.topk(torch.softmax(torch.randn(T, E, device="cuda") + skew * bias, -1), K, -1)
    weights = (weights / weights.sum(-1, keepdim=True)).contiguous()
    w13 = torch.randn(here, 2 * I, H, device="cuda", dtype=torch.bfloat16) * 0.02
    w2 = torch.randn(here, H, I, device="cuda", dtype=torch.bfloat16) * 0.02
    out, dx, dweights = torch.empty_like(x), torch.full_like(x, float("nan")), torch.full_like(weights, float("nan"))
    d13, d2 = torch.full_like(w13, float("nan")), torch.full_like(w2, float("nan"))
    # Where F32 gradients do not fit beside PyTorch's tensors, BF16 ones are timed in their place.
    wide = torch.float32 if here * 3 * H * I * 4 < 40e9 else torch.bfloat16
    f13, f2 = torch.zeros_like(w13, dtype=wide), torch.zeros_like(w2, dtype=wide)
    n = torch.tensor([T], dtype=torch.int32, device="cuda")
    layer, context = context_layer(ferry, H, I, E, K, T, o.ring, o.context_rows)
    forward = ferry.args(n, x, ids, weights, w13, w2, out)
    forward.context = context
    backs = [backward_args(ferry, context, forward, dout, dx, dweights, *g, beta)
             for g, beta in (((d13, d2), 0.0), ((f13, f2), 0.0), ((f13, f2), 1.0))]
    a8, b8 = (torch.randn(8192, 8192, device="cuda", dtype=torch.bfloat16) for _ in range(2))
    leaves = [t.detach().requires_grad_() for t in (x, weights, w13, w2)]
    moved = []

    def run_forward():
        ferry.call("ferry_forward", layer, C.byref(forward))

    def step(back):
        run_forward()
        ferry.call("ferry_backward", layer, C.byref(back))

    def torch_step():
        for t in leaves:
            t.grad = None
        baseline(leaves[0], ids, leaves[1], leaves[2], leaves[3], E).backward(dout)

    functions = [lambda: a8 @ b8.T, run_forward] + [lambda b=b: step(b) for b in backs] + [torch_step]
    (square, *_), alone, ours, ours32, added, theirs = fb.measure(functions, o.rounds)
    for f in (run_forward, lambda: step(backs[0])):
        f()
        torch.cuda.synchronize()
        s = ferry.stats(layer)
        moved.append(s.bytes_pull_remote + s.bytes_push_remote)
    errors = [apart(a, t.grad) for a, t in zip((dx, dweights, d13, d2), leaves)]
    rate = 2 * 8192.0**3 / square * 1e3
    rows = fb.most(s.rows)
    memory = here * 3 * H * I * 2 + 4 * rows * H * 2 + 2 * rows * I * 2 + 2 * T * H * 2
    floors = {"flop": 18 * rows * H * I / rate * 1e3, "link": fb.most(sum(moved)) / fb.LINK * 1e3,
              "memory": 3 * memory / fb.COPY * 1e3}
    floor = max(floors.values())
    result = {"shape": name, "ranks": WORLD, "skew": skew, "forward_ms": alone, "ferry_ms": ours,
              "ferry_f32_ms": ours32, "ferry_f32_added_ms": added, "f32": wide == torch.float32, "torch_ms": theirs,
              "r_star_tflops": rate / 1e12, "rows": rows, "floor_ms": floors, "score": floor / ours[0],
              "speedup": theirs[0] / ours[0], "recomputed": s.recomputed_rows,
              "apart_from_torch": dict(zip(("dx", "dweights", "gate_up", "down"), errors))}
    if RANK == 0:
        print(f"{name:14s} R{WORLD} skew {skew}: forward {alone[0]:.3f}, with backward {ours[0]:.3f} "
              f"({ours[1]:.3f}-{ours[2]:.3f}) F32 {ours32[0]:.3f} added {added[0]:.3f}, torch {theirs[0]:.3f} = "
              f"{result['speedup']:.2f}x, R* {rate / 1e12:.0f}, floor {floor:.3f} score {result['score']:.2f}, apart "
              + " ".join(f"{e:.1e}" for e in errors), flush=True)
    ferry.lib.ferry_context_destroy(context)
    ferry.lib.ferry_layer_destroy(layer)
    torch.cuda.empty_cache()
    return result


def main():
    p = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    p.add_argument("--library", required=True)
    p.add_argument("--json", help="write the results here")
    p.add_argument("--rounds", type=int, default=10)
    p.add_argument("--only", default="", help="shapes whose names contain this")
    p.add_argument("--skews", default="0", help="comma-separated")
    p.add_argument("--ring", type=int, default=0, help="rows; 0: by rule")
    p.add_argument("--context-rows", type=int, default=-1, help="saved rows; -1: by rule, 0: all is computed again")
    o = p.parse_args()
    torch.cuda.set_device(RANK)
    if WORLD > 1:
        dist.init_process_group("nccl", device_id=torch.device("cuda", RANK))
    ferry = fb.Ferry(o.library)
    shapes = [("kimi-slice", 7168, 2048, 6 * WORLD, 8, 2048), ("glm5-slice", 6144, 2048, 4 * WORLD, 8, 2048),
              ("qwen397-slice", 4096, 1024, 8 * WORLD, 10, 2048), ("dsv4pro-slice", 7168, 3072, 6 * WORLD, 6, 2048),
              ("qwen3-30b-a3b", 2048, 768, 128, 8, 8192), ("olmoe", 2048, 1024, 64, 8, 8192),
              ("mixtral-8x7b", 4096, 14336, 8, 2, 8192), ("dsv3-full", 7168, 2048, 256, 8, 8192)]
    results = []
    for skew in (float(v) for v in o.skews.split(",")):
        for s in shapes:
            if o.only in s[0] and (skew == 0 or s[4] < s[3]):
                results.append(bench(ferry, *s, skew, o))
    if RANK == 0 and o.json:
        with open(o.json, "w") as f:
            json.dump(results, f, indent=1)
    ferry.lib.ferry_comm_destroy(ferry.comm)
    ferry.lib.ferry_env_bootstrap_destroy(ferry.env)
    if WORLD > 1:
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
