"""`play` and `eval`: what is played and tested, and videos, without a run: a policy is settings, spaces and weights."""

import importlib.util
import json
import sys
import tempfile
from pathlib import Path
from types import ModuleType

import gymnasium
import numpy as np
import pytest

from mlxe_async import policy as policies
from mlxe_async.algorithms import load_algorithm
from mlxe_async.cli import main
from mlxe_async.errors import EnvironmentFault, ResourceError, RunFailed, TaskError
from mlxe_async.rows import Spaces
from mlxe_async.settings import load_settings

HERE = str(Path(__file__).parent)
ALGORITHM = {"name": "mlxe", "common": [8]}


def policy_for(env, observations=1, actions=2, **tables):
    tables = {"task": {"env": env}, "algorithm": ALGORITHM, "run": {"name": "x"}, **tables}
    spaces = Spaces(observation_shape=(observations,), actions=actions)
    kind = load_algorithm("mlxe")
    made = kind(kind.Settings(common=[8]), spaces, seed=0, learns=False)
    size = sum(int(np.prod(shape)) for _, shape in made.parameters)
    flat = np.random.default_rng(5).normal(0, 0.5, size)
    return policies.Policy(load_settings(tables), spaces, flat, 7)


@pytest.fixture
def cartpole(monkeypatch):
    """Loading any run gives this policy; `asked` holds what was asked for."""
    policy, asked = (
        policy_for("CartPole-v1", 4, evaluation={"rule": "cap", "max_episode_steps": 300, "screen_steps": 50}),
        [],
    )
    monkeypatch.setattr(
        policies, "load_policy", lambda run, checkpoint, trust, tell: asked.append((run, checkpoint)) or policy
    )
    return policy, asked


class Clip:
    """moviepy's clip: writes one line for each picture."""

    broken = False

    def __init__(self, frames, fps):
        self.frames, self.fps = frames, fps

    def write_videofile(self, path, logger=None):
        Path(path).write_text("".join(f"{frame[0, 0, 0]} " for frame in self.frames) + f"at {self.fps}")
        if Clip.broken:
            raise OSError("MoviePy error: the encoder gave up")


@pytest.fixture
def moviepy(monkeypatch, tmp_path):
    """A stub of moviepy, and a temporary folder in which everything that is left behind is seen."""
    for name in ("moviepy", "moviepy.video", "moviepy.video.io", "moviepy.video.io.ImageSequenceClip"):
        module = ModuleType(name)
        module.__spec__ = importlib.util.spec_from_loader(name, None)
        module.ImageSequenceClip = Clip
        monkeypatch.setitem(sys.modules, name, module)
    monkeypatch.setattr(Clip, "broken", False)
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(temporary))
    monkeypatch.syspath_prepend(HERE)
    return temporary


def test_a_file_shows_all_episodes_one_after_the_other(moviepy, tmp_path):
    target = tmp_path / "new" / "all.MP4"
    played = list(policy_for("recorded_tasks:Pictured").play(2, video=target))
    assert [episode.steps for episode in played] == [3, 3]
    assert target.read_text() == "0 1 2 3 0 1 2 3 at 10"
    assert list(moviepy.iterdir()) == []
    list(policy_for("recorded_tasks:Pictured").play(1, video=target, max_episode_steps=2))
    assert target.read_text() == "0 1 2 at 10"
    assert [path.name for path in target.parent.iterdir()] == ["all.MP4"]


def test_a_folder_gets_a_file_for_each_episode_and_keeps_what_is_there(moviepy, tmp_path):
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "mine.txt").write_text("mine")
    list(policy_for("recorded_tasks:Pictured").play(2, video=tmp_path / "folder"))
    made = {path.name: path.read_text() for path in (tmp_path / "folder").iterdir()}
    assert made == {
        "mine.txt": "mine",
        "x-version-7-episode-0.mp4": "0 1 2 3 at 10",
        "x-version-7-episode-1.mp4": "0 1 2 3 at 10",
    }
    assert list(moviepy.iterdir()) == []


