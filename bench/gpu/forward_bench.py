# SPDX-License-Identifier: Apache-2.0
"""The forward beside NCCL + PyTorch and cuBLAS, on the benchmark shapes, one process per GPU.

    torchrun --nproc-per-node=2 bench/gpu/forward_bench.py --library libferry.so --json result.json
    python3 bench/gpu/forward_bench.py --library libferry.so        (one GPU)

A round times, one after the other and on all GPUs at once: a cuBLAS product of 8192^3 (R*), Ferry's forward, and the
same layer from NCCL all-to-all and grouped matrix products. Before each there is a barrier on the GPUs; the slowest
rank counts. Values are medians over rounds. floor = max(FLOP / R*, link bytes / 370 GB/s, memory bytes / 4158 GB/s),
score = floor / measured. Values are checked against FP64 on some tokens.
"""
import argparse
import ctypes as C
import json
import os
import statistics

os.environ.setdefault("RANK", "0")
os.environ.setdefault("WORLD_SIZE", "1")
os.environ.setdefault("MASTER_ADDR", "127.0.0.1")
os.environ.setdefault("MASTER_PORT", "29511")

import torch
import torch.distributed as dist

RANK, WORLD = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
LINK, COPY = 370e9, 4158e9


class Bootstrap(C.Structure):
    _fields_ = [("rank", C.c_int), ("nranks", C.c_int), ("allgather", C.c_void_p), ("user", C.c_void_p),
                ("same_process", C.c_int)]


class CommConfig(C.Structure):
    _fields_ = [("size", C.c_size_t), ("backend", C.c_int), ("bootstrap", Bootstrap), ("device", C.c_int),
                ("comm_workers", C.c_int), ("compute_workers", C.c_int), ("isa", C.c_int),
                ("enter_timeout_s", C.c_double), ("progress_timeout_s", C.c_double), ("alloc", C.c_void_p * 3),
                ("observer", C.c_void_p * 2)]


class LayerConfig(C.Structure):
    _fields_ = [("size", C.c_size_t), ("hidden", C.c_int64), ("intermediate", C.c_int64), ("shared", C.c_int64),
                ("experts", C.c_int64), ("slots", C.c_int64), ("max_tokens", C.c_int64), ("expert_rank", C.c_void_p),
                ("swiglu_limit", C.c_float), ("minibatch_rows", C.c_int64), ("ring_rows", C.c_int64),
                ("context_rows", C.c_int64), ("precision", C.c_int), ("order", C.c_int), ("max_bytes", C.c_int64)]


class Matrices(C.Structure):
    _fields_ = [("base", C.c_void_p), ("table", C.c_void_p), ("expert_stride", C.c_int64), ("row_stride", C.c_int64),
                ("dtype", C.c_int)]


class ForwardArgs(C.Structure):
    _fields_ = [("size", C.c_size_t), ("num_tokens", C.c_void_p), ("x", C.c_void_p), ("x_stride", C.c_int64),
                ("ids", C.c_void_p), ("ids_dtype", C.c_int), ("weights", C.c_void_p), ("params", Matrices * 6),
                ("out", C.c_void_p), ("out_stride", C.c_int64), ("context", C.c_void_p), ("stream", C.c_void_p)]


class Stats(C.Structure):
    _fields_ = [("size", C.c_size_t)] + [(n, C.c_int64) for n in (
        "rows", "macrobatches", "steps", "ring_high_water", "pulls", "recomputed_rows", "bytes_schedule", "bytes_pull",
        "bytes_pull_remote", "bytes_push", "bytes_push_remote", "bytes_sum", "flop", "current_bytes", "peak_bytes")]


