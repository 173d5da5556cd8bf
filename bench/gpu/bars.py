# SPDX-License-Identifier: Apache-2.0
"""Ratios that the GPU layer has to keep, each measured against something timed beside it, one process per GPU.

    torchrun --nproc-per-node=2 bench/gpu/bars.py --library libferry.so --json result.json
    python3 bench/gpu/bars.py --library libferry.so        (one GPU: what needs two is skipped and said)

Parts (--parts, comma-separated, default: all). Times are medians over rounds in which everything compared takes turns,
after a barrier on the GPUs; the slowest rank counts.
    schedule   start of the first schedule launch to the end of the last, over start of that to the end of the compute
               launch; kernel times of the profiler (CUPTI), because events cannot be put inside a call
    hidden     1 - time with rows that all come from the rank itself / time with the usual routing; the same rows for
               every expert
    minibatch  the rule's minibatch against others, kimi-slice
    ring       a ring of a quarter of the rows against one that holds all: forward; and forward + backward without saved
               rows against all rows saved
    skew       score with skew 1 over score with skew 0, the busiest rank's rows counted
    pipeline   products inside the layer against the stand-alone plain product, one rank, all tokens local. The limit is
               for a tile's time in `ferry trace` (gate and up, or down, from the first operands to the last sum; what
               follows, SwiGLU, stores and pushes, is not in it) against the plain product's time for a tile with its
               store, which it overlaps. Beside it, from whole calls: time of the plain products for added rows over
               the time that the layer takes longer for them, when rows grow four-fold: fixed costs (schedule, first
               pulls, last sums) cancel, everything else counts as the layer's; and when the intermediate size doubles
    host       processor time of the calling thread for one forward: from Python (ctypes, arguments made before) and
               from C
    graph      a captured forward replayed 1,000 times with other N, x, ids and weights each time, against the bits of
               eager calls, which are checked against FP64 on some tokens
    nccl       an all-reduce on a stream of high priority beside the layer with sm_margin = the collective's CTAs, in
               both orders of launch, against the all-reduce alone. The limit is for CTAs launched apart; clusters of
               them, which NCCL prefers, need free multiprocessors beside each other, which no margin promises
"""
import argparse
import ctypes as C
import json
import os
import statistics
import subprocess
import tempfile
import time

import common as c
import torch
import torch.distributed as dist

from forward_bench import exact_error

SHAPES = {name: shape for name, *shape in c.SHAPES}
CTAS = 8  # of the all-reduce


class Lab:
    """What the parts share; `bars` collects (name, value, limit, kept)."""

    def __init__(self, o):
        self.o, self.ferry, self.solo, self.yard = o, c.Ferry(o.library), None, c.yardsticks(o)
        self.bars = []

    def bar(self, name, value, limit, most=True):
        kept = value <= limit if most else value >= limit
        self.bars.append({"name": name, "value": value, "limit": ("<= " if most else ">= ") + f"{limit:g}",
                          "kept": kept})
        c.say(f"{'kept  ' if kept else 'MISSED'} {name}: {value:.4g} (limit {'<=' if most else '>='} {limit:g})")
        return value

    def in_library_folder(self, name):
        """The path of a file there."""
        return os.path.join(os.path.dirname(os.path.abspath(self.o.library)), name)

    def alone(self):
        """A communicator of this process alone."""
        if self.solo is None:
            self.solo = self.ferry if c.WORLD == 1 else c.Ferry(self.o.library, solo=True)
        return self.solo

    def forwards(self, p, knobs):
        """A layer for each of `knobs` on one problem: functions that run them, and the layers."""
        layers = [self.ferry.layer(*p.shape(), **k) for k in knobs]
        args = self.ferry.forward_args(p, torch.empty_like(p.x))
        return [lambda layer=layer: self.ferry.forward(layer, args) for layer in layers], layers


# ---- Parts ----------------------------------------------------------------------------------------------------------

