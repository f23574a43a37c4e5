"""Values by a target network are kept while it stays as it is, and learned from with the same bits."""

import contextlib
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from made_rows import agent, batch

from mlxe_async.fast.dqn import DQNTwin
from mlxe_async.fast.target_values import AHEAD, BLOCK, PARTS, Drawn, TargetValues
from mlxe_async.roles.learner import Learner
from mlxe_async.rows import Spaces, Symmetry

ACTIONS, CAPACITY = 3, 200


class Ring:
    """Rows in places, each with a stamp; the values of a row are its number times a weight."""

    def __init__(self):
        self.rows = np.arange(CAPACITY, dtype=np.float32)
        self.stamps = np.arange(CAPACITY) + 1000
        self.weight = torch.nn.Parameter(torch.ones(1))
        self.seen = []
        self.values = TargetValues([self.weight], self.evaluate, ACTIONS)

    def columns(self, index, stamp):
        return {"cut_obs": self.rows[index]}, self.stamps[index] == stamp

    def evaluate(self, cut_obs):
        self.seen.append(len(cut_obs))
        return np.repeat(cut_obs[:, None] * self.weight.item(), ACTIONS, 1)

    def expect(self, index):
        """Have minibatches of rows in these places (U, M) come next."""
        index = np.asarray(index)
        self.values.expect(Drawn(index, self.stamps[index], CAPACITY, self.columns))

    def take(self, number, positions):
        self.values.begin_update(number, np.asarray(positions))
        return self.values.take()


def test_each_row_is_evaluated_once_in_full_blocks_for_all_minibatches_that_are_near():
    ring = Ring()
    plan = np.random.default_rng(0).integers(0, 100, (AHEAD + 2, 7))
    ring.expect(plan)
    for number, index in enumerate(plan):
        np.testing.assert_array_equal(ring.take(number, range(7))[:, 0], index)
    assert ring.values.evaluated == len(np.unique(plan))
    assert set(ring.seen) == {BLOCK}
    ring.expect(plan[::-1])
    assert ring.take(3, [2, 2, 5])[:, 1].tolist() == plan[::-1][3, [2, 2, 5]].tolist()
    assert ring.values.evaluated == len(np.unique(plan))


def test_values_of_a_network_that_moved_are_forgotten_at_once():
    ring = Ring()
    ring.expect([[4, 5]] * 2)
    assert ring.take(0, [0, 1])[:, 0].tolist() == [4, 5]
    with torch.no_grad():
        ring.weight.mul_(2)
    assert ring.take(1, [0, 1])[:, 0].tolist() == [8, 10]


def test_a_move_that_torch_does_not_count_is_noticed_with_the_next_plan():
    ring = Ring()
    ring.expect([[4, 5]])
    assert ring.take(0, [0, 1])[:, 0].tolist() == [4, 5]
    ring.weight.detach().numpy()[:] = 2
    ring.expect([[4, 5]])
    assert ring.take(0, [0, 1])[:, 0].tolist() == [8, 10]


@pytest.mark.parametrize("row", [0, PARTS - 1, PARTS, 2 * PARTS + 3])
def test_a_single_number_that_torch_does_not_count_is_noticed_before_all_parts_were_looked_at(row):
    ring = Ring()
    wide = torch.nn.Parameter(torch.ones(2 * PARTS + 4, 2))
    ring.values = TargetValues([ring.weight, wide], ring.evaluate, ACTIONS)
    for _ in range(PARTS + 1):
        ring.expect([[4, 5]])
        ring.take(0, [0, 1])
    assert ring.values.evaluated == 2
    wide.detach().numpy()[row, 1] = 2
    for _ in range(PARTS):
        ring.expect([[4, 5]])
        ring.take(0, [0, 1])
    assert ring.values.evaluated == 4


def test_a_network_that_was_written_to_and_is_the_same_is_not_evaluated_again():
    ring = Ring()
    ring.expect([[4, 5]] * 2)
    ring.take(0, [0])
    with torch.no_grad():
        ring.weight.copy_(ring.weight.clone())
    ring.take(1, [0])
    assert ring.values.evaluated == 2


def test_another_row_in_the_same_place_has_values_of_its_own():
    ring = Ring()
    ring.expect([[4, 5]])
    ring.take(0, [0, 1])
    ring.rows[5], ring.stamps[5] = 77, 5000
    ring.expect([[4, 5]])
    assert ring.take(0, [0, 1])[:, 0].tolist() == [4, 77]


