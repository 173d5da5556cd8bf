# SPDX-License-Identifier: Apache-2.0
"""One rank of test_patch_ranks.py: python3 patch_ranks.py FOLDER JOB:FAMILY..., under the variables of torchrun. Two
parts of a batch are divided among the ranks. Leaves in FOLDER/RANKS-RANK.pt for every job a list with an entry a
part."""
import faulthandler
import os
import sys

import patch_models as pm
import torch
import torch.distributed as dist
from ferry_moe.patching import full_state_dict, patch, unpatch

RANK, WORLD = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
PARTS = range(RANK, 2, WORLD)
DEVICE = torch.device(os.environ["PATCH_DEVICE"], RANK) if os.environ["PATCH_DEVICE"] == "cuda" else torch.device("cpu")


def generate(family):
    """32 tokens from each part's own prompt."""
    model = patch(pm.make(family, DEVICE), max_tokens=64)
    with torch.no_grad():
        return [model.generate(pm.tokens(DEVICE, 1, 12, seed=10 + part), max_new_tokens=32, do_sample=False)
                for part in PARTS]


def gradients(family):
    """Logits and gradients of each part."""
    model, found = patch(pm.make(family, DEVICE), max_tokens=64), []
    for part in PARTS:
        model.zero_grad()
        text = pm.tokens(DEVICE, 2, 24, seed=20 + part)
        out = model(input_ids=text, labels=text)
        out.loss.backward()
        found.append((out.logits.detach(), {n: p.grad.clone() for n, p in model.named_parameters()
                                            if p.grad is not None}))
    return found


def states(family):
    """The whole state comes out of a patched model, goes into one, and is there after unpatching."""
    model = pm.make(family, DEVICE)
    text, parameters = pm.tokens(DEVICE, 2, 24), sum(p.numel() for p in model.parameters())
    before = {name: value.clone() for name, value in model.state_dict().items()}
    with torch.no_grad():
        plain = model(input_ids=text).logits
        patch(model, max_tokens=64)
        assert (sum(p.numel() for p in model.parameters()) < parameters) == (WORLD > 1)
        wanted = model(input_ids=text).logits
        full = full_state_dict(model)
        assert full.keys() == before.keys() and all(torch.equal(full[name], before[name]) for name in before)
        for given in (before, {name: value.clone() for name, value in model.state_dict().items()}):
            for p in model.parameters():
                p.fill_(float("nan"))
            model.load_state_dict(given)
            assert torch.equal(model(input_ids=text).logits, wanted)
        unpatch(model)
        after = model.state_dict()
        assert list(after) == list(before) and all(torch.equal(after[name], before[name]) for name in before)
        assert torch.equal(model(input_ids=text).logits, plain)
    return [True]


def main():
    faulthandler.dump_traceback_later(100, exit=True)  # a hang says where
    if DEVICE.type == "cuda":
        torch.cuda.set_device(DEVICE)
    if WORLD > 1:
        dist.init_process_group("nccl" if DEVICE.type == "cuda" else "gloo")
    jobs, found = {"generate": generate, "gradients": gradients, "states": states}, {}
    for named in sys.argv[2:]:
        job, _, family = named.partition(":")
        found[named] = jobs[job](family)
    torch.save(found, os.path.join(sys.argv[1], f"{WORLD}-{RANK}.pt"))
    if WORLD > 1:
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
