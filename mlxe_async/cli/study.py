"""`study RUN ...`: the study's own figures: moving averages of training episodes, and what a solved policy does."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from mlxe_async.cli.arguments import Parser
from mlxe_async.errors import ResourceError, RunFailed, TaskError
from mlxe_async.logs.reader import log_of, read_log
from mlxe_async.settings.trust import Trusted
from mlxe_async.storage.files import replace_file
from mlxe_async.storage.safe_text import visible

GAMES, STARTS, STEPS = 8, 20, 2000
ABOUT = """\
Draw the steps of training episodes as moving averages, a line for each run, runs of one settings name in one colour:
FOLDER/moving.svg, moving.png and steps.csv. With --policy, print instead what the policy of a CartPole run that was
solved does: how near it goes to the edge, how far the pole leans, how often it switches its action."""


def run(arguments: Sequence[str]) -> int:
    """Write the figures, or print what a policy does. Returns the exit code."""
    usage = "study RUN ... [--out FOLDER] [--games N] | study RUN --policy [--json] [--trust MODULE|FOLDER]"
    parser = Parser(usage, ABOUT, "study latest --out figures\nstudy latest --policy")
    parser.add_argument("runs", nargs="+", metavar="RUN", help='folders of runs, names in runs/, or "latest"')
    parser.add_argument("--out", type=Path, default=Path("figures"), metavar="FOLDER", help="where figures are put")
    parser.add_argument("--games", type=int, default=GAMES, metavar="N", help=f"episodes averaged; left out, {GAMES}")
    parser.add_argument("--policy", action="store_true", help="tell what the solving policy does, drawing nothing")
    parser.add_argument("--json", action="store_true", help="with --policy, for programs")
    parser.add_trust()
    asked = parser.parse_args(arguments)
    if asked.games < 1:
        parser.error(f"--games: got {asked.games}, expected at least 1")
    if asked.json and not asked.policy:
        parser.error("--json: is for --policy")
    if asked.policy:
        for name in asked.runs:
            told = behaviour_of(name, trust=asked.trust)
            sys.stdout.write(f"{json.dumps(told)}\n" if asked.json else f"{visible(name)}: {in_words(told)}\n")
        return 0
    return _draw(asked.runs, asked.games, asked.out)


def _draw(runs: Sequence[str], games: int, folder: Path) -> int:
    from mlxe_async.analysis.pictures import moving_averages

    lengths: dict[str, list[list[int]]] = {}
    lines = ["settings,run,episode,steps"]
    for name in runs:
        path = log_of(name)
        settings, steps = lengths_of(path)
        lengths.setdefault(settings, []).append(steps)
        lines += [f"{settings},{path.parent.name},{number},{one}" for number, one in enumerate(steps, 1)]
    picture = moving_averages(lengths, games)
    if picture is None:
        raise RunFailed(f"study: expected a run of at least {games} finished episodes, got fewer; see --games")
    files = {"moving.svg": picture.svg, "moving.png": picture.png, "steps.csv": "\n".join([*lines, ""]).encode()}
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for file, content in files.items():
            replace_file((folder / file).absolute(), content, durable=False)
    except OSError as error:
        raise ResourceError(f"{visible(str(folder))} cannot be written to: {error.strerror}") from error
    sys.stdout.write("".join(f"{visible(str(folder / file))}\n" for file in files))
    return 0


def lengths_of(log: Path) -> tuple[str, list[int]]:
    """Name of a run's settings, and the steps of its training episodes in the order in which they ended."""
    settings, steps = "run", list[int]()
    for line in read_log(log):
        if line["event"] == "run_start":
            settings = str(line["settings"]["run"]["name"])
        elif line["event"] == "episode_end":
            steps.append(int(line["length"]))
    return settings, steps


def behaviour_of(name: str, starts: int = STARTS, steps: int = STEPS, *, trust: Trusted = ()) -> dict[str, Any]:
    """Return what the greedy policy of a CartPole run does from the first standard starts, `steps` long at most.

    Returns:
        `edge` and `lean`, each with `mean`, `worst` and `worst_mean` as shares of the limits of the cart and of the
        pole: a stiff policy leans little; and the figures of `analysis.behaviour.Switching`.

    Raises:
        TaskError: the run's task is not CartPole.
    """
    import numpy as np

    from mlxe_async.analysis.behaviour import edge, switching
    from mlxe_async.policy import load_policy
    from mlxe_async.tasks.cartpole import THETA_LIMIT, X_LIMIT
    from mlxe_async.tasks.vector import VectorTask

    policy = load_policy(name, "solved", trust=trust)
    task = policy.settings.task
    if not task.env.rpartition(":")[2].startswith("CartPole"):
        raise TaskError(f'study --policy: knows the edge of CartPole alone, got task.env = "{task.env}"')
    world = VectorTask(task.model_dump(), starts, evaluation=True, max_episode_steps=steps, state=policy.wrappers)
    seen: list[list[Any]] = [[] for _ in range(starts)]
    taken: list[list[int]] = [[] for _ in range(starts)]
    try:
        obs = np.stack([world.reset(env, policy.settings.evaluation.seed + env) for env in range(starts)])
        going = np.ones(starts, bool)
        policy.reset()
        while going.any():
            actions = policy.chosen(obs)
            step = world.step(actions, np.flatnonzero(going).tolist())
            for env in np.flatnonzero(going).tolist():
                cartpole: Any = world.environment(env).unwrapped
                taken[env].append(int(actions[env]))
                seen[env].append(np.array(cartpole.state)[[0, 2]])  # also where the task hides or stacks them
            obs[going] = step.next_obs[going]
            going &= ~(step.terminated | step.truncated)
    finally:
        world.close()
    ways = [np.stack(one) for one in seen]
    return {
        "version": policy.version,
        "edge": vars(edge([way[:, 0] for way in ways], X_LIMIT)),
        "lean": vars(edge([way[:, 1] for way in ways], THETA_LIMIT)),
        **switching(taken).to_json(),
    }


def in_words(told: Mapping[str, Any]) -> str:
    """The same in a sentence."""
    edge, lean = told["edge"], told["lean"]
    return (
        f"version {told['version']}, {told['episodes']} episodes of {told['steps']:,} steps in all: the cart is "
        f"{edge['mean']:.1%} of the way to the edge, at most {edge['worst']:.1%}; the pole leans {lean['mean']:.1%} of "
        f"what it may, at most {lean['worst']:.1%}; the action switches at {told['switching_rate']:.1%} of the steps, "
        f"and is held for {told['mean_run_length']:.2f}"
    )
