"""Workers that learn together take the steps that one learner takes from all of their rows."""

import functools
import sys
import threading
from pathlib import Path

import numpy as np
import pytest
import torch

from mlxe_async.algorithms import REGISTRY, Algorithm, Clock
from mlxe_async.errors import AttemptBroken, MlxeError, StepsDiffer
from mlxe_async.fast import updates
from mlxe_async.maths import baselines, correction, normaliser, returns, together
from mlxe_async.roles.in_turn import Turn, Turns
from mlxe_async.roles.team import Team, merged
from mlxe_async.rows import Spaces

sys.path += [str(Path(__file__).parents[1] / "fast"), str(Path(__file__).parents[1] / "algorithms")]
from made_rows import SPACES, agent, rollout, steps_shown
from made_rows import batch as made_batch

REPORT = {"updates": 1, "rows": 3, "lag_min": 0, "lag_mean": 0.0, "lag_max": 0, "late_rows": 0, "dropped_rows": 0}
REPORT |= {"dropped_rollouts": 0, "finite": True, "metrics": {"loss": 0.5}}
NEAR = 2e-6  # of a gradient's norm
BOX = Spaces((3,), action_shape=(2,), action_low=(-3.0, 0.0), action_high=(1.0, 8.0))
SMALL = {"policy": [8], "value": [8]}
WIDTH, LENGTH = 3, 16
ROWS = LENGTH * WIDTH - 2  # of a worker: two are not valid
KL = {"minibatch": 1000, "epochs": 6, "max_kl": 0.06, "learning_rate": 0.05}
CASES = [
    ("a2c", SPACES, SMALL | {"optimiser": "rmsprop"}),
    ("a2c", BOX, SMALL | {"reward_scaling": True}),
    ("impala", SPACES, SMALL),
    ("reinforce", SPACES, {"policy": [8]}),
    ("reinforce", SPACES, SMALL | {"baseline": "learned"}),
    ("ppo", SPACES, SMALL | {"minibatch": 2 * ROWS, "epochs": 2}),
    ("ppo", SPACES, SMALL | {"minibatches": "sequences", "minibatch": 1000}),
    ("ppo", SPACES, SMALL | {"reward_scaling": True, "kl_penalty_target": 0.01, "minibatch": 2 * ROWS, "epochs": 2}),
    ("ppo", SPACES, SMALL | KL),
    ("ppo", BOX, SMALL | {"minibatch": 1000, "epochs": 2, "value_epochs": 1, "annealed": ["clip"]}),
    ("dqn", SPACES, {"layers": [8]}),
    ("c51", SPACES, {"layers": [8], "v_max": 10.0, "atoms": 11}),
    ("rainbow", SPACES, {"layers": [8], "v_max": 10.0, "atoms": 11, "noisy": False}),
    ("apex", SPACES, {"layers": [8]}),
    ("sac", BOX, {"layers": [8]}),
    ("sac", SPACES, {"layers": [8]}),
    ("td3", BOX, {"layers": [8], "policy_delay": 1}),
    ("ddpg", BOX, {"layers": [8], "critic_decay": 0.1}),
    ("mlxe", SPACES, SMALL),
    ("mlxe", SPACES, SMALL | {"correction": "vtrace", "n_step": 4}),
    ("mlxe", SPACES, SMALL | {"value_scale": "categorical", "atoms": 11}),
]
IDS = [f"{name}-{(spaces.actions and 'choice') or 'numbers'}-{k}" for k, (name, spaces, _) in enumerate(CASES)]


class Shared:
    """Draws what a learner alone would draw, and takes one worker's part of it."""

    def __init__(self, part, parts, orders):
        self.rng, self.part, self.parts, self.orders = np.random.default_rng(7), part, parts, orders
        self.bit_generator = self.rng.bit_generator

    def standard_normal(self, shape, dtype=np.float64):
        rows = shape[0]
        whole = self.rng.standard_normal((rows * self.parts, *shape[1:]), dtype)
        return whole[rows * self.part : rows * (self.part + 1)]

    def permutation(self, count):
        return self.orders(count)


