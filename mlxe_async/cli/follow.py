"""`python -m mlxe_async follow RUN [--json]`: a run's events as they come, until it ends."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Sequence

from mlxe_async.cli.arguments import Parser
from mlxe_async.cli.telling import told
from mlxe_async.logs.reader import follow


def run(arguments: Sequence[str]) -> int:
    """Print one line per event on stdout, for people or, with `--json`, for programs. Returns the exit code."""
    parser = Parser("follow RUN [--json]")
    parser.add_argument("run")
    parser.add_argument("--json", action="store_true")
    asked = parser.parse_args(arguments)
    try:
        asyncio.run(_follow(asked.run, as_json=asked.json))
    except KeyboardInterrupt:
        return 130
    return 0


async def _follow(run: str, *, as_json: bool) -> None:
    async for event in follow(run):
        sys.stdout.write((json.dumps(event) if as_json else told(event)) + "\n")
        sys.stdout.flush()
