"""Episodes as video files, through gymnasium's own `RecordVideo`."""

from __future__ import annotations

import importlib.util
import shutil
import tempfile
from pathlib import Path
from typing import Any

import gymnasium
from gymnasium.wrappers import RecordVideo

from mlxe_async.errors import ResourceError, TaskError
from mlxe_async.tasks.hostile import one_line, words_of

EXTRA = 'pip install "mlxe_async[video]"'
OTHER_KINDS = (".avi", ".gif", ".mkv", ".mov", ".mpg", ".ogv", ".webm", ".wmv")
_ENDLESS = 2**62


class Recording:
    """Records one environment. Videos are made in a temporary folder, and moved to their place once they are whole.

    Args:
        path: a file ending in `.mp4`, for all episodes one after the other, or a folder, for one file each. What is
            there under the same names is replaced.
        name: what the names of the files in a folder begin with.

    Raises:
        TaskError: a package is missing, or the file's name ends in another kind of video.
        ResourceError: the temporary folder cannot be made.

    Attributes:
        is_file: whether all episodes go into one file.

    Use it as a context manager: what is not finished when it is left is thrown away.
    """

    def __init__(self, path: str | Path, name: str) -> None:
        if importlib.util.find_spec("moviepy") is None:
            raise TaskError(f"videos need a package that is not installed, moviepy: {EXTRA}")
        self._target, self._name = Path(path), name
        suffix = self._target.suffix.lower()
        self.is_file = suffix == ".mp4"
        if suffix in OTHER_KINDS:
            raise TaskError(f'video: got "{one_line(self._target.name)}", expected a name ending in .mp4, or a folder')
        self._recorder: Any = None  # a RecordVideo, whose methods have no types
        try:
            self._staging = tempfile.TemporaryDirectory(prefix="mlxe-video-")
        except OSError as error:
            raise ResourceError(f"no temporary folder can be made for the video: {error.strerror}") from error

    def wrap(self, env: gymnasium.Env[Any, Any]) -> gymnasium.Env[Any, Any]:
        """The environment, recorded from now on.

        Raises:
            TaskError: it cannot show itself as pictures.
        """
        if env.render_mode != "rgb_array":
            modes = ", ".join(env.metadata.get("render_modes") or ()) or "none"
            raise TaskError(f'videos need an environment with render_mode "rgb_array", this one has {modes}')
        recorder: gymnasium.Env[Any, Any] = RecordVideo(
            env,
            str(Path(self._staging.name) / "videos"),
            episode_trigger=(lambda number: number == 0) if self.is_file else (lambda _number: True),
            video_length=_ENDLESS if self.is_file else 0,  # "endless" goes on over the end of an episode
            name_prefix=self._name,
        )
        self._recorder = recorder
        return recorder

    @property
    def frame_bytes(self) -> int:
        """What one picture takes in memory, where all of one file are kept until it is written; 0 before the first."""
        frames = self._recorder.recorded_frames if self._recorder else []
        return int(getattr(frames[0], "nbytes", 0)) if frames else 0

    def end_episode(self, *, is_last: bool) -> None:
        """Write the video of the episode that has ended, if each has its own; after the last one, move all of them.

        Raises:
            ResourceError: it cannot be written.
        """
        if is_last or not self.is_file:
            self._write()
        if is_last:
            self._move()

    def close(self) -> None:
        """Throw away what is not finished; may be called twice."""
        if self._recorder is not None:
            self._recorder.recording, self._recorder.recorded_frames = False, []
        self._staging.cleanup()

    def __enter__(self) -> Recording:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _move(self) -> None:
        folder = self._target.parent if self.is_file else self._target
        try:
            folder.mkdir(parents=True, exist_ok=True)
            for video in Path(self._staging.name).glob("videos/*.mp4"):
                shutil.move(video, self._target if self.is_file else folder / video.name)
        except OSError as error:
            raise ResourceError(f"the video cannot be saved as {self._target}: {error.strerror or error}") from error

    def _write(self) -> None:
        if self._recorder is None or not self._recorder.recording:
            return
        try:
            self._recorder.stop_recording()
        except Exception as error:  # the encoder is a program of its own: whatever it says, it failed
            raise ResourceError(f"the video cannot be written: {words_of(error)}") from error
