"""Atari games, `ALE/Pong-v5` and its like, as they are usually learned: small, grey, four frames at a time.

Preprocessing as in Mnih et al. 2015 and Machado et al. 2018: each action is repeated for `frame_skip` frames, the last
two of them are merged by their maximum, the picture becomes 84 x 84 grey values, the newest `stack` of these are the
observation (stack, 84, 84) uint8, and an episode begins with up to `noop_max` frames of doing nothing. The same words
configure the wrappers around one game and ale-py's vector of games, which knows only some of them.
"""

from __future__ import annotations

import difflib
import importlib
import math
from collections.abc import Mapping
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

from mlxe_async.errors import TaskError
from mlxe_async.rows import Array
from mlxe_async.settings.task import Atari

NOOP, FIRE = "NOOP", "FIRE"
EXTRA = "mlxe_async[atari]"
NEEDED = ("ale_py", "cv2")


def single_only(settings: Atari) -> str | None:
    """A key that is set to what ale-py's vector of games cannot do, if there is one."""
    asked = {
        "life_loss_ends": settings.life_loss_ends,  # the vector would begin the game anew at each lost life
        "fire": settings.fire,  # the vector presses it at the start of a game only
        "crop": any(settings.crop),
        "colour": settings.colour,
    }
    return next((key for key, is_on in asked.items() if is_on), None)


def provide(env_id: str) -> None:
    """Register the games with gymnasium.

    Raises:
        TaskError: a package is missing; the message names the extra that brings it.
    """
    for name in NEEDED:
        try:
            module = importlib.import_module(name)
        except ImportError as error:
            raise TaskError(
                f'task.env: "{env_id}" needs a package that is not installed: pip install "{EXTRA}" ({error})'
            ) from error
        if name == "ale_py":  # else every process says hello
            module.ALEInterface.setLoggerMode(module.LoggerMode.Error)


