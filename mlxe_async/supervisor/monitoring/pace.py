"""Tells the log how each process spends its time, and what limits the pace."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from mlxe_async.analysis.verdict import Setup, Spent, verdict
from mlxe_async.cores import usable_cores
from mlxe_async.ipc.shared.latencies import histogram, quantiles
from mlxe_async.logs import events
from mlxe_async.schedules.soundness import Facts, verdicts
from mlxe_async.settings import Checkpoint, Settings
from mlxe_async.settings.rules import contradictions
from mlxe_async.supervisor.assembly import Assembly
from mlxe_async.supervisor.context import RunContext
from mlxe_async.supervisor.plan.event_log import role_of


def tell_times(run: RunContext, parts: Assembly) -> None:
    """Tell how each process, and each thread of one, has spent its time so far, and what limits the pace."""
    measures, spent = run.measures, list[Spent]()
    cpu, starved = measures.cpu.by_name(), measures.cpu.starved_by_name()
    for planned, pages in zip(run.blueprint.processes, parts.spent, strict=True):
        for thread, seconds, counts in zip(("", *planned.threads), pages.seconds(), pages.new_counts(), strict=True):
            role, idx = role_of(planned.name)
            if thread:
                role, _, number = thread.partition("-")
                idx = int(number)
            rounded = {mode: round(one, 6) for mode, one in seconds.items()}
            spells = {mode: found for mode, found in counts.items() if any(found)}
            latencies = {mode: quantiles(found) for mode, found in spells.items()}
            histograms = {mode: histogram(found) for mode, found in spells.items()}
            run.log.emit(events.Times(planned.name, rounded, latencies, histograms), role, idx)
            alone = None if planned.threads else cpu.get(planned.name)
            spent.append(Spent(role, idx, seconds, alone, 0.0 if thread else starved.get(planned.name, 0.0)))
    found = verdict(spent, _setup(run, parts))
    run.log.emit(events.Bottleneck(found.share, found.limit, found.sentence, found.change, found.predicted))


def _setup(run: RunContext, parts: Assembly) -> Setup:
    schedule, evaluation = run.settings.schedule, run.settings.evaluation
    tests = parts.evaluator.tests if evaluation.enabled else 0
    return Setup(
        schedule.kind,
        schedule.executors,
        schedule.envs_per_executor,
        usable_cores(),
        waits_for_tests=evaluation.enabled and schedule.kind != "oa",
        own_memorizer=parts.by_role["memorizer"] is not parts.by_role["learner"],
        rollout_steps=schedule.most_steps,
        rounds=run.counters.version - parts.versions_before,
        may_differentiate=may_differentiate(run.settings, run.blueprint.facts),
        tests_every=run.counters.env_steps // tests if tests else 0,
        saving_s=parts.due.saving_s,
        saved_every=_saved_every(run.settings.checkpoint),
    )


def _saved_every(checkpoint: Checkpoint) -> tuple[str, float]:
    """The setting that says how often whole checkpoints are made; empty where none does."""
    if checkpoint.interval_steps:
        return "checkpoint.interval_steps", checkpoint.interval_steps
    return ("checkpoint.interval_s", checkpoint.interval_s) if checkpoint.interval_s else ("", 0.0)


def may_differentiate(settings: Settings, facts: Mapping[str, Any]) -> bool:
    """Return whether executors could make the gradients under this schedule, and do not yet.

    Args:
        settings: with all defaults.
        facts: what the probe found.
    """
    schedule, key = settings.schedule, ("schedule", "gradients")
    if schedule.executors < 2 or schedule.gradients == "executors":
        return False
    asked_of = Facts(
        schedule.kind,
        facts["memory_kind"],
        exchanges=True,
        has_gradients=facts["has_gradients"],
        recorded=settings.run.record,
    )
    if any(found.refused for found in verdicts(asked_of)):
        return False
    asked = settings.model_copy(update={"schedule": schedule.model_copy(update={"gradients": "executors"})})
    return not any(key in (problem.path, problem.other) for problem in contradictions(asked))
