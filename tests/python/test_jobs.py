# SPDX-License-Identifier: Apache-2.0
"""Trainings of several processes: data parallel around expert parallel, a process that dies, going on from a
checkpoint; the end-to-end benchmark at a tiny size; the example of a patched model."""
import json

import pytest

torch = pytest.importorskip("torch", minversion="2.4")
from jobs import Job, killed_and_resumed, losses, train


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    return train(tmp_path_factory.mktemp("undisturbed") / "job", "--ep", 2, "--steps", 20)


def test_divisions_train_the_same_model(undisturbed, tmp_path):
    """Data parallel and expert parallel: the same gradients but for the order of sums, so nearly the same losses."""
    other = train(tmp_path / "job", "--ep", 1, "--steps", 20)
    assert list(undisturbed) == list(other) == [str(step) for step in range(1, 21)]
    assert all(abs(float(undisturbed[s]) - float(other[s])) < 0.03 * float(other[s]) for s in other)
    assert all(abs(float(undisturbed[s]) - float(other[s])) < 0.003 * float(other[s]) for s in ("1", "2", "3"))
    assert float(other["20"]) < 0.75 * float(other["1"])


def test_a_process_dies(undisturbed, tmp_path):
    """The other one ends with an error, in a call of Ferry or of torch.distributed; and the training goes on."""
    killed_and_resumed(tmp_path, 2, undisturbed)


def test_a_process_with_other_data_dies(tmp_path):
    """The same where only gradients pass between the processes."""
    with Job(tmp_path / "job", "examples/ddp_ep.py", "--ep", 1, "--steps", 1000000) as job:
        job.kill_last(2)


def test_the_end_to_end_benchmark(tmp_path):
    with Job(tmp_path / "job", "bench/train_e2e.py", "--tiny", "--steps", 12, "--warmup", 2, "--json",
             tmp_path / "result.json", "--plot", tmp_path / "plot.svg") as job:
        said = job.finish()
    found = json.loads((tmp_path / "result.json").read_text())
    theirs, ours = found["results"]["ways"]
    assert (theirs["name"], ours["name"]) == ("NCCL + PyTorch", "Ferry BF16") and found["results"]["ranks"] == 2
    for way in (theirs, ours):
        low, high = way["tokens_per_s_per_gpu_quartiles"]
        assert 0 < low <= way["tokens_per_s_per_gpu"] <= high
        assert len(way["losses"]) == 14 and way["losses"][-1] < way["losses"][0] - 0.2
        assert f"{way['name']:15s} {way['tokens_per_s_per_gpu']:9.0f} tokens/s/GPU" in said
    assert all(abs(a - b) < 2e-3 * a for a, b in zip(theirs["losses"], ours["losses"]))
    assert theirs["losses"] != ours["losses"], "the same code ran twice"
    picture = (tmp_path / "plot.svg").read_text()
    assert picture.count("<polyline") == 2 and "Ferry BF16" in picture and picture.rstrip().endswith("</svg>")


def test_the_example_of_a_patched_model(tmp_path):
    pytest.importorskip("transformers", minversion="4.50")
    with Job(tmp_path / "job", "examples/patch_model.py", "--save", tmp_path / "saved") as job:
        found = losses(job.finish())
        assert "tokens [0, 1, 2, 3, 4, 5, 6, 7, " in job.said()
    assert len(found) == 10 and float(found["10"]) < 0.9 * float(found["1"])
    from transformers import AutoModelForCausalLM
    saved = AutoModelForCausalLM.from_pretrained(tmp_path / "saved")
    assert type(saved).__name__ == "Qwen3MoeForCausalLM" and saved.config.num_experts == 8