def kernel_spans(run, calls):
    """Of each call of `run`: microseconds of the schedule, and of all launches, by the profiler's kernel times."""
    from torch.autograd import DeviceType
    from torch.profiler import ProfilerActivity, profile
    with profile(activities=[ProfilerActivity.CUDA]) as prof:
        for _ in range(calls):
            c.meet()
            run()
        torch.cuda.synchronize()
    found = {name: sorted((e.time_range.start, e.time_range.end) for e in prof.events()
                          if e.device_type == DeviceType.CUDA and f"fy_{name}_kernel" in e.name)
             for name in ("count", "place", "forward")}
    if any(len(times) != calls for times in found.values()):
        raise RuntimeError(f"the profiler saw {[len(t) for t in found.values()]} launches of {calls} calls")
    return [(place[1] - count[0], forward[1] - count[0])
            for count, place, forward in zip(found["count"], found["place"], found["forward"])]


def schedule(lab):
    result = {}
    for name, shape in SHAPES.items():
        p = c.Problem(*shape)
        (run,), (layer,) = lab.forwards(p, [{}])
        kernel_spans(run, 2)
        spans = kernel_spans(run, lab.o.rounds)
        share = c.most(statistics.median(s / whole for s, whole in spans))
        nothing = c.Problem.__new__(c.Problem)
        nothing.__dict__.update(p.__dict__, ids=torch.full_like(p.ids, -1))
        args = lab.ferry.forward_args(nothing, torch.empty_like(p.x))
        (empty, *_), (whole, *_) = c.measure([lambda: lab.ferry.forward(layer, args), run], lab.o.rounds)
        result[name] = {"share": share, "schedule_us": statistics.median(s for s, _ in spans),
                        "all_launches_us": statistics.median(whole for _, whole in spans),
                        "call_without_rows_ms": empty, "call_ms": whole}
        lab.bar(f"schedule, {name}", share, 0.03 if name == "kimi-slice" else 0.08)
        lab.ferry.drop(layer)
        del p, nothing, run, args
        torch.cuda.empty_cache()
    return result


