# SPDX-License-Identifier: Apache-2.0
"""ferry_moe.patching: models of transformers with Ferry in them, beside themselves without it."""
import copy
import statistics

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers", minversion="4.50")
ferry_moe = pytest.importorskip("ferry_moe")

import patch_models as pm
from ferry_moe.patching import full_state_dict, patch, unpatch

DEVICES = ["cpu"] + (["cuda"] if torch.cuda.is_available() else [])
BAR = 1e-2


def run(model, text, **options):
    """What the model gives, its gradients, and the experts that its routers chose."""
    chosen = []

    def note(gate, _, out):
        ids = next((t for t in out if not t.is_floating_point()), None) if isinstance(out, tuple) else out.topk(
            model.config.num_experts_per_tok, -1).indices
        chosen.append(ids.sort(-1).values)

    hooks = [m.gate.register_forward_hook(note) for m in model.modules() if isinstance(getattr(m, "gate", None),
                                                                                       torch.nn.Module)]
    model.zero_grad()
    out = model(input_ids=text, labels=text, **options)
    out.loss.backward()
    for hook in hooks:
        hook.remove()
    return out, {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}, chosen


def whole(gradients):
    return torch.cat([g.double().flatten() for g in gradients.values()])


def as_it_is(model):
    return model


def with_ferry(model):
    parameters = dict(model.named_parameters())
    assert patch(model, ferry_moe.Group.single(model.device.type), max_tokens=64) is model
    assert all(p is parameters[name] for name, p in model.named_parameters())
    return model


def side_by_side(family, device, training, *changes):
    """Of one model with each of the changes: itself and its run. A token with two experts that nearly tie may go to the
    other one after roundings that differ, and then everything behind it is another matter: such a seed is passed
    over."""
    options = {"output_router_logits": True} if family in pm.HAS_ROUTER_LOGITS else {}
    for seed in range(16):
        models = [change(pm.make(family, device, seed).train(training)) for change in changes]
        runs = [run(model, pm.tokens(device), **options) for model in models]
        if all(torch.equal(a, b) for _, _, chosen in runs for a, b in zip(runs[0][2], chosen)):
            return models, runs
    raise AssertionError("no seed with the same choice of experts")


def distances(got, wanted):
    return {name: pm.apart(got[name], wanted[name]) for name in wanted}


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize("family", pm.FAMILIES)
def test_as_the_original(family, training, device):
    models, runs = side_by_side(family, device, training, as_it_is, with_ferry, pm.precise_blocks)
    (wanted, wanted_grads, _), (got, got_grads, _), (_, precise_grads, _) = runs
    assert pm.apart(got.logits, wanted.logits) <= BAR
    assert not torch.equal(got.logits, wanted.logits), "the original's own code ran"
    assert abs(got.loss.item() - wanted.loss.item()) <= BAR * wanted.loss.item()
    if family in pm.HAS_ROUTER_LOGITS:
        assert len(got.router_logits) == len(wanted.router_logits) >= 2
        assert abs(got.aux_loss.item() - wanted.aux_loss.item()) <= BAR * wanted.aux_loss.item()
    # Where no token went, the original has no gradient for an expert of its own module, Ferry zeros.
    assert wanted_grads.keys() <= got_grads.keys()
    assert all(not got_grads.pop(name).any() for name in got_grads.keys() - wanted_grads.keys())
    assert pm.apart(whole(got_grads), whole(wanted_grads)) <= BAR
    assert all(far <= BAR for name, far in distances(got_grads, wanted_grads).items() if ".experts." in name)
    # In a model of BF16 any block moves scales of norms by 1e-2, even exact ones with outputs scaled by 1 + 2^-12:
    # roundings around it fall elsewhere. Routers move where the balancing loss breaks ties of BF16 logits. So where the
    # original is beyond the bar from exact blocks, Ferry may be too, by chance up to twice as far.
    far, far_original = distances(got_grads, precise_grads), distances(wanted_grads, precise_grads)
    assert all(far[name] <= max(BAR, 2 * far_original[name]) for name in far), (far, far_original)
    unpatch(models[1])
    with torch.no_grad():
        assert torch.equal(models[1](pm.tokens(device)).logits, wanted.logits)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("family", pm.FAMILIES)
