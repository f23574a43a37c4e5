"""An ONNX file takes observations as the environment gives them, and gives the actions that the policy takes."""

import json
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from policies_to_export import policy_of

from mlxe_async.errors import RunFailed, SettingsError, TaskError
from mlxe_async.export import onnx_file
from mlxe_async.networks.heads import Deterministic

onnx, _, onnxruntime = (
    pytest.importorskip(package, reason="needs the extra export") for package in ("onnx", "onnxscript", "onnxruntime")
)
pytestmark = pytest.mark.long

LAMPS = {"env": "parted_tasks:Lamps"}
PICTURES = {**LAMPS, "kwargs": {"pictures": True, "masks": True}, "action_mask": True}
CASES = {
    "dense": ({"env": "CartPole-v1"}, {}),
    "with a feature": ({"env": "CartPole-v1", "squared_position": True}, {"name": "mlxe"}),
    "of frames": ({"env": "CartPole-v1", "history": 3}, {"name": "dqn", "dueling": True}),
    "Gaussian": ({"env": "Pendulum-v1"}, {}),
    "squashed": ({"env": "Pendulum-v1"}, {"name": "sac"}),
    "noisy, of atoms": ({"env": "CartPole-v1"}, {"name": "rainbow"}),
    "dictionary": (LAMPS, {}),
    "dictionary, pictures, mask": (PICTURES, {}),
    "picture by convolutions beside numbers": ({"env": "parted_tasks:Sights"}, {"body": "nature"}),
    "pictures": ({"env": "ALE/Pong-v5"}, {}),
    "pictures in bfloat16": ({"env": "ALE/Pong-v5"}, {"precision": "bfloat16"}),
    "masked": ({"env": "parted_tasks:Doors", "kwargs": {"kind": "single"}, "action_mask": True}, {}),
    "masked, several": ({"env": "parted_tasks:Doors", "kwargs": {"kind": "multi"}, "action_mask": True}, {}),
    "masked, switches": ({"env": "parted_tasks:Doors", "kwargs": {"kind": "binary"}, "action_mask": True}, {}),
    "integers": ({"env": "FrozenLake-v1"}, {}),
    "tuple": ({"env": "Blackjack-v1"}, {"name": "dqn"}),
    "LSTM": ({"env": "CartPole-v1"}, {"cell": "lstm"}),
    "GRU of two layers": ({"env": "Pendulum-v1"}, {"cell": "gru", "cell_layers": 2}),
    "two cells": ({"env": "CartPole-v1"}, {"cell": "gru", "cells": "apart"}),
    "dilated": ({"env": "CartPole-v1"}, {"cell": "dilated"}),
    "R2D2": ({"env": "CartPole-v1"}, {"name": "dqn", "cell": "lstm"}),
}


@pytest.mark.parametrize("name", CASES)
def test_a_file_is_kept_once_it_equals_the_policy(name, tmp_path):
    task, algorithm = CASES[name]
    path = tmp_path / "policy.onnx"
    found = onnx_file.write(policy_of(task, **algorithm), path)
    assert found.observations == 100
    assert found.difference <= 1e-5
    onnx.checker.check_model(onnx.load(path))


@pytest.mark.parametrize("number", range(12))
def test_any_space_of_observations_will_do(number, tmp_path):
    path = tmp_path / "policy.onnx"
    onnx_file.write(policy_of({"env": "drawn_tasks:BySeed", "kwargs": {"number": number}}), path)
    onnx.checker.check_model(onnx.load(path))


def session_of(path):
    return onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])


def test_a_mask_is_an_input_and_names_types_and_facts_are_told(tmp_path):
    path = tmp_path / "policy.onnx"
    onnx_file.write(policy_of(PICTURES), path)
    found = {one.name: (one.type, one.shape[1:]) for one in session_of(path).get_inputs()}
    assert found == {
        "lamp": ("tensor(uint8)", [2, 3]),
        "shift.0": ("tensor(int8)", [1]),
        "shift.1": ("tensor(float)", [2]),
        "action_mask": ("tensor(int8)", [4]),
    }
    assert [one.name for one in session_of(path).get_outputs()] == ["action"]
    facts = {one.key: one.value for one in onnx.load(path).metadata_props}
    assert facts["task"] == "parted_tasks:Lamps"
    assert (facts["algorithm"], facts["policy_version"]) == ("ppo", "7")
    assert len(json.loads(facts["inputs"])) == 4


