"""`export RUN --to onnx|card|picture`: a run's saved policy in files that other programs read."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from mlxe_async.cli.arguments import CHECKPOINT, Parser
from mlxe_async.cli.console import Console
from mlxe_async.cli.play import which_checkpoint
from mlxe_async.errors import NotFound, ResourceError, SettingsError
from mlxe_async.logs.reader import read_log
from mlxe_async.storage.run_folder import find_run
from mlxe_async.storage.safe_text import visible

TARGETS = {
    "onnx": "the policy for ONNX Runtime, PATH policy.onnx when left out (extra: export)",
    "card": "a folder for the Hugging Face hub, PATH card/RUN when left out",
    "picture": "the network with its sizes, PATH network.svg when left out; .png and .pdf too",
}


def add_arguments(parser: Parser) -> None:
    """Take what exports of a policy ask for besides."""
    parser.add_argument(
        "path", nargs="?", type=Path, metavar="PATH", help="of a policy: the file, or the card's folder"
    )
    parser.add_argument("--checkpoint", type=which_checkpoint, metavar="WHICH", help=f"of a policy: {CHECKPOINT}")
    parser.add_trust()
    parser.in_any_order = True


def refuse_arguments(asked: argparse.Namespace) -> None:
    """See that they come with a policy alone.

    Raises:
        SettingsError: one of them is there, for a target that is made of the log.
    """
    given = {"PATH": asked.path, "--checkpoint": asked.checkpoint, "--trust": asked.trust}
    for name, value in given.items():
        if value:
            told = f"is for {', '.join(TARGETS)}; of a log take --out FOLDER"
            raise SettingsError([f"export --to {asked.to}: got {name}, which {told}"])


def run(asked: argparse.Namespace) -> int:
    """Write the policy. Returns the exit code."""
    if asked.follow:
        raise SettingsError(
            [f"export --to {asked.to}: got --follow, expected none: a policy is saved, and does not grow"]
        )
    if asked.path is not None and asked.out is not None:
        raise SettingsError([f"export --to {asked.to}: got PATH and --out, expected one of them"])
    from mlxe_async.policy import load_policy

    folder = find_run(asked.run)
    given = {"onnx": "policy.onnx", "card": f"card/{folder.name}", "picture": "network.svg"}[asked.to]
    path: Path = asked.path or asked.out or Path(given)
    if asked.to != "card" and path.is_dir():
        raise SettingsError([f"export --to {asked.to}: {visible(str(path), 200)} is a folder, expected a file"])
    policy = load_policy(asked.run, asked.checkpoint or "auto", trust=asked.trust, tell=Console(sys.stderr).line)
    sys.stdout.write(f"{visible(policy.origin)}\n")
    try:
        if asked.to != "card":
            path.parent.mkdir(parents=True, exist_ok=True)
        told = _written(asked.to, policy, path, folder)
    except OSError as error:
        raise ResourceError(f"{visible(str(path), 200)} cannot be written: {error.strerror or error}") from error
    sys.stdout.write(f"{visible(str(path), 200)}: {told}\n")
    if asked.to == "card":
        sys.stdout.write(
            f"to give it away: hf upload YOUR-NAME/{visible(folder.name, 100)} {visible(str(path), 200)}\n"
        )
    return 0


def _written(target: str, policy: object, path: Path, folder: Path) -> str:
    from mlxe_async.policy import Policy

    assert isinstance(policy, Policy)  # noqa: S101 - see `run`, which imports it late
    if target == "onnx":
        from mlxe_async.export import onnx_file

        return onnx_file.write(policy, path).words
    if target == "picture":
        from mlxe_async.export import picture

        return picture.draw(policy, path)
    from mlxe_async.export import card

    try:
        lines = list(read_log(folder))
    except NotFound:  # a run without its log has a policy all the same
        lines = []
    return card.write(policy, path, lines)