def test_every_gradient_beside_exact_ones(family, device):
    """Only the experts' own roundings are there, Ferry's or the original's: the rest of the model computes in F32."""
    _, runs = side_by_side(family, device, True, pm.precise, pm.precise_around,
                           lambda model: with_ferry(pm.precise_around(model)))
    exact, original, patched = [{"logits": out.logits, **grads} for out, grads, _ in runs]
    far, far_original = distances(patched, exact), distances(original, exact)
    assert all(f <= BAR for f in far.values()), far
    assert statistics.median(far[name] - far_original[name] for name in far) <= 0, "farther than the original"


def test_state_goes_in_and_out(tmp_path):
    model, other = pm.make("qwen3_moe"), pm.make("qwen3_moe", seed=5)
    group, text = ferry_moe.Group.single("cpu"), pm.tokens()
    patch(model, group, max_tokens=64)
    with torch.no_grad():
        before = model(input_ids=text).logits
        model.load_state_dict(other.state_dict())
        patch(other, group, max_tokens=64)
        wanted = other(input_ids=text).logits
        assert torch.equal(model(input_ids=text).logits, wanted) and not torch.equal(wanted, before)
        model.save_pretrained(tmp_path, state_dict=full_state_dict(model))
        loaded = type(model).from_pretrained(tmp_path, torch_dtype=torch.bfloat16).state_dict()
        state = other.state_dict()
        assert loaded.keys() == state.keys() and all(torch.equal(loaded[name], state[name]) for name in state)


def test_an_optimizer_goes_on():
    """Steps with an optimizer made before patching change the model as steps without Ferry do."""
    text, losses = pm.tokens(), []
    for patched in (False, True):
        model = pm.make("mixtral")
        optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
        if patched:
            patch(model, ferry_moe.Group.single("cpu"), max_tokens=64)
        losses.append([])
        for _ in range(6):
            optimizer.zero_grad()
            loss = model(input_ids=text, labels=text).loss
            loss.backward()
            optimizer.step()
            losses[-1].append(loss.item())
    assert losses[0][-1] < 0.98 * losses[0][0]
    assert all(abs(a - b) < BAR * a for a, b in zip(*losses))


@pytest.mark.parametrize("device", DEVICES)
def test_checkpointed_and_compiled(device):
    """Activation checkpointing gives the same bits; so does one graph of the whole model, but for the order in which
    PyTorch adds up gradients there."""
    model, text = pm.make("qwen3_moe", device).train(), pm.tokens(device)
    patch(model, ferry_moe.Group.single(device), max_tokens=64)
    wanted, wanted_grads, _ = run(model, text, use_cache=False)
    model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    got, got_grads, chosen = run(model, text, use_cache=False)
    assert len(chosen) == 4, "nothing was computed again"
    assert torch.equal(got.logits, wanted.logits)
    assert all(torch.equal(got_grads[name], wanted_grads[name]) for name in wanted_grads)
    model.gradient_checkpointing_disable()
    model.zero_grad()
    out = torch.compile(model, backend="eager", fullgraph=True)(input_ids=text, labels=text, use_cache=False)
    out.loss.backward()
    assert torch.equal(out.logits, wanted.logits)
    assert all(pm.apart(p.grad, wanted_grads[name]) <= BAR for name, p in model.named_parameters())


@pytest.mark.parametrize("break_it, sentence", [
    (lambda m: m.float(), "bfloat16"),
    (lambda m: m.to("meta"), "meta"),
    (lambda m: torch.nn.Linear(2, 2), "no block"),
    (lambda m: patch(m, ferry_moe.Group.single("cpu"), max_tokens=64), "already"),
])
def test_refusals(break_it, sentence):
    model = break_it(pm.make("qwen3_moe"))
    with pytest.raises(ValueError, match=sentence):
        patch(model, ferry_moe.Group.single("cpu"), max_tokens=64)


def test_another_activation():
    model = pm.make("qwen3_moe")
    for module in model.modules():
        if hasattr(module, "act_fn"):
            module.act_fn = torch.nn.GELU()
    with pytest.raises(ValueError, match="SiLU"):
        patch(model, ferry_moe.Group.single("cpu"), max_tokens=64)


@pytest.mark.parametrize("family", ["qwen3_moe", "deepseek_v3"])
def test_a_copy_is_patched_on_its_own(family):
    model, text = pm.make(family), pm.tokens()
    with torch.no_grad():
        original = model(text).logits
        patch(model, ferry_moe.Group.single("cpu"), max_tokens=64)
        patched = model(text).logits
        other = copy.deepcopy(model)
        assert torch.equal(other(text).logits, patched)
        unpatch(other)
        assert torch.equal(other(text).logits, original) and torch.equal(model(text).logits, patched)
