"""DQN and Rainbow with a cell: acting moves it step by step, and replayed sequences find again what executors did."""

import functools

import numpy as np
import pytest
import torch
from test_recurrent import SPACES, observation

from mlxe_async.algorithms import Acting, Clock, load_algorithm
from mlxe_async.algorithms.parts import recurrent, sequences
from mlxe_async.algorithms.parts.value_fields import FLOOR
from mlxe_async.fast import updates
from mlxe_async.maths.rescaling import EPSILON
from mlxe_async.memory.replay import ReplayMemory
from mlxe_async.memory.shape import ReplayShape
from mlxe_async.networks.dense import Dense
from mlxe_async.rows import RowLayout, standard_columns

SMALL = {"cell": "lstm", "cell_size": 5, "layers": (7, 6), "burn_in": 2, "sequence_steps": 3, "n_step": 3}
SMALL |= {"batch": 64, "discount": 0.8}
ATOMS = {"v_min": -3.0, "v_max": 5.0, "atoms": 9}
KINDS = {
    "dqn": ("dqn", {}),
    "gru": ("dqn", {"cell": "gru", "cell_layers": 2}),
    "plain": ("dqn", {"double": False, "n_step": 1}),
    "square": ("dqn", {"loss": "square", "burn_in": 0}),
    "survival": ("dqn", {"value_scale": "survival"}),
    "rescaled": ("dqn", {"value_rescaling": True}),
    "dueling": ("dqn", {"dueling": True, "layers": (7, 6, 4), "prioritised": True}),
    "linear": ("dqn", {"layers": (), "average": 0.3}),
    "noisy": ("dqn", {"noisy": True, "dueling": True}),
    "rainbow": ("rainbow", ATOMS),
    "quiet rainbow": ("rainbow", {**ATOMS, "noisy": False, "dueling": False, "double": False}),
}
LENGTHS = (1, 2, 4, 7, 12, 9)  # of segments
ENDS = ("terminated", "cut", "truncated", "terminated", "truncated", "cut")


def made(kind="dqn", spaces="one choice", learns=True, seed=3, **settings):
    name, own = KINDS[kind]
    body = {"body": "small", "layer_norm": False} if spaces == "pictures" else {}
    kind = load_algorithm(name)
    return kind(kind.Settings(**SMALL | own | body | settings), SPACES[spaces], seed=seed, learns=learns)


def played(algorithm, rng=None):
    """Segments as an executor's object plays them; one that was cut is gone on with by the next one."""
    rng, segments, spaces = rng or np.random.default_rng(0), [], algorithm.spaces
    acting, step, obs = Acting().start(algorithm.carry, 1), 0, observation(spaces, 1, rng)
    for number, (length, end) in enumerate(zip(LENGTHS, ENDS, strict=True)):
        rows = []
        for t in range(length):
            before = {name: column[0].copy() for name, column in acting.carry.items()}
            row, following = algorithm.act(obs, rng, acting), observation(spaces, 1, rng)
            row = {name: column[0] for name, column in row.items()} | before
            row |= {"obs": obs[0], "next_obs": following[0], "reward": np.float32(rng.normal()), "step": step}
            row |= {name: np.uint8(t == length - 1 and name == end) for name in ("terminated", "truncated", "cut")}
            rows.append(row | {"episode": number})
            step, obs = step + 1, following
        if end != "cut":
            acting.begin([0])
            step, obs = 0, observation(spaces, 1, rng)
        segments.append({name: np.stack([row[name] for row in rows]) for name in rows[0]})
    return segments


def windows(algorithm, segments):
    """All sequences that the segments hold, as a replay memory gathers them (T, M, ...), and whose they are."""
    found, where = [], []
    for number, segment in enumerate(segments):
        columns = segment | algorithm.derive(segment)
        length = len(segment["reward"])
        for start in range(length):
            rows = np.minimum(start + np.arange(algorithm.window), length - 1)
            window = {name: column[rows] for name, column in columns.items()}
            window["valid"] = start + np.arange(algorithm.window) < length
            found.append(window)
            where.append((number, start))
    batch = {name: np.stack([one[name] for one in found], axis=1) for name in found[0]}
    batch["weight"] = np.random.default_rng(1).uniform(0.2, 1.0, len(found)).astype(np.float32)
    return batch, where