def whole_batch(algorithm, workers):
    """Rows of all workers, and the part of each."""
    if algorithm.memory == "rollouts" or algorithm.window > 1:
        parts = [rollout(algorithm, length=LENGTH, width=WIDTH, seed=k) for k in range(workers)]
        if algorithm.window > 1:
            parts = [{name: column[: algorithm.window] for name, column in part.items()} for part in parts]
            weights = np.random.default_rng(5).uniform(0.2, 1, (workers, WIDTH)).astype(np.float32)
            parts = [part | {"weight": weight} for part, weight in zip(parts, weights, strict=True)]
        for column in getattr(algorithm, "carry", ()):
            rng = np.random.default_rng(3)
            parts = [part | {column.name: rng.normal(size=WIDTH)} for part in parts]
        if algorithm.window == 1:
            parts = [part | {"version": part["version"]} for part in parts]
        along = {name: 1 if column.ndim > 1 else 0 for name, column in parts[0].items()}
    else:
        parts = [made_batch(algorithm, rows=24, seed=k) for k in range(workers)]
        along = dict.fromkeys(parts[0], 0)
    whole = {name: np.concatenate([part[name] for part in parts], axis=along[name]) for name in along}
    return whole, parts


def orders(whole, workers, parts_of_each):
    """The order by which one learner's minibatches are those of all workers, which take their rows as they come."""
    valid = whole["valid"].astype(bool)
    number = np.full(valid.shape, -1)
    number[valid] = np.arange(valid.sum())
    own = [number[:, WIDTH * k : WIDTH * (k + 1)] for k in range(workers)]
    own = [numbers[numbers >= 0] for numbers in own]
    pieces = [np.array_split(numbers, parts_of_each) for numbers in own]
    return np.concatenate([piece[j] for j in range(parts_of_each) for piece in pieces])


def as_one_and_together(name, spaces, settings, workers, *, fast, rounds=2):
    """Make some updates by one learner and by workers, and see that all take the same steps."""
    one, *team = (agent(name, spaces=spaces, **settings) for _ in range(workers + 1))
    whole, parts = whole_batch(one, workers)
    count = max(1, round(workers * ROWS / settings.get("minibatch", 10**9)))
    made = 0
    for k in range(rounds):
        clock = Clock(env_steps=100 * (k + 1), episodes=k, updates=k, version=k)
        taken, apart = [], []
        one.rng = Shared(0, 1, lambda _count: orders(whole, workers, count))

        def take(gradient, taken=taken):
            taken.append(gradient.clone())

        way = updates(one, fast=fast)
        with steps_shown(one, take):
            alone = way.update(whole, clock)
        turns = Turns(workers)

        def work(index, clock=clock, taken=taken, apart=apart, turns=turns):
            mine, group, steps = team[index], Team(Turn(turns, index), 0), iter(taken)
            way = updates(mine, fast=fast)
            assert way.is_fast == updates(one, fast=fast).is_fast

            def look(gradient):
                found = next(steps)
                apart.append(float((gradient - found).norm() / found.norm().clamp(min=1e-12)))
                gradient.copy_(found)

            with group.learning(mine, clock, 1, twin=way.twin is not None):
                mine.rng = Shared(index, workers, np.arange)
                rows = parts[index]
                together.learn_from(len(rows["weight"]) if "weight" in rows else rows["valid"].sum())
                with steps_shown(mine, look):
                    result = way.update(rows, clock)
                assert group.agreed(mine, REPORT)["finite"]
            return result, len(list(steps))

        found = turns.run([functools.partial(work, index) for index in range(workers)])
        made += len(taken)
        assert len(apart) == workers * len(taken)
        assert [left for _, left in found] == [0] * workers
        assert max(apart, default=0) <= NEAR, apart
        if alone[1] is not None:
            priorities = np.concatenate([priorities for (_, priorities), _ in found])
            assert np.allclose(priorities, alone[1], rtol=1e-5)
    assert made
    return one, team


