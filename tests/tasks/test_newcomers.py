"""What newcomers bring is learned from, or answered in a sentence that says what to write."""

import importlib.util
import re
import subprocess
import sys

import pytest

from mlxe_async.errors import TaskError
from mlxe_async.tasks import probe as probing
from mlxe_async.tasks.probe import probe

HERE = "newcomer_environments"
_REPEATS = probing._repeats


def without(package):
    """The mark of a test of what is said where a package is missing."""
    return pytest.mark.skipif(importlib.util.find_spec(package) is not None, reason=f"{package} is installed")


WORKS = ["Plain", "DoneOfNumpy", "SmallCounts", "Started"]
TOLD = {
    "RewardOfArray": r"rewards come as .*: cast to a number",
    "RewardOfPoint": r"rewards come as .*: cast to a number",
    "ShowsList": "the space says float32: cast",
    "ShowsDoubles": "observations come as float64, the space says float32: cast",
    "Counts": r"observations of int64 beyond 2\^24 lose digits as float32",
    "Doubles": r"observations of float64 beyond 2\^24 lose digits as float32",
}
REFUSED = {
    "OldReset": "reset must return .observation, info., got .*if this is an environment of the old gym",
    "NoSeed": r"write reset\(self, \*, seed=None, options=None\)",
    "OldStep": "got 4 values; is it an environment of the old gym, with one done",
    "NoReturn": "step must return",
    "DoneOfNumbers": "terminated: expected True or False",
    "RewardOfTwo": "reward: expected one real number",
    "RewardOfNothing": "reward: expected one real number",
    "RewardOfText": "reward: expected one real number",
    "RewardOfNan": "reward: expected a finite number",
    "RewardOfTruth": "reward: expected one real number",
    "ShowsColumn": r"observation: expected shape \(3,\)",
    "ShowsFour": r"observation: expected shape \(3,\)",
    "ShowsNan": r"observation: expected finite numbers, got nan at index \[1\]",
    "ShowsNothing": "observation: expected",
    "ShowsObjects": "observation: expected numbers",
    "PictureOfFloats": "observation: expected whole numbers from 0 to 255",
    "TextSpace": "observation space Text.* is not supported",
    "GraphSpace": "observation space Graph.* is not supported",
    "NoSpace": "observation space None is not supported",
    "WholeActions": "action space Box.* is not supported, expected Discrete",
    "TupleActions": "action space Tuple.* is not supported, expected Discrete",
    "Raises": "raised KeyError: 'velocity'",
    "ExitsInStep": "raised SystemExit: 3",
    "NeedsSize": r"missing 1 required .*'size' .*; write what it needs into \[task\], as kwargs = { size = ... }",
    "NeedsScreen": "No available video device; it needs a screen: start by xvfb-run python -m mlxe_async FILE.toml",
    "OnePort": 'set schedule.kind = "serial", schedule.executors = 1 and evaluation.enabled = false',
    "Nope": f'there is no environment "Nope" in module {HERE}: no gymnasium.Env and no id is called so',
    "Planes": "it has Plain",
}


@pytest.mark.parametrize("name", WORKS)
def test_what_keeps_the_contract_works_without_a_word(name):
    assert probe({"env": f"{HERE}:{name}"})["notes"] == []


@pytest.mark.parametrize("name", TOLD)
def test_what_is_odd_but_harmless_is_told(name):
    notes = probe({"env": f"{HERE}:{name}"})["notes"]
    assert any(_matches(TOLD[name], note) for note in notes), notes


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_learned_from_is_refused_with_what_to_do(name):
    with pytest.raises(TaskError) as refusal:
        probe({"env": f"{HERE}:{name}"})
    assert _matches(REFUSED[name], str(refusal.value)), refusal.value


@pytest.mark.parametrize(
    ("task", "said"),
    [
        (
            {"env": "CartPole-v1", "wrappers": ["gymnasium.wrappers:NormalizeReward"]},
            "task.wrappers: NormalizeReward: returns .* set reward_scaling = true",
        ),
        ({"env": f"{HERE}:NormalisedNewcomer-v0"}, "is made with NormalizeReward: returns"),
        pytest.param({"env": "MiniGrid-Empty-5x5-v0"}, "pip install minigrid", marks=without("minigrid")),
        pytest.param({"env": "highway-fast-v0"}, "pip install highway-env", marks=without("highway_env")),
        ({"env": "CartPole-v7"}, "did you mean CartPole-v"),
        ({"env": "Cartpole-v1"}, "did you mean CartPole-v1"),
        (
            {"env": "no_such_package:Env"},
            r'install it or add its folder to run.python_path: \[run\] python_path = \["."\] means',
        ),
    ],
)
def test_names_and_wrappers_are_answered_with_what_to_write(task, said):
    with pytest.raises(TaskError) as refusal:
        probe(task)
    assert _matches(said, str(refusal.value)), refusal.value


@pytest.mark.parametrize(
    ("wrapper", "said"),
    [
        ("OwnStatistics", "gave another first observation in a second episode, but not in a new environment: a state"),
        ("OwnScaler", "gave another reward at step 1 in a second episode, but not in a new environment: a state"),
        ("Unseeded", "gave another reward at step 1 in a second episode, and in a new environment: it is random"),
    ],
)
def test_what_lives_on_between_episodes_is_told(wrapper, said):
    (note,) = probe({"env": "CartPole-v1", "wrappers": [f"{HERE}:{wrapper}"]})["notes"]
    assert said in note


@pytest.mark.parametrize(
    "name", ["CartPole-v1", "Pendulum-v1", "Acrobot-v1", "FrozenLake-v1", "Taxi-v4", "Blackjack-v1"]
)
def test_what_repeats_itself_by_its_seed_is_not_told(name):
    assert not any("same seed" in note for note in probe({"env": name})["notes"])


@pytest.mark.parametrize(
    ("package", "task"),
    [
        ("minigrid", {"env": "MiniGrid-Empty-5x5-v0", "observe": ["direction", "image"]}),
        ("highway_env", {"env": "highway-fast-v0"}),
    ],
)
@pytest.mark.filterwarnings("ignore::UserWarning")  # minigrid registers some ids twice
def test_ids_of_packages_are_found_without_their_module(package, task):
    if importlib.util.find_spec(package) is None:
        pytest.skip(f"{package} is not installed")
    assert probe(task)["env"] == task["env"]


def test_a_game_of_an_older_name_is_answered_with_the_package_that_has_it(tmp_path):
    """In a process of its own: another test may have imported that package here, which then knows the name."""
    file = tmp_path / "pong.toml"
    file.write_text('[task]\nenv = "PongNoFrameskip-v4"\n[algorithm]\nname = "dqn"\n')
    command = [sys.executable, "-m", "mlxe_async", "--check", str(file)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert done.stderr.endswith(
        'task.env: there is no environment "PongNoFrameskip-v4" (Atari games: pip install "mlxe_async[atari]")\n'
    )


def test_there_are_thirty_of_them():
    assert len(WORKS) + len(TOLD) + len(REFUSED) >= 30


def _matches(pattern, text):
    return re.search(pattern, text)