def in_double(learner, batch):
    """The rows of a batch, and the networks, in double precision."""
    for network in (learner.learned, learner.target):
        network.double()
        network.see = torch.nn.Identity()
        for part in network.modules():
            if isinstance(part, Dense):  # whose own outputs are of single precision
                part.forward = functools.partial(torch.nn.Sequential.forward, part)
    rows = learner.rows(batch)
    return {name: one.double() if one.dtype == torch.float32 else one for name, one in rows.items()}


def shaken(learner):
    """Weights of the networks that differ, all of them at work."""
    torch.manual_seed(0)
    with torch.no_grad():
        for network in (learner.learned, learner.target):
            for one in network.parameters():
                one.add_(0.3 * torch.randn_like(one))
    return learner


def step_by_step(network, segment, start, stop, cut=None):
    """Outputs of all rows from `start` on, and of what follows the last, by one step after the other.

    Gradients do not go back beyond row `cut`.
    """
    state = torch.from_numpy(segment[recurrent.STATE][start])[None].double()
    outputs, shown = [], [*segment["obs"][start:stop], segment["next_obs"][stop - 1]]
    for t, obs in enumerate(shown):
        if t == cut:
            state = state.detach()
        features, state = network.cell(network.features(torch.from_numpy(obs)[None].double()), state)
        outputs.append(network.values_of(features)[0])
    return outputs


def h(x):
    return x.sign() * ((x.abs() + 1).sqrt() - 1) + EPSILON * x


def h_back(y):
    root = ((1 + 4 * EPSILON * (y.abs() + 1 + EPSILON)).sqrt() - 1) / (2 * EPSILON)
    return y.sign() * (root**2 - 1)


def plain_loss(learner, kind, segments, where, weights):
    """The loss, and each sequence's errors, row by row in double precision."""
    s, total, errors = learner.settings, [], []
    for (number, start), weight in zip(where, weights, strict=True):
        segment, length, own = segments[number], len(segments[number]["reward"]), []
        stop = min(length, start + learner.window)
        cut = s.burn_in if start else None
        q = step_by_step(learner.learned, segment, start, stop, cut)
        with torch.no_grad():
            of_target = step_by_step(learner.target, segment, start, stop)
        for t in range(0 if start == 0 else s.burn_in, min(s.burn_in + s.sequence_steps, length - start)):
            row = start + t
            count = min(s.n_step, length - row)
            reward = segment["reward"].astype(np.float64) * s.return_scale
            if getattr(s, "value_scale", "") == "survival":
                reward = np.full(length, np.float64(np.float32(1 - s.discount)))
            partial = float(np.float32(sum(s.discount**i * reward[row + i] for i in range(count))))
            over = segment["terminated"][row + count - 1]
            coefficient = 0.0 if over else float(np.float32(s.discount**count))
            chosen = (q if s.double else of_target)[t + count].detach()
            loss, error = one_loss(learner, kind, q[t][segment["action"][row]], of_target[t + count], chosen)(
                partial, coefficient, segment["action"][row]
            )
            total.append(float(weight) * loss)
            own.append(float(error.detach()))
        errors.append(own)
    return torch.stack(total).mean(), errors


def one_loss(learner, kind, q, following, chosen):
    """The loss of a single row, by its partial sum and coefficient, as the papers have it."""
    s = learner.settings

    def found(partial, coefficient, _action):
        if KINDS[kind][0] == "rainbow":
            atoms = torch.linspace(s.v_min, s.v_max, s.atoms, dtype=torch.float64)
            best = (chosen.softmax(-1) * atoms).sum(-1).argmax()
            target, width = torch.zeros(s.atoms, dtype=torch.float64), (s.v_max - s.v_min) / (s.atoms - 1)
            for atom, share in zip(atoms, following[best].softmax(-1), strict=True):
                place = ((partial + coefficient * atom).clamp(s.v_min, s.v_max) - s.v_min) / width
                low = int(place.floor())
                target[low] += share * (1 - (place - low))
                target[min(low + 1, s.atoms - 1)] += share * (place - low)
            loss = -(target * q.log_softmax(-1)).sum()
            return loss, loss
        value = following[chosen.argmax()]
        if s.value_scale == "survival":
            target = partial + coefficient * value.sigmoid()
            loss = torch.nn.functional.binary_cross_entropy_with_logits(q, target)
            return loss, target - q.sigmoid()
        target = h(partial + coefficient * h_back(value)) if s.value_rescaling else partial + coefficient * value
        if s.loss == "square":
            return 0.5 * (target - q) ** 2, target - q
        return torch.nn.functional.huber_loss(q, target), target - q

    return found