def expect_alike(one, team):
    """All that the learner and the workers have come to is the same, but for their own random numbers."""
    state = one.state()
    for mine in team:
        found = mine.state()
        assert found.keys() == state.keys()
        for name, numbers in state.items():
            if isinstance(getattr(one, name, None), float):  # its bytes are kept
                assert getattr(mine, name) == pytest.approx(getattr(one, name)), name
            elif not name.startswith(("rng", "torch.generator")):
                assert np.allclose(found[name], numbers, rtol=1e-5, atol=1e-6), name


@pytest.mark.parametrize("workers", [2, 3])
@pytest.mark.parametrize(("name", "spaces", "settings"), CASES, ids=IDS)
def test_workers_take_the_steps_of_one_learner_as_the_paper_is_written(name, spaces, settings, workers):
    one, team = as_one_and_together(name, spaces, settings, workers, fast=False)
    expect_alike(one, team)


FAST = [case for case in CASES if updates(agent(case[0], spaces=case[1], **case[2])).is_fast]


@pytest.mark.parametrize(("name", "spaces", "settings"), FAST, ids=[f"{one[0]}-{k}" for k, one in enumerate(FAST)])
def test_twins_exchange_the_same_gradients(name, spaces, settings):
    one, team = as_one_and_together(name, spaces, settings, 2, fast=True)
    expect_alike(one, team)


def test_every_algorithm_that_has_gradients_is_compared():
    assert {name for name, _, _ in CASES} == {*REGISTRY} - {"q_learning", "sarsa"}
    assert {name for name, _, _ in FAST} == {"dqn", "sac", "td3", "ddpg", "mlxe", "ppo"}


def test_what_all_have_in_common_is_the_same_to_the_last_bit():
    settings = SMALL | {"reward_scaling": True, "kl_penalty_target": 0.01, "minibatch": 2 * ROWS}
    _, team = as_one_and_together("ppo", SPACES, settings, 3, fast=False)
    states = [mine.state() for mine in team]
    for name in states[0]:
        if not name.startswith(("rng", "torch.generator")):
            assert all(state[name].tobytes() == states[0][name].tobytes() for state in states), name


def run(work, workers=2):
    """Have workers do something in a group; what each comes to."""
    turns = Turns(workers)

    def in_group(index):
        with together.learning_in(Turn(turns, index)):
            return work(index)

    return turns.run([functools.partial(in_group, index) for index in range(workers)])


def test_statistics_are_those_of_all_rows():
    rng = np.random.default_rng(0)
    numbers, parts = rng.normal(3, 2, 30), ([0, 7], [7, 30])
    mean, variance = run(lambda k: together.moments(numbers[slice(*parts[k])]))[1]
    assert mean == pytest.approx(numbers.mean())
    assert variance == pytest.approx(numbers.var())
    assert run(lambda k: together.mean(float(k), 1 + k)) == [pytest.approx(2 / 3)] * 2
    assert run(lambda k: together.most(5 - k)) == [5.0, 5.0]
    assert [one.tolist() for one in run(lambda k: together.total([k + 1, 10.0]))] == [[3, 20]] * 2
    assert run(lambda k: together.parts_of([20, 44][k], 16)) == [4, 4]
    assert run(lambda k: together.parts_of(32, 8, [5, 9][k])) == [5, 5]


def test_a_worker_alone_goes_on_with_its_own():
    vector = np.arange(3.0)
    together.gradient(vector)
    assert vector.tolist() == [0, 1, 2]
    assert together.mean(4.0) == 4.0
    assert together.total([1.0, 2.0]).tolist() == [1, 2]
    assert together.parts_of(20, 16) == 1
    assert together.parts_of(100, 8, 5) == 5


def test_a_gradient_is_the_mean_weighted_by_rows_piece_by_piece(monkeypatch):
    monkeypatch.setattr(together, "PIECE", 4)
    whole = np.random.default_rng(1).normal(size=(3, 11)).astype(np.float32)
    rows = np.array([1.0, 2.0, 5.0])

    def work(index):
        vector = whole[index].copy()
        together.learn_from(rows[index])
        together.gradient(vector)
        return vector, together.gradients_made()

    found = run(work, 3)
    for vector, made in found:
        assert np.allclose(vector, (rows[:, None] / 8 * whole).sum(0), atol=1e-6)
        assert vector.tobytes() == found[0][0].tobytes()
        assert made == 1