def single_kwargs(settings: Atari, kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """Arguments of one game for `gymnasium.make`: frames one by one, the wrappers skip; what is given wins.

    The game itself shows its memory, 128 bytes: wrappers fetch the pictures that they need, which are not all.
    """
    return {"frameskip": 1, "repeat_action_probability": settings.sticky, "obs_type": "ram", **kwargs}


def preprocessed(env: gymnasium.Env[Any, Any], settings: Atari, *, evaluation: bool) -> gymnasium.Env[Any, Any]:
    """One game that shows (stack, height, width) uint8.

    Raises:
        TaskError: the game lacks an action that is named or needed, or its picture is smaller than what is cut off.
    """
    from gymnasium.wrappers import FrameStackObservation, TransformObservation

    screen = Screen(env, settings, life_loss_ends=settings.life_loss_ends and not evaluation)
    stacked = FrameStackObservation(screen, settings.stack, padding_type="zero")
    if not settings.colour:
        return stacked
    shape = (3 * settings.stack, settings.height, settings.width)
    return TransformObservation(stacked, lambda obs: obs.reshape(shape), spaces.Box(0, 255, shape, np.uint8))


def places_of(env: gymnasium.Env[Any, Any], settings: Atari) -> Array:
    """Places (n,) of the actions to choose from among all that a game has.

    Raises:
        TaskError: the game has no action of a name.
    """
    game: Any = env.unwrapped
    meanings = list(game.get_action_meanings())
    for name in settings.actions:
        if name not in meanings:
            near = difflib.get_close_matches(name.upper(), meanings, n=1)
            hint = f'; did you mean "{near[0]}"?' if near else ""
            has = ", ".join(f'"{meaning}"' for meaning in meanings)
            raise TaskError(f'task.atari.actions: got "{name}", expected some of {has}, which {_id(env)} has{hint}')
    return np.array([meanings.index(name) for name in settings.actions or meanings], np.int64)


def _id(env: gymnasium.Env[Any, Any]) -> str:
    spec = env.unwrapped.spec
    return "the game" if spec is None else spec.id


def _surely(sticky: float) -> int:
    """Frames of which one takes its action but for a chance of a millionth."""
    return math.ceil(math.log(1e-6) / math.log(sticky)) if sticky else 1


class Screen(gymnasium.Wrapper[Any, Any, Any, Any]):
    """One game, a frame at a time, as `[task.atari]` says, without the stack of pictures.

    Args:
        env: the game with a frame skip of 1.
        settings: how it is shown.
        life_loss_ends: whether a lost life ends the episode.

    Raises:
        TaskError: see `preprocessed`.
    """

    def __init__(self, env: gymnasium.Env[Any, Any], settings: Atari, *, life_loss_ends: bool) -> None:
        super().__init__(env)
        game: Any = env.unwrapped
        meanings, name = list(game.get_action_meanings()), _id(env)
        self._ale, self._settings, self._life_loss_ends = game.ale, settings, life_loss_ends
        self._start: Any = None
        self._chosen: list[int] = places_of(env, settings).tolist()
        for needed, key in ((FIRE, settings.fire and "fire"), (NOOP, settings.noop_max > 0 and "noop_max")):
            if key and needed not in meanings:
                raise TaskError(f"task.atari.{key}: {name} has no action {needed}; take it out, or set noop_max = 0")
        self._noop, self._fire = (meanings.index(word) if word in meanings else 0 for word in (NOOP, FIRE))
        rows, columns = self._ale.getScreenDims()
        top, bottom, left, right = settings.crop
        if top + bottom >= rows or left + right >= columns:
            raise TaskError(
                f"task.atari.crop: got {list(settings.crop)}, expected to leave something of the {rows} x {columns} "
                f"pixels of {name}"
            )
        self._part = slice(top, rows - bottom), slice(left, columns - right)
        shape = (rows, columns, 3) if settings.colour else (rows, columns)
        self._frames = np.zeros((2, *shape), np.uint8)
        self._lives, self._goes_on = 0, False
        self.action_space = spaces.Discrete(len(self._chosen))
        size = (settings.height, settings.width)
        self.observation_space = spaces.Box(0, 255, (3, *size) if settings.colour else size, np.uint8)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Begin a game; or, where the last episode ended by a lost life, go on with the same one."""
        info: dict[str, Any] = {} if self._goes_on else self._begun(seed, options)
        self._goes_on = False
        if self._settings.fire:
            _, terminated, truncated, info = self._served()
            if terminated or truncated:  # it went on with a game that ended just then
                self._begun(seed, options)
                *_, info = self._served()
        self._lives = self._ale.lives()
        self._look(0)
        self._frames[1] = self._frames[0]
        return self._picture(), info

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """Repeat an action for `frame_skip` frames, or until the episode ends; then FIRE, where a life was lost."""
        total, terminated, truncated, info = self._repeated(self._chosen[action])
        lives = self._ale.lives()
        is_lost, self._lives = lives < self._lives, lives
        if is_lost and not (terminated or truncated):
            if self._life_loss_ends:
                terminated = self._goes_on = True
            elif self._settings.fire:
                more, terminated, truncated, info = self._served()
                total += more
        return self._picture(), total, terminated, truncated, info

    def _served(self) -> tuple[float, bool, bool, dict[str, Any]]:
        """FIRE for one step; for longer where frames may repeat the last action, so that one surely takes it."""
        return self._repeated(self._fire, max(self._settings.frame_skip, _surely(self._settings.sticky)))

    def _repeated(self, action: int, frames: int = 0) -> tuple[float, bool, bool, dict[str, Any]]:
        """Sum of rewards, the end and the info of some frames with one action; the last two are looked at."""
        skip, total = frames or self._settings.frame_skip, 0.0
        for frame in range(skip):
            _, reward, terminated, truncated, info = self.env.step(action)
            total += float(reward)
            is_over = terminated or truncated
            if frame >= skip - 2 or is_over:
                self._look(frame % 2 if self._settings.frame_skip > 1 else 0)
            if is_over:
                if frame < skip - 1:  # the other one is of the step before
                    self._frames[(frame + 1) % 2] = self._frames[frame % 2]
                break
        return total, terminated, truncated, info

    def _begun(self, seed: int | None, options: dict[str, Any] | None) -> dict[str, Any]:
        """A new game, up to `noop_max` frames of doing nothing after its start."""
        info = self._started(seed, options)
        most = self._settings.noop_max
        for _ in range(int(self.env.unwrapped.np_random.integers(1, most + 1)) if most else 0):
            *_, terminated, truncated, about = self.env.step(self._noop)
            info.update(about)
            if terminated or truncated:
                info = self._started(seed, options)
        return info

    def _started(self, seed: int | None, options: dict[str, Any] | None) -> dict[str, Any]:
        """Begin a game as `reset` of the inner one does, which with a seed loads the cartridge anew: 100 ms each time.

        What a game does follows from its first state, but for actions that are repeated by chance: where there are
        none, a state that was kept takes the cartridge's place.
        """
        game: Any = self.env.unwrapped
        if seed is None or self._start is None:
            _, info = self.env.reset(seed=seed, options=options)
            if seed is not None and not self._ale.getFloat("repeat_action_probability"):
                self._start = self._ale.cloneState()
            return info
        _, info = self.env.reset(options=options)
        game.seed_game(seed)
        self._ale.restoreState(self._start)
        return info

    def _look(self, place: int) -> None:
        (self._ale.getScreenRGB if self._settings.colour else self._ale.getScreenGrayscale)(self._frames[place])

    def _picture(self) -> Array:
        import cv2

        frames, settings = self._frames, self._settings
        merged = np.maximum(frames[0], frames[1]) if settings.frame_skip > 1 else frames[0]
        small = cv2.resize(merged[self._part], (settings.width, settings.height), interpolation=cv2.INTER_AREA)
        return np.ascontiguousarray(np.moveaxis(small, -1, 0)) if settings.colour else np.asarray(small)


def common_kwargs(settings: Atari) -> dict[str, Any]:
    """Arguments that ale-py's vector and EnvPool call alike; no button is pressed at the start."""
    return {
        "stack_num": settings.stack,
        "img_height": settings.height,
        "img_width": settings.width,
        "noop_max": settings.noop_max,
        "repeat_action_probability": settings.sticky,
        "episodic_life": False,
        "use_fire_reset": False,
    }


def vector_kwargs(settings: Atari, kwargs: Mapping[str, Any], max_episode_steps: int | None) -> dict[str, Any]:
    """Arguments of ale-py's `AtariVectorEnv`; rewards as they are, one thread, no button pressed at the start."""
    said = common_kwargs(settings) | {"frameskip": settings.frame_skip, "reward_clipping": False, "num_threads": 1}
    if max_episode_steps is not None:
        said["max_num_frames_per_episode"] = max_episode_steps * settings.frame_skip
    return {**said, **kwargs}