@pytest.mark.parametrize("spaces", ["one choice", "pictures"])
@pytest.mark.parametrize("kind", KINDS)
def test_what_is_published_is_told_before_anything_is_made(kind, spaces):
    algorithm = made(kind, spaces, learns=False)
    assert [*type(algorithm).parameters_for(algorithm.settings, algorithm.spaces)] == [*algorithm.parameters]


@pytest.mark.parametrize("kind", KINDS)
def test_executors_act_by_numpy_as_the_module_says_and_the_learner_finds_it_again(kind):
    """The column before each row is the state that acting left there, from zero where an episode begins."""
    algorithm = made(kind, learns=False)
    acting, rng = Acting().start(algorithm.carry, 4), np.random.default_rng(0)
    module, state, seen, outputs = algorithm.module(), None, [], []
    for _ in range(6):
        obs = observation(algorithm.spaces, 4, rng)
        assert isinstance(algorithm.observed(obs), np.ndarray)
        chosen = algorithm.greedy(obs, acting)
        with torch.no_grad():
            found = module(torch.from_numpy(obs), state)
        state = found["memory"]
        np.testing.assert_allclose(acting.carry[recurrent.STATE], state, atol=1e-6)
        np.testing.assert_array_equal(chosen, algorithm.scores(found["values"]).argmax(-1))
        seen.append(torch.from_numpy(obs))
        outputs.append(found["values"])
    begun, whole = torch.zeros_like(state), torch.tensor([True, False, True, False])
    for burn_in in (0, 2):
        with torch.no_grad():
            features = module.unrolled(torch.stack(seen), begun, burn_in, whole)
            np.testing.assert_allclose(module.values_of(features).unflatten(0, (6, 4)), torch.stack(outputs), atol=1e-6)
    best, state = algorithm.deterministic_module(), None
    for obs, values in zip(seen, outputs, strict=True):
        with torch.no_grad():
            action, state = best(obs, state)
        np.testing.assert_array_equal(action, algorithm.scores(values).argmax(-1))


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind not in ("noisy", "rainbow")])
def test_loss_gradient_and_priorities_are_those_of_a_plain_loop(kind):
    """Of all sequences of segments of several lengths: burn-in, first rows, the last targets, and padding."""
    learner = shaken(made(kind, prioritised=True))
    segments = played(made(kind, learns=False))
    batch, where = windows(learner, segments)
    rows = in_double(learner, batch)
    loss, error, _ = learner.loss(rows)
    expected, errors = plain_loss(learner, kind, segments, where, batch["weight"])
    assert len(error) == sum(map(len, errors)) < batch["valid"].sum()
    np.testing.assert_allclose(loss.detach(), expected.detach(), rtol=1e-8)
    leaves = [*learner.learned.parameters()]
    mine = torch.autograd.grad(loss, leaves, allow_unused=True)
    theirs = torch.autograd.grad(expected, leaves, allow_unused=True)
    for one, other in zip(mine, theirs, strict=True):
        np.testing.assert_allclose(one, other, atol=1e-8)
    priority = [0.9 * max(np.abs(own)) + 0.1 * np.mean(np.abs(own)) + FLOOR if own else FLOOR for own in errors]
    np.testing.assert_allclose(learner.judged(error, rows), priority, rtol=1e-8)


