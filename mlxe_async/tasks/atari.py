"""Atari games, `ALE/Pong-v5` and its like, as they are usually learned: small, grey, four frames at a time.

Preprocessing as in Mnih et al. 2015 and Machado et al. 2018: each action is repeated for `frame_skip` frames, the last
two of them are merged by their maximum, the picture becomes 84 x 84 grey values, the newest `stack` of these are the
observation (stack, 84, 84) uint8, and an episode begins with up to `noop_max` frames of doing nothing. No button is
pressed to start a game. The same words configure gymnasium's wrappers around one game and ale-py's vector of games.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import gymnasium

from mlxe_async.errors import TaskError

NAMESPACE = "ALE/"
SIDE = 84
EXTRA = "mlxe_async[atari]"
NEEDED = ("ale_py", "cv2")


@dataclass(frozen=True)
class AtariSettings:
    """The `[task.atari]` table.

    Args:
        preprocess: false leaves the game as its id registers it, for wrappers of your own.
        frame_skip: frames for which an action is repeated.
        stack: pictures in one observation.
        noop_max: most frames without action at the start of an episode, drawn anew each time.
        sticky: chance that a frame repeats the last action instead of the chosen one.
        life_loss_ends: in training a lost life ends the episode; tests always play on.
    """

    preprocess: bool = True
    frame_skip: int = 4
    stack: int = 4
    noop_max: int = 30
    sticky: float = 0.0
    life_loss_ends: bool = False


def is_atari(env_id: str) -> bool:
    """Whether an id is one of the Arcade Learning Environment's."""
    return env_id.startswith(NAMESPACE)


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


def single_kwargs(settings: AtariSettings, kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """Arguments of one game for `gymnasium.make`: frames one by one, the wrappers skip; what is given wins."""
    return {"frameskip": 1, "repeat_action_probability": settings.sticky, **kwargs}


def preprocessed(env: gymnasium.Env[Any, Any], settings: AtariSettings, *, evaluation: bool) -> gymnasium.Env[Any, Any]:
    """One game that shows (stack, 84, 84) uint8."""
    from gymnasium.wrappers import AtariPreprocessing, FrameStackObservation

    env = AtariPreprocessing(
        env,
        noop_max=settings.noop_max,
        frame_skip=settings.frame_skip,
        screen_size=SIDE,
        terminal_on_life_loss=settings.life_loss_ends and not evaluation,
    )
    return FrameStackObservation(env, settings.stack, padding_type="zero")


def vector_kwargs(settings: AtariSettings, kwargs: Mapping[str, Any], max_episode_steps: int | None) -> dict[str, Any]:
    """Arguments of ale-py's `AtariVectorEnv`; rewards as they are, one thread, no button pressed at the start."""
    said: dict[str, Any] = {
        "frameskip": settings.frame_skip,
        "stack_num": settings.stack,
        "img_height": SIDE,
        "img_width": SIDE,
        "noop_max": settings.noop_max,
        "repeat_action_probability": settings.sticky,
        "episodic_life": settings.life_loss_ends,
        "reward_clipping": False,
        "use_fire_reset": False,
        "num_threads": 1,
    }
    if max_episode_steps is not None:
        said["max_num_frames_per_episode"] = max_episode_steps * settings.frame_skip
    return {**said, **kwargs}
