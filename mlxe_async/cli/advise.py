"""`advise ENV`: which algorithms fit a task, what would be chosen and why, and the settings file to begin with."""

from __future__ import annotations

import argparse
import importlib.util
import itertools
import shlex
import sys
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from mlxe_async.advice import STEPS, settings_file
from mlxe_async.choices import Choice
from mlxe_async.cli.arguments import Parser
from mlxe_async.cli.console import Console
from mlxe_async.errors import ResourceError, SettingsError
from mlxe_async.settings import Settings, load_settings, toml_value
from mlxe_async.storage.safe_text import visible
from mlxe_async.tasks.measured import Measured

ABOUT = (
    "Try an environment out, play it at random for a thousand steps, and tell which algorithms fit it, which do not "
    "and why, and the settings that are chosen where a file writes nothing.\n\nThe file that --write makes writes all "
    "of them out, each with its reason; a file of [task] env, [algorithm] name and the same [stop] env_steps alone "
    "chooses the same ones."
)
EXAMPLE = "advise CartPole-v1\nadvise Pendulum-v1 --steps 20000 --write pendulum.toml\nadvise --list lunar"
LABEL = 14  # columns
COLUMN = 32  # of comments in a file
WIDE = 110  # columns of the advice
KEPT = ("run", "stop", "task", "schedule", "learner", "memory", "supervision", "evaluation", "checkpoint", "logs")
MOST_STEPS = 10**15


def run(arguments: Sequence[str]) -> int:
    """Advise, or list ids. Returns the exit code."""
    asked = _asked(arguments)
    if asked.list is not None:
        return _list(asked.list)
    settings = _settings(asked)
    facts = _facts(settings)
    names = [one["name"] for one in facts["fitting"]]
    name = asked.algorithm or (names[0] if names else "")
    if name not in names:
        why = next((one["why"] for one in facts["refused"] if one["name"] == name), "")
        raise SettingsError([_refusal(asked.env, name, why, names)])
    file = _file(settings, facts, name, asked)
    if asked.write is not None:
        _write(asked.write, file)
    lines = [*_about(settings, facts), *_fitting(facts), ""]
    if asked.write is None:
        lines += [f"settings for {name}, which --write FILE keeps; --algorithm NAME, --steps N change them:", "", *file]
    else:
        lines += [f"written: {asked.write}", f"now:     python -m mlxe_async {shlex.quote(str(asked.write))}"]
    sys.stdout.write("".join(f"{visible(line)}\n" for line in lines))
    return 0


def _asked(arguments: Sequence[str]) -> argparse.Namespace:
    parser = Parser(
        "advise ENV [--algorithm NAME] [--steps N] [--set a.b=VALUE ...] [--write FILE], or advise --list [PATTERN]",
        ABOUT,
        EXAMPLE,
    )
    parser.add_argument("env", nargs="?", metavar="ENV", help='as in [task] env: "CartPole-v1", "module:Name-v0"')
    parser.add_argument("--algorithm", metavar="NAME", help="settings for this one; left out, the first that fits")
    parser.add_argument(
        "--steps", type=int, default=STEPS, metavar="N", help=f"environment steps of the run; left out, {STEPS:,}"
    )
    parser.add_argument(
        "--set", action="append", default=[], dest="overrides", metavar="a.b=VALUE", help="a key that is written"
    )
    parser.add_argument("--write", type=Path, metavar="FILE", help="write the settings there; it must not exist yet")
    parser.add_argument(
        "--list",
        nargs="?",
        const="",
        metavar="PATTERN",
        help="list known ids instead: all, those with a part of this name, or by * and ?",
    )
    asked: argparse.Namespace = parser.parse_args(arguments)
    if asked.list is not None and asked.env is not None:
        parser.error(f"--list: got {asked.env} too")
    if asked.list is None and asked.env is None:
        parser.error("got no ENV")
    if not 1 <= asked.steps <= MOST_STEPS:
        parser.error(f"--steps: got {asked.steps}, expected 1 to {MOST_STEPS:,}")
    if asked.write is not None and asked.write.exists():
        there = visible(str(asked.write), 200)
        raise SettingsError([f"advise --write: got {there}, which is there already, expected a new file"])
    return asked


def _settings(asked: argparse.Namespace) -> Settings:
    base: dict[str, Any] = {"task": {"env": asked.env}, "stop": {"env_steps": asked.steps}}
    if _is_here(asked.env):
        base["run"] = {"python_path": ["."]}
    settings = load_settings(base, asked.overrides)
    if (
        settings.algorithm.table != {"name": settings.algorithm.name}
        or ("algorithm", "name") in settings.places.written
    ):
        raise SettingsError(["advise --set: got a key of [algorithm], expected none: --algorithm NAME chooses one"])
    if settings.stop.env_steps != asked.steps:
        raise SettingsError(["advise --set: got stop.env_steps, expected --steps N"])
    return settings


def _is_here(env: str) -> bool:
    """Return whether an environment's module is one of the working folder, and of no other that is searched."""
    package = env.rpartition(":")[0].partition(".")[0]
    here = Path(f"{package}.py").is_file() or Path(package, "__init__.py").is_file()
    return package.isidentifier() and here and importlib.util.find_spec(package) is None


def _facts(settings: Settings) -> dict[str, Any]:
    import asyncio

    import uvloop

    from mlxe_async.supervisor.startup.surveying import advised
    from mlxe_async.supervisor.waiting import first_of

    try:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            return runner.run(advised(settings))
    except BaseExceptionGroup as error:
        raise first_of(error) from None