@pytest.mark.long
@pytest.mark.parametrize("kind", ["noisy", "rainbow"])
def test_under_noise_sequences_are_unrolled_by_the_weights_of_one_draw(kind):
    learner = shaken(made(kind))
    segments = played(made(kind, learns=False))
    batch, where = windows(learner, segments)
    learner.prepare(Clock(updates=1))
    rows = in_double(learner, batch)
    loss, _, _ = learner.loss(rows)
    expected, _ = plain_loss(learner, kind, segments, where, batch["weight"])
    np.testing.assert_allclose(loss.detach(), expected.detach(), rtol=1e-6)


def test_rows_that_only_move_the_state_have_no_gradient_and_first_rows_of_episodes_have():
    learner = shaken(made())
    batch, where = windows(learner, played(made(learns=False)))
    rows = in_double(learner, batch)
    rows["obs"].requires_grad_()
    learner.loss(rows)[0].backward()
    moved = rows["obs"].grad.abs().sum(-1) > 0
    for sample, (number, start) in enumerate(where):
        length, burn_in, steps = LENGTHS[number] - start, 2, 3
        begins, stop = 0 if start == 0 else burn_in, min(length, burn_in + steps)
        expected = (np.arange(len(moved)) >= begins) & (np.arange(len(moved)) < stop)
        np.testing.assert_array_equal(moved[:, sample], expected)


def test_sequences_without_a_row_to_learn_from_change_nothing():
    learner = made(prioritised=True)
    batch, where = windows(learner, played(made(learns=False)))
    short = [number for number, (own, start) in enumerate(where) if start and LENGTHS[own] - start <= 2]
    batch = {name: column[:, short] if column.ndim > 1 else column[short] for name, column in batch.items()}
    rows = learner.rows(batch)
    loss, _, _ = learner.loss(rows)
    assert loss == 0
    assert rows["learned"].sum() == len(short) > 1


@pytest.mark.parametrize("settings", [{}, {"burn_in": 0}, {"burn_in": 7, "n_step": 1}, {"sequence_steps": 1}])
def test_each_row_is_learned_from_in_one_of_the_sequences_that_are_ever_drawn(settings):
    learner = made(**settings)
    batch, where = windows(learner, played(made(learns=False, **settings)))
    drawn = np.flatnonzero(batch["initial_priority"][0])
    batch = {name: column[:, drawn] if column.ndim > 1 else column[drawn] for name, column in batch.items()}
    learned = learner.rows(batch)["learned"].numpy()
    assert learned.any(0).all()
    rows = [(where[drawn[sample]][0], where[drawn[sample]][1] + t) for t, sample in np.argwhere(learned)]
    assert sorted(rows) == [(number, row) for number, length in enumerate(LENGTHS) for row in range(length)]


def test_a_memory_draws_nothing_but_the_beginnings_of_sequences():
    for settings in ({}, {"prioritised": True}, {"prioritised": True, "priority_exponent": 0.0}):
        learner = made(**settings)
        how = learner.priorities
        assert (how == sequences.EVENLY) == (len(settings) != 1)
        batch = drawn(learner, played(made(learns=False)), exponent=how.exponent, beta=how.correction)
        assert np.isinf(batch["initial_priority"][0]).all()
        np.testing.assert_allclose(batch["weight"], 1.0)


def test_segments_are_derived_together_as_each_alone():
    learner, segments = made(), played(made(learns=False))
    whole = {name: np.concatenate([one[name] for one in segments]) for name in segments[0]}
    together = learner.derive_many(whole, np.array([len(one["reward"]) for one in segments]))
    alone = [learner.derive(one) for one in segments]
    for name, column in together.items():
        np.testing.assert_array_equal(column, np.concatenate([one[name] for one in alone]))
    assert together["first"].sum() == len(segments) >= 3


def test_rows_without_weights_count_alike():
    learner = shaken(made())
    batch, _ = windows(learner, played(made(learns=False)))
    alike = batch | {"weight": np.ones_like(batch["weight"])}
    del batch["weight"]
    loss, expected = (learner.loss(in_double(learner, rows))[0].item() for rows in (batch, alike))
    assert loss == expected > 0