def all_local(p):
    """The problem in which the rows that this rank's experts get under p's routing come from its own tokens."""
    count = torch.bincount(p.ids.reshape(-1), minlength=p.E)
    if c.WORLD > 1:
        dist.all_reduce(count)
    count[:c.RANK * p.here] = 0
    count[(c.RANK + 1) * p.here:] = 0
    rows = int(count.sum())
    local = c.Problem.__new__(c.Problem)
    local.__dict__.update(p.__dict__)
    N = -(-rows // p.K)
    local.T = max(int(c.most(N)), p.T)
    # Dealt out by column, so that a token has as many experts as can be.
    flat = torch.full((N * p.K,), -1, device=c.DEVICE, dtype=torch.int64)
    flat[:rows] = torch.repeat_interleave(torch.arange(p.E, device=c.DEVICE), count)
    local.ids = torch.full((local.T, p.K), -1, device=c.DEVICE, dtype=torch.int64)
    local.ids[:N] = flat.view(p.K, N).T
    local.weights = torch.full((local.T, p.K), 1 / p.K, device=c.DEVICE)
    local.x = torch.randn(local.T, p.H, device=c.DEVICE, dtype=torch.bfloat16)
    local.n = torch.tensor([N], dtype=torch.int32, device=c.DEVICE)
    return local, rows


def hidden(lab):
    if c.WORLD == 1:
        return "skipped: one rank has no communication"
    result = {}
    for name in ("kimi-slice", "qwen3-30b-a3b"):
        p = c.Problem(*SHAPES[name])
        local, rows = all_local(p)
        (usual,), (layer,) = lab.forwards(p, [{}])
        (here,), (local_layer,) = lab.forwards(local, [{}])
        (usual_ms, *_), (local_ms, *_) = c.measure([usual, here], lab.o.rounds)
        assert lab.ferry.stats(layer).rows == lab.ferry.stats(local_layer).rows == rows
        assert lab.ferry.stats(local_layer).bytes_pull_remote == 0
        result[name] = {"usual_ms": usual_ms, "local_ms": local_ms, "rows": rows}
        if name == "kimi-slice":
            lab.bar(f"communication not hidden, {name}", 1 - local_ms / usual_ms, 0.08)
        else:
            c.say(f"       communication not hidden, {name}: {1 - local_ms / usual_ms:.4g}")
        lab.ferry.drop(layer)
        lab.ferry.drop(local_layer)
    return result


def minibatch(lab):
    p = c.Problem(*SHAPES["kimi-slice"])
    sizes = [0, 256, 512, 1024, 1536, 2048, 2560, 3072, 4096, 6144, 8192]
    runs, layers = lab.forwards(p, [{"minibatch_rows": rows} for rows in sizes])
    times = [t[0] for t in c.measure(runs, lab.o.rounds)]
    rule = lab.ferry.plan(layers[0]).minibatch_rows
    result = {"rule_rows": rule, "rule_ms": times[0], "ms_by_rows": dict(zip(sizes[1:], times[1:]))}
    c.say(f"       minibatch rows: rule {rule} {times[0]:.3f} ms; " +
          ", ".join(f"{rows} {t:.3f}" for rows, t in zip(sizes[1:], times[1:])))
    lab.bar("minibatch of the rule over the best", times[0] / min(times), 1.03)
    for layer in layers:
        lab.ferry.drop(layer)
    return result


def ring(lab):
    p, f = c.Problem(*SHAPES["kimi-slice"]), lab.ferry
    (run,), (layer,) = lab.forwards(p, [{}])
    run()
    torch.cuda.synchronize()
    rows = int(c.most(f.stats(layer).rows))
    f.drop(layer)
    # Segments of experts start at multiples of 64.
    whole, quarter = -(-rows // 64) * 64 + 64 * p.here, -(-rows // 256) * 64
    runs, layers = lab.forwards(p, [{"ring_rows": whole}, {"ring_rows": quarter}])
    dout, out, dx = torch.randn_like(p.x), torch.empty_like(p.x), torch.empty_like(p.x)
    d13, d2, dweights = torch.empty_like(p.w13), torch.empty_like(p.w2), torch.empty_like(p.weights)
    contexts = []
    for size, saved in ((whole, whole), (quarter, 0)):
        layer = f.layer(*p.shape(), ring_rows=size, context_rows=saved)
        context = f.context(layer)
        forward = f.forward_args(p, out, context)
        backward = f.backward_args(p, dout, dx, dweights, d13, d2, 0.0, context)

        def step(layer=layer, forward=forward, backward=backward):
            f.forward(layer, forward)
            f.backward(layer, backward)

        runs.append(step)
        layers.append(layer)
        contexts.append(context)
    times = [t[0] for t in c.measure(runs, lab.o.rounds)]
    stats = [f.stats(layer) for layer in layers]
    result = {"rows": rows, "ring_rows": [whole, quarter], "macrobatches": [s.macrobatches for s in stats],
              "recomputed_rows": [s.recomputed_rows for s in stats], "forward_ms": times[:2],
              "forward_backward_ms": times[2:]}
    c.say(f"       ring of all, of a quarter: {result}")
    lab.bar("ring of a quarter, forward", times[1] / times[0], 1.05)
    lab.bar("ring of a quarter without saved rows, forward + backward", times[3] / times[2], 1.35)
    for context in contexts:
        f.lib.ferry_context_destroy(context)
    for layer in layers:
        f.drop(layer)
    return result


def skew(lab):
    result = {}
    for name in ("kimi-slice", "qwen3-30b-a3b"):
        shape = SHAPES[name]
        if shape[3] >= shape[2]:
            continue
        problems = [c.Problem(*shape, s) for s in (0.0, 1.0)]
        made = [lab.forwards(p, [{}]) for p in problems]
        (square, *_), (own, *_), *times = c.measure(lab.yard.functions() + [m[0][0] for m in made], lab.o.rounds)
        rate, scores = lab.yard.rates(square, own)[0], []
        for p, (_, (layer,)), (ms, *_) in zip(problems, made, times):
            s = lab.ferry.stats(layer)
            floors = c.floors(p, c.most(s.rows), c.most(s.bytes_pull_remote + s.bytes_push_remote), rate)
            scores.append(max(floors.values()) / ms)
            lab.ferry.drop(layer)
        result[name] = {"score": scores, "ms": [t[0] for t in times], "r_star_tflops": rate / 1e12}
        lab.bar(f"score of skew 1 over skew 0, {name}", scores[1] / scores[0], 0.9, most=False)
    return result


def spans_ms(path, names):
    """Durations in a file of `ferry trace`, by name."""
    found, open_spans = {name: [] for name in names}, {}
    for e in json.load(open(path))["traceEvents"]:
        stack = open_spans.setdefault((e["pid"], e.get("tid")), [])
        if e["ph"] == "B":
            stack.append((e["name"], e["ts"]))
        elif e["ph"] == "E":
            name, begin = stack.pop()
            if name in found:
                found[name].append((e["ts"] - begin) / 1e3)
    return found


def traced(lab):
    """Times of product tiles in `ferry trace`, and of the plain product's, both on a GPU that has rested: seconds of
    load make it slower."""
    if c.WORLD > 1 or not os.path.exists(lab.in_library_folder("ferry")):
        return "skipped: one rank alone is traced, by the command beside the library"
    H, I, E, T = 7168, 2048, 6, 2048
    plain, tiles = {}, {"gate and up": T * E // 128 * (2 * I // 256), "down": T * E // 128 * (H // 256)}
    for name, extents in (("gate and up", (2 * I, H)), ("down", (H, I))):
        operands, times = lab.yard.operands(T * E, *extents), []
        for _ in range(5):
            time.sleep(0.3)
            events = []
            for _ in range(3):
                c.timed(lambda: lab.yard.product(*operands), events)
            torch.cuda.synchronize()
            times.append(events[-1][0].elapsed_time(events[-1][1]))
        plain[name] = statistics.median(times) / -(-tiles[name] // 132)
    result = {"plain_tile_ms": plain, "tile_ms": []}
    torch.cuda.empty_cache()
    for _ in range(3):
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "trace.json")
            subprocess.run([lab.in_library_folder("ferry"), "trace", "--backend", "cuda", "--shape", "kimi-slice",
                            "--ranks", "1", "--out", path],
                           check=True, capture_output=True, timeout=60)
            result["tile_ms"].append({name: statistics.mean(t) for name, t in spans_ms(path, plain).items()})
    cost = sum(tiles[name] * plain[name] for name in tiles)
    result["rates"] = [cost / sum(tiles[name] * t[name] for name in tiles) for t in result["tile_ms"]]
    lab.bar("rate of the products inside a traced call over the plain product's", statistics.median(result["rates"]),
            0.95, most=False)
    return result


def pipeline(lab):
    ferry, H, E = lab.alone(), SHAPES["kimi-slice"][0], 6
    sizes = {"few rows": (2048, 2048), "many rows": (8192, 2048), "many rows, wide": (8192, 4096)}
    runs, layers = [], []
    for T, I in sizes.values():
        p = c.Problem(H, I, E, E, T, ranks=1)
        layer = ferry.layer(*p.shape())
        args = ferry.forward_args(p, torch.empty_like(p.x))
        make, finish = (lab.yard.operands(T * E, *extents) for extents in ((2 * I, H), (H, I)))
        runs.append(lambda layer=layer, args=args: ferry.forward(layer, args))
        runs += [lambda m=m: lab.yard.product(*m) for m in (make, finish)]
        layers.append(layer)
    times = [t[0] for t in c.measure(runs, lab.o.rounds)]
    ms = {name: dict(zip(("layer", "plain_make", "plain_finish"), times[3 * i:])) for i, name in enumerate(sizes)}

    def rate(less, more):
        plain = sum(ms[more][k] - ms[less][k] for k in ("plain_make", "plain_finish"))
        return plain / (ms[more]["layer"] - ms[less]["layer"])

    rows, wide = rate("few rows", "many rows"), rate("many rows", "many rows, wide")
    c.say(f"       added rows over the plain product's time for them: {rows:.4g}; added intermediate size: {wide:.4g}")
    for layer in layers:
        ferry.drop(layer)
    return {"traced": traced(lab), "rows_of_few_and_many": [2048 * E, 8192 * E], "intermediate": [2048, 4096], "ms": ms,
            "rate_by_rows": rows, "rate_by_intermediate": wide}


def host(lab):
    # Each rank's thread on a core of its own, where there are enough: processors of one core are neighbours, or half of
    # all apart. Beside another thread on its core a call takes twice the time.
    lab.alone()  # threads that it starts are not bound
    allowed = os.sched_getaffinity(0)
    if len(allowed) >= 4 * (c.WORLD + 1):
        os.sched_setaffinity(0, {sorted(allowed)[2 * (c.RANK + 1)]})
    try:
        return host_times(lab)
    finally:
        os.sched_setaffinity(0, allowed)


def host_times(lab):
    result = {}
    for ferry, name in ((lab.alone(), "1 rank"), (lab.ferry, f"{c.WORLD} ranks")):
        if name in result or (ferry is lab.ferry and c.WORLD == 1 and result):
            continue
        ranks = 1 if ferry is lab.solo else c.WORLD
        p = c.Problem(1024, 512, 8, 2, 64, ranks=ranks)
        layer, calls, python, plain_c = ferry.layer(*p.shape()), 20, [], []
        args = ferry.forward_args(p, torch.empty_like(p.x))
        function = C.cast(ferry.lib.ferry_forward, C.c_void_p)
        for _ in range(20):
            # Behind other work, so that the device is not waited for.
            start = time.thread_time()
            for _ in range(calls):
                ferry.forward(layer, args)
            python.append((time.thread_time() - start) / calls * 1e6)
            torch.cuda.synchronize()
            plain_c.append(lab.yard.own.call_seconds(function, layer, C.addressof(args), calls) * 1e6)
            torch.cuda.synchronize()
        assert min(plain_c) > 0
        medians = [c.most(statistics.median(t)) for t in (python, plain_c)]
        result[name] = {"python_us": medians[0], "c_us": medians[1]}
        lab.bar(f"host time of a call from Python, {name}, us", medians[0], 60)
        lab.bar(f"host time of a call from C, {name}, us", medians[1], 15)
        ferry.drop(layer)
    return result


def graph(lab, replays=1000, variants=8):
    H, I, E, K, T = 2048, 768, 64, 8, 1024
    p, f = c.Problem(H, I, E, K, T), lab.ferry
    layer, out = f.layer(H, I, E, K, T), torch.empty_like(p.x)
    inputs, eager = [], []
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        args = f.forward_args(p, out)

        def load(v):
            for to, values in zip((p.n, p.x, p.ids, p.weights), inputs[v]):
                to.copy_(values)
            out.fill_(float("nan"))

        for v in range(variants):
            n = (T * (variants - v) // variants - c.RANK * 37) % (T + 1) if v else T
            inputs.append((torch.tensor([n], dtype=torch.int32, device=c.DEVICE), torch.randn_like(p.x),
                           *c.route(T, E, K, v % 3 * 0.5)))
            load(v)
            f.forward(layer, args)
            eager.append(out.clone())
        load(0)
        f.forward(layer, args)
        side.synchronize()
        error = exact_error(out, p, list(range(0, T, T // 12)))
        captured = torch.cuda.CUDAGraph()
        with torch.cuda.graph(captured, stream=side, capture_error_mode="thread_local"):
            f.forward(layer, args)
        wrong = torch.zeros((), dtype=torch.int64, device=c.DEVICE)
        for i in range(replays):
            v = i * 5 % variants
            load(v)
            captured.replay()
            wrong += (out.view(torch.int16) != eager[v].view(torch.int16)).any()
        side.synchronize()
    wrong = c.most(wrong.item())
    del captured
    f.drop(layer)
    lab.bar(f"graph: replays of {replays} with bits unlike eager's", wrong, 0)
    lab.bar("graph: eager calls against FP64, relative error", error, 4e-3)
    return {"replays": replays, "variants": variants, "wrong": wrong, "error": error}


def all_reduce_beside(lab, group, forward, data):
    """Medians in ms of an all-reduce alone, and of it and the layer beside each other in both orders of launch."""
    main, side = torch.cuda.current_stream(), torch.cuda.Stream(priority=-1)

    def reduce(events):
        with torch.cuda.stream(side):
            c.timed(lambda: dist.all_reduce(data, group=group), events)

    def once(layer_first, with_layer):
        reduced, ran = [], []
        c.meet()
        side.wait_stream(main)
        order = [lambda: reduce(reduced)]
        if with_layer:
            order.insert(0 if layer_first else 1, lambda: c.timed(forward, ran))
        for f in order:
            f()
        torch.cuda.synchronize()
        return [c.most(a.elapsed_time(b)) for (a, b), in ([reduced, ran] if with_layer else [reduced])]

    kinds = {"alone": (True, False), "layer first": (True, True), "all-reduce first": (False, True)}
    times = {kind: [] for kind in kinds}
    for r in range(5 * lab.o.rounds + 2):  # they take a few ms and wander
        for kind, how in kinds.items():
            t = once(*how)
            if r >= 2:
                times[kind].append(t)
    return {kind: [statistics.median(t) for t in zip(*times[kind])] for kind in kinds}


def nccl(lab):
    if c.WORLD == 1:
        return "skipped: one rank has nobody to reduce with"
    data = torch.zeros(64 << 20, device=c.DEVICE, dtype=torch.bfloat16)
    p = c.Problem(*SHAPES["kimi-slice"])
    (forward,), (layer,) = lab.forwards(p, [{"sm_margin": CTAS}])
    result = {"ctas": CTAS, "bytes": data.numel() * 2,
              "layer_multiprocessors": lab.ferry.plan(layer).multiprocessors}
    for name, cluster in (("CTAs apart", 0), ("clusters of 4", 4)):
        chosen = dist.ProcessGroupNCCL.Options(is_high_priority_stream=True)
        chosen.config.max_ctas, chosen.config.cga_cluster_size = CTAS, cluster
        times = result[name] = all_reduce_beside(lab, dist.new_group(pg_options=chosen), forward, data)
        c.say(f"       all-reduce of {result['bytes']} bytes, {name}, and the layer, ms: {times}")
        for order in ("layer first", "all-reduce first"):
            ratio, what = times[order][0] / times["alone"][0], f"all-reduce beside the layer over alone, {order}"
            if cluster == 0:
                lab.bar(what, ratio, 1.5)
            else:
                c.say(f"       {what}, {name}: {ratio:.4g}")
    lab.ferry.drop(layer)
    return result


PARTS = {f.__name__: f for f in (schedule, hidden, minibatch, ring, skew, pipeline, host, graph, nccl)}


def main():
    p = c.options(argparse.ArgumentParser(description=__doc__.splitlines()[0]), 10)
    p.add_argument("--parts", default=",".join(PARTS), help="comma-separated, of " + " ".join(PARTS))
    o = p.parse_args()
    c.start()
    lab, results, failed = Lab(o), {"ranks": c.WORLD}, 0
    with torch.no_grad():
        for part in o.parts.split(","):
            start = time.monotonic()
            try:
                results[part] = PARTS[part](lab)
            except Exception as error:  # the other parts still tell something
                results[part] = f"failed: {error}"
                failed = 1
            if isinstance(results[part], str):
                c.say(f"       {part}: {results[part]}")
            c.say(f"       {part} took {time.monotonic() - start:.1f} s")
            results["bars"] = lab.bars
            torch.cuda.empty_cache()
            c.write(o.json, results)
    c.end(*{id(f): f for f in (lab.solo, lab.ferry) if f}.values())
    raise SystemExit(failed)


if __name__ == "__main__":
    main()
