# SPDX-License-Identifier: Apache-2.0
"""Values and bits of the benchmark shapes, forward and backward, one process per GPU.

    torchrun --nproc-per-node=2 bench/gpu/values.py --library libferry.so --json result.json
    python3 bench/gpu/values.py --library libferry.so        (one GPU)

Values: all tokens, all experts, against the layer in FP64 (expert by expert, every rank those that it holds), in two
forms: nothing rounded, and rounded to BF16 at the layer's own rounding points. Relative errors are L2; the limits are
LIMITS. The FP64 layer is first compared with tests/golden/plain, which another implementation wrote. Bits: with more
than one rank, everything against the same global batch on rank 0 alone (EP = 1), by equality. Ends with 1 when
something is off.
"""
import argparse
import json
import pathlib
import struct

import common as c
import torch
import torch.distributed as dist

NAMES = ("out", "dx", "dweights", "gate_up", "down")
LIMITS = {"points": dict.fromkeys(NAMES, 2e-3), "exact": dict(dict.fromkeys(NAMES, 6e-3), out=4e-3)}


# ---- The layer in FP64 ----------------------------------------------------------------------------------------------

def rounded(values):
    return values.to(torch.bfloat16).double()


def unrounded(values):
    return values


def expert(x, w, w13, w2, dout, point):
    """Rows through one expert, all FP64: y, dx rows, dweights, gradients of w13 and w2."""
    g, u = (x @ w13.T).chunk(2, -1)
    y = point(point(torch.nn.functional.silu(g) * u) @ w2.T)
    g, u = point(g), point(u)
    s = torch.sigmoid(g)
    dh = dout @ w2
    d13 = torch.cat((point(w * dh * u * s * (1 + g * (1 - s))), point(w * dh * g * s)), 1)
    h = g * s * u
    return y, point(d13 @ w13), (dh * h).sum(1), d13.T @ x, dout.T @ point(w * h)


class Exact:
    """out, dx and dweights of all tokens, from the experts of this rank; sums are complete after `finish`."""

    def __init__(self, x, ids, weights, dout, point):
        self.x, self.ids, self.weights, self.dout, self.point = x, ids, weights, dout, point
        self.out, self.dx = (torch.zeros(x.shape, dtype=torch.float64, device=x.device) for _ in range(2))
        self.dweights = torch.zeros(weights.shape, dtype=torch.float64, device=x.device)

    def add(self, e, w13, w2):
        """Expert `e`; returns the gradients of its weights."""
        t, k = (self.ids == e).nonzero(as_tuple=True)
        w = self.weights[t, k].double()[:, None]
        y, dx, dw, d13, d2 = expert(self.x[t].double(), w, w13.double(), w2.double(), self.dout[t].double(), self.point)
        self.out.index_add_(0, t, w * y)
        self.dx.index_add_(0, t, dx)
        self.dweights[t, k] = dw
        return d13, d2

    def finish(self):
        if c.WORLD > 1:
            for t in (self.out, self.dx, self.dweights):
                dist.all_reduce(t)
        return self.point(self.out), self.point(self.dx), self.dweights


def golden_error(folder):
    """The largest relative error of the rounded form against tests/golden/plain."""
    kinds = {"BF16": torch.bfloat16, "F32": torch.float32, "I32": torch.int32, "I64": torch.int64}
    tensors = {}
    for part in ("in", "out"):
        data = (folder / f"plain.{part}.safetensors").read_bytes()
        size = struct.unpack("<Q", data[:8])[0]
        for name, d in json.loads(data[8:8 + size]).items():
            if name != "__metadata__":
                first, last = (8 + size + o for o in d["data_offsets"])
                values = torch.frombuffer(bytearray(data[first:last]), dtype=kinds[d["dtype"]])
                tensors[name] = values.view(d["shape"]).to(c.DEVICE)
    t = tensors
    layer = Exact(t["x"], t["ids"], t["weights"], t["dout"], rounded)
    got = [layer.add(e, torch.cat((t["gate"][e], t["up"][e])), t["down"][e]) for e in range(len(t["gate"]))]
    d13, d2 = (torch.stack(g) for g in zip(*got))
    pairs = [(rounded(layer.out), t["out"]), (rounded(layer.dx), t["dx"]), (layer.dweights, t["dweights"]),
             (d13, torch.cat((t["dgate"], t["dup"]), 1)), (d2, t["ddown"])]
    return max(c.apart(a, b) for a, b in pairs)


# ---- Ferry ----------------------------------------------------------------------------------------------------------

class Step:
    """One forward and backward of Ferry by a layer with these knobs: its tensors, filled with NaN before."""

    def __init__(self, ferry, p, dout, grads, **knobs):
        self.out, self.dx = torch.full_like(p.x, float("nan")), torch.full_like(p.x, float("nan"))
        self.dweights = torch.full_like(p.weights, float("nan"))
        self.gate_up, self.down = (torch.full_like(w, float("nan"), dtype=grads) for w in (p.w13, p.w2))
        layer = ferry.layer(*p.shape(), **knobs)
        context = ferry.context(layer)
        ferry.forward(layer, ferry.forward_args(p, self.out, context))
        ferry.backward(layer, ferry.backward_args(p, dout, self.dx, self.dweights, self.gate_up, self.down, 0.0,
                                                  context))
        torch.cuda.synchronize()
        ferry.drop(layer, context)