def test_priorities_are_mostly_the_largest_error():
    learned = np.array([[1, 0, 0], [1, 1, 0], [0, 1, 0]], bool)
    found = sequences.priorities(np.array([1.0, -3.0, 2.0, 6.0]), learned)
    np.testing.assert_allclose(found, [0.9 * 3 + 0.1 * 2, 0.9 * 6 + 0.1 * 4, 0.0])


@pytest.mark.parametrize("spaces", ["one choice", "pictures"])
@pytest.mark.parametrize("kind", KINDS)
def test_updates_from_a_memory_move_every_weight_of_the_cell(kind, spaces):
    learner, executor = made(kind, spaces, prioritised=True), made(kind, spaces, learns=False)
    batch = drawn(learner, played(executor))
    assert batch["obs"].shape[:2] == (learner.window, 60 // learner.window)
    before = learner.weights()
    found, priorities = learner.update(batch, Clock())
    assert all(np.isfinite(one) for one in found.values())
    assert priorities.shape == batch["obs"].shape[1:2]
    assert (priorities > 0).all()
    changed = {
        name
        for name, _ in learner.parameters
        if (learner.published(before, name) != learner.published(learner.weights(), name)).any()
    }
    assert {name for name, _ in learner.parameters if ".cell." in name} <= changed


def drawn(learner, segments, exponent=0.5, beta=0.4):
    """A batch of sequences that a real memory gathers."""
    layout = RowLayout(standard_columns(learner.spaces)).with_columns((*learner.extra_columns, *learner.carry))
    shape = ReplayShape(
        lanes=1,
        envs=1,
        stream_rows=60,
        keep_rows=40,
        block_rows=12,
        batch_rows=60,
        plan_updates=2,
        columns=layout.to_json(),
        derived=RowLayout(tuple(learner.derived_columns)).to_json(),
        prioritised=True,
    )
    memory = ReplayMemory(shape, bytearray(shape.nbytes))
    for number, segment in enumerate(segments):
        rows = layout.empty(len(segment["reward"]))
        for name in rows.keys() & segment.keys():
            rows[name][:] = segment[name]
        memory.ingest(0, number, 1, rows, learner.derive, drop_open=True, derive_many=learner.derive_many)
    plan = memory.draw(0, 1, 60 // learner.window, exponent=exponent, beta=beta)
    return memory.gather(plan, 0, learner.window)[0]


@pytest.mark.parametrize("kind", ["dqn", "noisy", "rainbow"])
def test_learning_goes_on_from_a_state_bit_for_bit(kind):
    learner, other = made(kind), made(kind, seed=4)
    batch, _ = windows(learner, played(made(kind, learns=False)))
    learner.update(batch, Clock())
    other.restore(learner.state())
    for one in (learner, other):
        one.update(batch, Clock(updates=1))
    np.testing.assert_array_equal(learner.weights(), other.weights())
    assert {*learner.state()} == {*other.state()}


@pytest.mark.parametrize("settings", [{}, {"cell": "gru"}, {"cell": "none", "value_rescaling": True}])
def test_the_fast_twin_leaves_such_updates_to_the_file(settings):
    assert updates(made(**settings)).twin is None
    assert updates(made(cell="none")).twin is not None


def test_a_batch_holds_at_least_one_sequence():
    kind = load_algorithm("dqn")
    kind.Settings(**SMALL | {"batch": 7})
    kind.Settings(**SMALL | {"batch": 1, "cell": "none"})
    with pytest.raises(
        ValueError, match=r"batch: got 6, expected at least burn_in \+ sequence_steps \+ n_step - 1 = 7"
    ):
        kind.Settings(**SMALL | {"batch": 6})


def test_with_a_cell_other_defaults_suit():
    kind = load_algorithm("rainbow")
    assert kind.defaults_for(SPACES["one choice"], {"cell": "lstm"}) == sequences.WHERE_NOT_SAID
    assert kind.defaults_for(SPACES["one choice"], {"cell": "none"}) == {}
    assert load_algorithm("c51").defaults_for(SPACES["one choice"], {"cell": "lstm"}) == {}
    assert made().defaults["schedule"]["rollout_steps"] == sequences.ROLLOUT_STEPS
    assert made(cell="none").defaults["schedule"]["rollout_steps"] == 32
