"""The audit of recurrent cells: numpy's way through sequences is torch's own, or the run goes on without it."""

import numpy as np
import pytest
import torch
from recurrent_rows import DILATED, made, rollout, shorter

from mlxe_async.algorithms import Clock
from mlxe_async.errors import AuditFailed
from mlxe_async.fast import updates
from mlxe_async.fast.audit import Audit
from mlxe_async.fast.cells import Comparison
from mlxe_async.networks import recurrence
from mlxe_async.networks.cells import Cell, Sequences
from mlxe_async.networks.ways import by_torch, is_torchs, watched

CASES = [
    ("ppo", {"cell": "lstm", "sequence_steps": 8, "epochs": 2}),
    ("ppo", {"cell": "gru", "minibatches": "sequences", "epochs": 2}),
    ("a2c", {"cell": "gru", "cell_layers": 2, "cells": "apart"}),
    ("impala", {"cell": "lstm"}),
    ("reinforce", DILATED),
]


def batches(algorithm, count=4):
    return [shorter(rollout(algorithm, seed=number)) for number in range(count)]


@pytest.mark.parametrize(("name", "settings"), CASES)
def test_all_numbers_are_the_same_with_and_without_to_the_last_bit(name, settings):
    one, other = made(name, **settings), made(name, **settings)
    looked, plain = Audit(updates(one), 2), updates(other)
    assert (plain.is_fast, plain.twin, plain.reason) == (True, None, "")
    torch.manual_seed(0)
    drawn = torch.random.get_rng_state()
    for number, rows in enumerate(batches(one)):
        clock = Clock(updates=number, version=number)
        assert looked.update(rows, clock) == plain.update(rows, clock)
    assert looked.audited == 3  # numbers 1, 2 and 4
    mine, theirs = one.state(), other.state()
    for key, array in theirs.items():
        np.testing.assert_array_equal(mine[key], array, key)
    assert torch.equal(torch.random.get_rng_state(), drawn)


def scaled(kind, member, factor):
    """The same function of autograd, whose first result is this many times what it was."""
    right = getattr(kind, member)

    def wrong(*given):
        found = right(*given)
        return found * factor if isinstance(found, torch.Tensor) else (found[0] * factor, *found[1:])

    return staticmethod(wrong)


@pytest.mark.parametrize(("cell", "kind"), [("lstm", recurrence._LSTM), ("gru", recurrence._GRU)])
@pytest.mark.parametrize(
    ("member", "told"),
    [("forward", "outputs differ by 0.001 of the norm"), ("backward", r"a gradient differs by \S+ of the norm")],
)
def test_another_output_or_gradient_by_numpy_ends_it(cell, kind, member, told, monkeypatch):
    algorithm = made("ppo", cell=cell)
    before = algorithm.state()
    monkeypatch.setattr(kind, member, scaled(kind, member, 1.001))
    with pytest.raises(AuditFailed, match=f"audit of a recurrent layer: {told} from torch's own, expected at most"):
        Audit(updates(algorithm), 1).update(shorter(rollout(algorithm)), Clock())
    for name, array in before.items():
        np.testing.assert_array_equal(algorithm.state()[name], array, name)


def test_before_anything_is_published_it_falls_back_to_torch(monkeypatch):
    one, other = made("ppo", cell="gru"), made("ppo", cell="gru")
    rows = batches(one)
    monkeypatch.setattr(recurrence._GRU, "backward", scaled(recurrence._GRU, "backward", 1.01))
    looked, written = updates(one), updates(other, fast=False)
    audit = Audit(looked, 1)
    for number, batch in enumerate(rows):
        clock = Clock(updates=number)
        assert audit.update(batch, clock, may_fall_back=not number) == written.update(batch, clock)
    assert (looked.is_fast, audit.audited) == (False, 0)
    assert looked.reason.startswith("audit of a recurrent layer: a gradient differs")
    np.testing.assert_array_equal(one.weights(), other.weights())


def test_a_later_change_of_the_gradients_is_noticed_at_the_next_audit(monkeypatch):
    algorithm = made("a2c", cell="lstm")
    audit = Audit(updates(algorithm), 3)
    rows = batches(algorithm, 3)
    audit.update(rows.pop(0), Clock(), may_fall_back=True)
    monkeypatch.setattr(recurrence._LSTM, "backward", scaled(recurrence._LSTM, "backward", 1.01))
    told = r"please report it; learner\.fast = false learns by the file as it is written"
    with pytest.raises(AuditFailed, match=told):
        _ = [audit.update(batch, Clock()) for batch in rows]


