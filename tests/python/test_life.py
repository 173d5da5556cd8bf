# SPDX-License-Identifier: Apache-2.0
"""Copies, files, threads, forks, interrupts, second derivatives: what the package answers for the library."""
import copy
import gc
import inspect
import os
import pickle
import signal
import subprocess
import sys
import textwrap
import threading

import pytest
import torch
from reference import Case

import ferry_moe
from ferry_moe import FerryError, FerryMoE, moe


def call(case, layer):
    return moe(case.x, case.ids, case.weights, case.gate_up, case.down, layer=layer)


def test_copies_of_a_block(group, device):
    block = FerryMoE(32, 48, 6, 2, group, shared=16, max_tokens=64, load=True)
    x = torch.randn(40, 32, device=device)
    block(x)
    other = copy.deepcopy(block)
    assert other.layer is block.layer and other.gate_up is not block.gate_up
    assert torch.equal(other(x), block(x))
    loaded = FerryMoE(32, 48, 6, 2, group, shared=16, max_tokens=64)
    assign = "assign" in inspect.signature(loaded.load_state_dict).parameters  # since torch 2.1
    loaded.load_state_dict(block.state_dict(), **({"assign": True} if assign else {}))
    assert torch.equal(loaded(x), block(x))
    for made in (other, loaded):  # what a data-parallel wrapper goes by
        assert made.gate_up.expert_parallel and made.down.expert_parallel
        assert not hasattr(made.shared_down, "expert_parallel")
    context = ferry_moe.Context(block.layer)
    for use in (lambda: pickle.dumps(block), lambda: pickle.dumps(group), lambda: copy.deepcopy(context),
                lambda: copy.copy(context)):
        with pytest.raises(TypeError, match="lives in this process.*state_dict"):
            use()
    assert context.pointer


def test_experts_of_ranks_given_in_any_form(group):
    given = torch.zeros(6, dtype=torch.int32)
    blocks = [FerryMoE(32, 48, 6, 2, group, max_tokens=64, expert_rank=ranks) for ranks in (given, given.tolist())]
    assert blocks[0].layer is blocks[1].layer


def test_there_is_no_second_derivative(group, device):
    case = Case(device)
    layer = group.layer(max_tokens=64, **case.sizes)
    plain = torch.autograd.grad(call(case, layer), case.x, case.dout)[0]
    out = call(case, layer)
    first, = torch.autograd.grad(out, case.x, case.dout, create_graph=True)
    assert torch.equal(first, plain)
    with pytest.raises(RuntimeError, match="no second derivative"):
        (out.float().sum() + first.float().square().sum()).backward()


def test_threads_take_turns(group, device):
    case = Case(device)
    layer = group.layer(max_tokens=64, **case.sizes)
    inputs = [torch.randn_like(case.x) for _ in range(4)]
    wrong = []

    def forward(x):
        with torch.no_grad():
            return moe(x, case.ids, case.weights, case.gate_up, case.down, layer=layer)

    def work(x, want):
        try:
            for _ in range(50):
                if not torch.equal(forward(x), want):
                    wrong.append("other values")
        except BaseException as error:
            wrong.append(error)

    workers = [threading.Thread(target=work, args=(x, forward(x))) for x in inputs]
    for w in workers:
        w.start()
    for w in workers:
        w.join()
    assert not wrong


def test_a_group_destroyed_under_threads(device):
    case = Case(device)
    group = ferry_moe.Group.single(device)
    layer = group.layer(max_tokens=64, **case.sizes)
    ends, begun = [], threading.Barrier(3)

    def work():
        x = case.x.detach().requires_grad_()
        begun.wait()
        try:
            while True:
                moe(x, case.ids, case.weights, case.gate_up, case.down, layer=layer).sum().backward()
        except FerryError as error:
            ends.append(error.status)

    workers = [threading.Thread(target=work) for _ in range(2)]
    for w in workers:
        w.start()
    begun.wait()
    group.destroy()
    for w in workers:
        w.join()
    assert ends == ["FERRY_E_STATE"] * 2


def test_a_forked_child_makes_its_own():
    """The threads behind a group stay with the parent: a child that used it would wait for them."""
    code = textwrap.dedent("""
        import gc, os, signal, sys
        from reference import Case, apart
        import ferry_moe
        case = Case("cpu")
        def run(group):
            layer = group.layer(max_tokens=64, **case.sizes)
            return ferry_moe.moe(case.x, case.ids, case.weights, case.gate_up, case.down, layer=layer)
        group = ferry_moe.Group.single("cpu")
        out, context = run(group), ferry_moe.Context(group.layer(max_tokens=64, **case.sizes))
        child = os.fork()
        if child == 0:
            signal.alarm(60)
            for use in (lambda: run(group), group.barrier, lambda: context.pointer):
                try:
                    use()
                    print("no error")
                except ferry_moe.FerryError as error:
                    print(error)
            del out, context
            group.destroy()
            gc.collect()
            print(apart(run(ferry_moe.Group.single("cpu")), case.plain()) < 4e-3, flush=True)
            sys.exit(7)
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
        out.backward(case.dout)
        """)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=100, env=os.environ)
    said = done.stdout.splitlines()
    assert len(said) == 5 and all("after a fork" in line for line in said[:2]), done.stdout + done.stderr
    assert said[2:] == [said[2], "True", "7"] and "FERRY_E_STATE" in said[2]
    assert done.returncode == 0 and "Traceback" not in done.stderr and "ignored" not in done.stderr, done.stderr


@torch.no_grad()
def test_interrupts_leave_a_layer_that_works(device):
    case = Case(device)
    group = ferry_moe.Group.single(device)
    layer = group.layer(max_tokens=64, **case.sizes)
    want = call(case, layer)

    def interrupt(*_):
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGALRM, interrupt)
    count = 0
    try:
        for n in range(100):
            try:
                signal.setitimer(signal.ITIMER_REAL, 1e-4 + 2e-5 * n)
                for _ in range(1000):
                    call(case, layer)
            except KeyboardInterrupt:
                count += 1
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    assert count == 100 and torch.equal(call(case, layer), want)
    group.destroy()


def test_many_steps_hold_no_more_memory(group, device):
    case = Case(device)
    layer = group.layer(max_tokens=64, **case.sizes)

    def steps(count):
        for n in range(count):
            rows = n % 50 + 1
            out = moe(case.x[:rows], case.ids[:rows], case.weights[:rows], case.gate_up, case.down, layer=layer)
            if n % 2:
                out.sum().backward()
        del out
        gc.collect()
        assert len(layer.spare) < 100  # as many as the allocator gave places
        layer.spare.clear()
        return layer.stats().current_bytes, len(layer._handle.leaves), len(ferry_moe.layer._contexts)

    assert steps(400) == steps(100)
