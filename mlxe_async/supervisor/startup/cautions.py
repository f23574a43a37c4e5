"""Judge settings once task and algorithm are known: what is unsound is refused, what is odd is told in words."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from mlxe_async.choices import Choice
from mlxe_async.errors import SettingsError
from mlxe_async.schedules.soundness import Facts, verdicts
from mlxe_async.settings import Settings, toml_value
from mlxe_async.settings.problems import Problem

FEW_UPDATES = 20  # of a whole run that learns from each rollout once: hardly anything has learned by then
SHORT_RUN = 10_000  # steps of a run that is a trial, and not meant to learn
SLOW_SHARE = 0.5  # of a limit; what is measured once may take twice as long when all processes start together


def cautions(settings: Settings, facts: dict[str, Any]) -> list[str]:
    """Refuse what an algorithm cannot learn from under this schedule; what is merely odd is told by the log."""
    schedule, traits = settings.schedule, settings.schedule.traits(facts["memory_kind"])
    judged = Facts(
        kind=schedule.kind,
        memory=facts["memory_kind"],
        off_policy=facts["off_policy"],
        bootstraps=facts["bootstraps"],
        sync=schedule.sync,
        unfinished=traits.unfinished,
        max_policy_lag=traits.max_policy_lag,
        envs=schedule.envs_per_executor,
        simulated_lag=traits.simulated_lag,
        exchanges=schedule.gradients == "executors" and (schedule.learned_from > 1 or schedule.kind == "oa"),
        has_gradients=facts["has_gradients"],
        recorded=settings.run.record,
        by_score=schedule.gradients == "executors" and getattr(schedule, "combine", "fifo") == "best_score",
        local=getattr(schedule, "replay", "global") == "local",
        prioritised=facts["prioritised"],
        explores_apart=schedule.explores_apart,
    )
    found = list(verdicts(judged))
    refused = [Problem(verdict.key, verdict.message, verdict.other) for verdict in found if verdict.refused]
    if refused:
        raise SettingsError([settings.places.line(problem) for problem in refused])
    odd = [verdict.message for verdict in found]
    evaluation, own = settings.evaluation, facts["task"]
    most, limit = evaluation.max_episode_steps, own["registered_max_episode_steps"]
    if evaluation.rule == "cap" and (own["reward_threshold"] or 0.0) < 0:
        odd.append(
            f'evaluation.rule = "cap" takes episodes of {settings.task.env} that last long for good ones, but its '
            f"threshold of {own['reward_threshold']:g} is reached by short ones; leave the rule out"
        )
    if evaluation.rule == "mean_return" and evaluation.threshold == own["reward_threshold"] and limit and most < limit:
        odd.append(
            f"evaluation.max_episode_steps = {most} is less than the limit of {limit} that the threshold of "
            f"{settings.task.env}, {evaluation.threshold:g}, was registered with: it may be out of reach"
        )
    return [
        *odd,
        *_of_the_task(facts),
        *_endless(settings, facts),
        *_few_updates(settings, facts),
        *_too_large(settings, facts),
        *_slow(settings, own),
    ]


def _of_the_task(facts: dict[str, Any]) -> Iterator[str]:
    """Keys of `[task]` that were chosen: episodes or observations are others by them."""
    for choice in map(Choice.from_json, facts.get("chosen", [])):
        if choice.setting.startswith("task."):
            yield f"{choice.setting} = {toml_value(choice.value)} is set, for {choice.why}; write the key to choose"


def _endless(settings: Settings, facts: dict[str, Any]) -> Iterator[str]:
    """Rollouts of whole episodes, which nothing but the environment ends, may never be delivered."""
    if settings.schedule.sync != "episode" or facts["task"]["max_episode_steps"]:
        return
    other = ', or schedule.sync = "rollout"' if facts["bootstraps"] else ""
    yield (
        f"episodes of {settings.task.env} have no limit, and a rollout is a whole episode: as long as none ends by "
        f"itself, nothing is counted and nothing is learned from; set task.max_episode_steps{other}"
    )


def _few_updates(settings: Settings, facts: dict[str, Any]) -> Iterator[str]:
    """Rollouts so large that the whole run learns from few of them, as where other packages' lengths are copied."""
    schedule, steps = settings.schedule, settings.stop.env_steps
    if facts["memory_kind"] != "rollouts" or schedule.sync != "rollout" or not steps or steps < SHORT_RUN:
        return
    executors, rows = _rows_of_an_update(settings, facts)
    if steps < FEW_UPDATES * rows:
        several = f"schedule.executors = {executors}, " if executors > 1 else ""
        yield (
            f"stop.env_steps = {steps:,} is enough for {steps // rows:,} updates, since each takes {rows:,} rows: "
            f"{several}schedule.envs_per_executor = {schedule.envs_per_executor} and schedule.rollout_steps = "
            f"{schedule.rollout_steps} multiply; make one of these smaller, or the run longer"
        )


def _rows_of_an_update(settings: Settings, facts: dict[str, Any]) -> tuple[int, int]:
    """Executors whose rollouts an update is made of, and their rows together."""
    schedule = settings.schedule
    executors = 1 if schedule.kind in ("ia", "oa") else schedule.executors  # there, one may be enough
    rows = executors * schedule.envs_per_executor * schedule.rollout_steps
    return executors, max(rows, int(facts.get("rows_per_update", 0)))


def _too_large(settings: Settings, facts: dict[str, Any]) -> Iterator[str]:
    """Minibatches and pieces that are larger than what they are cut from."""
    schedule, table = settings.schedule, settings.algorithm.table
    if facts["memory_kind"] != "rollouts" or schedule.sync == "episode":
        return
    _, rows = _rows_of_an_update(settings, facts)
    if (size := table.get("minibatch", 0)) > rows:
        yield f"algorithm.minibatch = {size:,} is more than the {rows:,} rows of an update: an epoch is one step"
    if table.get("cell", "none") != "none" and (piece := table.get("sequence_steps", 0)) > schedule.rollout_steps:
        yield (
            f"algorithm.sequence_steps = {piece} is more than schedule.rollout_steps = {schedule.rollout_steps}: "
            "sequences are whole rollouts"
        )


def _slow(settings: Settings, task: dict[str, Any]) -> Iterator[str]:
    """Environments that take most of the time that a process has to start."""
    schedule = settings.schedule
    count = schedule.envs_per_executor * (schedule.executors if schedule.kind in ("serial", "istb") else 1)
    seconds = task.get("make_seconds", 0.0) * count
    limits = {
        "supervision.start_timeout_s": settings.supervision.start_timeout_s,
        "schedule.reset_timeout_s": schedule.reset_timeout_s,
    }
    short = [f"{key} = {limit:g}" for key, limit in limits.items() if seconds > SLOW_SHARE * limit]
    if short:
        yield (
            f"making {settings.task.env} once took {task['make_seconds']:.1f} s, so that the {count} of one process "
            f"take about {seconds:.0f} s: more than half of {' and of '.join(short)}, which may be raised"
        )
