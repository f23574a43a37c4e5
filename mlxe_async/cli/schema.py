"""`python -m mlxe_async schema [--events]`: the JSON schema of settings files, or of the log."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence

from mlxe_async.cli.arguments import Parser


def run(arguments: Sequence[str]) -> int:
    """Print the schema on stdout. Returns the exit code."""
    parser = Parser("schema [--events] [--algorithm NAME]")
    parser.add_argument("--events", action="store_true", help="of a line of log.jsonl instead of a settings file")
    parser.add_argument("--algorithm", default="a3c", help="whose keys [algorithm] has")
    asked = parser.parse_args(arguments)
    if asked.events:
        from mlxe_async.logs.events import event_schema

        schema = event_schema()
    else:
        from mlxe_async.algorithms import load_algorithm
        from mlxe_async.settings import settings_schema

        schema = settings_schema(load_algorithm(asked.algorithm).Settings)
    sys.stdout.write(json.dumps(schema, indent=2) + "\n")
    return 0
