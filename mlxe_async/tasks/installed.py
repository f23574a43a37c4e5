"""Which installed package registers an environment's id: by the id's form, else by what packages' files say.

An id such as "MiniGrid-Empty-5x5-v0" is in gymnasium's registry only once the package that registers it is imported.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import importlib.metadata
import importlib.util
import re
import warnings
from typing import Any

import gymnasium

from mlxe_async.errors import TaskError, raised_at
from mlxe_async.settings.task import ATARI
from mlxe_async.tasks import atari
from mlxe_async.tasks.hostile import words_of

MINATAR = "MinAtar/"
EXTRAS = {
    "box2d": "mlxe_async[box2d]",
    "ale_py": atari.EXTRA,
    "ale": atari.EXTRA,
    "opencv": atari.EXTRA,
    "mujoco": "mlxe_async[mujoco]",
    "pygame": "gymnasium[classic-control]",
    "jax": "gymnasium[jax]",
    "minigrid": "minigrid",
    "minatar": "mlxe_async[minatar]",
}
"""Module, or namespace of ids, that an extra or a package brings."""

_PACKAGES = {
    r"(MiniGrid|BabyAI)-": ("minigrid", "minigrid"),
    r"(highway|merge|roundabout|parking|intersection|racetrack|exit|two-way|lane-keeping|u-turn)(-[A-Za-z-]+)?-v\d": (
        "highway_env",
        "highway-env",
    ),
    r"(Fetch|Hand|Ant_|Point_|PointMaze|AntMaze|Adroit|FrankaKitchen)": ("gymnasium_robotics", "gymnasium-robotics"),
    r"(Meta-World|reach-v|push-v)": ("metaworld", "metaworld"),
    r"(flappy|FlappyBird)": ("flappy_bird_gymnasium", "flappy-bird-gymnasium"),
    r"popgym-": ("popgym", "popgym"),
    r"Panda(Reach|Push|Slide|PickAndPlace|Stack|Flip)": ("panda_gym", "panda-gym"),
    r"(forex|stocks)-v\d": ("gym_anytrading", "gym-anytrading"),
    r"(mo|deep-sea-treasure|resource-gathering|fishwood|breakable-bottles|fruit-tree|minecart)-": (
        "mo_gymnasium",
        "mo-gymnasium",
    ),
    r"MiniWorld-": ("miniworld", "miniworld"),
    r"Vizdoom": ("vizdoom.gymnasium_wrapper", "vizdoom"),
    r"NetHack": ("nle", "nle"),
    r"SimpleGrid": ("gym_simplegrid", "gym-simplegrid"),
    r"tetris_gymnasium/": ("tetris_gymnasium.envs", "tetris-gymnasium"),
    r"bsuite/": ("shimmy", "shimmy bsuite"),
    r"dm_control/": ("shimmy", "shimmy dm-control"),
}
"""Form of an id -> module that registers ids of this form when it is imported, and what brings it."""

_OF_OLD_GYM = {
    r"Crafter(No)?Reward-": ("crafter", "crafter"),
    r"SuperMarioBros": ("gym_super_mario_bros", "gym-super-mario-bros"),
    r"(Push|Two)?Sokoban|Boxoban": ("gym_sokoban", "gym-sokoban"),
    r"procgen-": ("procgen", "procgen"),
}
"""Form of an id -> module and package that register it with gym, whose environments are others."""

_NONE_OF_THEIR_OWN = ("gymnasium", "mlxe_async", "mlxe-async")
_MOST_FILES = 4000
"Files of packages that are looked through for an id that no form tells."


def register(env_id: str, name: str) -> None:
    """Import what registers an id, where that is known and installed; afterwards the registry has it, or nothing has.

    Args:
        env_id: as the user wrote it, for messages.
        name: the id itself.

    Raises:
        TaskError: the package is known and not installed, cannot be imported, or registers with gym of old.
    """
    if name.startswith(ATARI):
        atari.provide(name)
    elif name.startswith(MINATAR):
        imported("task.env", env_id, "minatar.gym").register_envs()  # importing it alone registers nothing
    elif found := _of_form(_PACKAGES, name):
        module, package = found
        if not _is_there(module):
            raise TaskError(f'task.env: "{env_id}" needs a package that is not installed: pip install {package}')
        _register(env_id, module)
    elif found := _of_form(_OF_OLD_GYM, name):
        raise TaskError(
            f'task.env: "{env_id}" is an environment of gym, not of gymnasium: its reset and step answer otherwise; '
            f'wrap what {found[1]} makes in a gymnasium.Env of your own and name that, "my_task:Mine"'
        )
    else:
        for module in _mentioning(name):
            with contextlib.suppress(TaskError), warnings.catch_warnings():
                warnings.simplefilter("ignore")
                _register(env_id, module)
            if name in gymnasium.registry:
                return


def may_register(name: str) -> bool:
    """Tell if something that is not imported yet may register an id; nothing is imported for it."""
    known = name.startswith((ATARI, MINATAR)) or _of_form(_PACKAGES, name) or _of_form(_OF_OLD_GYM, name)
    return bool(known or _mentioning(name))


def register_installed() -> None:
    """Register the ids of all packages that `register` knows and that are installed; one that is broken has none."""
    for module in sorted({"ale_py", "minatar", *(module for module, _ in _PACKAGES.values())}):
        if not _is_there(module):
            continue
        with contextlib.suppress(TaskError), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            if module == "ale_py":
                atari.provide(ATARI)
            elif module == "minatar":
                imported("task.env", MINATAR, "minatar.gym").register_envs()
            else:
                _register(module, module)


def imported(key: str, entry: str, name: str) -> Any:
    """A module that the settings name.

    Raises:
        TaskError: it cannot be imported, with the place and what to install.
    """
    try:
        return importlib.import_module(name)
    except BaseException as error:
        why = missing(entry, error) if isinstance(error, ImportError) else f"{entry}: importing it {ended(error)}"
        place = f" ({at})" if (at := raised_at(error)) else ""
        raise TaskError(f"{key}: {why}{place}{without_display(words_of(error))}") from error


def without_display(told: str) -> str:
    """Say what to do where an error tells that there is no screen, as the end of a sentence; else nothing."""
    if not re.search(
        r"NoSuchDisplay|connect to display|no available video device|could not initialize video", told, re.I
    ):
        return ""
    return "; it needs a screen: start by xvfb-run python -m mlxe_async FILE.toml, or set PYGLET_HEADLESS=true before"


def ended(error: BaseException) -> str:
    """Say how foreign code ended, as the end of a sentence."""
    if isinstance(error, SystemExit):
        return f"called exit({error.code!r})"
    return f"raised {words_of(error)}"


def missing(env_id: str, error: BaseException) -> str:
    """One sentence that names the package, the extra that brings it, and what the import said."""
    text = words_of(error)
    package = getattr(error, "name", None) or ""
    for word in [package, *re.findall(r"\w+", text)]:
        extra = EXTRAS.get(word.split(".")[0].lower())
        if extra:
            return f'{env_id} needs a package that is not installed: pip install "{extra}" ({text})'
    if package and isinstance(error, ModuleNotFoundError):
        write = '[run] python_path = ["."]'
        where = f"install it or add its folder to run.python_path: {write} means the settings file's own"
        return f"{env_id}: there is no module {package}; {where} ({text})"
    return f"{env_id} cannot be imported ({text})"


def _of_form(known: dict[str, tuple[str, str]], name: str) -> tuple[str, str] | None:
    return next((found for form, found in known.items() if re.match(form, name)), None)


def _is_there(module: str) -> bool:
    return importlib.util.find_spec(module.partition(".")[0]) is not None


def _register(env_id: str, module: str) -> None:
    """Import a module, and call what some packages want to be called besides."""
    found = imported("task.env", env_id, module)
    registry = getattr(found, "register_envs", None) or getattr(found, f"register_{module}_envs", None)
    if callable(registry):
        try:
            registry()
        except BaseException as error:
            raise TaskError(f"task.env: {env_id}: registering the environments of {module} {ended(error)}") from error


@functools.lru_cache(maxsize=16)
def _mentioning(name: str) -> tuple[str, ...]:
    """Modules of packages built on gymnasium with a file that registers environments and has the id's name in it."""
    stem = re.sub(r"-v\d+$", "", name)
    found, looked_at = dict[str, None](), 0
    for package in importlib.metadata.distributions():
        needs = [re.split(r"[^\w.-]", need, maxsplit=1)[0].lower() for need in package.requires or ()]
        if "gymnasium" not in needs or package.name.lower() in _NONE_OF_THEIR_OWN:
            continue
        for file in package.files or ():
            if file.suffix != ".py" or file.parts[0] in found or looked_at >= _MOST_FILES:
                continue
            looked_at += 1
            with contextlib.suppress(OSError):
                text = str(file.locate().read_text(errors="ignore"))  # type: ignore[attr-defined] # it is a Path
                if "register(" in text and re.search(rf"[\"']{re.escape(stem)}\b", text):
                    found[file.parts[0]] = None
    return tuple(name.removesuffix(".py") for name in found)
