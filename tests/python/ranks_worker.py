# SPDX-License-Identifier: Apache-2.0
"""One of two ranks of test_ranks.py: ranks_worker.py gloo|nccl. Prints a line for each thing that holds."""
import os
import sys

import torch
import torch.distributed as dist
from reference import Case

import ferry_moe
from ferry_moe import FerryError, FerryMoE, Group, moe

BACKEND = sys.argv[1]
RANK = int(os.environ["RANK"])
DEVICE = "cpu" if BACKEND == "gloo" else f"cuda:{RANK}"
TOKENS = [(0, 33), (33, 64)]  # of the global batch, by rank


def holds(what, condition):
    if not condition:
        raise AssertionError(f"rank {RANK}: {what}")
    print("holds:", what, flush=True)


def settle():
    if DEVICE != "cpu":
        torch.cuda.synchronize()


def share(case, ids):
    """This rank's part of a case that both ranks draw alike."""
    first, last = TOKENS[RANK]
    x = case.x.detach()[first:last].clone().requires_grad_()
    weights = case.weights.detach()[first:last].clone().requires_grad_()
    gate_up = case.gate_up.detach()[ids].clone().requires_grad_()
    down = case.down.detach()[ids].clone().requires_grad_()
    return x, case.ids[first:last], weights, gate_up, down


def same_bits_as_one_rank():
    case = Case(DEVICE, E=7, N=64)
    alone = Group.single(DEVICE)
    out = moe(case.x, case.ids, case.weights, case.gate_up, case.down, layer=alone.layer(max_tokens=64, **case.sizes))
    want = case.gradients(out)
    first, last = TOKENS[RANK]
    for name, group in (("the world", ferry_moe.default_group(None, DEVICE)),
                        ("a sub-group", Group(dist.new_group([0, 1]), DEVICE)),
                        ("the environment", Group.from_env(DEVICE, timeout=60))):
        layer = group.layer(max_tokens=40, **case.sizes)
        mine = share(case, layer.expert_ids)
        result = moe(*mine, layer=layer)
        result.backward(case.dout[first:last])
        x, _, weights, gate_up, down = mine
        holds(f"same bits from {name}", (group.rank, group.size) == (RANK, 2) and torch.equal(result, out[first:last])
              and torch.equal(x.grad, want[0][first:last]) and torch.equal(weights.grad, want[1][first:last])
              and torch.equal(gate_up.grad, want[2][layer.expert_ids])
              and torch.equal(down.grad, want[3][layer.expert_ids]))
    holds("the default group is one", ferry_moe.default_group(None, DEVICE) is ferry_moe.default_group(device=DEVICE))
    alone.destroy()


def sub_groups_of_one():
    groups = [dist.new_group([0]), dist.new_group([1])]
    block = FerryMoE(16, 16, 4, 2, groups[RANK], max_tokens=8, device=DEVICE)
    holds("a sub-group of one has all experts", block.expert_ids == [0, 1, 2, 3] and block.group.size == 1)
    block(torch.randn(8, 16, device=DEVICE)).sum().backward()
    try:
        Group(groups[1 - RANK], DEVICE)
    except ValueError as error:
        holds("a rank outside is refused", "no member" in str(error))


def experts_by_map():
    group = ferry_moe.default_group(None, DEVICE)
    layer = group.layer(hidden=16, intermediate=16, experts=4, top_k=1, max_tokens=8, expert_rank=[1, 0, 1, 0])
    holds("experts go where the map says", layer.expert_ids == ([1, 3], [0, 2])[RANK])


def mistakes():
    group = ferry_moe.default_group(None, DEVICE)
    try:
        group.layer(hidden=16 + 16 * RANK, intermediate=16, experts=4, top_k=1, max_tokens=8)
    except FerryError as error:
        holds("ranks that disagree are told", error.status == "FERRY_E_MISMATCH" and "hidden" in str(error))
    case = Case(DEVICE, N=24)
    layer = group.layer(max_tokens=16, **case.sizes)
    gate_up, down = (t.detach()[layer.expert_ids] for t in (case.gate_up, case.down))

    def call(n):
        out = moe(case.x.detach()[:n], case.ids[:n], case.weights.detach()[:n], gate_up, down, layer=layer)
        settle()
        return out

    try:
        call(24 if RANK else 8)
        if DEVICE != "cpu":
            call(8)  # on a device the other rank hears of it at its next call
    except FerryError as error:
        holds("too many tokens on rank 1 are an error on both", error.status == "FERRY_E_TOO_MANY_TOKENS")
        if DEVICE != "cpu" and RANK:
            settle()
            try:
                call(8)
            except FerryError:
                pass
    holds("the layer can still be used", call(16).isfinite().all())

    class Broken:
        def __getattr__(self, name):
            return getattr(dist, name)

        def all_gather(self, *_, **__):
            raise OSError("no network")

    real, ferry_moe.group._distributed = ferry_moe.group._distributed, lambda: Broken()
    try:
        Group(None, DEVICE)
    except FerryError as error:
        holds("a failed exchange is the cause", "no network" in str(error.__cause__))
    ferry_moe.group._distributed = real


def compiled():
    if not hasattr(torch.library, "custom_op"):
        return
    torch.manual_seed(RANK)
    block = FerryMoE(32, 48, 6, 2, max_tokens=64, device=DEVICE)
    x = torch.randn(40, 32, device=DEVICE, dtype=torch.bfloat16).requires_grad_()
    want = block(x)
    want.sum().backward()
    gradient, x.grad = x.grad, None
    out = torch.compile(block, fullgraph=True, backend="aot_eager")(x)
    out.sum().backward()
    holds("compiled over two ranks: the same bits", torch.equal(out, want) and torch.equal(x.grad, gradient))


def a_dead_peer():
    group = Group(None, DEVICE, enter_timeout=30, progress_timeout=30)
    layer = group.layer(hidden=16, intermediate=16, experts=4, top_k=1, max_tokens=8)
    arguments = [torch.zeros(s, device=DEVICE, dtype=torch.bfloat16) for s in ((8, 16), (2, 32, 16), (2, 16, 16))]
    dist.barrier()
    if RANK == 1:
        sys.stdout.flush()
        os._exit(0)
    try:
        for _ in range(100):
            moe(arguments[0], torch.zeros(8, 1, device=DEVICE, dtype=torch.int64), torch.ones(8, 1, device=DEVICE),
                *arguments[1:], layer=layer)
            settle()
    except FerryError as error:
        holds("a dead peer is an error", error.status == "FERRY_E_PEER" and group.error() == "FERRY_E_PEER")
    group.destroy()
    print("done", flush=True)
    os._exit(0)  # torch.distributed would wait for the dead


if DEVICE != "cpu":
    torch.cuda.set_device(RANK)
dist.init_process_group(BACKEND, init_method=f"file://{os.environ['RANKS_FILE']}", rank=RANK, world_size=2)
for part in (same_bits_as_one_rank, sub_groups_of_one, experts_by_map, mistakes, compiled, a_dead_peer):
    part()
