"""What runs inside the forked processes: build the roles a specification names, then serve their verbs.

One process may hold one role or several: `serial` holds all of them, the learner's process often holds the memorizer.
The entry points are named as data (`"mlxe_async.workers:serve_roles"`), so that the layer that forks knows neither
torch nor reinforcement learning.

    workshop, code                              builds a process's roles; which code it has of its algorithm
    examiner                                    the evaluator's process
    probe, rehearsal, survey                    what is tried before a run: task, one update, cost of each part
    advising, fitting                           which algorithms fit a task, and with which keys
    state_files, kernels, warm                  states to files and back; kernels of a GPU; first use ahead of time
"""

from __future__ import annotations

from typing import Any

from mlxe_async.ipc.messages.channel import ChildChannel
from mlxe_async.ipc.processes.serve import serve
from mlxe_async.ipc.shared.hours import NUMBERS
from mlxe_async.ipc.shared.segments import Segment
from mlxe_async.ipc.shared.words import ProgressPage
from mlxe_async.settings.model import Settings
from mlxe_async.tasks import given
from mlxe_async.tasks.given import HANDED
from mlxe_async.workers.probe import Probe
from mlxe_async.workers.state_files import StateFiles
from mlxe_async.workers.workshop import Workshop

_MODES = {
    verb: NUMBERS[mode]
    for verb, mode in {
        "generate": "acting",
        "ingest": "taking_in",
        "memorize": "drawing",
        "learn": "gathering",
        "differentiate": "gathering",
        "publish": "publishing",
        "evaluate": "testing",
        "save": "saving",
        "restore": "saving",
    }.items()
}
"Verb -> the mode of a process that answers to it, where it says nothing else."
_typed: list[tuple[dict[str, Any], Settings]] = []
"The settings of the last fork, plain and typed: those of all processes of a run are the same."


def before_fork(spec: dict[str, Any]) -> dict[str, Any]:
    """The settings of a specification, typed: once, before the fork, for that takes 1.5 MiB."""
    if "roles" not in spec:
        return spec
    plain = spec["settings"]
    if not _typed or _typed[0][0] != plain:
        _typed[:] = [(plain, Settings.model_validate(plain))]
    return {**spec, "settings": _typed[0][1]}


def serve_roles(spec: dict[str, Any], channel: ChildChannel, fds: dict[str, int]) -> None:
    """Build and serve the roles of one process until asked to stop."""
    workshop = Workshop(spec, channel, fds)
    roles = {name: workshop.build(name) for name in spec["roles"]}
    if workshop.pinned is not None:
        roles["pinned"] = workshop.pinned
    roles["keeper"] = StateFiles(dict(roles), workshop.page, workshop.settings.schedule.update_timeout_s)
    facts: dict[str, Any] = {"code": workshop.code}
    if "learner" in roles:
        facts["state_behind"] = roles["learner"].behind
    serve(
        channel,
        roles,
        workshop.page,
        facts=facts,
        threaded=spec["threaded"],
        hours={name: page.hours for name, page in workshop.pages.items()},
        modes=_MODES,
    )


def serve_probe(spec: dict[str, Any], channel: ChildChannel, fds: dict[str, int]) -> None:
    """Serve the one verb of the probe."""
    page = ProgressPage(Segment.attach("probe", fds["page"]).buffer)
    if HANDED in fds:
        given.take(Segment.attach(HANDED, fds[HANDED]).buffer)
    serve(channel, {"probe": Probe(spec["settings"], page, spec["said"])})
