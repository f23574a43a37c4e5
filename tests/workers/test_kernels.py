"""What a learner's process asks of a GPU follows from what its run promises, and is asked before anything is there."""

import types

import pytest
import torch
from test_rehearsal import settings

from mlxe_async.settings.model import Settings
from mlxe_async.tasks.vector import VectorTask
from mlxe_async.workers import kernels, rehearsal, workshop
from mlxe_async.workers.rehearsal import NoUpdate, rehearse


def typed(kind, **tables):
    plain = {"schedule": {"kind": kind}, "task": {"env": "CartPole-v1"}, "learner": {"device": "cuda:1"}, **tables}
    return Settings.model_validate(plain)


@pytest.mark.parametrize(
    ("kind", "tables", "promised"),
    [
        ("serial", {}, True),
        ("is", {}, True),
        ("istb", {}, False),
        ("ia", {}, False),
        ("oa", {}, False),
        ("oa", {"run": {"record": True}}, True),
    ],
)
def test_repeatable_kernels_are_asked_for_where_a_run_or_its_replay_repeats_itself(kind, tables, promised, monkeypatch):
    asked = []
    monkeypatch.setattr(kernels, "use_kernels", lambda *args, **more: asked.append((args, more)))
    kernels.choose_kernels(typed(kind, **tables))
    assert asked == [(("cuda:1",), {"repeatable": promised, "precision": "float32"})]


def test_precision_is_that_of_the_algorithm(monkeypatch):
    asked = []
    monkeypatch.setattr(kernels, "use_kernels", lambda *_, **more: asked.append(more["precision"]))
    kernels.choose_kernels(typed("oa", algorithm={"name": "ppo", "precision": "tf32"}))
    kernels.choose_kernels(typed("oa", algorithm={"name": "own:Mine"}))
    assert asked == ["tf32", "float32"]


class Enough(Exception):
    """As far as is to be seen."""


def test_a_learner_asks_before_its_memory_is_page_locked_and_its_network_is_made(monkeypatch):
    asked = []

    def enough(*_, **__):
        raise Enough

    monkeypatch.setattr(workshop, "choose_kernels", asked.append)
    monkeypatch.setattr(workshop, "WeightsWriter", lambda _: types.SimpleNamespace(version=0))
    monkeypatch.setattr(workshop, "PinnedMemory", enough)
    monkeypatch.setattr(workshop.Workshop, "_memory", lambda _: types.SimpleNamespace(kind="rollouts"))
    made = object.__new__(workshop.Workshop)
    made.settings, made._segments = typed("is"), dict.fromkeys(("weights", "memory"), types.SimpleNamespace(buffer=b""))
    with pytest.raises(Enough):
        made._learner()
    assert asked == [made.settings]


def test_the_rehearsal_asks_before_anything_is_made(monkeypatch):
    def enough(chosen):
        assert chosen == "typed"
        raise Enough

    monkeypatch.setattr(rehearsal, "choose_kernels", enough)
    monkeypatch.setattr(rehearsal, "Settings", types.SimpleNamespace(model_validate=lambda _: "typed"))
    chosen = settings("mlxe") | {"learner": {"device": "cuda"}}
    with pytest.raises(Enough):
        rehearse(chosen, None, None)


def test_an_operation_without_a_repeatable_kernel_is_refused_in_a_sentence():
    from contextlib import nullcontext

    chosen = settings("awkward_updates:Unrepeatable")
    torch.use_deterministic_algorithms(True)
    try:
        with pytest.raises(NoUpdate) as refused:
            rehearse(chosen, VectorTask(chosen["task"], 1), nullcontext)
    finally:
        torch.use_deterministic_algorithms(False)
    said = str(refused.value)
    assert said.startswith("its update needs put_ (")
    assert "awkward_updates.py:" in said
    assert 'try schedule.kind = "oa" without run.record, learner.device = "cpu", or other operations' in said
    rehearse(chosen, VectorTask(chosen["task"], 1), nullcontext)  # anywhere else it is like all others