@pytest.mark.parametrize("name", ["all.mp4", "folder"])
def test_what_is_given_up_halfway_leaves_nothing(moviepy, tmp_path, name):
    playing = policy_for("recorded_tasks:Pictured").play(3, video=tmp_path / name)
    next(playing)
    assert list(moviepy.iterdir())
    playing.close()
    assert [path.name for path in tmp_path.iterdir()] == ["temporary"]
    assert list(moviepy.iterdir()) == []


@pytest.mark.parametrize("name", ["all.mp4", "folder"])
def test_an_encoder_that_fails_is_told_and_leaves_nothing(moviepy, tmp_path, name, monkeypatch):
    monkeypatch.setattr(Clip, "broken", True)
    with pytest.raises(ResourceError, match="the video cannot be written: OSError: MoviePy error: the encoder gave up"):
        list(policy_for("recorded_tasks:Pictured").play(2, video=tmp_path / name))
    assert [path.name for path in tmp_path.iterdir()] == ["temporary"]
    assert list(moviepy.iterdir()) == []


def test_a_place_where_nothing_can_be_saved_is_told(moviepy, tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(ResourceError, match=r"the video cannot be saved as .*file/all\.mp4: "):
        list(policy_for("recorded_tasks:Pictured").play(1, video=tmp_path / "file" / "all.mp4"))
    assert list(moviepy.iterdir()) == []


def test_other_kinds_of_video_are_refused_rather_than_taken_for_a_folder(moviepy, tmp_path):
    with pytest.raises(TaskError, match=r'video: got "x\.gif", expected a name ending in \.mp4, or a folder'):
        list(policy_for("recorded_tasks:Pictured").play(1, video=tmp_path / "x.gif"))
    assert [path.name for path in tmp_path.iterdir()] == ["temporary"]


def test_pictures_that_do_not_fit_into_memory_are_refused_before_they_are_made(moviepy, tmp_path):
    with pytest.raises(ResourceError, match=r"the pictures of the video may take [\d.]+ GiB, half of the [\d.]+ GiB"):
        list(policy_for("recorded_tasks:Huge").play(1, video=tmp_path / "all.mp4"))


def test_without_moviepy_a_video_is_refused_by_the_name_of_the_extra(monkeypatch, capsys, cartpole, tmp_path):
    monkeypatch.setitem(sys.modules, "moviepy", None)
    assert main(["play", "x", "--video", str(tmp_path / "a.mp4")]) == 2
    last = capsys.readouterr().err.splitlines()[-1]
    assert last == 'videos need a package that is not installed, moviepy: pip install "mlxe_async[video]"'
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("how", [{"video": "a.mp4"}, {"render_mode": "rgb_array"}])
def test_without_the_environments_own_package_the_extra_is_named_too(moviepy, tmp_path, how, monkeypatch):
    monkeypatch.chdir(tmp_path)
    policy = policy_for("recorded_tasks:Lacking")
    if "video" not in how:
        assert [episode.steps for episode in policy.play(1, **how)] == [3]  # nothing is drawn unless it is asked for
        return
    with pytest.raises(TaskError) as told:
        list(policy.play(1, **how))
    assert str(told.value) == (
        'rendering recorded_tasks:Lacking needs a package that is not installed: pip install "mlxe_async[video]" '
        '(pygame is not installed, run `pip install "gymnasium[classic-control]"`)'
    )
    assert [path.name for path in tmp_path.iterdir()] == ["temporary"]


def test_an_environment_without_pictures_is_told(moviepy, tmp_path):
    with pytest.raises(TaskError, match='recorded_tasks:Unpictured has no render_mode "rgb_array"'):
        list(policy_for("recorded_tasks:Unpictured").play(1, video=tmp_path / "a.mp4"))
    assert list(moviepy.iterdir()) == []


def test_faults_of_the_environment_stay_its_own(moviepy, tmp_path, monkeypatch):
    import recorded_tasks

    monkeypatch.setattr(recorded_tasks.Pictured, "step", lambda self, action: 1 / 0)
    with pytest.raises(EnvironmentFault, match="ZeroDivisionError"):
        list(policy_for("recorded_tasks:Pictured").play(1, video=tmp_path / "a.mp4"))
    assert [path.name for path in tmp_path.iterdir()] == ["temporary"]
    assert list(moviepy.iterdir()) == []


@pytest.mark.skipif(
    not (importlib.util.find_spec("moviepy") and importlib.util.find_spec("pygame")),
    reason="needs the extra: video",
)
def test_a_real_video_of_fifty_steps(tmp_path, monkeypatch):
    import imageio_ffmpeg

    monkeypatch.setenv("SDL_VIDEODRIVER", "dummy")
    policy = policy_for("MountainCar-v0", 2)
    (episode,) = policy.play(1, video=tmp_path / "a.mp4", max_episode_steps=50)
    frames, _ = imageio_ffmpeg.count_frames_and_secs(str(tmp_path / "a.mp4"))
    assert (episode.steps, frames) == (50, 51)


def test_play_tells_each_episode_and_takes_the_checkpoint_that_was_asked_for(cartpole, capsys):
    _, asked = cartpole
    for which in ("best", "last", "solved", "12"):
        assert main(["play", "x", "--checkpoint", which, "--max-steps", "3", "--episodes", "2"]) == 0
    assert asked == [("x", "best"), ("x", "last"), ("x", "solved"), ("x", 12)]
    out = capsys.readouterr().out
    assert out.startswith("version 7\nepisode 1: return 3.0 in 3 steps, truncated\nepisode 2: return 3.0 in 3 ")


def test_sampled_episodes_differ_with_the_seed_and_from_the_greedy_one(cartpole, capsys):
    outs = []
    for arguments in ([], ["--sampled"], ["--sampled"], ["--sampled", "--seed", "1"]):
        assert main(["play", "x", "--episodes", "3", *arguments]) == 0
        outs.append(capsys.readouterr().out)
    assert outs[1] == outs[2]
    assert len(set(outs)) == 3


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--render", "--video", "a.mp4"], "play: got --render and --video, expected one of them"),
        (["--episodes", "0"], "--episodes: got 0, expected: "),
        (["--max-steps", "-1"], "--max-steps: got -1, expected: "),
        (["--seed", "-1"], "--seed: got -1, expected: "),
        (["--checkpoint", "bst"], 'argument --checkpoint: got "bst", expected: '),
    ],
)
def test_mistakes_of_play_are_told_in_one_line(cartpole, capsys, arguments, said):
    assert main(["play", "x", *arguments]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(said)


def test_eval_tests_from_adverse_starts_and_with_sampled_actions(cartpole, capsys):
    lines = []
    for arguments in ([], ["--starts", "adverse"], ["--sampled"], ["--starts", "adverse", "--sampled"]):
        assert main(["eval", "x", "--checkpoint", "best", *arguments]) == 0
        lines.append(capsys.readouterr().out.rpartition(",")[0])
    assert "failed at step" in lines[0]
    assert " from adverse starts: 20 episodes" in lines[1]
    assert " with sampled actions: 20 episodes" in lines[2]
    assert " from adverse starts with sampled actions: 20 episodes" in lines[3]
    assert len({line.rpartition("return min")[2] for line in lines}) > 1


def test_eval_tells_how_often_the_action_changes(cartpole, capsys):
    policy, _ = cartpole
    line = evaluated(capsys, "--behaviour").splitlines()[-1]
    found = json.loads(evaluated(capsys, "--behaviour", "--json", "--episodes", "3"))["behaviour"]
    assert line.startswith("actions: changed at ")
    seeds = policies.Rules.from_mapping(policy.settings.evaluation.model_dump()).seeds[:3]
    env, runs, changes, steps = gymnasium.make("CartPole-v1", max_episode_steps=300), 0, 0, 0
    for seed in seeds:  # played by hand
        obs, before, over = env.reset(seed=seed)[0], None, False
        while not over:
            action = int(policy.act(obs))
            changes += before is not None and action != before
            runs, steps, before = runs + (action != before), steps + 1, action
            obs, _, terminated, truncated, _ = env.step(action)
            over = terminated or truncated
    assert 0 < changes < steps - 3
    assert (found["episodes"], found["steps"], found["changes"]) == (3, steps, changes)
    assert found["switching_rate"] == pytest.approx(changes / (steps - 3))
    assert found["mean_run_length"] == pytest.approx(steps / runs)
    assert found["mean_squared_change"] is None


def test_continuous_actions_are_measured_as_the_environment_is_given_them(monkeypatch):
    spaces = Spaces((3,), action_shape=(1,), action_low=(-2.0,), action_high=(2.0,))
    kind = load_algorithm("td3")
    made = kind(kind.Settings(), spaces, seed=0, learns=False)
    flat = np.zeros(sum(int(np.prod(shape)) for _, shape in made.parameters))
    tables = {"task": {"env": "Pendulum-v1"}, "evaluation": {"episodes": 2, "max_episode_steps": 4}}
    policy = policies.Policy(load_settings({**tables, "algorithm": {"name": "td3"}}), spaces, flat, 1)
    turns = iter([-9.0, 9.0, 1.0, 1.0])
    monkeypatch.setattr(policy.algorithm, "greedy", lambda obs: np.full((len(obs), 1), next(turns), np.float32))
    found = policy.switching()
    # From -2 to 2, to 1, to 1: 16, 1 and 0.
    assert (found.episodes, found.steps, found.changes) == (2, 8, 4)
    assert found.mean_squared_change == pytest.approx(17 / 3)


def test_eval_refuses_behaviour_from_adverse_starts(cartpole, capsys):
    assert main(["eval", "x", "--behaviour", "--starts", "adverse"]) == 2
    assert capsys.readouterr().err.startswith("eval: got --behaviour and --starts adverse, expected one of them")


def evaluated(capsys, *arguments):
    assert main(["eval", "x", *arguments]) == 0
    return capsys.readouterr().out


def test_eval_of_many_episodes_plays_all_to_their_end_and_tells_how_sure_the_mean_is(cartpole, capsys):
    policy, _ = cartpole
    policy.checkpoint, policy.path = 3, Path("runs/x/checkpoints/3")
    found = json.loads(evaluated(capsys, "--episodes", "45", "--json"))
    returns = np.array(found["returns"])
    assert (found["checkpoint"], found["version"], found["path"]) == (3, 7, "runs/x/checkpoints/3")
    assert (found["episodes"], len(returns), found["steps"]) == (45, 45, returns.sum())
    assert found["mean"] == pytest.approx(returns.mean())
    assert found["deviation"] == pytest.approx(returns.std(ddof=1))
    low, high = found["interval"]
    half = 1.96 * found["deviation"] / 45**0.5  # of a normal distribution
    assert low == pytest.approx(found["mean"] - half, abs=half / 3)
    assert high == pytest.approx(found["mean"] + half, abs=half / 3)
    assert (found["min"], found["max"]) == (returns.min(), returns.max())
    assert found["min"] < found["max"] <= 300
    assert (found["rule"], found["passed"], found["failed_at"]) == ("cap", False, returns.min())
    alone = [episode.episode_return for episode in policy.play(1)]
    fewer = json.loads(evaluated(capsys, "--json"))
    assert fewer["returns"] == found["returns"][:20]
    assert fewer["returns"] != alone
    first, said = evaluated(capsys, "--episodes", "45").splitlines()
    assert first == "checkpoint 3, version 7: runs/x/checkpoints/3"
    assert (
        f" mean {found['mean']:,.1f} deviation {found['deviation']:,.1f} interval {low:,.1f} to {high:,.1f}, " in said
    )
    one = json.loads(evaluated(capsys, "--episodes", "1", "--json"))
    assert (one["deviation"], one["interval"], one["mean"]) == (None, None, found["returns"][0])


def test_a_test_of_many_episodes_is_judged_by_the_rule_of_the_settings(cartpole):
    policy, _ = cartpole
    with pytest.raises(ValueError, match="expected at least 1 episode, got 0"):
        policy.test(episodes=0)
    short = policy.test(episodes=45)
    full = policy.test(episodes=45, in_full=True)
    assert (short.passed, short.episodes, short.returns) == (False, 20, ())  # nothing is to be gained by the others
    assert (full.passed, full.episodes, full.failed_at) == (False, 45, min(full.returns))
    for threshold, passed in ((full.return_mean - 0.01, True), (full.return_mean + 0.01, False)):
        rules = policy.settings.evaluation.model_copy(update={"rule": "mean_return", "threshold": threshold})
        policy.settings = policy.settings.model_copy(update={"evaluation": rules})
        assert policy.test(episodes=45).passed is passed


def test_in_other_environments_episodes_in_full_run_to_their_end_too(monkeypatch):
    policy = policy_for("Acrobot-v1", 6, 3, evaluation={"rule": "cap", "max_episode_steps": 40, "episodes": 2})
    monkeypatch.setattr(policies, "MOST_AT_ONCE", 2)
    found = policy.test(episodes=5, in_full=True)
    assert (found.passed, found.steps, found.returns) == (True, 200, (-40.0,) * 5)


def test_adverse_tests_have_twenty_restarts_whatever_the_settings_say(cartpole):
    policy, _ = cartpole
    policy.settings = policy.settings.model_copy(
        update={"evaluation": policy.settings.evaluation.model_copy(update={"episodes": 3})}
    )
    assert policy.test().episodes == 3
    assert policy.test(starts="adverse").episodes == 20


def test_a_run_made_with_settings_that_are_no_more_is_told_in_a_sentence(monkeypatch):
    from mlxe_async.errors import RunFailed

    settings = load_settings({"task": {"env": "CartPole-v1"}, "algorithm": {"name": "mlxe", "gone": 1, "common": "x"}})
    with pytest.raises(RunFailed, match=r"settings that mlxe no longer takes: algorithm\.gone, algorithm\.common$"):
        policies.Policy(settings, Spaces(observation_shape=(4,), actions=2), np.zeros(3), 1)


def test_features_that_the_environment_declares_are_added(monkeypatch):
    monkeypatch.syspath_prepend(HERE)
    policy = policy_for("recorded_tasks:Featured", 3, task={"env": "recorded_tasks:Featured", "features": True})
    one, several = policy.act([0.5]), policy.act([[0.5], [-2.0]])
    assert several[0] == one == policy.act([0.5, 0.25, 1.0])
    assert several[1] == policy.act([-2.0, 4.0, 1.0])
    with pytest.raises(ValueError, match="expected observations of shape"):
        policy.act([0.5, 0.25])


def test_a_damaged_checkpoint_is_told_whichever_takes_its_place(tmp_path, monkeypatch, capsys):
    from mlxe_async.settings import dump_settings

    policy = policy_for("CartPole-v1", 4)
    (tmp_path / "checkpoints").mkdir()
    (tmp_path / "settings.toml").write_text(dump_settings(policy.settings))
    facts = {"parameters": [["w", [policy.flat.size]]], "spaces": policy.spaces.to_json()}

    def load(folder, which, note, judge, foresee):
        if which == "solved":
            note(7, "its checksum differs")
            raise RunFailed("none of the kind")
        return {"w": policy.flat}, {**facts, "number": 9, "version": 12}

    monkeypatch.setattr(policies.checkpoints, "load", load)
    with pytest.warns(UserWarning, match="checkpoint 7 is damaged: its checksum differs"):
        loaded = policies.load_policy(tmp_path)
    assert (loaded.version, loaded.checkpoint, loaded.path) == (12, 9, tmp_path / "checkpoints" / "9")
    assert main(["play", str(tmp_path), "--max-steps", "3"]) == 0
    told = capsys.readouterr()
    assert "checkpoint 9, version 12, is used instead" in told.err
    assert told.out.splitlines()[0] == f"checkpoint 9, version 12: {tmp_path / 'checkpoints' / '9'}"


def test_an_episode_that_the_video_cuts_is_told_with_the_option_that_goes_on(moviepy, monkeypatch, capsys, tmp_path):
    policy = policy_for("recorded_tasks:Pictured")
    monkeypatch.setattr(policies, "load_policy", lambda run, checkpoint, trust, tell: policy)
    monkeypatch.setattr(policies, "VIDEO_STEPS", 2)
    file = str(tmp_path / "a.mp4")
    assert main(["play", "x", "--video", file]) == 0
    assert "in 2 steps, cut after 2 steps, as videos are; --max-steps N records more" in capsys.readouterr().out
    assert main(["play", "x", "--video", file, "--max-steps", "2"]) == 0
    assert "in 2 steps, truncated\n" in capsys.readouterr().out
    assert main(["play", "x", "--video", file, "--max-steps", "9"]) == 0
    assert "in 3 steps, terminated\n" in capsys.readouterr().out
