"""Which slips of meaning do the tests not notice: rows in another order, one step too far, what is counted too early?

`semantic.toml` is a list of mutants: an old text, a new one, and a test that must fail. Each is put in place of its
module in a process of its own, as `survivors.py` does it, and its test is run. Where the list names no test, or with
`--search`, all tests of the file's folder that call the changed function run until one fails.

Results go to a file, one line of JSON each: a second call goes on where the first one was interrupted, and asks
survivors again where tests have changed. The program ends with 1 if fewer than 97 % are noticed.

    python tests/mutation/semantic.py --files sac vtrace --list
"""

from __future__ import annotations

import argparse
import collections
import dataclasses
import functools
import json
import sys
import tempfile
import time
import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parent))

import survivors
from mutants import Mutant
from survivors import HERE, LIMIT_S, ROOT, WANTED, Results, Verdict, forked, tests_once

LIST = HERE / "semantic.toml"


@dataclasses.dataclass(frozen=True)
class Slip:
    """One entry of the list.

    Args:
        mutant: the changed file.
        noticed_by: the test that must fail; "" where none is known.
    """

    mutant: Mutant
    noticed_by: str


def slips(path: Path = LIST) -> list[Slip]:
    """All entries of a list.

    Raises:
        ValueError: an old text does not stand in its file exactly once.
        SyntaxError: a new one is no Python.
    """
    return [Slip(_mutant(entry), entry["noticed_by"]) for entry in tomllib.loads(path.read_text())["mutant"]]


def _mutant(entry: dict[str, str]) -> Mutant:
    file, before, after = entry["file"], entry["before"], entry["after"]
    original = (ROOT / file).read_text()
    if original.count(before) != 1:
        raise ValueError(f"semantic.toml: expected once in {file}, got {original.count(before)} times:\n{before}")
    start = original.index(before)
    # Lines below keep their numbers, so that the function alone is exchanged.
    missing = "\n" * (before.count("\n") - after.count("\n"))
    whole_lines = original[start - 1] == "\n"
    source = original.replace(before, missing + after if whole_lines else after + missing)
    line = original[:start].count("\n") + 1
    return Mutant(file, line, _changed(original, source), entry["kind"], before.strip(), after.strip(), source)


def _functions(source: str) -> dict[str, tuple[str, Any]]:
    """Name, and code without that of functions inside, of each function by position and name."""
    codes = survivors._codes(compile(source, "", "exec"))
    return {key: (code.co_qualname, survivors._shallow(code)) for key, code in codes.items()}


_functions_before = functools.cache(_functions)  # most files have several mutants


def _changed(original: str, source: str) -> str:
    """The outermost function that differs; "" where it is not one alone."""
    names = {name for _, (name, _) in _functions_before(original).items() ^ _functions(source).items()}
    outer = {name.split(".<locals>")[0] for name in names}
    return outer.pop() if len(outer) == 1 and "" not in outer else ""


def folder_of(file: str) -> str:
    """The tests of a file's folder; those of networks lie beside the algorithms'."""
    return f"tests/{file.split('/')[1]}".replace("networks", "algorithms")


def file_of(test: str) -> str:
    """The file of a test's name."""
    return test.split("::")[0]


class _Named:
    """A pytest session that runs for each mutant the one test that is named for it.

    Args:
        asked: mutants and tests, all of one file of tests.
    """

    def __init__(self, asked: Sequence[Slip]) -> None:
        self._asked = asked
        self.verdicts: list[tuple[int, Verdict]] = []

    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        items = {item.nodeid: item for item in session.items}
        for number, one in enumerate(self._asked):
            if one.noticed_by not in items:
                self._found(number, Verdict("survived", f"there is no test {one.noticed_by}", 0.0))
                continue
            original = (ROOT / one.mutant.file).read_text()
            swap = functools.partial(survivors.swapped, one.mutant, original)
            if swap() is None:
                continue  # it is imported afresh, elsewhere
            work = functools.partial(self._against, items[one.noticed_by], swap)
            self._found(number, forked(work, LIMIT_S))
        return True

    def _found(self, number: int, verdict: Verdict) -> None:
        self.verdicts.append((number, verdict))

    def _against(self, item: pytest.Item, swap: Any, tell: Any) -> None:
        item.config.pluginmanager.register(survivors._Watch(tell))
        swap()()
        survivors._run([item])