def test_a_row_that_was_overwritten_meanwhile_has_none():
    ring = Ring()
    ring.expect([[4, 5]])
    ring.rows[5], ring.stamps[5] = 77, 5000
    assert ring.take(0, [0])[:, 0].tolist() == [4]
    assert ring.take(0, [0, 1]) is None  # the memory leaves it out, too


def test_without_being_told_which_rows_come_there_are_none():
    ring = Ring()
    assert ring.values.take() is None
    ring.expect([[4, 5]])
    assert ring.values.take() is None
    assert ring.take(0, [0]) is not None
    assert ring.values.take() is None  # it was for one update


PICTURES = Spaces((2, 44, 44), "|u1", actions=3)
SETTINGS = {"body": "nature", "layers": [16], "layer_norm": False, "n_step": 1, "batch": BLOCK}


class Memory:
    """Plans of 20 minibatches of rows of pictures, which are drawn again and again."""

    kind = "replay"

    def __init__(self, algorithm):
        self.rows = batch(algorithm, rows=60)
        self.count = len(self.rows["action"])
        self.shape = SimpleNamespace(capacity=self.count)
        self.index = np.random.default_rng(3).integers(0, self.count, (20, BLOCK))

    def rows_of(self, _plan):
        return BLOCK

    def gather(self, _plan, k, _window, *, reuse):
        assert reuse
        return {name: column[self.index[k]] for name, column in self.rows.items()}, np.arange(BLOCK)

    def drawn(self, _plan):
        return self.index, self.index + 1

    def rows_at(self, index, stamp):
        return {name: column[index] for name, column in self.rows.items()}, index + 1 == stamp


class Weights:
    """The newest version."""

    version, vector = 0, None

    def publish(self, vector):
        self.version, self.vector = self.version + 1, vector.copy()


PAGE = SimpleNamespace(
    enter=lambda _limit_s, _call: None, leave=lambda: None, spending=lambda _mode: contextlib.nullcontext()
)


def learned(monkeypatch, *, kept, every=100, double=False, audit_every=0):
    """Weights after three plans of updates, and how many rows were evaluated ahead."""
    torch.set_num_threads(1)  # weights begin otherwise in several
    if not kept:
        monkeypatch.setattr(DQNTwin, "_kept_values", lambda _twin: None)
    algorithm = agent("dqn", spaces=PICTURES, **SETTINGS, target_every=every, double=double)
    weights = Weights()
    learner = Learner(
        algorithm=algorithm, memory=Memory(algorithm), weights=weights, page=PAGE, update_timeout_s=9.0,
        audit_every=audit_every,
    )  # fmt: skip
    plan = {"updates": 20, "rows": BLOCK, "number": 1, "slot": 0}
    for number in range(3):
        learner.learn(plan, env_steps=10, episodes=1, updates=80 + 20 * number)
    values = learner._updates.target_values
    return weights.vector, 0 if values is None else values.evaluated


@pytest.mark.long
@pytest.mark.parametrize("double", [False, True])
def test_what_is_learned_is_the_same_bit_for_bit_and_audit_agrees(double, monkeypatch):
    with_values, evaluated = learned(monkeypatch, kept=True, double=double)
    audited, _ = learned(monkeypatch, kept=True, double=double, audit_every=7)
    without, none = learned(monkeypatch, kept=False, double=double)
    np.testing.assert_array_equal(with_values, without)
    np.testing.assert_array_equal(audited, without)
    assert none == 0
    # 60 updates of 32 rows, of which 60 differ, before and after the target network moved at update 100.
    assert 100 < evaluated <= 120


def test_a_target_that_moves_often_or_mirrored_rows_are_evaluated_as_they_come():
    def of(spaces=PICTURES, **more):
        return DQNTwin(agent("dqn", spaces=spaces, **(SETTINGS | more))).target_values

    assert of(target_every=100) is not None
    assert of(target_every=99) is None
    alike = Spaces((1, 10, 10), "<f4", actions=2, symmetry=Symmetry((1.0,) * 100, (1, 0)))
    assert of(alike, body="small", mirror=False) is not None
    assert of(alike, body="small", mirror=True) is None