def _refusal(env: str, name: str, why: str, names: Sequence[str]) -> str:
    fitting = ", ".join(names) or "none"
    if not name:
        return f"advise: no built-in algorithm fits {visible(env)}"
    got = why or "which is no built-in algorithm"
    return f"advise --algorithm: got {visible(name, 60)}, but {got}; expected one of those that fit: {fitting}"


def _about(settings: Settings, facts: Mapping[str, Any]) -> Iterator[str]:
    from mlxe_async.rows import Spaces

    spaces, task = Spaces.from_json(facts["task"]["spaces"]), facts["task"]
    yield f"{'task':<{LABEL}}{settings.task.env}"
    yield f"{'observation':<{LABEL}}{spaces.observation_words}"
    masked = ", with a mask of those that are allowed" if spaces.masked else ""
    yield f"{'action':<{LABEL}}{spaces.action_words}{masked}"
    limit, threshold = task["max_episode_steps"], task["reward_threshold"]
    solved = "no threshold is registered" if threshold is None else f"solved at a mean return of {threshold:g}"
    yield f"{'episodes':<{LABEL}}{f'at most {limit:,} steps' if limit else 'without a time limit'}; {solved}"
    yield from (f"{'' if index else 'measured':<{LABEL}}{line}" for index, line in enumerate(measured_in_words(facts)))
    yield from (f"note: {note}" for note in task.get("notes", []))
    yield ""


def measured_in_words(facts: Mapping[str, Any]) -> Iterator[str]:
    """Lines on what random play showed."""
    found = Measured.from_json(facts["measured"])
    ended = f"{found.episodes:,} episodes ended, {found.terminated:,} of them by the world"
    length = "" if found.mean_length is None else f", after {found.mean_length:.0f} steps on average"
    yield f"{found.steps:,} random steps of {1000 * found.step_seconds:.2g} ms: {ended}{length}"
    deviation = f"the discounted return varies by {found.return_deviation:.3g}"
    yield f"rewards: {found.commonest_reward:.4g} but for {100 * found.rewarded:.3g} % of the steps; {deviation}"
    if found.smallest_deviation is not None and found.largest_deviation is not None:
        yield f"observations: entries vary by {found.smallest_deviation:.2g} to {found.largest_deviation:.2g}"


def _fitting(facts: Mapping[str, Any]) -> Iterator[str]:
    yield "algorithms that fit, the one to try first first:"
    for number, (why, group) in enumerate(itertools.groupby(facts["fitting"], lambda one: one["why"]), 1):
        yield from _row(f"{number:>3}.", f"{', '.join(one['name'] for one in group)}: {why}")
    if facts["refused"]:
        yield "refused:"
        for one in facts["refused"]:
            yield from _row("   -", f"{one['name']}: {one['why'].removeprefix(one['name'] + ' ')}")


def _row(head: str, text: str) -> list[str]:
    return textwrap.wrap(text, WIDE, initial_indent=f"{head} ", subsequent_indent=" " * (len(head) + 1))


def choices_in_words(choices: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """Lines on the keys that were chosen, a rule's keys together, each with the rule and its reason."""
    groups: dict[tuple[str, str], list[str]] = {}
    for choice in map(Choice.from_json, choices):
        groups.setdefault((choice.rule, choice.why), []).append(f"{choice.setting} = {toml_value(choice.value)}")
    for (rule, why), keys in groups.items():
        yield f"  {rule}: {why}"
        yield from textwrap.wrap(", ".join(keys), WIDE, initial_indent="    ", subsequent_indent="    ")


def _file(settings: Settings, facts: Mapping[str, Any], name: str, asked: argparse.Namespace) -> list[str]:
    fit = next(one for one in facts["fitting"] if one["name"] == name)
    choices = list(map(Choice.from_json, fit["chosen"]))
    is_beside = asked.write is None or asked.write.resolve().parent == Path.cwd()
    written = {table: _written(settings, table, is_beside=is_beside) for table in KEPT}
    tables = settings_file(written, name, choices, steps=asked.steps, threshold=facts["task"]["reward_threshold"])
    lines = []
    for table, keys in tables.items():
        lines += [f"[{table}]", *(_line(key, *value) for key, value in keys.items()), ""]
    return lines


def _written(settings: Settings, table: str, *, is_beside: bool) -> dict[str, Any]:
    """The keys of a table that were given by `--set`, `task.env`, and the folder that this is found in."""
    known = settings.places.written
    model = getattr(settings, table)
    values = model.model_dump(mode="json", exclude_none=True)
    if values.get("python_path") == [str(Path.cwd())] and is_beside:
        values["python_path"] = ["."]
    return {key: values[key] for key in values if (table, key) in known}


def _line(key: str, value: Any, comment: str) -> str:
    head = f"{key} = {toml_value(value)}"
    return f"{head:<{COLUMN}}# {comment}" if comment else head


def _write(path: Path, lines: Sequence[str]) -> None:
    try:
        with path.open("x") as file:
            file.write("\n".join(lines))
    except OSError as error:
        raise ResourceError(f"{visible(str(path), 200)} cannot be written: {error.strerror}") from error


def _list(pattern: str) -> int:
    from mlxe_async.tasks.listing import listed

    found = listed(pattern)
    for one in found:
        ways = f"vectorize {', '.join(one.ways)}" if one.ways else ""
        limit = f"limit {one.limit:,}" if one.limit else ""
        solved = f"solved at {one.threshold:g}" if one.threshold is not None else ""
        told = "; ".join(part for part in (limit, solved, ways) if part)
        sys.stdout.write(f"{visible(one.env):<44} {told}".rstrip() + "\n")
    Console(sys.stderr).finish(f"{len(found):,} ids" + (f' with "{visible(pattern, 60)}"' if pattern else ""))
    return 0
