# SPDX-License-Identifier: Apache-2.0
"""The functional layer without PyTorch: NumPy arrays, plain buffers, in an interpreter that cannot import torch."""
import os
import pathlib
import re
import subprocess
import sys

import pytest

TOP = pathlib.Path(__file__).resolve().parents[2]

BLOCK = "import sys; sys.modules['torch'] = None\n"  # importing it fails

NUMPY = """
import numpy as np, ferry_moe as fm
from ferry_moe import functional as F, to_bf16, from_bf16
rng = np.random.default_rng(0)
N, H, I, E, K = 20, 16, 24, 5, 2
x, dout = (to_bf16(rng.normal(size=(N, H))) for _ in range(2))
gate_up, down = to_bf16(rng.normal(size=(E, 2 * I, H)) / 4), to_bf16(rng.normal(size=(E, H, I)) / 5)
ids = np.stack([rng.permutation(E)[:K] for _ in range(N)])
weights = rng.random((N, K)).astype(np.float32)
group = fm.Group.single("cpu")
layer = group.layer(hidden=H, intermediate=I, experts=E, top_k=K, max_tokens=N)
context = fm.Context(layer)
rows = np.full(E, -1, np.int32)
out = F.forward(layer, x, ids, weights, gate_up, down, context=context, expert_rows=rows)
assert out.dtype == np.uint16 and rows.tolist() == np.bincount(ids.ravel(), minlength=E).tolist()

def plain(x):
    result = np.zeros((N, H))
    for t in range(N):
        for k in range(K):
            g, u = np.split(from_bf16(gate_up[ids[t, k]]).astype(float) @ x[t], 2)
            result[t] += weights[t, k] * (from_bf16(down[ids[t, k]]).astype(float) @ (g / (1 + np.exp(-g)) * u))
    return result

want = plain(from_bf16(x).astype(float))
assert np.linalg.norm(from_bf16(out) - want) / np.linalg.norm(want) < 4e-3
dx, dw = np.full_like(x, 0x7FC0), np.full((N, K), np.nan, np.float32)
d_gate_up, d_down = np.zeros(gate_up.shape, np.float32), np.full_like(down, 0x7FC0)
F.backward(layer, context, dout, gate_up, down, dx=dx, dweights=dw, d_gate_up=d_gate_up, d_down=d_down,
           beta={"gate_up": 1.0})
step = rng.normal(size=(N, H)) * 1e-5
base = from_bf16(x).astype(float)
slope = ((plain(base + step) - plain(base - step)) / 2 * from_bf16(dout)).sum()
assert abs((from_bf16(dx) * step).sum() - slope) / abs(slope) < 2e-2, (slope, (from_bf16(dx) * step).sum())
assert np.isfinite(dw).all() and d_gate_up.any() and np.isfinite(from_bf16(d_down)).all()
values = np.array([1.0, -2.5, np.nan, 3.14159, 1e-40], np.float32)
assert np.allclose(from_bf16(to_bf16(values)), values, rtol=2 ** -8, atol=1e-38, equal_nan=True)
hint = "BF16, which NumPy holds as bits in uint16: ferry_moe.to_bf16 makes them"
for bad, words in ((from_bf16(x), "x is [20, 16] F32, expected [20, 16] " + hint),
                   (x.astype(np.int16), "x is [20, 16] int16, expected [20, 16] " + hint),
                   (x[:, ::2], "x is [20, 8] BF16, expected [20, 16] BF16"), (np.asfortranarray(x), "not contiguous")):
    try:
        F.forward(layer, bad, ids, weights, gate_up, down)
        raise AssertionError(words)
    except ValueError as error:
        assert str(error).endswith(words), error
for bad, words in (({"gate_up": gate_up[1:]}, "gate_up is [4, 48, 16] BF16, expected [5, 48, 16] BF16"),
                   ({"weights": weights.astype(float)}, "weights is [20, 2] F64, expected [20, 2] F32"),
                   ({"num_tokens": np.array(3)}, "num_tokens is [] I64, expected one I32")):
    try:
        F.forward(layer, **{**dict(x=x, ids=ids, weights=weights, gate_up=gate_up, down=down), **bad})
        raise AssertionError(words)
    except ValueError as error:
        assert str(error).endswith(words), error
try:
    F.forward(layer, "x", ids, weights, gate_up, down)
    raise AssertionError
except TypeError as error:
    assert "str is no array" in str(error), error
print("ok")
"""

BUFFERS = """
import array, ferry_moe as fm

def tensor(code, shape, values):
    return memoryview(array.array(code, values)).cast("B").cast(code, shape)

group = fm.Group.single()
layer = group.layer(hidden=4, intermediate=8, experts=2, top_k=1, max_tokens=3)
one, half = 0x3F80, 0x3F00
out = tensor("H", [3, 4], [0x7FC0] * 12)
given = (tensor("H", [3, 4], [one] * 12), tensor("i", [3, 1], [0, 1, -1]), tensor("f", [3, 1], [1.0, 2.0, 3.0]),
         tensor("H", [2, 16, 4], [half] * 128), tensor("H", [2, 4, 8], [half] * 64))
assert fm.functional.forward(layer, *given, out=out) is out
assert out.tolist() == [[16737] * 4, [16865] * 4, [0] * 4], out.tolist()
try:
    fm.functional.forward(layer, *given)
    raise AssertionError
except TypeError as error:
    assert "give out" in str(error)
print("ok")
"""


# What python/README.md shows, and that its result is the sum that it should be.
README = re.search(r"```python\n(import numpy.*?)```", (TOP / "python/README.md").read_text(), re.DOTALL).group(1) + """
want = np.zeros((N, H))
for t, k in np.ndindex(N, K):
    gate, up = np.split(from_bf16(gate_up[ids[t, k]]) @ from_bf16(x[t]), 2)
    want[t] += weights[t, k] * (from_bf16(down[ids[t, k]]) @ (gate / (1 + np.exp(-gate)) * up))
assert out.shape == (N, H) and np.linalg.norm(out - want) < 4e-3 * np.linalg.norm(want)
print("ok")
"""


@pytest.mark.parametrize("code", [NUMPY, BUFFERS, README], ids=["numpy", "buffers", "readme"])
def test_without_torch(code):
    if code is not BUFFERS:
        pytest.importorskip("numpy")
    done = subprocess.run([sys.executable, "-c", BLOCK + code], capture_output=True, text=True, timeout=100,
                          env=os.environ)
    assert done.stdout == "ok\n", done.stdout + done.stderr


def test_what_needs_torch_says_so():
    code = BLOCK + "import ferry_moe\nferry_moe.FerryMoE"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=100, env=os.environ)
    assert done.returncode == 1 and "torch" in done.stderr
