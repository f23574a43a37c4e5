"""Ape-X in real runs: first priorities by the weights that acted, and a replay ratio that holds whoever is faster."""

import numpy as np
import pytest

from mlxe_async.algorithms.apex import FLOOR, ApeX, ApeXSettings
from mlxe_async.rows import Spaces

PIECES = {"executors": 2, "envs_per_executor": 2, "sync": "rollout", "rollout_steps": 13}
SHORT = {"name": "apex", "layers": [8, 8], "layer_norm": False, "batch": 16, "start_rows": 100, "discount": 0.9}


def q_values(flat, obs):
    """Q (..., A) in double precision, by the published shape of the layers."""
    made = ApeX(ApeXSettings(layers=(8, 8), layer_norm=False), Spaces((4,), actions=2), seed=0, learns=False)
    sizes = np.cumsum([int(np.prod(shape)) for _, shape in made.parameters])[:-1]
    arrays = {
        name.removeprefix("network."): piece.reshape(shape)
        for (name, shape), piece in zip(made.parameters, np.split(flat.astype(np.float64), sizes), strict=True)
    }

    def chain(x, head, last):
        names = [name for name in arrays if name.startswith(f"{head}.") and name.endswith("weight")]
        for k, name in enumerate(names):
            x = x @ arrays[name].T + arrays[name.replace("weight", "bias")]
            x = x if last and k + 1 == len(names) else np.maximum(x, 0)
        return x

    shared = chain(obs.astype(np.float64), "common", False)
    advantage = chain(shared, "advantage", True)
    return chain(shared, "value", True) + advantage - advantage.mean(-1, keepdims=True)


def expected_priorities(rows, weights, discount, n):
    """|error| + floor of each row of a segment, by the weights that each of its rows was acted by."""
    length, found = len(rows["reward"]), []
    q = [q_values(weights[int(by)], obs) for by, obs in zip(rows["acted_by"], rows["obs"], strict=True)]
    for t in range(length):
        count = min(n, length - t)
        total = sum(discount**i * float(rows["reward"][t + i]) for i in range(count))
        last = t + count - 1
        if not rows["terminated"][last]:
            following = q_values(weights[int(rows["acted_by"][last])], rows["next_obs"][last])
            total += discount**count * (q[last + 1] if last + 1 < length else following).max()
        found.append(abs(total - q[t][int(rows["action"][t])]) + FLOOR)
    return found


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["serial", "is", "ia", "oa"])
def test_rows_come_with_the_error_by_the_weights_that_acted(live, tmp_path, kind):
    folder = tmp_path / "noted"
    folder.mkdir()
    result, lines = live(
        task={"env": "CartPole-v1", "max_episode_steps": 60},  # some are truncated, some cut, some end
        algorithm={**SHORT, "name": "noting_priorities:Noting", "n_step": 3, "folder": str(folder)},
        schedule={"kind": kind, **PIECES},
        stop={"env_steps": 1500},
    )
    weights = {int(path.stem): np.load(path) for path in folder.glob("*.npy")}
    checked, marks = 0, {"terminated": 0, "truncated": 0, "cut": 0}
    for path in folder.glob("*.npz"):
        noted = np.load(path)
        ends = np.cumsum(noted["lengths"])
        for start, end in zip([0, *ends[:-1]], ends, strict=True):
            rows = {name: noted[name][start:end] for name in noted.files if name != "lengths"}
            expected = expected_priorities(rows, weights, 0.9, 3)
            np.testing.assert_allclose(rows["initial_priority"], expected, rtol=1e-4, atol=1e-5)
            checked += len(expected)
            for name in marks:
                marks[name] += int(rows[name][-1])
    assert checked == result.steps
    assert min(marks.values()) > 2
    assert len(weights) > 3
    assert lines.all("ledger")[-1]["lost"] == 0


@pytest.mark.slow
@pytest.mark.parametrize(
    ("ratio", "who_waits"),
    [(32.0, "the executors"), (0.25, "the learner")],
)
def test_the_replay_ratio_holds_whoever_is_faster(live, ratio, who_waits):
    algorithm = {**SHORT, "layers": [64, 64], "replay_ratio": ratio}
    stop = {"env_steps": 3000 if ratio > 1 else 12_000}
    schedule = {"kind": "oa", **PIECES, "updates_per_publish": 8, "max_owed_updates": 64}
    result, lines = live(algorithm=algorithm, schedule=schedule, stop=stop)
    inserted = lines.all("ledger")[-1]["ingested"] - 100
    found = 16 * result.updates / inserted
    told = [line for line in lines.all("phase", phase="learn") if line["losses"].get("replay_ratio")]
    print(f"{who_waits} wait: {found:.2f} rows for each row, expected {ratio}; told at last: {told[-1]['losses']}")
    assert found == pytest.approx(ratio, rel=0.1)
    for line in told[len(told) // 2 :]:
        assert line["losses"]["replay_ratio"] == pytest.approx(ratio, rel=0.1)


@pytest.mark.slow
def test_the_synchronous_schedule_equals_the_serial_one_bit_for_bit(live):
    runs = [
        live(algorithm=SHORT | {"replay_ratio": 1.0}, schedule={"kind": kind, **PIECES}, stop={"env_steps": 500})[0]
        for kind in ("serial", "is")
    ]
    assert runs[0].weights_hash == runs[1].weights_hash
    assert runs[0].updates > 20
