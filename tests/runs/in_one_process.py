"""All roles of a run in this process, made from a settings file as the supervisor makes them, but for the forks."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Mapping
from typing import Any

from mlxe_async.ipc.shared.words import PAGE_BYTES, ProgressPage
from mlxe_async.settings import load_settings
from mlxe_async.settings.model import Settings
from mlxe_async.supervisor.plan.blueprint import Blueprint
from mlxe_async.supervisor.startup.probe import Probed, judged
from mlxe_async.workers import before_fork
from mlxe_async.workers.probe import Probe
from mlxe_async.workers.workshop import Workshop


class NoChannel:
    """The pipe to the supervisor, who hears nothing and is never gone."""

    def send(self, message: Mapping[str, Any]) -> None:
        pass

    def fileno(self) -> int:
        return self._read

    def __init__(self) -> None:
        self._read, self._write = os.pipe()

    def close(self) -> None:
        os.close(self._read)
        os.close(self._write)


def probed(settings: Settings, *, rehearses: bool = False) -> Probed:
    """What the probe finds out, and the settings that every role gets by that."""
    spec = settings.model_dump(mode="json")
    probe = Probe(spec, ProgressPage(bytearray(PAGE_BYTES)), settings.said)
    try:
        found = judged(settings, probe.probe())
        assert not rehearses or probe.rehearse() == {}
    finally:
        probe.close()
    return found


@contextlib.contextmanager
def roles_of(found: Probed) -> Iterator[dict[str, Any]]:
    """Every role of the run by its name."""
    blueprint = Blueprint(found.settings, found.facts)
    segments, channel = blueprint.create_segments(), NoChannel()
    workshops, roles = [], {}
    try:
        for planned in blueprint.processes:
            spec = before_fork({**blueprint.spec(planned, 1, {}), "folder": None})
            fds = {name: os.dup(segments[name].fd) for name in planned.segments}
            workshops.append(Workshop(spec, channel, fds))
            roles |= {name: workshops[-1].build(name) for name in planned.roles}
        yield roles
    finally:
        for role in roles.values():
            if callable(close := getattr(role, "close", None)):
                close()
        for workshop in workshops:
            workshop.close()
        for segment in segments.values():
            segment.close()
        channel.close()


def first_updates(tables: Mapping[str, Any], *, most_rounds: int) -> tuple[int, int]:
    """Go round as `is` does until something was learned; updates and rows until then."""
    with roles_of(probed(load_settings(tables))) as roles:
        executors = [role for name, role in roles.items() if name.startswith("executor")]
        version = roles["learner"].publish()["version"]
        rows = [0] * len(executors)
        episodes = 0
        for number in range(most_rounds):
            for index, executor in enumerate(executors):
                report = executor.generate(
                    rollout=number, version=version, finished_episodes=episodes, steps=rows[index]
                )
                rows[index] += report["rows"]
                episodes += len(report["episodes"]["return"])
            plan = roles["memorizer"].memorize(most_updates=1)
            if plan["updates"]:
                done = roles["learner"].learn(plan, env_steps=sum(rows), episodes=episodes, updates=0)
                assert done["version"] > version
                return done["updates"], sum(rows)
    return 0, sum(rows)
