"""`python -m mlxe_async schema [--events]`: the JSON schema of settings files, or of the log."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence

from mlxe_async.cli.arguments import Parser


def run(arguments: Sequence[str]) -> int:
    """Print the schema on stdout. Returns the exit code."""
    parser = Parser(
        "schema [--events] [--algorithm package.module:Class]",
        "Print the JSON schema of settings files, for editors, or of the lines of the log.",
        "schema > schema.json\nschema --events",
    )
    parser.add_argument("--events", action="store_true", help="of a line of log.jsonl instead of a settings file")
    parser.add_argument(
        "--algorithm", action="append", default=[], metavar="NAME", help="one of your own to be included"
    )
    asked = parser.parse_args(arguments)
    if asked.events:
        from mlxe_async.logs.events import event_schema

        schema = event_schema()
    else:
        from mlxe_async.algorithms import REGISTRY, load_algorithm
        from mlxe_async.settings import settings_schema

        schema = settings_schema({name: load_algorithm(name).Settings for name in (*REGISTRY, *asked.algorithm)})
    sys.stdout.write(json.dumps(schema, indent=1) + "\n")
    return 0
