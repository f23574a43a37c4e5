"""Defaults of an algorithm that follow the task: pictures go through convolutions where nobody says otherwise."""

import awkward_updates
import pytest

from mlxe_async.algorithms import REGISTRY
from mlxe_async.ipc.shared.words import PAGE_BYTES, ProgressPage
from mlxe_async.workers.probe import Probe

SEEING = [name for name in REGISTRY if name not in ("sac", "td3", "ddpg", "q_learning", "sarsa")]
PONG = "ALE/Pong-v5"
LIMITS = {"reset_timeout_s": 60.0, "step_timeout_s": 60.0, "update_timeout_s": 60.0}


def probed(task, rehearses=False, **algorithm):
    page = ProgressPage(bytearray(PAGE_BYTES))
    learner, memory = {"device": "cpu"}, {"capacity_rows": None}
    settings = {"algorithm": algorithm, "learner": learner, "task": task, "memory": memory, "schedule": LIMITS}
    probe = Probe(settings, page)
    found = probe.probe()
    if rehearses:
        assert probe.rehearse() == {}
    probe.close()
    return found


@pytest.mark.parametrize("name", ["mlxe", "ppo"])
def test_games_get_convolutions_and_what_goes_with_them(name):
    found = probed({"env": PONG}, name=name)
    chosen = found["algorithm"]
    assert (chosen["body"], chosen["common"], chosen["policy"], chosen["normalise"]) == ("nature", [512], [], False)
    first = next(one for one in found["parameters"] if "convolutions" in one[0])
    assert first == [
        f"{'network.' if name == 'mlxe' else ''}see.convolutions.observation.layers.0.weight",
        [32, 4, 8, 8],
    ]


@pytest.mark.long
@pytest.mark.parametrize("name", ["mlxe", "ppo"])
def test_vectors_and_what_somebody_wrote_stay_as_they_are(name):
    assert probed({"env": "CartPole-v1"}, name=name)["algorithm"]["body"] == "none"
    found = probed({"env": PONG}, name=name, body="none")["algorithm"]
    assert (found["body"], found["common"], found["policy"]) == ("none", [], [64, 64])
    found = probed({"env": PONG}, name=name, common=[32])["algorithm"]
    assert (found["body"], found["common"], found["policy"]) == ("nature", [32], [])


def test_normalise_follows_the_body_unless_somebody_wrote_it():
    assert probed({"env": PONG}, name="ppo", body="nature")["algorithm"]["normalise"] is False
    (problem,) = probed({"env": PONG}, name="ppo", normalise=True)["problems"]
    assert "needs normalise = false" in problem["message"]


def test_pictures_with_channels_last_are_refused_with_the_line_to_write():
    (problem,) = probed({"env": "awkward_updates:Coloured"}, name="ppo")["problems"]
    assert "got (40, 48, 3); add channels_first = true to [task]" in problem["message"]
    task = {"env": "awkward_updates:Coloured", "channels_first": True}
    found = probed(task, rehearses=True, name="ppo", minibatch=8)
    assert found["parameters"][0] == ["see.convolutions.observation.layers.0.weight", [32, 3, 8, 8]]


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.slow if name not in ("ppo", "dqn") else ()) for name in SEEING]
)
def test_a_picture_in_a_dict_is_convolved_by_the_shortest_settings_and_learned_from_once(name):
    found = probed({"env": "awkward_updates:Sees"}, rehearses=True, name=name)
    name_of_first, shape = found["parameters"][0]
    assert name_of_first.endswith("see.convolutions.head/eye.layers.0.weight")
    assert shape == [32, 3, 8, 8]
    assert found["network"].startswith("head.eye by 3 convolutions (128 features) beside 5 numbers -> ")
    assert found["algorithm"].get("normalise", False) == (name in ("a2c", "impala", "ppo", "reinforce"))


def test_a_written_body_or_none_counts_for_parts_too():
    task = {"env": "awkward_updates:Sees"}
    found = probed(task, name="ppo", body="none")
    assert (found["algorithm"]["normalise"], found["network"][:13]) == (True, "5,765 numbers")
    found = probed(task, rehearses=True, name="ppo", body="elu", minibatch=8)
    first = ["see.convolutions.head/eye.layers.0.weight", [32, 3, 3, 3]]
    assert (found["algorithm"]["normalise"], found["parameters"][0]) == (True, first)
    found = probed(task | {"observe": ["arm"]}, name="ppo")
    assert (found["algorithm"]["body"], found["network"][:9]) == ("none", "2 numbers")


@pytest.mark.parametrize("name", ["sac", "td3", "ddpg"])
def test_who_has_no_convolutions_refuses_the_picture_with_a_line_that_leaves_it_out(name):
    task = {"env": "awkward_updates:Sees", "kwargs": {"bounded": True}}
    (problem,) = probed(task, name=name)["problems"]
    assert problem["path"] == ["algorithm", "name"]
    assert "has no convolutions for pictures, got head.eye 40 x 48 x 3 bytes; leave it out by " in problem["message"]
    assert 'observe = ["arm"] of [task]' in problem["message"]
    assert "problems" not in probed(task | {"observe": ["arm"]}, rehearses=True, name=name)


def test_an_algorithm_of_ones_own_may_have_such_defaults():
    found = probed({"env": "CartPole-v1"}, name="awkward_updates:FollowsTheTask", learning_rate=0.5)["algorithm"]
    assert (found["learning_rate"], found["batch"]) == (0.5, 44)
    assert awkward_updates.FollowsTheTask.asked == {"learning_rate": 0.5}
