# SPDX-License-Identifier: Apache-2.0
"""Load statistics beside counts made by PyTorch."""
import torch
from reference import Case

from ferry_moe import FerryMoE, moe


def test_counts(group, device):
    case = Case(device, E=12, K=2, N=60)
    ids = case.ids.clone()
    ids[:40, 0] = 5
    ids[3] = -1
    ids[ids == 11] = 0
    layer = group.layer(max_tokens=64, **case.sizes)
    for with_gradients in (True, False):
        with torch.set_grad_enabled(with_gradients):
            out, load = moe(case.x, ids, case.weights, case.gate_up, case.down, layer=layer, load=True)
        assert out.requires_grad == with_gradients and load.expert_rows.device.type == device
        rows = torch.bincount(ids[ids >= 0], minlength=12)
        assert torch.equal(load.expert_rows.long(), rows)
        mean = rows.sum().item() / 12
        found = load.read()
        assert found["rows"] == found["busiest_rows"] == rows.sum() and found["busiest_expert"] == 5
        assert found["empty_experts"] == (rows == 0).sum() >= 1 and found["overload"] == 1
        assert abs(found["expert_overload"] - rows.max().item() / mean) < 1e-5
        bins = (rows * 4 * 12 // rows.sum()).clamp(max=15)
        assert found["histogram"] == torch.bincount(bins, minlength=16).tolist()
        assert load.rows.dim() == 0 and int(load.rows) == found["rows"]


def test_module(group, device):
    block = FerryMoE(16, 16, 4, 2, group, max_tokens=32, load=True)
    assert block.load is None
    block(torch.randn(30, 16, device=device)).sum().backward()
    assert block.load.expert_rows.sum() == 60
