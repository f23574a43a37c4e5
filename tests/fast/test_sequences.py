"""Pieces of rollouts: advantages that take one pass are those of the formula, whatever ends where."""

import numpy as np
import pytest
from made_rows import agent, rollout

from mlxe_async.fast import ppo as ppo_twin
from mlxe_async.fast import sequences
from mlxe_async.fast.ppo import gradient
from mlxe_async.fast.sequences import Sequences
from mlxe_async.maths import returns, rollouts

FORMS = {"as made": (16, 5), "one row": (1, 4), "one environment": (33, 1), "a thousand rows": (1000, 3)}


def batch_of(length, width, seed=0):
    rng = np.random.default_rng(seed)
    rows = rollout(agent("ppo"), length=length, width=width, seed=seed)
    for name in ("terminated", "truncated", "cut"):
        rows[name] |= (rng.random(rows[name].shape) < 0.05).astype(np.uint8)
    rows["valid"][length - length // 4 :, 0] = False
    rows["reward"][length // 2 :] *= 1e4  # what comes later must not blur what was before
    return rows


def flat(obs):
    return obs.reshape(-1, *obs.shape[2:]) if obs.ndim > 2 else obs


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(("discount", "lambda_"), [(0.98, 0.95), (1.0, 1.0), (0.9, 0.0), (0.3, 0.5), (0.0, 0.7)])
@pytest.mark.parametrize("rows", [7, 10_000])
def test_advantages_are_those_of_the_formula(form, discount, lambda_, rows):
    batch, rng = batch_of(*FORMS[form]), np.random.default_rng(1)
    ends, ended, missing = rollouts.unknown(batch)
    value = rng.normal(size=ends.shape).astype(np.float32)
    after = rng.normal(size=int(missing.sum())).astype(np.float32)
    by_row = rollouts.following(value, after, missing)
    arrays = (batch["reward"].astype(np.float64), value.astype(np.float64), by_row.astype(np.float64), ended, ends)
    expected = returns.generalised_advantage(*arrays, discount, lambda_)
    whole, seen = Sequences(batch, flat, discount, lambda_), 0
    for piece in whole.pieces(rows):
        count = len(piece.obs) // len(ends)
        some = slice(seen, seen + count)
        np.testing.assert_array_equal(piece.obs, flat(batch["obs"][:, some].swapaxes(0, 1)))
        np.testing.assert_array_equal(piece.action, batch["action"][:, some].T.reshape(-1))
        np.testing.assert_array_equal(piece.log_prob, batch["log_prob"][:, some].T.reshape(-1))
        valid = batch["valid"][:, some].T.reshape(-1)
        assert (piece.valid is None) == valid.all()
        if piece.valid is not None:
            np.testing.assert_array_equal(piece.valid, valid)
        column, step = np.nonzero(missing[:, some].T)
        np.testing.assert_array_equal(piece.after, batch["next_obs"][:, some][step, column])
        follows = by_row[:, some][step, column]
        advantage, target = piece.advantages(value[:, some].T.reshape(-1), follows)
        right = expected[:, some].T.reshape(-1)[valid]  # those of rows that do not count may be anything
        assert (np.abs(advantage[valid] - right) / (1 + np.abs(right))).max(initial=0) < 1e-5
        np.testing.assert_array_equal(target, advantage + value[:, some].T.reshape(-1))
        seen += count
    assert seen == ends.shape[1]


def test_large_observations_are_laid_down_piece_by_piece_and_are_the_same(monkeypatch):
    batch, asked = batch_of(20, 6), []

    def shown(obs):
        asked.append(len(flat(obs)))
        return flat(obs)

    found = [[*Sequences(batch, shown, 0.98, 0.95).pieces(50)]]
    at_once = [*asked]
    monkeypatch.setattr(sequences, "MANY_BYTES", 0)
    asked.clear()
    found.append([*Sequences(batch, shown, 0.98, 0.95).pieces(50)])
    assert len(found[0]) == len(found[1]) > 1
    assert (at_once[0], len(at_once)) == (120, 2)
    assert max(asked) < 120
    for one, other in zip(*found, strict=True):
        np.testing.assert_array_equal(one.obs, other.obs)
        np.testing.assert_array_equal(one.after, other.after)


def test_sums_in_one_pass_are_left_where_the_decay_leaves_no_digits():
    batch = batch_of(1000, 2)
    assert Sequences(batch, flat, 0.98, 0.95).is_exact
    assert not Sequences(batch, flat, 0.5, 0.5).is_exact


def test_rows_that_do_not_count_change_nothing():
    rng, rows = np.random.default_rng(0), 40
    valid = (rng.random(rows) < 0.7).astype(np.float32)
    logits, value = rng.normal(size=(rows, 3)).astype(np.float32), rng.normal(size=(rows, 1)).astype(np.float32)
    log_prob, advantage, target = (rng.normal(size=rows).astype(np.float32) for _ in range(3))
    known = [logits, value, rng.integers(0, 3, rows), log_prob - 1, advantage, target]
    more = {"clip": 0.2, "value_coefficient": 0.5, "entropy": 0.01}
    (by_logits, by_value), measured = gradient(*known, valid, **more)
    some = np.flatnonzero(valid)
    (expected, by_some), of_some = gradient(*(one[some] for one in known), **more)
    np.testing.assert_allclose(by_logits[some], expected, rtol=1e-4, atol=1e-7)
    np.testing.assert_allclose(by_value[some], by_some, rtol=1e-4, atol=1e-7)
    assert not by_logits[valid == 0].any()
    assert not by_value[valid == 0].any()
    np.testing.assert_allclose(measured[:4], of_some[:4], rtol=1e-4)
    np.testing.assert_allclose(measured.log_ratio[some], of_some.log_ratio, rtol=1e-5)
    assert measured.rows == of_some.rows == len(some)
    for name, found in ppo_twin._means([measured], 0.2).items():
        assert found == pytest.approx(ppo_twin._means([of_some], 0.2)[name], rel=1e-4)
