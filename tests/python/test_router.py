# SPDX-License-Identifier: Apache-2.0
"""Routers beside a token-by-token reading of their rules."""
import pytest
import torch

from ferry_moe import Router


def by_hand(router, logits):
    """One token: chosen experts in order of preference, and their weights."""
    scores = logits.softmax(-1) if router.score == "softmax" else logits.sigmoid()
    choice = scores if router.correction_bias is None else scores + router.correction_bias
    each = len(scores) // router.n_group
    value = [sum(sorted(choice[g * each:(g + 1) * each].tolist())[-2:]) for g in range(router.n_group)]
    groups = sorted(range(router.n_group), key=lambda g: -value[g])[:router.topk_group]
    allowed = [e for e in range(len(scores)) if e // each in groups]
    ids = sorted(allowed, key=lambda e: -choice[e].item())[:router.top_k]
    weights = scores[ids]
    return ids, (weights / weights.sum() if router.norm_topk else weights) * router.scaling


@pytest.mark.parametrize("options", [
    {}, {"norm_topk": False}, {"score": "sigmoid", "scaling": 2.5},
    {"score": "sigmoid", "scaling": 2.5, "n_group": 4, "topk_group": 2, "correction": True},
    {"n_group": 8, "topk_group": 3, "norm_topk": False}])
def test_by_hand(options):
    torch.manual_seed(0)
    router = Router(24, 16, 3, dtype=torch.float32, **options)
    if router.correction_bias is not None:
        router.correction_bias.copy_(torch.randn(16) * 0.3)
    x = torch.randn(40, 24)
    ids, weights = router(x)
    assert ids.dtype == torch.int64 and weights.dtype == torch.float32 and ids.shape == weights.shape == (40, 3)
    for t, logits in enumerate(x @ router.weight.T):
        want_ids, want = by_hand(router, logits)
        assert ids[t].tolist() == want_ids
        torch.testing.assert_close(weights[t], want)


def test_the_correction_changes_the_choice_and_not_the_weights():
    torch.manual_seed(0)
    router = Router(8, 4, 1, score="sigmoid", norm_topk=False, correction=True, dtype=torch.float32)
    router.correction_bias[2] = 10
    x = torch.randn(5, 8)
    ids, weights = router(x)
    assert (ids == 2).all()
    torch.testing.assert_close(weights[:, 0], (x @ router.weight[2]).sigmoid())
    weights.sum().backward()
    assert router.weight.grad[2].any() and "correction_bias" in router.state_dict()


def test_what_cannot_be():
    with pytest.raises(ValueError, match="'softmax' or 'sigmoid'"):
        Router(8, 4, 1, score="relu")
    for n_group, topk_group in ((3, 1), (4, 5), (4, 1)):
        with pytest.raises(ValueError, match="groups of 4 experts, top 2"):
            Router(8, 4, 2, n_group=n_group, topk_group=topk_group)