def test_a_torch_optimiser_and_clipping_of_an_author_see_the_mean():
    def made():
        torch.manual_seed(0)
        return torch.nn.Linear(3, 2)

    class Own(Algorithm):
        def build(self):
            self.net = made()

        def build_learner(self):
            self.optimiser = torch.optim.SGD(self.net.parameters(), 0.5)

        def update(self, batch, clock):
            rows = self.tensors(batch)
            self.optimiser.zero_grad()
            self.net(rows["obs"]).square().mean().backward()
            torch.nn.utils.clip_grad_norm_(self.net.parameters(), 0.1)
            self.optimiser.step()
            return {}

    rng = np.random.default_rng(0)
    obs = rng.normal(size=(12, 3)).astype(np.float32)
    parts, turns = [obs[:4], obs[4:]], Turns(2)
    team = [Own(Own.Settings(), SPACES, seed=1, learns=True) for _ in parts]

    def work(index):
        group, way = Team(Turn(turns, index), 0), updates(team[index])
        with group.learning(team[index], Clock(), 1, twin=False):
            together.learn_from(len(parts[index]))
            way.update({"obs": parts[index]}, Clock())
            assert group.agreed(team[index], REPORT)["rows"] == 6

    turns.run([functools.partial(work, index) for index in range(2)])
    alone = Own(Own.Settings(), SPACES, seed=1, learns=True)
    alone.update({"obs": obs}, Clock())
    for mine in team:
        assert np.allclose(mine.weights(), alone.weights(), atol=1e-7)


def test_another_number_of_steps_is_told_at_once():
    def work(index):
        for _ in range(2 + index):
            together.gradient(np.zeros(3, np.float32))

    with pytest.raises((StepsDiffer, AttemptBroken)):
        run(work)


def test_another_kind_of_exchange_is_told_with_both():
    def work(index):
        if index:
            together.moments(np.ones(3))
        else:
            together.gradient(np.zeros(3, np.float32))

    with pytest.raises(StepsDiffer, match="worker 0 gave gradient of 16 bytes, worker 1 statistic of 24 bytes"):
        run(work)


def test_weights_that_differ_are_told():
    team = [agent("a2c", **SMALL, seed=1 + k) for k in range(2)]
    turns = Turns(2)

    def work(index):
        group = Team(Turn(turns, index), 0)
        with group.learning(team[index], Clock(), 1, twin=False):
            together.gradient(np.zeros(3, np.float32))
            group.agreed(team[index], REPORT)

    with pytest.raises(StepsDiffer, match="expected one: what `update` changes by other means than gradients"):
        turns.run([functools.partial(work, index) for index in range(2)])


def test_learning_without_backward_is_refused():
    turns = Turns(2)
    team = [agent("a2c", **SMALL) for _ in range(2)]

    def work(index):
        group = Team(Turn(turns, index), 0)
        with group.learning(team[index], Clock(), 1, twin=False):
            group.agreed(team[index], REPORT)

    with pytest.raises(StepsDiffer, match="A2C has learned without a gradient of `backward`"):
        turns.run([functools.partial(work, index) for index in range(2)])


def test_an_object_that_is_no_algorithm_is_refused():
    group = Team(Turn(Turns(1), 0), 0)
    with pytest.raises(MlxeError, match="int is not derived from Algorithm"), group.learning(3, Clock(), 1, twin=False):
        pass


def test_all_hear_that_one_has_losses_that_are_not_finite():
    team, turns = [agent("a2c", **SMALL) for _ in range(2)], Turns(2)

    def work(index):
        group = Team(Turn(turns, index), 0)
        with group.learning(team[index], Clock(), 1, twin=False):
            together.gradient(np.zeros(3, np.float32))
            return group.agreed(team[index], REPORT | {"finite": index == 0})["finite"]

    assert turns.run([functools.partial(work, index) for index in range(2)]) == [False, False]