def test_without_fast_ways_nothing_is_left_to_numpy(monkeypatch):
    def refuse(*_given):
        raise AssertionError("numpy was asked")

    monkeypatch.setattr(recurrence._LSTM, "forward", staticmethod(refuse))
    algorithm = made("ppo", cell="lstm")
    written = updates(algorithm, fast=False)
    assert (written.is_fast, written.reason) == (False, "learner.fast = false")
    written.update(shorter(rollout(algorithm)), Clock())
    with pytest.raises(AssertionError, match="numpy was asked"):
        updates(algorithm).update(shorter(rollout(algorithm)), Clock())


def test_both_ways_learn_the_same():
    by_numpy, written = (made("ppo", cell="lstm", sequence_steps=8) for _ in range(2))
    for number, batch in enumerate(batches(by_numpy)):
        updates(by_numpy).update(batch, Clock(updates=number))
        updates(written, fast=False).update(batch, Clock(updates=number))
    assert not np.array_equal(by_numpy.weights(), written.weights())
    np.testing.assert_allclose(by_numpy.weights(), written.weights(), atol=2e-4)


def test_an_algorithm_that_keeps_no_state_is_ended_and_not_put_back(monkeypatch):
    class Own:
        settings = None

        def __init__(self):
            self.cell = Cell("gru", 3, 4)

        def update(self, batch, _clock):
            begins = np.zeros((5, 2), bool)
            outputs, _ = self.cell.through(batch["x"], Sequences(~begins, begins, begins, torch.zeros(2, 4)))
            outputs.sum().backward()
            return {}

    own = Own()
    Audit(updates(own), 1).update({"x": torch.ones(10, 3)}, Clock(), may_fall_back=True)
    monkeypatch.setattr(recurrence._GRU, "forward", scaled(recurrence._GRU, "forward", 1.01))
    with pytest.raises(AuditFailed, match="outputs differ"):
        Audit(updates(own), 1).update({"x": torch.ones(10, 3)}, Clock(), may_fall_back=True)


def long_sequences(scale):
    """A cell of weights that are this many times what they began with, and rows that they make much of."""
    torch.manual_seed(0)
    cell = Cell("gru", 3, 16)
    with torch.no_grad():
        for weight in cell.parameters():
            weight.mul_(scale)
    steps, rng = 400, np.random.default_rng(0)
    first = rng.random((steps, 2)) < 0.005
    where = Sequences(~np.zeros_like(first), first, first, torch.zeros(2, cell.entries))
    return cell, torch.as_tensor(rng.normal(size=(2 * steps, 3)), dtype=torch.float32), where


@pytest.mark.parametrize("scale", [4, 12])
def test_rounding_that_weights_make_large_is_no_difference(scale):
    """States run apart, or gradients overflow: so they do by torch alone after a change of the last place."""
    cell, x, where = long_sequences(scale)
    before = [weight.clone() for weight in cell.parameters()]
    with by_torch():
        theirs, _ = cell.through(x, where)
    with watched(Comparison(None)):
        mine, _ = cell.through(x, where)
    assert (mine - theirs).norm() > 1e-3 * theirs.norm()
    assert all(map(torch.equal, cell.parameters(), before))


def test_what_rounding_does_excuses_no_more_than_that(monkeypatch):
    cell, x, where = long_sequences(3)
    monkeypatch.setattr(recurrence._GRU, "forward", scaled(recurrence._GRU, "forward", 1.01))
    with watched(Comparison(None)), pytest.raises(AuditFailed):
        cell.through(x, where)


def test_gradients_that_overflow_are_told_by_no_warning():
    """Warnings are errors here; numpy is as quiet as torch, and what is not finite is found where losses are."""
    cell, x, where = long_sequences(12)
    cell.through(x, where)[0].sum().backward()
    assert not all(weight.grad.isfinite().all() for weight in cell.parameters())


def test_as_many_ways_are_compared_as_were_asked_for(monkeypatch):
    cell, begins = Cell("gru", 3, 4), np.zeros((5, 2), bool)
    where = Sequences(~begins, begins, begins, torch.zeros(2, 4))
    monkeypatch.setattr(recurrence._GRU, "forward", scaled(recurrence._GRU, "forward", 1.01))
    with watched(Comparison(0)):
        cell.through(torch.ones(10, 3), where)
    with watched(Comparison(1)), pytest.raises(AuditFailed):
        cell.through(torch.ones(10, 3), where)
    with torch.inference_mode(), watched(Comparison(1)), pytest.raises(AuditFailed):
        cell.through(torch.ones(10, 3), where)


def test_torchs_way_is_for_a_while():
    with by_torch():
        with by_torch():
            pass
        assert is_torchs()
    assert not is_torchs()
