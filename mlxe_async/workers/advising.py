"""Advice on a task: which algorithms fit, which do not and why, and the keys that would be chosen for each."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from mlxe_async.advice import places
from mlxe_async.algorithms import REGISTRY, load_algorithm
from mlxe_async.choices import Known, by_table
from mlxe_async.rows import Spaces
from mlxe_async.tasks.measuring import Limited
from mlxe_async.tasks.probe import probe as probe_task
from mlxe_async.workers.fitting import Fit, Play, Refused, Said, choices_for, made_for_this_task


def advised(settings: Mapping[str, Any], said: Said, made: list[Any], limited: Limited) -> dict[str, Any]:
    """Try a task out, play it at random, and make each built-in algorithm for it.

    Args:
        settings: all settings in plain types.
        said: keys that people wrote, by table.
        made: environments are added here, for the caller to close.
        limited: entered around each call into foreign code.

    Returns:
        Plain facts: `task`, as the probe has it; `measured`; `fitting`, for each algorithm that fits, the better first,
        `name`, `why`, `network` and `chosen`; `refused`, `name` and `why`.

    Raises:
        TaskError: the environment is not acceptable.
    """
    task = probe_task(settings["task"], made, limited)
    play = Play(made, limited)
    measured = play()
    as_chosen = _as_chosen(settings["task"], task, limited)
    found, refused = [], []
    for name in REGISTRY:
        own = {**settings, "algorithm": {"name": name}}
        try:
            found.append(_fitting(name, own, said, task, play, as_chosen, limited))
        except Refused as error:
            refused.append({"name": name, "why": "; ".join(sentence for _, sentence in error.problems)})
    spaces, limit = Spaces.from_json(task["spaces"]), task["max_episode_steps"]
    known = Known("", (), {}, spaces, limit, may_be_turned=True, executors=1, steps=None, measure=play)
    order = places([one["name"] for one in found], known)
    ranked = [{**one, "why": why} for name, why in order for one in found if one["name"] == name]
    return {"task": task, "measured": measured.to_json(), "fitting": ranked, "refused": refused}


AsChosen = Callable[[Mapping[str, Any]], Mapping[str, Any]]


def _fitting(
    name: str,
    settings: Mapping[str, Any],
    said: Said,
    task: Mapping[str, Any],
    play: Play,
    as_chosen: AsChosen,
    limited: Limited,
) -> dict[str, Any]:
    with limited("load"):
        kind = load_algorithm(name)
    choices = choices_for(settings, said, kind, {}, task, play)
    spaces = Spaces.from_json(as_chosen(by_table(choices).get("task", {}))["spaces"])
    with limited("build"), made_for_this_task(name):
        fit = Fit.of(settings, said, kind, {}, spaces, choices)
        algorithm = kind(kind.Settings.model_validate(fit.table), spaces, seed=0, learns=False)
    return {
        "name": name,
        "network": getattr(algorithm, "words", ""),
        "chosen": [choice.to_json() for choice in fit.choices],
    }


def _as_chosen(table: Mapping[str, Any], task: Mapping[str, Any], limited: Limited) -> AsChosen:
    """Return what tells the task as keys that were chosen make it; each way is tried out once."""
    known: dict[str, Mapping[str, Any]] = {repr({}): task}

    def tell(keys: Mapping[str, Any]) -> Mapping[str, Any]:
        if repr(keys) not in known:
            known[repr(keys)] = probe_task({**table, **keys}, None, limited)
        return known[repr(keys)]

    return tell
