#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes tests/golden: inputs of `ferry run` and the outputs that it must give.

A second implementation of the layer in float64 with the rounding points of docs/design.md, written apart from
src/ref and in another shape: expert by expert over all its rows, not token by token. Needs numpy and nothing else.

    tools/make_golden.py [FOLDER]
"""
import json
import pathlib
import struct
import sys

import numpy as np

CUT = 52 - 7  # mantissa bits that a double has beyond BF16
LAST = np.uint64(1 << CUT)


def bf16(values):
    """To the nearest BF16 value, ties to even; for zero, NaN and what BF16 holds as a normal number."""
    values = np.asarray(values, np.float64)
    size = np.abs(values[np.isfinite(values) & (values != 0)])
    assert size.size == 0 or (size.min() >= 2.0**-126 and size.max() < 2.0**127)
    bits = values.view(np.uint64)
    odd = (bits >> np.uint64(CUT)) & np.uint64(1)
    bits = (bits + (LAST >> np.uint64(1)) - np.uint64(1) + odd) & ~(LAST - np.uint64(1))
    return np.where(np.isnan(values), values, bits.view(np.float64))


def bf16_side(values, limit):
    """bf16(), but no |value| <= limit becomes larger than the limit, and none that was larger stops being so."""
    rounded = bf16(values)
    if not limit:
        return rounded
    inward = (rounded.view(np.uint64) - LAST).view(np.float64)
    outward = (rounded.view(np.uint64) + LAST).view(np.float64)
    crossed_out = (np.abs(values) <= limit) & (np.abs(rounded) > limit)
    crossed_in = (np.abs(values) > limit) & (np.abs(rounded) <= limit)
    return np.where(crossed_out, inward, np.where(crossed_in, outward, rounded))


def bf16_below(values, limit):
    """For g, which is bounded above only."""
    return np.where(values > 0, bf16_side(values, limit), bf16(values))


def swiglu(g, u, limit):
    if limit:
        g, u = np.minimum(g, limit), np.clip(u, -limit, limit)
    s = 1 / (1 + np.exp(-g))
    return g * s * u, u * s * (1 + g * (1 - s)), g * s


def ffn(x, weight, gate, up, down, limit, dout):
    """Rows through one expert: y, and with dout also dx rows and the gradients of weight, gate, up and down."""
    g, u = x @ gate.T, x @ up.T
    y = bf16(bf16(swiglu(g, u, limit)[0]) @ down.T)
    if dout is None:
        return y, None
    g, u = bf16_below(g, limit), bf16_side(u, limit)
    h, by_g, by_u = swiglu(g, u, limit)
    dh = dout @ down
    dg, du = bf16(weight * dh * by_g), bf16(weight * dh * by_u)
    if limit:
        dg, du = np.where(g > limit, 0, dg), np.where(np.abs(u) > limit, 0, du)
    dx = bf16(dg @ gate + du @ up)
    return y, (dx, (dh * h).sum(1), dg.T @ x, du.T @ x, dout.T @ bf16(weight * h))


def layer(case, limit):
    x, ids, weights, dout = case["x"], case["ids"], case["weights"], case.get("dout")
    tokens, slots = ids.shape
    rows, dx_rows = np.zeros((tokens, slots, x.shape[1])), np.zeros((tokens, slots, x.shape[1]))
    result = {"dweights": np.zeros((tokens, slots))}
    for name in ("gate", "up", "down"):
        result["d" + name] = np.zeros(case[name].shape)
    for expert in range(len(case["gate"])):
        t, k = np.nonzero(ids == expert)
        w = weights[t, k][:, None]
        y, back = ffn(x[t], w, case["gate"][expert], case["up"][expert], case["down"][expert], limit,
                      None if dout is None else dout[t])
        rows[t, k] = w * y
        if back:
            dx_rows[t, k], result["dweights"][t, k] = back[:2]
            result["dgate"][expert], result["dup"][expert], result["ddown"][expert] = back[2:]
    out, dx = np.zeros(x.shape), np.zeros(x.shape)
    if "shared_gate" in case:
        out, back = ffn(x, 1.0, case["shared_gate"], case["shared_up"], case["shared_down"], limit, dout)
        if back:
            dx = back[0]
            result["dshared_gate"], result["dshared_up"], result["dshared_down"] = back[2:]
    for k in range(slots):
        out, dx = out + rows[:, k], dx + dx_rows[:, k]
    result["out"], result["dx"] = bf16(out), bf16(dx)
    return result if dout is not None else {"out": result["out"]}


def make(seed, tokens, hidden, intermediate, experts, slots, shared=0, backward=True):
    """Unit-scale inputs; every id is an expert."""
    random = np.random.default_rng(seed)

    def normal(*shape, depth=1):
        return bf16(random.standard_normal(shape) / np.sqrt(depth))

    case = {
        "x": normal(tokens, hidden),
        "ids": random.integers(0, experts, (tokens, slots)),
        "weights": np.float32(random.uniform(0.1, 1, (tokens, slots))).astype(np.float64),
        "gate": normal(experts, intermediate, hidden, depth=hidden),
        "up": normal(experts, intermediate, hidden, depth=hidden),
        "down": normal(experts, hidden, intermediate, depth=intermediate),
    }
    if shared:
        case["shared_gate"] = normal(shared, hidden, depth=hidden)
        case["shared_up"] = normal(shared, hidden, depth=hidden)
        case["shared_down"] = normal(hidden, shared, depth=shared)
    if backward:
        case["dout"] = normal(tokens, hidden)
    return case


DTYPE = {"out": "BF16", "dx": "BF16", "weights": "F32", "tokens_per_rank": "I32"}


def save(path, tensors, dtype, metadata):
    """A safetensors file: length of the header, header, data; offsets count from the end of the header."""
    width = {"BF16": 2, "F32": 4, "I32": 4, "I64": 8}
    header, blobs, offset = {"__metadata__": metadata} if metadata else {}, [], 0
    for name in sorted(tensors, key=lambda tensor: (-width[dtype(tensor)], tensor)):  # keeps all of them aligned
        values, kind = tensors[name], dtype(name)
        if kind == "BF16":
            assert np.array_equal(values, bf16(values))
            blob = (values.astype("<f4").view("<u4") >> 16).astype("<u2").tobytes()
        else:
            blob = values.astype({"F32": "<f4", "I32": "<i4", "I64": "<i8"}[kind]).tobytes()
        header[name] = {"dtype": kind, "shape": list(values.shape), "data_offsets": [offset, offset + len(blob)]}
        blobs.append(blob)
        offset += len(blob)
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    path.write_bytes(struct.pack("<Q", len(text)) + text + b"".join(blobs))


def cases():
    """name, tensors, dtype of ids, limit"""
    yield "plain", make(1, tokens=9, hidden=24, intermediate=20, experts=4, slots=2), "I32", 0.0

    case = make(2, tokens=14, hidden=40, intermediate=24, experts=5, slots=3, shared=16)
    case["ids"][0] = -1  # a token without experts
    case["weights"][0] = np.nan  # which nobody reads
    case["ids"][1, 1] = -1
    case["ids"][2] = 3  # one expert in all slots
    case["ids"][case["ids"] == 1] = 4  # an expert without rows
    case["weights"][3] = [0, -0.5, -1]
    case["tokens_per_rank"] = np.array([3, 0, 11])
    yield "shared_limit", case, "I64", float(np.float32(0.7))

    case = make(3, tokens=5, hidden=33, intermediate=7, experts=3, slots=1, shared=5, backward=False)
    yield "forward", case, "I32", 0.0


def main():
    folder = pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else pathlib.Path(__file__).parents[1] / "tests/golden")
    for name, case, ids, limit in cases():
        inputs = dict(DTYPE, ids=ids)
        save(folder / f"{name}.in.safetensors", case, lambda tensor: inputs.get(tensor, "BF16"),
             {"swiglu_limit": f"{limit:.9g}"})
        save(folder / f"{name}.out.safetensors", layer(case, limit), lambda tensor: DTYPE.get(tensor, "F32"), {})


if __name__ == "__main__":
    main()