def test_only_what_a_mask_allows_is_chosen(tmp_path):
    path = tmp_path / "policy.onnx"
    onnx_file.write(policy_of({"env": "parted_tasks:Doors", "kwargs": {"kind": "single"}, "action_mask": True}), path)
    rng = np.random.default_rng(0)
    mask = np.eye(5, dtype=np.int8)
    obs = rng.random((5, 2), np.float32)
    (action,) = session_of(path).run(None, {"observation": obs, "action_mask": mask})
    assert action.tolist() == [3, 4, 5, 6, 7]  # the space counts from 3


def test_a_recurrent_policy_is_handed_its_states(tmp_path):
    path = tmp_path / "policy.onnx"
    policy = policy_of({"env": "Pendulum-v1"}, cell="lstm")
    onnx_file.write(policy, path)
    session = session_of(path)
    assert [one.name for one in session.get_inputs()] == ["observation", "memory"]
    assert [one.name for one in session.get_outputs()] == ["action", "next_memory"]
    rng, state, seen = np.random.default_rng(0), np.zeros((1, 128), np.float32), []
    for _ in range(100):
        obs = rng.normal(0, 1, (1, 3)).astype(np.float32)
        action, state = session.run(None, {"observation": obs, "memory": state})
        np.testing.assert_allclose(action[0], policy.act(obs[0]), atol=1e-5)
        seen.append(float(action[0, 0]))
    assert len(set(seen)) > 50
    without, _ = session.run(None, {"observation": obs, "memory": np.zeros_like(state)})
    assert abs(without[0, 0] - seen[-1]) > 1e-3  # what was seen before counts


def test_a_graph_that_says_something_else_is_not_kept(tmp_path, monkeypatch):
    path = tmp_path / "policy.onnx"
    path.write_text("what was there before")
    original = Deterministic.forward
    monkeypatch.setattr(Deterministic, "forward", lambda self, obs, state=None: original(self, obs, state) * 1.001)
    with pytest.raises(RunFailed, match=r"expected .* for observation 1 of 100, got .*; no file was written"):
        onnx_file.write(policy_of({"env": "Pendulum-v1"}), path)
    assert [one.name for one in tmp_path.iterdir()] == ["policy.onnx"]
    assert path.read_text() == "what was there before"


def test_a_graph_that_forgets_its_memory_is_not_kept(tmp_path, monkeypatch):
    original = Deterministic.forward

    def forgetful(self, obs, state=None):
        return original(self, obs, None if state is None else state * 0)

    monkeypatch.setattr(Deterministic, "forward", forgetful)
    with pytest.raises(RunFailed, match="no file was written"):
        onnx_file.write(policy_of({"env": "Pendulum-v1"}, cell="gru"), tmp_path / "policy.onnx")


def test_features_that_take_no_tensors_are_refused_with_their_place(tmp_path, monkeypatch):
    from mlxe_async.tasks.cartpole import CartPoleHelp

    monkeypatch.setattr(CartPoleHelp, "features", lambda self, obs: np.square(np.asarray(obs)[:, :1]))
    with pytest.raises(TaskError, match=r"task.squared_position: mlxe_help.features of CartPole-v1 raised"):
        onnx_file.write(policy_of({"env": "CartPole-v1", "squared_position": True}), tmp_path / "policy.onnx")


def test_a_policy_without_such_a_module_is_refused(tmp_path):
    with pytest.raises(SettingsError, match="QLearning: expected deterministic_module"):
        onnx_file.write(policy_of({"env": "FrozenLake-v1"}, name="q_learning"), tmp_path / "policy.onnx")


def test_an_operator_that_torch_cannot_convert_is_told(tmp_path, monkeypatch):
    def by_numpy(self, obs, state=None):
        return torch.linalg.eigvals(obs[:, :1, None] * obs[:, None, :1]).real[:, 0]

    monkeypatch.setattr(Deterministic, "forward", by_numpy)
    with pytest.raises(RunFailed, match="expected operators that torch can convert"):
        onnx_file.write(policy_of({"env": "Pendulum-v1"}), tmp_path / "policy.onnx")


def test_what_a_policy_remembers_is_forgotten_by_its_export(tmp_path):
    policy = policy_of({"env": "Pendulum-v1"}, cell="lstm")
    first = policy.act(np.ones(3, np.float32))
    onnx_file.write(policy, tmp_path / "policy.onnx")
    assert policy.act(np.ones(3, np.float32)) == first


def test_the_words_say_what_goes_in_and_comes_out():
    found = onnx_file.Written(SimpleNamespace(), ("observation (batch, 4) float32",), ("action (batch) int64",), 100, 0)
    assert found.words == (
        "observation (batch, 4) float32 -> action (batch) int64; equal to the policy on 100 observations, no difference"
    )