def ask_named(asked: Sequence[Slip], results: Results) -> None:
    """Run each mutant's own test."""
    by_file: dict[str, list[Slip]] = collections.defaultdict(list)
    for one in asked:
        by_file[file_of(one.noticed_by)].append(one)
    for file, some in sorted(by_file.items()):
        with tempfile.NamedTemporaryFile() as told:

            def work(tell: Any, some: list[Slip] = some, file: str = file, told: Any = told) -> None:
                import importlib

                for name in sorted({survivors.module_name(one.mutant.file) for one in some}):
                    importlib.import_module(name)
                session = _Named(some)
                code = pytest.main(survivors._pytest(file), plugins=[session])
                if code:
                    tell(f"pytest {code} for {file}", survivors._BROKEN)
                verdicts = [(number, dataclasses.asdict(verdict)) for number, verdict in session.verdicts]
                Path(told.name).write_text(json.dumps(verdicts))

            forked(work, 60 + LIMIT_S * len(some))
            found = {number: Verdict(**verdict) for number, verdict in json.loads(Path(told.name).read_text())}
        for number, one in enumerate(some):
            verdict = found.get(number) or _afresh(one.mutant, one.noticed_by)
            results.note(one.mutant, tests_once(folder_of(one.mutant.file)), verdict)
            if verdict.outcome != "killed":
                print(f"{one.mutant.file}:{one.mutant.line} {verdict.outcome} {one.noticed_by}", file=sys.stderr)


def _afresh(one: Mutant, test: str) -> Verdict:
    """Import the mutant in place of its module, then run its test."""

    def work(tell: Any) -> None:
        name = survivors.module_name(one.file)
        if name in sys.modules:
            raise RuntimeError(f"semantic: {name} was imported before its mutant")
        sys.meta_path.insert(0, survivors._Instead(name, ROOT / one.file, one.source))
        code = pytest.main([*survivors._pytest(test), "-x"], plugins=[survivors._Watch(tell)])
        if code:
            tell(f"pytest {code}")

    return forked(work, 2 * LIMIT_S)


def table(asked: Sequence[Slip], results: Results) -> float:
    """Print how many of each kind are noticed; returns the share of all."""
    counts: dict[str, list[int]] = {}
    for one in asked:
        line = results.of(one.mutant, tests_once(folder_of(one.mutant.file)))
        row = counts.setdefault(one.mutant.kind, [0, 0])
        row[line is None or line["outcome"] == "survived"] += 1
    print(f"\n{'kind':28}{'noticed':>9}{'not':>6}{'share':>9}")
    both = [sum(column) for column in zip([0, 0], *counts.values(), strict=True)]
    for kind, (noticed, missed) in [*sorted(counts.items()), ("all", both)]:
        print(f"{kind:28}{noticed:9}{missed:6}{noticed / max(1, noticed + missed):9.1%}")
    return both[0] / max(1, sum(both))


@survivors.examples_elsewhere()
def main() -> int:
    """Ask, list and count."""
    parser = argparse.ArgumentParser(
        description=__doc__.split("\n", 1)[0], epilog=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--files", nargs="+", default=[""], metavar="PART", help="only files with one of these in them")
    parser.add_argument("--list", action="store_true", help="print each that is not noticed")
    parser.add_argument("--search", action="store_true", help="run all tests of the folder, not the named one alone")
    parser.add_argument("--afresh", action="store_true", help="believe nothing that was found before")
    parser.add_argument("--results", type=Path, default=ROOT / "build/mutation/semantic.jsonl")
    parser.add_argument("--slips", type=Path, default=LIST, help="the list of them")
    options = parser.parse_args()
    if options.afresh:
        options.results.unlink(missing_ok=True)
    results = Results(options.results)
    asked = [one for one in slips(options.slips) if any(part in one.mutant.file for part in options.files)]
    if not asked:
        parser.error(f"--files: expected a part of a file in {LIST.name}, got {' '.join(options.files)}")
    pending = [one for one in asked if results.of(one.mutant, tests_once(folder_of(one.mutant.file))) is None]
    began = time.monotonic()
    import torch  # once, for all children

    torch.set_num_threads(1)
    named = [one for one in pending if one.noticed_by and not options.search]
    ask_named(named, results)
    survivors.ask([one.mutant for one in pending if one not in named], results, folder_of)
    if options.list:
        for one in asked:
            line = results.of(one.mutant, tests_once(folder_of(one.mutant.file)))
            if line and line["outcome"] == "survived":
                survivors.show_survivor(line)
    share = table(asked, results)
    print(f"\n{len(pending)} asked now in {time.monotonic() - began:.0f} s; at least {WANTED:.0%}: got {share:.1%}")
    return 0 if share >= WANTED else 1


if __name__ == "__main__":
    sys.exit(main())
