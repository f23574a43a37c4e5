"""Videos of tested versions: one for each that is better than all before it, and no test fails for want of one."""

import importlib.util
import sys
import tempfile
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import ClassVar

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

from mlxe_async.errors import TaskError
from mlxe_async.roles.evaluator import Evaluator, Rules
from mlxe_async.roles.videos import Videos, check
from mlxe_async.workers.examiner import Examiner


class Shown(gymnasium.Env):
    """An episode of as many steps as its actions say; a picture shows the step."""

    metadata = {"render_modes": ["rgb_array"], "render_fps": 10}  # noqa: RUF012 - as gymnasium has it
    observation_space = spaces.Box(-1, 1, (1,), np.float32)
    action_space = spaces.Discrete(9)

    def __init__(self, render_mode=None):
        self.render_mode = render_mode

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.count = 0
        return np.zeros(1, np.float32), {}

    def step(self, action):
        self.count += 1
        return np.zeros(1, np.float32), 1.0, self.count >= action, False, {}

    def render(self):
        return np.full((2, 2, 3), self.count, np.uint8)


class Blind(Shown):
    metadata = {"render_modes": []}  # noqa: RUF012 - as gymnasium has it

    def __init__(self):
        super().__init__()


for kind in (Shown, Blind):
    gymnasium.register(f"mlxe/{kind.__name__}-v0", entry_point=kind)
TASK = {"env": "mlxe/Shown-v0"}
RULES = {"episodes": 2, "max_episode_steps": 50}


class Steps:
    """A policy whose one weight is the action that it always takes."""

    def greedy_many(self, flats, obs):
        return np.broadcast_to(flats[:, :1].astype(np.int64), obs.shape[:2])


class Clip:
    broken = False

    def __init__(self, frames, fps):
        self.frames = frames

    def write_videofile(self, path, logger=None):
        if Clip.broken:
            raise OSError("the encoder gave up")
        Path(path).write_text(" ".join(str(frame[0, 0, 0]) for frame in self.frames))


@pytest.fixture
def moviepy(monkeypatch, tmp_path):
    for name in ("moviepy", "moviepy.video", "moviepy.video.io", "moviepy.video.io.ImageSequenceClip"):
        module = ModuleType(name)
        module.__spec__ = importlib.util.spec_from_loader(name, None)
        module.ImageSequenceClip = Clip
        monkeypatch.setitem(sys.modules, name, module)
    monkeypatch.setattr(Clip, "broken", False)
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(temporary))
    yield temporary
    assert list(temporary.iterdir()) == []


def verdicts_on(videos, *lengths, first=1):
    """Verdicts of versions whose episodes have these lengths."""
    evaluator = Evaluator(Steps(), TASK, RULES, videos.judged)
    try:
        for version, length in enumerate(lengths, first):
            evaluator.add(version, np.array([length], np.float32))
        return [verdict for _ in lengths for verdict in evaluator.advance()]
    finally:
        evaluator.close()


def filmed(folder):
    return {path.name: path.read_text() for path in sorted(folder.iterdir())} if folder.exists() else {}


def test_versions_that_are_better_than_all_before_are_filmed_from_the_first_start_of_the_test(moviepy, tmp_path):
    folder = tmp_path / "videos"
    videos = Videos(Steps(), TASK, Rules.from_mapping(RULES), folder)
    verdicts = verdicts_on(videos, 2, 4, 4, 3, 5)
    assert [verdict.return_mean for verdict in verdicts] == [2, 4, 4, 3, 5]
    expected = {
        "version-1-return-2.00.mp4": "0 1 2",
        "version-2-return-4.00.mp4": "0 1 2 3 4",
        "version-5-return-5.00.mp4": "0 1 2 3 4 5",
    }
    assert filmed(folder) == expected
    # A later life knows what was filmed by the names.
    verdicts_on(Videos(Steps(), TASK, Rules.from_mapping(RULES), folder), 4, 6, first=6)
    assert filmed(folder).keys() - expected.keys() == {"version-7-return-6.00.mp4"}
    assert videos.told == []


def test_a_version_is_prepared_once_for_its_film(moviepy, tmp_path):
    class Prepared(Steps):
        seen: ClassVar[list] = []

        def greedy_many(self, flats, obs):
            self.seen.append(flats)
            return super().greedy_many(flats, obs)

    videos = Videos(Prepared(), TASK, Rules.from_mapping(RULES), tmp_path / "videos")
    verdicts_on(videos, 5)
    assert len(Prepared.seen) == 5
    assert all(flats is Prepared.seen[0] for flats in Prepared.seen)


def test_what_cannot_be_filmed_is_told_and_the_test_counts(moviepy, tmp_path, monkeypatch):
    monkeypatch.setattr(Clip, "broken", True)
    videos = Videos(Steps(), TASK, Rules.from_mapping(RULES), tmp_path / "videos")
    assert [verdict.return_mean for verdict in verdicts_on(videos, 3)] == [3]
    (sentence,) = videos.told
    assert sentence == "no video of version 1: the video cannot be written: OSError: the encoder gave up"
    assert filmed(tmp_path / "videos") == {}


def test_the_evaluator_s_answer_tells_each_of_them_once(tmp_path):
    page = SimpleNamespace(enter=lambda limit_s, call: None, leave=lambda: None)
    fake = SimpleNamespace(advance=lambda seconds, tick: [], in_flight=0)
    videos = Videos(Steps(), TASK, Rules(), tmp_path)
    videos.told.append("no video of version 1: why")
    examiner = Examiner(fake, None, 1, page, videos)
    assert examiner.evaluate()["odd"] == ["no video of version 1: why"]
    assert examiner.evaluate()["odd"] == []
    assert Examiner(fake, None, 1, page).evaluate()["odd"] == []


def test_what_cannot_be_filmed_at_all_is_refused_before_the_start(moviepy):
    made = []
    check(TASK, made)
    with pytest.raises(TaskError, match=r"mlxe/Blind-v0.*render_mode|videos need an environment with render_mode"):
        check({"env": "mlxe/Blind-v0"}, made)
    for task in made:
        task.close()


def test_without_the_package_the_extra_is_named_before_the_start(monkeypatch):
    monkeypatch.setitem(sys.modules, "moviepy", None)
    with pytest.raises(TaskError, match=r'moviepy: pip install "mlxe_async\[video\]"'):
        check(TASK, [])
