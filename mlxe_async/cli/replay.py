"""`replay RUN`: do again, bit for bit, what a recorded `oa` run did."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from mlxe_async.cli.arguments import RUN, Parser
from mlxe_async.cli.run import finish_run
from mlxe_async.settings.trust import settings_of_run
from mlxe_async.storage.run_folder import find_run


def run(arguments: Sequence[str]) -> int:
    """Replay, and say whether the weights are the same. Returns the exit code: 0 if so, 3 if not."""
    parser = Parser(
        "replay RUN [--no-progress] [--trust MODULE|FOLDER]",
        "Do again what a run with run.record = true did, and say whether it came to the same weights, bit for bit.",
        "replay latest",
    )
    parser.add_argument("run", metavar="RUN", help=RUN)
    parser.add_argument("--no-progress", action="store_true", help="show no progress")
    parser.add_trust()
    asked = parser.parse_args(arguments)
    folder = find_run(asked.run, "runs")
    settings = settings_of_run(folder, trust=asked.trust)
    import uvloop

    from mlxe_async.supervisor import Supervisor

    supervisor = Supervisor(settings, run_dir=folder.parent, replay=folder)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(finish_run(supervisor, shows_progress=settings.logs.progress and not asked.no_progress))
