# SPDX-License-Identifier: Apache-2.0
"""What the Python benchmarks share: the library through ctypes (structures of ferry_moe), the shapes, problems,
yardsticks, the timing loop, the layer made of NCCL and PyTorch, and the frame of a result file. One process per GPU,
alone or under torchrun."""
import ctypes as C
import datetime
import json
import os
import pathlib
import statistics
import subprocess
import sys

os.environ.setdefault("RANK", "0")
os.environ.setdefault("WORLD_SIZE", "1")
os.environ.setdefault("MASTER_ADDR", "127.0.0.1")
os.environ.setdefault("MASTER_PORT", "29511")
# Streams of one device must not share hardware queues.
os.environ.setdefault("CUDA_DEVICE_MAX_CONNECTIONS", "32")

sys.path.append(str(pathlib.Path(__file__).resolve().parents[2] / "python"))

import torch
import torch.distributed as dist
from ferry_moe import _types as abi

RANK, WORLD = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
LINK, COPY = 370e9, 4158e9  # bytes a second: one direction of a GPU's links; read + written by a copy on the device
DEVICE, BACKEND = "cuda", abi.CUDA

# name, hidden, intermediate, experts, slots, tokens per rank. Of a slice the experts grow with the ranks.
SHAPES = [("kimi-slice", 7168, 2048, 6 * WORLD, 8, 2048), ("glm5-slice", 6144, 2048, 4 * WORLD, 8, 2048),
          ("qwen397-slice", 4096, 1024, 8 * WORLD, 10, 2048), ("dsv4pro-slice", 7168, 3072, 6 * WORLD, 6, 2048),
          ("qwen3-30b-a3b", 2048, 768, 128, 8, 8192), ("olmoe", 2048, 1024, 64, 8, 8192),
          ("mixtral-8x7b", 4096, 14336, 8, 2, 8192), ("dsv3-full", 7168, 2048, 256, 8, 8192)]


# ---- The library ----------------------------------------------------------------------------------------------------

MATRICES = ("gate", "up", "down")


def stream():
    return torch.cuda.current_stream().cuda_stream