class Ferry:
    def __init__(self, path):
        self.lib = C.CDLL(path)
        self.lib.ferry_last_error.restype = C.c_char_p
        env, boot = C.c_void_p(), Bootstrap()
        self.call("ferry_env_bootstrap_create", C.c_double(60), C.byref(env), C.byref(boot))
        config = CommConfig()
        self.lib.ferry_comm_config_init(C.byref(config))
        config.backend, config.bootstrap, config.device = 1, boot, RANK
        config.progress_timeout_s = 20
        self.comm, self.env = C.c_void_p(), env
        self.call("ferry_comm_create", C.byref(config), C.byref(self.comm))

    def call(self, name, *args):
        status = getattr(self.lib, name)(*args)
        if status:
            raise RuntimeError(f"{name}: {status}: {self.lib.ferry_last_error().decode()}")

    def layer(self, H, I, E, K, T, ring=0, mini=0):
        config, layer = LayerConfig(), C.c_void_p()
        self.lib.ferry_layer_config_init(C.byref(config))
        config.hidden, config.intermediate, config.experts, config.slots, config.max_tokens = H, I, E, K, T
        config.context_rows, config.ring_rows, config.minibatch_rows = 0, ring, mini
        self.call("ferry_layer_create", self.comm, C.byref(config), C.byref(layer))
        return layer

    def args(self, n, x, ids, weights, w13, w2, out):
        a = ForwardArgs()
        self.lib.ferry_forward_args_init(C.byref(a))
        E, I2, H = w13.shape
        a.num_tokens, a.x, a.ids, a.ids_dtype = n.data_ptr(), x.data_ptr(), ids.data_ptr(), 11
        a.weights, a.out, a.stream = weights.data_ptr(), out.data_ptr(), torch.cuda.current_stream().cuda_stream
        a.params[0] = Matrices(w13.data_ptr(), None, I2 * H, H, 1)
        a.params[1] = Matrices(w13.data_ptr() + I2 // 2 * H * 2, None, I2 * H, H, 1)
        a.params[2] = Matrices(w2.data_ptr(), None, H * I2 // 2, I2 // 2, 1)
        return a

    def stats(self, layer):
        s = Stats()
        s.size = C.sizeof(s)
        self.call("ferry_layer_stats", layer, C.byref(s))
        return s


def exchange(rows, given, wanted):
    got = rows.new_empty((sum(wanted),) + rows.shape[1:])
    dist.all_to_all_single(got, rows.contiguous(), wanted, given)
    return got


def baseline(x, ids, weights, w13, w2, E):
    """Sort by expert, all-to-all, grouped products, all-to-all back, weighted sum."""
    T, K = ids.shape
    here = E // WORLD
    flat = ids.reshape(-1)
    order = torch.argsort(flat, stable=True)
    count = torch.bincount(flat, minlength=E)
    rows = x[order // K]
    mine = count
    if WORLD > 1:
        theirs = torch.empty_like(count)
        dist.all_to_all_single(theirs, count)
        given, wanted = count.view(WORLD, here).sum(1).tolist(), theirs.view(WORLD, here).sum(1).tolist()
        expert = torch.repeat_interleave(torch.arange(here, device=x.device).repeat(WORLD), theirs)
        by_expert = torch.argsort(expert, stable=True)
        mine = theirs.view(WORLD, here).sum(0)
        rows = exchange(rows, given, wanted)[by_expert]
    ends = torch.cumsum(mine, 0).to(torch.int32)
    gate, up = torch._grouped_mm(rows, w13.transpose(1, 2), offs=ends).chunk(2, -1)
    y = torch._grouped_mm(torch.nn.functional.silu(gate) * up, w2.transpose(1, 2), offs=ends)
    if WORLD > 1:
        back = torch.empty_like(y)
        back[by_expert] = y
        y = exchange(back, wanted, given)
    slots = torch.empty_like(y)
    slots[order] = y
    return (slots.view(T, K, -1) * weights.unsqueeze(-1).to(y.dtype)).sum(1)


def exact_error(out, x, ids, weights, w13, w2, E, tokens):
    """Relative error of some tokens against FP64; every rank's experts add their part."""
    here, I = E // WORLD, w2.shape[2]
    # All ranks look at rank 0's tokens.
    xs, idx, ws, got = x[tokens].clone(), ids[tokens].clone(), weights[tokens].clone(), out[tokens].clone()
    if WORLD > 1:
        for t in (xs, idx, ws, got):
            dist.broadcast(t, 0)
    ref = torch.zeros(xs.shape, dtype=torch.float64, device=x.device)
    for j in range(len(tokens)):
        for k in range(idx.shape[1]):
            e = int(idx[j, k]) - RANK * here
            if 0 <= e < here:
                g, u = (w13[e].double() @ xs[j].double()).split(I)
                ref[j] += ws[j, k].double() * (w2[e].double() @ (torch.nn.functional.silu(g) * u))
    if WORLD > 1:
        dist.all_reduce(ref)
    return ((got.double() - ref).norm() / ref.norm()).item()


def most(value):
    t = torch.tensor([float(value)], device="cuda")
    if WORLD > 1:
        dist.all_reduce(t, op=dist.ReduceOp.MAX)
    return t.item()


def measure(functions, rounds):
    """Median over rounds of each function's time on the slowest rank, in ms, with the least and the most."""
    token = torch.zeros(1, device="cuda")
    times = [[] for _ in functions]
    for r in range(rounds + 3):
        events = []
        for f in functions:
            if WORLD > 1:
                dist.all_reduce(token)
            a, b = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            a.record()
            f()
            b.record()
            events.append((a, b))
        torch.cuda.synchronize()
        for i, (a, b) in enumerate(events):
            t = most(a.elapsed_time(b))
            if r >= 3:
                times[i].append(t)
    return [(statistics.median(t), min(t), max(t)) for t in times]


def bench(ferry, name, H, I, E, K, T, skew, rounds):
    torch.manual_seed(1234 + RANK)
    K = min(K, E)
    x = torch.randn(T, H, device="cuda", dtype=torch.bfloat16)
    bias = torch.randn(E, device="cuda", generator=torch.Generator("cuda").manual_seed(7))
    weights, ids = torch.topk(torch.softmax(torch.randn(T, E, device="cuda") + skew * bias, -1), K, -1)
    weights = (weights / weights.sum(-1, keepdim=True)).contiguous()
    w13 = torch.randn(E // WORLD, 2 * I, H, device="cuda", dtype=torch.bfloat16) * 0.02
    w2 = torch.randn(E // WORLD, H, I, device="cuda", dtype=torch.bfloat16) * 0.02
    out = torch.full_like(x, float("nan"))
    n = torch.tensor([T], dtype=torch.int32, device="cuda")
    layer = ferry.layer(H, I, E, K, T)
    args = ferry.args(n, x, ids, weights, w13, w2, out)
    a8, b8 = (torch.randn(8192, 8192, device="cuda", dtype=torch.bfloat16) for _ in range(2))
    forward = lambda: ferry.call("ferry_forward", layer, C.byref(args))
    with torch.no_grad():
        functions = [lambda: a8 @ b8.T, forward, lambda: baseline(x, ids, weights, w13, w2, E)]
        (square, *_), ours, theirs = measure(functions, rounds)
        error = exact_error(out, x, ids, weights, w13, w2, E, list(range(0, T, T // 12)))
    s = ferry.stats(layer)
    rate = 2 * 8192.0**3 / square * 1e3
    rows, remote = most(s.rows), most(s.bytes_pull_remote + s.bytes_push_remote)
    flop = 6 * rows * H * I
    memory = (E // WORLD) * 3 * H * I * 2 + 4 * rows * H * 2 + 2 * rows * I * 2 + 2 * T * H * 2
    floors = {"flop": flop / rate * 1e3, "link": remote / LINK * 1e3, "memory": memory / COPY * 1e3}
    floor = max(floors.values())
    result = {"shape": name, "ranks": WORLD, "skew": skew, "ferry_ms": ours, "torch_ms": theirs,
              "r_star_tflops": rate / 1e12, "rows": rows, "floor_ms": floors, "score": floor / ours[0],
              "speedup": theirs[0] / ours[0], "error": error, "macrobatches": s.macrobatches, "steps": s.steps}
    if RANK == 0:
        print(f"{name:14s} R{WORLD} skew {skew}: ferry {ours[0]:.3f} ({ours[1]:.3f}-{ours[2]:.3f}) "
              f"torch {theirs[0]:.3f} = {result['speedup']:.2f}x, R* {rate / 1e12:.0f}, floor {floor:.3f} "
              f"score {result['score']:.2f}, rows {rows:.0f} macro {s.macrobatches} steps {s.steps} "
              f"error {error:.1e}", flush=True)
    ferry.lib.ferry_layer_destroy(layer)
    del x, w13, w2, out, a8, b8
    torch.cuda.empty_cache()
    return result


def main():
    p = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    p.add_argument("--library", required=True)
    p.add_argument("--json", help="write the results here")
    p.add_argument("--rounds", type=int, default=12)
    p.add_argument("--only", default="", help="shapes whose names contain this")
    p.add_argument("--skews", default="0", help="comma-separated")
    o = p.parse_args()
    torch.cuda.set_device(RANK)
    if WORLD > 1:
        dist.init_process_group("nccl", device_id=torch.device("cuda", RANK))
    ferry = Ferry(o.library)
    shapes = [("kimi-slice", 7168, 2048, 6 * WORLD, 8, 2048), ("glm5-slice", 6144, 2048, 4 * WORLD, 8, 2048),
              ("qwen397-slice", 4096, 1024, 8 * WORLD, 10, 2048), ("dsv4pro-slice", 7168, 3072, 6 * WORLD, 6, 2048),
              ("qwen3-30b-a3b", 2048, 768, 128, 8, 8192), ("olmoe", 2048, 1024, 64, 8, 8192),
              ("mixtral-8x7b", 4096, 14336, 8, 2, 8192), ("dsv3-full", 7168, 2048, 256, 8, 8192)]
    results = []
    for skew in (float(v) for v in o.skews.split(",")):
        for s in shapes:
            if o.only in s[0] and (skew == 0 or s[4] < s[3]):
                results.append(bench(ferry, *s, skew, o.rounds))
    if RANK == 0 and o.json:
        with open(o.json, "w") as f:
            json.dump(results, f, indent=1)
    ferry.lib.ferry_comm_destroy(ferry.comm)
    ferry.lib.ferry_env_bootstrap_destroy(ferry.env)
    if WORLD > 1:
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
