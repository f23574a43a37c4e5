"""Whole runs of minimal settings files: every built-in algorithm, on each kind of observation, under every schedule.

Each run goes on until its first update, is resumed until a later one, and under `oa` is recorded and replayed too. What
was done is kept in a file, line by line, and not done again until a file of the package changes: a program that was
interrupted goes on where it was.

    python tests/runs/minimal_runs.py --kept FILE [--only ppo-picture-oa ...]
"""

from __future__ import annotations

import argparse
import hashlib
import itertools
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

HERE = Path(__file__).parent
PACKAGE = HERE.parents[1] / "mlxe_async"
sys.path.insert(0, str(HERE))

from plain_tasks import KINDS  # noqa: E402 - it lies beside this file

from mlxe_async.algorithms import REGISTRY  # noqa: E402 - see above

SCHEDULES = ("serial", "istb", "is", "ia", "oa")
TABLES = ("q_learning", "sarsa")
MOVED_BY_NUMBERS = ("ddpg", "td3")
WITHOUT_CONVOLUTIONS = ("ddpg", "sac", "td3")
ONLY_NEWEST = ("a2c", "reinforce", "sarsa")
"Learn from nothing that older weights did, and are refused where nobody waits."
LIMIT_S = 900.0
REFUSED = 2


class Case(NamedTuple):
    algorithm: str
    shows: str
    schedule: str

    def __str__(self) -> str:
        return "-".join(self)

    @property
    def is_refused(self) -> bool:
        if self.algorithm in WITHOUT_CONVOLUTIONS and self.shows == "picture":
            return True
        return (self.algorithm in TABLES and self.shows != "integers") or (
            self.schedule == "oa" and self.algorithm in ONLY_NEWEST
        )

    def settings(self, folder: Path) -> str:
        moves = "box" if self.algorithm in MOVED_BY_NUMBERS else "discrete"
        record = "record = true\n" if self.schedule == "oa" else ""
        return (
            f"[run]\nname = '{self}'\ndir = '{folder}/runs'\npython_path = ['{HERE}']\n{record}"
            "[stop]\nupdates = 1\n"
            f"[task]\nenv = 'plain_tasks:Shown'\nkwargs = {{ shows = '{self.shows}', moves = '{moves}' }}\n"
            f"[schedule]\nkind = '{self.schedule}'\n[algorithm]\nname = '{self.algorithm}'\n"
        )


def cases() -> Iterator[Case]:
    """All of them."""
    yield from (Case(*parts) for parts in itertools.product(sorted(REGISTRY), KINDS, SCHEDULES))


def outcome(case: Case, folder: Path) -> str:
    """What is wrong with it, in a sentence; nothing if it is as it should be."""
    (folder / "minimal.toml").write_text(case.settings(folder))
    code, said = called(folder, "minimal.toml")
    if case.is_refused:
        return "" if code == REFUSED else f"expected exit code 2, got {code}: {said}"
    if code:
        return f"the run ended with exit code {code}: {said}"
    (run,) = (path for path in (folder / "runs").iterdir() if not path.is_symlink())
    done = status(run)
    if not done["updates"]:
        return "the run ended without an update"
    if case.schedule == "oa":
        code, said = called(folder, "replay", str(run))
        if code:
            return f"its replay ended with exit code {code}: {said}"
    code, said = called(folder, "--resume", str(run), "--set", f"stop.updates={done['updates'] + 1}")
    if code:
        return f"going on ended with exit code {code}: {said}"
    return "" if status(run)["updates"] > done["updates"] else "going on ended without another update"


def status(run: Path) -> dict[str, int]:
    """The counters of a run that ended."""
    found: dict[str, int] = json.loads((run / "status.json").read_text())
    return found


def called(folder: Path, *arguments: str) -> tuple[int, str]:
    """Exit code and last line of a command."""
    command = [sys.executable, "-m", "mlxe_async", *arguments]
    if arguments[0] != "replay":
        command.append("--no-progress")
    try:
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=LIMIT_S, check=False)
    except subprocess.TimeoutExpired:
        return -1, f"no end after {LIMIT_S:g} s"
    return done.returncode, (done.stderr.strip().splitlines() or [""])[-1]


def digest() -> str:
    """Of all files of the package: what was done with others is done again."""
    found = hashlib.sha256()
    for path in sorted(PACKAGE.rglob("*.py")):
        found.update(path.read_bytes())
    return found.hexdigest()[:16]


def kept(file: Path, version: str) -> dict[str, str]:
    """What came of the cases that were done with this version, by name; a line that is torn is not one of them."""
    known = {}
    for line in file.read_text().splitlines() if file.exists() else []:
        try:
            about = json.loads(line)
        except ValueError:
            continue
        if about["version"] == version:
            known[about["case"]] = about["wrong"]
    return known


def main(arguments: list[str] | None = None) -> int:
    """Do what is not done yet; 0 if nothing is wrong."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kept", type=Path, required=True, help="where is kept what was done")
    parser.add_argument("--only", nargs="+", default=[], help="cases such as ppo-picture-oa, or parts of their names")
    wanted = parser.parse_args(arguments)
    version = digest()
    known = {name: wrong for name, wrong in kept(wanted.kept, version).items() if not wrong}
    chosen = [case for case in cases() if not wanted.only or any(part in str(case) for part in wanted.only)]
    wrong = 0
    for number, case in enumerate(chosen, 1):
        name, began = str(case), time.monotonic()
        if name in known:
            continue
        with tempfile.TemporaryDirectory(prefix="minimal-") as folder:
            found = outcome(case, Path(folder))
        wrong += bool(found)
        with wanted.kept.open("a") as file:
            file.write(
                "\n" + json.dumps({"version": version, "case": name, "wrong": found}) + "\n"
            )  # after a torn line
        what = found or ("refused, as it should be" if case.is_refused else "fine")
        print(f"{number} of {len(chosen)}  {name:<28} {time.monotonic() - began:6.1f} s  {what}", flush=True)
    print(f"{len(chosen) - wrong} of {len(chosen)} are as they should be")
    return int(wrong > 0)


if __name__ == "__main__":
    sys.exit(main())
