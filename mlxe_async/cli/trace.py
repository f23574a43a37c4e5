"""`trace RUN`: one timeline of all processes of a run, for Perfetto or Chrome."""

from __future__ import annotations

import gzip
import sys
from collections.abc import Sequence
from pathlib import Path

from mlxe_async.analysis.trace.chrome import trace_of
from mlxe_async.analysis.trace.timeline import Timeline, timeline_of
from mlxe_async.cli.arguments import RUN, Parser
from mlxe_async.errors import ResourceError
from mlxe_async.logs.reader import log_of, read_log
from mlxe_async.storage.files import replace_file
from mlxe_async.storage.run_folder import is_held
from mlxe_async.storage.safe_text import visible

ABOUT = """\
Write one timeline of all processes of a run, from its log alone: a track for each process with what it did and when;
arrows from each rollout to the batch that learned from it and the version that came of it, and from there to the
processes that work with it; policy lag, rows, rates and returns as curves; faults, restarts and checkpoints as marks.

It is a file in the trace-event format, for https://ui.perfetto.dev or chrome://tracing; one that ends in .gz is packed.
The run may go on, or have died."""


def run(arguments: Sequence[str]) -> int:
    """Write the file, and say what is in it. Returns the exit code."""
    parser = Parser("trace RUN [--dir FOLDER] [--out FILE]", ABOUT, "trace latest --out trace.json.gz")
    parser.add_argument("run", metavar="RUN", help=RUN)
    parser.add_dir()
    parser.add_argument(
        "--out", type=Path, default=Path("trace.json"), metavar="FILE", help="where; trace.json when left out"
    )
    asked = parser.parse_args(arguments)
    path = log_of(asked.run)
    held = is_held(path.parent)  # asked before reading: what a run wrote before it died is still told
    timeline = timeline_of(read_log(path), held, name=visible(asked.run, 200))
    trace = trace_of(timeline)
    try:
        data = gzip.compress(trace, 6) if asked.out.suffix == ".gz" else trace
        replace_file(asked.out.absolute(), data, durable=False)
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or error
        raise ResourceError(f"{visible(str(asked.out), 200)} cannot be written: {why}") from error
    sys.stdout.write(f"{visible(str(asked.out))}: {_told(timeline)}; {len(data) / 2**20:.1f} MiB\n")
    return 0


def _told(timeline: Timeline) -> str:
    spans = sum(map(len, timeline.phases.values()))
    arrows = sum(1 for _ in timeline.arrows.chains())
    last = visible(str(timeline.facts.get("last")))
    ending = "" if timeline.ending == "ended" else f"; {timeline.facts['ending']}, its last line is of {last}"
    return f"{len(timeline.phases)} tracks, {spans:,} spans, {arrows:,} arrows{ending}"