class Ferry:
    """The library and one communicator: of all ranks, or of this process alone (`solo`). Arguments keep the tensors
    that they point to."""

    def __init__(self, path, solo=False):
        self.path, self.lib = path, C.CDLL(path)
        self.lib.ferry_last_error.restype = C.c_char_p
        self.comm, self.env, self.solo, boot = C.c_void_p(), C.c_void_p(), solo, abi.Bootstrap()
        if solo:
            self.call("ferry_thread_group_create", 1, C.byref(self.env))
            self.call("ferry_thread_group_bootstrap", self.env, 0, C.byref(boot))
        else:
            self.call("ferry_env_bootstrap_create", C.c_double(60), C.byref(self.env), C.byref(boot))
        config = abi.CommConfig()
        self.lib.ferry_comm_config_init(C.byref(config))
        config.backend, config.bootstrap, config.device = BACKEND, boot, RANK
        config.progress_timeout_s = 20
        self.call("ferry_comm_create", C.byref(config), C.byref(self.comm))

    def call(self, name, *args):
        status = getattr(self.lib, name)(*args)
        if status:
            raise RuntimeError(f"{name}: {status}: {self.lib.ferry_last_error().decode()}")

    def layer(self, H, I, E, K, T, **knobs):
        """A layer by the library's rules, apart from the fields of its configuration that `knobs` names."""
        config, layer = abi.LayerConfig(), C.c_void_p()
        self.lib.ferry_layer_config_init(C.byref(config))
        config.hidden, config.intermediate, config.experts, config.slots, config.max_tokens = H, I, E, K, T
        config.context_rows, config.tune_file = 0, b""
        for name, value in knobs.items():
            setattr(config, name, value)
        self.call("ferry_layer_create", self.comm, C.byref(config), C.byref(layer))
        return layer

    def context(self, layer):
        context = C.c_void_p()
        self.call("ferry_context_create", layer, None, C.byref(context))
        return context

    def forward_args(self, p, out, context=None):
        a = abi.ForwardArgs()
        self.lib.ferry_forward_args_init(C.byref(a))
        a.num_tokens, a.x, a.ids, a.ids_dtype = p.n.data_ptr(), p.x.data_ptr(), p.ids.data_ptr(), abi.I64
        a.weights, a.out, a.stream, a.context = p.weights.data_ptr(), out.data_ptr(), stream(), context
        for name, m in zip(MATRICES, three(p.w13, p.w2)):
            setattr(a.params, name, m)
        a.keep = p.n, p.x, p.ids, p.weights, p.w13, p.w2, out
        return a

    def backward_args(self, p, dout, dx, dweights, d13, d2, beta, context):
        a = abi.BackwardArgs()
        self.lib.ferry_backward_args_init(C.byref(a))
        a.context, a.dout, a.dx, a.dweights = context, dout.data_ptr(), dx.data_ptr(), dweights.data_ptr()
        a.stream = stream()
        for name, m in zip(MATRICES, three(p.w13, p.w2)):
            setattr(a.params, name, m)
        for name, m in zip(MATRICES, three(d13, d2)):
            setattr(a.grads, name, abi.Gradient(m, beta))
        a.keep = p.w13, p.w2, dout, dx, dweights, d13, d2
        return a

    def forward(self, layer, args):
        self.call("ferry_forward", layer, C.byref(args))

    def backward(self, layer, args):
        self.call("ferry_backward", layer, C.byref(args))

    def stats(self, layer):
        s = abi.Stats()
        s.size = C.sizeof(s)
        self.call("ferry_layer_stats", layer, C.byref(s))
        return s

    def plan(self, layer):
        p = abi.Plan()
        p.size = C.sizeof(p)
        self.call("ferry_layer_get_plan", layer, C.byref(p))
        return p

    def drop(self, layer, *contexts):
        for context in contexts:
            self.lib.ferry_context_destroy(context)
        self.lib.ferry_layer_destroy(layer)

    def close(self):
        self.lib.ferry_comm_destroy(self.comm)
        getattr(self.lib, "ferry_thread_group_destroy" if self.solo else "ferry_env_bootstrap_destroy")(self.env)