def test_global_generators_are_each_workers_own_and_afterwards_as_before():
    np.random.seed(3)
    torch.manual_seed(3)
    before = np.random.get_state()[1].tolist(), torch.get_rng_state()

    def work(index):
        torch.manual_seed(index)
        first = torch.rand(1).item()
        together.most(index)
        second = torch.rand(1).item()
        torch.manual_seed(index)
        return [first, second] == [torch.rand(1).item() for _ in range(2)]

    assert run(work, 3) == [True] * 3
    assert np.random.get_state()[1].tolist() == before[0]
    assert torch.equal(torch.get_rng_state(), before[1])
    assert threading.active_count() >= 1


def test_an_error_of_one_ends_the_others_and_is_the_one_that_is_raised():
    def work(index):
        if index == 1:
            raise ZeroDivisionError("mine")
        together.most(index)
        return index

    with pytest.raises(ZeroDivisionError, match="mine"):
        run(work, 3)


def test_of_no_rows_the_moments_are_those_of_the_others():
    rows = np.random.default_rng(0).normal(size=(5, 2))
    nothing = normaliser.nothing(2)
    found = run(lambda k: normaliser.merge(nothing, rows if k else rows[:0]))
    for one, other in zip(*found, strict=True):
        assert np.array_equal(one, other)
    assert np.allclose(found[0].mean, rows.mean(0))
    assert found[0].rows == 5


def test_an_advantage_is_normalised_over_all_rows():
    advantage = torch.linspace(-1, 3, 10)
    parts = [advantage[:3], advantage[3:]]
    found = torch.cat(run(lambda k: returns.normalised(parts[k])))
    assert torch.allclose(found, returns.normalised(advantage), atol=1e-6)


def test_all_stop_where_the_kl_of_all_rows_is_too_large():
    def work(index):
        together.learn_from([3, 1][index])
        return correction.is_beyond([0.0, 0.4][index], 0.09), correction.is_beyond(0.1 * index, 0.03)

    assert run(work) == [(True, False)] * 2
    assert not correction.is_beyond(0.08, 0.09)


def test_a_baseline_compares_the_episodes_of_all():
    rng = np.random.default_rng(0)
    gains, step, episode = (
        rng.normal(size=9),
        np.array([0, 1, 2, 0, 1, 0, 1, 2, 3]),
        np.array([0] * 3 + [1] * 2 + [2] * 4),
    )
    whole = baselines.of_others(gains, step, episode)
    parts = [slice(0, 5), slice(5, 9)]
    found = run(lambda k: baselines.of_others(*(column[parts[k]] for column in (gains, step, episode))))
    assert np.allclose(np.concatenate(found), whole)


def test_reports_are_put_together_by_rows():
    def report(rows, lag, loss):
        lags = {"lag_min": lag, "lag_max": lag + 1, "lag_mean": lag + 0.5, "late_rows": 1, "dropped_rows": 0}
        return REPORT | {"rows": rows, **lags, "metrics": {"loss": loss, "odd": None}}

    empty = REPORT | {"rows": 0, "finite": False, "late_rows": 2}
    found = merged([report(10, 0, 1.0), report(30, 2, 5.0), empty])
    assert (found["rows"], found["late_rows"], found["finite"]) == (40, 4, False)
    assert found["metrics"] == {"loss": 4.0, "odd": None}
    assert (found["lag_min"], found["lag_mean"], found["lag_max"]) == (0, 2.0, 3)
    assert merged([empty])["rows"] == 0


def test_metrics_that_are_too_long_to_tell_are_left_out():
    group = Team(Turn(Turns(1), 0), 0)
    alone = agent("a2c", **SMALL)

    def work():
        with group.learning(alone, Clock(), 1, twin=False):
            together.gradient(np.zeros(3, np.float32))
            return group.agreed(alone, REPORT | {"metrics": {f"metric {k}": 0.1 for k in range(2000)}})

    (found,) = group._group.turns.run([work])
    assert found == REPORT | {"metrics": {}}