def everyone(t):
    """All ranks' tensors, one after the other along the first dimension."""
    if c.WORLD == 1:
        return t
    whole = t.new_empty((t.shape[0] * c.WORLD,) + t.shape[1:])
    dist.all_gather_into_tensor(whole, t.contiguous())
    return whole


def check_values(p, step, dout):
    """Relative errors by form and name, over all ranks."""
    whole = [everyone(t) for t in (p.x, p.ids, p.weights, dout)]
    mine, errors = slice(c.RANK * p.T, (c.RANK + 1) * p.T), {}
    for form, point in (("exact", unrounded), ("points", rounded)):
        layer = Exact(*whole, point)
        squares = {name: torch.zeros(2, dtype=torch.float64, device=c.DEVICE) for name in NAMES}

        def compare(name, got, want):
            got = got.double()
            squares[name] += torch.stack(((got - want).square().sum(), want.square().sum()))

        for i in range(p.here):
            grads = layer.add(c.RANK * p.here + i, p.w13[i], p.w2[i])
            for name, got, want in zip(NAMES[3:], (step.gate_up[i], step.down[i]), grads):
                compare(name, got, point(want) if got.dtype == torch.bfloat16 else want)
        for name, want in zip(NAMES, layer.finish()):
            compare(name, getattr(step, name), want[mine])
        for square in squares.values():
            if c.WORLD > 1:
                dist.all_reduce(square)
        errors[form] = {name: (s[0] / s[1]).sqrt().item() for name, s in squares.items()}
    return errors


def check_bits(solo, p, step, dout):
    """Names of what differs from the run of the whole batch with all experts by `solo`, which rank 0 alone has; []
    elsewhere."""
    whole = c.Problem.__new__(c.Problem)
    whole.__dict__.update(p.__dict__, T=p.T * c.WORLD, here=p.E)
    whole.x, whole.ids, whole.weights, whole.w13, whole.w2 = (
        everyone(t) for t in (p.x, p.ids, p.weights, p.w13, p.w2))
    whole.n = torch.tensor([whole.T], dtype=torch.int32, device=c.DEVICE)
    all_dout, differs = everyone(dout), []
    torch.cuda.empty_cache()
    # One rank with everybody's rows: no saved context, and a ring that need not hold all. Bits do not depend on either.
    alone = None
    if c.RANK == 0:
        alone = Step(solo, whole, all_dout, step.gate_up.dtype, context_rows=0, ring_rows=4 * p.T * p.K)
    for name in NAMES:
        got = everyone(getattr(step, name))
        if c.RANK == 0 and not torch.equal(got.view(torch.uint8), getattr(alone, name).view(torch.uint8)):
            differs.append(name)
    return differs


def check(ferry, solo, name, shape, o):
    p = c.Problem(*shape)
    dout = torch.randn(p.T, p.H, device=c.DEVICE, dtype=torch.bfloat16)
    grads = torch.float32 if p.here * 3 * p.H * p.I * 4 < 40e9 else torch.bfloat16
    step = Step(ferry, p, dout, grads, context_rows=-1)
    errors = check_values(p, step, dout)
    bad = [f"{form} {what} {e:.1e}" for form in errors for what, e in errors[form].items()
           if not e <= LIMITS[form][what]]
    differs = None
    if c.WORLD > 1 and p.E * 3 * p.H * p.I * 2 < o.bits_gb * 1e9:
        # F32 gradients of all experts three times over do not fit everywhere: BF16 ones for all.
        step = Step(ferry, p, dout, torch.bfloat16, context_rows=-1)
        differs = check_bits(solo, p, step, dout)
        bad += [f"bits of {what}" for what in differs]
    c.say(f"{name:14s} R{c.WORLD}: " + "; ".join(
        f"{form} " + " ".join(f"{e:.1e}" for e in errors[form].values()) for form in errors)
        + {None: "", True: "; bits as EP = 1", False: ""}[None if differs is None else not differs]
        + ("; FAILED: " + ", ".join(bad) if bad else ""))
    return {"shape": name, "ranks": c.WORLD, "errors": errors, "gradients": str(grads)[6:],
            "bits_differ_from_ep1": differs, "failed": bad}


def main():
    p = c.options(argparse.ArgumentParser(description=__doc__.splitlines()[0]), 1)
    p.add_argument("--only", default="", help="shapes whose names contain this")
    p.add_argument("--bits-gb", type=float, default=24,
                   help="bits are compared where the weights of all experts take less than this; 0: nowhere")
    o = p.parse_args()
    c.start()
    golden = golden_error(pathlib.Path(__file__).parents[2] / "tests" / "golden")
    c.say(f"FP64 layer against tests/golden/plain: {golden:.1e}")
    ferry = c.Ferry(o.library)
    solo = c.Ferry(o.library, solo=True) if c.WORLD > 1 and c.RANK == 0 else None
    results = [{"golden": golden, "failed": [] if golden < 1e-6 else ["the FP64 layer itself"]}]
    with torch.no_grad():
        for name, *shape in c.SHAPES:
            if o.only in name:
                results.append(check(ferry, solo, name, shape, o))
                torch.cuda.empty_cache()
                c.write(o.json, results)
    bad = c.most(sum(len(r["failed"]) for r in results))
    c.end(*(f for f in (solo, ferry) if f))
    raise SystemExit(1 if bad else 0)


if __name__ == "__main__":
    main()