def three(w13, w2):
    """Gate, up and down of fused [E, 2I, H] and [E, H, I] tensors."""
    _, I2, H = w13.shape
    size, dtype = w13.element_size(), abi.BF16 if w13.dtype == torch.bfloat16 else abi.F32
    return (abi.Matrices(w13.data_ptr(), None, I2 * H, H, dtype),
            abi.Matrices(w13.data_ptr() + I2 // 2 * H * size, None, I2 * H, H, dtype),
            abi.Matrices(w2.data_ptr(), None, H * I2 // 2, I2 // 2, dtype))


# ---- Problems -------------------------------------------------------------------------------------------------------

class Problem:
    """Random tensors of one rank. Ids: the best K of softmax(normal + skew * a normal bias that all ranks share)."""

    def __init__(self, H, I, E, K, T, skew=0.0, ranks=WORLD):
        torch.manual_seed(1234 + RANK)
        self.H, self.I, self.E, self.K, self.T, self.here = H, I, E, min(K, E), T, E // ranks
        self.x = torch.randn(T, H, device=DEVICE, dtype=torch.bfloat16)
        self.ids, self.weights = route(T, E, self.K, skew)
        self.w13 = torch.randn(self.here, 2 * I, H, device=DEVICE, dtype=torch.bfloat16) * 0.02
        self.w2 = torch.randn(self.here, H, I, device=DEVICE, dtype=torch.bfloat16) * 0.02
        self.n = torch.tensor([T], dtype=torch.int32, device=DEVICE)

    def shape(self):
        return self.H, self.I, self.E, self.K, self.T


def route(T, E, K, skew):
    bias = torch.randn(E, device=DEVICE, generator=torch.Generator(DEVICE).manual_seed(7))
    weights, ids = torch.topk(torch.softmax(torch.randn(T, E, device=DEVICE) + skew * bias, -1), K, -1)
    return ids.contiguous(), (weights / weights.sum(-1, keepdim=True)).contiguous()


# ---- Yardsticks and the loop ----------------------------------------------------------------------------------------

class Yardsticks:
    """cuBLAS on 8192^3, and Ferry's own plain product (target bench_gpu) on rows x columns x depth."""

    def __init__(self, path, rows=16384, columns=4096, depth=7168):
        self.own = C.CDLL(path)
        self.own.plain_product.restype, self.own.call_seconds.restype = C.c_char_p, C.c_double
        self.own.plain_product.argtypes = [C.c_void_p] * 3 + [C.c_int64] * 3 + [C.c_void_p]
        self.own.call_seconds.argtypes = [C.c_void_p] * 3 + [C.c_int]
        self.extents = (rows, columns, depth)
        self.a8, self.b8 = (torch.randn(8192, 8192, device=DEVICE, dtype=torch.bfloat16) for _ in range(2))
        self.a, self.b, self.c = self.operands(rows, columns, depth)

    @staticmethod
    def operands(rows, columns, depth):
        return (torch.randn(rows, depth, device=DEVICE, dtype=torch.bfloat16),
                torch.randn(columns, depth, device=DEVICE, dtype=torch.bfloat16) * 0.02,
                torch.empty(rows, columns, device=DEVICE, dtype=torch.bfloat16))

    def product(self, a, b, c):
        """c = a b^T by the plain product; whole tiles of 128 x 256."""
        why = self.own.plain_product(a.data_ptr(), b.data_ptr(), c.data_ptr(), *c.shape, a.shape[1], stream())
        if why:
            raise RuntimeError(f"plain_product: {why.decode()}")

    def functions(self):
        return [lambda: self.a8 @ self.b8.T, lambda: self.product(self.a, self.b, self.c)]

    def rates(self, square_ms, own_ms):
        """Operations a second: R*, cuBLAS, plain."""
        rows, columns, depth = self.extents
        square, own = 2 * 8192.0**3 / square_ms * 1e3, 2.0 * rows * columns * depth / own_ms * 1e3
        return max(square, own), square, own


def most(value):
    """Over ranks."""
    t = torch.tensor([float(value)], device=DEVICE)
    if WORLD > 1:
        dist.all_reduce(t, op=dist.ReduceOp.MAX)
    return t.item()


def meet(token=[]):
    """On the GPUs, in stream order."""
    if not token:
        token.append(torch.zeros(1, device=DEVICE))
    if WORLD > 1:
        dist.all_reduce(token[0])


def timed(f, events):
    a, b = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    a.record()
    f()
    b.record()
    events.append((a, b))


def measure(functions, rounds, warm=3):
    """Median over rounds of each function's time on the slowest rank, in ms, with the least and the most. In a round
    the functions take turns, each after a barrier on the GPUs; every round begins with another one, since the first
    one runs on GPUs that were idle. Before it the GPUs rest for about 0.15 ms, so that what the host takes to enqueue
    barrier and function is in no time."""
    rows, n = [], len(functions)
    for r in range(rounds + warm):
        events = []
        for i in range(n):
            torch.cuda._sleep(300000)
            meet()
            timed(functions[(r + i) % n], events)
        torch.cuda.synchronize()
        if r >= warm:
            times = [a.elapsed_time(b) for a, b in events]
            rows.append([times[(i - r) % n] for i in range(n)])
    times = torch.tensor(rows, dtype=torch.float64, device=DEVICE)
    if WORLD > 1:
        dist.all_reduce(times, op=dist.ReduceOp.MAX)
    return [(statistics.median(t), min(t), max(t)) for t in times.T.tolist()]


def floors(p, rows, link_bytes, rate, backward=False):
    """The three lower bounds of a call in ms; with a backward three times the operations and the bytes of memory."""
    times = 3 if backward else 1
    memory = p.here * 3 * p.H * p.I * 2 + 4 * rows * p.H * 2 + 2 * rows * p.I * 2 + 2 * p.T * p.H * 2
    return {"flop": times * 6 * rows * p.H * p.I / rate * 1e3, "link": link_bytes / LINK * 1e3,
            "memory": times * memory / COPY * 1e3}


# ---- The same layer from NCCL and PyTorch ---------------------------------------------------------------------------

def exchange(rows, given, wanted):
    got = rows.new_empty((sum(wanted),) + rows.shape[1:])
    dist.all_to_all_single(got, rows.contiguous(), wanted, given)
    return got


class Exchange(torch.autograd.Function):
    @staticmethod
    def forward(ctx, rows, given, wanted):
        ctx.back = (wanted, given)
        return exchange(rows, given, wanted)

    @staticmethod
    def backward(ctx, grad):
        return exchange(grad, *ctx.back), None, None


def inverse(order):
    back = torch.empty_like(order)
    back[order] = torch.arange(order.numel(), device=order.device)
    return back


def torch_layer(x, ids, weights, w13, w2, E):
    """Sort by expert, all-to-all, grouped products, all-to-all back, weighted sum; differentiable."""
    T, K = ids.shape
    here = E // WORLD
    flat = ids.reshape(-1)
    order = torch.argsort(flat, stable=True)
    mine = count = torch.bincount(flat, minlength=E)
    rows = x[order // K]
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
        y = Exchange.apply(y[inverse(by_expert)], wanted, given)
    y = y[inverse(order)].view(T, K, -1)
    return (y * weights.unsqueeze(-1).to(y.dtype)).sum(1)


def apart(a, b):
    """Relative distance, L2."""
    rows = [t.reshape(-1, t.shape[-1]).split(1 << 16) for t in (a, b)]  # a copy in double may not fit
    sums = [(torch.sum((p.double() - q.double()) ** 2), torch.sum(q.double() ** 2)) for p, q in zip(*rows)]
    difference, norm = (torch.stack(part).sum() for part in zip(*sums))
    return (difference / norm).sqrt().item()


# ---- Start, end, results --------------------------------------------------------------------------------------------

def start():
    torch.cuda.set_device(RANK)
    if WORLD > 1:
        dist.init_process_group("nccl", device_id=torch.device(DEVICE, RANK))


def end(*ferries):
    for ferry in ferries:
        ferry.close()
    if WORLD > 1:
        dist.destroy_process_group()


def say(text):
    if RANK == 0:
        print(text, flush=True)


def ask(*command):
    try:
        return subprocess.run(command, capture_output=True, text=True, timeout=20, check=True).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return "unknown"


def write(path, results):
    """The result file: where it comes from, then `results`. Written by rank 0 where a path is given."""
    if RANK or not path:
        return
    names = ask("nvidia-smi", "--query-gpu=name", "--format=csv,noheader").split("\n")[:WORLD]
    frame = {"hardware": ", ".join(f"{names.count(n)} x {n}" for n in sorted(set(names))),
             "driver": ask("nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader").split("\n")[0],
             "pytorch": torch.__version__, "cuda": torch.version.cuda,
             "commit": os.environ.get("FERRY_COMMIT") or ask("git", "rev-parse", "HEAD"),
             "date": datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%dT%H:%MZ"),
             "command": (f"torchrun --nproc-per-node={WORLD} " if WORLD > 1 else "python3 ")
             + " ".join(os.path.basename(a) if os.path.isabs(a) else a for a in sys.argv),
             "results": results}
    with open(path, "w") as f:
        json.dump(frame, f, indent=1)
        f.write("\n")


def options(parser, rounds):
    """Those of every benchmark."""
    parser.add_argument("--library", required=True, help="libferry.so; libbench_gpu.so is looked for beside it")
    parser.add_argument("--json", help="write the results here")
    parser.add_argument("--rounds", type=int, default=rounds)
    return parser


def yardsticks(o, **extents):
    return Yardsticks(os.path.join(os.path.dirname(os.path.abspath(o.library)), "libbench_gpu.so"), **extents)
